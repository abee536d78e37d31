//! If a policy does not grant what the metadata of its module declares, the status says so before the first request.

use portcullis_tests::{Folder, Pod, Policy, eventually};
use serde_json::{Value, json};

/// The reason of the condition Ready, and the message of MetadataMatched.
fn ready_and_message(pod: &Pod, policy: &Policy) -> (String, String) {
    let status = pod.status(&policy.id()).expect("a status");
    let conditions = status["status"]["conditions"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let ready = conditions.clone().find(|found| found["type"] == "Ready").expect("it is there");
    let found = conditions.clone().find(|found| found["type"] == "MetadataMatched").expect("it is there");
    (text(&ready["reason"]), text(&found["message"]))
}

#[test]
fn promise_what_a_module_declares_and_its_policy_does_not_grant_is_told_before_a_request() {
    let folder = Folder::with_canary();
    let asks = |grants: &[&str]| {
        let policy = Policy::cluster("asks").example("host-capabilities").settings(json!({"calls": []}));
        policy.spec("hostCapabilities", json!(grants))
    };
    let team = Policy::namespaced("team", "asks").example("host-capabilities").settings(json!({"calls": []}));
    let team = team.spec("hostCapabilities", json!(["*"]));
    let plain = || Policy::cluster("plain").guest("always_accept");
    let (some, all) = (asks(&["oci/*"]), asks(&["oci/*", "net/*", "crypto/*", "kubernetes/*"]));
    folder.put(&some);
    folder.put(&team);
    folder.put(&plain().mutating());
    let pod = Pod::on(&folder).start();

    pod.wait_condition(&some.id(), "Ready", "True", "Active");
    pod.wait_condition(&some.id(), "MetadataMatched", "False", "CapabilityNotGranted");
    let (ready, message) = ready_and_message(&pod, &some);
    assert_eq!(ready, "Active", "it answers all the same");
    let words = "the module declares net/*, crypto/*, kubernetes/*, and the policy does not grant it";
    assert!(message.starts_with(words) && message.contains("spec.hostCapabilities"), "{message}");
    // If the installation does not allow a capability, the message names the setting that does.
    pod.wait_condition(&team.id(), "MetadataMatched", "False", "CapabilityUnavailable");
    let (_, message) = ready_and_message(&pod, &team);
    assert!(message.starts_with("oci/*: ") && message.contains("--namespaced-capability"), "{message}");
    pod.wait_condition(&plain().id(), "MetadataMatched", "False", "MutatingDiffers");

    // A grant ends this.
    folder.put(&all);
    folder.put(&plain());
    pod.wait_current(&all.id(), 2);
    pod.wait_condition(&plain().id(), "MetadataMatched", "True", "AsExpected");
    eventually("the status to know of the grants", || {
        (!ready_and_message(&pod, &all).1.contains("does not grant")).then_some(())
    });
    folder.put(&plain().on("configmaps"));
    pod.wait_condition(&plain().id(), "MetadataMatched", "False", "RulesDiffer");
    // A restarted loader reports the same, which it reads from the volume.
    pod.loader().kill();
    pod.loader().start_again();
    pod.wait_condition(&plain().id(), "MetadataMatched", "False", "RulesDiffer");
}
