//! A Kubewarden `policies.yml` runs unchanged, under its own ids.

use std::fs;

use portcullis_contract::Reason;
use portcullis_tests::{Folder, Pod, PodSetup, Review, Verdict, eventually, guest};
use serde_json::{Value, json};

/// Writes a `policies.yml` and returns its path.
fn write(folder: &Folder, policies: &Value) -> String {
    let text = portcullis_yaml::write(policies).expect("it is YAML");
    folder.write("kubewarden/policies.yml", text);
    folder.path("kubewarden/policies.yml").display().to_string()
}

/// Writes a module of the examples or of `guests/wat` beside `policies.yml`, and returns its address.
fn module(folder: &Folder, name: &str) -> String {
    let kept = crate::tool::examples().join(format!("modules/{name}.wasm"));
    let bytes = fs::read(kept).unwrap_or_else(|_| guest(name));
    folder.write(&format!("kubewarden/{name}.wasm"), bytes);
    format!("file://{}", folder.path(&format!("kubewarden/{name}.wasm")).display())
}

fn pod(folder: &Folder, file: &str) -> PodSetup {
    Pod::on(folder).loader("--policies", file).loader("--module-root", folder.path("kubewarden").display())
}

#[test]
fn promise_a_policies_yml_runs_under_its_own_ids() {
    let folder = Folder::empty();
    let file = write(
        &folder,
        &json!({
            "clusterwide-no-privileged": {
                "namespacedName": {"Namespace": "", "Name": "no-privileged"},
                "module": module(&folder, "no-privileged"), "policyMode": "protect", "allowedToMutate": false, "settings": null,
            },
            "namespaced-team-a-labels": {
                "module": module(&folder, "required-labels"), "settings": {"labels": ["owner"]}, "message": "say whose it is",
            },
            "clusterwide-watch": {"module": module(&folder, "always_deny"), "policyMode": "monitor"},
            "clusterwide-resources": {
                "module": module(&folder, "default-resources"), "allowedToMutate": true,
                "settings": {"cpu": "100m", "memory": "64Mi"},
            },
            "clusterwide-may-not": {"module": module(&folder, "mutates_label")},
            "clusterwide-traps": {"module": module(&folder, "guest_error")},
            "clusterwide-loops": {"module": module(&folder, "endless_loop"), "timeoutEvalSeconds": 2},
            "Mixed_Case.id": {"module": module(&folder, "always_accept")},
        }),
    );
    let pod = pod(&folder, &file).evaluator("--audit", "on").start();
    let ask = |id: &str, review: &Review| -> Verdict {
        pod.wait_current(id, 1);
        pod.ask(id, review).verdict()
    };

    let verdict = ask("clusterwide-no-privileged", &Review::pod().privileged());
    assert_eq!(verdict.message, "privileged containers are not allowed: container web");
    assert!(ask("clusterwide-no-privileged", &Review::pod()).allowed);
    let verdict = ask("namespaced-team-a-labels", &Review::pod());
    assert_eq!(verdict.message, "say whose it is");
    assert_eq!(verdict.details["causes"][0]["message"], "missing labels: owner");
    let verdict = ask("clusterwide-watch", &Review::pod());
    assert!(verdict.allowed && verdict.raw["status"].is_null(), "{verdict:?}");
    assert!(ask("Mixed_Case.id", &Review::pod()).allowed);

    let review = Review::small_pod();
    let verdict = ask("clusterwide-resources", &review);
    let object = verdict.patched(review.object());
    assert_eq!(object["spec"]["containers"][0]["resources"]["requests"]["cpu"], "100m", "{object}");
    assert_eq!(
        ask("clusterwide-may-not", &review).message,
        "Request rejected by policy clusterwide-may-not. The policy attempted to mutate the request, but it is currently \
         configured to not allow mutations."
    );

    // Under these ids the messages are exactly those of Kubewarden.
    for (id, text) in [
        ("clusterwide-traps", "internal server error: Guest call failure: the guest gave up"),
        ("clusterwide-loops", "Policy execution interrupted because it exceeded the allowed execution time"),
    ] {
        let verdict = ask(id, &Review::pod());
        assert_eq!((verdict.code, verdict.message.as_str()), (500, text));
    }
    let audit = pod.client().post("/audit/clusterwide-watch", Review::pod().bytes()).expect("answers");
    assert!(!audit.verdict().allowed, "an audit tells what monitor mode hides: {audit:?}");
    let unknown = pod.client().try_ask("clusterwide-unknown", &Review::pod()).expect("answers");
    assert_eq!(unknown.status, 404);
    assert_eq!(unknown.json(), json!({"message": "unknown policy: clusterwide-unknown", "status": 404}));
    // A policy's status has its id as the name.
    pod.wait_condition("clusterwide-no-privileged", "Ready", "True", "Active");
}

#[test]
fn promise_a_policies_yml_is_watched_and_one_bad_entry_harms_no_other() {
    let folder = Folder::empty();
    let policies = |label: &str| {
        json!({
            "labels": {"module": module(&folder, "required-labels"), "settings": {"labels": [label]}},
            "broken": {"module": module(&folder, "required-labels"), "settings": {"labels": []}},
            "absent": {"module": format!("{}-not", module(&folder, "required-labels"))},
            "of/another/kind": {"module": module(&folder, "always_accept")},
        })
    };
    let file = write(&folder, &policies("owner"));
    let pod = pod(&folder, &file).start();
    pod.wait_current("labels", 1);
    assert_eq!(pod.ask("labels", &Review::pod()).verdict().message, "missing labels: owner");
    pod.assert_unserved("broken", Reason::SettingsInvalid);
    pod.assert_unserved("absent", Reason::NotFound);
    let problems =
        eventually("the problem to be told", || Some(pod.loader_state()?.problems).filter(|all| !all.is_empty()));
    assert!(problems.iter().any(|problem| problem.message.contains("of/another/kind")), "{problems:?}");

    write(&folder, &policies("stage"));
    pod.wait_current("labels", 2);
    assert_eq!(pod.ask("labels", &Review::pod()).verdict().message, "missing labels: stage");
    // While the file is not YAML, the policies go on serving.
    folder.write("kubewarden/policies.yml", "labels: [");
    eventually("the loader to say so", || {
        let problems = pod.loader_state()?.problems;
        problems.iter().any(|problem| problem.file.contains("policies.yml")).then_some(())
    });
    assert_eq!(pod.ask("labels", &Review::pod()).verdict().message, "missing labels: stage");
}
