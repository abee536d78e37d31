//! Follows the volume: a new manifest is read, its candidates are loaded, the table is swapped.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use portcullis_contract::EvaluatorState;
use portcullis_engine::RunningEngine;
use portcullis_process::{Beat, Latch, Shutdown, StateFeed};

use crate::lanes::Lanes;
use crate::metrics::Metrics;
use crate::table::SharedTable;

/// What is followed, and with what.
pub struct Follow {
    /// The shared volume; only read.
    pub volume: PathBuf,
    /// The folder of private copies; made if it is not there.
    pub private_dir: PathBuf,
    /// How often the volume is looked at when no event comes.
    pub poll_interval: Duration,
    /// How long after the first manifest the start gate opens whatever is loaded.
    pub start_gate: Duration,
    /// The time limit of a policy that sets none.
    pub policy_timeout: Duration,
    /// What runs the policies.
    pub engine: RunningEngine,
    /// Where they run.
    pub lanes: Arc<Lanes>,
    /// What is counted.
    pub metrics: Metrics,
}

impl Follow {
    /// Follows the volume until the shutdown. Each change of the set is swapped into `table` and told by `state`; `ready`
    /// is released when the start gate opens, and `beat` moves at least once a second.
    pub async fn run(
        self,
        _table: SharedTable,
        _state: StateFeed<EvaluatorState>,
        _ready: Latch,
        _beat: Beat,
        shutdown: Shutdown,
    ) {
        shutdown.begun().await;
    }
}
