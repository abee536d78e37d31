//! A policy as the reporter of a folder writes it to `status/<id>.yaml`, where `portcullis get` and `describe` read it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use portcullis_contract::{FailurePolicy, Mode, PolicyId, PolicyIdError};
use serde::{Deserialize, Serialize};

use crate::{API_VERSION, Condition, ConditionType, Kind, Metadata, PolicyStatus, Truth};

/// The annotation with the id of a policy of a Kubewarden `policies.yml`, whose id does not follow from kind and name.
pub const ID_ANNOTATION: &str = "policies.portcullis.dev/id";

/// A Policy or ClusterPolicy with the state that the reporter observed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObservedPolicy {
    /// [`API_VERSION`].
    pub api_version: String,
    /// Policy or ClusterPolicy.
    pub kind: Kind,
    /// Name, namespace, uid, generation and time of creation.
    pub metadata: Metadata,
    /// The part of the spec that the loader passes on.
    pub spec: ObservedSpec,
    /// The observed state.
    pub status: PolicyStatus,
}

/// The part of a policy's spec that the loader passes on to the reporter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObservedSpec {
    /// The module as the user wrote it.
    pub module: String,
    /// What a denial does.
    pub mode: Mode,
    /// What happens to a request that the policy cannot evaluate.
    pub failure_policy: FailurePolicy,
    /// Whether the policy stays loaded but is not called.
    #[serde(default)]
    pub suspend: bool,
}

impl ObservedPolicy {
    /// The object of the policy `id`.
    pub fn new(
        id: &PolicyId,
        uid: &str,
        generation: i64,
        created: Timestamp,
        spec: ObservedSpec,
        status: PolicyStatus,
    ) -> Self {
        let annotations =
            if id.is_bare() { BTreeMap::from([(ID_ANNOTATION.to_owned(), id.to_string())]) } else { BTreeMap::new() };
        Self {
            api_version: API_VERSION.to_owned(),
            kind: if id.namespace().is_some() { Kind::Policy } else { Kind::ClusterPolicy },
            metadata: Metadata {
                name: id.name().to_owned(),
                namespace: id.namespace().map(str::to_owned),
                uid: Some(uid.to_owned()),
                generation: Some(generation),
                creation_timestamp: Some(created),
                labels: BTreeMap::new(),
                annotations,
            },
            spec,
            status,
        }
    }

    /// The policy's id.
    ///
    /// # Errors
    /// When [`ObservedPolicy::new`] did not write the name, namespace or annotation.
    pub fn id(&self) -> Result<PolicyId, PolicyIdError> {
        match (self.metadata.annotations.get(ID_ANNOTATION), self.kind) {
            (Some(id), _) => id.parse(),
            (None, Kind::ClusterPolicy) => PolicyId::cluster(&self.metadata.name),
            (None, Kind::Policy) => {
                PolicyId::namespaced(self.metadata.namespace.as_deref().unwrap_or("default"), &self.metadata.name)
            }
        }
    }

    /// Where the object of `id` is below the status folder `root`.
    pub fn path(root: &Path, id: &PolicyId) -> PathBuf {
        root.join(format!("{id}.yaml"))
    }
}

impl PolicyStatus {
    /// The condition of this type, if there is one.
    pub fn condition(&self, r#type: ConditionType) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.r#type == r#type)
    }

    /// Whether the condition of this type is True.
    pub fn is_true(&self, r#type: ConditionType) -> bool {
        self.condition(r#type).is_some_and(|condition| condition.status == Truth::True)
    }

    /// The STATUS column: the reason of `Ready`.
    pub fn word(&self) -> &str {
        self.condition(ConditionType::Ready).map_or("Unknown", |condition| &condition.reason)
    }
}

impl ConditionType {
    /// The name in a list of conditions.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "Accepted",
            Self::Ready => "Ready",
            Self::Enforced => "Enforced",
            Self::Degraded => "Degraded",
            Self::Reconciling => "Reconciling",
            Self::Stalled => "Stalled",
            Self::MetadataMatched => "MetadataMatched",
            Self::ContextSynced => "ContextSynced",
            Self::WebhookConfigured => "WebhookConfigured",
        }
    }
}

impl Truth {
    /// The value in a list of conditions.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(id: &str) -> (Kind, String, PathBuf) {
        let id: PolicyId = id.parse().expect("an id");
        let spec = ObservedSpec {
            module: "m.wasm".into(),
            mode: Mode::Protect,
            failure_policy: FailurePolicy::Fail,
            suspend: false,
        };
        let object = ObservedPolicy::new(&id, "u", 1, Timestamp::UNIX_EPOCH, spec, PolicyStatus::default());
        assert_eq!(object.id(), Ok(id.clone()));
        (object.kind, object.metadata.name, ObservedPolicy::path(Path::new("status"), &id))
    }

    #[test]
    fn every_form_of_id_comes_back() {
        assert_eq!(round("cluster/a"), (Kind::ClusterPolicy, "a".into(), "status/cluster/a.yaml".into()));
        assert_eq!(round("namespaced/n/a"), (Kind::Policy, "a".into(), "status/namespaced/n/a.yaml".into()));
        assert_eq!(round("cluster"), (Kind::ClusterPolicy, "cluster".into(), "status/cluster.yaml".into()));
    }
}
