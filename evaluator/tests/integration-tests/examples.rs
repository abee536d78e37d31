//! The policies that a newcomer starts with.

use portcullis_contract::{ExecutionMode, Reason};

use crate::rig::{Policy, Rig, file, request};

const ID: &str = "cluster/a";

fn example(name: &str) -> Policy {
    Policy::module(ID, &file(&format!("examples/modules/{name}.wasm")), ExecutionMode::KubewardenWapc)
}

#[tokio::test]
async fn privileged_containers_are_forbidden() {
    let rig = Rig::start();
    rig.apply(example("no-privileged")).await;
    for name in ["pod-ok", "deployment-ok", "pod-delete"] {
        let verdict = rig.ask(ID, &request(name)).await.unwrap();
        assert!(verdict.accepted, "{name}: {verdict:?}");
    }
    for name in ["pod-privileged", "deployment-privileged"] {
        let verdict = rig.ask(ID, &request(name)).await.unwrap();
        assert!(!verdict.accepted && verdict.message.is_some_and(|text| text.contains("privileged")), "{name}");
    }
}

#[tokio::test]
async fn missing_resources_are_added() {
    let rig = Rig::start();
    rig.apply(example("default-resources").settings(r#"{"cpu":"100m","memory":"128Mi"}"#)).await;
    let verdict = rig.ask(ID, &request("pod-without-resources")).await.unwrap();
    assert!(verdict.accepted && verdict.mutated_object.is_some());
    assert!(rig.ask(ID, &request("pod-ok")).await.unwrap().mutated_object.is_none());
}

#[tokio::test]
async fn settings_of_the_wrong_form_are_refused_by_the_guest() {
    let (reason, text) = Rig::start().refusal(example("required-labels").settings(r#"{"labels":"owner"}"#)).await;
    assert_eq!(reason, Reason::SettingsInvalid, "{text}");
}
