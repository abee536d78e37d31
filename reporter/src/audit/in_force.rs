//! Which spec is in force: the policy's own or, after a rollback, that of an older generation, which is in a revision. Pure.

use std::collections::BTreeMap;

use portcullis_api::{Kind, PolicyKey, PolicyReference};
use serde_json::Value;

/// Where the rules, selectors, match conditions and grants in force are found.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Content {
    /// In the policy.
    Own,
    /// In this spec of a revision.
    Revision(Value),
    /// In the revision of this generation.
    Unknown {
        generation: i64,
        /// Whether there is no such revision. Otherwise it cannot be read.
        is_missing: bool,
    },
}

/// What the API server says of a revision.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Found {
    /// The object.
    Revision(Value),
    /// No revision has that name.
    Nothing,
    /// It did not answer, or what it sent cannot be read.
    Unreadable,
}

/// A revision that may have the content of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    policy: PolicyReference,
    generation: i64,
    /// The generation that this pod's evaluator serves; 0 if it serves none.
    serving: i64,
}

/// The revision that has the content of a policy; none if that is in the policy. A policy that is rolled back has another content than its
/// spec, in every generation. An older generation that serves because a newer one does not load is called by the rules of the newer one.
/// `served` has the generation that this pod's evaluator serves of each policy.
pub(super) fn wanted(kind: Kind, object: &Value, served: &BTreeMap<PolicyKey, i64>) -> Option<Wanted> {
    let metadata = &object["metadata"];
    let text = |field: &str| Some(metadata[field].as_str()?.to_owned());
    let (name, uid) = (text("name")?, text("uid")?);
    if !object["spec"]["rollbackTo"].is_i64() {
        return None;
    }
    let serving = served.get(&PolicyKey::of(&uid)).copied().unwrap_or(0);
    let policy = PolicyReference { kind, namespace: text("namespace"), name, uid };
    Some(Wanted { policy, generation: metadata["generation"].as_i64()?, serving })
}

impl Wanted {
    /// The name of the revision.
    pub(super) fn name(&self) -> String {
        self.policy.revision_name(self.generation)
    }

    /// The content, by what was found of the revision.
    ///
    /// # Errors
    /// With another revision, where this one has no content: a generation for which there is nothing to roll back to is called by nobody, so
    /// API servers go on calling the one that serves. Where none serves, the policy is not asked at all, whatever its rules.
    pub(super) fn content(self, found: Found) -> Result<Content, Self> {
        // It may have content, by which reports were made.
        if found == Found::Unreadable {
            return Ok(Content::Unknown { generation: self.generation, is_missing: false });
        }
        let is_missing = found == Found::Nothing;
        if let Some(spec) = self.spec(found) {
            return Ok(Content::Revision(spec));
        }
        match self.serving {
            0 => Ok(Content::Own),
            generation if generation == self.generation => Ok(Content::Unknown { generation, is_missing }),
            generation => Err(Self { generation, ..self }),
        }
    }

    /// The content of a revision, if it is of this policy and has one. Anybody may have changed it.
    fn spec(&self, found: Found) -> Option<Value> {
        let Found::Revision(mut revision) = found else { return None };
        let data = revision.get_mut("data")?;
        let uid = data.get("policy").and_then(|policy| policy.get("uid"));
        if uid.is_none_or(|uid| *uid != *self.policy.uid)
            || data.get("problem").is_some_and(|problem| !problem.is_null())
        {
            return None;
        }
        data.get_mut("spec").map(Value::take).filter(Value::is_object)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const UID: &str = "9b2c41d2-a1f0-4e17-8000-000000000001";

    /// What is wanted of a policy with generation 4, where this one serves.
    fn wanted_of(rollback_to: Option<i64>, serving: Option<i64>) -> Option<Wanted> {
        let metadata = json!({"name": "a", "namespace": "n", "uid": UID, "generation": 4});
        let served = serving.map(|serving| (PolicyKey::of(UID), serving)).into_iter().collect();
        wanted(Kind::Policy, &json!({"metadata": metadata, "spec": {"rollbackTo": rollback_to}}), &served)
    }

    fn rolled_back(serving: Option<i64>) -> Wanted {
        wanted_of(Some(1), serving).expect("a revision")
    }

    fn revision(uid: &str, problem: Value) -> Found {
        Found::Revision(json!({"data": {"policy": {"uid": uid}, "problem": problem, "spec": {"rules": []}}}))
    }

    #[test]
    fn after_a_rollback_the_content_is_in_the_newest_revision() {
        assert_eq!(wanted_of(None, Some(4)), None);
        for serving in [None, Some(3), Some(4)] {
            assert_eq!(rolled_back(serving).name(), "a-9b2c41d2a1f04e17-4");
            let content = rolled_back(serving).content(revision(UID, Value::Null));
            assert_eq!(content, Ok(Content::Revision(json!({"rules": []}))));
        }
    }

    #[test]
    fn where_there_is_nothing_to_roll_back_to_the_content_is_that_of_the_generation_that_serves() {
        for found in [Found::Nothing, revision(UID, json!("gone"))] {
            let serving = rolled_back(Some(3)).content(found.clone()).expect_err("another revision");
            assert_eq!(serving.name(), "a-9b2c41d2a1f04e17-3");
            let content = serving.clone().content(revision(UID, Value::Null));
            assert_eq!(content, Ok(Content::Revision(json!({"rules": []}))));
            for (last, is_missing) in [(Found::Nothing, true), (Found::Unreadable, false)] {
                assert_eq!(serving.clone().content(last), Ok(Content::Unknown { generation: 3, is_missing }));
            }
            assert_eq!(rolled_back(None).content(found), Ok(Content::Own), "nothing serves");
        }
    }

    #[test]
    fn the_content_of_a_revision_that_cannot_be_read_is_unknown_whatever_serves() {
        for serving in [None, Some(3), Some(4)] {
            let content = rolled_back(serving).content(Found::Unreadable);
            assert_eq!(content, Ok(Content::Unknown { generation: 4, is_missing: false }), "{serving:?}");
        }
    }

    #[test]
    fn a_revision_of_another_policy_or_without_content_is_none() {
        let of_another = revision("other", Value::Null);
        let damaged = [json!("damage"), json!(7), json!([]), json!({"policy": {"uid": UID}, "spec": "?"})];
        let damaged = damaged.map(|data| Found::Revision(json!({"data": data})));
        let no_object = Found::Revision(json!("damage"));
        for other in damaged.into_iter().chain([no_object, of_another]) {
            let content = rolled_back(Some(4)).content(other.clone());
            assert_eq!(content, Ok(Content::Unknown { generation: 4, is_missing: false }), "{other:?}");
        }
    }
}
