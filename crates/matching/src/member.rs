//! Which requests of a shared webhook a member is asked about: its rules, its object selector and its match conditions.
//!
//! Only what means the same here as in an API server is judged, so that a policy that shares a webhook is asked about the same requests
//! as with a webhook of its own. Only the metadata of an object is read, so that a large object costs neither time nor memory. A policy
//! that needs anything else to be matched does not share a webhook ([`shared_part`]).
//!
//! Whether a policy may share a webhook and how a member is judged are two questions. Another release may have let a policy share one that
//! this release would not, and a member that is not judged is asked about every request. So more is judged than shares.

use portcullis_contract::{MatchPart, MemberMatch, RuleWithOperations, WebhookKind};

use crate::admission_request::{AdmissionRequest, Decoded, Metadata};
use crate::conditions::{Conditions, Decision, Pace};
use crate::rules;
use crate::selector::Selector;

/// Rules, an object selector and match conditions that are judged here.
#[derive(Debug)]
pub struct MemberMatcher {
    /// Empty for all requests.
    rules: Vec<RuleWithOperations>,
    objects: Selector,
    conditions: Conditions,
}

/// Largest rules, object selector and match conditions of a member, as JSON, in bytes. Manifests and webhooks hold those of all members.
const LARGEST_MEMBER: usize = 4 << 10;

/// The match part of the webhook that a policy with this part can share ([`MatchPart::shared`]). `None` if the policy needs a webhook of its
/// own: it may change objects, only an API server can judge its selector or conditions, for instance because they look at all metadata of an
/// object, its rules are not of the same groups and versions, or an API server might refuse them.
///
/// With the same groups and versions in all rules, the version in which an API server sends an object does not depend on the rules of the
/// other members (`matchPolicy: Equivalent`).
pub fn shared_part(part: &MatchPart) -> Option<MatchPart> {
    let (webhook, member) = part.shared();
    let may_share = part.kind == WebhookKind::Validating
        && webhook.rules.len() == 1
        && rules::are_plain(&part.rules)
        && serde_json::to_string(&member).is_ok_and(|json| json.len() <= LARGEST_MEMBER)
        && member.object_selector.as_ref().is_none_or(Selector::is_accepted)
        && MemberMatcher::of(&member).is_some_and(|MemberMatcher { conditions, .. }| {
            conditions.have_fitting_types() && conditions.read_metadata_by_field()
        });
    may_share.then_some(webhook)
}

impl MemberMatcher {
    /// Parses the rules, the selector and the conditions of a member; `None` if only an API server can judge them.
    pub fn of(member: &MemberMatch) -> Option<Self> {
        let objects = member.object_selector.as_ref().map_or(Ok(Selector::default()), Selector::parse).ok()?;
        let conditions = Conditions::for_requests(&member.match_conditions)?;
        Some(Self { rules: member.rules.clone(), objects, conditions })
    }

    /// Whether it has match conditions, which take longer than rules and selectors.
    pub fn has_conditions(&self) -> bool {
        !self.conditions.is_empty()
    }

    /// Whether metadata of the objects are decoded to judge this request.
    pub fn reads_metadata_of(&self, request: &AdmissionRequest) -> bool {
        (self.has_conditions() || !self.objects.is_empty()) && self.by_rules(request) == Decision::Matches
    }

    /// Whether a member is asked about a request. As in an API server, one false condition excludes the request, and one that is neither
    /// true nor false matters only if none is false. An object that cannot be parsed here, for instance because it is nested too deeply,
    /// gives "unknown" and is never excluded. There is a pause before metadata are decoded.
    pub async fn decide(&self, request: &AdmissionRequest, pace: &mut impl Pace) -> Decision {
        match self.by_rules(request) {
            Decision::Matches => {}
            decision => return decision,
        }
        if !self.objects.is_empty() {
            match self.by_labels(request.metadata_after(pace).await) {
                Decision::Matches => {}
                decision => return decision,
            }
        }
        if self.conditions.is_empty() {
            return Decision::Matches;
        }
        match request.subject_after(pace).await {
            Some(subject) => self.conditions.decide_on(subject, pace).await,
            None => Decision::Unknown("matchConditions".to_owned()),
        }
    }

    /// Whether rules or object selector alone exclude a request, which is quick to find out. Large metadata, which take long to be decoded,
    /// exclude nothing.
    pub fn excludes(&self, request: &AdmissionRequest) -> bool {
        let by_labels = || self.by_labels(request.metadata()) == Decision::Excluded;
        self.by_rules(request) == Decision::Excluded
            || (!self.objects.is_empty() && !request.has_large_metadata() && by_labels())
    }

    /// What the rules say.
    fn by_rules(&self, request: &AdmissionRequest) -> Decision {
        if self.rules.is_empty() {
            return Decision::Matches;
        }
        match request.request() {
            Some(request) if rules::matches(&self.rules, &request.asked) => Decision::Matches,
            Some(_) => Decision::Excluded,
            None => Decision::Unknown("rules".to_owned()),
        }
    }

    /// What an object selector says about these objects.
    fn by_labels(&self, both: Option<&[Metadata<Decoded>; 2]>) -> Decision {
        let Some(both) = both else { return Decision::Unknown("objectSelector".to_owned()) };
        let is_selected = both.iter().filter_map(Metadata::labels).any(|labels| self.objects.selects(labels));
        if is_selected { Decision::Matches } else { Decision::Excluded }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::FutureExt as _;
    use portcullis_contract::{FailurePolicy, MatchCondition};
    use serde_json::{Value, json};

    use super::*;
    use crate::admission_request::MAX_METADATA;
    use crate::conditions::NoPause;

    const WEB: &str = r#"{"metadata":{"name":"web","labels":{"app":"shop"}},"spec":{"hostNetwork":true,"priority":7}}"#;
    const BARE: &str = r#"{"metadata":{"name":"bare"}}"#;
    const EXEC: &str = r#"{"kind":"PodExecOptions","stdin":true}"#;

    fn matcher(selector: Value, expressions: &[&str]) -> Option<MemberMatcher> {
        let numbered = expressions.iter().enumerate();
        let conditions =
            numbered.map(|(n, &text)| MatchCondition { name: format!("c{n}"), expression: text.to_owned() });
        MemberMatcher::of(&MemberMatch {
            rules: Vec::new(),
            object_selector: (!selector.is_null()).then_some(selector),
            match_conditions: conditions.collect(),
        })
    }

    fn decide(matcher: &MemberMatcher, object: Option<&str>, old: Option<&str>) -> Decision {
        let request = json!({
            "operation": "CREATE", "namespace": "team", "userInfo": {"username": "me", "groups": ["a"]},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
        });
        decided(matcher, object, old, &request, &mut NoPause)
    }

    /// A pace that notes the steps, and never waits.
    #[derive(Default)]
    struct Noted(Vec<u64>);

    impl Pace for Noted {
        async fn before(&mut self, steps: u64) {
            self.0.push(steps);
        }
    }

    fn decided(
        matcher: &MemberMatcher,
        object: Option<&str>,
        old: Option<&str>,
        request: &Value,
        pace: &mut impl Pace,
    ) -> Decision {
        let [object, old] = [object, old].map(|text| text.map(|text| Bytes::copy_from_slice(text.as_bytes())));
        let request = AdmissionRequest::new(object, old, request.to_string().into());
        matcher.decide(&request, pace).now_or_never().expect("it never waits")
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
            "object != null && object.metadata.name == 'web' && oldObject == null",
            "has(object.metadata.labels) && object.metadata.labels['app'] == 'shop'",
            "false || true",
        ] {
            let matcher = matcher(Value::Null, &[good]).unwrap_or_else(|| panic!("{good} is judged"));
            assert_eq!(decide(&matcher, Some(WEB), None), Decision::Matches, "{good}");
        }
    }

    #[test]
    fn conditions_see_the_requested_resource_and_rules_the_converted_one() {
        let decide = |resource: &str, condition: &str| {
            let rule =
                json!({"apiGroups": ["apps"], "apiVersions": ["v1"], "resources": [resource], "operations": ["*"]});
            let condition = json!({"name": "c", "expression": condition});
            let member = json!({"rules": [rule], "matchConditions": [condition]});
            let member: MemberMatch = serde_json::from_value(member).expect("a member");
            let request = json!({
                "operation": "CREATE", "namespace": "team", "userInfo": {},
                "kind": {"group": "apps", "version": "v1", "kind": "Deployment"},
                "resource": {"group": "apps", "version": "v1", "resource": "deployments"},
                "requestResource": {"group": "extensions", "version": "v1beta1", "resource": "deployments"},
            });
            decided(&MemberMatcher::of(&member).expect("judged"), Some(WEB), None, &request, &mut NoPause)
        };
        assert_eq!(decide("deployments", "request.resource.group == 'extensions'"), Decision::Matches);
        assert_eq!(decide("deployments", "request.resource.version == 'v1'"), Decision::Excluded);
        assert_eq!(decide("deployments", "request.kind.group == 'apps'"), Decision::Matches);
        assert_eq!(decide("replicasets", "true"), Decision::Excluded);
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
    fn rules_and_selectors_exclude_without_conditions() {
        let request = |object: &str| {
            let json = json!({"operation": "CREATE", "resource": {"group": "", "version": "v1", "resource": "pods"}});
            AdmissionRequest::new(Some(Bytes::copy_from_slice(object.as_bytes())), None, json.to_string().into())
        };
        let shop = json!({"matchLabels": {"app": "shop"}});
        let selective = matcher(shop, &["object.metadata.name == 'other'"]).expect("judged");
        assert!(selective.excludes(&request(BARE)) && !selective.excludes(&request(WEB)));
        assert!(!selective.excludes(&request("[")), "it cannot be read");
        let member = |resource: &str| {
            let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": [resource], "operations": ["*"]});
            serde_json::from_value(json!({"rules": [rule]})).expect("a member")
        };
        let [pods, secrets] = ["pods", "secrets"].map(|resource| MemberMatcher::of(&member(resource)).expect("judged"));
        assert!(secrets.excludes(&request(WEB)) && !pods.excludes(&request(WEB)));
    }

    #[test]
    fn metadata_are_read_only_for_requests_that_the_rules_match() {
        let json = json!({"operation": "CREATE", "resource": {"group": "", "version": "v1", "resource": "pods"}});
        let request = |json: String| AdmissionRequest::new(Some(Bytes::from_static(WEB.as_bytes())), None, json.into());
        let (pod, unread) = (request(json.to_string()), request("[".to_owned()));
        let reads = |resource: &str, rest: Value, request: &AdmissionRequest| {
            let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": [resource], "operations": ["*"]});
            let mut member = rest;
            member["rules"] = json!([rule]);
            let member: MemberMatch = serde_json::from_value(member).expect("a member");
            MemberMatcher::of(&member).expect("judged").reads_metadata_of(request)
        };
        let selective = json!({"objectSelector": {"matchLabels": {"app": "shop"}}});
        let conditional = json!({"matchConditions": [{"name": "c", "expression": "true"}]});
        for part in [selective, conditional] {
            assert!(reads("pods", part.clone(), &pod), "{part}");
            assert!(!reads("secrets", part.clone(), &pod), "{part}");
            assert!(!reads("pods", part.clone(), &unread), "{part}");
        }
        assert!(!reads("pods", json!({}), &pod));
        let of_all = matcher(json!({"matchLabels": {"app": "shop"}}), &[]).expect("judged");
        assert!(of_all.reads_metadata_of(&unread), "no rule needs the request");
    }

    #[test]
    fn what_cannot_be_read_is_never_left_out() {
        let nested = format!("{}{}", "[".repeat(300), "]".repeat(300));
        let deep = format!(r#"{{"metadata":{{"name":"web","annotations":{nested}}}}}"#);
        let large = format!(r#"{{"metadata":{{"name":"{}"}}}}"#, "x".repeat(MAX_METADATA));
        let conditions = matcher(Value::Null, &["object.metadata.name == 'other'"]).expect("judged");
        let selector = matcher(json!({"matchLabels": {"app": "shop"}}), &[]).expect("judged");
        for object in [&deep, &large, r#"{"metadata":7}"#, "["] {
            assert_eq!(decide(&conditions, Some(object), None), Decision::Unknown("matchConditions".into()));
            assert_eq!(decide(&selector, Some(object), None), Decision::Unknown("objectSelector".into()));
        }
    }

    #[test]
    fn only_the_metadata_of_an_object_are_read() {
        let nested = format!("{}{}", "[".repeat(300), "]".repeat(300));
        let object =
            format!(r#"{{"spec":{nested},"metadata":{{"name":"web","managedFields":[{{}}]}},"data":{nested}}}"#);
        let conditions = matcher(Value::Null, &["object.metadata.name == 'web'"]).expect("judged");
        assert_eq!(decide(&conditions, Some(&object), None), Decision::Matches);
    }

    #[test]
    fn z25_conditions_say_beforehand_how_much_they_take() {
        let steps = |conditions: &[&str], annotation: usize| {
            let object = json!({"metadata": {"name": "web", "annotations": {"a": "x".repeat(annotation)}}}).to_string();
            let (mut noted, request) = (
                Noted::default(),
                json!({
                    "operation": "CREATE", "userInfo": {}, "resource": {"group": "", "version": "v1", "resource": "pods"},
                }),
            );
            let matcher = matcher(Value::Null, conditions).expect("judged");
            let decision = decided(&matcher, Some(&object), Some(&object), &request, &mut noted);
            // Before the conditions there are two pauses for the metadata.
            (decision, noted.0.split_off(2))
        };
        let (decision, small) = steps(&["object.metadata == oldObject.metadata", "has(object.metadata.name)"], 10);
        assert!(
            decision == Decision::Matches && small.len() == 2 && small.iter().all(|steps| *steps < 30),
            "{small:?}"
        );
        let (_, large) = steps(&["object.metadata == oldObject.metadata", "has(object.metadata.name)"], 256 << 10);
        assert!(large[0] > 8000 && large[1] < 30, "{large:?}");
        // 70 comparisons of the largest metadata with each other are too many; with small metadata they are not.
        let all = vec!["object.metadata == oldObject.metadata"; 70].join(" && ");
        assert_eq!(steps(&[&all], 10).0, Decision::Matches);
        assert_eq!(steps(&[&all], 256 << 10).0, Decision::Unknown("c0".into()));
    }

    #[test]
    fn what_an_api_server_alone_can_judge_is_not_judged_here() {
        for unjudged in [
            "authorizer.group('').resource('pods').check('get').allowed()",
            "object.metadata.name.matches('^w')",
            "namespaceObject == null",
            "request.options.fieldManager == 'kubectl'",
            "object.metadata.finalizers.all(f, f != '')",
            "object.spec.hostNetwork == true",
            "has(oldObject.spec)",
            "object == oldObject",
            "'spec' in object",
            "object['spec'] == null",
            "size(object.metadata.managedFields) > 0",
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

    #[test]
    fn what_an_api_server_may_refuse_shares_no_webhook_but_is_judged_where_it_does() {
        let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["*"]});
        let plain = MatchPart {
            kind: WebhookKind::Validating,
            namespace: None,
            rules: vec![serde_json::from_value(rule).expect("a rule")],
            match_policy: None,
            object_selector: None,
            namespace_selector: None,
            match_conditions: Vec::new(),
            failure_policy: FailurePolicy::Fail,
            side_effects: None,
        };
        let condition = |text: &str| MatchPart {
            match_conditions: vec![MatchCondition { name: "c".to_owned(), expression: text.to_owned() }],
            ..plain.clone()
        };
        let selector = |selector: Value| MatchPart { object_selector: Some(selector), ..plain.clone() };
        let shares = |part: &MatchPart| shared_part(part).is_some();
        let is_judged = |part: &MatchPart| MemberMatcher::of(&part.shared().1).is_some();
        for good in [
            condition("request.userInfo.username == object.metadata.name"),
            condition("has(object.metadata) && object.metadata != null && has(object.metadata.labels)"),
            condition("object.metadata.labels == oldObject.metadata['labels'] && size(object.metadata.labels) > 3"),
            selector(json!({"matchLabels": {"app": "shop"}})),
        ] {
            assert!(shares(&good) && is_judged(&good), "{good:?}");
        }
        for refused in [
            // API servers accept these, but the types are not followed that far.
            condition("(request.dryRun ? request.name : object.metadata.name) == 'web'"),
            condition("request.name in []"),
            // The metadata have no managed fields here.
            condition("object.metadata == oldObject.metadata"),
            condition("object.metadata != oldObject.metadata || null == object.metadata"),
            condition("size(object.metadata) > 3"),
            condition("'labels' in object.metadata"),
            condition("object.metadata[request.name] == 'web'"),
            condition(r"object.metadata['managed\x46ields'] != null"),
            condition("(request.dryRun ? object.metadata : oldObject.metadata).name == 'web'"),
            // They refuse these, which are false here for every request, or fail.
            condition("request.kind == 'Pod'"),
            condition("request.resource == 'pods'"),
            condition("has(request.userinfo) && request.userinfo.username == 'me'"),
            condition("request.dryRun == 'true'"),
            condition("request.user == 'x'"),
            condition("request.name.contains(1)"),
            selector(json!({"matchLabels": {"app": "shop-"}})),
            selector(json!({"matchExpressions": [{"key": "a/b/c", "operator": "Exists"}]})),
            selector(json!({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]})),
        ] {
            assert!(!shares(&refused) && is_judged(&refused), "{refused:?}");
        }
        // A list of anything but constants is copied for each request, so this is not judged, whatever its types.
        let copied = condition("request.name in ['a', object.metadata.name]");
        assert!(!shares(&copied) && !is_judged(&copied));
    }
}
