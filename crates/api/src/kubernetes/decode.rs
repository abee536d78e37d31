//! Reads objects of the API server one by one, so that one that cannot be read breaks no list.

use kube_core::DynamicObject;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::manifest::{DecodeError, decode_value as read};
use crate::{API_VERSION, Metadata, Policy, PolicyReference, PolicySpec, schema};

/// The fields that [`decode_match`] reads: those of [`Policy::match_part`], and the time limits.
const MATCH_FIELDS: [&str; 10] = [
    "rules",
    "mutating",
    "failurePolicy",
    "matchPolicy",
    "matchConditions",
    "objectSelector",
    "namespaceSelector",
    "sideEffects",
    "timeoutSeconds",
    "timeoutEvalSeconds",
];

/// Reads an object as one of the kinds here.
///
/// # Errors
/// When this release does not know a value. The name and uid can still be read ([`PolicyReference::of`](crate::PolicyReference::of)).
pub fn decode<K: DeserializeOwned>(object: DynamicObject) -> Result<K, DecodeError> {
    let DynamicObject { metadata, mut data, .. } = object;
    let metadata = serde_json::to_value(metadata).unwrap_or_default();
    if let Some(fields) = data.as_object_mut() {
        fields.insert("metadata".to_owned(), metadata);
    }
    read(data)
}

/// Reads the `spec` of a policy or of its revision, as the API server stores it. Fields that this release does not know are skipped.
///
/// # Errors
/// When this release does not know a value.
pub fn decode_spec(mut spec: Value) -> Result<PolicySpec, DecodeError> {
    schema::prune(&schema::SPEC, &mut spec);
    read(spec)
}

/// Reads only the fields of a spec that decide which webhook calls the policy and how long the API server waits; the other fields are as
/// in an empty spec. So a policy keeps its webhook when another field has a value that this release cannot read, because it is damaged
/// or a newer release wrote it.
///
/// # Errors
/// When this release does not know a value of one of these fields.
pub fn decode_match(policy: &PolicyReference, spec: &Value) -> Result<Policy, DecodeError> {
    let fields = spec.as_object().into_iter().flatten().filter(|(name, _)| MATCH_FIELDS.contains(&name.as_str()));
    let spec = decode_spec(fields.map(|(name, value)| (name.clone(), value.clone())).collect())?;
    let metadata = Metadata { name: policy.name.clone(), namespace: policy.namespace.clone(), ..Metadata::default() };
    Ok(Policy { api_version: API_VERSION.to_owned(), kind: policy.kind, metadata, spec, status: None })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Kind;
    use crate::kubernetes::{ClusterPolicy, PolicyResource as _};

    fn object(change: impl FnOnce(&mut Value)) -> DynamicObject {
        let mut value = json!({
            "apiVersion": crate::API_VERSION, "kind": "ClusterPolicy",
            "metadata": {"name": "a", "uid": "u", "generation": 3, "resourceVersion": "9"},
            "spec": {"module": "m", "rules": [], "settings": {"big": 9_007_199_254_740_993_i64}},
        });
        change(&mut value);
        serde_json::from_value(value).expect("an object")
    }

    #[test]
    fn an_object_is_read_with_fields_of_a_newer_release() {
        let policy: ClusterPolicy = decode(object(|o| {
            o["spec"]["novelty"] = json!(1);
            o["status"] = json!({"conditions": [{"type": "Novelty"}], "novelty": {}});
        }))
        .expect("reads");
        assert_eq!(policy.spec.settings["big"], json!(9_007_199_254_740_993_i64));
        assert_eq!(policy.status.as_ref().map(|status| status.conditions.len()), Some(0));
        let plain = policy.plain();
        assert_eq!((plain.kind, plain.metadata.generation), (Kind::ClusterPolicy, Some(3)));
        assert_eq!(policy.reference().map(|reference| reference.uid).as_deref(), Some("u"));
    }

    #[test]
    fn a_status_of_which_only_the_webhook_is_known_is_read() {
        let condition = json!({"type": "WebhookConfigured", "status": "True", "reason": "Registered", "message": "",
                               "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let policy: ClusterPolicy =
            decode(object(|o| o["status"] = json!({"conditions": [condition]}))).expect("reads");
        assert!(policy.status.is_some_and(|status| status.is_true(crate::ConditionType::WebhookConfigured)));
    }

    #[test]
    fn the_match_part_is_read_whatever_else_is_odd() {
        let whole = json!({
            "module": "m", "mutating": true, "failurePolicy": "Ignore", "matchPolicy": "Exact", "sideEffects": "NoneOnDryRun",
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
            "matchConditions": [{"name": "a", "expression": "true"}], "timeoutSeconds": 7, "timeoutEvalSeconds": 3,
            "objectSelector": {"matchLabels": {"a": "b"}}, "namespaceSelector": {"matchLabels": {"c": "d"}},
        });
        let reference =
            PolicyReference { kind: Kind::ClusterPolicy, namespace: None, name: "a".into(), uid: "u".into() };
        let mut expected = decode_match(&reference, &whole).expect("reads");
        expected.spec = decode_spec(whole.clone()).expect("reads");
        let mut odd = whole;
        odd["mode"] = json!("quarantine");
        odd["settings"] = json!(7);
        odd["novelty"] = json!({"a": 1});
        assert!(decode_spec(odd.clone()).is_err());
        let read = decode_match(&reference, &odd).expect("reads");
        assert_eq!(read.match_part(), expected.match_part());
        assert_eq!((read.spec.timeout_seconds, read.spec.timeout_eval_seconds), (Some(7), Some(3)));
        odd["failurePolicy"] = json!("Perhaps");
        assert!(decode_match(&reference, &odd).expect_err("no match part").to_string().contains("Perhaps"));
    }

    #[test]
    fn a_value_of_a_newer_release_is_named() {
        let odd = object(|o| o["spec"]["mode"] = json!("quarantine"));
        let error = decode::<ClusterPolicy>(odd).expect_err("refused");
        assert!(error.to_string().contains("mode") && error.to_string().contains("quarantine"), "{error}");
    }
}
