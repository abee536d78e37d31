//! Secrets in the settings of policies: row S04.

use portcullis_e2e::{Program, condition, eventually};
use serde_json::{Value, json};

use crate::{assert_denied, installation_with};

/// A text that is nowhere but in settings.
const SECRET: &str = "s3cr3t-in-settings-of-row-S04";

#[test]
#[ignore = "starts a cluster"]
fn fault_s04_a_secret_in_refused_settings_is_in_no_event_and_no_log() {
    // The checks of applied policies read the settings too, and find them invalid.
    let installation = installation_with("secretive", 2, "warn");
    let canary = installation.own_canary();
    let shop = installation.make_namespace("shop");
    let secret = json!({ "password": SECRET });
    let served = installation.cluster_policy("secretive-served").denying("as before");
    installation.apply_ready(std::slice::from_ref(&served));
    // The module quotes the settings that it refuses, and the loader refuses settings that are nested too deep.
    let quoting = installation.cluster_policy("secretive-quoting").on(&["configmaps"]).guest("settings_echo");
    let deep = (0..105).fold(secret.clone(), |inner, _| json!({ "a": inner }));
    let refused = [
        quoting.clone().field("settings", secret.clone()),
        installation.cluster_policy("secretive-deep").on(&["configmaps"]).field("settings", deep),
        served.guest("settings_echo").field("settings", secret),
    ];
    for policy in &refused {
        installation.apply(policy).expect("the policy");
    }
    let statuses = refused.each_ref().map(|policy| {
        let is_told = |object: &Value| {
            let degraded = condition(object, "Degraded");
            degraded.is_some_and(|degraded| degraded["reason"] == "SettingsInvalid")
        };
        installation.wait_for_object(policy, "SettingsInvalid", is_told)["status"].to_string()
    });
    // The status may quote the module. Here it does, so the secret has come to the programs that write logs and events.
    assert!(statuses[0].contains(SECRET), "{}", statuses[0]);
    assert_denied(&installation.create_pod(&shop, "one", &json!({})), "as before");

    for policy in &refused {
        eventually("an event of the policy", || installation.events(policy, "SettingsInvalid").pop());
    }
    for event in installation.api().list("/apis/events.k8s.io/v1/events") {
        assert!(!event.to_string().contains(SECRET), "{event:#}");
    }
    let programs = [Program::Controller, Program::Loader, Program::Evaluator, Program::Reporter];
    let mut logs = 0;
    for pod in installation.pods() {
        for program in programs.into_iter().filter(|program| pod.has(*program)) {
            let lines = pod.program(program).lines();
            let line = lines.iter().find(|line| line.contains(SECRET));
            assert_eq!(line, None, "the log of {program} of {}", pod.name());
            logs += usize::from(lines.iter().any(|line| line.starts_with('{')));
        }
    }
    assert_eq!(logs, 1 + 2 * 3, "each program has written a log");
    canary.end();
}
