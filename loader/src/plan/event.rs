//! The events that the plan reacts to.

use std::sync::Arc;

use portcullis_contract::EvaluatorState;

use super::attempts::AttemptError;
use super::{Job, Outcome};
use crate::checks::Trials;
use crate::input::Snapshot;

/// Something that happened outside the plan.
#[derive(Debug)]
pub(crate) enum Event {
    /// The input has a new snapshot.
    Desired(Arc<Snapshot>),
    /// These are all the candidates that are tried now.
    Tried(Trials),
    /// A running job has made progress.
    Progress {
        /// The job.
        job: Job,
        /// Bytes so far.
        bytes: u64,
        /// Bytes in all, if known.
        total: Option<u64>,
    },
    /// A job has ended.
    Ended(Outcome),
    /// The evaluator reported its state.
    Evaluator(Arc<EvaluatorState>),
    /// A watched file outside the policies changed, such as the credentials for a registry.
    OutsideChanged,
    /// A manifest was published under this number, or could not be published.
    Published(Result<u64, AttemptError>),
    /// The manifest on the volume is no longer the one that was published.
    ManifestLost,
}

impl Event {
    /// Whether the next manifest may differ because of it. Progress is only shown.
    pub(super) fn may_change_manifest(&self) -> bool {
        !matches!(self, Self::Progress { .. })
    }
}
