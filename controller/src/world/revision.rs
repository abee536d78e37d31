//! A revision, with what decisions need of it.

use std::collections::BTreeMap;

use portcullis_api::kubernetes::{Outline, decode_spec};
use portcullis_api::revision::{identity, labelled_group};
use portcullis_api::{PolicyReference, RevisionData, RevisionError, RevisionMarks};
use portcullis_contract::{GroupId, WebhookKind};

use super::policy::{Content, Unreadable};
use super::room::bytes_of;

/// A revision.
#[derive(Debug, Clone)]
pub struct RevisionView {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub version: String,
    /// The policy.
    pub policy: PolicyReference,
    /// The generation of the policy.
    pub generation: i64,
    /// What its annotations say.
    pub marks: RevisionMarks,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// The match group that its labels name.
    pub label: Option<(GroupId, WebhookKind)>,
    /// The part of its spec that decides which webhook calls the policy, or why it cannot be read.
    pub content: Result<Content, Unreadable>,
    /// Why this release cannot read it, if it cannot; then no replica serves it.
    pub unreadable: Option<Unreadable>,
    /// The size of its spec as JSON, in bytes. The spec itself is read again when a policy is rolled back to it.
    pub spec_bytes: usize,
    /// What its match part takes in memory, in bytes.
    pub match_bytes: usize,
    /// Whether it can be served; false if the content for `rollbackTo` was missing.
    pub has_content: bool,
}

impl RevisionView {
    /// Reads an object; `None` if neither its data nor its labels name a policy.
    pub fn read(object: &Outline) -> Option<Self> {
        let data = &object.data["data"];
        let labels = object.metadata.labels.clone().unwrap_or_default();
        let (policy, generation) = identity(data, &labels, object.data["revision"].as_i64().unwrap_or(0))?;
        let annotations = object.metadata.annotations.clone().unwrap_or_default();
        let whole = if object.is_cut() { Err(RevisionError::TooLarge) } else { RevisionData::read(data) };
        let (content, unreadable, has_content) = match whole {
            Ok(data) => {
                let content = Content::read(&policy, &data.spec, data.shard, data.shared);
                (content, decode_spec(data.spec).err().map(Unreadable::Unknown), data.problem.is_none())
            }
            Err(damage) => (Err(Unreadable::Damaged(damage.clone())), Some(Unreadable::Damaged(damage)), false),
        };
        Some(Self {
            name: object.metadata.name.clone()?,
            uid: object.metadata.uid.clone()?,
            version: object.metadata.resource_version.clone().unwrap_or_default(),
            generation,
            marks: RevisionMarks::of(&annotations),
            annotations,
            label: labelled_group(&labels),
            match_bytes: content.as_ref().map_or(0, |content| bytes_of(&content.own)),
            content,
            unreadable,
            policy,
            has_content,
            spec_bytes: object.spec_bytes(),
        })
    }

    /// How much room it takes, in bytes: in etcd as its spec, or in the memory of this program as its match part, whichever is more. A match part
    /// can take fifteen times its text.
    pub fn bytes(&self) -> usize {
        self.spec_bytes.max(self.match_bytes)
    }

    /// Whether the policy is a member of this generation's match group.
    pub fn is_in_force(&self) -> bool {
        !self.marks.withdrawn && !self.marks.deleted
    }

    /// The match groups that it names: that of its content, and that of its labels if it is another. Loaders see the same two, so the
    /// policy leaves neither before the other is called. The content is right, if it can be read, and labels are corrected later.
    pub fn groups(&self) -> impl Iterator<Item = &GroupId> {
        let own = self.content.as_ref().ok().map(|content| &content.group);
        let label = self.label.as_ref().map(|(group, _)| group).filter(|group| Some(*group) != own);
        own.into_iter().chain(label)
    }

    /// Whether its match part is that of this content.
    pub fn has_part_of(&self, content: &Content) -> bool {
        self.content.as_ref().is_ok_and(|own| own.own.is_same(&content.own))
    }

    /// Whether it is withdrawn as soon as there is a newer revision with this content: it is in the same group, and the policy is asked about
    /// the same requests, or was never asked because of it. In a webhook that policies share, match parts of one group differ.
    pub fn gives_way_to(&self, content: &Content) -> bool {
        let is_member = self.groups().any(|group| *group == content.group);
        is_member && (!content.shared || !self.marks.served || self.has_part_of(content))
    }

    /// Whether it has the name that the controller gives; a copy with another name does not count.
    pub fn is_named_well(&self) -> bool {
        self.name == self.policy.revision_name(self.generation)
    }
}

#[cfg(test)]
mod tests {
    use portcullis_api::revision::group_labels;
    use serde_json::{Value, json};

    use super::*;

    fn object(data: Value, label: Option<&GroupId>) -> Outline {
        let policy = PolicyReference {
            kind: portcullis_api::Kind::ClusterPolicy,
            namespace: None,
            name: "a".into(),
            uid: "uid-of-a".into(),
        };
        let mut labels = policy.labels("default");
        let named = label.map(|group| group_labels(group, WebhookKind::Validating));
        labels.extend(named.into_iter().flatten().map(|(key, value)| (key.to_owned(), value)));
        let metadata = json!({"name": policy.revision_name(3), "uid": "u", "labels": labels});
        serde_json::from_value(json!({"metadata": metadata, "revision": 3, "data": data})).expect("an object")
    }

    fn read(data: Value, label: Option<&GroupId>) -> RevisionView {
        RevisionView::read(&object(data, label)).expect("its policy is known")
    }

    fn data(change: impl FnOnce(&mut Value)) -> Value {
        let mut data = json!({
            "policy": {"kind": "ClusterPolicy", "name": "a", "uid": "uid-of-a"}, "generation": 3,
            "spec": {"module": "m", "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}]},
        });
        change(&mut data);
        data
    }

    #[test]
    fn z18_a_damaged_revision_is_its_policys_and_in_the_group_of_its_labels() {
        let group: GroupId = "0123456789abcdef".parse().expect("an id");
        for damage in [json!(null), json!("text"), json!({"spec": 7}), data(|data| data["shard"] = json!("x"))] {
            let revision = read(damage, Some(&group));
            assert_eq!((revision.policy.uid.as_str(), revision.generation), ("uid-of-a", 3));
            assert!(matches!(revision.unreadable, Some(Unreadable::Damaged(_))), "{:?}", revision.unreadable);
            assert_eq!(revision.groups().collect::<Vec<_>>(), [&group]);
            assert!(revision.is_named_well() && !revision.has_content);
        }
    }

    #[test]
    fn z18_what_a_newer_release_wrote_is_read_as_far_as_it_goes() {
        let plain = read(data(|_| ()), None);
        let own = plain.content.expect("a content").group;
        let unknown_field = read(data(|data| data["spec"]["novelty"] = json!(1)), None);
        assert!(unknown_field.unreadable.is_none());
        let unknown_value = read(data(|data| data["spec"]["mode"] = json!("quarantine")), None);
        assert_eq!(unknown_value.groups().collect::<Vec<_>>(), [&own], "its match part is known");
        assert!(
            matches!(&unknown_value.unreadable, Some(Unreadable::Unknown(error)) if error.to_string().contains("quarantine"))
        );
        let unknown_part = data(|data| data["spec"]["failurePolicy"] = json!("Perhaps"));
        assert_eq!(read(unknown_part.clone(), None).groups().count(), 0);
        assert_eq!(read(unknown_part, Some(&own)).groups().collect::<Vec<_>>(), [&own]);
    }

    #[test]
    fn z18_a_label_beside_readable_content_adds_its_group_and_replaces_none() {
        let other: GroupId = "0123456789abcdef".parse().expect("an id");
        let revision = read(data(|_| ()), Some(&other));
        let own = revision.content.as_ref().map(|content| content.group.clone()).expect("a content");
        assert_eq!(revision.groups().collect::<Vec<_>>(), [&own, &other]);
        assert_eq!(read(data(|_| ()), Some(&own)).groups().count(), 1);
    }

    #[test]
    fn a_shard_is_another_group() {
        let of = |shard: u32| read(data(|data| data["shard"] = json!(shard)), None).content.expect("a content").group;
        assert_eq!(of(0), read(data(|_| ()), None).content.expect("a content").group);
        assert_ne!(of(0), of(1));
    }

    #[test]
    fn one_that_tells_nobody_is_nobodys() {
        let mut nobodys = object(json!(7), None);
        nobodys.metadata.labels = None;
        assert!(RevisionView::read(&nobodys).is_none());
    }
}
