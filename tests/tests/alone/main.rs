//! Tests of the fault catalogue that run one at a time and have the machine to themselves: they compare how long evaluations and calls
//! take with and without others beside them. Anything else that runs would distort that, and would be slowed down by floods.
#![forbid(unsafe_code)]

mod floods;
mod sharing;
