//! The output to Kubernetes (docs/design/status-api.md, all of it).
//!
//! ```text
//!  this pod's report ──► own ──────────────────────────────► ReplicaReport
//!                        lease ◄───────────────────────────► Lease
//!                          │ held
//!                          ▼
//!  policies, reports, ──► leader ──► judge ──► pace ───────► status of policies
//!  endpoints (watch)        └──────► announce ─────────────► events
//! ```
//!
//! Every reporter writes the report of its own pod; the one that holds the Lease joins all reports into the status of policies,
//! with the same decision code that a folder has. Nothing here is waited for by readiness, and nothing ends the program: what has
//! no success is tried again, told once, and counted.

mod announce;
mod args;
mod backoff;
mod call;
mod fields;
mod judge;
mod leader;
mod lease;
mod metrics;
mod object;
mod own;
mod pace;
mod store;
mod tally;
mod trouble;
mod urgency;
mod watch;
mod write;

use std::sync::Arc;
use std::time::Duration;

use portcullis_api::ReplicaReportSpec;
use portcullis_kubernetes::{Leadership, LeaseSettings, hold_lease};
use portcullis_process::{SettingError, Shutdown};
use prometheus::Registry;
use tokio::task::{JoinHandle, JoinSet};

pub use args::KubernetesArgs;
pub(crate) use args::Settings;

use call::Server;
use lease::Leases;
use metrics::ClusterMetrics;
use trouble::Trouble;

/// Before a part that panicked is started again.
const RESTART: Duration = Duration::from_secs(1);

/// The running output.
pub(crate) struct Cluster {
    report: tokio::sync::watch::Sender<Option<ReplicaReportSpec>>,
    node: String,
    own: JoinHandle<()>,
    lease: JoinHandle<()>,
    leader: JoinHandle<()>,
}

impl Cluster {
    /// Starts to report and to stand for the Lease.
    ///
    /// # Errors
    /// When the settings do not tell how to reach an API server. Not when it cannot be reached.
    pub(crate) async fn start(settings: Settings, registry: &Registry, shutdown: Shutdown) -> anyhow::Result<Self> {
        let metrics = ClusterMetrics::new(registry)?;
        let server = Server::open(settings.kubeconfig.as_deref()).await;
        let server = Arc::new(server.map_err(|error| SettingError::new("--kubeconfig", error.to_string()))?);
        let identity = settings.identity.clone();

        let (report, news) = tokio::sync::watch::channel(None);
        let (seat, leadership) = Leadership::new();
        let node = settings.identity.node.clone();
        let wanted = LeaseSettings {
            namespace: identity.namespace.clone(),
            name: settings.lease_name.clone(),
            identity: identity.pod.clone(),
        };
        let settings = Arc::new(settings);

        let own = {
            let (server, identity, heartbeat) = (Arc::clone(&server), identity.clone(), settings.heartbeat);
            let failures = metrics.failures.clone();
            supervised("the report", move || {
                let trouble = Trouble::new("write the report", failures.clone());
                own::report(Arc::clone(&server), identity.clone(), heartbeat, trouble, news.clone())
            })
        };
        let lease = {
            let (server, metrics) = (Arc::clone(&server), metrics.clone());
            supervised("the Lease", move || {
                let trouble = Trouble::new("hold the Lease", metrics.failures.clone());
                let leases = Leases::new(Arc::clone(&server), &wanted.namespace, trouble);
                let end = shutdown.clone();
                hold_lease(leases, wanted.clone(), seat.clone(), async move { end.begun().await })
            })
        };
        let leader = supervised("the leader", move || {
            let (server, settings, metrics) = (Arc::clone(&server), Arc::clone(&settings), metrics.clone());
            leader::lead_whenever_held(server, settings, metrics, leadership.clone())
        });
        Ok(Self { report, node, own, lease, leader })
    }

    /// Tells what this pod has to report now.
    pub(crate) fn tell(&self, report: ReplicaReportSpec) {
        let next = ReplicaReportSpec { node: self.node.clone(), ..report };
        self.report.send_if_modified(|last| {
            let same =
                |last: &ReplicaReportSpec| ReplicaReportSpec { heartbeat: next.heartbeat, ..last.clone() } == next;
            let changes = !last.as_ref().is_some_and(same);
            if changes {
                *last = Some(next.clone());
            }
            changes
        });
    }

    /// Lets go of the Lease and ends.
    pub(crate) async fn end(self) {
        self.leader.abort();
        // It ends by itself once the shutdown has begun; its calls have limits.
        let _ = self.lease.await;
        self.own.abort();
    }
}

/// Runs a task, again where it panics: a mistake in one part must not end the others.
fn supervised<F: Future<Output = ()> + Send + 'static>(
    what: &'static str,
    start: impl Fn() -> F + Send + 'static,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            // A set, so that the task ends with this one.
            let mut task = JoinSet::new();
            task.spawn(start());
            match task.join_next().await {
                Some(Err(error)) if error.is_panic() => {
                    tracing::error!("{what} panicked and is started again");
                    tokio::time::sleep(RESTART).await;
                }
                _ => return,
            }
        }
    })
}
