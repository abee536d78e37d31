//! What a policy asks for: the part that always acts from the newest generation, and the part that a generation serves.

use std::collections::BTreeSet;

use jiff::Timestamp;
use portcullis_contract::{
    Artifact, Candidate, ContextAwareResource, Digest, ExecutionMode, FailurePolicy, GroupId, Mode, PolicyId,
    WebhookKind,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::problem::Problem;
use crate::source::Reference;

/// The namespace of policies' uids in a folder, for UUID version 5. It must never change: the uid of a policy is the same at
/// every start.
const UIDS: Uuid = Uuid::from_u128(0x6f5a_2c1e_93b4_4d57_8a0c_52d1_7e84_b3f9);

/// A policy as the input wants it now.
#[derive(Debug, Clone)]
pub(crate) struct DesiredPolicy {
    /// The id.
    pub id: PolicyId,
    /// The file that says so, relative to the folder.
    pub file: String,
    /// When the object was made, where the manifest says.
    pub created: Option<Timestamp>,
    /// Equal for equal content, whatever the file's form.
    pub hash: Digest,
    /// What acts at once; absent when not even that can be read.
    pub head: Option<Head>,
    /// What is served, or why it cannot be.
    pub body: Result<Body, Problem>,
    /// What only an object of an API server has; absent in a folder, where the loader itself counts generations.
    pub object: Option<Object>,
}

/// What an API server and the revisions there know of a policy.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    /// The object's uid.
    pub uid: String,
    /// The object's generation.
    pub generation: i64,
    /// The digest that the newest generation's module must have, once it was recorded.
    pub pin: Option<Digest>,
    /// The match groups of older generations that may still be called.
    pub older_groups: BTreeSet<(GroupId, WebhookKind)>,
    /// The newest older generation that served everywhere.
    pub last_served: Option<Served>,
    /// Whether some generation did, the newest one included.
    pub enforced: bool,
    /// Whether the newest one did.
    pub newest_served: bool,
}

/// An older generation that served everywhere.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    /// Its number.
    pub generation: i64,
    /// What it serves.
    pub body: Body,
    /// The digest that its module must have, where that was recorded.
    pub pin: Option<Digest>,
}

/// What acts from the newest generation, whichever one serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Head {
    /// What a denial does.
    pub mode: Mode,
    /// What an unserved policy answers.
    pub failure_policy: FailurePolicy,
    /// Loaded and not asked.
    pub suspend: bool,
    /// The match group; none for policies that no webhook calls.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub group: Option<(GroupId, WebhookKind)>,
}

/// What one generation serves.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Body {
    /// The module as the user wrote it.
    pub module: String,
    /// The module's address; absent where only the artifact is remembered.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reference: Option<Reference>,
    /// A JSON object, with the keys in the user's order.
    // Left out of a record beside a candidate that has them. A loader of an earlier release then takes the record for none, rather
    // than `null` for the settings.
    #[serde(skip_serializing_if = "is_left_out", default = "left_out")]
    pub settings: Box<RawValue>,
    /// Whether a patch by the policy is sent.
    pub mutating: bool,
    /// Replaces the text of a denial.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub message: Option<String>,
    /// Longest evaluation, in seconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub timeout_eval_seconds: Option<u32>,
    /// Grants of host capabilities.
    #[serde(default)]
    pub host_capabilities: Vec<String>,
    /// Kinds the policy may read.
    #[serde(default)]
    pub context_aware_resources: Vec<ContextAwareResource>,
}

/// Stands for settings that were left out. Settings themselves are never `null`.
fn left_out() -> Box<RawValue> {
    RawValue::NULL.to_owned()
}

fn is_left_out(settings: &RawValue) -> bool {
    settings.get() == RawValue::NULL.get()
}

/// The uid of a policy that has none of its own.
pub(crate) fn uid(id: &PolicyId) -> String {
    Uuid::new_v5(&UIDS, id.as_str().as_bytes()).to_string()
}

/// The hash of a policy's content. The place of the folder is not part of it.
pub(crate) fn hash(head: &Head, body: &Body) -> Digest {
    let parts = (
        head,
        &body.module,
        &body.settings,
        body.mutating,
        &body.message,
        body.timeout_eval_seconds,
        &body.host_capabilities,
        &body.context_aware_resources,
    );
    let mut bytes = serde_json::to_vec(&parts).expect("has text keys only");
    bytes.extend(body.reference.as_ref().and_then(Reference::signatures).unwrap_or_default().into_bytes());
    Digest::of(&bytes)
}

impl Head {
    /// What stands in where nothing could be read: the stricter answers.
    pub(crate) fn strict() -> Self {
        Self { mode: Mode::Protect, failure_policy: FailurePolicy::Fail, suspend: false, group: None }
    }
}

impl Body {
    /// The candidate that serves this body.
    pub(crate) fn candidate(
        &self,
        generation: i64,
        digest: Digest,
        artifact: Artifact,
        execution_mode: ExecutionMode,
    ) -> Candidate {
        Candidate {
            generation,
            digest,
            artifact,
            execution_mode,
            settings: self.settings.clone(),
            mutating: self.mutating,
            message: self.message.clone(),
            timeout_eval_seconds: self.timeout_eval_seconds,
            host_capabilities: self.host_capabilities.clone(),
            context_aware_resources: self.context_aware_resources.clone(),
        }
    }

    /// The body as far as a candidate of an earlier manifest records it: everything but the module's address.
    pub(crate) fn of_candidate(candidate: &Candidate) -> Self {
        Self {
            module: String::new(),
            reference: None,
            settings: candidate.settings.clone(),
            mutating: candidate.mutating,
            message: candidate.message.clone(),
            timeout_eval_seconds: candidate.timeout_eval_seconds,
            host_capabilities: candidate.host_capabilities.clone(),
            context_aware_resources: candidate.context_aware_resources.clone(),
        }
    }

    /// The same without the settings, for a record beside a candidate that has them: they may be large.
    pub(crate) fn without_settings(&self) -> Self {
        Self {
            module: self.module.clone(),
            reference: self.reference.clone(),
            settings: left_out(),
            mutating: self.mutating,
            message: self.message.clone(),
            timeout_eval_seconds: self.timeout_eval_seconds,
            host_capabilities: self.host_capabilities.clone(),
            context_aware_resources: self.context_aware_resources.clone(),
        }
    }

    /// What [`Body::without_settings`] was made of, with the settings of the candidate.
    pub(crate) fn with_settings_of(self, candidate: Option<&Candidate>) -> Option<Self> {
        if !is_left_out(&self.settings) {
            return Some(self);
        }
        Some(Self { settings: candidate?.settings.clone(), ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uid_is_the_same_at_every_start() {
        let id: PolicyId = "cluster/no-privileged".parse().expect("an id");
        assert_eq!(uid(&id), uid(&id));
        assert_ne!(uid(&id), uid(&"cluster/other".parse().expect("an id")));
    }
}
