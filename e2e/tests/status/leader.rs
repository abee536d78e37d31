//! The leader among reporters, and what happens when it ends.

use std::fs;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use portcullis_e2e::{
    POLICY_SERVER_ACCOUNT, PodSetup, Policy, Program, eventually_within, never, never_lasting, one_round_in_time,
};
use serde_json::{Value, json};

use crate::cluster;
use crate::stage::{Replica, SOON, Stage};
use crate::states::{Says, refused, unreachable};

/// How long a Lease is valid after its last renewal.
const LEASE: Duration = Duration::from_secs(15);

/// The number of statuses that a leader has to write at once, so that more than one late write would be noticed.
const POLICIES: usize = 5;

#[test]
#[ignore = "starts a cluster"]
fn fault_r03_two_reporters_never_overwrite_each_other() {
    let (stage, replicas) = Stage::with(cluster(), "two", 2);
    stage.wait_for_holder();
    let moves = || stage.installation.api().find(&stage.lease()).unwrap()["spec"]["leaseTransitions"].as_u64();
    let before = moves().unwrap_or(0);
    let (policy, object) = stage.policy("labels");
    replicas.iter().for_each(|replica| replica.says(&object, Says::Current));
    stage.word(&policy, "Active");
    // Others write to the same object in the meantime. No write is lost, neither theirs nor ours.
    for round in 0..10 {
        let says = |failed: bool| if failed { unreachable() } else { Says::Current };
        replicas[0].says(&object, says(round % 2 == 0));
        replicas[1].says(&object, says(round % 3 == 0));
        let patch = json!({ "metadata": { "annotations": { "round": round.to_string() } } });
        stage.installation.api().patch(&policy.path(), &patch).unwrap().expect("an annotation");
        stage.confirm(&policy);
    }
    replicas[0].says(&object, Says::Current);
    replicas[1].says(&object, unreachable());
    let found = stage.word(&policy, "Degraded");
    assert_eq!(found["status"]["replicas"].as_array().unwrap().len(), 2);
    assert_eq!(found["metadata"]["annotations"]["round"], "9");
    let writes: Vec<f64> =
        replicas.iter().map(|replica| replica.metric("portcullis_reporter_policy_status_writes_total")).collect();
    let writers = writes.iter().filter(|writes| **writes > 0.0).count() as u64;
    // If the machine stands still for as long as the Lease is valid, the other replica takes it.
    let most = 1 + moves().unwrap_or(0) - before;
    assert!((1..=most).contains(&writers), "one of them writes: {writes:?}");
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r15_a_leader_that_is_killed_is_followed_within_the_lease_and_two_seconds() {
    let (stage, replicas) = Stage::with(cluster(), "killed", 2);
    let (policy, object) = stage.policy("labels");
    replicas.iter().for_each(|replica| replica.says(&object, Says::Current));
    stage.word(&policy, "Active");
    one_round_in_time(|_| {
        let (leader, follower) = stage.leader_and_follower(&replicas);
        let killed = stage.installation.moment();
        leader.pod.stop(Program::Reporter);
        let next = || stage.holder().filter(|new| *new == follower.name());
        let in_time = stage.installation.recovers_since(&killed, "another leader", next);
        follower.says(&object, unreachable());
        eventually_within(SOON, "a status by the new leader", || {
            let found = stage.installation.object(&policy)?;
            (found["status"]["replicas"].to_string().contains("RegistryUnreachable")).then_some(())
        });
        // Restores the state for the next round.
        leader.pod.start(Program::Reporter);
        follower.says(&object, Says::Current);
        stage.word(&policy, "Active");
        stage.wait_ready();
        in_time.map(drop)
    });
}

#[test]
#[ignore = "starts a cluster"]
fn a_leader_that_ends_gives_the_lease_up() {
    let (stage, replicas) = Stage::with(cluster(), "ended", 2);
    let (leader, _) = stage.leader_and_follower(&replicas);
    let holder = leader.name();
    leader.pod.remove();
    // A Lease that is not given up stays valid for at least 10 s after the end.
    assert_ne!(stage.holder().as_deref(), Some(holder), "the Lease was not given up");
    eventually_within(SOON, "another leader", || stage.holder());
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r14_a_leader_that_was_stopped_and_goes_on_writes_nothing_wrong() {
    let (stage, replicas) = Stage::with(cluster(), "paused", 2);
    let policies: Vec<_> = (0..POLICIES).map(|number| stage.policy(&format!("labels-{number}"))).collect();
    let all_say = |replica: &Replica, says: &Says| {
        policies.iter().for_each(|(_, object)| replica.says(object, says.clone()));
    };
    replicas.iter().for_each(|replica| all_say(replica, &Says::Current));
    policies.iter().for_each(|(policy, _)| drop(stage.settled(policy, "Active")));
    let (leader, follower) = stage.leader_and_follower(&replicas);
    let written = || leader.metric("portcullis_reporter_policy_status_writes_total");
    // A call that is under way while the leader is stopped would be seen later, and tell nothing about its checks.
    let before = eventually_within(SOON, "statuses that nobody writes", || {
        let before = written();
        thread::sleep(Duration::from_secs(2));
        (written() == before).then_some(before)
    });
    let paused = Instant::now();
    leader.pod.pause(Program::Reporter);
    eventually_within(SOON, "another leader", || stage.holder().filter(|new| *new == follower.name()));
    // The states of both replicas change in the meantime, so that the paused leader has many statuses to write when it resumes.
    all_say(follower, &unreachable());
    all_say(leader, &refused(0, "no such label"));
    let is_new = |status: &Value| {
        let entries = status["replicas"].as_array().cloned().unwrap_or_default();
        entries.iter().any(|entry| entry["pod"] == follower.name() && entry["reason"] == "RegistryUnreachable")
    };
    let statuses = || -> Vec<Value> {
        policies.iter().map(|(policy, _)| stage.installation.object(policy).unwrap()["status"].clone()).collect()
    };
    eventually_within(SOON, "statuses by the new leader", || statuses().iter().all(is_new).then_some(()));
    // The time of the row, which is long after the Lease has expired.
    thread::sleep((LEASE * 2).saturating_sub(paused.elapsed()));
    let resumed = SystemTime::now();
    leader.pod.resume(Program::Reporter);
    never(Duration::from_secs(6), "a step back", || statuses().into_iter().find(|status| !is_new(status)));
    assert_eq!(stage.holder().as_deref(), Some(follower.name()));
    eventually_within(SOON, "the end of its leadership", || {
        (leader.metric("portcullis_reporter_leader") == 0.0).then_some(())
    });

    // It may still write its own report, so in the end the statuses include both replicas.
    for (policy, _) in &policies {
        eventually_within(SOON, "what both replicas do", || {
            let found = stage.word(policy, "Error");
            assert_eq!(found["status"]["observedGeneration"], 1);
            (found["status"]["replicaCounts"]["failed"] == 2).then_some(())
        });
    }
    assert!(written() <= before + 1.0, "at most one late write: {before} became {}", written());
    // Writes that the API server refused count as well.
    let tried = stage.status_writes(leader.name(), resumed);
    assert!(tried.len() <= 1, "late writes of statuses were tried: {tried:#?}");
    assert!(!stage.status_writes(follower.name(), resumed).is_empty(), "the audit log tells who writes");
}

/// The leader's calls that a fail point can hold back.
const CALLS: [&str; 3] = ["status_write", "event_write", "report_removal"];

/// How long they are held back. A leader relies on its Lease for eight seconds at any time, so they are due before that time is over, and a
/// leader that goes on after a stop finds both at once.
const HELD_BACK: &str = "8s";

/// How old a report is when the leader removes it if its pod is gone.
const LIFETIME: Duration = Duration::from_secs(10);

#[test]
#[ignore = "starts a cluster"]
fn fault_r14_a_leader_that_was_stopped_just_before_its_writes_makes_none_of_them() {
    let (folder, stage) = (tempfile::tempdir().unwrap(), Stage::new(cluster(), "held-back"));
    let file = |call: &str| folder.path().join(call);
    let hold_back = |call: &str| fs::write(file(call), "").unwrap();
    let points = CALLS.map(|call| format!("reporter.before_{call}=delay({HELD_BACK})@{}", file(call).display()));
    let replicas = [(); 2].map(|()| {
        let setup = PodSetup::default().fail_points(Program::Reporter, &points.join(";"));
        let setup = setup.flag(Program::Reporter, "--heartbeat", "2s");
        stage.replica_with(setup.flag(Program::Reporter, "--report-lifetime", humantime::format_duration(LIFETIME)))
    });
    stage.wait_ready();
    let policies: Vec<_> = (0..POLICIES).map(|number| stage.policy(&format!("labels-{number}"))).collect();
    let tells_of_failure = |policy: &Policy, pod: &str| {
        let status = stage.installation.object(policy).unwrap()["status"].clone();
        let entries = status["replicas"].as_array().cloned().unwrap_or_default();
        entries.iter().any(|entry| entry["pod"] == pod && entry["reason"] == "RegistryUnreachable")
    };
    one_round_in_time(|round| {
        let (leader, follower) = stage.leader_and_follower(&replicas);
        for (_, object) in &policies {
            replicas.iter().for_each(|replica| replica.says(object, Says::Current));
        }
        policies.iter().for_each(|(policy, _)| drop(stage.settled(policy, "Active")));

        // The leader has to remove a report, then to make an event of the first policy, then to write the statuses of the others.
        let (first, others) = policies.split_first().unwrap();
        hold_back("report_removal");
        let dead = stage.leave_report(leader.name(), &format!("dead-{round}"));
        never_lasting(LIFETIME + Duration::from_secs(2), "the removal", || stage.report(&dead).is_none().then_some(()));
        let events = || {
            let events = stage.installation.all_events(&first.0);
            events.iter().map(|event| event["metadata"]["resourceVersion"].clone()).collect::<Vec<_>>()
        };
        let before = events();
        hold_back("event_write");
        leader.says(&first.1, unreachable());
        let is_written = || tells_of_failure(&first.0, leader.name()).then_some(());
        eventually_within(SOON, "the status of the first policy", is_written);
        hold_back("status_write");
        others.iter().for_each(|(_, object)| leader.says(object, unreachable()));
        eventually_within(SOON, "a report about all of them", || {
            let report = stage.report(leader.name())?["spec"].to_string();
            (report.matches("RegistryUnreachable").count() == POLICIES).then_some(())
        });
        // The leader sees its own report a moment later.
        thread::sleep(Duration::from_secs(1));
        let paused = (Instant::now(), SystemTime::now());
        leader.pod.pause(Program::Reporter);
        CALLS.iter().for_each(|call| fs::remove_file(file(call)).unwrap());
        let is_too_late = stage.report(&dead).is_none()
            || events() != before
            || others.iter().any(|(policy, _)| tells_of_failure(policy, leader.name()));

        eventually_within(SOON, "another leader", || stage.holder().filter(|new| *new == follower.name()));
        policies.iter().for_each(|(_, object)| follower.says(object, unreachable()));
        eventually_within(SOON, "statuses by the new leader", || {
            policies.iter().all(|(policy, _)| tells_of_failure(policy, follower.name())).then_some(())
        });
        eventually_within(SOON, "the removal by the new leader", || stage.report(&dead).is_none().then_some(()));
        thread::sleep((LEASE * 2).saturating_sub(paused.0.elapsed()));
        let resumed = SystemTime::now();
        leader.pod.resume(Program::Reporter);
        eventually_within(SOON, "the end of its leadership", || {
            (leader.metric("portcullis_reporter_leader") == 0.0).then_some(())
        });
        // What it has called before is in the audit log by the time at which a later call is there.
        let ended = SystemTime::now();
        let is_report = |call: &Value| call["objectRef"]["resource"] == "replicareports";
        let is_own_report = |call: &Value| is_report(call) && call["objectRef"]["name"] == leader.name();
        eventually_within(SOON, "a report of its own after that", || {
            stage.changes_by(leader.name(), ended).iter().any(is_own_report).then_some(())
        });
        let mut late = stage.changes_by(leader.name(), resumed);
        late.retain(|call| !is_own_report(call) && call["objectRef"]["resource"] != "leases");
        assert!(late.is_empty(), "calls of a leader that does not lead any more: {late:#?}");
        assert_eq!(stage.holder().as_deref(), Some(follower.name()));
        let by_the_next = stage.changes_by(follower.name(), paused.1);
        for resource in ["policies", "events", "replicareports"] {
            let is_one = |call: &Value| call["objectRef"]["resource"] == resource && !is_own_report(call);
            assert!(by_the_next.iter().any(is_one), "the audit log has the next leader's calls for {resource}");
        }
        for (policy, _) in &policies {
            eventually_within(SOON, "what both replicas do", || {
                (stage.word(policy, "Error")["status"]["replicaCounts"]["failed"] == 2).then_some(())
            });
        }
        if is_too_late { Err("the leader was stopped after one of its writes".to_owned()) } else { Ok(()) }
    });
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r17_a_lease_that_is_deleted_emptied_or_edited_is_taken_again_by_one() {
    let (stage, replicas) = Stage::with(cluster(), "lease", 2);
    stage.wait_for_holder();
    let api = stage.installation.api();
    let one_leads = || {
        eventually_within(SOON, "one leader", || {
            let leading: Vec<&str> = replicas
                .iter()
                .filter(|replica| replica.metric("portcullis_reporter_leader") == 1.0)
                .map(|replica| replica.name())
                .collect();
            (leading.len() == 1 && stage.holder().as_deref() == Some(leading[0])).then_some(())
        });
    };
    one_leads();
    api.delete(&stage.lease(), None).unwrap().expect("the end of the Lease");
    one_leads();
    api.patch(&stage.lease(), &json!({ "spec": null })).unwrap().expect("an empty Lease");
    one_leads();
    let edit = json!({ "spec": { "holderIdentity": "nobody", "leaseDurationSeconds": 1_000_000 } });
    api.patch(&stage.lease(), &edit).unwrap().expect("an edited Lease");
    one_leads();
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r18_without_rights_on_leases_reports_are_written_and_it_is_told_once() {
    let stage = Stage::new(cluster(), "no-lease");
    let namespace = stage.installation.namespace().to_owned();
    let role = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles/portcullis-reporter-leader");
    stage.installation.api().delete(&role, None).unwrap().expect("rights withdrawn");
    // An API server needs a moment to notice that.
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": { "user": format!("system:serviceaccount:{namespace}:{POLICY_SERVER_ACCOUNT}"), "resourceAttributes": {
            "verb": "create", "group": "coordination.k8s.io", "resource": "leases", "namespace": namespace,
        } },
    });
    eventually_within(SOON, "the end of the rights", || {
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let answer = stage.installation.api().create(path, &review).unwrap().expect("a review");
        (answer["status"]["allowed"] == false).then_some(())
    });
    let replica = stage.replica();
    replica.wait_ready();
    let (policy, object) = stage.policy("labels");
    replica.says(&object, Says::Current);
    eventually_within(SOON, "a report", || stage.report(replica.name()));
    let warnings = || replica.warnings("hold the Lease");
    eventually_within(SOON, "a log line", || (warnings().len() == 1).then_some(()));
    let failures = || replica.metric("portcullis_reporter_api_failures_total{call=\"hold the Lease\",code=\"403\"}");
    let counted = failures();
    eventually_within(SOON, "a second try", || (failures() > counted).then_some(()));
    assert_eq!(warnings().len(), 1, "{:?}", warnings());
    assert_eq!(stage.installation.object(&policy).unwrap()["status"]["summary"], json!(null));
}
