//! Revisions: one ControllerRevision (`apps/v1`) per generation of a policy, in the installation's namespace (docs/design/overview.md,
//! section 3).
//!
//! The controller writes them and the loader reads them. The data of a revision never change. What becomes known later, such as its
//! digest, that it served, or that its match part is no longer registered, is in annotations.

use std::collections::BTreeMap;

use portcullis_contract::{Digest, GroupId, PolicyId, PolicyIdError, WebhookKind};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Kind, PolicyKey};

/// Label of everything that belongs to one installation; the value is the name of its policy server.
pub const POLICY_SERVER_LABEL: &str = "policies.portcullis.dev/policy-server";
/// Label of a revision: the uid of its policy.
pub const POLICY_UID_LABEL: &str = "policies.portcullis.dev/policy-uid";
/// Label of a revision: the kind of its policy.
pub const POLICY_KIND_LABEL: &str = "policies.portcullis.dev/policy-kind";
/// Label of a revision: the namespace of its policy; absent for a ClusterPolicy.
pub const POLICY_NAMESPACE_LABEL: &str = "policies.portcullis.dev/policy-namespace";
/// Label of a revision: the name of its policy.
pub const POLICY_NAME_LABEL: &str = "policies.portcullis.dev/policy-name";
/// Label of a revision: the match group of its policy at this generation. It follows from the content, and is repeated here for
/// programs that cannot read the content.
pub const MATCH_GROUP_LABEL: &str = "policies.portcullis.dev/match-group";
/// Label of a revision: the kind of that group's webhook, `validating` or `mutating`.
pub const WEBHOOK_KIND_LABEL: &str = "policies.portcullis.dev/webhook-kind";
/// Annotation of a revision: the digest of its module, once known; for a group, a JSON object with each member's digest.
pub const PINNED_DIGEST_ANNOTATION: &str = "policies.portcullis.dev/pinned-digest";
/// Annotation of a revision, `true`: the generation has served on every replica, called by API servers or suspended. A policy with such
/// a revision was enforced once: the newest one with this annotation is never removed, and only after `helm uninstall` it becomes `false`.
pub const SERVED_ANNOTATION: &str = "policies.portcullis.dev/served";
/// Annotation of a revision, `true`: its match part is no longer registered, so its match group need not be served. Content and digest
/// can still be the last good ones, unless the policy itself is being deleted ([`DELETED_ANNOTATION`]).
pub const WITHDRAWN_ANNOTATION: &str = "policies.portcullis.dev/withdrawn";
/// Annotation of a revision, `true`: the policy is being deleted and its webhook is no longer registered, so the loader drops it at
/// once.
pub const DELETED_ANNOTATION: &str = "policies.portcullis.dev/deleted";
/// Annotation of a revision that was made for `rollbackTo`: the generation whose content it holds.
pub const ROLLED_BACK_TO_ANNOTATION: &str = "policies.portcullis.dev/rolled-back-to";

/// The `data` of a revision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RevisionData {
    /// The policy.
    pub policy: PolicyReference,
    /// The policy's `metadata.generation`, which is also the revision's number.
    pub generation: i64,
    /// The policy's `spec` as the API server stored it, unchanged, even if another release wrote it.
    pub spec: Value,
    /// Why this generation cannot be served, for people to read: the content for `rollbackTo` is missing. Then only those fields of `spec`
    /// count that are always taken from the newest generation. Absent if the generation can be served.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub problem: Option<String>,
    /// Which shard of its match part the policy is in ([`portcullis_contract::shard_id`]).
    #[serde(skip_serializing_if = "is_first", default)]
    pub shard: u32,
    /// Whether the policy shares a webhook with policies of other object selectors and match conditions, which the evaluators then judge
    /// ([`portcullis_contract::MatchPart::shared`]).
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub shared: bool,
}

impl RevisionData {
    /// Reads the `data` of a revision.
    ///
    /// # Errors
    /// When the data cannot be read. The message quotes no part of them.
    pub fn read(data: &Value) -> Result<Self, RevisionError> {
        if !data.is_object() {
            return Err(RevisionError::NotAnObject);
        }
        Self::deserialize(data).map_err(|error| RevisionError::Malformed(error.to_string()))
    }
}

/// Data that are not those of a revision of any release. Usually someone else has changed the object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RevisionError {
    /// They have no fields.
    #[error("its data are not an object")]
    NotAnObject,
    /// They are larger than the controller makes them.
    #[error("its data take too much memory when they are decoded")]
    TooLarge,
    /// A field is missing or has another type.
    #[error("{0}")]
    Malformed(String),
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_first(shard: &u32) -> bool {
    *shard == 0
}

/// A policy, by name and uid.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyReference {
    /// Policy or ClusterPolicy.
    pub kind: Kind,
    /// The namespace of a Policy; absent for a ClusterPolicy.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

impl PolicyReference {
    /// The policy's id.
    ///
    /// # Errors
    /// When the name or namespace is not a DNS name of at most 63 characters.
    pub fn id(&self) -> Result<PolicyId, PolicyIdError> {
        match self.kind {
            Kind::ClusterPolicy => PolicyId::cluster(&self.name),
            Kind::Policy => PolicyId::namespaced(self.namespace.as_deref().unwrap_or("default"), &self.name),
        }
    }

    /// The name of the revision of one generation. Every controller makes the same name, so that two of them cannot both create it.
    pub fn revision_name(&self, generation: i64) -> String {
        format!("{}-{}-{generation}", self.name, PolicyKey::of(&self.uid))
    }

    /// The labels of its revisions.
    pub fn labels(&self, policy_server: &str) -> BTreeMap<String, String> {
        let kind = match self.kind {
            Kind::Policy => "Policy",
            Kind::ClusterPolicy => "ClusterPolicy",
        };
        let labels = [
            (POLICY_SERVER_LABEL, Some(policy_server)),
            (POLICY_UID_LABEL, Some(self.uid.as_str())),
            (POLICY_KIND_LABEL, Some(kind)),
            (POLICY_NAMESPACE_LABEL, self.namespace.as_deref()),
            (POLICY_NAME_LABEL, Some(self.name.as_str())),
        ];
        labels.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned()))).collect()
    }
}

/// The policy and the generation of a revision: from its data, or from its labels and number if the data cannot be read.
pub fn identity(data: &Value, labels: &BTreeMap<String, String>, number: i64) -> Option<(PolicyReference, i64)> {
    let told = data.get("policy").and_then(|policy| PolicyReference::deserialize(policy).ok());
    let generation = data.get("generation").and_then(Value::as_i64).unwrap_or(number);
    Some((told.or_else(|| labelled(labels))?, generation))
}

fn labelled(labels: &BTreeMap<String, String>) -> Option<PolicyReference> {
    let kind = match labels.get(POLICY_KIND_LABEL)?.as_str() {
        "Policy" => Kind::Policy,
        "ClusterPolicy" => Kind::ClusterPolicy,
        _ => return None,
    };
    Some(PolicyReference {
        kind,
        namespace: labels.get(POLICY_NAMESPACE_LABEL).cloned(),
        name: labels.get(POLICY_NAME_LABEL)?.clone(),
        uid: labels.get(POLICY_UID_LABEL)?.clone(),
    })
}

/// The match group that the labels of a revision name. Content that can be read takes precedence.
pub fn labelled_group(labels: &BTreeMap<String, String>) -> Option<(GroupId, WebhookKind)> {
    let kind = match labels.get(WEBHOOK_KIND_LABEL)?.as_str() {
        "validating" => WebhookKind::Validating,
        "mutating" => WebhookKind::Mutating,
        _ => return None,
    };
    Some((labels.get(MATCH_GROUP_LABEL)?.parse().ok()?, kind))
}

/// The labels that name a match group.
pub fn group_labels(group: &GroupId, kind: WebhookKind) -> [(&'static str, String); 2] {
    let kind = match kind {
        WebhookKind::Validating => "validating",
        WebhookKind::Mutating => "mutating",
    };
    [(MATCH_GROUP_LABEL, group.to_string()), (WEBHOOK_KIND_LABEL, kind.to_owned())]
}

/// What the annotations of a revision say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RevisionMarks {
    /// The digest of its module; absent until known, and if the annotation is not a digest.
    pub pinned_digest: Option<Digest>,
    /// For a group, the digest of each member's module, by the member's name; empty until known.
    pub pinned_members: BTreeMap<String, Digest>,
    /// The generation has served on every replica.
    pub served: bool,
    /// Its match part is no longer registered.
    pub withdrawn: bool,
    /// Its policy is being deleted.
    pub deleted: bool,
    /// The generation whose content it holds, if that is another generation.
    pub rolled_back_to: Option<i64>,
}

impl RevisionMarks {
    /// Reads annotations.
    pub fn of(annotations: &BTreeMap<String, String>) -> Self {
        let is_true = |key: &str| annotations.get(key).is_some_and(|value| value == "true");
        let pin = annotations.get(PINNED_DIGEST_ANNOTATION);
        Self {
            pinned_digest: pin.and_then(|text| text.parse().ok()),
            pinned_members: pin.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default(),
            served: is_true(SERVED_ANNOTATION),
            withdrawn: is_true(WITHDRAWN_ANNOTATION),
            deleted: is_true(DELETED_ANNOTATION),
            rolled_back_to: annotations.get(ROLLED_BACK_TO_ANNOTATION).and_then(|text| text.parse().ok()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference() -> PolicyReference {
        PolicyReference {
            kind: Kind::Policy,
            namespace: Some("team-a".to_owned()),
            name: "labels".to_owned(),
            uid: "9b2c41d2-a1f0-4e17-8000-0123456789ab".to_owned(),
        }
    }

    #[test]
    fn a_revision_is_named_after_policy_uid_and_generation() {
        assert_eq!(reference().revision_name(7), "labels-9b2c41d2a1f04e17-7");
    }

    #[test]
    fn numbers_in_settings_stay_what_they_are() {
        // A fast float parser reads this number off by one in the last place.
        let text = r#"{"settings":{"ratio":31.245270191439438}}"#;
        let spec: Value = serde_json::from_str(text).expect("JSON");
        let data = RevisionData { policy: reference(), generation: 1, spec, problem: None, shard: 0, shared: false };
        let written = serde_json::to_string(&data).expect("JSON");
        assert!(written.contains(text), "{written}");
    }

    #[test]
    fn labels_find_the_revisions_of_a_policy() {
        let labels = reference().labels("default");
        assert_eq!(labels[POLICY_NAMESPACE_LABEL], "team-a");
        assert_eq!(labels[POLICY_SERVER_LABEL], "default");
        assert_eq!(labels.len(), 5);
    }

    #[test]
    fn whose_revision_it_is_stands_in_its_data_and_else_in_its_labels() {
        let labels = reference().labels("default");
        let other = PolicyReference { uid: "other".to_owned(), ..reference() };
        let data = serde_json::json!({"policy": other, "generation": 4, "shard": "nonsense"});
        assert_eq!(identity(&data, &labels, 3), Some((other, 4)));
        let damaged = serde_json::json!({"policy": {"kind": "Novelty"}, "generation": "4"});
        assert_eq!(identity(&damaged, &labels, 3), Some((reference(), 3)));
        assert_eq!(identity(&Value::Null, &labels, 3), Some((reference(), 3)));
        assert_eq!(identity(&Value::Null, &BTreeMap::new(), 3), None);
        assert!(RevisionData::read(&damaged).is_err());
        assert_eq!(RevisionData::read(&"hunter2".into()), Err(RevisionError::NotAnObject));
    }

    #[test]
    fn labels_name_a_match_group_or_none() {
        let group: GroupId = "0123456789abcdef".parse().expect("an id");
        let labels = |pairs: &[(&str, String)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect::<BTreeMap<_, _>>()
        };
        let mut all = labels(&group_labels(&group, WebhookKind::Mutating));
        assert_eq!(labelled_group(&all), Some((group, WebhookKind::Mutating)));
        all.insert(MATCH_GROUP_LABEL.to_owned(), "../../etc".to_owned());
        assert_eq!(labelled_group(&all), None);
        assert_eq!(labelled_group(&BTreeMap::new()), None);
    }

    #[test]
    fn marks_are_read_from_annotations() {
        let annotations = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect::<BTreeMap<_, _>>()
        };
        assert_eq!(RevisionMarks::of(&annotations(&[])), RevisionMarks::default());
        let marks = RevisionMarks::of(&annotations(&[
            (SERVED_ANNOTATION, "true"),
            (WITHDRAWN_ANNOTATION, "yes"),
            (PINNED_DIGEST_ANNOTATION, "nonsense"),
        ]));
        assert_eq!(marks, RevisionMarks { served: true, ..RevisionMarks::default() });
    }

    #[test]
    fn a_pin_is_of_a_module_or_of_members() {
        let digest = Digest::of(b"m");
        let marks = |pin: String| RevisionMarks::of(&BTreeMap::from([(PINNED_DIGEST_ANNOTATION.to_owned(), pin)]));
        assert_eq!(marks(digest.to_string()).pinned_digest, Some(digest));
        let group = marks(format!(r#"{{"a": "{digest}"}}"#));
        assert_eq!((group.pinned_digest, group.pinned_members["a"]), (None, digest));
    }
}
