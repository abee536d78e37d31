//! The loader's watch of revisions while the API server is away, silent, or refuses.

use std::sync::Arc;
use std::time::Duration;

use portcullis_e2e::{Installation, Pod, PodSetup, Program, eventually, never};
use serde_json::json;

use crate::relay::Relay;
use crate::{AFTER_BACKOFF, Policy, cluster, installation, replica_with, two_modules};

/// A replica whose loader reaches the API server through a relay only.
fn behind(installation: &Installation<'_>, setup: PodSetup) -> (Relay, Arc<Pod>) {
    let relay = Relay::to(cluster().api_servers()[0]);
    let pod = replica_with(installation, setup.through(Program::Loader, relay.address()));
    (relay, pod)
}

fn revise(policy: &Policy<'_>, generation: i64) {
    let address = policy.module("/good.wasm", &two_modules().0);
    policy.revise(generation, &address, &json!({ "settings": { "of": generation } }), &[]);
}

fn watch_errors(pod: &Pod) -> f64 {
    let (_, text) = pod.probe(Program::Loader, "/metrics").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("portcullis_revision_watch_errors_total "));
    line.and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap_or_default()
}

fn assert_loader_is_well(pod: &Pod) {
    for path in ["/livez", "/readyz"] {
        assert_eq!(pod.probe(Program::Loader, path).map(|(status, _)| status), Some(200), "{path}");
    }
}

#[test]
#[ignore = "starts a cluster"]
fn the_loader_goes_on_and_restarts_while_the_api_server_is_away() {
    let installation = installation("away");
    let policy = Policy::of(&installation, "a");
    revise(&policy, 1);
    let (relay, pod) = behind(&installation, PodSetup::default());
    policy.wait_serving(&pod, 1);
    pod.wait_ready();
    relay.close();
    eventually("the loader to notice", || (watch_errors(&pod) > 0.0).then_some(()));
    assert_loader_is_well(&pod);
    // It starts again with what is on the volume, and so does the evaluator.
    pod.kill(Program::Loader);
    pod.kill(Program::Evaluator);
    eventually("a restart", || (pod.restarts(Program::Loader) > 0).then_some(()));
    eventually("another", || (pod.restarts(Program::Evaluator) > 0).then_some(()));
    policy.wait_serving(&pod, 1);
    pod.wait_ready();
    assert_eq!(policy.loading(&pod)["generation"], 1, "the loader knows it from the volume");
    assert_loader_is_well(&pod);
    revise(&policy, 2);
    never(Duration::from_secs(3), "news of a server that is away", || {
        policy.serving(&pod).filter(|(generation, _)| *generation != 1)
    });
    relay.open();
    policy.wait_serving(&pod, 2);
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r06_watch_of_the_loader_is_cut() {
    let installation = installation("r06-loader");
    let policy = Policy::of(&installation, "a");
    revise(&policy, 1);
    let (relay, pod) = behind(&installation, PodSetup::default());
    policy.wait_serving(&pod, 1);
    for generation in 2..5 {
        relay.cut();
        revise(&policy, generation);
        policy.wait_serving(&pod, generation);
    }
    assert_loader_is_well(&pod);
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r07_watch_of_the_loader_goes_silent() {
    let installation = installation("r07-loader");
    let policy = Policy::of(&installation, "a");
    revise(&policy, 1);
    let (relay, pod) = behind(&installation, PodSetup::default().flag(Program::Loader, "--watch-timeout", "5s"));
    policy.wait_serving(&pod, 1);
    relay.hold();
    revise(&policy, 2);
    // Nobody tells the loader that the stream is dead; its own limit does.
    policy.wait_serving(&pod, 2);
    assert_loader_is_well(&pod);
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r08_rights_of_the_loader_withdrawn_and_given_back() {
    let installation = installation("r08-loader");
    let policy = Policy::of(&installation, "a");
    revise(&policy, 1);
    let (relay, pod) = behind(&installation, PodSetup::default());
    policy.wait_serving(&pod, 1);
    let path = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings", installation.namespace());
    let mut binding = installation.api().get(&format!("{path}/portcullis-loader")).expect("a binding");
    installation.api().delete(&format!("{path}/portcullis-loader"), None).unwrap().expect("no binding");
    // The API server asks for rights when a watch begins.
    relay.cut();
    eventually("the loader to be refused", || {
        relay.cut();
        (watch_errors(&pod) > 1.0).then_some(())
    });
    revise(&policy, 2);
    never(Duration::from_secs(3), "news without rights", || {
        policy.serving(&pod).filter(|(generation, _)| *generation != 1)
    });
    assert_loader_is_well(&pod);
    binding["metadata"] = json!({ "name": "portcullis-loader" });
    installation.api().create(&path, &binding).unwrap().expect("a binding");
    policy.wait_serving(&pod, 2);
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r09_token_file_of_the_loader_replaced() {
    let installation = installation("r09-loader");
    let policy = Policy::of(&installation, "a");
    revise(&policy, 1);
    let (relay, pod) = behind(&installation, PodSetup::default());
    policy.wait_serving(&pod, 1);
    // A token that is refused: a loader that starts with it knows what the volume says.
    let token = std::fs::read_to_string(pod.folder().join("token")).unwrap();
    pod.put_token("no token");
    pod.kill(Program::Loader);
    eventually("the loader to be refused", || (watch_errors(&pod) > 0.0).then_some(()));
    assert_eq!(policy.serving(&pod).map(|(generation, _)| generation), Some(1));
    revise(&policy, 2);
    // The file is another, and no restart is needed.
    let restarts = pod.restarts(Program::Loader);
    pod.put_token(&token);
    policy.wait_serving(&pod, 2);
    assert_eq!(pod.restarts(Program::Loader), restarts);
    assert!(AFTER_BACKOFF > Duration::from_secs(60));
    drop(relay);
}
