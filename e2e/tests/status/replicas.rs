//! The status of a policy follows the states of the replicas.

use std::time::Duration;

use portcullis_e2e::{PodSetup, Program, Proxy, Rule, condition, eventually_within, never, never_lasting};
use serde_json::{Value, json};

use crate::cluster;
use crate::stage::{SOON, Stage, status_and_reason};
use crate::states::{Says, refused, unreachable};

#[test]
#[ignore = "starts a cluster"]
fn a_replica_that_cannot_load_a_policy_makes_it_degraded_and_the_others_serve() {
    let (stage, replicas) = Stage::with(cluster(), "degraded", 3);
    let (policy, object) = stage.policy("labels");
    replicas[0].says(&object, Says::Current);
    replicas[1].says(&object, Says::Current);
    replicas[2].says(&object, unreachable());
    let found = eventually_within(SOON, "two that serve and one that failed", || {
        let found = stage.installation.object(&policy)?;
        let counts = &found["status"]["replicaCounts"];
        (counts["current"] == 2 && counts["failed"] == 1).then_some(found)
    });
    assert_eq!(found["status"]["summary"], "2/3");
    assert_eq!(status_and_reason(&found, "Ready"), "False/Degraded");
    assert_eq!(status_and_reason(&found, "Enforced"), "False/ReplicaFailed");
    assert_eq!(status_and_reason(&found, "Degraded"), "True/RegistryUnreachable");
    assert_eq!(status_and_reason(&found, "Reconciling"), "True/Retrying");
    assert_eq!(status_and_reason(&found, "Stalled"), "False/Retrying");
    assert_eq!(status_and_reason(&found, "WebhookConfigured"), "True/Registered");
    let entry = &found["status"]["replicas"][0];
    assert_eq!((entry["pod"].as_str(), entry["state"].as_str()), (Some(replicas[2].name()), Some("Failed")));
    assert_eq!(entry["nextRetryTime"], "2099-01-01T00:00:00Z");
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r19_when_the_failing_pod_is_deleted_it_is_active_again_by_itself() {
    let (stage, replicas) = Stage::with(cluster(), "deleted", 2);
    let (policy, object) = stage.policy("labels");
    // The follower fails, because row R15 is about the end of a leader.
    let (serving, failing) = stage.leader_and_follower(&replicas);
    serving.says(&object, Says::Current);
    failing.says(&object, unreachable());
    stage.word(&policy, "Degraded");
    eventually_within(SOON, "an event", || {
        stage.events(&object).iter().any(|(r, _)| r == "RegistryUnreachable").then_some(())
    });
    failing.pod.delete_object();
    let found = stage.installation.assert_recovers("a status without the pod that was deleted", || {
        let found = stage.installation.object(&policy)?;
        let is_gone = found["status"]["replicas"].as_array()?.len() == 1;
        (is_gone && status_and_reason(&found, "Degraded") == "False/AsExpected").then_some(found)
    });
    assert_eq!(status_and_reason(&found, "Ready"), "True/Active");
    eventually_within(SOON, "Recovered", || stage.events(&object).iter().any(|(r, _)| r == "Recovered").then_some(()));
}

#[test]
#[ignore = "starts a cluster"]
fn when_no_replica_can_load_it_is_error() {
    let (stage, replicas) = Stage::with(cluster(), "error", 2);
    let (policy, object) = stage.policy("labels");
    replicas.iter().for_each(|replica| replica.says(&object, refused(0, "no such label")));
    let found = stage.word(&policy, "Error");
    assert_eq!(status_and_reason(&found, "Enforced"), "False/AllReplicasFailed");
    assert_eq!(status_and_reason(&found, "Accepted"), "False/SettingsInvalid");
    assert_eq!(found["status"]["replicaCounts"]["failed"], 2);
}

#[test]
#[ignore = "starts a cluster"]
fn failures_that_may_pass_and_those_that_do_not_are_told_apart() {
    let (stage, replicas) = Stage::with(cluster(), "classes", 1);
    let (passing, object) = stage.policy("passing");
    replicas[0].says(&object, unreachable());
    let found = stage.word(&passing, "Error");
    assert_eq!(
        (status_and_reason(&found, "Stalled").as_str(), status_and_reason(&found, "Reconciling").as_str()),
        ("False/Retrying", "True/Retrying")
    );
    assert_eq!(found["status"]["replicas"][0]["retryable"], true);
    let (lasting, object) = stage.policy("lasting");
    replicas[0].says(&object, refused(0, "no"));
    let found = stage.word(&lasting, "Error");
    assert_eq!(
        (status_and_reason(&found, "Stalled").as_str(), status_and_reason(&found, "Reconciling").as_str()),
        ("True/SettingsInvalid", "False/Idle")
    );
    assert_eq!(
        (&found["status"]["replicas"][0]["retryable"], &found["status"]["replicas"][0]["nextRetryTime"]),
        (&json!(false), &json!(null))
    );
}

#[test]
#[ignore = "starts a cluster"]
fn a_bad_update_goes_on_with_the_previous_generation_and_a_mended_one_recovers() {
    let (stage, replicas) = Stage::with(cluster(), "update", 1);
    let (policy, object) = stage.policy("labels");
    replicas[0].says(&object, Says::Current);
    stage.word(&policy, "Active");
    let object = stage.edit(&policy, "monitor");
    // Users without access to logs find the guest's own message in the status, and only there.
    replicas[0].says(&object, refused(1, "\u{1b}[31mthe token hunter2 is wrong\nlevel=error"));
    let found = stage.word(&policy, "ServingPrevious");
    assert_eq!(status_and_reason(&found, "Enforced"), "True/ServingPrevious");
    assert_eq!(
        (&found["status"]["lastServed"]["generation"], &found["status"]["observedGeneration"]),
        (&json!(1), &json!(2))
    );
    let words = condition(&found, "Degraded").unwrap()["message"].as_str().unwrap();
    assert!(words.contains("[31mthe token hunter2 is wrong level=error") && !words.contains('\u{1b}'), "{words}");
    let object = stage.edit(&policy, "protect");
    replicas[0].says(&object, Says::Current);
    let found = stage.word(&policy, "Active");
    let history: Vec<_> = found["status"]["history"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| (e["generation"].as_i64(), e["served"].as_bool()))
        .collect();
    assert_eq!(history, [(Some(3), Some(true)), (Some(2), Some(false)), (Some(1), Some(true))]);
    let number = |wanted: &str| stage.events(&object).iter().filter(|(reason, _)| reason == wanted).count();
    eventually_within(SOON, "Active of the first and of the third", || (number("Active") == 2).then_some(()));
    // The second generation has not recovered: another one took its place.
    assert_eq!(number("Recovered"), 0, "{:?}", stage.events(&object));
    let namespace = format!("--namespace={}", stage.namespace);
    let events = eventually_within(SOON, "the event of the bad update", || {
        let told = cluster().kubectl(["get", "events", &namespace, "--output=yaml"]).stdout;
        told.contains("SettingsInvalid").then_some(told)
    });
    assert!(!events.contains("hunter2"), "{events}");
    assert!(!replicas[0].pod.program(Program::Reporter).lines().concat().contains("hunter2"));
}

#[test]
#[ignore = "starts a cluster"]
fn success_logs_nothing() {
    let (stage, replicas) = Stage::with(cluster(), "silent", 1);
    stage.wait_for_holder();
    // The line is logged a moment after the reporter holds the Lease.
    let is_leader = |line: &String| line.contains("holds the Lease");
    eventually_within(SOON, "the line of the leader", || replicas[0].logs("INFO").iter().any(is_leader).then_some(()));
    // On a busy machine, a call may time out or the Lease may be lost. Lines about that are not about success.
    let is_of_failure = |line: &String| ["tried again", "able to", "Lease"].iter().any(|words| line.contains(words));
    let lines = || {
        let of = |level| replicas[0].logs(level).into_iter().filter(|line| !is_of_failure(line)).collect::<Vec<_>>();
        ["INFO", "WARN", "ERROR"].map(of)
    };
    let [before, ..] = lines();
    let (policy, object) = stage.policy("labels");
    replicas[0].says(&object, Says::Current);
    stage.settled(&policy, "Active");
    assert_eq!(lines(), [before, Vec::new(), Vec::new()]);
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r20_a_pod_whose_node_is_gone_does_not_count() {
    let (stage, replicas) = Stage::with(cluster(), "node", 2);
    let (policy, object) = stage.policy("labels");
    // The follower is lost, because row R15 is about the end of a leader.
    let (stays, lost) = stage.leader_and_follower(&replicas);
    stays.says(&object, Says::Current);
    lost.says(&object, unreachable());
    stage.word(&policy, "Degraded");
    lost.pod.lose_node();
    lost.pod.mark_not_ready();
    let found = stage.word(&policy, "Active");
    let counts = &found["status"]["replicaCounts"];
    assert_eq!((&found["status"]["summary"], &counts["expected"]), (&json!("1/1"), &json!(1)));
    assert_eq!((&counts["failed"], status_and_reason(&found, "Degraded").as_str()), (&json!(0), "False/AsExpected"));
    let entries = |found: &Value| -> Option<Vec<String>> {
        let entries = found["status"]["replicas"].as_array()?.iter();
        Some(entries.filter_map(|entry| entry["pod"].as_str().map(str::to_owned)).collect())
    };
    // The pod's object still exists, and so does its entry in the status.
    assert!(entries(&found).unwrap().contains(&lost.name().to_owned()), "{found:#}");
    never(Duration::from_secs(3), "a replica that counts again", || {
        let found = stage.installation.object(&policy)?;
        (found["status"]["summary"] != "1/1" || !entries(&found)?.contains(&lost.name().to_owned())).then_some(found)
    });
    lost.pod.delete_object();
    eventually_within(SOON, "the end of the entry", || {
        let found = stage.installation.object(&policy)?;
        (entries(&found)? == [stays.name()]).then_some(())
    });
    assert_eq!(status_and_reason(&stage.word(&policy, "Active"), "Degraded"), "False/AsExpected");
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r21_a_report_of_an_earlier_pod_of_the_same_name_does_not_count() {
    let stage = Stage::new(cluster(), "reuse");
    let other = stage.replica();
    let first = stage.replica_with(PodSetup::default().named("server-0"));
    stage.wait_ready();
    let (policy, object) = stage.policy("labels");
    other.says(&object, Says::Current);
    first.says(&object, Says::Current);
    stage.word(&policy, "Active");
    first.pod.lose_node();
    // Without an owner, the report outlives its pod; and the second pod cannot replace it.
    let path = stage.report_path("server-0");
    let api = stage.installation.api();
    api.patch(&path, &json!({ "metadata": { "ownerReferences": null } })).unwrap().expect("a report without an owner");
    first.pod.delete_object();
    let proxy = Proxy::start(cluster());
    proxy.rule(Rule::on("PATCH", "/replicareports/").hang());
    let setup = PodSetup::default().named("server-0").through(Program::Reporter, proxy.address());
    let second = stage.replica_with(setup);
    second.pod.wait_ready();
    let found = eventually_within(SOON, "the second pod in the status", || {
        let status = stage.installation.object(&policy)?["status"].clone();
        let entries = status["replicas"].as_array()?.clone();
        let entry = entries.into_iter().find(|entry| entry["podUID"] == second.pod.uid())?;
        (status["summary"] == "1/2").then_some(entry)
    });
    assert_eq!((&found["state"], &found["reason"]), (&json!("Unknown"), &json!("ReportStale")), "{found}");
    assert_eq!(stage.report("server-0").expect("it has no owner")["spec"]["podUID"], first.pod.uid());
    proxy.clear();
    second.says(&object, Says::Current);
    stage.word(&policy, "Active");
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r27_a_reporter_that_is_silent_makes_its_replica_unknown_whether_it_is_counted_or_not() {
    let stage = Stage::new(cluster(), "crash");
    let quick = || {
        let setup = PodSetup::default().flag(Program::Reporter, "--heartbeat", "1s");
        setup.flag(Program::Reporter, "--report-lifetime", "4s")
    };
    let replicas = [stage.replica_with(quick()), stage.replica_with(quick())];
    stage.wait_ready();
    let (policy, object) = stage.policy("labels");
    replicas.iter().for_each(|replica| replica.says(&object, Says::Current));
    stage.word(&policy, "Active");
    let (_, follower) = stage.leader_and_follower(&replicas);
    let unknown = |summary: &str| {
        eventually_within(SOON, &format!("an unknown replica and {summary}"), || {
            let found = stage.installation.object(&policy)?;
            let entries = found["status"]["replicas"].as_array()?;
            let entry = entries.iter().find(|entry| entry["pod"] == follower.name())?;
            let is_told = entry["state"] == "Unknown" && entry["reason"] == "ReportStale";
            (is_told && found["status"]["summary"] == summary).then(|| found.clone())
        })
    };

    // A container that does not run makes its pod unready, so the pod is not counted.
    follower.pod.stop(Program::Reporter);
    let found = unknown("1/1");
    assert_eq!(
        (status_and_reason(&found, "Ready").as_str(), status_and_reason(&found, "Degraded").as_str()),
        ("True/Active", "False/AsExpected")
    );
    follower.pod.start(Program::Reporter);
    eventually_within(SOON, "both replicas", || {
        stage.installation.object(&policy).filter(|found| found["status"]["summary"] == "2/2")
    });
    assert_eq!(status_and_reason(&stage.word(&policy, "Active"), "Degraded"), "False/AsExpected");

    // The API server does not learn that this pod is down, so it is counted.
    follower.pod.lose_node();
    let found = unknown("1/2");
    assert_eq!(
        (status_and_reason(&found, "Ready").as_str(), status_and_reason(&found, "Degraded").as_str()),
        ("False/Degraded", "True/ReportStale")
    );
    assert_eq!(found["status"]["replicaCounts"]["unknown"], 1);
}

#[test]
#[ignore = "starts a cluster"]
fn an_unchanged_status_is_never_written() {
    let stage = Stage::new(cluster(), "unchanged");
    let replica = stage.replica_with(PodSetup::default().flag(Program::Reporter, "--heartbeat", "300ms"));
    stage.wait_ready();
    let (policy, object) = stage.policy("labels");
    replica.says(&object, Says::Current);
    let version = stage.settled(&policy, "Active")["metadata"]["resourceVersion"].clone();
    let report = |()| stage.report(replica.name()).unwrap()["metadata"]["resourceVersion"].clone();
    let first = report(());
    never_lasting(Duration::from_secs(3), "a write", || {
        let found = stage.installation.object(&policy)?["metadata"]["resourceVersion"].clone();
        (found != version).then_some(found)
    });
    eventually_within(SOON, "a heartbeat", || (report(()) != first).then_some(()));
}
