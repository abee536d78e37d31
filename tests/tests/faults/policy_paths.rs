//! Paths that name a policy are closed, as in a cluster: a client that reaches the ports does not learn anything about policies.

use portcullis_contract::Reason;
use portcullis_tests::{Client, Folder, Pod, Policy, Program, Review, eventually};

use crate::http::{DENIES, assert_closed};

/// The id of a policy that does not exist.
const UNKNOWN: &str = "cluster/unknown";

/// A pod with a policy that denies everything, and closed paths.
fn pod() -> (Folder, Pod) {
    let folder = Folder::empty();
    folder.put(&Policy::cluster("denies").guest("always_deny"));
    let setup = Pod::on(&folder).evaluator("--policy-paths", "off").loader("--policy-paths", "off");
    let pod = setup.start();
    pod.wait_current(DENIES, 1);
    (folder, pod)
}

#[test]
fn policy_paths_are_closed_by_the_head_alone_and_tell_no_policy_from_none() {
    let (_folder, pod) = pod();
    let paths: Vec<_> = ["validate", "audit", "validate_raw"]
        .into_iter()
        .flat_map(|root| [DENIES, UNKNOWN].map(|id| format!("/{root}/{id}")))
        .collect();
    let requests: Vec<_> = paths.iter().flat_map(|path| [("POST", path.as_str()), ("GET", path)]).collect();
    assert_closed(&pod, &requests);
    let metrics = pod.metrics(Program::Evaluator);
    let asked = |line: &&str| {
        line.starts_with("portcullis_policy_evaluations_total") && line.contains(DENIES) && !line.ends_with(" 0")
    };
    assert_eq!(metrics.lines().find(asked), None, "the policy was not called");

    // The path that API servers call still works.
    let group = pod.volume().manifest().groups[0].id.to_string();
    assert!(!pod.admit(&group, &Review::pod()).verdict().allowed);
}

#[test]
fn policy_paths_are_closed_on_the_ports_of_the_probes_and_open_on_the_loopback() {
    let (folder, pod) = pod();
    folder.put(&Policy::cluster("broken").module("missing.wasm"));
    pod.wait_failure("cluster/broken", Reason::NotFound);
    eventually("the loader to tell the failure", || {
        pod.loader_state()?.policies.into_iter().find(|policy| policy.failure.is_some())
    });
    for program in [Program::Evaluator, Program::Loader] {
        let health = ["", "?verbose", "/cluster/denies", "/cluster/broken", "/cluster/unknown"];
        let health = health.map(|rest| format!("/healthz/policies{rest}"));
        for path in health.iter().map(String::as_str).chain(["/healthz/sources", "/healthz/sources/registry.example"]) {
            let answer = pod.probe(program, path).expect("answers");
            assert_eq!((answer.status, answer.body.as_str()), (404, ""), "{program} {path}");
        }
        for path in ["/livez", "/readyz", "/metrics"] {
            // If the machine stands still, a program seems dead for a moment.
            eventually(&format!("{path} of the {program}"), || {
                pod.probe(program, path).ok().filter(|answer| answer.status == 200)
            });
        }
        let loopback = Client::plain(pod.state_address(program));
        let all = loopback.get("/healthz/policies?verbose").expect("answers");
        assert!(all.status == 500 && all.body.contains("[+]cluster/denies"), "{program}: {all:?}");
        assert_eq!(loopback.get("/healthz/policies/cluster/denies").expect("answers").status, 200);
        assert_eq!(loopback.get("/healthz/policies/cluster/unknown").expect("answers").status, 404);
    }
    // The reporter reads what it reports on the loopback.
    pod.wait_condition(DENIES, "Ready", "True", "Active");
}
