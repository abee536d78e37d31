//! A tag moves while the replicas fetch it.

use portcullis_contract::Digest;
use portcullis_e2e::{assert_recovers_on_node, condition, guest_with};
use serde_json::{Value, json};

use crate::stage::{REPLICAS, Stage, address, assert_denied, own_cluster};

const TAG: &str = "/moved.wasm";

/// The entry of a pod in a policy's status.
fn entry<'o>(object: &'o Value, pod: &Value) -> Option<&'o Value> {
    object["status"]["replicas"].as_array()?.iter().find(|entry| entry["pod"] == pod["metadata"]["name"])
}

fn counts(object: &Value) -> Option<(u64, u64)> {
    let counts = &object["status"]["replicaCounts"];
    Some((counts["current"].as_u64()?, counts["expected"].as_u64()?))
}

#[test]
#[ignore = "starts a cluster"]
fn fault_l11_what_most_of_three_replicas_fetched_is_recorded_and_the_third_is_told_to_differ() {
    let stage = Stage::new("moved-tag");
    if own_cluster("fault_l11").is_none() {
        return;
    }
    let (release, shop) = (stage.release(), stage.namespace());
    let canary = release.own_canary();
    let (majority, minority) = (guest_with("deny_text", b"of most"), guest_with("deny_text", b"of one"));
    let recorded = Digest::of(&majority).to_string();
    let pods = release.pods();
    let (third, others) = pods.split_last().unwrap();
    let refuse = |pod: &Value| release.source().refuse(address(pod));

    // Only the third replica reaches the source, before the tag moves.
    others.iter().for_each(refuse);
    release.source().put(TAG, minority);
    let policy = release.cluster_policy("moved").at(&release.source().url(TAG));
    release.apply(&policy).expect("the policy");
    let object = policy
        .wait_until(&release.api(), "one replica that serves", |object| counts(object) == Some((1, REPLICAS as u64)));
    assert!(object["status"]["resolved"]["digest"].is_null(), "one of three records nothing: {object:#}");

    // The other two reach it afterwards, and the third no more.
    release.source().put(TAG, majority);
    release.source().open();
    refuse(third);
    let object = policy.wait_until(&release.api(), "an entry that says what differs", |object| {
        entry(object, third).is_some_and(|entry| entry["reason"] == "ResolvedDifferently")
            && object["status"]["resolved"]["digest"] == *recorded
    });
    let different = entry(&object, third).unwrap();
    assert_eq!((&different["state"], different["generation"].as_i64()), (&json!("Previous"), Some(1)), "{object:#}");
    assert!(different["message"].as_str().unwrap().contains(&recorded), "{object:#}");
    policy.wait_until(&release.api(), "Degraded, with two of three replicas", |object| {
        let degraded = condition(object, "Degraded").is_some_and(|degraded| degraded["status"] == "True");
        degraded && counts(object) == Some((REPLICAS as u64 - 1, REPLICAS as u64))
    });
    assert_recovers_on_node("an event about the difference", || {
        let list = release.api().get("/apis/events.k8s.io/v1/events")?;
        let is_it = |event: &Value| event["reason"] == "ResolvedDifferently" && event["regarding"]["name"] == "moved";
        list["items"].as_array()?.iter().any(is_it).then_some(())
    });

    release.source().open();
    policy.wait_until(&release.api(), "the recorded bytes everywhere", |object| {
        let is_active = condition(object, "Ready").is_some_and(|ready| ready["reason"] == "Active");
        is_active && counts(object) == Some((REPLICAS as u64, REPLICAS as u64))
    });
    for number in 0..9 {
        assert_denied(&release.create_pod(&shop, &format!("pod-{number}"), &json!({})), "of most");
    }
    canary.end();
}
