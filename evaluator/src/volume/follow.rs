//! The loop that follows the volume: it reads a new manifest, has its candidates loaded, and swaps the table.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use portcullis_contract::{EvaluatorState, Failure, Reason};
use portcullis_engine::RunningEngine;
use portcullis_process::{Beat, Latch, Shutdown, StateFeed};
use tokio::time::{MissedTickBehavior, interval, sleep, sleep_until};

use crate::capability::BrokerLink;
use crate::guest::{Excess, Guests, LogShares};
use crate::http::path_keys::AcceptedKeys;
use crate::lanes::Lanes;
use crate::metrics::Metrics;
use crate::table::SharedTable;
use crate::volume::artifact::Artifacts;
use crate::volume::error_share::INTERVALS;
use crate::volume::gate::Gate;
use crate::volume::load::Loading;
use crate::volume::plan;
use crate::volume::reload::Reload;
use crate::volume::state::{Overall, document, numbered};
use crate::volume::watch::{Content, Watch};

/// How often the loop turns when nothing happens.
const TURN: Duration = Duration::from_millis(500);
/// How often it is logged how much policies logged beyond their share.
const LOG_TURN: Duration = Duration::from_secs(5);
/// The pause after a failed start, before the next try.
const PAUSE: Duration = Duration::from_secs(1);

/// What following the volume needs.
pub struct Follow {
    /// The shared volume, which is only read.
    pub volume: PathBuf,
    /// The folder of private copies; see [`crate::volume::private_copy::prepare_private_dir`].
    pub private_dir: PathBuf,
    /// The largest size of that folder in bytes; none for no limit but the disk.
    pub private_size: Option<u64>,
    /// How often the volume is checked when no event comes.
    pub poll_interval: Duration,
    /// How long after the first manifest, and each policy of it that is settled, the start gate opens, whatever else is loaded.
    pub start_gate: Duration,
    /// The time limit of a policy that sets none.
    pub policy_timeout: Duration,
    /// Patterns of the host capabilities that policies of a namespace may have.
    pub namespaced_capabilities: Arc<[String]>,
    /// The link to the broker; none without a broker.
    pub broker: Option<Arc<BrokerLink>>,
    /// For how long too many evaluations of a policy must fail before the state reports it.
    pub error_window: Duration,
    /// The keys of webhook paths, which the state reports; none if paths have no keys.
    pub path_keys: Option<Arc<AcceptedKeys>>,
    /// The end of the program, which the state reports once it begins. The loop goes on after that.
    pub drain: Shutdown,
    /// The engine that runs policies.
    pub engine: RunningEngine,
    /// The lanes that they run in.
    pub lanes: Arc<Lanes>,
    /// Counters.
    pub metrics: Metrics,
}

impl Follow {
    /// Follows the volume until the shutdown. Each change is swapped into `table` and published in `state`; `ready` is released when the
    /// start gate opens, and `beat` moves at least once a second.
    pub async fn run(
        self,
        table: SharedTable,
        state: StateFeed<EvaluatorState>,
        ready: Latch,
        beat: Beat,
        shutdown: Shutdown,
    ) {
        let (mut watch, loading) = loop {
            match self.begin() {
                Ok(begun) => break begun,
                Err(error) => tracing::error!(%error, "failed to follow the volume, trying again"),
            }
            beat.now();
            tokio::select! {
                () = sleep(PAUSE) => {}
                () = shutdown.begun() => return,
            }
        };
        let (artifacts, log_shares) = (Arc::clone(&loading.artifacts), Arc::clone(&loading.log_shares));
        let mut follower = Follower {
            reload: Reload::new(loading, self.metrics.clone()),
            overall: Overall::new(self.path_keys.as_deref()),
            gate: Gate::new(ready, self.start_gate),
            metrics: self.metrics,
            path_keys: self.path_keys,
            table,
            state,
        };
        let mut turns = interval(TURN);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut errors = interval(self.error_window / INTERVALS);
        errors.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut errors_since = Timestamp::now();
        let mut logs = interval(LOG_TURN);
        logs.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut pruned = 0;
        loop {
            beat.now();
            let due = follower.reload.due();
            tokio::select! {
                () = shutdown.begun() => return,
                () = self.drain.begun(), if !follower.overall.draining => {
                    follower.overall.draining = true;
                    follower.publish_state();
                }
                seen = watch.changed() => follower.take_in(seen),
                () = follower.reload.progress() => follower.publish(),
                () = until(due) => {
                    follower.reload.start();
                    follower.publish();
                }
                _ = turns.tick() => {
                    follower.open_gate();
                    follower.publish_keys();
                }
                _ = errors.tick() => {
                    follower.reload.count_errors(errors_since);
                    errors_since = Timestamp::now();
                    follower.publish_state();
                }
                _ = logs.tick() => report_dropped_lines(&log_shares),
            }
            // Once a manifest is applied, the private copies of earlier ones are not needed any longer.
            if follower.overall.applied != pruned {
                pruned = follower.overall.applied;
                let (artifacts, needed) = (Arc::clone(&artifacts), follower.reload.artifacts());
                tokio::task::spawn_blocking(move || artifacts.prune(&needed));
            }
        }
    }

    fn begin(&self) -> anyhow::Result<(Watch, Loading)> {
        let (engine, workers) = (self.engine.clone(), self.lanes.limits().threads);
        let artifacts = Artifacts::new(&self.volume, &self.private_dir, self.private_size, engine, workers)?;
        let guests = Guests::new(self.engine.clone()).map_err(|error| anyhow::anyhow!("{error:#}"))?;
        let loading = Loading {
            artifacts: Arc::new(artifacts),
            guests,
            lanes: Arc::clone(&self.lanes),
            policy_timeout: self.policy_timeout,
            namespaced_capabilities: Arc::clone(&self.namespaced_capabilities),
            broker: self.broker.clone(),
            caches: Arc::default(),
            caches_of_checks: Arc::default(),
            log_shares: Arc::default(),
        };
        let watch = Watch::start(self.volume.clone(), self.poll_interval, self.metrics.watch_polling.clone())?;
        Ok((watch, loading))
    }
}

/// Logs how much policies logged beyond their share since the last time: one line for each tenant, which names the worst of its policies.
fn report_dropped_lines(shares: &LogShares) {
    for Excess { policy, others, dropped } in shares.turn(Instant::now()) {
        let (lines, bytes, seconds) = (dropped.lines, dropped.bytes, LOG_TURN.as_secs());
        tracing::warn!(%policy, others, lines, bytes, seconds, "the policy logged more than its share: lines were dropped");
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

/// The state of the loop.
struct Follower {
    reload: Reload,
    overall: Overall,
    gate: Gate,
    metrics: Metrics,
    path_keys: Option<Arc<AcceptedKeys>>,
    table: SharedTable,
    state: StateFeed<EvaluatorState>,
}

impl Follower {
    fn take_in(&mut self, seen: Content) {
        match seen {
            Content::Manifest(seen) => {
                let manifest = &seen.manifest;
                self.metrics.manifest_unusable.set(0);
                if self.overall.manifest_failure.take().is_some() {
                    tracing::info!(number = manifest.number, "the manifest can be used again");
                }
                self.gate.first_manifest(Instant::now(), || plan::awaited(&manifest.policies));
                self.reload.adopt(seen);
                self.publish();
            }
            Content::Unusable(text) => {
                // The policies that serve go on serving.
                self.metrics.manifest_errors.inc();
                self.metrics.manifest_unusable.set(1);
                let earlier = self.overall.manifest_failure.as_ref();
                let since = earlier.map_or_else(Timestamp::now, |earlier| earlier.since);
                let failure = Failure::new(0, Reason::ManifestInvalid, text, since);
                if earlier.is_none() {
                    tracing::warn!(cause = failure.message, "failed to use the manifest");
                }
                self.overall.manifest_failure = Some(failure);
                self.publish_state();
            }
        }
    }

    /// Swaps the table and publishes the state.
    fn publish(&mut self) {
        self.table.store(Arc::new(self.reload.table()));
        self.metrics.swaps.inc();
        if self.reload.is_idle() {
            self.overall.applied = self.reload.number();
        }
        self.publish_state();
        self.open_gate();
    }

    fn publish_state(&self) {
        self.state.publish(document(&self.overall, self.reload.policies()), numbered);
    }

    /// Publishes which keys of webhook paths are accepted, if they have changed: the controller waits for that.
    fn publish_keys(&mut self) {
        let accepted = self.path_keys.as_ref().map(|keys| keys.ids()).unwrap_or_default();
        if self.overall.path_keys != accepted {
            self.overall.path_keys = accepted;
            self.publish_state();
        }
    }

    fn open_gate(&mut self) {
        let reload = &self.reload;
        if self.gate.is_open(Instant::now(), |awaited| {
            let unsettled = reload.policies().filter(|policy| !policy.is_settled()).map(|policy| &policy.entry.id);
            unsettled.filter(|id| awaited.contains(*id)).collect()
        }) && !self.overall.ready
        {
            self.overall.ready = true;
            self.publish_state();
        }
    }
}
