//! From a policy that a user applies to its trial.

use std::collections::{BTreeMap, BTreeSet};

use portcullis_api::kubernetes::decode_spec;
use portcullis_api::{API_VERSION, Kind, Metadata, Policy};
use portcullis_contract::{Digest, MatchCondition, MatchPart, Mode, PolicyId, Reason, clean};
use portcullis_expression::match_condition;
use portcullis_yaml::{Document, MAX_DEPTH};
use serde_json::Value;

use super::decode::in_spec;
use super::manifest::{Origin, judge, kind};
use crate::content::{Body, DesiredPolicy, Head, Object, fingerprint, hash, uid};
use crate::pins::Pins;
use crate::problem::Problem;

/// Most bytes of match conditions that are checked.
const MOST_CONDITIONS: usize = 32 << 10;

/// A policy that a user applies.
#[derive(Debug)]
pub(crate) struct Applied {
    /// Its own id; the trial has another one.
    pub id: PolicyId,
    /// Its namespace; `None` for a ClusterPolicy.
    pub namespace: Option<String>,
    /// Kind and name, in place of the name of a file.
    pub title: String,
    /// Whether it is suspended, and so will not be asked.
    pub is_suspended: bool,
    /// Which requests would reach it.
    pub part: MatchPart,
    /// By this the policy is recognised once it is stored with this spec.
    pub fingerprint: Digest,
    head: Head,
    body: Body,
    hash: Digest,
}

/// Why an object cannot be tried.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotTried {
    /// It is not a policy of this release: the API server's own schema has more to say about it.
    Unreadable(String),
    /// Its spec asks for something that cannot be.
    Invalid(Problem),
}

impl Applied {
    /// Reads the object as an API server sends it.
    ///
    /// # Errors
    /// When it is not a policy, or its spec cannot be used.
    pub(crate) fn read(text: &str) -> Result<Self, NotTried> {
        let unreadable = |text: String| NotTried::Unreadable(text);
        let mut documents = portcullis_yaml::json_documents(text).map_err(|error| unreadable(error.to_string()))?;
        let Some(Document { mut value, too_deep, .. }) = (documents.len() == 1).then(|| documents.remove(0)) else {
            return Err(unreadable("want one object".to_owned()));
        };
        let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        let kind = kind(&value).map_err(|error| unreadable(error.to_string()))?;
        let name = text(&value["metadata"], "name").unwrap_or_default();
        let namespace = text(&value["metadata"], "namespace").filter(|_| kind == Kind::Policy);
        // Settings are taken out first, so that no error text of the decoder can quote them.
        let mut spec = value.get_mut("spec").map(Value::take).unwrap_or_default();
        let taken = spec.as_object_mut().and_then(|spec| spec.shift_remove("settings"));
        if too_deep.as_ref().is_some_and(|path| path.first().is_none_or(|key| key != "spec")) {
            return Err(unreadable(format!("it is nested deeper than {MAX_DEPTH} levels")));
        }
        let spec = decode_spec(spec).map_err(|error| unreadable(in_spec(&error)))?;
        let title = format!("{} {}", text(&value, "kind").unwrap_or_default(), clean(&name, 100));
        let metadata = Metadata { name, namespace: namespace.clone(), ..Metadata::default() };
        let policy = Policy { api_version: API_VERSION.to_owned(), kind, metadata, spec, status: None };
        let (id, part) = (policy.id(), policy.match_part());
        let (head, body) = judge(policy, taken, too_deep.as_deref(), Origin::Cluster);
        let (head, body) = (Head { group: None, ..head }, body.map_err(NotTried::Invalid)?);
        // It must be possible to suspend a policy before it is repaired.
        if !head.suspend {
            check_conditions(&part.match_conditions).map_err(NotTried::Invalid)?;
        }
        let id = id.map_err(|error| unreadable(error.to_string()))?;
        let (fingerprint, hash) = (fingerprint(&head, &part, &body), hash(&head, &body));
        Ok(Self { id, namespace, title, is_suspended: head.suspend, part, fingerprint, head, body, hash })
    }

    /// What a denial does.
    pub(crate) fn mode(&self) -> Mode {
        self.head.mode
    }

    /// Whether it, or a member of it, reads objects of the cluster.
    pub(crate) fn reads_cluster(&self) -> bool {
        self.body.parts().into_iter().any(|(_, part)| !part.context_aware_resources.is_empty())
    }

    /// The trial, under an id of its own: a first generation without a match group, whose modules are not known yet.
    pub(crate) fn tried_as(self, id: PolicyId) -> DesiredPolicy {
        let Self { title, head, body, hash, .. } = self;
        let object = Object {
            uid: uid(&id),
            generation: 1,
            pins: Pins::default(),
            older_groups: BTreeSet::new(),
            matches: BTreeMap::new(),
            last_served: None,
            enforced: false,
            newest_served: false,
            fingerprint: None,
        };
        DesiredPolicy { id, file: title, created: None, hash, head: Some(head), body: Ok(body), object: Some(object) }
    }
}

/// Looks for match conditions that the API server would refuse when the policy's webhook is registered. Only checks do so: a policy that is
/// already stored loads even with such conditions.
fn check_conditions(conditions: &[MatchCondition]) -> Result<(), Problem> {
    let mut size = 0;
    for (number, condition) in conditions.iter().enumerate() {
        size += condition.expression.len();
        if size > MOST_CONDITIONS {
            break;
        }
        match_condition(&condition.expression).map_err(|error| {
            Problem::new(Reason::SpecInvalid, format!("spec.matchConditions[{number}].expression: {error}"))
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(change: impl FnOnce(&mut Value)) -> String {
        let mut object = json!({
            "apiVersion": API_VERSION, "kind": "Policy", "metadata": {"name": "labels", "namespace": "team"},
            "spec": {"module": "https://example.com/a.wasm", "settings": {"secret": "s3cret"}, "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]},
            ]},
            "status": {"summary": "1/1"},
        });
        change(&mut object);
        object.to_string()
    }

    #[test]
    fn what_is_tried_belongs_to_the_namespace_and_to_no_group() {
        let applied = Applied::read(&object(|_| ())).expect("a policy");
        assert_eq!(applied.id.as_str(), "namespaced/team/labels");
        assert_eq!(applied.part.rules[0].scope.as_deref(), Some("Namespaced"));
        assert_eq!((applied.namespace.as_deref(), applied.title.as_str()), (Some("team"), "Policy labels"));
        let tried = applied.tried_as(PolicyId::check(Some("team"), 4).expect("an id"));
        assert_eq!(tried.head.expect("a head").group, None);
        assert_eq!(tried.body.expect("a body").settings.get(), r#"{"secret":"s3cret"}"#);
        let object = tried.object.expect("an object");
        assert!(object.generation == 1 && !object.enforced && !object.newest_served);
    }

    #[test]
    fn what_cannot_be_is_said_without_the_settings() {
        for (change, part) in [
            ((|o| o["spec"]["module"] = json!("ftp://example.com/a.wasm")) as fn(&mut Value), "module"),
            (|o| o["spec"]["settings"] = json!([1]), "settings"),
            (
                |o| {
                    o["spec"]["matchConditions"] = json!([
                        {"name": "a", "expression": "object != null"}, {"name": "b", "expression": "objekt.a == 1"},
                    ]);
                },
                "spec.matchConditions[1].expression: it uses `objekt`",
            ),
        ] {
            let Err(NotTried::Invalid(problem)) = Applied::read(&object(change)) else { panic!("{part} is taken") };
            assert!(problem.message.contains(part) && !problem.message.contains("s3cret"), "{problem:?}");
        }
    }

    #[test]
    fn a_policy_that_reads_the_cluster_is_known() {
        let cluster = |object: &mut Value| {
            object["kind"] = json!("ClusterPolicy");
            object["metadata"] = json!({"name": "labels"});
            object["spec"]["mode"] = json!("warn");
        };
        let applied = Applied::read(&object(cluster)).expect("a policy");
        assert_eq!((applied.mode(), applied.reads_cluster()), (Mode::Warn, false));
        let reads = object(|object| {
            cluster(object);
            object["spec"]["contextAwareResources"] = json!([{"apiVersion": "v1", "kind": "Namespace"}]);
        });
        assert!(Applied::read(&reads).expect("a policy").reads_cluster());
    }

    #[test]
    fn a_policy_can_be_suspended_whatever_its_conditions_are() {
        let bad = |suspend: bool| {
            object(|object| {
                object["spec"]["suspend"] = suspend.into();
                object["spec"]["matchConditions"] = json!([{"name": "a", "expression": "objekt.a == 1"}]);
            })
        };
        assert!(Applied::read(&bad(false)).is_err() && Applied::read(&bad(true)).is_ok());
    }

    #[test]
    fn only_so_many_conditions_are_judged() {
        let condition = |number: usize| json!({"name": format!("c{number}"), "expression": format!("object != null // {}", "x".repeat(4000))});
        let many = object(|o| {
            let mut conditions: Vec<_> = (0..20).map(condition).collect();
            conditions.push(json!({"name": "last", "expression": "objekt.a == 1"}));
            o["spec"]["matchConditions"] = conditions.into();
        });
        assert!(Applied::read(&many).is_ok());
    }

    #[test]
    fn what_is_no_policy_is_not_tried() {
        for text in ["", "[]", "{}", "{} {}", &object(|o| o["kind"] = json!("Pod")), &object(|o| o["spec"] = json!(7))]
        {
            assert!(matches!(Applied::read(text), Err(NotTried::Unreadable(_))), "{text}");
        }
        let without_rules = object(|o| o["spec"] = json!({"module": "https://example.com/a.wasm"}));
        let Err(NotTried::Unreadable(text)) = Applied::read(&without_rules) else { panic!("it has no rules") };
        assert_eq!(text, "spec: missing field `rules`");
        let deep = "[".repeat(400) + &"]".repeat(400);
        let text = object(|_| ()).replace(r#"{"secret":"s3cret"}"#, &format!(r#"{{"a":{deep}}}"#));
        assert!(Applied::read(&text).is_err());
    }
}
