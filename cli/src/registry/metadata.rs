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
    pub(super) host_capabilities: Vec<String>,
    pub(super) minimum_kubewarden_version: Option<String>,
    pub(super) annotations: BTreeMap<String, String>,
}

impl Metadata {
    /// The value of the annotation `io.kubewarden.policy.<name>`.
    pub(super) fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.get(&format!("io.kubewarden.policy.{name}")).map(String::as_str)
    }
}
