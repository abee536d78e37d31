//! Evaluations that fail too often cause one event and do not change conditions. Control characters in messages are removed.

use std::time::Duration;

use portcullis_e2e::{Program, eventually_within, never_lasting};

use crate::cluster;
use crate::stage::{SOON, Stage, status_and_reason};
use crate::states::Says;

#[test]
#[ignore = "starts a cluster"]
fn failing_evaluations_are_one_event_whoever_leads_and_change_no_condition() {
    let (stage, replicas) = Stage::with(cluster(), "failing", 2);
    let (policy, object) = stage.policy("labels");
    replicas.iter().for_each(|replica| replica.says(&object, Says::Current));
    let before = stage.settled(&policy, "Active");
    let failing = || {
        let events = stage.events(&object);
        events.into_iter().filter(|(reason, _)| reason == "EvaluationFailing").collect::<Vec<_>>()
    };

    replicas.iter().for_each(|replica| replica.says(&object, Says::Failing("EvaluationTrapped")));
    eventually_within(SOON, "the event", || (failing().len() == 1).then_some(()));
    let found = stage.word(&policy, "Active");
    assert_eq!(found["status"]["conditions"], before["status"]["conditions"]);
    assert_eq!(status_and_reason(&found, "Degraded"), "False/AsExpected");

    let holder = stage.wait_for_holder();
    let leader = replicas.iter().find(|replica| replica.name() == holder).unwrap();
    leader.pod.stop(Program::Reporter);
    eventually_within(SOON, "another leader", || stage.holder().filter(|new| *new != holder));
    never_lasting(Duration::from_secs(5), "a second event", || Some(failing()).filter(|events| events.len() != 1));
}

#[test]
#[ignore = "starts a cluster"]
fn kubectl_describe_tells_what_a_module_declares_and_its_policy_does_not_grant_until_it_does() {
    let (stage, replicas) = Stage::with(cluster(), "differs", 2);
    let (policy, object) = stage.policy("asks");
    let words = "the module declares oci/v1/verify, and the policy does not grant it";
    replicas.iter().for_each(|replica| replica.says(&object, Says::Differs(words)));
    stage.word(&policy, "Active");
    let is = |wanted: &'static str| {
        let found = || {
            Some(stage.word(&policy, "Active")).filter(|found| status_and_reason(found, "MetadataMatched") == wanted)
        };
        eventually_within(SOON, wanted, found)
    };
    is("False/CapabilityNotGranted");
    let shown = stage.describe(&policy);
    assert!(shown.contains(words) && shown.contains("MetadataMatched"), "{shown}");
    replicas.iter().for_each(|replica| replica.says(&object, Says::Current));
    is("True/AsExpected");
    assert!(!stage.describe(&policy).contains(words));
}

#[test]
#[ignore = "starts a cluster"]
fn fault_x09_what_a_stranger_says_is_clean_in_status_description_events_and_logs() {
    let (stage, replicas) = Stage::with(cluster(), "unclean", 1);
    let (policy, object) = stage.policy("labels");
    replicas[0].says(&object, Says::Current);
    stage.word(&policy, "Active");
    let words = "no such tag\u{1b}[31m\r\n{\"level\":\"ERROR\"}\u{7}\u{202e}<b>";
    replicas[0].says(&object, Says::Failed(0, "NotFound", words.to_owned(), false));
    let found = stage.word(&policy, "Error");
    let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", stage.namespace);
    let events = eventually_within(SOON, "the event", || {
        stage.installation.api().list(&path).into_iter().find(|event| event["reason"] == "NotFound")
    });
    let status = found["status"].to_string();
    assert!(status.contains("no such tag") && status.contains("<b>"), "markup is text like any other: {status}");
    for (what, text) in [("status", status), ("event", events.to_string())] {
        // These are the escapes of JSON.
        for unclean in ["\\u00", "\\r", "\\n{", "\u{202e}"] {
            assert!(!text.contains(unclean), "{what}: {unclean:?} in {text}");
        }
    }
    let shown = stage.describe(&policy);
    assert!(shown.contains("no such tag"), "{shown}");
    let is_unclean = |letter: char| (letter.is_control() && letter != '\n') || letter == '\u{202e}';
    assert!(!shown.contains(is_unclean) && !shown.contains("\n{"), "{shown:?}");
    for line in replicas[0].logs("ERROR") {
        assert!(!line.contains("no such tag"), "a line of the log is forged: {line}");
    }
    for line in replicas[0].pod.program(Program::Reporter).lines() {
        assert!(!line.starts_with("{\"level\":\"ERROR\"}"), "a line of the log is forged: {line:?}");
        assert!(!line.contains(is_unclean), "the log: {line:?}");
        // JSON has escapes for what must not be in its texts either.
        assert!(!line.contains("\\u00") && !line.contains("\\n{"), "the log: {line:?}");
    }
}
