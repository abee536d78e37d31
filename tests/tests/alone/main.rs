//! Tests that run one at a time. Those of the fault catalogue have the machine to themselves: they compare how long evaluations and calls
//! take with and without others beside them, or use the whole machine. Other tests beside them would distort the results, and would be
//! slowed down by floods. `costs` counts what a request costs, which other tests may run beside if they leave the machine some time.
#![forbid(unsafe_code)]

mod costs;
mod floods;
mod overload;
mod sharing;
