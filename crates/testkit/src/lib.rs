//! What the black-box tests and the tests on clusters share: modules for policies, scripted
//! answers over HTTP, waiting for conditions, and the disk usage of a folder.
#![forbid(unsafe_code)]

mod disk;
mod guest;
mod http;
mod wait;

pub use disk::bytes_below;
pub use guest::{example, guest, guest_with, large_module, rego, repository, wat};
pub use http::{Asked, Reply, exchange};
pub use wait::{eventually_within, lock, never};
