//! The output to Kubernetes (docs/design/status-api.md).
//!
//! ```text
//!  this pod's report ──► own ──────────────────────────────► ReplicaReport
//!                        lease ◄───────────────────────────► Lease
//!                          │ held
//!                          ▼
//!  policies, reports, ──► leader ──► judge ──► pace ───────► status of policies
//!  endpoints (watch)      │ └──────► announce ─────────────► events
//!                         └────────► audit, if wanted ─────► reports on objects
//! ```
//!
//! Every reporter writes the report of its own pod; the one that holds the Lease joins all reports into the status of policies,
//! with the same decision code as for a folder. Readiness does not depend on this output, and no failure here ends the program: a call
//! that fails is tried again, logged once, and counted.

mod announce;
mod args;
mod body;
mod collections;
mod fields;
mod judge;
mod leader;
mod metrics;
mod object;
mod outdated;
mod own;
mod pace;
mod removals;
mod store;
#[cfg(test)]
pub(crate) mod stub;
mod tally;
mod texts;
mod tries;
mod urgency;
mod write;

use std::net::SocketAddr;
use std::sync::Arc;

use portcullis_api::{ReplicaReportSpec, ReportChange};
use portcullis_kubernetes::{Access, AnswerLimits, Leadership, LeaseSettings, hold_lease};
use portcullis_process::{SettingError, Shutdown, supervised};
use prometheus::Registry;
use tokio::task::JoinHandle;

pub use args::KubernetesArgs;
pub(crate) use args::Settings;

use crate::audit::{Audit, Site};
use metrics::ClusterMetrics;

/// The largest page of what the leader and the audit list, in bytes. A page that is larger is asked for in smaller ones.
const LARGEST_PAGE: usize = 16 << 20;

/// The running output.
pub(crate) struct Cluster {
    report: tokio::sync::watch::Sender<Option<ReplicaReportSpec>>,
    node: String,
    own: JoinHandle<()>,
    lease: JoinHandle<()>,
    leader: JoinHandle<()>,
}

impl Cluster {
    /// Starts to report and to ask for the Lease. `evaluator` is where this pod's evaluator is asked.
    ///
    /// # Errors
    /// When the settings do not say how to reach an API server. Not when it cannot be reached.
    pub(crate) async fn start(
        settings: Settings,
        evaluator: SocketAddr,
        registry: &Registry,
        shutdown: Shutdown,
    ) -> anyhow::Result<Self> {
        let metrics = ClusterMetrics::new(registry)?;
        let access = Access { kubeconfig: settings.kubeconfig.clone() };
        let server = access.connect("portcullis-reporter").await;
        let server = server.map_err(|error| SettingError::new("--kubeconfig", error.to_string()))?;
        let client = server.client.clone();
        let identity = settings.identity.clone();

        let (report, updates) = tokio::sync::watch::channel(None);
        let (sender, leadership) = Leadership::new();
        let node = settings.identity.node.clone();
        let wanted = LeaseSettings {
            namespace: identity.namespace.clone(),
            name: settings.lease_name.clone(),
            identity: identity.pod.clone(),
        };
        let listing = server.client_within(AnswerLimits { largest: LARGEST_PAGE, ..AnswerLimits::default() });
        let audit = settings.audit.map(|wanted| {
            let metrics_of_calls = metrics.clone();
            Audit {
                client: listing.clone(),
                evaluator,
                site: Site { policy_server: identity.policy_server.clone(), namespace: identity.namespace.clone() },
                interval: wanted.interval,
                format: wanted.format,
                metrics: metrics.audit.clone(),
                failures: Arc::new(move |doing: &'static str| metrics_of_calls.failures_to(doing)),
                report: updates.clone(),
            }
        });
        let settings = Arc::new(settings);

        let own = {
            let (client, identity, heartbeat) = (client.clone(), identity.clone(), settings.heartbeat);
            let metrics = metrics.clone();
            supervised("the report", &shutdown, move || {
                let failures = metrics.failures_to("write the report");
                let outdated = metrics.outdated.clone();
                own::report(client.clone(), identity.clone(), heartbeat, failures, outdated, updates.clone())
            })
        };
        let lease = {
            let (client, metrics, token) = (client.clone(), metrics.clone(), shutdown.clone());
            supervised("the Lease", &shutdown, move || {
                let (failures, end) = (metrics.failures_to("hold the Lease"), token.clone());
                let end = async move { end.begun().await };
                hold_lease(client.clone(), wanted.clone(), sender.clone(), failures, end)
            })
        };
        let leader = supervised("the leader", &shutdown, move || {
            let (client, settings, metrics) = (listing.clone(), Arc::clone(&settings), metrics.clone());
            leader::lead_whenever_held(client, settings, metrics, leadership.clone(), audit.clone())
        });
        Ok(Self { report, node, own, lease, leader })
    }

    /// Sets what this pod reports.
    pub(crate) fn set_report(&self, report: ReplicaReportSpec) {
        let next = ReplicaReportSpec { node: self.node.clone(), ..report };
        self.report.send_if_modified(|last| {
            let changes = last.as_ref().is_none_or(|last| last.change_to(&next) != ReportChange::Time);
            if changes {
                *last = Some(next.clone());
            }
            changes
        });
    }

    /// Gives the Lease up and ends.
    pub(crate) async fn end(self) {
        self.leader.abort();
        // The task of the Lease ends by itself once the shutdown has begun; its calls have time limits.
        let _ = self.lease.await;
        self.own.abort();
    }
}
