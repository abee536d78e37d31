//! Policies that cannot load are refused when they are applied, if the chart is set so.

use portcullis_e2e::eventually;
use serde_json::{Value, json};

use crate::stage::Stage;

#[test]
#[ignore = "starts a cluster"]
fn a_policy_that_cannot_load_is_refused_where_the_chart_says_so() {
    let stage = Stage::with("policy-checks", &json!({ "policyChecks": { "mode": "deny" } }));
    let release = stage.release();
    let labels = |labels: Value| {
        release
            .cluster_policy("policy-checks")
            .example("required-labels")
            .field("settings", json!({ "labels": labels }))
    };
    eventually("a refusal", || {
        let reply = labels(json!([])).dry_run(&release.api(), release.source());
        let is_refused = reply.code == 422 && reply.body["message"].to_string().contains("SettingsInvalid: ");
        is_refused.then_some(())
    });
    let good = labels(json!(["team"]));
    let output = release.apply(&good);
    assert!(output.is_ok() && !output.stderr.contains("Warning"), "{output:?}");
    good.wait_for(&release.api(), "Ready", "True");

    // When checks are switched off, the policy is accepted.
    stage.set(&json!({}));
    let is_check = |webhook: &Value| webhook["metadata"]["name"].as_str().is_some_and(|name| name.ends_with("-check"));
    eventually("no webhook for checks", || (!release.webhooks().iter().any(is_check)).then_some(()));
    let output = release.apply(&labels(json!([])));
    assert!(output.is_ok(), "{output:?}");
}
