//! Which `failurePolicy` counts while it is being changed: that of the policy, or that of the webhooks that call it.

use portcullis_e2e::{Caller, PodSetup, Policy, Program, Proxy, Rule, eventually};
use serde_json::{Value, json};

use crate::changed::denied_during;
use crate::cluster;
use crate::scene::{Scene, quick};

/// Both directions of the change.
const CHANGES: [(&str, &str); 2] = [("Fail", "Ignore"), ("Ignore", "Fail")];

/// A policy that cannot judge: each evaluation traps.
fn trapping(scene: &Scene, name: &str, failure_policy: &str) -> Policy {
    scene.installation.cluster_policy(name).guest("trap_unreachable").field("failurePolicy", json!(failure_policy))
}

/// The `failurePolicy` of each webhook that API servers call for policies, sorted.
fn of_webhooks(configurations: &[Value]) -> Vec<String> {
    let found = configurations.iter().map(|one| one["webhooks"][0]["failurePolicy"].as_str().unwrap().to_owned());
    let mut found: Vec<_> = found.collect();
    found.sort();
    found
}

/// Asserts that a replica answers by this `failurePolicy` of the policy. If several webhooks deny, an API server reports the answer that came
/// first, which may be about another policy: this tries until it is about the right one.
fn assert_answers(scene: &Scene, name: &str, failure_policy: &str) {
    let unnamed = json!({ "metadata": { "name": null, "generateName": "tried-" } });
    let told = format!("policy cluster/{name}");
    eventually(&format!("an answer of {told}"), || {
        let output = scene.installation.create_pod(&scene.namespace, "", &unnamed);
        assert_eq!(output.is_ok(), failure_policy == "Ignore", "{output:?}");
        assert!(output.stderr.contains("EvaluationTrapped"), "{output:?}");
        output.stderr.contains(&told).then_some(())
    });
}

#[test]
#[ignore = "starts a cluster"]
fn fault_w10_while_both_webhooks_call_the_stricter_counts_unless_a_replica_answers_by_the_newest_generation() {
    let proxy = Proxy::start(cluster());
    let scene = Scene::with("strict", 1, quick().through(Program::Controller, proxy.address()));
    scene.installation.without_canary("the only evaluator is stopped, to see whose failurePolicy counts then");
    let replica = scene.installation.replicas().remove(0);
    for (before, after) in CHANGES {
        let name = "strict-traps";
        scene.installation.apply_ready(&[trapping(&scene, name, before)]);
        assert_answers(&scene, name, before);
        // The change lasts until the older webhook is deleted, which the proxy prevents for as long as the test wants.
        proxy.rule(Rule::on("DELETE", "/validatingwebhookconfigurations/").answer(503, "not yet"));
        scene.installation.apply(&trapping(&scene, name, after)).expect("the edit");
        assert_eq!(of_webhooks(&scene.webhooks(2)), ["Fail", "Ignore"]);

        // A replica answers both webhooks by the newest generation: the `failurePolicy` of the webhooks does not count.
        let is_admitted = || scene.try_pod().0 == 201;
        eventually(&format!("what {after} says"), || (is_admitted() == (after == "Ignore")).then_some(()));
        assert_answers(&scene, name, after);
        // Another member of the group of the webhook with Fail still goes by its own `failurePolicy`.
        let other = trapping(&scene, "strict-other", "Fail");
        scene.installation.apply_ready(std::slice::from_ref(&other));
        assert_eq!(scene.webhooks(2).len(), 2);
        assert_answers(&scene, "strict-other", "Fail");
        // A suspended policy keeps its webhook.
        scene.installation.apply(&other.clone().field("suspend", true)).expect("the edit");
        eventually("silence of the other member", || (is_admitted() == (after == "Ignore")).then_some(()));

        // When no replica answers, each webhook goes by its own `failurePolicy`, and one of them is Fail.
        replica.stop(Program::Evaluator);
        for _ in 0..5 {
            let (code, message) = scene.try_pod();
            assert!(code >= 400 && message.contains("failed calling webhook"), "{code} {message}");
        }
        eventually("no replica to ask", || (scene.installation.endpoints() == 0).then_some(()));
        replica.start(Program::Evaluator);
        scene.installation.wait_ready();

        proxy.clear();
        scene.delete(&other);
        assert_eq!(of_webhooks(&scene.webhooks(1)), [after]);
        assert_answers(&scene, name, after);
    }
    // With Ignore alone, nobody is refused when no replica answers.
    scene.installation.apply_ready(&[trapping(&scene, "strict-traps", "Ignore")]);
    assert_eq!(of_webhooks(&scene.webhooks(1)), ["Ignore"]);
    replica.stop(Program::Evaluator);
    // It takes an API server a moment to notice that the other webhook has gone.
    eventually("nobody to be refused", || (scene.try_pod().0 == 201).then_some(()));
    for _ in 0..5 {
        let (code, message) = scene.try_pod();
        assert_eq!(code, 201, "{message}");
    }
}

#[test]
#[ignore = "starts a cluster"]
fn fault_w10_under_load_a_change_takes_effect_once() {
    let scene = Scene::new("switched", 1);
    let with = |failure_policy| trapping(&scene, "switched-traps", failure_policy);
    for (before, after) in CHANGES {
        scene.installation.apply_ready(&[with(before)]);
        assert_eq!(of_webhooks(&scene.webhooks(1)), [before]);
        let answers = scene.try_pods_during(|| {
            scene.installation.apply_ready(&[with(after)]);
            eventually("the end of the older webhook", || {
                (of_webhooks(&scene.installation.webhooks()) == [after]).then_some(())
            });
        });
        let admitted: Vec<bool> = answers.iter().map(|(code, _)| *code == 201).collect();
        let changes = admitted.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert_eq!((changes, admitted.last()), (1, Some(&(after == "Ignore"))), "{answers:?}");
        // A replica answers all the time, so each denial comes from the policy.
        for (_, message) in answers.iter().filter(|(code, _)| *code != 201) {
            assert!(message.contains("policy cluster/switched-traps: EvaluationTrapped"), "{message}");
        }
    }
}

#[test]
#[ignore = "starts a cluster"]
fn fault_w10_a_policy_denies_all_the_time_while_its_failure_policy_changes() {
    let scene = Scene::new("denying", 1);
    let with = |failure_policy: &str| -> Policy {
        scene.installation.cluster_policy("denying-deny").denying("no").field("failurePolicy", json!(failure_policy))
    };
    scene.installation.apply_ready(&[with("Fail")]);
    denied_during(&scene, "cluster/denying-deny", &["no"], || {
        for failure_policy in ["Ignore", "Fail", "Ignore"] {
            scene.installation.apply_ready(&[with(failure_policy)]);
        }
    });
    assert_eq!(of_webhooks(&scene.webhooks(1)), ["Ignore"]);
}

/// A webhook of somebody else goes on calling a match group that no replica knows any longer.
#[test]
#[ignore = "starts a cluster"]
fn fault_w15_a_webhook_of_a_group_that_nobody_knows_goes_by_its_own_failure_policy() {
    const CONFIGURATIONS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    /// The prefix of the annotation in which the audit log names a webhook that failed and was ignored.
    const IGNORED: &str = "failed-open.validating.webhook.admission.k8s.io/";
    let scene = Scene::with("forgotten", 0, quick());
    let replica = scene.installation.add_replica_with(PodSetup::default().flag(Program::Loader, "--tombstone", "2s"));
    scene.installation.wait_ready();
    let canary = scene.installation.own_canary();
    let policy = scene.installation.cluster_policy("forgotten-accepts");
    scene.installation.apply_ready(std::slice::from_ref(&policy));
    let [webhook] = scene.webhooks(1).try_into().expect("one");
    let caller = Caller::new(&scene.installation, &webhook, &replica);
    scene.delete(&policy);
    eventually("the end of the tombstone", || {
        let error = caller.ask(&scene.namespace).err()?;
        error.to_string().starts_with("404 ").then_some(())
    });

    let api = scene.installation.api();
    for failure_policy in ["Fail", "Ignore"] {
        let mut entry = webhook["webhooks"][0].clone();
        entry["failurePolicy"] = failure_policy.into();
        let name = format!("forgotten-{}", failure_policy.to_lowercase());
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": { "name": name }, "webhooks": [&entry],
        });
        api.create(CONFIGURATIONS, &configuration).expect("an answer").expect("a webhook");
        if failure_policy == "Fail" {
            let message = eventually("a refusal", || Some(scene.try_pod()).filter(|(code, _)| *code != 201)).1;
            assert!(message.contains("failed calling webhook"), "{message}");
        } else {
            let ignored = entry["name"].as_str().expect("a name");
            let is_ignored = |(key, name): (&String, &Value)| key.starts_with(IGNORED) && *name == ignored;
            let told = |event: &Value| event["annotations"].as_object().is_some_and(|all| all.iter().any(is_ignored));
            eventually("a call that failed and was ignored", || {
                let (code, message) = scene.try_pod();
                assert_eq!(code, 201, "{message}");
                scene.installation.cluster().audit_events(ignored).iter().any(told).then_some(())
            });
        }
        api.delete(&format!("{CONFIGURATIONS}/{name}"), None).expect("an answer").expect("the deletion");
        eventually("nobody to be refused", || (scene.try_pod().0 == 201).then_some(()));
    }
    canary.end();
}
