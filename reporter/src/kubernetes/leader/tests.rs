use prometheus::{Registry, TextEncoder};

use super::super::args::Identity;
use super::*;

/// A leader that knows the policy `cluster/a`. It does not hold the Lease, so it makes no call.
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

    fn leader(&self) -> Leader<'_> {
        let nobody = "http://127.0.0.1:9".parse().expect("an address");
        let client = Client::try_from(kube::Config::new(nobody)).expect("a client");
        let mut leader = Leader::new(client, &self.settings, &self.metrics, Leadership::new().1);
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
    leader.settle(&object, status, found);
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
