//! Reads and writes the reports. Writes are paced and tried again; one that fails for good does not end the scan.

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

/// Shortest time between two writes: 20 in a second.
const PAUSE: Duration = Duration::from_millis(50);
/// Most tries of a write that fails.
const TRIES: u32 = 4;
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
    /// Why reports are missing: the first problem of this scan.
    problem: Option<String>,
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
            last: Instant::now(),
        }
    }

    /// Lists the reports that exist, at the beginning of a scan.
    pub(super) async fn list(&mut self) {
        self.known = Known::default();
        self.problem = None;
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

    /// Why reports are missing.
    pub(super) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// The results of the report with a key, of the policies for which `is_wanted` is true. Empty if there is no report.
    pub(super) async fn results(&mut self, key: &ObjectKey, is_wanted: impl Fn(&str) -> bool) -> Vec<Value> {
        if !self.known.has(key) {
            return Vec::new();
        }
        let found = match self.api(key).get_opt(&key.name).await.map_err(CallError::from) {
            Ok(found) => found,
            Err(error) => {
                self.failures.failed(&error);
                None
            }
        };
        let mut report = json!(found);
        let results = report["results"].as_array_mut().map(std::mem::take).unwrap_or_default();
        results.into_iter().filter(|result| result["policy"].as_str().is_some_and(&is_wanted)).collect()
    }

    /// Writes or deletes the report with a key, so that it is as wanted.
    pub(super) async fn put(&mut self, key: &ObjectKey, wanted: Option<Value>) {
        match self.known.action(key, wanted.as_ref()) {
            Action::Nothing => {}
            Action::Delete => self.delete(key).await,
            Action::Write => {
                let Some(report) = &wanted else { return };
                if self.write(key, Write::Apply(report)).await {
                    self.known.written(report);
                }
            }
        }
    }

    /// Deletes the reports on objects of a kind that was listed to its end and did not have these objects.
    pub(super) async fn delete_stale(&mut self, api_version: &str, kind: &str) {
        for key in self.known.stale(api_version, kind) {
            self.delete(&key).await;
        }
    }

    /// Deletes the reports on objects of kinds that no policy covers any longer.
    pub(super) async fn delete_others(&mut self, listed: &[(String, String)]) {
        let listed = listed.iter().map(|(api_version, kind)| (api_version.as_str(), kind.as_str()));
        for key in self.known.others(listed) {
            self.delete(&key).await;
        }
    }

    async fn delete(&mut self, key: &ObjectKey) {
        if self.write(key, Write::Delete).await {
            self.known.deleted(key);
        }
    }

    /// Does a write. True if it succeeded, or if its object, its namespace or the report is gone.
    async fn write(&mut self, key: &ObjectKey, write: Write<'_>) -> bool {
        if !self.is_listed[usize::from(key.namespace.is_some())] {
            return false;
        }
        let api = self.api(key);
        let (mut retry, mut tries) = (Retry::default(), 0);
        loop {
            tokio::time::sleep((self.last + PAUSE).saturating_duration_since(Instant::now())).await;
            self.last = Instant::now();
            if !self.leadership.is_held() {
                // Another reporter writes now, and the task of this scan is about to be aborted.
                return false;
            }
            let answer = match write {
                Write::Apply(report) => {
                    let params = PatchParams::apply(AUDIT_MANAGER).force();
                    api.patch(&key.name, &params, &Patch::Apply(report)).await.map(|_| "written")
                }
                Write::Delete => api.delete(&key.name, &DeleteParams::default()).await.map(|_| "deleted"),
            };
            let error = match answer.map_err(CallError::from) {
                Ok(result) => {
                    self.failures.over();
                    self.metrics.write(result);
                    return true;
                }
                Err(error) => error,
            };
            // The object, its namespace or the report is gone.
            if error.code() == Some(404) {
                return true;
            }
            self.failures.failed(&error);
            tries += 1;
            let is_final = matches!(error.code(), Some(400 | 403 | 405 | 413 | 422));
            if is_final || tries >= TRIES {
                self.metrics.write("failed");
                let why = clean(&error.to_string(), MAX_QUOTE);
                self.problem.get_or_insert_with(|| format!("not all reports could be written: {why}"));
                return false;
            }
            tokio::time::sleep(retry.pause(&error, fastrand::f64())).await;
        }
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
