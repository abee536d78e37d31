//! The background audit: asks policies about the objects that exist (docs/audit.md).
//!
//! ```text
//!  policies, resources ──► plan ──► pages of objects ──► memory ──► questions ──► this pod's evaluator
//!                                                          │                            │
//!                                                          └────────► findings ◄────────┘
//!                                                                        ├──► reports
//!                                                                        └──► a summary for the status of each policy
//! ```
//!
//! The reporter that holds the Lease scans when an interval has passed since the last scan, and soon after a change of policies or of the
//! generations that serve, unless that would make it read objects for more than a tenth of the time (`rest`). Objects are read page by page. Policies are not asked again about objects that were judged and have not changed.
//! A policy that takes more than its share of the time is not asked about further objects in a scan (`budget`), so that it delays no other.
//! Where writes of reports are slow, the others in that namespace are left for the next scan (`slow_writes`).

mod ask;
mod budget;
mod finding;
mod hash;
mod in_force;
mod known;
mod memory;
mod metrics;
mod pages;
mod plan;
mod report;
mod rest;
mod scan;
mod slow_writes;
mod subject;
mod tally;
mod worker;
mod writer;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::Client;
use portcullis_api::ReplicaReportSpec;
use portcullis_kubernetes::{Failures, Leadership, Retry};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

pub use report::AuditFormat;
pub(crate) use subject::audit_requested;

use ask::Evaluator;
use budget::Budgets;
use memory::Memory;
pub(crate) use metrics::AuditMetrics;
use rest::Reading;
pub(crate) use scan::{Found, News};
use scan::{Scanned, Scanner};
pub(crate) use subject::Site;
use subject::{Served, Unloadable, is_settled, served, unloadable};
pub(crate) use tally::unserved;
use worker::Worker;
use writer::Writer;

/// How long changes are collected before a scan that they cause.
const DEBOUNCE: Duration = Duration::from_secs(5);
/// How long a scan waits for an evaluator that is loading, and how long a request for a scan waits for a policy that is not served yet.
const LOADING: Duration = Duration::from_secs(120);
/// How often it checks meanwhile whether the evaluator still loads.
const LOOK: Duration = Duration::from_secs(1);

/// Everything that the audit needs.
#[derive(Clone)]
pub(crate) struct Audit {
    pub(crate) client: Client,
    /// The state port of this pod's evaluator.
    pub(crate) evaluator: SocketAddr,
    pub(crate) site: Site,
    pub(crate) interval: Duration,
    pub(crate) format: AuditFormat,
    pub(crate) metrics: AuditMetrics,
    /// Counts and logs the failures of one kind of call.
    pub(crate) failures: Arc<dyn Fn(&'static str) -> Failures + Send + Sync>,
    /// The report of this pod, which says what its evaluator serves; none before the first.
    pub(crate) report: watch::Receiver<Option<ReplicaReportSpec>>,
}

/// The state that a scan is made for; another one causes another scan.
#[derive(Debug, Clone)]
struct State {
    /// The policies, as a number that changes with them.
    policies: u64,
    served: Served,
    /// A change of this causes a scan only if `is_awaited`.
    unloadable: Unloadable,
    /// Whether the scan has left a request for a policy that may soon be served.
    is_awaited: bool,
}

/// Where the state comes from.
struct Inputs {
    policies: watch::Receiver<Option<u64>>,
    report: watch::Receiver<Option<ReplicaReportSpec>>,
    /// How long further changes are collected; shorter in tests.
    debounce: Duration,
}

impl Audit {
    /// Scans for ever. `policies` is a number that changes with the policies, once they are known.
    pub(crate) async fn run(
        self,
        policies: watch::Receiver<Option<u64>>,
        leadership: Leadership,
        found: mpsc::Sender<Found>,
    ) {
        let mut inputs = Inputs { policies, report: self.report.clone(), debounce: DEBOUNCE };
        let interval = self.interval;
        let mut failures = (self.failures)("scan for the audit");
        let Some(mut scanner) = self.scanner(leadership) else { return std::future::pending().await };
        let (mut retry, mut may_be_interrupted) = (Retry::default(), false);
        loop {
            let mut state = inputs.settled().await;
            let done = tokio::select! {
                done = scanner.scan(&state.served, &state.unloadable) => Some(done),
                () = inputs.changed(&state, Duration::ZERO), if may_be_interrupted => None,
            };
            scanner.worker.reading.stop(Instant::now().into_std());
            match done {
                // The scan was interrupted by a change. Its judgements are remembered, and the next scan is not interrupted.
                None => {
                    may_be_interrupted = false;
                    continue;
                }
                Some(Ok(Scanned { found: all, is_awaited })) => {
                    failures.over();
                    retry.reset();
                    may_be_interrupted = true;
                    state.is_awaited = is_awaited;
                    for one in all {
                        if found.send(one).await.is_err() {
                            return;
                        }
                    }
                }
                Some(Err(error)) => {
                    failures.failed(&error);
                    tokio::time::sleep(retry.pause(&error, fastrand::f64())).await;
                    continue;
                }
            }
            let rest = scanner.worker.reading.rest(interval, Instant::now().into_std());
            let pause = if state.is_awaited { rest.max(LOADING).min(interval) } else { interval };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = inputs.changed(&state, rest) => {}
            }
        }
    }

    fn scanner(self, leadership: Leadership) -> Option<Scanner> {
        let evaluator = match Evaluator::new(self.evaluator, Failures::new("ask the evaluator", |_| ())) {
            Ok(evaluator) => evaluator,
            Err(error) => {
                tracing::error!(%error, "the audit is off, as no HTTP client can be made");
                return None;
            }
        };
        let writer = Writer::new(
            self.client.clone(),
            self.format,
            self.site.policy_server.clone(),
            leadership,
            self.metrics.clone(),
            (self.failures)("write audit reports"),
        );
        let worker = Worker {
            evaluator,
            budgets: Mutex::new(Budgets::new(self.interval)),
            memory: Memory::default(),
            reading: Reading::default(),
            writer,
            metrics: self.metrics.clone(),
            policy_server: self.site.policy_server.clone(),
            format: self.format,
        };
        let failures = (self.failures)("list for the audit");
        let revision_failures = (self.failures)("read revisions for the audit");
        let Self { client, site, metrics, .. } = self;
        Some(Scanner { client, site, metrics, failures, revision_failures, worker })
    }
}

impl State {
    /// Whether nothing has changed since that calls for a scan.
    fn is_still(&self, now: &Self) -> bool {
        let is_told = !self.is_awaited || self.unloadable == now.unloadable;
        self.policies == now.policies && self.served == now.served && is_told
    }
}

impl Inputs {
    /// The state; none until it is known.
    fn state(&self) -> Option<State> {
        let policies = *self.policies.borrow();
        let report = self.report.borrow();
        let report = report.as_ref()?;
        let (served, unloadable) = (served(report), unloadable(report));
        Some(State { policies: policies?, served, unloadable, is_awaited: false })
    }

    /// Waits until the state is known, and for a limited time until the evaluator has loaded what it can.
    async fn settled(&mut self) -> State {
        let begin = Instant::now();
        loop {
            let is_loading = self.report.borrow().as_ref().is_some_and(|report| !is_settled(report));
            if let Some(state) = self.state()
                && (!is_loading || begin.elapsed() >= LOADING)
            {
                return state;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until the state has changed, and a moment longer for further changes; and until a rest of this time from now is over.
    async fn changed(&mut self, last: &State, rest: Duration) {
        let rested = Instant::now() + rest;
        while self.state().is_none_or(|state| last.is_still(&state)) {
            let changed = tokio::select! {
                changed = self.policies.changed() => changed,
                changed = self.report.changed() => changed,
            };
            if changed.is_err() {
                // The senders are gone: the program ends, and nothing changes any longer.
                std::future::pending::<()>().await;
            }
        }
        tokio::time::sleep_until(rested.max(Instant::now() + self.debounce)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use portcullis_api::{PolicyKey, ReportDeviation};
    use portcullis_contract::ReplicaState;

    use super::*;

    /// More than a change takes, even on a slow machine.
    const LONG: Duration = Duration::from_secs(60);

    async fn waits(inputs: &mut Inputs, state: &State, time: Duration) -> bool {
        tokio::time::timeout(time, inputs.changed(state, Duration::ZERO)).await.is_err()
    }

    #[tokio::test]
    async fn a_change_of_the_policies_or_of_what_serves_is_noticed_and_a_heartbeat_is_not() {
        let (policies, policies_receiver) = watch::channel(Some(1));
        let (report, report_receiver) = watch::channel(Some(ReplicaReportSpec::default()));
        let debounce = Duration::from_millis(10);
        let mut inputs = Inputs { policies: policies_receiver, report: report_receiver, debounce };
        let state = inputs.settled().await;
        report.send_modify(|report| report.iter_mut().for_each(|report| report.manifest_number += 1));
        assert!(waits(&mut inputs, &state, debounce * 50).await);
        policies.send_replace(Some(2));
        assert!(!waits(&mut inputs, &state, LONG).await);
        let state = inputs.settled().await;
        let serving = BTreeMap::from([(PolicyKey::of("aaaa"), 2)]);
        report.send_replace(Some(ReplicaReportSpec { current: serving, ..ReplicaReportSpec::default() }));
        assert!(!waits(&mut inputs, &state, LONG).await);
    }

    #[tokio::test]
    async fn that_a_policy_cannot_be_loaded_is_noticed_while_a_request_waits_for_it() {
        let failed = ReportDeviation {
            policy_uid: "aaaa".into(),
            generation: 1,
            serving: 0,
            state: ReplicaState::Failed,
            reason: None,
            retryable: None,
            next_retry_time: None,
            since: jiff::Timestamp::UNIX_EPOCH,
            message: None,
            passed_over: false,
        };
        for is_awaited in [false, true] {
            let (_policies, policies) = watch::channel(Some(1));
            let (report, report_receiver) = watch::channel(Some(ReplicaReportSpec::default()));
            let debounce = Duration::from_millis(10);
            let mut inputs = Inputs { policies, report: report_receiver, debounce };
            let state = State { is_awaited, ..inputs.settled().await };
            let deviations = vec![failed.clone()];
            report.send_replace(Some(ReplicaReportSpec { deviations, ..ReplicaReportSpec::default() }));
            let time = if is_awaited { LONG } else { debounce * 50 };
            assert_eq!(waits(&mut inputs, &state, time).await, !is_awaited);
        }
    }

    #[tokio::test]
    async fn a_change_soon_after_a_scan_waits_until_its_rest_is_over() {
        let (policies, policies_receiver) = watch::channel(Some(1));
        let (_report, report) = watch::channel(Some(ReplicaReportSpec::default()));
        let debounce = Duration::from_millis(10);
        let mut inputs = Inputs { policies: policies_receiver, report, debounce };
        let state = inputs.settled().await;
        policies.send_replace(Some(2));
        let (begin, rest) = (Instant::now(), debounce * 20);
        inputs.changed(&state, rest).await;
        assert!(begin.elapsed() >= rest);
        assert!(tokio::time::timeout(debounce * 20, inputs.changed(&state, LONG)).await.is_err());
    }
}
