//! The memory of guests and requests: how much there is, and what it is planned for.
//!
//! ```text
//!  container's limit ──► plan ──┬─► the program itself
//!                               ├─► bodies of requests, and what guests see of them
//!                               ├─► a floor for each instance, which comes with its permit and needs no accounting
//!                               └─► the rest, shared: what an instance needs above its floor is taken from it first
//! ```
//!
//! Address space is not memory: each instance may grow to its limit, but not all of them at the same time. An instance that finds none
//! left waits, within its own time, and is refused as Overloaded at the end of it; that of an audit is refused at once. What mutating
//! policies add to an object is taken from the same part, for as long as other policies are asked about it, and so is what large metadata
//! take while match conditions are evaluated. The shared part follows the rule of [`crate::fair::policies`], so that policies which use all
//! that they may leave room for others.

mod instance;
mod plan;
mod total;

pub(crate) use self::instance::{GuestMemory, InstanceMemory, KeptMemory, MemoryHold, NoMemory, WhenFull};
pub use self::plan::MemoryPlan;
pub(crate) use self::plan::Wanted;
pub(crate) use self::total::TotalMemory;
