use std::sync::Mutex;

use axum::http::Method;
use portcullis_util::lock;
use prometheus::{Registry, TextEncoder};

use super::super::args::Identity;
use super::super::stub::{api_server, leads, refused};
use super::*;

/// A leader that knows the policy `cluster/a`.
struct Stage {
    settings: Settings,
    metrics: ClusterMetrics,
    registry: Registry,
}

impl Stage {
    fn new() -> Self {
        portcullis_process::install_crypto();
        let registry = Registry::new();
        let identity = Identity {
            namespace: "portcullis".into(),
            policy_server: "default".into(),
            pod: "pod-a".into(),
            pod_uid: "uid-a".into(),
            node: String::new(),
        };
        let settings = Settings {
            identity,
            service: "policy-server".into(),
            lease_name: "lease".into(),
            kubeconfig: None,
            heartbeat: Duration::from_secs(60),
            report_lifetime: Duration::from_secs(150),
            status_writes: 100,
            watch_limit: Duration::from_secs(60),
            audit: None,
        };
        Self { settings, metrics: ClusterMetrics::new(&registry).expect("registers"), registry }
    }

    /// One that does not hold the Lease, so it makes no call.
    fn leader(&self) -> Leader<'_> {
        let nobody = "http://127.0.0.1:9".parse().expect("an address");
        let client = Client::try_from(kube::Config::new(nobody)).expect("a client");
        self.leader_of(client, Leadership::new().1)
    }

    fn leader_of(&self, client: Client, leadership: Leadership) -> Leader<'_> {
        let mut leader = Leader::new(client, &self.settings, &self.metrics, leadership);
        leader.apply(Collection::ClusterPolicies, Change::Read(policy()));
        leader.apply(Collection::ClusterPolicies, Change::Listed(BTreeSet::from(["uid-of-a".to_owned()])));
        for collection in [Collection::Policies, Collection::Reports, Collection::Endpoints] {
            leader.apply(collection, Change::Listed(BTreeSet::new()));
        }
        leader.turn();
        leader
    }

    /// The series that tell of policies by status.
    fn led(&self) -> Vec<String> {
        let text = TextEncoder::new().encode_to_string(&self.registry.gather()).expect("is text");
        text.lines().filter(|line| line.starts_with("portcullis_reporter_led_policies")).map(str::to_owned).collect()
    }
}

fn policy() -> Value {
    json!({"metadata": {"name": "a", "uid": "uid-of-a", "resourceVersion": "5", "generation": 1}, "spec": {}})
}

fn id() -> PolicyId {
    "cluster/a".parse().expect("an id")
}

/// Takes in a write of the status that is wanted, of which the API server drops a field or none.
fn settle(leader: &mut Leader<'_>, is_dropped: bool) {
    let policy = leader.store.policy(&id()).expect("the policy");
    let (object, status) = (policy.object.clone(), wanted(policy, &leader.store.replicas(), Timestamp::now()));
    let status = status.expect("a status to write");
    let mut found = self::policy();
    found["status"] = json!(status);
    if is_dropped {
        found["status"].as_object_mut().expect("an object").remove("summary");
    }
    leader.settle(&object, status, found, true);
    leader.store.touch(&id());
    leader.turn();
}

fn is_wanted(leader: &Leader<'_>) -> bool {
    write_urgency(leader.store.policy(&id()).expect("the policy"), &leader.store.replicas()).is_some()
}

#[tokio::test]
async fn an_outdated_definition_is_told_until_a_status_fits_which_is_tried_although_nothing_changes() {
    let stage = Stage::new();
    let mut leader = stage.leader();
    settle(&mut leader, true);
    assert_eq!((stage.metrics.outdated.get(), is_wanted(&leader)), (1, false));
    for is_dropped in [true, false] {
        leader.try_again(&id());
        assert!(is_wanted(&leader));
        settle(&mut leader, is_dropped);
        assert_eq!((stage.metrics.outdated.get(), is_wanted(&leader)), (i64::from(is_dropped), false));
    }
}

#[tokio::test]
async fn nobody_is_told_that_the_definition_is_outdated_because_of_a_policy_that_is_gone() {
    let stage = Stage::new();
    let mut leader = stage.leader();
    settle(&mut leader, true);
    leader.apply(Collection::ClusterPolicies, Change::Gone(policy()));
    leader.turn();
    assert_eq!(stage.metrics.outdated.get(), 0);
}

#[tokio::test]
async fn a_policy_that_is_gone_leaves_the_metrics() {
    let stage = Stage::new();
    let mut leader = stage.leader();
    settle(&mut leader, false);
    assert_eq!(stage.led(), ["portcullis_reporter_led_policies{enforced=\"False\",status=\"NoReplicas\"} 1"]);
    leader.apply(Collection::ClusterPolicies, Change::Gone(policy()));
    leader.turn();
    assert_eq!(stage.led(), [""; 0]);
}

/// What an API server has got and has.
struct Served {
    calls: Vec<&'static str>,
    policy: Value,
}

/// Takes writes of status into a policy that has a foreign entry after each apply. It refuses the first try to remove that.
fn take(served: &mut Served, body: &Value) -> (u16, Value) {
    let is_apply = body["kind"].is_string();
    served.calls.push(if is_apply { "apply" } else { "sweep" });
    if served.calls == ["apply", "sweep"] {
        return refused(409);
    }
    let status = &mut served.policy["status"];
    if is_apply {
        status.clone_from(&body["status"]);
        status["replicas"] = json!([{"pod": "forged", "podUID": "u", "state": "Failed", "generation": 0}]);
    } else {
        let fields = status.as_object_mut().expect("an object");
        for (field, value) in body["status"].as_object().into_iter().flatten() {
            match value {
                Value::Null => drop(fields.remove(field)),
                value => drop(fields.insert(field.clone(), value.clone())),
            }
        }
    }
    served.policy["metadata"]["resourceVersion"] = json!((5 + served.calls.len()).to_string());
    (200, served.policy.clone())
}

/// Waits until a write is due, and takes it in.
async fn write(leader: &mut Leader<'_>) {
    loop {
        let due = leader.turn();
        if let Some(outcome) = leader.writes.join_next().await {
            return leader.written(outcome.expect("no panic").expect("it leads"));
        }
        tokio::time::sleep_until(due.expect("a write is wanted").into()).await;
    }
}

#[tokio::test]
async fn a_foreign_value_that_stayed_as_the_controller_wrote_at_that_moment_is_removed_with_another_try() {
    let stage = Stage::new();
    let served = Arc::new(Mutex::new(Served { calls: Vec::new(), policy: policy() }));
    let taken = Arc::clone(&served);
    let client = api_server(move |method, body| match *method {
        Method::PATCH => take(&mut lock(&taken), &body),
        // An event.
        _ => (201, body),
    });
    let (leadership, _held) = leads(&client).await;
    let mut leader = stage.leader_of(client, leadership);
    write(&mut leader).await;
    assert_eq!(lock(&served).calls, ["apply", "sweep"]);
    let mut newer = lock(&served).policy.clone();
    newer["metadata"]["resourceVersion"] = json!("7");
    newer["status"]["conditions"].as_array_mut().expect("a list").push(json!({"type": "WebhookConfigured"}));
    leader.apply(Collection::ClusterPolicies, Change::Read(newer));
    write(&mut leader).await;
    assert_eq!(lock(&served).calls, ["apply", "sweep", "apply", "sweep"]);
    assert!(!is_wanted(&leader));
    assert_eq!(lock(&served).policy["status"]["replicas"], json!([]));
}
