//! Tests of the fault catalogue that have the machine to themselves, one at a time: they compare what evaluations take beside others and
//! without, and what else runs would count.
#![forbid(unsafe_code)]

mod sharing;
