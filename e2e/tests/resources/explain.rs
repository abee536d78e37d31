//! `kubectl explain` has a description of every field.

use serde_json::Value;

use crate::cluster;

/// Calls `look` for each field below a schema, with its path.
fn fields(path: &str, schema: &Value, look: &mut dyn FnMut(&str, &Value)) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        look(&path, field);
        // Kubernetes itself describes metadata.
        if name != "metadata" {
            let below = ["items", "additionalProperties"].into_iter().find_map(|key| field.get(key));
            fields(&path, below.unwrap_or(field), look);
        }
    }
}

#[test]
#[ignore = "starts a cluster"]
fn every_field_is_explained() {
    let raw = cluster().kubectl(["get", "--raw", "/openapi/v3/apis/policies.portcullis.dev/v1alpha1"]);
    let document = raw.json("the published schemas");
    let mut count = 0;
    for kind in ["Policy", "ClusterPolicy", "ReplicaReport"] {
        let schema = &document["components"]["schemas"][format!("dev.portcullis.policies.v1alpha1.{kind}")];
        assert!(schema["description"].as_str().is_some_and(|text| text.contains(kind)), "{kind}: {schema}");
        fields(kind, schema, &mut |path, field| {
            let reference = path.ends_with(".metadata");
            let text = field["description"].as_str().unwrap_or("");
            assert!(reference || text.len() > 10, "{path} is explained with {text:?}");
            count += 1;
        });
    }
    assert!(count > 150, "only {count} fields were found");
}

#[test]
#[ignore = "starts a cluster"]
fn kubectl_explains_a_field_with_its_values_and_its_default() {
    let said = cluster().kubectl(["explain", "policy.spec.failurePolicy"]);
    let said = said.expect("an explanation").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("ENUM: Fail Ignore"), "{said}");
    assert!(said.contains("`Fail` rejects it, `Ignore` admits it with a warning."), "{said}");

    let said = cluster().kubectl(["explain", "cpol.spec.policies.module"]);
    assert!(said.expect("an explanation").contains("Where the member's module is"), "{said:?}");
}
