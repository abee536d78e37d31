//! The generation that serves, depending on the revisions.

use portcullis_e2e::{eventually, guest_with};
use serde_json::json;

use crate::{Policy, digest, installation, replica, two_modules};

#[test]
#[ignore = "starts a cluster"]
fn fresh_pod_serves_the_last_served_generation_when_the_newest_cannot_be_loaded() {
    let installation = installation("fresh-load");
    let policy = Policy::of(&installation, "a");
    let (good, _) = two_modules();
    let address = policy.module("/good.wasm", &good);
    policy.revise(1, &address, &json!({}), &[("served", "true"), ("pinned-digest", &digest(&good))]);
    policy.revise(2, &installation.source().url("/nothing.wasm"), &json!({ "mode": "monitor" }), &[]);
    let pod = replica(&installation);
    assert_eq!(policy.wait_serving(&pod, 1), digest(&good));
    policy.wait_failure(&pod, "NotFound");
    let loading = policy.loading(&pod);
    assert_eq!((&loading["generation"], &loading["mode"]), (&json!(2), &json!("monitor")), "{loading}");
    pod.wait_ready();
    // The next good generation takes over.
    policy.revise(3, &address, &json!({ "settings": { "a": 1 } }), &[]);
    policy.wait_serving(&pod, 3);
}

#[test]
#[ignore = "starts a cluster"]
fn fresh_pod_serves_the_last_served_generation_when_the_newest_is_refused() {
    let installation = installation("fresh-refused");
    let policy = Policy::of(&installation, "a");
    let (good, _) = two_modules();
    let address = policy.module("/good.wasm", &good);
    let refuses = guest_with("settings_answer", br#"{"valid":false,"message":"not these"}"#);
    policy.revise(1, &address, &json!({}), &[("served", "true"), ("pinned-digest", &digest(&good))]);
    policy.revise(2, &policy.module("/refuses.wasm", &refuses), &json!({}), &[]);
    let pod = replica(&installation);
    assert_eq!(policy.wait_serving(&pod, 1), digest(&good));
}

#[test]
#[ignore = "starts a cluster"]
fn fresh_pod_fetches_an_older_generation_only_when_the_newest_failed() {
    let installation = installation("fresh-lazy");
    let policy = Policy::of(&installation, "a");
    let (old, new) = two_modules();
    policy.revise(1, &policy.module("/old.wasm", &old), &json!({}), &[("served", "true")]);
    policy.revise(2, &policy.module("/new.wasm", &new), &json!({}), &[]);
    let pod = replica(&installation);
    assert_eq!(policy.wait_serving(&pod, 2), digest(&new));
    assert_eq!(installation.source().requests("/old.wasm").len(), 0);
}

#[test]
#[ignore = "starts a cluster"]
fn a_revision_that_cannot_be_decoded_is_its_policys_problem_and_no_others() {
    let installation = installation("odd");
    let (good, odd) = (Policy::of(&installation, "good"), Policy::of(&installation, "odd"));
    let address = good.module("/good.wasm", &two_modules().0);
    odd.revise(1, &address, &json!({ "rules": "none", "suspend": true }), &[]);
    good.revise(1, &address, &json!({}), &[]);
    let pod = replica(&installation);
    good.wait_serving(&pod, 1);
    odd.wait_failure(&pod, "SpecInvalid");
    assert_eq!(odd.loading(&pod)["suspend"], true);
    // Policies of a cluster must not use files of the node.
    odd.revise(2, "file:///etc/passwd", &json!({}), &[]);
    odd.wait_failure(&pod, "SourceNotAllowed");
    odd.revise(3, &address, &json!({}), &[]);
    odd.wait_serving(&pod, 3);
}

#[test]
#[ignore = "starts a cluster"]
fn the_revisions_say_which_groups_a_policy_is_in() {
    let installation = installation("groups");
    let policy = Policy::of(&installation, "a");
    let address = policy.module("/good.wasm", &two_modules().0);
    let on = |resource: &str| {
        json!({ "rules": [{
            "apiGroups": [""], "apiVersions": ["v1"], "resources": [resource], "operations": ["CREATE"],
        }] })
    };
    policy.revise(1, &address, &on("services"), &[]);
    policy.revise(2, &address, &on("secrets"), &[]);
    let pod = replica(&installation);
    policy.wait_serving(&pod, 2);
    // The groups are in the volume's manifest, which the evaluator follows.
    let members = || -> Option<Vec<usize>> {
        let text = std::fs::read_to_string(pod.folder().join("volume/manifest.json")).ok()?;
        let manifest: serde_json::Value = serde_json::from_str(&text).ok()?;
        let groups = manifest["body"]["groups"].as_array()?;
        let mut sizes: Vec<usize> =
            groups.iter().filter_map(|group| Some(group["members"].as_array()?.len())).collect();
        sizes.sort_unstable();
        Some(sizes)
    };
    eventually("a member in the old group and in the new one", || (members() == Some(vec![1, 1])).then_some(()));
    policy.mark(1, &[("withdrawn", "true")]);
    eventually("the old group to be a tombstone", || (members() == Some(vec![0, 1])).then_some(()));
    policy.mark(2, &[("deleted", "true")]);
    eventually("both groups to be tombstones", || (members() == Some(vec![0, 0])).then_some(()));
    eventually("the loader to forget the policy", || policy.loading(&pod).is_null().then_some(()));
    // Tombstones survive a restart of the loader.
    pod.kill(portcullis_e2e::Program::Loader);
    eventually("the loader to be back", || (pod.restarts(portcullis_e2e::Program::Loader) > 0).then_some(()));
    pod.wait_ready();
    assert_eq!(members(), Some(vec![0, 0]));
}
