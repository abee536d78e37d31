//! From the first apply to the first denial.

use std::time::Duration;

use portcullis_e2e::{Program, Right, condition, eventually, never};
use serde_json::json;

use crate::scene::{Scene, distrust, quick};

#[test]
#[ignore = "starts a cluster"]
fn a_policy_that_is_applied_is_enforced_and_its_denial_is_what_kubectl_prints() {
    let scene = Scene::new("first", 1);
    let policy = scene.installation.cluster_policy("first-no-pods").denying("no pods today");
    scene.installation.apply_ready(std::slice::from_ref(&policy));
    let refused = scene.create("one").expect_err("denied");
    assert!(refused.contains("no pods today"), "{refused}");
    let [webhook] = scene.webhooks(1).try_into().expect("one");
    assert_eq!(webhook["webhooks"].as_array().map(Vec::len), Some(2));
    assert_eq!(webhook["metadata"]["ownerReferences"][0]["kind"], "ClusterRole");
    let [revision] = scene.installation.revisions().try_into().expect("one revision");
    let annotations = &revision["metadata"]["annotations"];
    eventually("the marks", || {
        let [revision] = scene.installation.revisions().try_into().ok()?;
        let annotations: &serde_json::Value = &revision["metadata"]["annotations"];
        (annotations["policies.portcullis.dev/served"] == "true"
            && annotations["policies.portcullis.dev/pinned-digest"].is_string())
        .then_some(())
    });
    assert!(annotations["policies.portcullis.dev/withdrawn"].is_null());
}

#[test]
#[ignore = "starts a cluster"]
fn fault_w04_no_webhook_before_every_replica_serves() {
    let scene = Scene::new("waiting", 3);
    let policy = scene.installation.cluster_policy("waiting-deny").denying("no");
    // The source has the module, but closes every connection for now.
    scene.installation.source().close();
    scene.installation.apply(&policy).expect("the policy");
    scene.wait_reason(&policy, "WaitingForReplicas");
    let canary = scene.installation.canary(&scene.namespace, Right::Admitted);
    never(Duration::from_secs(2), "a webhook", || (!scene.installation.webhooks().is_empty()).then_some(()));
    scene.create("while-waiting").expect("nobody is asked");
    eventually("an event that says so", || scene.installation.events(&policy, "WaitingForReplicas").pop());

    // Two of three replicas serve it, and the third does not trust the source.
    let trust_again = distrust(&scene.installation.replicas()[2]);
    scene.installation.source().open();
    let object = scene.installation.wait_for_object(&policy, "two replicas that serve and one that cannot", |object| {
        let counts = &object["status"]["replicaCounts"];
        counts["current"] == 2 && counts["failed"] == 1
    });
    never(Duration::from_secs(2), "a webhook", || (!scene.installation.webhooks().is_empty()).then_some(()));
    let waits = condition(&object, "WebhookConfigured").expect("it waits");
    assert_eq!((&waits["status"], &waits["reason"]), (&json!("False"), &json!("WaitingForReplicas")), "{waits}");
    scene.create("while-one-is-missing").expect("nobody is asked");
    canary.end();

    trust_again();
    scene.installation.wait_for(&policy, "Ready", "True");
    scene.create("enforced").expect_err("denied");
}

#[test]
#[ignore = "starts a cluster"]
fn fault_w01_without_a_controller_registered_policies_go_on_and_new_ones_wait() {
    let scene = Scene::new("down", 1);
    let old = scene.installation.cluster_policy("down-old").denying("the old one");
    scene.installation.apply_ready(std::slice::from_ref(&old));
    let canary = scene.denied_canary("policy cluster/down-old: the old one");
    scene.controller.stop(Program::Controller);
    let new = scene.installation.cluster_policy("down-new").denying("the new one").on(&["configmaps"]);
    scene.installation.apply(&new).expect("the policy");
    let refused = scene.create("one").expect_err("denied");
    assert!(refused.contains("the old one"), "{refused}");
    let waits = |object: &serde_json::Value| {
        condition(object, "Ready").is_some_and(|ready| ready["status"] == "False" && ready["reason"] == "Progressing")
    };
    scene.installation.wait_for_object(&new, "that it is Progressing", waits);
    never(Duration::from_secs(3), "a webhook, or a status that says otherwise", || {
        let object = scene.installation.object(&new)?;
        let is_registered =
            condition(&object, "WebhookConfigured").is_some() || scene.installation.webhooks().len() > 1;
        (is_registered || !waits(&object)).then_some(object)
    });
    assert!(scene.installation.create_config_map(&scene.namespace, "before").is_ok());
    scene.controller.start(Program::Controller);
    scene.installation.assert_recovers("the new policy, with a controller,", || {
        let object = scene.installation.object(&new)?;
        (condition(&object, "Ready")?["status"] == "True").then_some(())
    });
    assert!(!scene.installation.create_config_map(&scene.namespace, "after").is_ok());
    canary.end();
}

#[test]
#[ignore = "starts a cluster"]
fn fault_w07_a_match_expression_that_does_not_compile_is_told_in_the_api_servers_words() {
    let scene = Scene::new("cel", 1);
    let policy = scene.installation.cluster_policy("cel-deny").denying("no");
    scene.installation.apply_ready(std::slice::from_ref(&policy));
    let [before] = scene.webhooks(1).try_into().expect("one");
    let conditions = json!([{ "name": "odd", "expression": "request.operation ==" }]);
    let odd = policy.clone().field("matchConditions", conditions);
    let canary = scene.denied_canary("policy cluster/cel-deny: no");
    // A check at apply would refuse it (row C12). This installation has none, so the controller is the first to see it.
    scene.installation.apply(&odd).expect("a policy that nothing checks");
    let condition = scene.wait_reason(&odd, "SpecInvalid");
    assert_eq!(condition["status"], "False", "{condition}");
    let message = condition["message"].as_str().unwrap_or_default();
    for words in ["matchConditions", "Invalid value", "request.operation =="] {
        assert!(message.contains(words), "no {words:?} in {message}");
    }
    let [after] = scene.webhooks(1).try_into().expect("the entry in place stays");
    let identity = |webhook: &serde_json::Value| {
        ["uid", "resourceVersion"].map(|field| webhook["metadata"][field].as_str().map(str::to_owned))
    };
    assert_eq!(identity(&before), identity(&after));
    scene.installation.apply_ready(std::slice::from_ref(&policy));
    canary.end();
}

#[test]
#[ignore = "starts a cluster"]
fn a_policy_joins_and_leaves_a_group_without_any_change_of_a_webhook() {
    let scene = Scene::with("joins", 1, quick());
    let first = scene.installation.cluster_policy("joins-a").denying("first");
    scene.installation.apply_ready(std::slice::from_ref(&first));
    let [before] = scene.webhooks(1).try_into().expect("one");
    let second = scene.installation.cluster_policy("joins-b").denying("second");
    scene.installation.apply_ready(std::slice::from_ref(&second));
    let refused = scene.create("both").expect_err("denied");
    assert!(refused.contains("first") && refused.contains("second"), "{refused}");
    scene.delete(&first);
    let refused = eventually("a denial without the first", || {
        scene.create("one").err().filter(|refused| !refused.contains("first"))
    });
    assert!(refused.contains("second"), "{refused}");
    let [after] = scene.webhooks(1).try_into().expect("one");
    assert_eq!(before["metadata"]["resourceVersion"], after["metadata"]["resourceVersion"]);
}
