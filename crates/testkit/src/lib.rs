//! What the black-box tests and the tests on clusters share: modules for policies, scripted
//! answers over HTTP, waiting for conditions, the disk usage of a folder, and what a test says about itself.
#![forbid(unsafe_code)]

mod disk;
mod guest;
mod http;
mod told;
mod wait;

pub use disk::bytes_below;
pub use guest::{example, guest, guest_with, large_module, rego, repository, wat};
pub use http::{Asked, Reply, exchange};
pub use told::{note, skip, tell_of_panics};
pub use wait::{eventually_within, lock, never};
