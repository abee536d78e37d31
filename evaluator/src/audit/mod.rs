//! Verdicts on objects that exist: `POST /audit/<policy>` on the state port, for the reporter of this pod.
//!
//! ```text
//!  state port (a thread of its own) ──► queue of 16 ──► worker on the main runtime, one at a time ──► slow lane
//! ```
//!
//! Requests of API servers come first. One audit runs at a time, in the slow lane and in an instance that nobody waits for, and after each
//! one comes a pause ([`pace`]), so that audits together take no more than a share of one core. A question that finds no place in the
//! queue is refused at once, and the reporter asks again later.

mod pace;
mod refusal;
mod route;
mod worker;

pub(crate) use self::route::{Audits, routes};
pub(crate) use self::worker::{Worker, queue};

/// The most audits that wait for their turn.
const MOST_WAITING: usize = 16;
