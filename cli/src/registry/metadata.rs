//! The metadata section of a module (docs/design/policy-abi.md, section 2): the parts that are shown to people.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Name of the custom section.
pub(super) const SECTION: &str = "io.kubewarden.metadata";

/// The metadata.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Metadata {
    pub(super) protocol_version: Option<String>,
    pub(super) execution_mode: Option<String>,
    pub(super) mutating: bool,
    pub(super) background_audit: Option<bool>,
    pub(super) policy_type: Option<String>,
    pub(super) rules: Vec<Value>,
    pub(super) context_aware_resources: Vec<Value>,
    /// `None` in older metadata, which names no capabilities, only the kinds that they read.
    pub(super) host_capabilities: Option<Vec<String>>,
    pub(super) minimum_kubewarden_version: Option<String>,
    pub(super) annotations: BTreeMap<String, String>,
}

impl Metadata {
    /// The host capabilities that the module needs, as far as its metadata tells; the loader's comparison of a module with its policy follows
    /// the same rule.
    pub(super) fn capabilities(&self) -> Vec<String> {
        let declared = self.host_capabilities.clone().unwrap_or_default();
        // Rego reads the kinds without a capability.
        let is_rego = self.execution_mode.as_deref().is_some_and(|mode| ["opa", "gatekeeper"].contains(&mode));
        match declared.is_empty() && !self.context_aware_resources.is_empty() && !is_rego {
            true => vec!["kubernetes/*".to_owned()],
            false => declared,
        }
    }

    /// The value of the annotation `io.kubewarden.policy.<name>`.
    pub(super) fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.get(&format!("io.kubewarden.policy.{name}")).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn kinds_imply_the_capabilities_that_older_metadata_does_not_name() {
        let kinds = json!([{"apiVersion": "v1", "kind": "Namespace"}]);
        for (metadata, expected) in [
            (json!({}), &[][..]),
            (json!({"contextAwareResources": kinds}), &["kubernetes/*"]),
            (json!({"contextAwareResources": kinds, "hostCapabilities": []}), &["kubernetes/*"]),
            (json!({"contextAwareResources": kinds, "hostCapabilities": ["oci/*"]}), &["oci/*"]),
            (json!({"contextAwareResources": kinds, "executionMode": "gatekeeper"}), &[]),
        ] {
            let read: Metadata = serde_json::from_value(metadata.clone()).expect("metadata");
            assert_eq!(read.capabilities(), expected, "{metadata}");
        }
    }
}
