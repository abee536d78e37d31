//! From a ControllerRevision to what it says of its policy.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use portcullis_api::kubernetes::{decode_match, decode_spec};
use portcullis_api::revision::{PolicyReference, RevisionData, RevisionMarks, identity, labelled_group};
use portcullis_api::{API_VERSION, Metadata, Policy};
use portcullis_contract::{
    Digest, Failure, GroupId, MatchPart, MemberMatch, PolicyId, PolicyIdError, Reason, WebhookKind, clean, group_id,
    shard_id,
};
use portcullis_yaml::{Document, MAX_DEPTH};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::object::Object;
use crate::content::{Body, Head, Matched, fingerprint, hash};
use crate::input::decode::in_spec;
use crate::input::manifest::{Origin, judge};
use crate::problem::Problem;

/// A revision that was read.
#[derive(Debug, Clone)]
pub(super) struct Revision {
    /// The name of the object.
    pub(super) name: String,
    /// Whether the name is the one that the controller gives. A copy under another name does not replace the revision.
    pub(super) is_named_well: bool,
    /// The policy.
    pub(super) id: PolicyId,
    /// The policy's uid.
    pub(super) uid: String,
    /// The policy's generation.
    pub(super) generation: i64,
    /// When the revision was made.
    pub(super) created: Option<Timestamp>,
    /// What its annotations record about it.
    pub(super) marks: RevisionMarks,
    /// What acts at once. A field that cannot be read has the stricter value.
    pub(super) head: Head,
    /// A group that its labels name, if its content names another: API servers may call the policy there until the labels are corrected.
    pub(super) other_group: Option<(GroupId, WebhookKind)>,
    /// Which requests of its shared webhook it is asked about; `None` where its webhook is not shared.
    pub(super) matches: Option<MemberMatch>,
    /// Which requests reach it; `None` where its content cannot be read or is too large.
    pub(super) matched: Option<Arc<Matched>>,
    /// What it serves, or why it cannot be.
    pub(super) body: Result<Body, Problem>,
    /// Equal for equal content.
    pub(super) hash: Digest,
    /// Equal to that of a check of the same spec; `None` where the content cannot be read.
    pub(super) fingerprint: Option<Digest>,
}

/// Why it is not known which policy a revision belongs to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum UnknownOwner {
    #[error("neither its data nor its labels tell whose revision it is")]
    NotNamed,
    #[error("its policy's name cannot be used: {0}")]
    BadName(PolicyIdError),
}

/// Reads a revision. It must name its policy; anything else that is wrong becomes a problem of that policy.
///
/// # Errors
/// When neither content nor labels name the policy.
pub(super) fn read(object: &Object) -> Result<Revision, UnknownOwner> {
    let text = object.data.as_ref().map_or("null", |data| data.get());
    let (metadata, nothing) = (&object.metadata, BTreeMap::new());
    let name = metadata.name.clone().unwrap_or_default();
    let document = match portcullis_yaml::json_documents(text) {
        Ok(documents) => documents.into_iter().next().ok_or_else(|| damaged(&name, "data: it is empty")),
        Err(error) => Err(damaged(&name, &error.to_string())),
    };
    let labels = metadata.labels.as_ref().unwrap_or(&nothing);
    let value = document.as_ref().map_or(&Value::Null, |document| &document.value);
    let Some((policy, generation)) = identity(value, labels, object.revision) else {
        return Err(UnknownOwner::NotNamed);
    };
    let id = policy.id().map_err(UnknownOwner::BadName)?;
    let problem = value["problem"].as_str().map(|text| clean(text, Failure::MAX_MESSAGE));
    let part = match_part(&policy, value);
    let shared = part.as_ref().filter(|_| value["shared"].as_bool().unwrap_or(false)).map(|(part, _)| part.shared());
    let own = match (&shared, &part) {
        (Some((webhook, _)), _) => Some((group_id(webhook), webhook.kind)),
        (None, part) => part.as_ref().map(|(part, shard)| (shard_id(part, *shard), part.kind)),
    };
    let label = labelled_group(labels);
    let mut head = readable(value);
    head.group = own.clone().or_else(|| label.clone());
    let body = document.and_then(|document| content(&policy, document, &name));
    // Mode, failure policy and suspend still apply; the rest is unknown.
    let body = problem.map_or(body, |text| Err(Problem::new(Reason::SpecInvalid, text)));
    let hash = match &body {
        Ok(body) => hash(&head, body),
        // Content that cannot be read is hashed as text, and with the group, which labels may correct later.
        Err(_) => Digest::of(format!("{text}{:?}", head.group).as_bytes()),
    };
    let fingerprint = part.as_ref().zip(body.as_ref().ok()).map(|((part, _), body)| fingerprint(&head, part, body));
    Ok(Revision {
        is_named_well: name == policy.revision_name(generation),
        name,
        id,
        uid: policy.uid,
        generation,
        created: metadata.creation_timestamp.as_ref().map(|time| time.0),
        marks: metadata.annotations.as_ref().map(RevisionMarks::of).unwrap_or_default(),
        matches: shared.map(|(_, matches)| matches),
        other_group: label.filter(|label| own.is_some_and(|own| own.0 != label.0)),
        matched: part.and_then(|(part, _)| Matched::of(part)).map(Arc::new),
        head,
        body,
        hash,
        fingerprint,
    })
}

/// The match part and its shard, which make the match group. They are read separately, so that a mistake elsewhere does not take the policy
/// out of its group.
fn match_part(policy: &PolicyReference, data: &Value) -> Option<(MatchPart, u32)> {
    let shard = data.get("shard").map_or(Some(0), |shard| u32::try_from(shard.as_u64()?).ok())?;
    let part = decode_match(policy, data.get("spec")?).ok()?.match_part();
    Some((part, shard))
}

/// What acts at once, read field by field: a field that cannot be read has its default, so that a damaged revision never weakens a policy.
fn readable(data: &Value) -> Head {
    fn field<T: DeserializeOwned + Default>(data: &Value, name: &str) -> T {
        let value = data.get("spec").and_then(|spec| spec.get(name));
        value.and_then(|value| serde_json::from_value(value.clone()).ok()).unwrap_or_default()
    }
    Head {
        mode: field(data, "mode"),
        failure_policy: field(data, "failurePolicy"),
        suspend: field(data, "suspend"),
        group: None,
    }
}

fn content(policy: &PolicyReference, document: Document, name: &str) -> Result<Body, Problem> {
    let Document { mut value, too_deep, .. } = document;
    // Settings are taken out first, so that no error text of the decoder can quote them.
    let taken = value.get_mut("spec").and_then(Value::as_object_mut).and_then(|spec| spec.shift_remove("settings"));
    if too_deep.as_ref().is_some_and(|path| path.first().is_none_or(|key| key != "spec")) {
        return Err(damaged(name, &format!("it is nested deeper than {MAX_DEPTH} levels")));
    }
    let data = RevisionData::read(&value).map_err(|error| damaged(name, &error.to_string()))?;
    let spec = decode_spec(data.spec).map_err(|error| {
        let text = format!(
            "revision {name} has what this release of Portcullis cannot read: {}; upgrade to the release that wrote it, \
             or apply the policy with a value that this one knows",
            in_spec(&error)
        );
        Problem::new(Reason::SpecInvalid, text)
    })?;
    let metadata = Metadata { name: policy.name.clone(), namespace: policy.namespace.clone(), ..Metadata::default() };
    let policy = Policy { api_version: API_VERSION.to_owned(), kind: policy.kind, metadata, spec, status: None };
    judge(policy, taken, too_deep.as_deref(), Origin::Cluster).1
}

pub(super) fn damaged(name: &str, text: &str) -> Problem {
    let text =
        format!("revision {name} is damaged: {text}; delete it, and the controller makes it again from the policy");
    Problem::new(Reason::SpecInvalid, text)
}

#[cfg(test)]
pub(super) mod tests {
    use portcullis_api::Kind;
    use portcullis_api::revision::group_labels;
    use portcullis_contract::{FailurePolicy, Mode};
    use serde_json::json;

    use super::*;
    use crate::input::Applied;

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
        read(&object("a", 3, &[], change)).expect("it names its policy")
    }

    #[test]
    fn a_revision_tells_policy_generation_and_content() {
        let revision = read_changed(|_| ());
        assert_eq!((revision.id.as_str(), revision.uid.as_str(), revision.generation), ("cluster/a", "uid-of-a", 3));
        assert_eq!(revision.body.expect("good").settings.get(), r#"{"of":3}"#);
        let group = revision.head.group.expect("a group");
        assert_eq!(group.1, WebhookKind::Validating);
    }

    #[test]
    fn what_cannot_be_decoded_is_the_policys_problem_and_its_mode_acts() {
        let revision = read_changed(|o| {
            o["data"]["spec"]["mode"] = json!("monitor");
            o["data"]["spec"]["rules"] = json!("no");
        });
        assert_eq!(revision.head.mode, Mode::Monitor);
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

    /// The group of the revisions that [`object`] makes, and another.
    fn groups() -> [(GroupId, WebhookKind); 2] {
        let own = read_changed(|_| ()).head.group.expect("a group");
        [own, ("0123456789abcdef".parse().expect("an id"), WebhookKind::Mutating)]
    }

    fn label(o: &mut Value, (group, kind): &(GroupId, WebhookKind)) {
        for (label, value) in group_labels(group, *kind) {
            o["metadata"]["labels"][label] = value.into();
        }
    }

    #[test]
    fn z18_damage_leaves_the_policy_in_the_group_of_the_labels_and_is_told() {
        let [_, group] = groups();
        for damage in
            [json!(null), json!("hunter2"), json!({"spec": 7}), json!({"generation": 3, "spec": {"rules": 7}})]
        {
            let revision = read_changed(|o| {
                label(o, &group);
                o["data"] = damage.clone();
            });
            assert_eq!((revision.head.group.as_ref(), revision.other_group), (Some(&group), None), "{damage}");
            assert_eq!((revision.head.mode, revision.head.failure_policy), (Mode::Protect, FailurePolicy::Fail));
            let problem = revision.body.expect_err("a problem");
            let says = |text: &str| problem.message.contains(text) && problem.reason == Reason::SpecInvalid;
            assert!(says("revision a-") && says("is damaged") && says("delete it") && !says("hunter2"), "{problem:?}");
        }
    }

    #[test]
    fn z18_a_value_of_a_newer_release_leaves_the_rest_as_it_is() {
        let [own, labelled] = groups();
        let revision = read_changed(|o| {
            o["data"]["spec"]["mode"] = json!("quarantine");
            o["data"]["spec"]["suspend"] = json!(true);
        });
        assert_eq!((revision.head.group, revision.head.mode, revision.head.suspend), (Some(own), Mode::Protect, true));
        let problem = revision.body.expect_err("a problem");
        assert!(problem.message.contains("quarantine") && problem.message.contains("upgrade"), "{problem:?}");
        let revision = read_changed(|o| {
            label(o, &labelled);
            o["data"]["spec"]["failurePolicy"] = json!("Perhaps");
            o["data"]["spec"]["mode"] = json!("warn");
        });
        assert_eq!((revision.head.group, revision.head.mode), (Some(labelled), Mode::Warn));
    }

    #[test]
    fn what_this_release_cannot_read_is_named_with_its_path() {
        let told = |change: fn(&mut Value)| {
            read_changed(|o| change(&mut o["data"]["spec"])).body.expect_err("a problem").message
        };
        let missing = told(|spec| drop(spec.as_object_mut().expect("a spec").shift_remove("rules")));
        assert!(missing.contains("cannot read: spec: missing field `rules`; "), "{missing}");
        let unknown = told(|spec| spec["mode"] = json!("quarantine"));
        assert!(unknown.contains("cannot read: spec.mode: unknown variant"), "{unknown}");
    }

    #[test]
    fn z18_a_label_moves_nobody_out_of_the_group_of_its_content() {
        let [own, other] = groups();
        let revision = read_changed(|o| label(o, &other));
        assert_eq!((revision.head.group, revision.other_group), (Some(own.clone()), Some(other)));
        assert!(revision.body.is_ok());
        assert_eq!(read_changed(|o| label(o, &own)).other_group, None);
    }

    #[test]
    fn z18_labels_that_come_later_are_news_where_content_is_not_there() {
        let [_, group] = groups();
        let before = read_changed(|o| o["data"] = json!(7));
        let after = read_changed(|o| {
            label(o, &group);
            o["data"] = json!(7);
        });
        assert_ne!(before.hash, after.hash);
        assert_eq!(read_changed(|_| ()).hash, read_changed(|o| label(o, &group)).hash);
    }

    #[test]
    fn z03_a_shard_is_a_group_of_its_own() {
        let [own, _] = groups();
        let group = |shard: Value| read_changed(|o| o["data"]["shard"] = shard).head.group;
        assert_eq!(group(json!(0)), Some(own.clone()));
        assert!(group(json!(1)).is_some_and(|group| group != own));
        assert_eq!(group(json!("x")), None);
    }

    #[test]
    fn the_fingerprint_is_that_of_the_policy_that_was_applied() {
        let read_and_applied = |change: fn(&mut Value)| {
            let revision = object("a", 3, &[], |o| change(&mut o["data"]["spec"]));
            let data: Value = serde_json::from_str(revision.data.as_ref().expect("data").get()).expect("JSON");
            let policy = json!({
                "apiVersion": API_VERSION, "kind": "ClusterPolicy", "metadata": {"name": "a"}, "spec": data["spec"],
            });
            let applied = Applied::read(&policy.to_string()).expect("a policy").fingerprint;
            (read(&revision).expect("it names its policy").fingerprint, Some(applied))
        };
        let changes: [fn(&mut Value); 6] = [
            |_| (),
            |spec| spec["settings"]["of"] = json!(4),
            |spec| spec["rules"][0]["resources"] = json!(["services"]),
            |spec| spec["mode"] = json!("warn"),
            |spec| spec["mutating"] = json!(true),
            |spec| spec["objectSelector"] = json!({"matchLabels": {"a": "b"}}),
        ];
        let mut seen = Vec::new();
        for change in changes {
            let (read, applied) = read_and_applied(change);
            assert_eq!(read, applied);
            assert!(!seen.contains(&read), "each of them is another spec");
            seen.push(read);
        }
        let shard = read_changed(|o| o["data"]["shard"] = json!(2)).fingerprint;
        assert_eq!(shard, seen[0], "the shard is the installation's own matter");
        assert_eq!(read_changed(|o| o["data"]["spec"]["rules"] = json!("no")).fingerprint, None);
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
        assert_eq!(revision.head.mode, Mode::Monitor);
        let problem = revision.body.expect_err("a problem");
        assert_eq!(
            (problem.reason, problem.message.as_str()),
            (Reason::SpecInvalid, "there is no revision of generation 9")
        );
    }

    #[test]
    fn files_are_for_folders_and_groups_are_read() {
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
        assert!(group.head.group.is_some());
        assert_eq!(group.body.expect("good").members.keys().collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn s03_deep_and_large_settings_are_refused() {
        let deep = (0..1000).fold("1".to_owned(), |inner, _| format!("{{\"a\":{inner}}}"));
        let mut deep_object = object("a", 3, &[], |_| ());
        let text = deep_object.data.as_ref().map(|data| data.get().replace(r#"{"of":3}"#, &deep));
        deep_object.data = text.and_then(|text| serde_json::value::RawValue::from_string(text).ok());
        let large = object("a", 3, &[], |o| o["data"]["spec"]["settings"]["a"] = json!("x".repeat(1 << 20)));
        for object in [deep_object, large] {
            let revision = read(&object).expect("it names its policy");
            assert_eq!(revision.body.expect_err("a problem").reason, Reason::SettingsInvalid);
            assert!(revision.head.group.is_some());
        }
    }

    #[test]
    fn s04_no_text_quotes_settings() {
        let revision = read_changed(|o| o["data"]["spec"]["settings"] = json!("hunter2"));
        assert!(!revision.body.expect_err("a problem").message.contains("hunter2"));
    }
}
