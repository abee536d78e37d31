//! Writes the reports that reporters would write.

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use http::Method;
use jiff::Timestamp;
use kube::Client;
use portcullis_api::revision::POLICY_SERVER_LABEL;
use portcullis_api::{API_VERSION, PolicyKey, ReplicaReportSpec, ReportDeviation, Versions};
use portcullis_contract::{Digest, MANIFEST_FORMAT, Reason, ReplicaState};
use serde_json::{Value, json};

use super::site::{NAME, Replica, Site};
use crate::api::send;

/// The writer of the reports, which are the same for all replicas.
pub(super) struct Writers {
    client: Client,
    at_a_time: usize,
    replicas: Vec<Value>,
    uids: Vec<String>,
    spec: ReplicaReportSpec,
    writes: u64,
    bytes: u64,
    largest: u64,
}

impl Writers {
    /// Writers for all replicas, which serve the first generation of all policies.
    pub(super) fn new(site: &Site<'_>, at_a_time: usize) -> Self {
        let spec = ReplicaReportSpec {
            versions: Versions {
                loader: "0.1.0".to_owned(),
                evaluator: "0.1.0".to_owned(),
                reporter: "0.1.0".to_owned(),
                engine: "wasmtime 48.0.0".to_owned(),
                manifest_format: MANIFEST_FORMAT,
            },
            current: site.policies.iter().map(|policy| (PolicyKey::of(&policy.uid), 1)).collect(),
            heartbeat: Timestamp::now(),
            ..ReplicaReportSpec::default()
        };
        Self {
            client: site.client.clone(),
            at_a_time,
            replicas: site.replicas.iter().map(metadata).collect(),
            uids: site.policies.iter().map(|policy| policy.uid.clone()).collect(),
            spec,
            writes: 0,
            bytes: 0,
            largest: 0,
        }
    }

    /// From now on, all replicas serve this generation of a policy; its digest is not pinned yet.
    pub(super) fn serve(&mut self, policy: usize, generation: i64) {
        let key = PolicyKey::of(&self.uids[policy]);
        let digest = Digest::of(format!("{policy} {generation}").as_bytes());
        self.spec.digests = [(key.clone(), digest)].into();
        self.spec.current.insert(key, generation);
        self.spec.manifest_number += 1;
    }

    /// From now on, this generation of a policy fails on all replicas.
    pub(super) fn fail(&mut self, policy: usize, generation: i64, words: &str) {
        let now = Timestamp::now();
        self.spec.current.remove(&PolicyKey::of(&self.uids[policy]));
        self.spec.deviations.push(ReportDeviation {
            policy_uid: self.uids[policy].clone(),
            generation,
            serving: 0,
            state: ReplicaState::Failed,
            reason: Some(Reason::RegistryTimeout.to_string()),
            retryable: Some(true),
            next_retry_time: Some(now + Duration::from_secs(40)),
            since: now,
            message: Some(words.into()),
            passed_over: false,
        });
    }

    /// Writes all reports, `at_a_time` of them at the same time.
    pub(super) async fn write_all(&mut self) -> anyhow::Result<()> {
        self.spec.heartbeat = Timestamp::now();
        let reports: Vec<Value> =
            (0..self.replicas.len()).map(|replica| self.report(replica)).collect::<Result<_, _>>()?;
        let sent: u64 = reports.iter().map(|report| report.to_string().len() as u64).sum();
        let client = &self.client;
        let sizes: Vec<u64> = futures::stream::iter(&reports)
            .map(|report| write(client, report))
            .buffer_unordered(self.at_a_time)
            .try_collect()
            .await?;
        self.count(sizes.len() as u64, sent, sizes.into_iter().max().unwrap_or(0));
        Ok(())
    }

    /// Writes one report.
    pub(super) async fn write_one(&mut self, replica: usize) -> anyhow::Result<()> {
        self.spec.heartbeat = Timestamp::now();
        let report = self.report(replica)?;
        let size = write(&self.client, &report).await?;
        self.count(1, report.to_string().len() as u64, size);
        Ok(())
    }

    /// How many reports were written, and how many bytes of JSON they had.
    pub(super) fn written(&self) -> (u64, u64) {
        (self.writes, self.bytes)
    }

    /// The largest report as the API server stores it, in bytes of JSON.
    pub(super) fn largest(&self) -> u64 {
        self.largest
    }

    fn count(&mut self, writes: u64, bytes: u64, size: u64) {
        self.writes += writes;
        self.bytes += bytes;
        self.largest = self.largest.max(size);
    }

    fn report(&self, replica: usize) -> serde_json::Result<Value> {
        let metadata = &self.replicas[replica];
        let uid = metadata["ownerReferences"][0]["uid"].as_str().unwrap_or_default();
        let spec = ReplicaReportSpec { pod_uid: uid.to_owned(), ..self.spec.clone() };
        let spec = serde_json::to_value(spec)?;
        Ok(json!({"apiVersion": API_VERSION, "kind": "ReplicaReport", "metadata": metadata, "spec": spec}))
    }
}

fn metadata(replica: &Replica) -> Value {
    json!({
        "name": replica.name, "namespace": NAME, "labels": {POLICY_SERVER_LABEL: NAME},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": replica.name, "uid": replica.uid}],
    })
}

/// Applies a report, and returns the size of the object that the API server then stores.
async fn write(client: &Client, report: &Value) -> anyhow::Result<u64> {
    let name = report["metadata"]["name"].as_str().unwrap_or_default();
    let path = format!(
        "/apis/{API_VERSION}/namespaces/{NAME}/replicareports/{name}?fieldManager=portcullis-reporter&force=true"
    );
    let kept = send(client, Method::PATCH, &path, "application/apply-patch+yaml", report).await?;
    Ok(kept.to_string().len() as u64)
}
