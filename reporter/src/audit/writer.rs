//! Reads and writes the reports. Writes are paced and tried again; one that fails for good does not end the scan, and slow ones of a namespace
//! hold up the others for a limited time.

use std::time::{Duration, Instant};

use kube::api::{ApiResource, DeleteParams, Patch, PatchParams};
use kube::{Api, Client};
use portcullis_api::kubernetes::{BoundedObject, BoundedValue};
use portcullis_api::revision::POLICY_SERVER_LABEL;
use portcullis_contract::clean;
use portcullis_kubernetes::{AUDIT_MANAGER, CallError, Failures, Leadership, MANAGED_BY_LABEL, Retry};
use serde_json::{Value, json};

use super::known::{Action, Known, ObjectKey};
use super::metrics::AuditMetrics;
use super::pages::Pages;
use super::report::{AuditFormat, SOURCE};
use super::slow_writes::SlowWrites;

/// Shortest time between two writes: 20 in a second.
const PAUSE: Duration = Duration::from_millis(50);
/// The most tries of a write that fails.
const TRIES: u32 = 4;
/// The most tries of a write that is refused with 403 or 404, as an API server that has just started does until it has read its RBAC rules and definitions.
const REFUSED_TRIES: u32 = 3;
/// Longest text of the API server that is quoted, in bytes.
const MAX_QUOTE: usize = 300;

/// The reports of this installation.
pub(super) struct Writer {
    client: Client,
    format: AuditFormat,
    policy_server: String,
    leadership: Leadership,
    metrics: AuditMetrics,
    failures: Failures,
    known: Known,
    /// Whether reports on objects in no namespace, and those on objects in namespaces, could be listed. If not, none of them is changed.
    is_listed: [bool; 2],
    /// Why all reports of a kind are missing: the first problem of this scan.
    problem: Option<String>,
    /// Whether a write was refused at each try in this scan. Then no further one is tried again: where a right is missing, or a quota used up, each of
    /// thousands of writes would delay the scan.
    stays_refused: bool,
    /// What slow writes have taken in this scan.
    pub(super) slow_writes: SlowWrites,
    last: Instant,
}

/// What a write does.
#[derive(Clone, Copy)]
enum Write<'w> {
    Apply(&'w Value),
    Delete,
}

impl Writer {
    pub(super) fn new(
        client: Client,
        format: AuditFormat,
        policy_server: String,
        leadership: Leadership,
        metrics: AuditMetrics,
        failures: Failures,
    ) -> Self {
        Self {
            client,
            format,
            policy_server,
            leadership,
            metrics,
            failures,
            known: Known::default(),
            is_listed: [false; 2],
            problem: None,
            stays_refused: false,
            slow_writes: SlowWrites::default(),
            last: Instant::now(),
        }
    }

    /// Lists the reports that exist, at the beginning of a scan.
    pub(super) async fn list(&mut self) {
        self.known = Known::default();
        self.problem = None;
        self.stays_refused = false;
        self.slow_writes.begin();
        for is_namespaced in [true, false] {
            let listed = self.list_kind(is_namespaced).await;
            self.is_listed[usize::from(is_namespaced)] = listed.is_ok();
            if let Err(error) = listed {
                let problem = self.unlisted(is_namespaced, &error);
                self.problem.get_or_insert(problem);
            }
        }
    }

    async fn list_kind(&mut self, is_namespaced: bool) -> Result<(), CallError> {
        let labels = format!("{MANAGED_BY_LABEL}={SOURCE},{POLICY_SERVER_LABEL}={}", self.policy_server);
        let resource = self.resource(is_namespaced);
        let mut pages = Pages::new(&self.client, &resource, Some(labels), &mut self.failures);
        while let Some(reports) = pages.next().await? {
            reports
                .iter()
                .filter_map(|report| BoundedValue::read(report.json()))
                .for_each(|report| self.known.found(&report));
        }
        Ok(())
    }

    fn unlisted(&self, is_namespaced: bool, error: &CallError) -> String {
        let name = format!("{}.{}", self.format.plural(is_namespaced), self.format.group());
        match error.code() {
            Some(404) => format!(
                "reports are not written, as the cluster has no {name}: install the CustomResourceDefinitions of {}",
                self.format.group()
            ),
            Some(403) => format!("reports are not written, as the reporter may not list {name}: grant the right"),
            _ => {
                format!("reports are not written, as {name} cannot be listed: {}", clean(&error.to_string(), MAX_QUOTE))
            }
        }
    }

    /// Why all reports of a kind are missing.
    pub(super) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// The results of the report with a key, of the policies for which `is_wanted` is true. Empty if there is no report.
    ///
    /// # Errors
    /// When the report cannot be read: the report is then left as it is in this scan, and the text says why.
    pub(super) async fn results(
        &mut self,
        key: &ObjectKey,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<Value>, String> {
        if !self.known.has(key) {
            return Ok(Vec::new());
        }
        let found = self.api(key).get_opt(&key.name).await.map_err(|error| {
            let error = CallError::from(error);
            self.failures.failed(&error);
            self.known.seen(key);
            format!("not all reports could be read: {}", clean(&error.to_string(), MAX_QUOTE))
        })?;
        let mut report = json!(found);
        let results = report["results"].as_array_mut().map(std::mem::take).unwrap_or_default();
        Ok(results.into_iter().filter(|result| result["policy"].as_str().is_some_and(&is_wanted)).collect())
    }

    /// Writes or deletes the report with a key, so that it is as wanted.
    ///
    /// # Errors
    /// When the API server does not take it, with the reason.
    pub(super) async fn put(&mut self, key: &ObjectKey, wanted: Option<Value>) -> Result<(), String> {
        match self.known.action(key, wanted.as_ref()) {
            Action::Nothing => Ok(()),
            Action::Delete => self.delete(key).await,
            Action::Write => {
                let Some(report) = &wanted else { return Ok(()) };
                if self.write(key, Write::Apply(report)).await? {
                    self.known.written(report);
                }
                Ok(())
            }
        }
    }

    /// Deletes the reports on objects of a kind that was listed to its end and did not have these objects.
    pub(super) async fn delete_stale(&mut self, api_version: &str, kind: &str) {
        for key in self.known.stale(api_version, kind) {
            self.delete_superfluous(&key).await;
        }
    }

    /// Deletes the reports on objects of kinds that no policy covers any longer.
    pub(super) async fn delete_others(&mut self, listed: &[(String, String)]) {
        let listed = listed.iter().map(|(api_version, kind)| (api_version.as_str(), kind.as_str()));
        for key in self.known.others(listed) {
            self.delete_superfluous(&key).await;
        }
    }

    /// Deletes a report that is about no policy's result. A failure is in the log and in the metric only.
    async fn delete_superfluous(&mut self, key: &ObjectKey) {
        let _ = self.delete(key).await;
    }

    async fn delete(&mut self, key: &ObjectKey) -> Result<(), String> {
        if self.write(key, Write::Delete).await? {
            self.known.deleted(key);
        }
        Ok(())
    }

    /// Does a write. True if it succeeded, or if its object, its namespace or the report is gone; false if this reporter does not write such reports
    /// now.
    ///
    /// # Errors
    /// When the API server does not take it, with the reason.
    async fn write(&mut self, key: &ObjectKey, write: Write<'_>) -> Result<bool, String> {
        if !self.is_listed[usize::from(key.namespace.is_some())] {
            return Ok(false);
        }
        let api = self.api(key);
        let namespace = key.namespace.as_deref().unwrap_or_default();
        let (mut retry, mut tries, mut refusals) = (Retry::default(), 0, 0);
        loop {
            let Some(limit) = self.slow_writes.limit(namespace) else { return Err(self.leave(namespace)) };
            tokio::time::sleep((self.last + PAUSE).saturating_duration_since(Instant::now())).await;
            self.last = Instant::now();
            if !self.leadership.is_held() {
                // Another reporter writes now, and the task of this scan is about to be aborted.
                return Ok(false);
            }
            let answer = tokio::time::timeout(limit, send(&api, &key.name, write)).await;
            self.slow_writes.tried(namespace, self.last.elapsed());
            let error = match answer {
                Ok(Ok(result)) => {
                    self.failures.over();
                    self.metrics.write(result);
                    return Ok(true);
                }
                // The object and its reports are about to be gone.
                Ok(Err(error)) if is_of_ending_namespace(&error) => return Ok(true),
                Ok(Err(error)) => CallError::from(error),
                // The namespace has used up its time in this scan.
                Err(_) => return Err(self.leave(namespace)),
            };
            tries += 1;
            let may_pass = match write {
                Write::Apply(_) => matches!(error.code(), Some(403 | 404)),
                Write::Delete => error.code() == Some(403),
            };
            if may_pass && !self.stays_refused {
                refusals += 1;
                if refusals < REFUSED_TRIES {
                    self.pause(namespace, &mut retry, &error).await;
                    continue;
                }
                self.stays_refused = true;
            }
            // The object, its namespace or the report is gone.
            if error.code() == Some(404) {
                return Ok(true);
            }
            self.failures.failed(&error);
            let is_final = matches!(error.code(), Some(400 | 403 | 405 | 413 | 422));
            if is_final || tries >= TRIES {
                self.metrics.write("failed");
                let why = clean(&error.to_string(), MAX_QUOTE);
                return Err(format!("not all reports could be written: {why}"));
            }
            self.pause(namespace, &mut retry, &error).await;
        }
    }

    /// Waits before the next try of a write in a namespace.
    async fn pause(&mut self, namespace: &str, retry: &mut Retry, error: &CallError) {
        let mut pause = retry.pause(error, fastrand::f64());
        // A webhook cannot cut the connection, but it can ask for a pause of minutes.
        if !matches!(error, CallError::Unreachable(_)) {
            pause = pause.min(self.slow_writes.limit(namespace).unwrap_or_default());
            self.slow_writes.paused(namespace, pause);
        }
        tokio::time::sleep(pause).await;
    }

    /// Leaves a report for the next scan, as slow writes have taken what they may in its namespace. The text says so.
    fn leave(&mut self, namespace: &str) -> String {
        self.metrics.write("postponed");
        let seconds = self.slow_writes.lost(namespace).as_secs();
        if self.slow_writes.leave(namespace) {
            tracing::warn!(
                namespace,
                seconds,
                "the audit leaves reports of a namespace for the next scan, as writes there take too long; a webhook may be slow"
            );
        }
        let place = match namespace {
            "" => "outside namespaces".to_owned(),
            namespace => format!("in namespace {}", clean(namespace, MAX_QUOTE)),
        };
        format!(
            "not all reports could be written: writes {place} took {seconds} s, perhaps because of a slow webhook, which is too long for the \
             audit of others; the next scan goes on"
        )
    }

    fn api(&self, key: &ObjectKey) -> Api<BoundedObject> {
        let resource = self.resource(key.namespace.is_some());
        match &key.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }

    fn resource(&self, is_namespaced: bool) -> ApiResource {
        ApiResource {
            group: self.format.group().to_owned(),
            version: self.format.version().to_owned(),
            api_version: self.format.api_version(),
            kind: self.format.kind(is_namespaced).to_owned(),
            plural: self.format.plural(is_namespaced),
        }
    }
}

/// Tries a write once. The result is that of the metric.
async fn send(api: &Api<BoundedObject>, name: &str, write: Write<'_>) -> kube::Result<&'static str> {
    match write {
        Write::Apply(report) => {
            let params = PatchParams::apply(AUDIT_MANAGER).force();
            api.patch(name, &params, &Patch::Apply(report)).await.map(|_| "written")
        }
        Write::Delete => api.delete(name, &DeleteParams::default()).await.map(|_| "deleted"),
    }
}

/// Whether the API server refuses a write because it is deleting the namespace, with all that is in it.
fn is_of_ending_namespace(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::Router;
    use axum::http::header::CONTENT_TYPE;
    use axum::http::{Method, StatusCode};
    use axum::routing::get;
    use portcullis_process::ProbeServer;
    use portcullis_util::lock;
    use prometheus::Registry;

    use super::*;
    use crate::kubernetes::stub;

    #[tokio::test]
    async fn a_report_that_cannot_be_read_stays_as_it_is() {
        portcullis_process::install_crypto();
        let metadata = json!({"name": "portcullis-default-uid", "namespace": "a"});
        let scope = json!({"apiVersion": "v1", "kind": "Pod"});
        let report = json!({"metadata": metadata, "scope": scope, "results": [{"policy": "cluster/a"}]});
        let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": [report]}).to_string();
        let routes = Router::new()
            .route(
                "/apis/openreports.io/v1alpha1/reports",
                get(|| async { ([(CONTENT_TYPE, "application/json")], list) }),
            )
            .fallback(|| async { StatusCode::INTERNAL_SERVER_ERROR });
        let mut servers = ProbeServer::new();
        let address = servers.port(([127, 0, 0, 1], 0).into(), routes).expect("binds");
        servers.start().expect("starts");
        let client = Client::try_from(kube::Config::new(format!("http://{address}").parse().expect("an address")));
        let metrics = AuditMetrics::new(&Registry::new()).expect("registers");
        let (failures, (_, leadership)) = (Failures::new("ask", |_| ()), Leadership::new());
        let format = AuditFormat::Openreports;
        let mut writer =
            Writer::new(client.expect("a client"), format, "default".into(), leadership, metrics, failures);
        writer.list_kind(true).await.expect("a list");

        let key = ObjectKey { namespace: Some("a".into()), name: "portcullis-default-uid".into() };
        assert_eq!(writer.known.stale("v1", "Pod"), std::slice::from_ref(&key), "its object was not judged yet");
        let problem = writer.results(&key, |_| true).await.expect_err("the server is broken");
        assert!(problem.starts_with("not all reports could be read: "), "{problem}");
        assert_eq!(writer.known.stale("v1", "Pod"), [], "it is not deleted");
    }

    #[tokio::test]
    async fn a_write_that_is_refused_for_a_moment_is_tried_again_and_where_it_stays_refused_the_others_are_not() {
        // The codes with which writes are refused, whether each of two reports was written, and the number of tries.
        for (codes, written, tries) in [
            (&[403][..], [true, true], 3),
            (&[404], [true, true], 3),
            (&[403; 9], [false, false], 3 + 1),
            (&[404; 3], [true, true], 3 + 1),
            (&[500, 500, 403], [true, true], 5),
        ] {
            let calls = Arc::new(Mutex::new(0));
            let client = stub::api_server({
                let calls = Arc::clone(&calls);
                move |method, object| {
                    if method != Method::PATCH {
                        return (200, json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": []}));
                    }
                    let mut calls = lock(&calls);
                    *calls += 1;
                    codes.get(*calls - 1).map_or((200, object), |code| stub::refused(*code))
                }
            });
            let (leadership, _held) = stub::leads(&client).await;
            let metrics = AuditMetrics::new(&Registry::new()).expect("registers");
            let (failures, format) = (Failures::new("write", |_| ()), AuditFormat::Openreports);
            let mut writer = Writer::new(client, format, "default".into(), leadership, metrics, failures);
            writer.list().await;
            for (name, is_written) in ["one", "two"].into_iter().zip(written) {
                let key = ObjectKey { namespace: Some("a".into()), name: name.into() };
                let resource = writer.resource(true);
                let report = json!({
                    "apiVersion": resource.api_version, "kind": resource.kind,
                    "metadata": {"name": name, "namespace": "a"}, "results": [{"policy": "cluster/a"}],
                });
                assert_eq!(writer.put(&key, Some(report)).await.is_ok(), is_written, "{codes:?} {name}");
            }
            assert_eq!(*lock(&calls), tries, "{codes:?}");
        }
    }

    #[test]
    fn a_namespace_that_is_being_deleted_is_known_by_its_cause() {
        let refused = |cause: &str| {
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 403, "reason": "Forbidden",
                "message": "reports.openreports.io is forbidden", "details": {"causes": [{"reason": cause, "field": "metadata.namespace"}]},
            });
            kube::Error::Api(Box::new(serde_json::from_value(status).expect("a status")))
        };
        assert!(is_of_ending_namespace(&refused("NamespaceTerminating")));
        assert!(!is_of_ending_namespace(&refused("FieldValueInvalid")));
    }
}
