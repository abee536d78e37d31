//! What the black-box tests and the tests on clusters share: modules for policies, scripted answers over HTTP, waiting for conditions, time
//! limits, what a process or a folder uses of the machine, and lines that a test writes for `cargo xtask test`. Also what benchmarks send: the review of a pod, and floods of strangers.
#![forbid(unsafe_code)]

/// The exit status of a program that a fail point has ended (`exit` in `crates/process/src/failpoint.rs`).
pub const FAIL_POINT: i32 = 86;

mod bounds;
mod disk;
mod flood;
mod guest;
mod http;
mod moment;
mod review;
mod stalls;
mod stat;
mod test_lines;
mod usage;
mod wait;

pub use bounds::{Bound, one_round_in_time};
pub use disk::bytes_below;
pub use flood::{Flood, Stranger};
pub use guest::{example, guest, guest_with, large_module, rego, rego_calling, repository, wat};
pub use http::{Asked, Reply, exchange};
pub use moment::{Moment, most_excused};
pub use portcullis_util::lock;
pub use review::pod_review;
pub use stalls::Stalls;
pub use stat::stat_fields;
pub use test_lines::{note, report_panics, skip};
pub use usage::Usage;
pub use wait::{StopOnDrop, eventually_seen, eventually_within, never, never_lasting};
