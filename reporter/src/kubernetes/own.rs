//! This pod's own report: written with each change, and renewed. Only the newest report waits to be written, so that no queue builds up
//! behind a slow API server. Retries that fail in the same way are written later, several at once: while a registry is down, there is always
//! another one.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use portcullis_api::kubernetes::BoundedObject;
use portcullis_api::revision::POLICY_SERVER_LABEL;
use portcullis_api::{API_VERSION, ReplicaReportSpec, ReportChange};
use portcullis_kubernetes::{CallError, Failures, REPORT_MANAGER, Retry};
use portcullis_util::LogOnce;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::args::Identity;
use super::body::known;
use super::fields::absent;
use super::metrics::{Losing, OutdatedGauge};
use super::object::reports;
use super::pace::Bucket;

/// Changes that may be written at once; after that, the limit is one a second.
const BURST: f64 = 3.0;
const PER_SECOND: f64 = 1.0;
/// The least time between a write and the next one that only tells of tries that failed as before.
const RETRIES: Duration = Duration::from_secs(30);

/// Writes the reports of `updates` until its sender is gone.
pub(crate) async fn report(
    client: Client,
    identity: Identity,
    heartbeat: Duration,
    mut failures: Failures,
    outdated: OutdatedGauge,
    mut updates: watch::Receiver<Option<ReplicaReportSpec>>,
) {
    let mut slot = Slot::new(heartbeat, Instant::now());
    let mut retry = Retry::default();
    let mut outdated_log = LogOnce::default();
    let reports = reports(client, &identity.namespace);
    loop {
        match slot.next(Instant::now()) {
            Some(at) if at <= Instant::now() => {
                let Some(spec) = slot.begin(Instant::now(), Timestamp::now()) else { continue };
                match apply(&reports, &identity.pod, body(&identity, &spec)).await {
                    Ok(dropped) => {
                        tell(&dropped, &mut outdated_log);
                        outdated.set(Losing::Report, !dropped.is_empty());
                        retry.reset();
                        failures.over();
                        slot.written(spec, Instant::now(), fastrand::f64());
                    }
                    Err(error) => {
                        failures.failed(&error);
                        slot.failed(Instant::now() + retry.pause(&error, fastrand::f64()));
                    }
                }
                // A report that came during the write is taken without waiting.
                if updates.has_changed().is_err() {
                    return;
                }
                slot.set(updates.borrow_and_update().clone());
            }
            due => {
                let sleep = async {
                    match due {
                        Some(at) => tokio::time::sleep_until(at.into()).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = sleep => {}
                    changed = updates.changed() => {
                        if changed.is_err() {
                            return;
                        }
                        slot.set(updates.borrow_and_update().clone());
                    }
                }
            }
        }
    }
}

/// Applies a report, without the fields that the API server's definition lacks, and returns their paths. An apply with unknown fields is refused with
/// code 500 as a whole, so a dry run of what drops them finds out which they are.
///
/// # Errors
/// When the API server does not take the report.
async fn apply(reports: &Api<BoundedObject>, pod: &str, mut body: Value) -> Result<BTreeSet<String>, CallError> {
    let params = PatchParams::apply(REPORT_MANAGER).force();
    let mut dropped = BTreeSet::new();
    let error = match reports.patch(pod, &params, &Patch::Apply(&body)).await.map_err(CallError::from) {
        Ok(_) => return Ok(dropped),
        Err(error) => error,
    };
    if error.code() != Some(500) {
        return Err(error);
    }
    let Ok(kept) = kept(reports, pod, &body).await else { return Err(error) };
    absent(&body["spec"], &kept["spec"], "spec", &mut dropped);
    if dropped.is_empty() {
        return Err(error);
    }
    body["spec"] = known(&body["spec"], &kept["spec"]);
    reports.patch(pod, &params, &Patch::Apply(&body)).await?;
    Ok(dropped)
}

/// The fields of a report that the API server would keep, found by a dry run: a merge into the existing report, or a creation if there is none.
async fn kept(reports: &Api<BoundedObject>, pod: &str, body: &Value) -> kube::Result<Value> {
    let params = PatchParams { dry_run: true, ..PatchParams::apply(REPORT_MANAGER) };
    let kept = match reports.patch(pod, &params, &Patch::Merge(body)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {
            let object = serde_json::from_value(body.clone()).map_err(kube::Error::SerdeError)?;
            let params = PostParams { dry_run: true, field_manager: Some(REPORT_MANAGER.to_owned()) };
            reports.create(&params, &object).await?
        }
        kept => kept?,
    };
    Ok(kept.into())
}

/// Logs once that the report lacks fields, and that it lacks none any longer.
fn tell(dropped: &BTreeSet<String>, log: &mut LogOnce) {
    if dropped.is_empty() {
        if log.works() {
            tracing::info!("able to write the whole report again");
        }
    } else if log.fails("", Instant::now()) {
        let shown = dropped.iter().take(5).map(String::as_str).collect::<Vec<_>>().join(", ");
        tracing::warn!(
            "the CustomResourceDefinition of ReplicaReports is older than the reporter and lacks {shown}; install the newer one"
        );
    }
}

/// The report as it is applied. The pod owns it, so that it goes away with the pod.
fn body(identity: &Identity, spec: &ReplicaReportSpec) -> Value {
    let Identity { namespace, policy_server, pod, pod_uid, .. } = identity;
    json!({
        "apiVersion": API_VERSION,
        "kind": "ReplicaReport",
        "metadata": {
            "name": pod,
            "namespace": namespace,
            "labels": { POLICY_SERVER_LABEL: policy_server },
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Pod", "name": pod, "uid": pod_uid }],
        },
        "spec": spec,
    })
}

/// The newest report, and when it is written. Pure.
struct Slot {
    wanted: Option<ReplicaReportSpec>,
    written: Option<ReplicaReportSpec>,
    heartbeat: Duration,
    renew: Instant,
    /// When a report that differs only in retries that fail in the same way may be written.
    retries: Instant,
    not_before: Instant,
    bucket: Bucket,
}

impl Slot {
    fn new(heartbeat: Duration, now: Instant) -> Self {
        let bucket = Bucket::new(BURST, PER_SECOND, now);
        Self { wanted: None, written: None, heartbeat, renew: now, retries: now, not_before: now, bucket }
    }

    fn set(&mut self, wanted: Option<ReplicaReportSpec>) {
        self.wanted = wanted.or(self.wanted.take());
    }

    /// When the next write is due; `None` before the first report.
    fn next(&self, now: Instant) -> Option<Instant> {
        let wanted = self.wanted.as_ref()?;
        let due = match self.written.as_ref().map(|written| written.change_to(wanted)) {
            Some(ReportChange::Time) => self.renew,
            Some(ReportChange::Retries) => self.retries.min(self.renew),
            Some(ReportChange::Content) | None => self.bucket.free_at(now),
        };
        Some(due.max(self.not_before))
    }

    /// The report to write now.
    fn begin(&mut self, now: Instant, time: Timestamp) -> Option<ReplicaReportSpec> {
        self.bucket.take(now);
        Some(ReplicaReportSpec { heartbeat: time, ..self.wanted.clone()? })
    }

    /// Notes that it was written. The next renewal comes a little early, by `random` from 0 to 1, so that replicas that started at the
    /// same time do not write at the same time for ever.
    fn written(&mut self, spec: ReplicaReportSpec, now: Instant, random: f64) {
        self.written = Some(spec);
        self.renew = now + self.heartbeat.mul_f64(0.8 + 0.2 * random);
        self.retries = now + RETRIES;
    }

    fn failed(&mut self, not_before: Instant) {
        // The report may have been written nevertheless, so it is unknown which one the API server has.
        self.written = None;
        self.not_before = not_before;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::http::Method;
    use portcullis_api::ReportDeviation;
    use portcullis_contract::ReplicaState;
    use portcullis_util::lock;

    use super::*;
    use crate::kubernetes::stub::{api_server, refused};

    const MINUTE: Duration = Duration::from_secs(60);

    fn spec(number: u64) -> ReplicaReportSpec {
        ReplicaReportSpec { manifest_number: number, ..ReplicaReportSpec::default() }
    }

    fn time(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    /// Writes the report if it is due, with success; gives its manifest number, or none if nothing was due.
    fn write(slot: &mut Slot, now: Instant) -> Option<u64> {
        slot.next(now).filter(|at| *at <= now)?;
        let spec = slot.begin(now, time(1))?;
        slot.written(spec.clone(), now, 1.0);
        Some(spec.manifest_number)
    }

    #[test]
    fn nothing_is_written_before_there_is_something_to_say() {
        assert_eq!(Slot::new(MINUTE, Instant::now()).next(Instant::now()), None);
    }

    #[test]
    fn a_change_is_written_at_once_and_the_same_after_a_minute() {
        let start = Instant::now();
        let mut slot = Slot::new(MINUTE, start);
        slot.set(Some(spec(1)));
        assert_eq!(write(&mut slot, start), Some(1));
        slot.set(Some(ReplicaReportSpec { heartbeat: time(9), ..spec(1) }));
        assert_eq!(slot.next(start), Some(start + MINUTE));
        assert_eq!(write(&mut slot, start + MINUTE), Some(1));
    }

    #[test]
    fn of_many_changes_the_last_counts() {
        let start = Instant::now();
        let mut slot = Slot::new(MINUTE, start);
        let mut written = Vec::new();
        for step in 0..50_u64 {
            let now = start + Duration::from_millis(100 * step);
            slot.set(Some(spec(step)));
            written.extend(write(&mut slot, now));
        }
        assert!(written.len() <= 8, "{written:?}");
        assert_eq!(write(&mut slot, start + Duration::from_secs(9)), Some(49));
    }

    #[test]
    fn repeated_failures_are_few_writes_and_a_new_reason_is_written_at_once() {
        let failing = |reason: &str, next: i64| ReplicaReportSpec {
            deviations: vec![ReportDeviation {
                policy_uid: "uid".to_owned(),
                generation: 1,
                serving: 0,
                state: ReplicaState::Failed,
                reason: Some(reason.to_owned()),
                retryable: Some(true),
                next_retry_time: Some(time(next)),
                since: time(0),
                message: None,
                passed_over: true,
            }],
            ..spec(1)
        };
        let (start, mut writes) = (Instant::now(), 0);
        let mut slot = Slot::new(MINUTE, start);
        for second in 0..60 {
            slot.set(Some(failing("RegistryTimeout", second)));
            let now = start + Duration::from_secs(second.unsigned_abs());
            writes += usize::from(write(&mut slot, now).is_some());
        }
        assert_eq!(writes, 2, "the failure, and once its tries");
        let now = start + MINUTE - Duration::from_millis(500);
        assert_eq!(write(&mut slot, now), None);
        slot.set(Some(failing("NotFound", 60)));
        assert_eq!(write(&mut slot, now), Some(1));
    }

    #[test]
    fn a_write_that_failed_is_tried_again_with_what_is_true_then() {
        let start = Instant::now();
        let mut slot = Slot::new(MINUTE, start);
        slot.set(Some(spec(1)));
        slot.begin(start, time(1));
        slot.failed(start + Duration::from_secs(5));
        slot.set(Some(spec(2)));
        assert_eq!(write(&mut slot, start + Duration::from_secs(4)), None);
        assert_eq!(write(&mut slot, start + Duration::from_secs(5)), Some(2));
    }

    fn identity() -> Identity {
        Identity {
            namespace: "ns".into(),
            policy_server: "default".into(),
            pod: "pod-a".into(),
            pod_uid: "uid-a".into(),
            node: String::new(),
        }
    }

    #[tokio::test]
    async fn a_report_is_written_without_the_fields_that_an_older_definition_lacks() {
        let impact = json!({
            "generation": 2, "checkedAt": "2026-01-01T00:00:00Z", "evaluated": 5, "denied": 1, "changed": 0, "failed": 0,
            "namespaces": 1, "sample": false, "complete": true,
        });
        let mut whole = body(&identity(), &spec(7));
        whole["spec"]["impacts"] = json!([{"policyUID": "uid", "impact": impact}]);
        let without = |mut object: Value, field: &str| {
            object["spec"].as_object_mut().expect("a spec").remove(field);
            object
        };
        // The API server's answers in order: whether it has a report already or not, and whether the field is why it refuses the report.
        for (is_there, is_older) in [(true, true), (false, true), (true, false)] {
            let calls = Arc::new(Mutex::new(Vec::new()));
            let client = api_server({
                let calls = Arc::clone(&calls);
                move |method, object| {
                    let mut calls = lock(&calls);
                    calls.push((method.clone(), object.clone()));
                    match (calls.len(), is_there) {
                        (1, _) => refused(500),
                        (2, false) => refused(404),
                        (2, true) | (3, false) if is_older => (200, without(object, "impacts")),
                        _ => (200, object),
                    }
                }
            });
            let written = apply(&reports(client, "ns"), "pod-a", whole.clone()).await;
            let calls = lock(&calls).clone();
            if is_older {
                assert_eq!(written.expect("written"), ["spec.impacts".to_owned()].into());
                let methods: Vec<&Method> = calls.iter().map(|(method, _)| method).collect();
                let asked = if is_there { &[Method::PATCH][..] } else { &[Method::PATCH, Method::POST] };
                assert!(methods.iter().copied().eq([&Method::PATCH].into_iter().chain(asked).chain([&Method::PATCH])));
                assert_eq!(calls.last().map(|(_, object)| object), Some(&without(whole.clone(), "impacts")));
            } else {
                assert_eq!((written.expect_err("refused").code(), calls.len()), (Some(500), 2));
            }
        }
    }

    #[test]
    fn the_pod_owns_its_report() {
        let body = body(&identity(), &spec(1));
        assert_eq!((&body["metadata"]["namespace"], &body["metadata"]["name"]), (&json!("ns"), &json!("pod-a")));
        assert_eq!(body["metadata"]["ownerReferences"][0]["uid"], "uid-a");
    }
}
