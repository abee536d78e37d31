//! From a ControllerRevision to what it says of its policy.

use jiff::Timestamp;
use portcullis_api::kubernetes::decode_spec;
use portcullis_api::revision::{
    POLICY_KIND_LABEL, POLICY_NAME_LABEL, POLICY_NAMESPACE_LABEL, POLICY_UID_LABEL, PolicyReference, RevisionMarks,
};
use portcullis_api::{API_VERSION, Kind, Metadata, Policy};
use portcullis_contract::{Digest, Failure, PolicyId, Reason, clean};
use serde_json::Value;

use super::object::Object;
use crate::content::{Body, Head, Problem, hash};
use crate::input::json;
use crate::input::manifest::{Place, judge, lenient_head};
use crate::input::tree::{Document, MAX_DEPTH};

/// A revision, read.
#[derive(Debug, Clone)]
pub(super) struct Revision {
    /// The name of the object.
    pub(super) name: String,
    /// The policy.
    pub(super) id: PolicyId,
    /// The policy's uid.
    pub(super) uid: String,
    /// The policy's generation.
    pub(super) generation: i64,
    /// When the revision was made.
    pub(super) created: Option<Timestamp>,
    /// What is known about it since.
    pub(super) marks: RevisionMarks,
    /// What acts at once; absent when not even that can be read.
    pub(super) head: Option<Head>,
    /// What it serves, or why it cannot be.
    pub(super) body: Result<Body, Problem>,
    /// Equal for equal content.
    pub(super) hash: Digest,
}

/// Reads a revision. Whose it is must be told; anything else that is wrong is the policy's own problem.
///
/// # Errors
/// In words, when content and labels do not tell whose revision it is.
pub(super) fn read(object: &Object) -> Result<Revision, String> {
    let text = object.data.as_ref().map_or("null", |data| data.get());
    let document = json::documents(text).map_err(|error| error.to_string()).and_then(|mut documents| {
        if documents.is_empty() { Err("data: it is empty".to_owned()) } else { Ok(documents.remove(0)) }
    });
    let value = document.as_ref().map(|document| &document.value).ok();
    let told = value.and_then(|value| serde_json::from_value(value.get("policy")?.clone()).ok());
    let Some(policy) = told.or_else(|| labelled(object)) else {
        return Err("neither its data nor its labels tell whose revision it is".to_owned());
    };
    let id = policy.id().map_err(|error| format!("its policy's name cannot be used: {error}"))?;
    let generation = value.and_then(|value| value["generation"].as_i64()).unwrap_or(object.revision);
    let problem = value.and_then(|value| value["problem"].as_str()).map(|text| clean(text, Failure::MAX_MESSAGE));
    let (head, body) = match document {
        Ok(document) => content(&policy, document),
        Err(text) => (None, Err(Problem::new(Reason::SpecInvalid, format!("the revision cannot be read: {text}")))),
    };
    // Its switches act, and nobody knows what else it would be.
    let body = problem.map_or(body, |text| Err(Problem::new(Reason::SpecInvalid, text)));
    let hash = match (&head, &body) {
        (Some(head), Ok(body)) => hash(head, body),
        _ => Digest::of(text.as_bytes()),
    };
    let metadata = &object.metadata;
    Ok(Revision {
        name: metadata.name.clone().unwrap_or_default(),
        id,
        uid: policy.uid,
        generation,
        created: metadata.creation_timestamp.as_ref().map(|time| time.0),
        marks: metadata.annotations.as_ref().map(RevisionMarks::of).unwrap_or_default(),
        head,
        body,
        hash,
    })
}

/// Whose revision it is, by its labels.
fn labelled(object: &Object) -> Option<PolicyReference> {
    let labels = object.metadata.labels.as_ref()?;
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

fn content(policy: &PolicyReference, document: Document) -> (Option<Head>, Result<Body, Problem>) {
    let Document { mut value, too_deep, .. } = document;
    // Settings are taken out first, so that no error text of the decoder can quote them.
    let taken = value.get_mut("spec").and_then(Value::as_object_mut).and_then(|spec| spec.shift_remove("settings"));
    let lenient = lenient_head(&value);
    let invalid = |text: String| Err(Problem::new(Reason::SpecInvalid, text));
    if too_deep.as_ref().is_some_and(|path| path.first().is_none_or(|key| key != "spec")) {
        return (lenient, invalid(format!("the revision is nested deeper than {MAX_DEPTH} levels")));
    }
    let spec = value.get_mut("spec").map(Value::take).unwrap_or_default();
    let spec = match decode_spec(spec) {
        Ok(spec) => spec,
        Err(error) => return (lenient, invalid(error.to_string())),
    };
    let metadata = Metadata { name: policy.name.clone(), namespace: policy.namespace.clone(), ..Metadata::default() };
    let policy = Policy { api_version: API_VERSION.to_owned(), kind: policy.kind, metadata, spec, status: None };
    let (head, body) = judge(policy, taken, too_deep.as_deref(), Place::Cluster);
    (Some(head), body)
}

#[cfg(test)]
pub(super) mod tests {
    use portcullis_contract::{Mode, WebhookKind};
    use serde_json::json;

    use super::*;

    /// A revision of the cluster policy `name` as the controller makes them, after a change.
    pub(in crate::input::kubernetes) fn object(
        name: &str,
        generation: i64,
        annotations: &[(&str, &str)],
        change: impl FnOnce(&mut Value),
    ) -> Object {
        let policy = PolicyReference {
            kind: Kind::ClusterPolicy,
            namespace: None,
            name: name.to_owned(),
            uid: format!("uid-of-{name}"),
        };
        let annotations: serde_json::Map<String, Value> =
            annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect();
        let mut value = json!({
            "metadata": {
                "name": policy.revision_name(generation), "labels": policy.labels("default"),
                "annotations": annotations, "resourceVersion": "1",
                "creationTimestamp": format!("2026-01-01T00:00:{:02}Z", generation),
            },
            "revision": generation,
            "data": {"policy": policy, "generation": generation, "spec": {
                "module": "https://example.com/a.wasm", "settings": {"of": generation},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
            }},
        });
        change(&mut value);
        serde_json::from_str(&value.to_string()).expect("an object")
    }

    fn read_changed(change: impl FnOnce(&mut Value)) -> Revision {
        read(&object("a", 3, &[], change)).expect("its policy is told")
    }

    #[test]
    fn a_revision_tells_policy_generation_and_content() {
        let revision = read_changed(|_| ());
        assert_eq!((revision.id.as_str(), revision.uid.as_str(), revision.generation), ("cluster/a", "uid-of-a", 3));
        assert_eq!(revision.body.expect("good").settings.get(), r#"{"of":3}"#);
        let group = revision.head.and_then(|head| head.group).expect("a group");
        assert_eq!(group.1, WebhookKind::Validating);
    }

    #[test]
    fn what_cannot_be_decoded_is_the_policys_problem_and_its_mode_acts() {
        let revision = read_changed(|o| {
            o["data"]["spec"]["mode"] = json!("monitor");
            o["data"]["spec"]["rules"] = json!("no");
        });
        assert_eq!(revision.head.map(|head| head.mode), Some(Mode::Monitor));
        assert_eq!(revision.body.expect_err("a problem").reason, Reason::SpecInvalid);
    }

    #[test]
    fn without_content_the_labels_tell_whose_it_is() {
        let revision = read_changed(|o| o["data"] = json!(7));
        assert_eq!((revision.id.as_str(), revision.generation), ("cluster/a", 3));
        assert_eq!(revision.body.expect_err("a problem").reason, Reason::SpecInvalid);
        let nobody = object("a", 3, &[], |o| {
            o["data"] = json!(null);
            o["metadata"]["labels"] = json!({});
        });
        assert!(read(&nobody).is_err());
    }

    #[test]
    fn fields_of_a_newer_release_are_left_out() {
        assert!(read_changed(|o| o["data"]["spec"]["novelty"] = json!(1)).body.is_ok());
    }

    #[test]
    fn the_content_of_a_rollback_is_there_already() {
        assert!(read_changed(|o| o["data"]["spec"]["rollbackTo"] = json!(1)).body.is_ok());
    }

    #[test]
    fn of_content_that_is_not_there_the_switches_act() {
        let revision = read_changed(|o| {
            o["data"]["spec"]["mode"] = json!("monitor");
            o["data"]["problem"] = json!("there is no revision of generation 9");
        });
        assert_eq!(revision.head.map(|head| head.mode), Some(Mode::Monitor));
        let problem = revision.body.expect_err("a problem");
        assert_eq!(
            (problem.reason, problem.message.as_str()),
            (Reason::SpecInvalid, "there is no revision of generation 9")
        );
    }

    #[test]
    fn files_are_for_folders_and_groups_for_later() {
        for module in ["file:///etc/a.wasm", "a.wasm", "/a.wasm", "file:a.wasm"] {
            let problem = read_changed(|o| o["data"]["spec"]["module"] = json!(module)).body.expect_err(module);
            assert_eq!(problem.reason, Reason::SourceNotAllowed, "{module}: {problem:?}");
        }
        let group = read_changed(|o| {
            let spec = o["data"]["spec"].as_object_mut().expect("a spec");
            spec.shift_remove("module");
            spec.insert("policies".to_owned(), json!({"a": {"module": "https://example.com/a.wasm"}}));
            spec.insert("expression".to_owned(), json!("a()"));
            spec.insert("message".to_owned(), json!("no"));
        });
        let problem = group.body.expect_err("a problem");
        assert!(problem.reason == Reason::SpecInvalid && problem.message.contains("policies"), "{problem:?}");
        assert!(group.head.is_some_and(|head| head.group.is_some()));
    }

    #[test]
    fn s03_deep_and_large_settings_are_refused() {
        let deep = (0..1000).fold("1".to_owned(), |inner, _| format!("{{\"a\":{inner}}}"));
        let mut deep_object = object("a", 3, &[], |_| ());
        let text = deep_object.data.as_ref().map(|data| data.get().replace(r#"{"of":3}"#, &deep));
        deep_object.data = text.and_then(|text| serde_json::value::RawValue::from_string(text).ok());
        let large = object("a", 3, &[], |o| o["data"]["spec"]["settings"]["a"] = json!("x".repeat(1 << 20)));
        for object in [deep_object, large] {
            let revision = read(&object).expect("its policy is told");
            assert_eq!(revision.body.expect_err("a problem").reason, Reason::SettingsInvalid);
            assert!(revision.head.is_some_and(|head| head.group.is_some()));
        }
    }

    #[test]
    fn s04_no_text_quotes_settings() {
        let revision = read_changed(|o| o["data"]["spec"]["settings"] = json!("hunter2"));
        assert!(!revision.body.expect_err("a problem").message.contains("hunter2"));
    }
}
