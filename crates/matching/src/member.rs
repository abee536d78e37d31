//! Which requests of a shared webhook a member is asked about: its object selector and its match conditions.
//!
//! Only what means the same here as in an API server is judged, so that a policy which shares a webhook is asked about the same requests
//! as with a webhook of its own. Whatever else a policy wants to be matched by keeps it out of shared webhooks ([`MemberMatcher::of`]).

use std::cell::OnceCell;

use portcullis_contract::MemberMatch;
use serde::Deserialize;
use serde_json::Value;

use crate::conditions::{Conditions, Decision, Subject};
use crate::selector::{Labels, Selector};

/// An object selector and match conditions that are judged here.
#[derive(Debug)]
pub struct MemberMatcher {
    objects: Selector,
    conditions: Conditions,
}

/// A request, with what selectors and conditions look at. It is read as far as they need it, and once for all members.
pub struct AdmissionRequest<'a> {
    object: Option<&'a str>,
    old: Option<&'a str>,
    request: Box<dyn Fn() -> String + 'a>,
    labels: OnceCell<Option<[Option<Labels>; 2]>>,
    subject: OnceCell<Option<Subject>>,
}

/// As much of an object as selectors look at.
#[derive(Deserialize)]
struct Labelled {
    metadata: Option<Metadata>,
}

#[derive(Deserialize)]
struct Metadata {
    labels: Option<Labels>,
}

impl MemberMatcher {
    /// Reads what a member is matched by; nothing where an API server alone can judge it.
    pub fn of(member: &MemberMatch) -> Option<Self> {
        let objects = member.object_selector.as_ref().map_or(Ok(Selector::default()), Selector::parse).ok()?;
        Some(Self { objects, conditions: Conditions::for_requests(&member.match_conditions)? })
    }

    /// Whether a member is asked about a request. As in an API server, a condition that is false decides, and one that is neither true nor
    /// false counts where none is false. An object that cannot be read here, for instance because it is nested too deeply, is unknown and
    /// never left out.
    pub fn decide(&self, request: &AdmissionRequest<'_>) -> Decision {
        if !self.objects.is_empty() {
            let Some(labels) = request.labels() else { return Decision::Unknown("objectSelector".to_owned()) };
            if !labels.iter().flatten().any(|labels| self.objects.selects(labels)) {
                return Decision::Excluded;
            }
        }
        if self.conditions.is_empty() {
            return Decision::Matches;
        }
        let unreadable = || Decision::Unknown("matchConditions".to_owned());
        request.subject().map_or_else(unreadable, |subject| self.conditions.decide_on(subject))
    }
}

impl<'a> AdmissionRequest<'a> {
    /// A request about these objects, as JSON. `request` makes the JSON of the AdmissionReview's request without them.
    pub fn new(object: Option<&'a str>, old: Option<&'a str>, request: impl Fn() -> String + 'a) -> Self {
        Self { object, old, request: Box::new(request), labels: OnceCell::new(), subject: OnceCell::new() }
    }

    /// The labels of the object and of the old one. What has no metadata, for instance the options of `kubectl exec`, has none to select.
    fn labels(&self) -> Option<&[Option<Labels>; 2]> {
        let read = |object: Option<&str>| {
            let read = object.map(serde_json::from_str::<Labelled>).transpose().ok()?;
            Some(read.and_then(|object| object.metadata).map(|metadata| metadata.labels.unwrap_or_default()))
        };
        self.labels.get_or_init(|| Some([read(self.object)?, read(self.old)?])).as_ref()
    }

    fn subject(&self) -> Option<&Subject> {
        let read = |text: Option<&str>| text.map_or(Ok(Value::Null), serde_json::from_str);
        let subject = self.subject.get_or_init(|| {
            let request = serde_json::from_str(&(self.request)()).ok()?;
            Some(Subject::new(&request, &read(self.object).ok()?, &read(self.old).ok()?))
        });
        subject.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use portcullis_contract::MatchCondition;
    use serde_json::json;

    use super::*;

    const WEB: &str = r#"{"metadata":{"name":"web","labels":{"app":"shop"}},"spec":{"hostNetwork":true,"priority":7}}"#;
    const BARE: &str = r#"{"metadata":{"name":"bare"}}"#;
    const EXEC: &str = r#"{"kind":"PodExecOptions","stdin":true}"#;

    fn matcher(selector: Value, expressions: &[&str]) -> Option<MemberMatcher> {
        let numbered = expressions.iter().enumerate();
        let conditions =
            numbered.map(|(n, &text)| MatchCondition { name: format!("c{n}"), expression: text.to_owned() });
        MemberMatcher::of(&MemberMatch {
            object_selector: (!selector.is_null()).then_some(selector),
            match_conditions: conditions.collect(),
        })
    }

    fn decide(matcher: &MemberMatcher, object: Option<&str>, old: Option<&str>) -> Decision {
        let request = || {
            json!({"operation": "CREATE", "namespace": "team", "userInfo": {"username": "me", "groups": ["a"]},
                   "resource": {"group": "", "version": "v1", "resource": "pods"}})
            .to_string()
        };
        matcher.decide(&AdmissionRequest::new(object, old, request))
    }

    fn selects(selector: Value, object: Option<&str>, old: Option<&str>) -> bool {
        decide(&matcher(selector, &[]).expect("judged"), object, old) == Decision::Matches
    }

    #[test]
    fn a_selector_wants_the_labels_of_one_of_the_two_objects() {
        let shop = || json!({"matchLabels": {"app": "shop"}});
        assert!(selects(shop(), Some(WEB), None) && selects(shop(), None, Some(WEB)));
        assert!(selects(shop(), Some(BARE), Some(WEB)), "it was selected before the edit");
        assert!(!selects(shop(), Some(BARE), Some(BARE)) && !selects(shop(), None, None));
        let without = || json!({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]});
        assert!(selects(without(), Some(BARE), None) && !selects(without(), Some(WEB), None));
        assert!(!selects(without(), Some(EXEC), None), "what has no metadata is not selected");
        for all in [Value::Null, json!({}), json!({"matchLabels": {}})] {
            assert!(selects(all, Some(EXEC), None));
        }
    }

    #[test]
    fn conditions_see_what_an_api_server_shows_them() {
        for good in [
            "request.userInfo.username == 'me' && 'a' in request.userInfo.groups",
            "has(request.namespace) && request.namespace.startsWith('te') && !has(request.name)",
            "object.spec.hostNetwork == true && object.spec.priority > 6 && oldObject == null",
            "has(object.metadata.labels) && object.metadata.labels['app'] == 'shop'",
            "false || true",
        ] {
            let matcher = matcher(Value::Null, &[good]).unwrap_or_else(|| panic!("{good} is judged"));
            assert_eq!(decide(&matcher, Some(WEB), None), Decision::Matches, "{good}");
        }
    }

    #[test]
    fn one_that_is_false_decides_and_one_that_fails_is_named() {
        let fails = "object.metadata.labels['none'] == 'x'";
        let decided =
            |expressions: &[&str]| decide(&matcher(Value::Null, expressions).expect("judged"), Some(WEB), None);
        assert_eq!(decided(&["true", fails]), Decision::Unknown("c1".into()));
        assert_eq!(decided(&[fails, "object.metadata.name == 'other'"]), Decision::Excluded);
    }

    #[test]
    fn what_cannot_be_read_is_never_left_out() {
        let deep = format!(r#"{{"metadata":{{"name":"web"}},"spec":{}{}}}"#, "[".repeat(300), "]".repeat(300));
        let conditions = matcher(Value::Null, &["object.metadata.name == 'other'"]).expect("judged");
        assert_eq!(decide(&conditions, Some(&deep), None), Decision::Unknown("matchConditions".into()));
        assert!(!selects(json!({"matchLabels": {"app": "shop"}}), Some(&deep), None), "its labels can be read");
        let odd = r#"{"metadata":{"labels":{"app":["shop"]}}}"#;
        let selector = matcher(json!({"matchLabels": {"app": "shop"}}), &[]).expect("judged");
        assert_eq!(decide(&selector, Some(odd), None), Decision::Unknown("objectSelector".into()));
    }

    #[test]
    fn what_an_api_server_alone_can_judge_is_not_judged_here() {
        for unjudged in [
            "authorizer.group('').resource('pods').check('get').allowed()",
            "object.metadata.name.matches('^w')",
            "namespaceObject == null",
            "request.options.fieldManager == 'kubectl'",
            "object.spec.containers.all(c, c.image != '')",
            "object.metadata.name + 'x' == 'webx'",
            "request.object.metadata.name == 'web'",
            "object.spec.hostNetwork",
            "object.metadata.name ==",
            "object.?metadata.hasValue()",
        ] {
            assert!(matcher(Value::Null, &["true", unjudged]).is_none(), "{unjudged}");
        }
        assert!(matcher(json!({"matchExpressions": [{"key": "a", "operator": "Near"}]}), &[]).is_none());
    }
}
