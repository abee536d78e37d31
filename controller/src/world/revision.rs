//! A revision, as far as decisions look at it.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::api::DynamicObject;
use portcullis_api::{PolicyReference, RevisionData, RevisionMarks};
use serde_json::Value;

use super::policy::Content;

/// A revision.
#[derive(Debug, Clone)]
pub struct RevisionView {
    /// Its name.
    pub name: String,
    /// Its own uid.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub version: String,
    /// Whose revision it is.
    pub policy: PolicyReference,
    /// Which generation.
    pub generation: i64,
    /// What its annotations say.
    pub marks: RevisionMarks,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// What of it decides which webhook calls the policy, or why it cannot be read.
    pub content: Result<Content, String>,
    /// The spec that it holds.
    pub spec: Arc<Value>,
    /// Whether there is something to serve. Not where the content for `rollbackTo` was not there.
    pub has_content: bool,
}

impl RevisionView {
    /// Reads an object. Nothing where it is no revision of a policy.
    pub fn read(object: &DynamicObject) -> Option<Self> {
        let data: RevisionData = serde_json::from_value(object.data["data"].clone()).ok()?;
        let annotations = object.metadata.annotations.clone().unwrap_or_default();
        Some(Self {
            name: object.metadata.name.clone()?,
            uid: object.metadata.uid.clone()?,
            version: object.metadata.resource_version.clone().unwrap_or_default(),
            generation: data.generation,
            marks: RevisionMarks::of(&annotations),
            annotations,
            content: Content::read(&data.policy, &data.spec),
            policy: data.policy,
            has_content: data.problem.is_none(),
            spec: Arc::new(data.spec),
        })
    }

    /// Whether the policy is a member of the match group of this generation.
    pub fn is_in_force(&self) -> bool {
        !self.marks.withdrawn && !self.marks.deleted
    }
}
