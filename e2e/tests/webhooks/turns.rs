//! Mutating policies, which are asked one after the other within the time that the API server waits for their webhook.

use portcullis_e2e::{Policy, eventually};
use serde_json::{Value, json};

use crate::scene::Scene;

/// The time limit of an evaluation that is slow only on a busy machine, in seconds. Four of them fit into [`ASKED`].
const SHORT: u32 = 6;
/// How long each policy asks an API server to wait, in seconds.
const ASKED: u32 = 26;

fn mutating(scene: &Scene, name: &str, seconds: u32) -> Policy {
    let policy = scene.installation.cluster_policy(name).on(&["configmaps"]).field("mutating", true);
    let policy = policy.field("timeoutEvalSeconds", seconds).field("timeoutSeconds", ASKED);
    policy.field("failurePolicy", "Ignore")
}

fn wait(webhook: &Value) -> u32 {
    let seconds = webhook["webhooks"][0]["timeoutSeconds"].as_u64().unwrap_or_default();
    seconds.try_into().expect("API servers wait for half a minute at most")
}

#[test]
#[ignore = "starts a cluster"]
fn fault_z03_a_slow_mutating_member_takes_no_time_of_the_others_wherever_it_stands() {
    let scene = Scene::new("turns", 1);
    let canary = scene.installation.own_canary();
    let name = |number: usize| format!("turns-{number}");
    let quick: Vec<_> = (0..4).map(|number| mutating(&scene, &name(number), SHORT)).collect();
    scene.installation.apply_ready(&quick);
    assert_eq!(wait(&scene.webhooks(1)[0]), ASKED, "four times six seconds are less than what each asks for");
    for place in 0..4 {
        let sleeper = mutating(&scene, &name(place), 10).guest("clock_sleep");
        scene.installation.apply_ready(&[sleeper]);
        assert_eq!(wait(&scene.webhooks(1)[0]), 3 * SHORT + 10 + 1);
        let created = scene.installation.create_config_map(&scene.namespace, &format!("at-{place}"));
        assert!(created.is_ok(), "{}", created.stderr);
        let told: Vec<_> = created.stderr.lines().filter(|line| line.contains("was not evaluated")).collect();
        let [told] = &told[..] else { panic!("{}", created.stderr) };
        assert!(told.contains(&name(place)) && told.contains("EvaluationTimedOut"), "{told}");
        scene.installation.apply_ready(&[mutating(&scene, &name(place), SHORT)]);
        eventually("the webhook to wait as long as before", || (wait(&scene.webhooks(1)[0]) == ASKED).then_some(()));
    }
    canary.end();
}

#[test]
#[ignore = "starts a cluster"]
fn fault_z03_who_does_not_fit_into_thirty_seconds_has_a_webhook_of_its_own() {
    let scene = Scene::new("overflow", 1);
    let canary = scene.installation.own_canary();
    let (first, second) = (mutating(&scene, "overflow-b", 20), mutating(&scene, "overflow-c", 9));
    scene.installation.apply_ready(&[first, second]);
    let [before] = scene.webhooks(1).try_into().expect("one for both");
    assert_eq!(wait(&before), 30);
    // Its id comes first, but that does not push the others out of their webhook.
    let config_map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": { "key": "changed" },
        "metadata": { "name": "one", "namespace": scene.namespace },
    });
    let answer = json!({ "accepted": true, "mutated_object": config_map }).to_string();
    let third = mutating(&scene, "overflow-a", 9).answering("answer", answer);
    scene.installation.apply_ready(std::slice::from_ref(&third));
    let webhooks = scene.webhooks(2);
    let name = |webhook: &Value| webhook["metadata"]["name"].clone();
    let [own] = &webhooks.iter().filter(|webhook| name(webhook) != name(&before)).collect::<Vec<_>>()[..] else {
        panic!("{webhooks:?}")
    };
    assert_eq!(wait(own), ASKED);
    let stays = webhooks.iter().find(|webhook| name(webhook) == name(&before)).expect("the first");
    assert_eq!(stays["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);
    scene.installation.create_config_map(&scene.namespace, "one").expect("all accept");
    let path = format!("/api/v1/namespaces/{}/configmaps/one", scene.namespace);
    assert_eq!(scene.installation.api().find(&path).unwrap_or_default()["data"], json!({ "key": "changed" }));
    scene.delete(&third);
    scene.webhooks(1);
    canary.end();
}
