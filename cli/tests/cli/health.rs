//! The health check for Argo CD, run by the version of Lua that Argo CD uses.

use mlua::{Lua, LuaSerdeExt as _, Table};
use serde_json::{Value, json};

const SCRIPT: &str = include_str!("../../../docs/argocd-health.lua");

/// Status and message for a policy of generation 2 with these conditions: type, status, reason, generation.
fn health(conditions: &[(&str, &str, &str, i64)]) -> (String, String) {
    let conditions: Vec<Value> = conditions
        .iter()
        .map(|(r#type, status, reason, generation)| {
            json!({"type": r#type, "status": status, "reason": reason, "message": "words", "observedGeneration": generation})
        })
        .collect();
    judge(&json!({"metadata": {"generation": 2}, "status": {"conditions": conditions}}))
}

fn judge(object: &Value) -> (String, String) {
    let lua = Lua::new();
    lua.globals().set("obj", lua.to_value(object).expect("a value of Lua")).expect("a global");
    let table: Table = lua.load(SCRIPT).eval().expect("the script runs");
    (table.get("status").expect("a status"), table.get("message").expect("a message"))
}

fn is(status: &str, message: &str) -> (String, String) {
    (status.to_owned(), message.to_owned())
}

#[test]
fn a_policy_that_nobody_has_looked_at_is_progressing() {
    let nobody = is("Progressing", "nobody has looked at this generation yet");
    assert_eq!(judge(&json!({"metadata": {"generation": 1}})), nobody);
    assert_eq!(health(&[]), nobody);
    assert_eq!(health(&[("Ready", "True", "Active", 1)]), nobody, "an older generation counts no more");
}

#[test]
fn a_ready_policy_is_healthy_or_suspended() {
    assert_eq!(health(&[("Ready", "True", "Active", 2)]), is("Healthy", "Active: words"));
    assert_eq!(health(&[("Ready", "True", "Suspended", 2)]), is("Suspended", "Suspended: words"));
}

#[test]
fn what_only_a_change_helps_is_degraded() {
    let conditions = [("Ready", "False", "ServingPrevious", 2), ("Stalled", "True", "SettingsInvalid", 2)];
    assert_eq!(health(&conditions), is("Degraded", "SettingsInvalid: words"));
}

#[test]
fn what_may_pass_is_waited_for_unless_replicas_fail() {
    let retrying = ("Stalled", "False", "Retrying", 2);
    assert_eq!(health(&[("Ready", "False", "Progressing", 2), retrying]), is("Progressing", "Progressing: words"));
    assert_eq!(
        health(&[("Ready", "False", "ServingPrevious", 2), retrying]),
        is("Progressing", "ServingPrevious: words")
    );
    assert_eq!(health(&[("Ready", "False", "Degraded", 2), retrying]), is("Degraded", "Degraded: words"));
    assert_eq!(health(&[("Ready", "Unknown", "NoReplicas", 2)]), is("Progressing", "NoReplicas: words"));
}
