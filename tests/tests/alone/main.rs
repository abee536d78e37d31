//! Tests that run one at a time and have the machine to themselves. Those of the fault catalogue compare how long evaluations and calls
//! take with and without others beside them, or use the whole machine; `costs` counts what a request costs. Other tests beside them would
//! distort the results, and would be slowed down by floods.
#![forbid(unsafe_code)]

mod costs;
mod floods;
mod overload;
mod sharing;
