//! Requests that go on while replicas and policies come and go.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use portcullis_e2e::{Cluster, Installation, Program, eventually_within};
use serde_json::json;

use crate::{assert_denied, installation, try_pod};

/// So many callers at the same time; each waits for its answer.
const CALLERS: usize = 3;

/// Calls without a pause while `act` runs and for a second more, and returns what the API server said.
fn answers_during(installation: &Installation<'_>, namespace: &str, act: impl FnOnce()) -> Vec<(u16, String)> {
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let call = || {
            let mut answers = Vec::new();
            while !is_done.load(Ordering::SeqCst) {
                answers.push(try_pod(installation, namespace));
            }
            answers
        };
        let callers: Vec<_> = (0..CALLERS).map(|_| scope.spawn(call)).collect();
        let acted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            act();
            thread::sleep(Duration::from_secs(1));
        }));
        is_done.store(true, Ordering::SeqCst);
        let answers = callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect();
        acted.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        answers
    })
}

fn assert_all_admitted(answers: &[(u16, String)]) {
    let refused: Vec<_> = answers.iter().filter(|(code, _)| *code != 201).collect();
    assert!(refused.is_empty(), "{} of {} calls: {:?}", refused.len(), answers.len(), refused[0]);
}

#[test]
#[ignore = "starts a cluster"]
fn fault_e03_a_rolling_restart_under_load_fails_no_call() {
    Cluster::demand_own_network();
    let installation = installation("rolling", 2);
    let shop = installation.make_namespace("shop");
    installation.apply_ready(&[installation.cluster_policy("rolling")]);

    let old = installation.replicas();
    let answers = answers_during(&installation, &shop, || {
        for replica in &old {
            installation.add_replica();
            installation.wait_ready();
            replica.remove();
        }
    });
    assert_all_admitted(&answers);
    for replica in &old {
        let ended = replica.program(Program::Evaluator).ended();
        assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
    }
}

#[test]
#[ignore = "starts a cluster"]
fn fault_e13_a_policy_that_is_deleted_under_load_harms_no_call() {
    Cluster::demand_own_network();
    let installation = installation("deleted", 2);
    let shop = installation.make_namespace("shop");
    let (stays, goes) = (installation.cluster_policy("deleted-stays"), installation.cluster_policy("deleted-goes"));
    // The one that goes is alone in its match group as well: another version of the same resources.
    let alone = installation.cluster_policy("deleted-alone").field("matchPolicy", "Exact");
    installation.apply_ready(&[stays, goes.clone(), alone.clone()]);

    let answers = answers_during(&installation, &shop, || {
        for policy in [&goes, &alone] {
            installation.cluster().kubectl(["delete", "--timeout=60s", &policy.reference()]).expect("a deletion");
        }
    });
    assert_all_admitted(&answers);
}

#[test]
#[ignore = "starts a cluster"]
fn fault_k08_a_thousand_policies_applied_at_once_are_all_ready() {
    Cluster::demand_own_network();
    let installation = installation("thousand", 2);
    let (shop, busy) = (installation.make_namespace("shop"), installation.make_namespace("busy"));
    let canary = installation.policy(&shop, "canary").denying("the canary sings");
    installation.apply_ready(&[canary]);

    let policies: Vec<_> = (0..1000)
        .map(|number| {
            installation.policy(&busy, &format!("many-{number}")).field("settings", json!({ "number": number }))
        })
        .collect();
    let manifests: Vec<_> = policies.iter().map(|policy| policy.manifest(installation.source()).to_string()).collect();
    let start = Instant::now();
    installation.cluster().apply_server_side(&manifests.join("\n---\n")).expect("a thousand policies");
    // Two minutes on two idle cores; here are others, and programs with all their checks.
    let path = format!("/apis/policies.portcullis.dev/v1alpha1/namespaces/{busy}/policies");
    eventually_within(Duration::from_secs(420), "a thousand policies that are Ready", || {
        assert_denied(&installation.create_pod(&shop, "one", &json!({})), "the canary sings");
        let list = installation.api().get(&path)?;
        let is_ready = |object: &&serde_json::Value| {
            portcullis_e2e::condition(object, "Ready").is_some_and(|ready| ready["status"] == "True")
        };
        let ready = list["items"].as_array()?.iter().filter(is_ready).count();
        thread::sleep(Duration::from_secs(1));
        (ready == policies.len()).then_some(())
    });
    println!("a thousand policies are Ready after {:.0} s", start.elapsed().as_secs_f64());
    installation.create_pod(&busy, "one", &json!({})).expect("a pod that all thousand allow");
}
