//! Edits of an enforced policy.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use portcullis_e2e::{Installation, Policy, condition, eventually, one_round_in_time};
use serde_json::json;

use crate::{assert_denied, installation, try_pod};

#[test]
#[ignore = "starts a cluster"]
fn an_edit_switches_without_a_failed_or_mixed_call() {
    let installation = installation("edits", 2);
    let shop = installation.make_namespace("shop");
    let policy = installation.cluster_policy("edits");
    installation.apply_ready(&[policy.clone().denying("version one")]);

    let (is_done, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    let answers = thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut answers = Vec::new();
            while !is_done.load(Ordering::SeqCst) {
                answers.push(try_pod(&installation, &shop));
                answered.store(answers.len(), Ordering::SeqCst);
            }
            answers
        });
        eventually("some answers", || (answered.load(Ordering::SeqCst) > 10).then_some(()));
        installation.apply_ready(&[policy.denying("version two")]);
        is_done.store(true, Ordering::SeqCst);
        asking.join().unwrap()
    });
    for (code, message) in &answers {
        let versions = ["version one", "version two"].map(|version| message.contains(version));
        assert!(*code == 403 && versions[0] != versions[1], "{code} {message}");
    }
    assert!(answers[0].1.contains("version one"));
    let (_, message) = try_pod(&installation, &shop);
    assert!(message.contains("version two"), "{message}");
}

#[test]
#[ignore = "starts a cluster"]
fn fault_e12_the_last_of_many_edits_answers_within_seconds() {
    /// How many callers edit at once, and how often each does.
    const CALLERS: usize = 4;
    const EDITS: usize = 50;
    let installation = installation("edit-storm", 1);
    let canary = installation.own_canary();
    let shop = installation.make_namespace("shop");
    let policy = installation.cluster_policy("edit-storm").denying("in its own words");
    installation.apply_ready(std::slice::from_ref(&policy));
    let edit = |message: &str| {
        let patch = json!({ "spec": { "message": message } });
        installation.api().patch(&policy.path(), &patch).expect("an API server answers").expect("the edit");
    };
    one_round_in_time(|round| {
        thread::scope(|scope| {
            for caller in 0..CALLERS {
                let edit = &edit;
                scope.spawn(move || (0..EDITS).for_each(|number| edit(&format!("{round}-{caller}-{number}"))));
            }
        });
        let last = format!("the last edit of round {round}");
        edit(&last);
        installation.recovers("the last edit", || try_pod(&installation, &shop).1.contains(&last).then_some(()))
    });
    installation.wait_for(&policy, "Ready", "True");
    canary.end();
}

/// Waits until the status says that the previous generation serves.
pub(crate) fn wait_for_serving_previous(installation: &Installation<'_>, policy: &Policy) {
    installation.wait_for_object(policy, "ServingPrevious", |object| {
        condition(object, "Ready").is_some_and(|ready| {
            ready["reason"] == "ServingPrevious" && ready["observedGeneration"] == object["metadata"]["generation"]
        })
    });
}

/// Waits until a generation is marked as one that was enforced. A later replica relies on this mark.
fn wait_for_served(installation: &Installation<'_>) {
    eventually("a revision that served", || {
        let served = |revision: &serde_json::Value| {
            revision["metadata"]["annotations"]["policies.portcullis.dev/served"] == "true"
        };
        installation.revisions().iter().any(served).then_some(())
    });
}

#[test]
#[ignore = "starts a cluster"]
fn a_bad_edit_keeps_the_old_answer_also_for_a_replica_that_joins_later() {
    let installation = installation("bad-edit", 1);
    let shop = installation.make_namespace("shop");
    let policy = installation.cluster_policy("bad-edit");
    installation.apply_ready(&[policy.clone().denying("the good old answer")]);
    wait_for_served(&installation);
    installation.apply(&policy.clone().module_of("no module")).expect("the edit");
    wait_for_serving_previous(&installation, &policy);
    assert_denied(&installation.create_pod(&shop, "one", &json!({})), "the good old answer");

    let first = installation.replicas().remove(0);
    installation.add_replica();
    installation.wait_ready();
    first.remove();
    eventually("one endpoint", || (installation.endpoints() == 1).then_some(()));
    assert_denied(&installation.create_pod(&shop, "two", &json!({})), "the good old answer");

    installation.apply_ready(&[policy.denying("mended")]);
    assert_denied(&installation.create_pod(&shop, "three", &json!({})), "mended");
}

#[test]
#[ignore = "starts a cluster"]
fn monitor_and_suspend_act_also_in_a_bad_edit() {
    let installation = installation("switched", 1);
    let shop = installation.make_namespace("shop");
    let policy = installation.cluster_policy("switched");
    installation.apply_ready(&[policy.clone().denying("it denies")]);
    let bad = policy.module_of("no module");

    installation.apply(&bad.clone().field("mode", "monitor")).expect("the edit");
    eventually("a pod in spite of the policy", || (try_pod(&installation, &shop).0 == 201).then_some(()));
    installation.apply(&bad.clone().field("mode", "protect")).expect("the edit");
    eventually("a denial", || (try_pod(&installation, &shop).0 == 403).then_some(()));
    installation.apply(&bad.field("suspend", true)).expect("the edit");
    eventually("a pod in spite of the policy", || (try_pod(&installation, &shop).0 == 201).then_some(()));
}
