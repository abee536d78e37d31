//! New policies that cannot be loaded, in match groups that others keep.

use std::time::Duration;

use portcullis_e2e::{Caller, Policy, condition, eventually, one_round_in_time};
use serde_json::{Value, json};

use crate::scene::{Scene, distrust};

/// The delay of a slow source: less than a loader waits for it.
const LONG: Duration = Duration::from_secs(6);

/// Tries to create pods while `act` runs; none may be refused.
fn nobody_is_denied(scene: &Scene, act: impl FnOnce()) {
    let answers = scene.try_pods_during(act);
    assert!(!answers.is_empty());
    for (tried, (code, message)) in answers.iter().enumerate() {
        assert_eq!(*code, 201, "after {tried} others: {message}");
    }
}

/// Waits until the status says that the policy failed on this many replicas and was never enforced, so that requests pass without it.
fn wait_passed_over(scene: &Scene, policy: &Policy, replicas: u32) {
    let is = |object: &Value, kind, reason: &str| condition(object, kind).is_some_and(|one| one["reason"] == reason);
    let object = scene.installation.wait_for_object(policy, "Error and NotYetEnforced", |object| {
        is(object, "Ready", "Error")
            && is(object, "Enforced", "NotYetEnforced")
            && object["status"]["replicaCounts"]["failed"] == replicas
    });
    let enforced = condition(&object, "Enforced").expect("it is there");
    assert_eq!((&enforced["status"], &enforced["observedGeneration"]), (&json!("False"), &json!(1)), "{enforced}");
    let words = enforced["message"].as_str().unwrap_or_default();
    assert!(words.starts_with("it was never enforced") && words.contains("requests pass without it"), "{words}");
}

/// Whether some revision of the policy carries the mark that it was enforced.
fn is_marked(scene: &Scene, policy: &Policy) -> bool {
    scene.installation.revisions().iter().any(|revision| {
        revision["metadata"]["labels"]["policies.portcullis.dev/policy-name"] == policy.name()
            && revision["metadata"]["annotations"]["policies.portcullis.dev/served"] == "true"
    })
}

#[test]
#[ignore = "starts a cluster"]
fn fault_z01_w04_a_new_policy_that_cannot_be_loaded_denies_nobody_until_it_was_enforced() {
    let scene = Scene::new("newcomer", 2);
    let installation = &scene.installation;
    let keeper = installation.cluster_policy("newcomer-keeper");
    installation.apply_ready(std::slice::from_ref(&keeper));
    let missing = installation.cluster_policy("newcomer-missing").at(&installation.source().url("/nobody-has-it.wasm"));
    let refusing = installation.cluster_policy("newcomer-refusing").guest("bad_settings");
    nobody_is_denied(&scene, || {
        for policy in [&missing, &refusing] {
            installation.apply(policy).expect("the policy");
            wait_passed_over(&scene, policy, 2);
        }
    });
    scene.webhooks(1);
    eventually("the mark of the other one", || is_marked(&scene, &keeper).then_some(()));
    assert!(!is_marked(&scene, &missing) && !is_marked(&scene, &refusing));
    let passed_over = "/cluster.newcomer-missing.policy-not-yet-enforced";
    let told = |event: &Value| {
        let annotations = event["annotations"].as_object().cloned().unwrap_or_default();
        annotations.iter().any(|(key, value)| key.ends_with(passed_over) && value == "cluster/newcomer-missing")
    };
    eventually("the audit log to say so", || {
        installation.cluster().audit_events(passed_over).iter().any(told).then_some(())
    });

    // A new pod does the same as the others.
    installation.add_replica();
    installation.wait_ready();
    nobody_is_denied(&scene, || wait_passed_over(&scene, &missing, 3));

    // Once it is mended, it is enforced, and its revision is marked.
    let mended = installation.cluster_policy("newcomer-missing").denying("mended");
    installation.apply_ready(std::slice::from_ref(&mended));
    assert_eq!(scene.try_pod().0, 403);
    eventually("the mark", || is_marked(&scene, &mended).then_some(()));

    // The last pod starts with nothing and cannot fetch anything: policies that were enforced go by their `failurePolicy`.
    let old = installation.replicas();
    installation.source().close();
    let last = installation.add_replica();
    last.wait_ready();
    old.iter().for_each(|pod| pod.remove());
    installation.wait_ready();
    let message = eventually("an answer of the last pod", || {
        let (code, message) = scene.try_pod();
        assert!(code >= 400, "{code} {message}");
        // For a moment, an API server may still call a pod that has gone, and get no answer.
        let is_answer = message.contains("policy cluster/newcomer-missing: ") && !message.contains("mended");
        is_answer.then_some(message)
    });
    assert!(!message.contains("newcomer-refusing"), "{message}");
    installation.wait_for_object(&mended, "AllReplicasFailed", |object| {
        condition(object, "Enforced").is_some_and(|one| one["reason"] == "AllReplicasFailed")
    });

    // A policy that is deleted and created again is a new one.
    installation.source().open();
    installation.wait_for(&mended, "Ready", "True");
    installation.wait_for(&keeper, "Ready", "True");
    scene.delete(&mended);
    eventually("nobody to be denied", || (scene.try_pod().0 == 201).then_some(()));
    nobody_is_denied(&scene, || {
        installation.apply(&missing).expect("the policy");
        wait_passed_over(&scene, &missing, 1);
    });
}

#[test]
#[ignore = "starts a cluster"]
fn fault_w04_in_a_registered_group_a_new_policy_is_asked_where_it_is_loaded_and_passed_over_where_it_is_not() {
    let scene = Scene::new("joining", 3);
    let installation = &scene.installation;
    installation.apply_ready(&[installation.cluster_policy("joining-keeper")]);
    let [webhook] = scene.webhooks(1).try_into().expect("one");
    let replicas = installation.replicas();
    let is = |object: &Value, kind, reason: &str| condition(object, kind).is_some_and(|one| one["reason"] == reason);

    // The fetches take a while, so at first no replica has this policy. A busy machine may miss that time, and loaders would not wait longer.
    let waits = |object: &Value| {
        is(object, "Ready", "Progressing")
            && is(object, "Enforced", "NotYetEnforced")
            && object["status"]["replicaCounts"]["current"] == 0
    };
    one_round_in_time(|round| {
        // Loaders keep a module that they have fetched, so each round has another one.
        let answer = json!({ "accepted": true, "message": format!("round {round}") }).to_string();
        let slow = installation.cluster_policy(&format!("joining-slow-{round}")).answering("answer", answer);
        installation.source().slow(LONG);
        let mut is_seen = false;
        nobody_is_denied(&scene, || {
            installation.apply(&slow).expect("the policy");
            let what = "Progressing and NotYetEnforced, or a replica that serves it";
            let object = installation.wait_for_object(&slow, what, |object| {
                waits(object) || object["status"]["replicaCounts"]["current"].as_u64() > Some(0)
            });
            is_seen = waits(&object);
            installation.source().open();
            installation.wait_for(&slow, "Ready", "True");
        });
        if is_seen { Ok(()) } else { Err(format!("a replica served {} before its status was seen", slow.name())) }
    });

    // One of the replicas does not trust the source, so it cannot load this policy.
    let trust_again = distrust(&replicas[2]);
    let policy = installation.cluster_policy("joining-new").denying("the new one");
    installation.apply(&policy).expect("the policy");
    installation.wait_for_object(&policy, "two replicas that serve and one that cannot", |object| {
        let counts = &object["status"]["replicaCounts"];
        counts["current"] == 2 && counts["failed"] == 1 && is(object, "Enforced", "NotYetEnforced")
    });
    let denies = |number: usize| {
        let caller = Caller::new(installation, &webhook, &replicas[number]);
        let verdict = caller.ask(&scene.namespace).expect("a verdict");
        let annotation = &verdict["auditAnnotations"]["cluster.joining-new.policy-not-yet-enforced"];
        let is_denied = verdict["allowed"] == false;
        assert_eq!(annotation.is_string(), !is_denied, "{verdict}");
        assert_eq!(verdict["status"]["message"].to_string().contains("the new one"), is_denied, "{verdict}");
        is_denied
    };
    assert_eq!([0, 1, 2].map(denies), [true, true, false]);

    trust_again();
    installation.wait_for(&policy, "Ready", "True");
    assert_eq!([0, 1, 2].map(denies), [true; 3]);
    let [after] = scene.webhooks(1).try_into().expect("the same one");
    assert_eq!(webhook["metadata"]["resourceVersion"], after["metadata"]["resourceVersion"]);
}

#[test]
#[ignore = "starts a cluster"]
fn fault_z01_a_new_mutating_policy_that_cannot_be_loaded_changes_nothing_for_the_others() {
    let scene = Scene::new("newcomer-m", 1);
    let installation = &scene.installation;
    let canary = installation.own_canary();
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": { "key": "written" },
        "metadata": { "name": "shared", "namespace": scene.namespace },
    });
    let answer = json!({ "accepted": true, "mutated_object": object }).to_string();
    let on_maps = |name: &str| installation.cluster_policy(name).on(&["configmaps"]).field("mutating", true);
    installation.apply_ready(&[on_maps("newcomer-m-keeper").answering("answer", answer)]);
    let missing = on_maps("newcomer-m-missing").at(&installation.source().url("/nobody-has-it.wasm"));
    installation.apply(&missing).expect("the policy");
    wait_passed_over(&scene, &missing, 1);
    installation.create_config_map(&scene.namespace, "shared").expect("nobody is denied");
    let path = format!("/api/v1/namespaces/{}/configmaps/shared", scene.namespace);
    assert_eq!(installation.api().find(&path).unwrap_or_default()["data"], json!({ "key": "written" }));
    canary.end();
}
