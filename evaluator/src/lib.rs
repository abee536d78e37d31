//! Runs policies, swaps them live and answers admission reviews.
//!
//! ```text
//!  volume ──► watch ──► reload ──► table (one pointer, swapped whole) ◄── handler ◄── server (TLS, HTTP/1.1) ◄── API server
//!                                    │
//!                                    └──► state, health, metrics (a thread of their own)
//! ```
//!
//! A request comes in by [`http`], is read by [`review`] and put to guests by [`admission`]; what becomes of their verdicts is
//! decided in [`verdict`]. A request takes the table once and keeps it, so its whole answer comes from one table. Large
//! parts of a request or a reply are worked on beside the lanes, in the policy's time. A policy that somebody applies goes through
//! [`capability`] to the loader of the pod, whose verdict is the answer.
//!
//! A change of the volume comes in by [`volume`], which loads what is new and swaps the table. [`guest`] runs modules; [`lanes`]
//! decides when, [`memory`] with how much memory, and [`fair`] which policy comes first.
//!
//! The reporter asks on the loopback about existing objects, and [`audit`] evaluates them with the capacity that requests leave over.
//!
//! This program never compiles, never fetches, has no API token, and gives up connections, other programs and foreign
//! files before it loads the first module.

mod admission;
mod args;
mod audit;
mod capability;
mod confinement;
mod fair;
mod guest;
mod health;
mod http;
mod lanes;
mod memory;
mod metrics;
mod review;
mod run;
pub mod steps;
mod table;
mod verdict;
mod volume;

pub use args::Args;
pub use capability::BrokerLink;
pub use guest::loaded::{Loaded, LoadedModule};
pub use lanes::{LaneLimits, Lanes};
pub use memory::MemoryPlan;
pub use metrics::Metrics;
pub use run::run;
pub use table::{ServedPolicy, Serving, SharedTable, Table};
pub use verdict::{EvaluationError, Verdict};
pub use volume::follow::Follow;
pub use volume::state::numbered;
