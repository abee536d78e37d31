//! The request that a policy would be asked about for an existing object, when its user is not known.

use serde_json::Value;

use crate::conditions::{Conditions, Decision};
use crate::request::Asked;
use crate::resource::Resource;

/// What a policy would be asked about an existing object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Existing {
    /// This request.
    Asked(Asked),
    /// Match conditions leave the object out, so the policy would not be asked.
    LeftOut,
    /// The named match condition cannot be decided: only an API server can evaluate it, it fails, it takes too long, or it depends on the user who
    /// makes the request.
    Undecided(String),
}

impl Conditions {
    /// What a policy would be asked about an object of a resource, if its rules name `operations`. The first operation that the
    /// conditions let through is used.
    pub fn existing(&self, resource: &Resource, operations: &[&str], object: &Value) -> Existing {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        let mut existing = Existing::LeftOut;
        for operation in operations {
            let asked = Asked::of(resource, operation, text("namespace"));
            match self.decide_by(None, &asked, &resource.kind, text("name"), object) {
                Decision::Matches => return Existing::Asked(asked),
                Decision::Unknown(name) => existing = Existing::Undecided(name),
                Decision::Excluded => {}
            }
        }
        existing
    }
}

#[cfg(test)]
mod tests {
    use portcullis_contract::MatchCondition;
    use serde_json::json;

    use super::*;

    const BOTH: [&str; 2] = ["CREATE", "UPDATE"];

    fn existing(operations: &[&str], expressions: &[&str]) -> Existing {
        let numbered = expressions.iter().enumerate();
        let conditions =
            numbered.map(|(n, &text)| MatchCondition { name: format!("c{n}"), expression: text.to_owned() });
        let conditions: Vec<_> = conditions.collect();
        let pods = Resource {
            group: String::new(),
            version: "v1".into(),
            name: "pods".into(),
            kind: "Pod".into(),
            namespaced: true,
        };
        let object = json!({"metadata": {"name": "web", "namespace": "team", "labels": {"app": "shop"}}});
        Conditions::of(&conditions).existing(&pods, operations, &object)
    }

    fn operation(found: &Existing) -> Option<&str> {
        match found {
            Existing::Asked(asked) => Some(&asked.operation),
            Existing::LeftOut | Existing::Undecided(_) => None,
        }
    }

    #[test]
    fn an_object_is_asked_about_where_all_conditions_are_true() {
        for good in [
            "object.metadata.name == 'web' && request.namespace == 'team'",
            "request.operation == 'CREATE' && oldObject == null",
            "request.dryRun == false && request.name == 'web' && request.resource.resource == 'pods'",
        ] {
            assert_eq!(operation(&existing(&BOTH, &["true", good])), Some("CREATE"), "{good}");
        }
        assert_eq!(operation(&existing(&BOTH, &[])), Some("CREATE"));
        assert_eq!(operation(&existing(&["UPDATE"], &["oldObject == object"])), Some("UPDATE"));
    }

    #[test]
    fn an_object_is_left_out_where_a_condition_is_false() {
        let unknown = "request.userInfo.username == 'me'";
        for expressions in [&["object.metadata.name != 'web'"][..], &[unknown, "false"], &["request.operation == ''"]] {
            assert_eq!(existing(&BOTH, expressions), Existing::LeftOut, "{expressions:?}");
        }
        assert_eq!(existing(&["CREATE"], &["request.operation == 'UPDATE'"]), Existing::LeftOut);
    }

    #[test]
    fn one_that_may_be_edited_but_not_made_is_asked_about_as_an_edit() {
        assert_eq!(operation(&existing(&BOTH, &["request.operation == 'UPDATE'"])), Some("UPDATE"));
        assert_eq!(operation(&existing(&BOTH, &["oldObject != null"])), Some("UPDATE"));
        let mixed = "request.operation == 'UPDATE' && request.userInfo.username == 'me'";
        assert_eq!(existing(&BOTH, &[mixed]), Existing::Undecided("c0".into()));
    }

    #[test]
    fn a_namespace_is_asked_about_with_its_name_as_namespace() {
        let of = |text: &str| {
            let conditions = Conditions::of(&[MatchCondition { name: "c".into(), expression: text.into() }]);
            conditions.existing(&Resource::namespaces(), &BOTH, &json!({"metadata": {"name": "team"}}))
        };
        let found = of("request.namespace == 'team' && request.name == 'team'");
        let Existing::Asked(asked) = found else { panic!("{found:?}") };
        assert_eq!(asked.namespace, "", "it is in no namespace");
        assert_eq!(of("!has(request.namespace)"), Existing::LeftOut);
    }

    #[test]
    fn what_depends_on_who_asks_is_never_guessed() {
        for unknown in [
            "request.userInfo.username != 'system:admin'",
            "!('system:nodes' in request.userInfo.groups)",
            "!request.userInfo.groups.exists(group, group == 'system:nodes')",
            "has(request.userInfo)",
            "!has(request.userInfo.extra)",
            "!('options' in request)",
            "request['userInfo'] != null",
            "[request].size() == 1 && request != {}",
            "!has(request.options.fieldManager)",
            "authorizer.group('').resource('pods').check('get').allowed()",
            "namespaceObject == null",
            "object.metadata.annotations['none'] == ''",
        ] {
            assert_eq!(existing(&BOTH, &["true", unknown]), Existing::Undecided("c1".into()), "{unknown}");
        }
        let either = "request.userInfo.username == 'me' || object.metadata.name == 'web'";
        assert_eq!(operation(&existing(&BOTH, &[either])), Some("CREATE"), "it is true for all");
        let both = "request.userInfo.username == 'me' && object.metadata.name != 'web'";
        assert_eq!(existing(&BOTH, &[both]), Existing::LeftOut, "it is false for all");
    }
}
