//! What the black-box tests and the tests on clusters share: modules for policies, and what a folder takes of a disk.
#![forbid(unsafe_code)]

mod disk;
mod guest;

pub use disk::bytes_below;
pub use guest::{example, guest, guest_with, large_module, repository, wat};
