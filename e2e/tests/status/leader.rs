//! The leader among reporters, and what happens when it ends.

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use portcullis_e2e::{POLICY_SERVER_ACCOUNT, Program, eventually_within, never, one_round_in_time};
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
