//! Policies and statuses that others delete, create again or edit.

use std::time::{Duration, SystemTime};

use portcullis_e2e::{PodSetup, Program, Proxy, Rule, eventually_within, never, never_lasting, one_round_in_time};
use serde_json::{Value, json};

use crate::cluster;
use crate::stage::{HELD, Replica, SOON, Stage, status_and_reason};
use crate::states::{Says, unreachable};

#[test]
#[ignore = "starts a cluster"]
fn fault_r22_a_delayed_write_does_not_hit_a_namesake_made_later() {
    let proxy = Proxy::start(cluster());
    let stage = Stage::new(cluster(), "namesake");
    let replica = stage.replica_with(PodSetup::default().through(Program::Reporter, proxy.address()));
    stage.wait_ready();
    stage.wait_for_holder();
    let (policy, object) = stage.policy("labels");
    replica.says(&object, unreachable());
    stage.settled(&policy, "Error");
    let writes = || proxy.requests_of("PATCH", "/status?");
    let before = writes().len();
    proxy.rule(Rule::on("PATCH", "/status?").times(1).after(HELD));
    replica.says(&object, Says::Current);
    eventually_within(SOON, "the write that is held", || (writes().len() > before).then_some(()));
    stage.installation.api().delete(&policy.path(), None).unwrap().expect("the end of the first");
    let (_, second) = stage.policy("labels");
    assert_ne!(second["metadata"]["uid"], object["metadata"]["uid"]);
    assert_eq!(writes()[before].status, None, "the write for the first policy is still under way");
    let refused = eventually_within(SOON, "the answer to this write", || writes()[before].status);
    assert!(matches!(refused, 404 | 409), "{refused}");
    never(Duration::from_secs(3), "a status of the first on the second", || {
        let status = stage.installation.object(&policy)?["status"].clone();
        (!status["lastServed"].is_null()
            || status_and_reason(&json!({ "status": status }), "Ready").starts_with("True"))
        .then_some(status)
    });
    replica.says(&second, Says::Current);
    stage.word(&policy, "Active");
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r23_a_policy_deleted_during_a_write_ends_the_matter() {
    let proxy = Proxy::start(cluster());
    let stage = Stage::new(cluster(), "vanished");
    let replica = stage.replica_with(PodSetup::default().through(Program::Reporter, proxy.address()));
    stage.wait_ready();
    stage.wait_for_holder();
    proxy.rule(Rule::on("PATCH", "/status?").times(1).after(HELD));
    let writes = || proxy.requests_of("PATCH", "/status?");
    let (policy, _) = stage.policy("labels");
    eventually_within(SOON, "the write that is held", || (!writes().is_empty()).then_some(()));
    stage.installation.api().delete(&policy.path(), None).unwrap().expect("the end");
    eventually_within(SOON, "the end of the policy", || stage.installation.object(&policy).is_none().then_some(()));
    assert_eq!(writes()[0].status, None, "the policy has gone during the write");
    eventually_within(SOON, "its answer", || writes()[0].status.is_some().then_some(()));
    let answers = || writes().iter().map(|write| write.status).collect::<Vec<_>>();
    // The first retry after a refusal would come within a second.
    never(Duration::from_secs(8), "a retry", || Some(answers()).filter(|answers| *answers != [Some(404)]));
    // There must be no failures with 404 or 409. Calls that timed out do not count here.
    let failures = replica.metric("portcullis_reporter_api_failures_total{call=\"write status\",code=\"40");
    assert_eq!((failures, replica.warnings("write status")), (0.0, Vec::new()));
    let (other, object) = stage.policy("other");
    replica.says(&object, Says::Current);
    stage.word(&other, "Active");
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r25_an_edited_status_is_repaired_and_foreign_conditions_stay() {
    let (stage, replicas) = Stage::with(cluster(), "edited", 1);
    let (policy, object) = stage.policy("labels");
    replicas[0].says(&object, Says::Current);
    let before = stage.settled(&policy, "Active")["status"].clone();
    let mut edited = before.clone();
    edited["summary"] = json!("9/9");
    edited["lastServed"] = Value::Null;
    edited["observedGeneration"] = json!(99);
    edited["replicas"] =
        json!([{ "pod": "forged", "podUID": "x", "state": "Failed", "generation": 0, "message": "forged" }]);
    let conditions = edited["conditions"].as_array_mut().unwrap();
    conditions.retain(|condition| condition["type"] != "Degraded");
    conditions.iter_mut().for_each(|condition| condition["message"] = json!("forged"));
    conditions.push(json!({
        "type": "Scanned", "status": "True", "reason": "ByTheTest", "message": "", "observedGeneration": 1,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }));
    let api = stage.installation.api();
    let ours = |status: &Value| {
        let mut status = status.clone();
        let conditions = status["conditions"].as_array_mut().unwrap();
        conditions.retain(|condition| condition["type"] != "Scanned" && condition["type"] != "WebhookConfigured");
        conditions.sort_by_key(|condition| condition["type"].to_string());
        status
    };
    one_round_in_time(|_| {
        let edit = json!({ "status": edited });
        api.patch(&format!("{}/status", policy.path()), &edit).unwrap().expect("the edit");
        let repaired = stage.installation.recovers("the repair", || {
            let status = stage.installation.object(&policy)?["status"].clone();
            (ours(&status) == ours(&before)).then_some(status)
        });
        let conditions = &stage.installation.object(&policy).unwrap()["status"]["conditions"];
        assert!(conditions.to_string().contains("ByTheTest"), "{conditions}");
        repaired.map(drop)
    });
    let version = || stage.installation.object(&policy).unwrap()["metadata"]["resourceVersion"].clone();
    let settled = stage.settled(&policy, "Active")["metadata"]["resourceVersion"].clone();
    never_lasting(Duration::from_secs(2), "a write loop", || (version() != settled).then_some(()));
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r26_the_number_of_field_managers_stays_the_same() {
    let stage = Stage::new(cluster(), "managers");
    let first = stage.replica();
    stage.wait_ready();
    let (policy, object) = stage.policy("labels");
    first.says(&object, Says::Current);
    stage.word(&policy, "Active");
    // The name of this event is the same for every leader, so each leader changes the same series.
    let event = || stage.installation.events(&policy, "EvaluationFailing").pop();
    let raise_series = |leader: &Replica| {
        let version = |event: &Value| event["metadata"]["resourceVersion"].clone();
        let before = event().map(|event| version(&event));
        eventually_within(SOON, "a series that the leader has changed", || {
            for says in [Says::Current, Says::Failing("EvaluationTrapped")] {
                leader.says(&object, says.clone());
                eventually_within(SOON, "its report", || {
                    let failing = stage.report(leader.name())?["spec"]["failing"].clone();
                    (failing.as_array().is_some_and(|all| !all.is_empty()) == (says != Says::Current)).then_some(())
                });
            }
            let event = event()?;
            (event["series"].is_object() && Some(version(&event)) != before).then_some(())
        });
    };
    let all_managers = || {
        let lease = stage.installation.api().find(&stage.lease());
        [stage.installation.object(&policy), lease, event()].map(|object| managers(&object.expect("it is there")))
    };
    raise_series(&first);
    let before = all_managers();
    let mut last = first;
    for _ in 0..3 {
        let next = stage.replica();
        next.says(&object, Says::Current);
        next.pod.wait_ready();
        // The leader is removed, and another replica leads.
        last.pod.remove();
        eventually_within(SOON, "the next leader", || (stage.holder().as_deref() == Some(next.name())).then_some(()));
        eventually_within(SOON, "its status", || {
            let status = stage.installation.object(&policy)?["status"].clone();
            (status["replicas"].to_string().contains(next.name()) && status["summary"] == "1/1").then_some(())
        });
        raise_series(&next);
        assert_eq!(all_managers(), before, "of the policy, the Lease and the event");
        last = next;
    }
}

/// The field managers of an object, each with its kind of call.
fn managers(object: &Value) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array().expect("field managers");
    let mut managers: Vec<String> = entries
        .iter()
        .map(|entry| format!("{} {} {}", entry["manager"], entry["operation"], entry["subresource"]))
        .collect();
    managers.sort();
    managers
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r31_a_terminating_namespace_ends() {
    let (stage, replicas) = Stage::with(cluster(), "terminating", 1);
    let (policy, object) = stage.policy("labels");
    replicas[0].says(&object, Says::Current);
    stage.word(&policy, "Active");
    let path = format!("/api/v1/namespaces/{}", stage.namespace);
    stage.installation.api().delete(&path, None).unwrap().expect("the end of the namespace");
    replicas[0].says(&object, unreachable());
    eventually_within(SOON, "the end of the namespace", || {
        stage.installation.api().find(&path).is_none().then_some(())
    });
    let gone = SystemTime::now();
    std::thread::sleep(Duration::from_secs(8));
    // One may have been under way.
    let late = stage.status_writes(replicas[0].name(), gone);
    assert!(late.len() <= 1, "writes have not ended: {late:#?}");
    replicas[0].wait_ready();
}

#[test]
#[ignore = "starts a cluster"]
fn a_status_that_cannot_be_read_stops_nothing() {
    let (stage, replicas) = Stage::with(cluster(), "odd", 1);
    // Such a status may come from a newer release before a rollback, or from another program.
    let (odd, object) = stage.policy("odd");
    let conditions = json!([{
        "type": "Novelty", "status": "True", "reason": "New", "message": "", "observedGeneration": 1,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]);
    let body = json!({ "status": { "conditions": conditions } });
    stage.installation.api().patch(&format!("{}/status", odd.path()), &body).unwrap().expect("an odd status");
    stage.confirm(&odd);
    replicas[0].says(&object, Says::Current);
    let found = stage.word(&odd, "Active");
    assert_eq!(status_and_reason(&found, "Novelty"), "True/New");
}
