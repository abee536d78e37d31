//! AdmissionPolicy, ClusterAdmissionPolicy and the groups of both. Pure.

use portcullis_api::{API_VERSION, Policy};
use serde_json::{Map, Value, json};

use super::{Fields, MigrateError, Outcome};

/// Fields that mean the same on both sides.
const KEPT: &[&str] = &[
    "policyServer",
    "mode",
    "module",
    "settings",
    "rules",
    "failurePolicy",
    "mutating",
    "matchPolicy",
    "matchConditions",
    "objectSelector",
    "sideEffects",
    "timeoutSeconds",
    "timeoutEvalSeconds",
    "message",
    "namespaceSelector",
    "contextAwareResources",
    "policies",
    "expression",
];
/// The annotation that `kubectl apply` writes for itself.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Translates a policy. The error says why a cluster would refuse it.
pub(super) fn policy(object: &Value, kind: &str, fields: &mut Fields<'_>) -> Result<Value, MigrateError> {
    let mut spec = Map::new();
    for (name, value) in object["spec"].as_object().into_iter().flatten() {
        let outcome = outcome(name);
        if outcome == Outcome::Kept && !value.is_null() {
            spec.insert(name.clone(), value.clone());
        }
        fields.note(format!("spec.{}", portcullis_contract::clean(name, 100)), outcome);
    }
    for member in spec.get_mut("policies").and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
        member.as_object_mut().into_iter().for_each(|member| member.retain(|_, value| !value.is_null()));
    }
    let mut metadata = object["metadata"].as_object().cloned().unwrap_or_default();
    metadata.retain(|name, _| ["name", "namespace", "labels", "annotations"].contains(&name.as_str()));
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.shift_remove(LAST_APPLIED);
    }
    if kind == "ClusterPolicy" {
        let why = "Kubewarden grants all of them to policies of the cluster, and Portcullis those that are listed: see `portcullis inspect MODULE`";
        fields.note("host capabilities", Outcome::Dropped(why.to_owned()));
    }
    let policy = json!({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec});
    serde_json::from_value::<Policy>(policy.clone())?.check()?;
    Ok(policy)
}

fn outcome(field: &str) -> Outcome {
    let why = match field {
        name if KEPT.contains(&name) => return Outcome::Kept,
        "backgroundAudit" => "audits cover all policies: `audit.enabled` of the chart turns them on",
        "allowInsideAdmissionControllerNamespace" => {
            "no policy is asked about the installation's own namespace, so that a policy cannot keep Portcullis from starting"
        }
        _ => "there is no such field",
    };
    Outcome::Dropped(why.to_owned())
}
