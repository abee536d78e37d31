//! The loader's watch of revisions while the API server is unreachable, silent, or refuses requests.

use std::sync::Arc;
use std::time::Duration;

use portcullis_e2e::{
    Installation, POLICY_SERVER_ACCOUNT, Pod, PodSetup, Program, Proxy, Request, eventually, eventually_within, never,
};
use serde_json::json;

use crate::{AFTER_BACKOFF, Policy, cluster, installation, replica_with, two_modules};

/// The part of the path that all requests of the loader have.
const REVISIONS: &str = "controllerrevisions";

/// A replica whose loader reaches the API server only through a proxy.
fn behind(installation: &Installation<'_>, setup: PodSetup) -> (Proxy, Arc<Pod>) {
    let proxy = Proxy::start(cluster());
    let pod = replica_with(installation, setup.through(Program::Loader, proxy.address()));
    (proxy, pod)
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
        // An answer may be late if the machine stands still.
        let status = eventually(path, || Some(pod.probe(Program::Loader, path)?.0));
        assert_eq!(status, 200, "{path}");
    }
}

/// Asserts that this generation goes on serving for a while.
fn assert_stays(policy: &Policy<'_>, pod: &Pod, generation: i64) {
    never(Duration::from_secs(3), "another generation", || {
        policy.serving(pod).filter(|(serving, _)| *serving != generation)
    });
}

#[test]
#[ignore = "starts a cluster"]
fn the_loader_goes_on_and_restarts_while_the_api_server_is_away() {
    let installation = installation("away");
    let policy = Policy::of(&installation, "a");
    revise(&policy, 1);
    let (proxy, pod) = behind(&installation, PodSetup::default());
    policy.wait_serving(&pod, 1);
    pod.wait_ready();
    proxy.close();
    eventually("the loader to notice", || (watch_errors(&pod) > 0.0).then_some(()));
    assert_loader_is_well(&pod);
    // Loader and evaluator start again with the content of the volume.
    pod.kill(Program::Loader);
    pod.kill(Program::Evaluator);
    eventually("a restart", || (pod.restarts(Program::Loader) > 0).then_some(()));
    eventually("another", || (pod.restarts(Program::Evaluator) > 0).then_some(()));
    policy.wait_serving(&pod, 1);
    pod.wait_ready();
    assert_eq!(policy.loading(&pod)["generation"], 1, "the loader knows it from the volume");
    assert_loader_is_well(&pod);
    revise(&policy, 2);
    assert_stays(&policy, &pod, 1);
    proxy.open();
    policy.wait_serving(&pod, 2);
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r06_watch_of_the_loader_is_cut() {
    let installation = installation("r06-loader");
    let policy = Policy::of(&installation, "a");
    revise(&policy, 1);
    let (proxy, pod) = behind(&installation, PodSetup::default());
    policy.wait_serving(&pod, 1);
    for generation in 2..4 {
        eventually("a watch to cut", || (proxy.cut(REVISIONS) > 0).then_some(()));
        revise(&policy, generation);
        policy.wait_serving(&pod, generation);
    }
    assert_loader_is_well(&pod);
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r06_watch_of_the_loader_is_gone() {
    let installation = installation("r06-gone");
    let policy = Policy::of(&installation, "a");
    revise(&policy, 1);
    let (proxy, pod) = behind(&installation, PodSetup::default());
    policy.wait_serving(&pod, 1);
    let lists = || proxy.requests_of("GET", REVISIONS).iter().filter(|list| list.path.contains("limit=")).count();
    let before = lists();
    let gone = json!({ "type": "ERROR", "object": {
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410,
        "message": "too old resource version", "metadata": {},
    } });
    eventually("a watch", || (proxy.inject(REVISIONS, &gone) > 0).then_some(()));
    eventually_within(AFTER_BACKOFF, "another list, in pages", || (lists() > before).then_some(()));
    assert_stays(&policy, &pod, 1);
    revise(&policy, 2);
    policy.wait_serving(&pod, 2);
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r07_watch_of_the_loader_goes_silent() {
    let installation = installation("r07-loader");
    let policy = Policy::of(&installation, "a");
    revise(&policy, 1);
    let (proxy, pod) = behind(&installation, PodSetup::default().flag(Program::Loader, "--watch-timeout", "5s"));
    policy.wait_serving(&pod, 1);
    eventually("a watch", || (proxy.watches(REVISIONS) > 0).then_some(()));
    let watches = || proxy.requests_of("GET", REVISIONS).iter().filter(|one| one.path.contains("watch=")).count();
    let before = watches();
    proxy.hold(REVISIONS);
    revise(&policy, 2);
    // The loader notices only by its own time limit that the stream is dead.
    eventually("a watch after the silent one", || (watches() > before).then_some(()));
    assert_loader_is_well(&pod);
    proxy.clear();
    policy.wait_serving(&pod, 2);
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r08_rights_of_the_loader_withdrawn_and_given_back() {
    let installation = installation("r08-loader");
    let policy = Policy::of(&installation, "a");
    revise(&policy, 1);
    let (proxy, pod) = behind(&installation, PodSetup::default());
    policy.wait_serving(&pod, 1);
    let path = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings", installation.namespace());
    let mut binding = installation.api().find(&format!("{path}/portcullis-loader")).expect("a binding");
    installation.api().delete(&format!("{path}/portcullis-loader"), None).unwrap().expect("no binding");
    // The API server checks rights only when a watch begins.
    eventually("the loader to be refused", || {
        proxy.cut(REVISIONS);
        let asked = proxy.requests_of("GET", REVISIONS);
        asked.iter().any(|request| request.status == Some(403)).then_some(())
    });
    revise(&policy, 2);
    assert_stays(&policy, &pod, 1);
    assert_loader_is_well(&pod);
    binding["metadata"] = json!({ "name": "portcullis-loader" });
    let back = installation.moment();
    installation.api().create(&path, &binding).unwrap().expect("a binding");
    let serves = || policy.serving(&pod).filter(|(generation, _)| *generation == 2);
    installation.recovers_since(&back, "the new generation", serves).unwrap_or_else(|late| panic!("{late}"));
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r09_token_file_of_the_loader_replaced() {
    let installation = installation("r09-loader");
    let policy = Policy::of(&installation, "a");
    revise(&policy, 1);
    let pod = replica_with(&installation, PodSetup::default());
    policy.wait_serving(&pod, 1);
    // A loader that starts with a token that is refused knows only the content of the volume.
    let token = pod.token();
    pod.put_token("no token");
    pod.kill(Program::Loader);
    eventually("the loader to be refused", || (watch_errors(&pod) > 0.0).then_some(()));
    assert_eq!(policy.serving(&pod).map(|(generation, _)| generation), Some(1));
    revise(&policy, 2);
    // The token file is replaced, and no restart is needed.
    let restarts = pod.restarts(Program::Loader);
    pod.put_token(&token);
    policy.wait_serving(&pod, 2);
    assert_eq!(pod.restarts(Program::Loader), restarts);
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r09_a_running_loader_uses_a_new_token_within_a_minute() {
    let installation = installation("r09-running");
    let policy = Policy::of(&installation, "a");
    revise(&policy, 1);
    // A watch keeps the token that it began with, so the watches are short.
    let (proxy, pod) = behind(&installation, PodSetup::default().flag(Program::Loader, "--watch-timeout", "5s"));
    policy.wait_serving(&pod, 1);
    let process = pod.process(Program::Loader);
    let is_meant = |call: &Request| call.method == "GET" && call.path.contains(REVISIONS);
    let used = installation.assert_new_token_is_used(POLICY_SERVER_ACCOUNT, &pod, &proxy, is_meant);
    assert_eq!(used.status, Some(200));
    revise(&policy, 2);
    policy.wait_serving(&pod, 2);
    assert_eq!(pod.process(Program::Loader), process, "no restart was needed");
}
