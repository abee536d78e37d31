//! The status of policies when reporters have no rights, when the one that leads is killed, when others edit it, and when etcd is full: rows
//! R08, R15, R25 and R32.
//!
//! Loaders, evaluators and the controller are real here. The tests of these rows in `e2e/tests/status` play them.

use std::time::{Duration, Instant};

use portcullis_e2e::{
    Cluster, Installation, InstallationOptions, Options, Pod, PodSetup, Policy, Program, Right, SMALL_DATABASE,
    condition, eventually, guest_with, one_round_in_time,
};
use serde_json::{Value, json};

use crate::away::PROGRAMS;
use crate::edits::wait_for_serving_previous;
use crate::{assert_denied, installation, leading_pod};

/// How long a policy must not change before its status counts as settled.
const SETTLED: Duration = Duration::from_secs(3);

/// The type of a condition that is not ours.
const FOREIGN: &str = "Scanned";

#[test]
#[ignore = "starts a cluster"]
fn fault_r08_evaluators_judge_and_every_program_stays_ready_while_reporters_have_no_rights() {
    let installation = installation("rightless", 0);
    for _ in 0..2 {
        let setup = PodSetup::default().flag(Program::Reporter, "--heartbeat", "1s");
        installation.add_replica_with(setup.flag(Program::Reporter, "--report-lifetime", "6s"));
    }
    installation.wait_ready();
    let shop = installation.make_namespace("shop");
    let policy = installation.cluster_policy("rightless").denying("judged");
    installation.apply_ready(std::slice::from_ref(&policy));
    let canary = installation.canary(&shop, Right::Denied("judged".to_owned()));

    let bindings = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings", installation.namespace());
    let (api, path) = (installation.api(), format!("{bindings}/portcullis-reporter"));
    let mut binding = api.find(&path).expect("a binding");
    api.delete(&path, None).unwrap().expect("rights withdrawn");
    installation.wait_for_object(&policy, "two stale reports", |object| {
        let is_stale = condition(object, "Degraded").is_some_and(|degraded| degraded["reason"] == "ReportStale");
        is_stale && object["status"]["replicaCounts"]["unknown"] == 2
    });
    for replica in installation.replicas() {
        for program in PROGRAMS {
            let (code, text) = eventually("an answer", || replica.probe(program, "/readyz?verbose"));
            assert_eq!(code, 200, "{program} of {}: {text}", replica.name());
            assert_eq!(replica.restarts(program), 0, "{program} of {}", replica.name());
        }
    }
    assert_denied(&installation.create_pod(&shop, "one", &json!({})), "policy cluster/rightless: judged");

    let back = installation.moment();
    binding["metadata"] = json!({ "name": "portcullis-reporter", "namespace": installation.namespace() });
    api.create(&bindings, &binding).unwrap().expect("rights given back");
    let right = || is_right(&installation, &policy);
    installation.recovers_since(&back, "a status that is right", right).unwrap_or_else(|late| panic!("{late}"));
    canary.end();
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r15_a_policy_that_is_mended_after_the_leader_was_killed_becomes_ready() {
    let installation = installation("leader-killed", 2);
    let shop = installation.make_namespace("shop");
    installation.apply_ready(&[installation.cluster_policy("leader-killed").denying("judged")]);
    let replicas = installation.replicas();
    let canary = installation.canary(&shop, Right::Denied("judged".to_owned()));
    one_round_in_time(|round| {
        // Neither replica can load this policy.
        let policy = installation.cluster_policy(&format!("leader-killed-{round}")).on(&["secrets"]);
        installation.apply(&policy.clone().module_of("no module")).expect("the policy");
        let is_failing = |object: &Value| object["status"]["replicaCounts"]["failed"] == 2;
        installation.wait_for_object(&policy, "two failures", is_failing);
        let holder = leading_pod(&installation);
        let find = |leads: bool| replicas.iter().find(|pod| (pod.name() == holder) == leads);
        let (leader, follower) = (find(true).expect("the leader is a replica"), find(false).expect("another replica"));

        let killed = installation.moment();
        leader.stop(Program::Reporter);
        installation.apply(&policy.clone().denying("mended")).expect("the edit");
        let next = || installation.lease_holder("reporter").filter(|new| *new == follower.name());
        let in_time = installation.recovers_since(&killed, "another leader", next);
        // The pod of the killed reporter is not ready and does not count. What it reported last is about the generation before.
        let object = installation.wait_for(&policy, "Ready", "True");
        assert_eq!(object["status"]["summary"], "1/1", "{:#}", object["status"]);

        leader.start(Program::Reporter);
        installation.wait_ready();
        installation.wait_for_object(&policy, "both replicas", |object| object["status"]["summary"] == "2/2");
        in_time.map(drop)
    });
    canary.end();
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r25_forged_statuses_are_true_again_and_foreign_conditions_stay() {
    let installation = installation("forged", 1);
    let shop = installation.make_namespace("shop");
    let good = installation.cluster_policy("forged-good").denying("judged");
    let bad = installation.cluster_policy("forged-bad").on(&["configmaps"]).denying("the older one");
    installation.apply_ready(&[good.clone(), bad.clone()]);
    let bad = bad.module_of("no module");
    installation.apply(&bad).expect("the edit");
    wait_for_serving_previous(&installation, &bad);
    let before = [
        settled(&installation, &good, |object| reason_of_ready(object) == "Active"),
        settled(&installation, &bad, |object| reason_of_ready(object) == "ServingPrevious"),
    ];
    let truth = before.each_ref().map(said);
    let policies = [good, bad];

    let canary = installation.canary(&shop, Right::Denied("judged".to_owned()));
    one_round_in_time(|_| {
        for (policy, object) in policies.iter().zip(&before) {
            let edit = json!({ "status": forged(&object["status"]) });
            let edited = installation.api().patch(&format!("{}/status", policy.path()), &edit);
            edited.expect("an API server answers").expect("the edit");
        }
        installation.recovers("what is true of both", || {
            let now = policies.each_ref().map(|policy| said(&installation.object(policy).unwrap_or_default()));
            (now == truth).then_some(())
        })
    });
    // A controller and a reporter that overwrite each other would never let it rest.
    for (policy, truth) in policies.iter().zip(&truth) {
        let object = settled(&installation, policy, |object| said(object) == *truth);
        let is_there = condition(&object, FOREIGN).is_some_and(|foreign| foreign["reason"] == "ByTheTest");
        assert!(is_there, "{:#}", object["status"]);
    }
    canary.end();
}

/// A status as somebody forges it: the condition `Ready` says the opposite, `Degraded` is gone, all messages and the replicas are
/// others, and there is a condition of another program.
fn forged(status: &Value) -> Value {
    let mut forged = status.clone();
    forged["summary"] = json!("9/9");
    forged["lastServed"] = Value::Null;
    forged["replicas"] =
        json!([{ "pod": "forged", "podUID": "x", "state": "Failed", "generation": 0, "message": "forged" }]);
    let conditions = forged["conditions"].as_array_mut().unwrap();
    conditions.retain(|condition| condition["type"] != "Degraded");
    for condition in &mut *conditions {
        condition["message"] = json!("forged");
        if condition["type"] == "Ready" {
            let opposite = if condition["status"] == "True" { "False" } else { "True" };
            condition["status"] = json!(opposite);
        }
    }
    conditions.push(json!({
        "type": FOREIGN, "status": "True", "reason": "ByTheTest", "message": "", "observedGeneration": 1,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }));
    forged
}

/// What reporter and controller say in the status of a policy, without the times of conditions.
fn said(object: &Value) -> Value {
    let status = &object["status"];
    let mut conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    conditions.retain(|condition| condition["type"] != FOREIGN);
    conditions.iter_mut().for_each(|condition| condition["lastTransitionTime"] = Value::Null);
    conditions.sort_by_key(|condition| condition["type"].to_string());
    json!([status["summary"], status["lastServed"], status["replicas"], conditions])
}

fn reason_of_ready(object: &Value) -> &str {
    condition(object, "Ready").and_then(|ready| ready["reason"].as_str()).unwrap_or_default()
}

/// Waits until a policy fulfils a condition and has not changed for a while, and returns its object.
fn settled(installation: &Installation<'_>, policy: &Policy, is: impl Fn(&Value) -> bool) -> Value {
    let (mut last, mut since) = (Value::Null, Instant::now());
    eventually(&format!("a status of {} that is right and stays", policy.name()), || {
        let now = installation.object(policy)?;
        if now["metadata"]["resourceVersion"] != last["metadata"]["resourceVersion"] {
            (last, since) = (now, Instant::now());
        }
        (since.elapsed() >= SETTLED && is(&last)).then(|| last.clone())
    })
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r32_policies_judge_and_load_while_etcd_is_full_and_then_the_status_says_so() {
    // The test needs a cluster of its own, because nothing can be written to it for a while.
    let options = Options { etcd_quota: Some(SMALL_DATABASE), ..Options::default() };
    let cluster = &Cluster::start(&options).unwrap();
    let installation = Installation::start(cluster, InstallationOptions::named("full")).with(2);
    let shop = installation.make_namespace("shop");
    installation.apply_ready(&[installation.cluster_policy("full").denying("judged")]);
    // This policy can be loaded only while its success cannot be reported.
    let late = installation.source().url("/full-late.wasm");
    let late = installation.cluster_policy("full-late").on(&["configmaps"]).at(&late);
    installation.apply(&late).expect("the policy");
    installation.wait_for_object(&late, "two failures", |object| object["status"]["replicaCounts"]["failed"] == 2);
    let replicas = installation.replicas();

    let fillers = cluster.fill_etcd(installation.namespace());
    let canary = installation.canary(&shop, Right::Denied("judged".to_owned()));
    installation.source().put("/full-late.wasm", guest_with("deny_text", b"at last"));
    for replica in &replicas {
        let health = || replica.loopback(Program::Evaluator, "/healthz/policies/cluster/full-late");
        eventually("the policy in the evaluator", || health().filter(|(code, _)| *code == 200));
        eventually("the end of a Lease that cannot be renewed", || follows(replica).then_some(()));
    }
    let status = installation.object(&late).unwrap()["status"].clone();
    assert_eq!(status["replicaCounts"]["current"], 0, "nothing can be written: {status:#}");
    // Etcd answers nothing while it is defragmented, and then API servers answer nothing either.
    canary.end();

    cluster.empty_etcd(&fillers);
    installation.assert_recovers("the policy that was late", || is_right(&installation, &late));
    assert_denied(&installation.create_config_map(&shop, "one"), "policy cluster/full-late: at last");
    assert_denied(&installation.create_pod(&shop, "one", &json!({})), "policy cluster/full: judged");
    for replica in &replicas {
        for program in PROGRAMS {
            assert_eq!(replica.restarts(program), 0, "{program} of {}", replica.name());
        }
    }
}

/// Whether a policy is Ready on both replicas, and nothing is wrong.
fn is_right(installation: &Installation<'_>, policy: &Policy) -> Option<()> {
    let object = installation.object(policy)?;
    let is = |kind: &str, status: &str| condition(&object, kind).is_some_and(|found| found["status"] == status);
    (is("Ready", "True") && is("Degraded", "False") && object["status"]["summary"] == "2/2").then_some(())
}

/// Whether the reporter of a replica says that it does not lead.
fn follows(replica: &Pod) -> bool {
    let metrics = replica.probe(Program::Reporter, "/metrics");
    metrics.is_some_and(|(_, text)| text.lines().any(|line| line == "portcullis_reporter_leader 0"))
}
