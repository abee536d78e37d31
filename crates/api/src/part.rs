//! Parts of a spec that the API server or a later step reads: selectors and members of a group.
//!
//! A spec keeps them as the user wrote them; these types give their schema.

use std::collections::BTreeMap;

use portcullis_contract::ContextAwareResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A free-form settings object.
pub type RawSettings = serde_json::Map<String, Value>;

/// Selects objects by their labels (`metav1.LabelSelector`). Both parts must match; an empty selector selects everything.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LabelSelector {
    /// Labels that must have exactly these values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub match_labels: BTreeMap<String, String>,
    /// Requirements on labels, which must all be met.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub match_expressions: Vec<LabelRequirement>,
}

/// A requirement on one label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LabelRequirement {
    /// The label's key.
    pub key: String,
    /// `In` and `NotIn` compare with `values`; `Exists` and `DoesNotExist` take no values.
    pub operator: LabelOperator,
    /// The values to compare with.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub values: Vec<String>,
}

/// How a requirement looks at its label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LabelOperator {
    /// The label has one of the values.
    In,
    /// The label is absent or has none of the values.
    NotIn,
    /// The label is present.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

/// A member of a group of policies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyGroupMember {
    /// Where the member's module is, in one of the forms of `spec.module`.
    pub module: String,
    /// Settings that are passed to the member's module unchanged. Any object.
    #[schemars(with = "FreeForm")]
    #[serde(skip_serializing_if = "RawSettings::is_empty", default)]
    pub settings: RawSettings,
    /// How long one evaluation of this member may take, in seconds: 1 to 30.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub timeout_eval_seconds: Option<u32>,
    /// Kinds that the member may read from the cluster. Only a ClusterPolicy may set it. None by default.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub context_aware_resources: Vec<ContextAwareResource>,
    /// Host capabilities that the member may use, for instance `oci/v1/manifest_digest`. None by default.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub host_capabilities: Vec<String>,
}

/// The schema of any object.
pub(crate) struct FreeForm;

impl JsonSchema for FreeForm {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "FreeForm".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
    }
}
