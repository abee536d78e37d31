//! Verdicts on objects that exist: `POST /audit/<policy>` on the state port, for the reporter of this pod.
//!
//! ```text
//!  state port (a thread of its own) ──► queue of 16 ──► worker in the slow lane, one at a time
//! ```
//!
//! Requests of API servers come first. One audit runs at a time, in the slow lane and in an instance that nobody waits for, and after each
//! one comes a pause ([`pace`]), so that audits together take no more than a share of one core. The worker is in the slow lane itself: on a
//! busy machine its threads wait long for the processor, and once one has it, it answers all that is in the queue. A question that finds no
//! place there is refused at once, and the reporter asks again later.
//!
//! Each answer says how long the evaluation took. By that the reporter limits what one policy or namespace takes of an audit, so an evaluation
//! only begins if it can end while the reporter still waits for its answer.

mod pace;
mod refusal;
mod route;
mod worker;

use std::time::Duration;

pub(crate) use self::route::{Audits, routes};
pub(crate) use self::worker::{Worker, queue};

/// The most audits that wait for their turn.
const MOST_WAITING: usize = 16;
/// How long an audit waits for its verdict: longer than any evaluation, and shorter than the reporter waits for the answer.
const PATIENCE: Duration = Duration::from_secs(50);
