//! An installation whose pods have only a reporter.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use portcullis_e2e::{
    Cluster, Installation, InstallationOptions, Moment, Pod, PodSetup, Policy, Program, condition, eventually_within,
};
use serde_json::{Value, json};

use crate::states::{Says, States};

/// The longest wait for a status. It is long because many reporters share two cores.
pub(crate) const SOON: Duration = Duration::from_secs(180);

/// How long a proxy holds a write: long enough to change, or delete and make again, what it is about, also on a busy machine.
pub(crate) const HELD: Duration = Duration::from_secs(15);

/// How long a status must not change before it counts as settled.
const SETTLED: Duration = Duration::from_secs(3);

pub(crate) struct Stage<'c> {
    pub(crate) installation: Installation<'c>,
    pub(crate) namespace: String,
}

/// A pod with a reporter.
pub(crate) struct Replica {
    pub(crate) pod: Arc<Pod>,
    pub(crate) states: States,
}

impl<'c> Stage<'c> {
    /// An installation of this name, and a namespace for policies.
    pub(crate) fn new(cluster: &'c Cluster, name: &str) -> Self {
        let options = InstallationOptions::named(name).certified_by_the_test();
        let installation = Installation::start(cluster, options);
        let namespace = installation.make_namespace("team");
        Self { installation, namespace }
    }

    /// The same with this many replicas, all ready.
    pub(crate) fn with(cluster: &'c Cluster, name: &str, replicas: usize) -> (Self, Vec<Replica>) {
        let stage = Self::new(cluster, name);
        let replicas = (0..replicas).map(|_| stage.replica()).collect();
        stage.wait_ready();
        (stage, replicas)
    }

    /// Waits until all pods are ready and endpoints of the service.
    pub(crate) fn wait_ready(&self) {
        let pods = self.installation.pods();
        pods.iter().for_each(|pod| pod.wait_ready());
        eventually_within(SOON, "the endpoints", || (self.installation.endpoints() == pods.len()).then_some(()));
    }

    pub(crate) fn replica(&self) -> Replica {
        self.replica_with(PodSetup::default())
    }

    pub(crate) fn replica_with(&self, setup: PodSetup) -> Replica {
        let states = States::start();
        let setup = setup
            .without(Program::Loader)
            .without(Program::Evaluator)
            .flag(Program::Reporter, "--loader-state", states.loader)
            .flag(Program::Reporter, "--evaluator-state", states.evaluator);
        Replica { pod: self.installation.add_replica_with(setup), states }
    }

    /// Creates a policy, confirms its webhook, and returns it with its object.
    pub(crate) fn policy(&self, name: &str) -> (Policy, Value) {
        let policy = self.installation.policy(&self.namespace, name);
        self.installation.put(&policy);
        let object = self.confirm(&policy);
        (policy, object)
    }

    /// Edits the mode of a policy, confirms the webhook of the new generation, and returns the object.
    pub(crate) fn edit(&self, policy: &Policy, mode: &str) -> Value {
        let patch = json!({ "spec": { "mode": mode } });
        self.installation.api().patch(&policy.path(), &patch).unwrap().expect("the edit");
        self.confirm(policy)
    }

    /// Writes the condition `WebhookConfigured` for the newest generation in place of the controller, and returns the object.
    pub(crate) fn confirm(&self, policy: &Policy) -> Value {
        let api = self.installation.api();
        // Others write to the same object, so an attempt may be refused.
        eventually_within(SOON, "a condition", || {
            let object = self.installation.object(policy)?;
            let body = json!({
                "apiVersion": object["apiVersion"], "kind": object["kind"],
                "metadata": { "name": object["metadata"]["name"], "namespace": object["metadata"]["namespace"] },
                "status": { "conditions": [{
                    "type": "WebhookConfigured", "status": "True", "reason": "Registered", "message": "",
                    "observedGeneration": object["metadata"]["generation"],
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }] },
            });
            let path = format!("{}/status", policy.path());
            let reply = api.apply(&path, "portcullis-controller", &body).ok()?;
            reply.is_ok().then_some(reply.body)
        })
    }

    /// The audit events of all calls with which a pod has tried to change something since this time. Other tests in the cluster have pods
    /// of the same name, in other namespaces.
    pub(crate) fn changes_by(&self, pod: &str, since: SystemTime) -> Vec<Value> {
        let accounts = format!("system:serviceaccount:{}:", self.installation.namespace());
        let is_one = |event: &Value| {
            let at = event["requestReceivedTimestamp"].as_str().and_then(|text| humantime::parse_rfc3339(text).ok());
            !matches!(event["verb"].as_str(), Some("get" | "list" | "watch"))
                && event["user"]["username"].as_str().is_some_and(|name| name.starts_with(&accounts))
                && event["user"]["extra"]["authentication.kubernetes.io/pod-name"][0] == pod
                && at.is_some_and(|at| at >= since)
        };
        self.installation.cluster().audit_events(&accounts).into_iter().filter(is_one).collect()
    }

    /// Those of them that were to write the status of a policy.
    pub(crate) fn status_writes(&self, pod: &str, since: SystemTime) -> Vec<Value> {
        let mut changes = self.changes_by(pod, since);
        changes.retain(|event| {
            let object = &event["objectRef"];
            object["subresource"] == "status" && object["apiGroup"] == "policies.portcullis.dev"
        });
        changes
    }

    /// Waits until Ready has this reason for the newest generation.
    pub(crate) fn word(&self, policy: &Policy, word: &str) -> Value {
        self.word_within(SOON, policy, word)
    }

    /// The same, but waits until the object has not changed for a while, because the states of loader and evaluator may reach the status in
    /// two writes.
    pub(crate) fn settled(&self, policy: &Policy, word: &str) -> Value {
        let (mut last, mut since) = (Value::Null, Instant::now());
        eventually_within(SOON, "a status that stays", || {
            let now = self.word(policy, word);
            if now["metadata"]["resourceVersion"] != last["metadata"]["resourceVersion"] {
                (last, since) = (now, Instant::now());
            }
            (since.elapsed() >= SETTLED).then(|| last.clone())
        })
    }

    /// Waits until Ready has this reason for the newest generation, within the bound of the row since this moment (I3).
    pub(crate) fn word_in_time(&self, since: &Moment, policy: &Policy, word: &str) -> Value {
        let look = || self.installation.object(policy).filter(|object| is_ready_as(object, word));
        self.installation.recovers_since(since, word, look).unwrap_or_else(|late| panic!("{late}"))
    }

    pub(crate) fn word_within(&self, limit: Duration, policy: &Policy, word: &str) -> Value {
        let mut last = Value::Null;
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually_within(limit, word, || {
                last = self.installation.object(policy).unwrap_or_default();
                is_ready_as(&last, word).then_some(())
            });
        }));
        assert!(found.is_ok(), "waited in vain for {word}: {:#}", last["status"]);
        last
    }

    /// The output of `kubectl describe` for a policy.
    pub(crate) fn describe(&self, policy: &Policy) -> String {
        let reference = policy.reference();
        let namespace = self.namespace.as_str();
        let told = self.installation.cluster().kubectl(["describe", "--namespace", namespace, reference.as_str()]);
        told.expect("a description");
        told.stdout
    }

    /// The events of a policy: the reason of each, and how often it happened.
    pub(crate) fn events(&self, object: &Value) -> Vec<(String, i64)> {
        let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", self.namespace);
        let list = self.installation.api().list(&path);
        let of = |event: &&Value| event["regarding"]["uid"] == object["metadata"]["uid"];
        let told = |event: &Value| {
            (event["reason"].as_str().unwrap().to_owned(), event["series"]["count"].as_i64().unwrap_or(1))
        };
        list.iter().filter(of).map(told).collect()
    }

    pub(crate) fn lease(&self) -> String {
        self.installation.lease("reporter")
    }

    /// The name of the pod that holds the Lease.
    pub(crate) fn holder(&self) -> Option<String> {
        self.installation.lease_holder("reporter")
    }

    pub(crate) fn wait_for_holder(&self) -> String {
        eventually_within(SOON, "a leader", || self.holder())
    }

    /// The replica whose reporter holds the Lease, and another one.
    pub(crate) fn leader_and_follower<'r>(&self, replicas: &'r [Replica]) -> (&'r Replica, &'r Replica) {
        let holder = self.wait_for_holder();
        let find = |leads: bool| replicas.iter().find(|replica| (replica.name() == holder) == leads);
        (find(true).expect("the leader is a replica"), find(false).expect("another replica"))
    }

    pub(crate) fn report(&self, pod: &str) -> Option<Value> {
        self.installation.api().find(&self.report_path(pod))
    }

    /// Copies the report of a pod to this name, which is that of a pod that is gone, and returns the name. Nobody owns the copy.
    pub(crate) fn leave_report(&self, of: &str, name: &str) -> String {
        let mut report = eventually_within(SOON, "a report", || self.report(of));
        report["metadata"] = json!({ "name": name, "labels": report["metadata"]["labels"] });
        report["spec"]["podUID"] = json!(name);
        let path = self.report_path(name);
        let collection = path.strip_suffix(&format!("/{name}")).expect("the path ends with the name");
        self.installation.api().create(collection, &report).unwrap().expect("the report");
        name.to_owned()
    }

    /// The path of a pod's report in the API.
    pub(crate) fn report_path(&self, pod: &str) -> String {
        let namespace = self.installation.namespace();
        format!("/apis/policies.portcullis.dev/v1alpha1/namespaces/{namespace}/replicareports/{pod}")
    }
}

impl Replica {
    pub(crate) fn says(&self, object: &Value, says: Says) {
        self.states.say(object, says);
    }

    pub(crate) fn name(&self) -> &str {
        self.pod.name()
    }

    /// The value of one of the reporter's metrics, or the sum of all series that begin with `name`.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let (_, text) = eventually_within(SOON, "metrics", || self.pod.probe(Program::Reporter, "/metrics"));
        let values = text
            .lines()
            .filter(|line| line.starts_with(name))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values.sum()
    }

    /// The reporter's log lines at this level.
    pub(crate) fn logs(&self, level: &str) -> Vec<String> {
        let logs = self.pod.program(Program::Reporter).logs();
        logs.iter().filter(|line| line["level"] == level).map(ToString::to_string).collect()
    }

    /// The warnings with these words. On a busy machine there may be others, about calls that took too long.
    pub(crate) fn warnings(&self, words: &str) -> Vec<String> {
        self.logs("WARN").into_iter().filter(|line| line.contains(words)).collect()
    }

    /// Waits until the pod is ready, or is ready again: on a busy machine some probes may fail.
    pub(crate) fn wait_ready(&self) {
        eventually_within(SOON, "a ready reporter", || self.pod.is_ready().then_some(()));
    }
}

/// Whether Ready has this reason for the newest generation.
fn is_ready_as(object: &Value, word: &str) -> bool {
    let generation = &object["metadata"]["generation"];
    condition(object, "Ready")
        .is_some_and(|ready| ready["reason"] == word && ready["observedGeneration"] == *generation)
}

/// A condition (`Ready`, `Degraded` and so on) as `status/reason`.
pub(crate) fn status_and_reason(object: &Value, r#type: &str) -> String {
    let found = condition(object, r#type).cloned().unwrap_or_default();
    format!("{}/{}", found["status"].as_str().unwrap_or("-"), found["reason"].as_str().unwrap_or("-"))
}
