//! By what a policy is called: its own spec, or that of an older generation, which is in a revision. Pure.

use portcullis_api::{Kind, PolicyKey, PolicyReference};
use serde_json::Value;

use super::subject::Served;

/// Where rules, selectors, match conditions and grants stand by which a policy is called.
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

/// The revision that has the content of a policy; none if that is in the policy. While a newer generation does not load, the older one answers,
/// and API servers call it by its own rules. A policy that is rolled back has another content than its spec in every generation.
pub(super) fn wanted(kind: Kind, object: &Value, served: &Served) -> Option<Wanted> {
    let metadata = &object["metadata"];
    let text = |field: &str| Some(metadata[field].as_str()?.to_owned());
    let (name, uid) = (text("name")?, text("uid")?);
    let newest = metadata["generation"].as_i64().unwrap_or(0);
    let serving = served.get(&PolicyKey::of(&uid)).copied().unwrap_or(0);
    let is_rolled_back = object["spec"]["rollbackTo"].is_i64();
    let is_older = serving > 0 && serving < newest;
    if !is_rolled_back && !is_older {
        return None;
    }
    let generation = if serving > 0 { serving } else { newest };
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

    fn wanted_of(rollback_to: Option<i64>, serving: i64) -> Option<Wanted> {
        let metadata = json!({"name": "a", "namespace": "n", "uid": UID, "generation": 4});
        let served = Served::from([(PolicyKey::of(UID), serving)]);
        wanted(Kind::Policy, &json!({"metadata": metadata, "spec": {"rollbackTo": rollback_to}}), &served)
    }

    #[test]
    fn the_content_is_that_of_the_generation_that_serves() {
        let generation = |rollback_to, serving| wanted_of(rollback_to, serving).map(|wanted| wanted.generation);
        assert_eq!([0, 4, 5].map(|serving| generation(None, serving)), [None; 3], "its own");
        assert_eq!(generation(None, 3), Some(3), "the last good one");
        assert_eq!([0, 3, 4].map(|serving| generation(Some(1), serving)), [Some(4), Some(3), Some(4)]);
        assert_eq!(wanted_of(Some(1), 4).expect("a revision").name, "a-9b2c41d2a1f04e17-4");
    }

    #[test]
    fn a_revision_of_another_policy_or_without_content_is_none() {
        let content = |revision| wanted_of(Some(1), 4).expect("a revision").content(revision);
        let revision = |uid: &str, problem: Value| json!({"data": {"policy": {"uid": uid}, "problem": problem, "spec": {"rules": []}}});
        assert_eq!(content(Some(revision(UID, Value::Null))), Content::Revision(json!({"rules": []})));
        let unreadable = json!({"data": {"policy": {"uid": UID}, "spec": "?"}});
        for other in [None, Some(revision("other", Value::Null)), Some(revision(UID, json!("gone"))), Some(unreadable)]
        {
            assert_eq!(content(other), Content::Unknown(4));
        }
    }
}
