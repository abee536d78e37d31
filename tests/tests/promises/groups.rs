//! One call for many policies: five members of a group deny, and one message has all their reasons.

use portcullis_contract::Reason;
use portcullis_tests::{Folder, Pod, Policy, Review, eventually};
use serde_json::json;

#[test]
fn promise_five_denials_in_one_message() {
    let folder = Folder::with_canary();
    let labels =
        |name: &str, label: &str| Policy::cluster(name).example("required-labels").settings(json!({"labels": [label]}));
    // The members are in the order of their ids.
    let members = [
        (
            Policy::cluster("a-no-privileged").example("no-privileged"),
            "privileged containers are not allowed: container web",
        ),
        (labels("b-owner", "owner"), "missing labels: owner"),
        (labels("c-stage", "stage"), "missing labels: stage"),
        (labels("d-cost-center", "cost-center").spec("message", "say who pays"), "say who pays"),
        (Policy::cluster("e-freeze").denying("no changes before the holidays"), "no changes before the holidays"),
    ];
    for (policy, _) in &members {
        folder.put(policy);
    }
    // Other policies on the same resource, which admit, or whose denials do not count.
    folder.put(&labels("f-team", "team"));
    folder.put(&Policy::cluster("g-trial").guest("always_deny").mode("warn"));
    folder.put(&Policy::cluster("h-watch").guest("always_deny").mode("monitor"));
    folder.put(&Policy::cluster("i-off").guest("always_deny").spec("suspend", true));
    let pod = Pod::on(&folder).start();
    for (policy, _) in &members {
        pod.wait_current(&policy.id(), 1);
    }
    for name in ["f-team", "g-trial", "h-watch", "i-off"] {
        pod.wait_current(&format!("cluster/{name}"), 1);
    }

    let group = members[0].0.group();
    let verdict = pod.admit(&group, &Review::pod().privileged()).verdict();
    assert!(!verdict.allowed, "{verdict:?}");
    let wanted: Vec<_> = members.iter().map(|(policy, text)| format!("policy {}: {text}", policy.id())).collect();
    assert_eq!(verdict.message, wanted.join("; "));
    assert_eq!(verdict.code, 403);
    let causes = verdict.details["causes"].as_array().cloned().unwrap_or_default();
    assert_eq!(causes.len(), members.len(), "{verdict:?}");
    for (cause, (policy, _)) in causes.iter().zip(&members) {
        assert_eq!(cause["field"], policy.id(), "{verdict:?}");
    }
    // The module's own message is in the causes, although the policy has a custom one.
    assert_eq!(causes[3]["message"], "missing labels: cost-center", "{verdict:?}");
    assert_eq!(verdict.warnings, ["policy cluster/g-trial: denied by always_deny"]);
    for name in ["a-no-privileged", "e-freeze", "f-team"] {
        assert_eq!(verdict.annotations[&format!("cluster.{name}.generation")], "1", "{verdict:?}");
    }

    // Each member can also be called by itself.
    let verdict = pod.ask("cluster/b-owner", &Review::pod()).verdict();
    assert_eq!(verdict.message, "missing labels: owner");
    // When one member no longer denies, its reason is gone, without a change of the webhook.
    folder.put(&labels("b-owner", "team"));
    pod.assert_recovered("cluster/b-owner", 2);
    let verdict = pod.admit(&group, &Review::pod().privileged()).verdict();
    let wanted = [&wanted[..1], &wanted[2..]].concat().join("; ");
    assert_eq!(verdict.message, wanted);
}

/// The controller sends a marker to find out whether API servers call this replica for a group. The evaluator itself answers it, without a
/// policy.
#[test]
fn promise_a_marker_is_answered_for_groups_with_members() {
    let folder = Folder::with_canary();
    let policy = Policy::cluster("denies").guest("always_deny").on("services");
    folder.put(&policy);
    let pod = Pod::on(&folder).start();
    pod.wait_current("cluster/denies", 1);
    let group = policy.group();
    let ask = |path: &str| pod.client().post(path, Review::pod().bytes()).expect("answers");

    let verdict = ask(&format!("/marker/{group}")).verdict();
    assert!(!verdict.allowed && verdict.warnings.is_empty() && verdict.annotations.is_empty(), "{verdict:?}");
    assert_eq!((verdict.code, verdict.message), (403, format!("portcullis marker {group}")));
    assert_eq!(pod.metric("portcullis_markers_total") as u64, 1);
    let asked = "portcullis_policy_evaluations_total{policy=\"cluster/denies\",verdict=\"denied\"}";
    assert_eq!(pod.metric(asked) as u64, 0, "no policy runs for a marker");

    assert_eq!(ask("/marker/0123456789abcdef").status, 404);
    assert_eq!(pod.client().post(&format!("/marker/{group}"), "{}").expect("answers").status, 400);
    // A group without members goes on allowing for a while, but no longer answers markers.
    folder.remove(&policy);
    eventually("the group to allow", || ask(&format!("/admit/{group}")).verdict().allowed.then_some(()));
    assert_eq!(ask(&format!("/marker/{group}")).status, 404);
    assert_eq!(pod.metric("portcullis_markers_total") as u64, 1);
}

/// While `mutating` changes, the policy is in the group of the old webhook and in that of the new one. No request is denied because one
/// of the two does not match the generation that answers.
#[test]
fn promise_an_edit_of_mutating_denies_nobody() {
    let folder = Folder::with_canary();
    let first = Policy::cluster("edited").guest("always_accept").on("services");
    let changing = Policy::cluster("edited").guest("mutates_label").on("services").mutating();
    let denying = Policy::cluster("edited").guest("mutates_and_denies").on("services").mutating();
    // A policy whose spec does not allow the mutations of its module still gets the usual error.
    let may_not = Policy::cluster("may-not").guest("mutates_label").on("secrets");
    folder.put(&first);
    folder.put(&may_not);
    let pod = Pod::on(&folder).start();
    let (validating, mutating) = (first.group(), changing.group());
    assert_ne!(validating, mutating);
    pod.wait_current("cluster/edited", 1);
    pod.wait_current("cluster/may-not", 1);
    let ask = |group: &str| pod.admit(group, &Review::small_pod()).verdict();
    let refused = ask(&may_not.group());
    assert!(!refused.allowed && refused.message.contains("not allow mutations"), "{refused:?}");

    // From false to true: the old webhook may still be called, perhaps alone, and only the new one sends the patch.
    folder.put(&changing);
    pod.assert_recovered("cluster/edited", 2);
    let verdict = ask(&validating);
    assert!(verdict.allowed && verdict.patch.is_none(), "{verdict:?}");
    assert_eq!(verdict.annotations.get("cluster.edited.generation").map(String::as_str), Some("2"), "{verdict:?}");
    assert!(ask(&mutating).patch.is_some());
    // Denials are in the answers of both groups.
    folder.put(&denying);
    pod.assert_recovered("cluster/edited", 3);
    for group in [&validating, &mutating] {
        let verdict = ask(group);
        assert!(!verdict.allowed && verdict.message.contains("policy cluster/edited: "), "{verdict:?}");
        assert!(!verdict.message.contains("not allow mutations"), "{verdict:?}");
    }

    // From true to false, with a module that cannot be loaded: the last good generation serves, and the newest one's webhook gets no patch.
    folder.put(&changing);
    pod.assert_recovered("cluster/edited", 4);
    folder.put(&first.clone().module("modules/nobody-has-it.wasm"));
    pod.wait_failure("cluster/edited", Reason::NotFound);
    let verdict = ask(&validating);
    assert!(verdict.allowed && verdict.patch.is_none(), "{verdict:?}");
    assert!(ask(&mutating).patch.is_some(), "the old webhook sends it while it is called");
    // From true to false, with a module that loads.
    folder.put(&first);
    pod.assert_recovered("cluster/edited", 6);
    for group in [&validating, &mutating] {
        let verdict = ask(group);
        assert!(verdict.allowed && verdict.patch.is_none(), "{verdict:?}");
    }
}
