//! Policy and ClusterPolicy (docs/design/overview.md, section 3). Both kinds have the same spec; what only a ClusterPolicy may set is refused
//! on a Policy.

use std::collections::BTreeMap;

use portcullis_contract::{
    ContextAwareResource, FailurePolicy, MatchCondition, MatchPart, Mode, PolicyId, PolicyIdError, RuleWithOperations,
    WebhookKind,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::PolicyStatus;
use crate::part::{FreeForm, LabelSelector, PolicyGroupMember, RawSettings};

/// The `apiVersion` of all our kinds.
pub const API_VERSION: &str = "policies.portcullis.dev/v1alpha1";

/// The two kinds of policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// Applies to its own namespace.
    Policy,
    /// Applies everywhere its selectors say.
    ClusterPolicy,
}

/// A Policy or a ClusterPolicy, as in a manifest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Policy {
    /// [`API_VERSION`].
    pub api_version: String,
    /// Policy or ClusterPolicy.
    pub kind: Kind,
    /// Name, namespace and the other fields of ObjectMeta that matter here.
    pub metadata: Metadata,
    /// The desired policy, as the user wrote it.
    pub spec: PolicySpec,
    /// The observed state; absent in a manifest that a user wrote.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub status: Option<PolicyStatus>,
}

/// The fields of ObjectMeta that matter here. Unknown ones are allowed, as a manifest from a cluster has many.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// The name, of at most 63 characters.
    pub name: String,
    /// The namespace of a Policy; `default` if absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub namespace: Option<String>,
    /// The uid, which the API server sets, and in a folder the loader.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub uid: Option<String>,
    /// The generation, which the API server counts, and in a folder the loader.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub generation: Option<i64>,
    /// When the object was created (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub creation_timestamp: Option<jiff::Timestamp>,
    /// Labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub annotations: BTreeMap<String, String>,
}

/// The desired policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicySpec {
    /// The name of the installation of Portcullis that serves the policy. It cannot be changed later.
    #[serde(default = "default_policy_server")]
    pub policy_server: String,
    /// Where the WebAssembly module is: `registry://host/repository:tag`, `registry://host/repository@sha256:…` or `https://…`; in a
    /// folder also `file:///…` and a path relative to the manifest. When a module is first loaded from a tag or an https address, it is
    /// pinned to its digest. Exactly one of `module` and `policies` must be set.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub module: Option<String>,
    /// The members of a group of policies, by the names that `expression` uses. Set it instead of `module`.
    #[schemars(with = "Option<BTreeMap<String, PolicyGroupMember>>")]
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub policies: Option<BTreeMap<String, Value>>,
    /// How the verdicts of a group's members are combined, for instance `signed() && (trusted() || !public())`. Required with
    /// `policies`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expression: Option<String>,
    /// The message of a denial, instead of the module's own; 1024 characters at most. Required with `policies`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub message: Option<String>,
    /// Settings that are passed to the module unchanged. Any object; the module defines which fields it understands.
    #[schemars(with = "FreeForm")]
    #[serde(default)]
    pub settings: RawSettings,
    /// The requests that the policy evaluates: those that match at least one of these rules.
    pub rules: Vec<RuleWithOperations>,
    /// Whether the policy may change objects. Mutating policies are called before validating ones.
    #[serde(default)]
    pub mutating: bool,
    /// What a denial does: `protect` rejects the request, `warn` admits it with a warning, `monitor` admits it and only counts and logs
    /// the denial. A change takes effect at once, even while an older generation serves.
    #[serde(default)]
    pub mode: Mode,
    /// What happens to a request that the policy cannot evaluate, because it is not loaded or fails: `Fail` rejects it, `Ignore` admits
    /// it with a warning.
    #[serde(default)]
    pub failure_policy: FailurePolicy,
    /// `Exact` matches only the groups and versions that the rules name; `Equivalent`, the default, also matches the same resource in
    /// other groups and versions.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub match_policy: Option<String>,
    /// CEL expressions on the request that must all be true for the policy to be called; 60 at most.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub match_conditions: Vec<MatchCondition>,
    /// Selects objects by their labels; an update matches if the old or the new object does. All objects if absent.
    #[schemars(with = "Option<LabelSelector>")]
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub object_selector: Option<Value>,
    /// Selects namespaces by their labels. Only a ClusterPolicy may set it. All namespaces if absent.
    #[schemars(with = "Option<LabelSelector>")]
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub namespace_selector: Option<Value>,
    /// Whether a call of the policy has effects besides its answer: `None`, the default, or `NoneOnDryRun`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub side_effects: Option<String>,
    /// How long the API server waits for an answer, in seconds: 1 to 30, 10 by default. Mutating policies that share a webhook are
    /// evaluated one after the other, and the API server waits for all of them together.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub timeout_seconds: Option<u32>,
    /// How long one evaluation may take, in seconds: 1 to 30, and at most `timeoutSeconds`. By default 2, or `timeoutSeconds` if that is
    /// less.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub timeout_eval_seconds: Option<u32>,
    /// Kinds that the policy may read from the cluster. Only a ClusterPolicy may set it. None by default.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub context_aware_resources: Vec<ContextAwareResource>,
    /// Host capabilities that the policy may use, for instance `oci/v1/manifest_digest`. None by default.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub host_capabilities: Vec<String>,
    /// The signatures that the module must have: `allOf` and `anyOf` as in a verification.yml. A module whose signatures cannot be
    /// verified is not loaded.
    #[schemars(with = "Option<FreeForm>")]
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub signatures: Option<Value>,
    /// How many older revisions of the policy are kept to roll back to: 0 to 100, 10 by default. The newest revision and the last one
    /// that served are always kept.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub revision_history_limit: Option<u32>,
    /// An earlier generation whose content is served instead of this one, as long as the field is set. `mode`, `suspend` and
    /// `failurePolicy` are still taken from this spec.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rollback_to: Option<i64>,
    /// Whether the audit asks the policy about the objects that exist; true by default. Admission and `mode` do not depend on it. A change
    /// takes effect with the next scan.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub background_audit: Option<bool>,
    /// Whether the policy stays loaded but is not called. A change takes effect at once.
    #[serde(default)]
    pub suspend: bool,
}

fn default_policy_server() -> String {
    "default".to_owned()
}

/// The rule of the schema that a manifest breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The name cannot be used.
    #[error("metadata.name: {0}")]
    Name(#[from] PolicyIdError),
    /// A field breaks a rule.
    #[error("{field}: {problem}")]
    Field {
        /// The path of the field, for instance `spec.module`.
        field: String,
        /// What is wrong and what is expected, as the rest of a sentence that begins with the field.
        problem: String,
    },
}

impl Policy {
    /// The policy's id.
    ///
    /// # Errors
    /// When the name or namespace is not a DNS name of at most 63 characters.
    pub fn id(&self) -> Result<PolicyId, PolicyIdError> {
        match self.kind {
            Kind::ClusterPolicy => PolicyId::cluster(&self.metadata.name),
            Kind::Policy => {
                PolicyId::namespaced(self.metadata.namespace.as_deref().unwrap_or("default"), &self.metadata.name)
            }
        }
    }

    /// The part of the policy that decides its match group.
    pub fn match_part(&self) -> MatchPart {
        let spec = &self.spec;
        MatchPart {
            kind: if spec.mutating { WebhookKind::Mutating } else { WebhookKind::Validating },
            namespace: match self.kind {
                Kind::Policy => Some(self.metadata.namespace.clone().unwrap_or_else(|| "default".to_owned())),
                Kind::ClusterPolicy => None,
            },
            rules: self.webhook_rules(),
            match_policy: spec.match_policy.clone(),
            object_selector: spec.object_selector.clone(),
            namespace_selector: spec.namespace_selector.clone(),
            match_conditions: spec.match_conditions.clone(),
            failure_policy: spec.failure_policy,
            side_effects: spec.side_effects.clone(),
        }
    }

    /// The rules of the webhook. Those of a Policy are limited to namespaced objects, because a namespace selector does not skip
    /// cluster-scoped ones.
    fn webhook_rules(&self) -> Vec<RuleWithOperations> {
        let mut rules = self.spec.rules.clone();
        if self.kind == Kind::Policy {
            rules.iter_mut().for_each(|rule| rule.scope = Some("Namespaced".to_owned()));
        }
        rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(change: impl FnOnce(&mut Value)) -> Result<PolicyId, String> {
        let mut value = serde_json::json!({
            "apiVersion": API_VERSION, "kind": "ClusterPolicy", "metadata": {"name": "no-privileged"},
            "spec": {"module": "modules/no-privileged.wasm",
                     "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}]},
        });
        change(&mut value);
        let policy: Policy = serde_json::from_value(value).map_err(|error| error.to_string())?;
        policy.check().map_err(|error| error.to_string())
    }

    #[test]
    fn the_shortest_policy_is_accepted() {
        assert_eq!(policy(|_| ()).map(|id| id.to_string()).as_deref(), Ok("cluster/no-privileged"));
    }

    /// Sets fields of the spec, or takes them out.
    fn with(spec: &Value) -> impl FnOnce(&mut Value) {
        let spec = spec.as_object().cloned().unwrap_or_default();
        move |policy| {
            let fields = policy["spec"].as_object_mut().expect("an object");
            for (name, value) in spec {
                if value.is_null() {
                    fields.shift_remove(&name)
                } else {
                    fields.insert(name, value)
                };
            }
        }
    }

    #[test]
    fn specs_are_judged_as_by_an_api_server() {
        let specs: Vec<Value> = portcullis_yaml::read(include_str!("../specs.yaml")).expect("a list of specs");
        for case in specs {
            let name = &case["name"];
            let result = policy(|policy| {
                policy["kind"] = case["kind"].clone();
                with(&case["spec"])(policy);
            });
            match (result, case["refused"].as_str()) {
                (Ok(_), None) => {}
                (Err(error), Some(field)) => {
                    let words = case["words"].as_str().unwrap_or("");
                    assert!(error.starts_with(field) && error.contains(words), "{name}: {error}");
                }
                (result, expected) => panic!("{name}: expected {expected:?}, got {result:?}"),
            }
        }
    }

    #[test]
    fn a_policy_never_matches_beyond_namespaces() {
        let mut policy: Policy = serde_json::from_value(serde_json::json!({
            "apiVersion": API_VERSION, "kind": "Policy", "metadata": {"name": "a", "namespace": "n"},
            "spec": {"rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}]},
        }))
        .expect("a policy");
        assert_eq!(policy.match_part().rules[0].scope.as_deref(), Some("Namespaced"));
        policy.kind = Kind::ClusterPolicy;
        assert_eq!(policy.match_part().rules[0].scope, None);
    }

    #[test]
    fn a_misspelt_field_is_named() {
        let error = policy(|p| p["spec"]["setings"] = serde_json::json!({})).expect_err("refused");
        assert!(error.contains("setings"), "{error}");
    }

    #[test]
    fn rules_of_the_schema_are_told_in_plain_words() {
        let refused = |change: fn(&mut Value)| policy(change).expect_err("refused");
        assert!(
            refused(|p| p["spec"]["policies"] = serde_json::json!({"a": {"module": "m"}}))
                .starts_with("spec.policies: cannot be set together")
        );
        assert!(refused(|p| p["spec"]["rules"] = serde_json::json!([])).starts_with("spec.rules: want at least one"));
        assert!(
            refused(|p| p["spec"]["timeoutEvalSeconds"] = 11.into()).starts_with("spec.timeoutEvalSeconds: must not")
        );
        assert!(refused(|p| p["metadata"]["name"] = "No".into()).starts_with("metadata.name"));
        assert!(
            refused(|p| {
                p["kind"] = "Policy".into();
                p["spec"]["namespaceSelector"] = serde_json::json!({});
            })
            .starts_with("spec.namespaceSelector: is for a ClusterPolicy only")
        );
    }
}
