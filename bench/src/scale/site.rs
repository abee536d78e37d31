//! The cluster of the benchmark: policies, pods that exist only as objects, the endpoints of a service, and the leader.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _};
use http::Method;
use kube::Client;
use portcullis_e2e::{Cluster, Installation, InstallationOptions, POLICY_SERVER_ACCOUNT, Program, SERVICE};
use serde_json::{Value, json};

use crate::api::{self, send};

/// The installation's name and namespace.
pub(super) const NAME: &str = "scale";
/// The pod whose reporter leads.
const LEADER: &str = "leader";
/// The largest number of endpoints in one slice, as Kubernetes' controller makes them.
const SLICE: usize = 100;
/// How many objects are created at the same time.
const AT_A_TIME: usize = 8;

/// A policy.
pub(super) struct Policy {
    pub(super) name: String,
    pub(super) uid: String,
}

/// A pod that exists only as an object.
pub(super) struct Replica {
    pub(super) name: String,
    pub(super) uid: String,
}

/// The objects of the benchmark.
pub(super) struct Site<'c> {
    cluster: &'c Cluster,
    pub(super) client: Client,
    pub(super) policies: Vec<Policy>,
    pub(super) replicas: Vec<Replica>,
    leader: Option<Child>,
    // Dropped last, as it removes its objects.
    _installation: Installation<'c>,
}

impl<'c> Site<'c> {
    /// Creates policies and replicas.
    pub(super) async fn start(cluster: &'c Cluster, replicas: u32, policies: u32) -> anyhow::Result<Self> {
        let options = InstallationOptions::named(NAME).certified_by_the_test();
        let installation = tokio::task::block_in_place(|| Installation::start(cluster, options));
        let client = api::client(cluster).await?;
        let policies = futures::stream::iter(0..policies)
            .map(|number| policy(&client, number))
            .buffered(AT_A_TIME)
            .try_collect()
            .await?;
        let replicas: Vec<Replica> = futures::stream::iter(0..replicas)
            .map(|number| replica(&client, format!("replica-{number:04}")))
            .buffered(AT_A_TIME)
            .try_collect()
            .await?;
        for (number, part) in replicas.chunks(SLICE).enumerate() {
            let path = format!("/apis/discovery.k8s.io/v1/namespaces/{NAME}/endpointslices");
            send(&client, Method::POST, &path, "application/json", &slice(number, part)).await?;
        }
        Ok(Self { cluster, client, policies, replicas, leader: None, _installation: installation })
    }

    /// Starts the reporter that holds the Lease.
    pub(super) fn start_leader(&mut self) -> anyhow::Result<()> {
        let (token, uid) = tokio::task::block_in_place(|| {
            let token = self.cluster.token_for_pod(NAME, POLICY_SERVER_ACCOUNT, LEADER);
            let get = ["get", "pod", LEADER, "--namespace", NAME, "--output=jsonpath={.metadata.uid}"];
            (token, self.cluster.kubectl(get).expect("the leader's pod").to_owned())
        });
        let kubeconfig = self.cluster.kubeconfig_for(&token);
        let mut command = Command::new(Program::Reporter.path());
        command
            .args(["--namespace", NAME, "--policy-server", NAME, "--service", SERVICE])
            .args(["--pod-name", LEADER, "--pod-uid", &uid, "--probe-address", "127.0.0.1:0"])
            // No program listens on these ports, since this pod has no replica of its own.
            .args(["--loader-state", "127.0.0.1:1", "--evaluator-state", "127.0.0.1:2"])
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .env(portcullis_process::EXIT_WITH_PARENT, std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        self.leader = Some(command.spawn().context("failed to start the reporter")?);
        Ok(())
    }

    /// The CPU time of the leader so far, and its memory in bytes.
    pub(super) fn leader_usage(&self) -> anyhow::Result<(Duration, u64)> {
        let id = self.leader.as_ref().context("the leader has not been started")?.id();
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).context("the leader has ended")?;
        // After the name, which is in parentheses: state is field 3, times are 14 and 15, pages are 24.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let number = |field: usize| fields.get(field - 3).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        let ticks = rustix::param::clock_ticks_per_second();
        let cpu = Duration::from_millis((number(14) + number(15)) * 1000 / ticks);
        Ok((cpu, number(24) * rustix::param::page_size() as u64))
    }

    /// Changes a policy, and returns its generation.
    pub(super) async fn edit(&self, policy: usize, message: &str) -> anyhow::Result<i64> {
        let path = format!("/apis/policies.portcullis.dev/v1alpha1/clusterpolicies/{}", self.policies[policy].name);
        let patch = json!({"spec": {"message": message}});
        let object = send(&self.client, Method::PATCH, &path, "application/merge-patch+json", &patch).await?;
        object["metadata"]["generation"].as_i64().context("the policy has no generation")
    }
}

impl Drop for Site<'_> {
    fn drop(&mut self) {
        if let Some(leader) = &mut self.leader {
            // It may have ended already.
            let _ = leader.kill();
            let _ = leader.wait();
        }
    }
}

async fn policy(client: &Client, number: u32) -> anyhow::Result<Policy> {
    let name = format!("policy-{number:04}");
    let object = json!({
        "apiVersion": "policies.portcullis.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": name},
        "spec": {
            "policyServer": NAME, "module": format!("registry://registry.example.com/policies/{name}:v1"),
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE", "UPDATE"]}],
            "settings": BTreeMap::from([("labels", ["app.kubernetes.io/name", "team"])]),
        },
    });
    let path = "/apis/policies.portcullis.dev/v1alpha1/clusterpolicies";
    let made = send(client, Method::POST, path, "application/json", &object).await?;
    Ok(Policy { name, uid: uid(&made)? })
}

async fn replica(client: &Client, name: String) -> anyhow::Result<Replica> {
    let object = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "none", "image": "example.invalid/none"}]},
    });
    let made =
        send(client, Method::POST, &format!("/api/v1/namespaces/{NAME}/pods"), "application/json", &object).await?;
    Ok(Replica { name, uid: uid(&made)? })
}

fn slice(number: usize, replicas: &[Replica]) -> Value {
    let endpoint = |(place, replica): (usize, &Replica)| {
        json!({
            "addresses": [format!("198.18.{number}.{}", place + 1)],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "targetRef": {"kind": "Pod", "namespace": NAME, "name": replica.name, "uid": replica.uid},
        })
    };
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": format!("{SERVICE}-{number}"), "labels": {"kubernetes.io/service-name": SERVICE}},
        "ports": [{"name": "admission", "port": 8443}],
        "endpoints": replicas.iter().enumerate().map(endpoint).collect::<Vec<_>>(),
    })
}

fn uid(object: &Value) -> anyhow::Result<String> {
    object["metadata"]["uid"].as_str().map(str::to_owned).context("the object has no uid")
}
