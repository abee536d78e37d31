//! Leaders that cannot reach the API server.

use std::iter;
use std::net::IpAddr;
use std::time::Duration;

use portcullis_e2e::{condition, eventually, never};
use portcullis_testkit::Moment;
use serde_json::{Value, json};

use crate::stage::{REPLICAS, Stage, address, assert_denied, own_cluster};

/// The limit for new leaders. A Lease is valid for 15 s after its last renewal; the rest is for the other candidates, which check it every
/// 1.8 s, and for a machine that stands still for a while.
const LEASE: Duration = Duration::from_secs(15 + 15);

fn address_of(pods: &[Value], name: &str) -> IpAddr {
    address(pods.iter().find(|pod| pod["metadata"]["name"] == name).expect("a leader is a pod"))
}

/// Whether the status is about the newest generation, and this many replicas serve it.
fn has(object: &Value, current: usize) -> bool {
    let is_newest =
        |kind| condition(object, kind).is_some_and(|one| one["observedGeneration"] == object["metadata"]["generation"]);
    is_newest("Ready") && object["status"]["replicaCounts"]["current"] == current
}

fn is_active(object: &Value) -> bool {
    has(object, REPLICAS) && condition(object, "Ready").is_some_and(|ready| ready["reason"] == "Active")
}

#[test]
#[ignore = "starts a cluster"]
fn fault_k06_leaders_that_are_cut_from_the_api_are_followed_and_do_no_harm_when_they_are_back() {
    let stage = Stage::new("cut-off");
    let Some(cluster) = own_cluster("fault_k06") else { return };
    let (release, shop) = (stage.release(), stage.namespace());
    let policy = release.cluster_policy("cut-off");
    release.apply_ready(&[policy.clone().denying("version one")]);
    let holders = || Some([release.lease_holder("controller")?, release.lease_holder("reporter")?]);
    let before = eventually("leaders", holders);
    let pods = [release.controllers(), release.pods()].concat();
    let load = release.load(&shop, 20);

    let cut = cluster.cut_from_api_servers(&[address_of(&pods, &before[0]), address_of(&pods, &before[1])]);
    let start = Moment::now(iter::empty());
    let after = eventually("other leaders", || {
        let now = holders()?;
        (now[0] != before[0] && now[1] != before[1]).then_some(now)
    });
    let end = Moment::now(iter::empty());
    assert!(start.until(&end) < start.allowed(LEASE, &end), "{:?}", start.until(&end));
    // The new leaders work: an edit becomes a revision, is loaded, and is reported. The pod that is cut off does not get it.
    let policy = policy.denying("version two");
    release.apply(&policy).expect("the edit");
    policy.wait_until(&release.api(), "the edit in the status", |object| has(object, REPLICAS - 1));
    let webhooks = || -> Vec<Value> {
        release.webhooks().into_iter().map(|webhook| webhook["metadata"]["generation"].clone()).collect()
    };
    let webhooks_before = webhooks();

    drop(cut);
    policy.wait_until(&release.api(), "the edit everywhere", is_active);
    never(Duration::from_secs(3), "another leader or a step back", || {
        let (now, object) = (holders(), release.api().get(&policy.path())?);
        (now.as_ref() != Some(&after) || !is_active(&object)).then_some((now, object["status"].clone()))
    });
    assert_eq!(webhooks(), webhooks_before, "nobody has written webhooks that were right");
    release.wait_for_replicas(REPLICAS);
    for name in ["one", "two", "three"] {
        assert_denied(&release.create_pod(&shop, name, &json!({})), "version two");
    }
    let answers = load.end();
    let others: Vec<_> = answers
        .iter()
        .filter(|answer| !["version one", "version two"].iter().any(|version| answer.message.contains(version)))
        .collect();
    assert!(others.is_empty() && answers.len() > 20, "{} of {}: {:?}", others.len(), answers.len(), others.first());
}
