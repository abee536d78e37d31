//! The events that the plan reacts to.

use std::collections::HashSet;
use std::sync::Arc;

use portcullis_contract::EvaluatorState;

use super::Outcome;
use super::attempts::AttemptError;
use crate::checks::Trials;
use crate::input::Snapshot;

/// Something that happened outside the plan.
#[derive(Debug)]
pub(crate) enum Event {
    /// The input has a new snapshot.
    Desired(Arc<Snapshot>),
    /// These are all the trials now.
    Tried(Trials),
    /// A job has ended.
    Ended(Outcome),
    /// The evaluator reported its state.
    Evaluator(Arc<EvaluatorState>),
    /// A watched file outside the policies changed, such as the credentials for a registry.
    OutsideChanged,
    /// A manifest was published under this number, or could not be published.
    Published(Result<u64, AttemptError>),
    /// Files of these names were removed from the volume to make room.
    Removed(HashSet<String>),
    /// The manifest on the volume is no longer the one that was published.
    ManifestLost,
}
