//! Verdicts on objects that exist: `POST /audit/<policy>` on the state port, for the reporter of this pod, which asks policies that are stored, and
//! for its loader, which asks policies that are only being checked.
//!
//! ```text
//!                                   ┌──► queue of 16: stored policies ──┐
//!  state port (a thread of its own) ┤                                   ├──► worker in the slow lane, one at a time
//!                                   └──► queue of 16: checked policies ─┘
//! ```
//!
//! Requests of API servers come first. One audit runs at a time, in the slow lane and in an instance that nobody waits for, and after each
//! one comes a pause ([`pace`]), so that audits together take no more than a share of one core. The queues take turns, and each makes the pauses for
//! its own questions only, so that a slow policy that somebody applies does not hold up the audit, nor a slow audit the checks. The worker is
//! in the slow lane itself: on a busy machine its threads wait long for the processor, and once one has it, it answers all that is in the
//! queues. A question that finds no place there is refused at once, and is asked again later.
//!
//! Each answer says how long the evaluation took. By that the reporter limits what one policy or namespace takes of an audit, so an evaluation
//! only begins if it can end while the reporter still waits for its answer.

mod pace;
mod refusal;
mod route;
mod worker;

use std::time::Duration;

use crate::admission::LONGEST_WAIT;

pub(crate) use self::route::{Audits, routes};
pub(crate) use self::worker::{Worker, queues};

/// The most audits that wait for their turn in each queue.
const MOST_WAITING: usize = 16;
/// How long an audit waits for its verdict: longer than any evaluation, and shorter than the reporter waits for the answer.
const PATIENCE: Duration = Duration::from_secs(50);
const _: () = assert!(LONGEST_WAIT.as_secs() < PATIENCE.as_secs(), "every evaluation can end in time");
