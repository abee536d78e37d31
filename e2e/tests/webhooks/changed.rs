//! Match parts that change, under load.

use portcullis_e2e::{Policy, condition, eventually};

use crate::scene::{Scene, rules};

/// Tries to create pods while `change` runs; each must be denied by this policy, with one of these texts of its own. That no version of the
/// policy could answer would be a denial, too, but with another text.
pub(crate) fn denied_during(scene: &Scene, id: &str, texts: &[&str], change: impl FnOnce()) {
    let answers = scene.try_pods_during(change);
    assert!(!answers.is_empty());
    for (code, message) in answers {
        let is_judged =
            texts.iter().any(|text| message.trim_end().ends_with(&format!("denied the request: policy {id}: {text}")));
        assert!(code >= 400 && is_judged, "a request fell between: {code} {message}");
    }
}

#[test]
#[ignore = "starts a cluster"]
fn fault_w14_no_request_falls_between_two_match_parts() {
    let scene = Scene::new("moves", 2);
    let with = |resources: &[&str], text: &str| -> Policy {
        scene.installation.cluster_policy("moves-deny").denying(text).field("rules", rules(resources))
    };
    scene.installation.apply_ready(&[with(&["pods"], "as pods")]);
    let [first] = scene.webhooks(1).try_into().expect("one");
    denied_during(&scene, "cluster/moves-deny", &["as pods", "as both", "x"], || {
        for (resources, text) in
            [(&["pods", "secrets"][..], "as both"), (&["pods"], "as pods"), (&["pods", "secrets"], "x")]
        {
            let policy = with(resources, text);
            scene.installation.apply(&policy).expect("the edit");
            scene.installation.wait_for_object(&policy, "Ready after the edit", |object| {
                let enforced = condition(object, "Enforced").expect("it was enforced before");
                assert_ne!(enforced["status"], "False", "the older webhook calls the policy: {enforced}");
                let ready = condition(object, "Ready").expect("it was Ready before");
                ready["status"] == "True" && ready["observedGeneration"] == object["metadata"]["generation"]
            });
            eventually("one webhook", || (scene.installation.webhooks().len() == 1).then_some(()));
        }
    });
    let [last] = scene.webhooks(1).try_into().expect("one");
    assert_ne!(first["metadata"]["name"], last["metadata"]["name"]);
    eventually("older revisions withdrawn", || {
        let in_force = scene
            .installation
            .revisions()
            .into_iter()
            .filter(|revision| revision["metadata"]["annotations"]["policies.portcullis.dev/withdrawn"] != "true");
        (in_force.count() == 1).then_some(())
    });
}

#[test]
#[ignore = "starts a cluster"]
fn suspend_acts_at_once_also_in_a_bad_edit() {
    let scene = Scene::new("suspended", 1);
    let policy = scene.installation.cluster_policy("suspended-deny").denying("no");
    scene.installation.apply_ready(std::slice::from_ref(&policy));
    scene.create("before").expect_err("denied");
    let bad = policy.clone().at("https://nowhere.invalid/none.wasm").field("suspend", true);
    scene.installation.apply(&bad).expect("the edit");
    eventually("nobody is denied", || scene.create("after").ok());
    scene.webhooks(1);
}

#[test]
#[ignore = "starts a cluster"]
fn a_rollback_serves_the_content_of_an_earlier_generation_and_one_to_nowhere_is_told() {
    let scene = Scene::new("rollback", 1);
    let first = scene.installation.cluster_policy("rollback-deny").denying("the first");
    scene.installation.apply_ready(std::slice::from_ref(&first));
    let second = first.clone().denying("the second");
    scene.installation.apply_ready(std::slice::from_ref(&second));
    assert!(scene.create("two").expect_err("denied").contains("the second"));
    let back = second.clone().field("rollbackTo", 1);
    scene.installation.apply_ready(std::slice::from_ref(&back));
    let refused = scene.create("back").expect_err("denied");
    assert!(refused.contains("the first"), "{refused}");
    let nowhere = second.field("rollbackTo", 77);
    scene.installation.apply(&nowhere).expect("the edit");
    let object = scene.installation.wait_for_object(&nowhere, "a refusal", |object| {
        condition(object, "Accepted").is_some_and(|accepted| accepted["reason"] == "SpecInvalid")
    });
    let text = condition(&object, "Accepted").map(|accepted| accepted["message"].to_string()).unwrap_or_default();
    assert!(text.contains("no revision of generation 77") && text.contains("(3, 2, 1)"), "{text}");
    scene.installation.wait_for_object(&nowhere, "what serves", |object| {
        condition(object, "Ready").is_some_and(|ready| ready["reason"] == "ServingPrevious")
    });
    assert!(scene.create("still").expect_err("what serves goes on").contains("the first"));
    // A change of the mode still takes effect.
    scene.installation.apply(&nowhere.field("mode", "monitor")).expect("the edit");
    eventually("nobody is denied", || scene.create("let-in").ok());
}
