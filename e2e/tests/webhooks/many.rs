//! Many policies.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use portcullis_e2e::{
    FLOODED, Installation, InstallationOptions, LIMIT, condition, eventually, eventually_within, never_lasting,
};
use serde_json::{Value, json};

use crate::cluster;
use crate::scene::{Scene, quick, rules};

/// The number of policies, as in the row.
const POLICIES: usize = 1000;

/// The number of policies applied at once when replicas serve them: fewer than in the row, as debug builds share two cores with other
/// tests. `PORTCULLIS_TEST_POLICIES=1000` tests the whole row.
const CROWD: usize = 250;

/// The time limit until all of them are ready. The row says two minutes for a thousand, for release builds with two cores to themselves:
/// `cargo xtask bench crowd` measures that.
const CROWD_LIMIT: Duration = Duration::from_secs(600);

/// The number of manifests that one kubectl applies: few, as its time is limited and the machine may be busy.
const PART: usize = 50;

/// Waits until the installation has this many revisions. A list of all of them is large, so it is read once the API server counts as many.
fn wait_for_revisions(scene: &Scene, limit: Duration, wanted: usize) {
    let path = format!("/apis/apps/v1/namespaces/{}/controllerrevisions?limit=1", scene.installation.namespace());
    let counted = || {
        let page = scene.installation.api().get(&path)?;
        let rest = page["metadata"]["remainingItemCount"].as_u64().unwrap_or_default();
        Some(page["items"].as_array()?.len() as u64 + rest)
    };
    eventually_within(limit, &format!("{wanted} revisions"), || {
        (counted() == Some(wanted as u64) && scene.installation.revisions().len() == wanted).then_some(())
    });
}

fn apply(scene: &Scene, manifests: &[Value]) {
    for part in manifests.chunks(PART) {
        let mut text = String::new();
        for manifest in part {
            writeln!(text, "---\n{manifest}").expect("a text");
        }
        scene.installation.cluster().apply_server_side(&text).expect("policies");
    }
}

#[test]
#[ignore = "starts a cluster"]
fn fault_w08_a_thousand_policies_have_ten_webhooks_that_settings_do_not_touch() {
    // There are no replicas: the test itself writes the status of one policy of each group, so that the group gets its webhook.
    let scene = Scene::new("many", 0);
    let resources = [
        "pods",
        "services",
        "secrets",
        "configmaps",
        "endpoints",
        "events",
        "limitranges",
        "podtemplates",
        "bindings",
        "nodes",
    ];
    let manifest = |index: usize, settings: Value| {
        let policy = scene.installation.cluster_policy(&format!("many-{index}"));
        let policy = policy.at("https://nowhere.invalid/none.wasm").field("settings", settings);
        let policy = policy.field("rules", rules(&[resources[index % resources.len()]]));
        policy.manifest(scene.installation.source())
    };
    let all: Vec<Value> = (0..POLICIES).map(|index| manifest(index, json!({}))).collect();
    apply(&scene, &all);
    wait_for_revisions(&scene, CROWD_LIMIT, POLICIES);
    let path = |index: usize| format!("/apis/policies.portcullis.dev/v1alpha1/clusterpolicies/many-{index}");
    let serve = |index: usize, generation: u32| {
        let counts = json!({ "expected": 1, "current": 1 });
        let status = json!({ "status": { "observedGeneration": generation, "replicaCounts": counts } });
        let reply = scene.installation.api().patch(&format!("{}/status", path(index)), &status);
        reply.expect("an answer").expect("a status");
    };
    for index in 0..resources.len() {
        serve(index, 1);
    }
    let webhooks = scene.webhooks(resources.len());
    assert!(webhooks.iter().all(|webhook| webhook.to_string().len() < 16_000));
    let versions = |webhooks: &[Value]| -> Vec<Value> {
        webhooks.iter().map(|webhook| webhook["metadata"]["resourceVersion"].clone()).collect()
    };
    let before = versions(&webhooks);
    let settings = manifest(5, json!({ "a": 1 }));
    let mut module = settings.clone();
    module["spec"]["module"] = json!("https://nowhere.invalid/another.wasm");
    for (generation, edit) in [(2, settings), (3, module)] {
        scene.installation.cluster().apply_server_side(&edit.to_string()).expect("an edit");
        wait_for_revisions(&scene, LIMIT, POLICIES + generation as usize - 1);
        serve(5, generation);
        let edited = scene.installation.cluster_policy("many-5");
        scene.installation.wait_for_object(&edited, "the controller's word about the edit", |object| {
            // Without replicas, it cannot say that the webhook answers.
            condition(object, "WebhookConfigured").is_some_and(|it| it["observedGeneration"] == generation)
        });
        never_lasting(Duration::from_secs(3), "a webhook that was touched", || {
            (versions(&scene.webhooks(resources.len())) != before).then_some(())
        });
    }
}

#[test]
#[ignore = "starts a cluster"]
fn fault_k08_many_policies_at_once_are_all_ready_and_the_others_are_judged_meanwhile() {
    let scene = Scene::new("crowd", 1);
    // Test builds share two cores with everything else, so an evaluation may have to wait.
    let canary = scene.installation.cluster_policy("crowd-canary").denying("not today");
    let canary = canary.field("timeoutEvalSeconds", 25).field("timeoutSeconds", 30);
    scene.installation.apply_ready(std::slice::from_ref(&canary));
    let policies = std::env::var("PORTCULLIS_TEST_POLICIES").ok().and_then(|count| count.parse().ok()).unwrap_or(CROWD);
    let mut all = Vec::new();
    for index in 0..policies {
        let policy = scene.installation.cluster_policy(&format!("crowd-{index}"));
        // There are ten match parts, and no request of the test matches any of them.
        let conditions = json!([{ "name": "part", "expression": format!("request.name == 'part-{}'", index % 10) }]);
        let policy = policy.on(&["secrets"]).field("matchConditions", conditions);
        all.push(policy.manifest(scene.installation.source()));
    }
    let start = Instant::now();
    let list = "/apis/policies.portcullis.dev/v1alpha1/clusterpolicies";
    // The evaluator loads all of them while it answers the canary's calls.
    let answers = scene.try_pods_within(FLOODED, || {
        apply(&scene, &all);
        loop {
            let found = scene.installation.api().list(list);
            let ours = found.iter().filter(|policy| {
                policy["spec"]["policyServer"] == "crowd"
                    && condition(policy, "Ready").is_some_and(|ready| ready["status"] == "True")
            });
            let ready = ours.count();
            if ready == policies + 1 {
                break;
            }
            assert!(start.elapsed() < CROWD_LIMIT, "{ready} of {policies} are ready after {CROWD_LIMIT:?}");
            std::thread::sleep(Duration::from_secs(1));
        }
    });
    for (code, message) in &answers {
        assert!(*code == 403 && message.contains("not today"), "{code} {message}");
    }
    assert!(answers.len() > 100, "{} calls prove nothing", answers.len());
    println!(
        "{policies} policies were ready after {:?}; writes for each: {}",
        start.elapsed(),
        writes(&scene, policies)
    );
    scene.webhooks(11);
}

/// The number of writes of revisions, statuses and events by the installation per policy, by account and answer.
fn writes(scene: &Scene, policies: usize) -> String {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    let accounts = format!("system:serviceaccount:{}:", scene.installation.namespace());
    for event in scene.installation.cluster().audit_events(&accounts) {
        let target = &event["objectRef"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (verb, resource) = (text(&event["verb"]), text(&target["resource"]));
        let is_write = matches!(verb.as_str(), "create" | "update" | "patch" | "delete");
        if !is_write || !matches!(resource.as_str(), "clusterpolicies" | "controllerrevisions" | "events") {
            continue;
        }
        let user = text(&event["user"]["username"]);
        let Some(user) = user.strip_prefix(&accounts) else { continue };
        let part = target["subresource"].as_str().map(|part| format!("/{part}")).unwrap_or_default();
        *counts.entry(format!("{user} {verb} {resource}{part} {}", event["responseStatus"]["code"])).or_default() += 1;
    }
    let each = |(what, count): (&String, &u32)| format!("{what}: {:.2}", f64::from(*count) / policies as f64);
    counts.iter().map(each).collect::<Vec<_>>().join("; ")
}

#[test]
#[ignore = "starts a cluster"]
fn an_installation_leaves_the_policies_of_another_one_alone() {
    let one = Scene::new("mine", 0);
    let other = Installation::start(cluster(), InstallationOptions::named("yours"));
    let policy = other.cluster_policy("yours-deny").denying("no");
    other.apply(&policy).expect("the policy");
    never_lasting(Duration::from_secs(2), "a revision", || (!one.installation.revisions().is_empty()).then_some(()));
    other.start_controller_with(quick());
    eventually("its revision", || (other.revisions().len() == 1).then_some(()));
    assert!(one.installation.revisions().is_empty());
    other.api().delete(&policy.path(), None).expect("an answer").expect("the deletion");
    eventually("the end of the policy", || other.object(&policy).is_none().then_some(()));
}
