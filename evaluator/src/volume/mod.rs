//! From the shared volume to the table: what the loader publishes is noticed, checked, loaded and swapped in.
//!
//! [`follow`] is the loop; [`plan`] decides what to load, and is pure, as is [`refusal`], which says what a failed load means; [`load`] makes one
//! candidate ready; [`artifact`] makes code that may run from a file.

mod artifact;
mod artifact_error;
mod error_share;
pub(crate) mod follow;
mod gate;
mod load;
pub(crate) mod plan;
pub(crate) mod private_copy;
mod private_room;
mod refusal;
mod reload;
pub(crate) mod state;
mod watch;
