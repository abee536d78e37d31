//! The CustomResourceDefinitions: schema, descriptions, limits, rules and columns.

use std::borrow::Cow;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_core::CustomResourceExt as _;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Value, json};

use super::{ClusterPolicy, Policy, ReplicaReport};
use crate::schema::{self, limits, rules};
use crate::{Kind, PolicyStatus, ReplicaReportSpec};

/// The definitions of all kinds, in the order of their names.
pub fn definitions() -> [CustomResourceDefinition; 3] {
    [ClusterPolicy::crd(), Policy::crd(), ReplicaReport::crd()]
}

macro_rules! schema_of {
    ($name:ident, $make:expr) => {
        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                Schema::try_from($make).expect("a schema made of a schema's parts is one")
            }
        }
    };
}

schema_of!(Policy, policy(Kind::Policy));
schema_of!(ClusterPolicy, policy(Kind::ClusterPolicy));
schema_of!(ReplicaReport, report());

const POLICY: &str = "A Policy evaluates requests in its own namespace with a WebAssembly module, which admits them, rejects them or \
                      changes their objects. Its status says whether every replica serves it and API servers call it.";
const CLUSTER_POLICY: &str = "A ClusterPolicy evaluates requests in all namespaces, and about cluster-scoped objects, with a \
                              WebAssembly module, which admits them, rejects them or changes their objects. Its status says whether \
                              every replica serves it and API servers call it.";
const REPORT: &str = "A ReplicaReport says what one pod of Portcullis serves. The pod's reporter writes it; do not edit it. It is removed \
                      with the pod. The status of each policy is made from the reports of all pods.";

fn policy(kind: Kind) -> Value {
    let mut spec = schema::SPEC.clone();
    rules::apply(&mut spec, kind);
    let mut status = schema::of::<PolicyStatus>();
    limits::apply(&mut status, &limits::status());
    // A default would look like an observed value.
    without_defaults(&mut status);
    // But for this one: kstatus takes an object without it, and without conditions, for one that is ready.
    status["properties"]["observedGeneration"]["default"] = (-1).into();
    status["default"] = json!({});
    let text = match kind {
        Kind::Policy => POLICY,
        Kind::ClusterPolicy => CLUSTER_POLICY,
    };
    let mut root = root(text, spec);
    root["properties"]["status"] = status;
    root["properties"]["metadata"] = json!({ "type": "object", "properties": { "name": { "type": "string" } } });
    root["x-kubernetes-validations"] = json!([{
        "rule": "size(self.metadata.name) <= 63",
        "message": "has more than 63 characters, and it becomes a label and a part of other names: choose a shorter one",
        "fieldPath": ".metadata.name",
    }]);
    root
}

fn report() -> Value {
    let mut spec = schema::of::<ReplicaReportSpec>();
    limits::apply(&mut spec, &limits::report());
    root(REPORT, spec)
}

fn root(description: &str, spec: Value) -> Value {
    json!({
        "type": "object",
        "description": description,
        "required": ["spec"],
        "properties": { "spec": spec },
    })
}

fn without_defaults(schema: &mut Value) {
    if let Some(fields) = schema.as_object_mut() {
        fields.shift_remove("default");
        for (_, inner) in fields {
            without_defaults(inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schemas() -> Vec<(String, Value)> {
        let schema = |definition: CustomResourceDefinition| {
            let kind = definition.spec.names.kind;
            let version = definition.spec.versions.into_iter().next().expect("a version");
            (kind, serde_json::to_value(version.schema.expect("a schema").open_api_v3_schema).expect("JSON"))
        };
        definitions().into_iter().map(schema).collect()
    }

    /// Calls for each schema, with its path.
    fn walk(path: &str, schema: &Value, look: &mut dyn FnMut(&str, &Value)) {
        look(path, schema);
        for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
            walk(&format!("{path}.{name}"), inner, look);
        }
        for key in ["items", "additionalProperties"] {
            if let Some(inner) = schema.get(key) {
                walk(&format!("{path}[]"), inner, look);
            }
        }
    }

    #[test]
    fn every_field_has_prose() {
        for (kind, schema) in schemas() {
            walk(&kind, &schema, &mut |path, schema| {
                let text = schema["description"].as_str().unwrap_or("");
                // What metadata is, Kubernetes says itself.
                assert!(
                    path.ends_with("[]") || path.contains(".metadata") || text.ends_with(['.', '`']),
                    "{path} is explained with {text:?}"
                );
            });
        }
    }

    #[test]
    fn no_generation_of_a_new_policy_has_been_observed() {
        for (kind, schema) in schemas().into_iter().filter(|(kind, _)| kind != "ReplicaReport") {
            let mut defaults = Vec::new();
            walk("status", &schema["properties"]["status"], &mut |path, schema| {
                defaults.extend(schema.get("default").map(|default| (path.to_owned(), default.clone())));
            });
            assert_eq!(
                defaults,
                [("status".to_owned(), json!({})), ("status.observedGeneration".to_owned(), json!(-1))],
                "{kind}"
            );
        }
    }

    #[test]
    fn everything_that_a_user_writes_has_a_maximum() {
        for (kind, schema) in schemas().into_iter().filter(|(kind, _)| kind != "ReplicaReport") {
            walk(&kind, &schema["properties"]["spec"], &mut |path, schema| {
                let has = |keys: &[&str]| keys.iter().any(|key| schema.get(key).is_some());
                let limited = match schema["type"].as_str() {
                    Some("string") => has(&["maxLength", "enum"]),
                    Some("array") => has(&["maxItems"]),
                    Some("object") => has(&["properties", "maxProperties", "x-kubernetes-preserve-unknown-fields"]),
                    _ => true,
                };
                assert!(limited, "{path} has no maximum");
            });
        }
    }

    #[test]
    fn keys_of_lists_are_required_fields() {
        for (kind, schema) in schemas() {
            walk(&kind, &schema, &mut |path, schema| {
                for key in schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten() {
                    let required = schema["items"]["required"].as_array().expect("required fields");
                    assert!(required.contains(key), "{path}: {key} is not required");
                }
            });
        }
    }

    #[test]
    fn a_policy_can_be_found_by_its_words() {
        let names = Policy::crd().spec.names;
        assert_eq!(
            (names.plural.as_str(), names.short_names, names.categories),
            ("policies", Some(vec!["pol".to_owned()]), Some(vec!["portcullis".to_owned()]))
        );
    }
}
