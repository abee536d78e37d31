//! Tests of the fault catalogue that run one at a time and have the machine to themselves: they compare how long evaluations take with
//! and without others beside them, and anything else that runs would distort that.
#![forbid(unsafe_code)]

mod sharing;
