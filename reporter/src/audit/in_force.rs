//! By what a policy is called: its own spec, or, after a rollback, that of an older generation, which is in a revision. Pure.

use portcullis_api::{Kind, PolicyReference};
use serde_json::Value;

/// Where the rules, selectors, match conditions and grants by which a policy is called stand.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Content {
    /// In the policy.
    Own,
    /// In this spec of a revision.
    Revision(Value),
    /// In the revision of this generation, which cannot be read.
    Unknown(i64),
}

/// A revision that has the content of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) name: String,
    pub(super) generation: i64,
    uid: String,
}

/// The revision that has the content of a policy; none if that is in the policy. A policy that is rolled back has another content than its
/// spec, in every generation. An older generation that serves because a newer one does not load is called by the rules of the newer one.
pub(super) fn wanted(kind: Kind, object: &Value) -> Option<Wanted> {
    let metadata = &object["metadata"];
    let text = |field: &str| Some(metadata[field].as_str()?.to_owned());
    let (name, uid) = (text("name")?, text("uid")?);
    if !object["spec"]["rollbackTo"].is_i64() {
        return None;
    }
    let generation = metadata["generation"].as_i64()?;
    let reference = PolicyReference { kind, namespace: text("namespace"), name, uid };
    Some(Wanted { name: reference.revision_name(generation), generation, uid: reference.uid })
}

impl Wanted {
    /// The content, if this is the revision. One whose generation could not be rolled back has the policy's own spec, by which nobody calls it.
    pub(super) fn content(self, revision: Option<Value>) -> Content {
        let spec = revision.and_then(|mut revision| {
            let data = &mut revision["data"];
            let is_it = data["policy"]["uid"] == *self.uid && data["problem"].is_null();
            Some(data["spec"].take()).filter(|spec| is_it && spec.is_object())
        });
        spec.map_or(Content::Unknown(self.generation), Content::Revision)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const UID: &str = "9b2c41d2-a1f0-4e17-8000-000000000001";

    fn wanted_of(rollback_to: Option<i64>) -> Option<Wanted> {
        let metadata = json!({"name": "a", "namespace": "n", "uid": UID, "generation": 4});
        wanted(Kind::Policy, &json!({"metadata": metadata, "spec": {"rollbackTo": rollback_to}}))
    }

    #[test]
    fn after_a_rollback_the_content_is_in_the_newest_revision() {
        assert_eq!(wanted_of(None), None);
        let revision = wanted_of(Some(1)).expect("a revision");
        assert_eq!((revision.name.as_str(), revision.generation), ("a-9b2c41d2a1f04e17-4", 4));
    }

    #[test]
    fn a_revision_of_another_policy_or_without_content_is_none() {
        let content = |revision| wanted_of(Some(1)).expect("a revision").content(revision);
        let revision = |uid: &str, problem: Value| json!({"data": {"policy": {"uid": uid}, "problem": problem, "spec": {"rules": []}}});
        assert_eq!(content(Some(revision(UID, Value::Null))), Content::Revision(json!({"rules": []})));
        let unreadable = json!({"data": {"policy": {"uid": UID}, "spec": "?"}});
        for other in [None, Some(revision("other", Value::Null)), Some(revision(UID, json!("gone"))), Some(unreadable)]
        {
            assert_eq!(content(other), Content::Unknown(4));
        }
    }
}
