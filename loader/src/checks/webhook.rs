//! Whether a policy gets a webhook of its own although one small change would let it share another policy's. Pure.
//!
//! A Policy is compared with those of its own namespace only, and a ClusterPolicy with ClusterPolicies: others never share its webhook, and
//! the author must not learn of them. A change after which the policy would be asked about fewer requests is never proposed.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_contract::{MatchPart, PolicyId, RuleWithOperations, clean, group_id};
use portcullis_matching::shared_part;
use serde_json::Value;

use crate::content::Matched;

/// Longest warning, in bytes.
const LONGEST: usize = 400;
/// Most words of a list that are quoted.
const MOST_WORDS: usize = 8;

/// How much a change matters, least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    /// The meaning stays the same.
    Form,
    /// The rule names other versions of the same resources.
    Versions,
    /// The policy is asked about more requests to the same resources.
    Requests,
    /// The policy is asked about more resources.
    Resources,
}

/// The warning for a policy with this match part and id; `others` are all policies of the installation. Where the installation shares
/// webhooks, policies may differ in what the evaluator judges for each of them.
pub(super) fn added(
    part: &MatchPart,
    id: &PolicyId,
    others: &BTreeMap<PolicyId, Arc<Matched>>,
    shares_webhooks: bool,
) -> Option<String> {
    let is_near = |other: &Matched| other.part.namespace == part.namespace && other.part.kind == part.kind;
    let webhook = |part| {
        let shared = if shares_webhooks { shared_part(part) } else { None };
        let is_shared = shared.is_some();
        let part = shared.map_or(Cow::Borrowed(part), Cow::Owned);
        (group_id(&part), part, is_shared)
    };
    let near = others.iter().filter(|(_, other)| is_near(other));
    let mut near: Vec<_> = near.map(|(id, other)| (id, webhook(&other.part))).collect();
    let (group, part, is_shared) = webhook(part);
    if near.iter().any(|(_, (other, _, _))| *other == group) {
        return None;
    }
    // The rules of a shared webhook are those of all its members, so they compare with those of another shared one only.
    near.retain(|(other, (_, _, shares))| *other != id && *shares == is_shared);
    let mut seen = BTreeSet::new();
    let changes = near.iter().filter(|(_, (group, _, _))| seen.insert(group)).filter_map(|(id, (_, other, _))| {
        let (change, text) = change(&part, other)?;
        // The one rule of a shared part stands for all rules of the policy.
        let text = if is_shared { text.replacen("spec.rules[0]", "spec.rules[*]", 1) } else { text };
        Some((change, *id, text))
    });
    let (_, id, text) = changes.min()?;
    let text = format!(
        "WebhookAdded: this policy gets a webhook of its own; with {text} as in {id} it would share that policy's"
    );
    Some(clean(&text, LONGEST))
}

/// The change that turns the first part into the second; `None` if they differ in more than one way, or by a change that is not proposed.
fn change(own: &MatchPart, other: &MatchPart) -> Option<(Change, String)> {
    let side_effects = |part: &MatchPart| part.side_effects.as_deref().unwrap_or("None").to_owned();
    if own.failure_policy != other.failure_policy || side_effects(own) != side_effects(other) {
        return None;
    }
    let mut changes = Vec::new();
    match (match_policy(own), match_policy(other)) {
        (one, another) if one == another => {}
        ("Exact", _) => changes.push((Change::Requests, "spec.matchPolicy Equivalent".to_owned())),
        _ => return None,
    }
    for (field, one, another) in [
        ("objectSelector", &own.object_selector, &other.object_selector),
        ("namespaceSelector", &own.namespace_selector, &other.namespace_selector),
    ] {
        if raw(one.as_ref()) != raw(another.as_ref()) {
            if selector(one.as_ref()) != selector(another.as_ref()) {
                return None;
            }
            changes.push((Change::Form, format!("spec.{field} written")));
        }
    }
    if own.match_conditions != other.match_conditions {
        if expressions(own) != expressions(other) {
            return None;
        }
        changes.push((Change::Form, "spec.matchConditions written".to_owned()));
    }
    changes.extend(of_rules(own, other)?);
    if changes.len() == 1 { changes.pop() } else { None }
}

fn match_policy(part: &MatchPart) -> &str {
    part.match_policy.as_deref().unwrap_or("Equivalent")
}

/// A selector as it goes into the id of a group.
fn raw(selector: Option<&Value>) -> Value {
    match selector {
        None | Some(Value::Null) => Value::Object(serde_json::Map::new()),
        Some(value) => value.clone(),
    }
}

/// A selector's requirements, without regard to their order.
fn selector(selector: Option<&Value>) -> BTreeSet<String> {
    let field = |name: &str| selector.and_then(|selector| selector.get(name));
    let labels = field("matchLabels").and_then(Value::as_object).into_iter().flatten();
    let labels = labels.map(|(key, value)| format!("{key}={value}"));
    let expressions = field("matchExpressions").and_then(Value::as_array).into_iter().flatten();
    let expressions = expressions.map(|expression| {
        let values = expression["values"].as_array().into_iter().flatten();
        let values: BTreeSet<String> = values.map(Value::to_string).collect();
        format!("{} {} {values:?}", expression["key"], expression["operator"])
    });
    labels.chain(expressions).collect()
}

/// The expressions of match conditions, without regard to order and names: all must be true.
fn expressions(part: &MatchPart) -> BTreeSet<&str> {
    part.match_conditions.iter().map(|condition| condition.expression.trim()).collect()
}

/// A rule, without regard to the order of words in its lists.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rule<'r> {
    groups: BTreeSet<&'r str>,
    versions: BTreeSet<&'r str>,
    resources: BTreeSet<&'r str>,
    operations: BTreeSet<&'r str>,
    scope: &'r str,
}

impl<'r> Rule<'r> {
    fn of(rule: &'r RuleWithOperations) -> Self {
        let words = |list: &'r [String]| list.iter().map(String::as_str).collect();
        Self {
            groups: words(&rule.api_groups),
            versions: words(&rule.api_versions),
            resources: words(&rule.resources),
            operations: words(&rule.operations),
            scope: rule.scope.as_deref().unwrap_or("*"),
        }
    }
}

/// The change of the rules: `Some(None)` if they are equal, `None` if they differ by more than one change.
fn of_rules(own: &MatchPart, other: &MatchPart) -> Option<Option<(Change, String)>> {
    let ours: Vec<_> = own.rules.iter().map(Rule::of).collect();
    let theirs: Vec<_> = other.rules.iter().map(Rule::of).collect();
    if ours == theirs {
        return Some(None);
    }
    if ours.iter().collect::<BTreeSet<_>>() == theirs.iter().collect::<BTreeSet<_>>() {
        return Some(Some((Change::Form, "spec.rules in the order".to_owned())));
    }
    let mut differing = ours.iter().zip(&theirs).enumerate().filter(|(_, (one, another))| one != another);
    let (Some((number, (one, another))), None) = (differing.next(), differing.next()) else { return None };
    if ours.len() != theirs.len() {
        return None;
    }
    let is_equivalent = match_policy(own) == "Equivalent";
    let (change, field, words) = of_rule(one, another, is_equivalent)?;
    Some(Some((change, format!("spec.rules[{number}].{field} {words}"))))
}

/// The change of a rule: how much it matters, the field, and the field's new words.
fn of_rule(one: &Rule<'_>, another: &Rule<'_>, is_equivalent: bool) -> Option<(Change, &'static str, String)> {
    let lists = [
        ("apiGroups", &one.groups, &another.groups, Change::Resources),
        ("apiVersions", &one.versions, &another.versions, Change::Versions),
        ("resources", &one.resources, &another.resources, Change::Resources),
        ("operations", &one.operations, &another.operations, Change::Requests),
    ];
    let mut changed = lists.into_iter().filter(|(_, ours, theirs, _)| ours != theirs);
    match (changed.next(), one.scope == another.scope) {
        (None, false) => (another.scope == "*").then(|| (Change::Requests, "scope", "*".to_owned())),
        (Some((field, ours, theirs, change)), true) if changed.next().is_none() => {
            let is_one_more = |less: &BTreeSet<&str>, more: &BTreeSet<&str>| {
                less.is_subset(more) && more.len() == less.len() + 1 && !more.contains("*")
            };
            let is_all = |words: &BTreeSet<&str>| words.len() == 1 && words.contains("*");
            let is_near = match change {
                // With `Equivalent`, all versions reach the policy, whichever one its rule names.
                Change::Versions if is_equivalent => {
                    is_one_more(ours, theirs) || is_one_more(theirs, ours) || is_all(ours) || is_all(theirs)
                }
                Change::Versions | Change::Requests => is_one_more(ours, theirs) || is_all(theirs),
                Change::Resources | Change::Form => is_one_more(ours, theirs),
            };
            is_near.then(|| (change, field, words(theirs)))
        }
        _ => None,
    }
}

/// A list as in YAML.
fn words(list: &BTreeSet<&str>) -> String {
    let shown = list.iter().copied().take(MOST_WORDS).map(|word| if word.is_empty() { "\"\"" } else { word });
    let more = if list.len() > MOST_WORDS { ", …" } else { "" };
    format!("[{}{more}]", shown.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use portcullis_contract::{FailurePolicy, MatchCondition, WebhookKind};
    use serde_json::json;

    use super::*;

    fn part() -> MatchPart {
        let list = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        let rule = |resource: &str| RuleWithOperations {
            api_groups: list(&[""]),
            api_versions: list(&["v1"]),
            resources: list(&[resource]),
            operations: list(&["CREATE"]),
            scope: None,
        };
        MatchPart {
            kind: WebhookKind::Validating,
            namespace: None,
            rules: vec![rule("pods"), rule("services")],
            match_policy: None,
            object_selector: None,
            namespace_selector: None,
            match_conditions: Vec::new(),
            failure_policy: FailurePolicy::Fail,
            side_effects: None,
        }
    }

    fn with(change: fn(&mut MatchPart)) -> MatchPart {
        let mut part = part();
        change(&mut part);
        part
    }

    fn id(name: &str) -> PolicyId {
        PolicyId::cluster(name).expect("an id")
    }

    fn others(parts: Vec<MatchPart>) -> BTreeMap<PolicyId, Arc<Matched>> {
        let matched = |part| Arc::new(Matched { group: group_id(&part), part });
        parts.into_iter().enumerate().map(|(number, part)| (id(&format!("p{number}")), matched(part))).collect()
    }

    /// The change that the warning proposes, as in the other policy.
    fn proposal(own: MatchPart, other: MatchPart) -> Option<String> {
        let text = added(&own, &id("own"), &others(vec![other]), false)?;
        let text = text.strip_prefix("WebhookAdded: this policy gets a webhook of its own; with ").expect("the words");
        Some(text.strip_suffix(" as in cluster/p0 it would share that policy's").expect("the words").to_owned())
    }

    fn words_of(list: &[&str]) -> Vec<String> {
        list.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn one_word_is_named_where_the_policy_is_asked_about_no_less() {
        for (own, other, text) in [
            (
                part(),
                with(|part| part.rules[0].operations = words_of(&["UPDATE", "CREATE"])),
                "spec.rules[0].operations [CREATE, UPDATE]",
            ),
            (part(), with(|part| part.rules[1].operations = words_of(&["*"])), "spec.rules[1].operations [*]"),
            (part(), with(|part| part.rules[0].api_versions = words_of(&["*"])), "spec.rules[0].apiVersions [*]"),
            (with(|part| part.rules[0].api_versions = words_of(&["*"])), part(), "spec.rules[0].apiVersions [v1]"),
            (
                with(|part| part.rules[0].api_versions = words_of(&["v1", "v2"])),
                part(),
                "spec.rules[0].apiVersions [v1]",
            ),
            (
                part(),
                with(|part| part.rules[0].api_groups = words_of(&["apps", ""])),
                "spec.rules[0].apiGroups [\"\", apps]",
            ),
            (
                part(),
                with(|part| part.rules[0].resources = words_of(&["pods", "pods/exec"])),
                "spec.rules[0].resources [pods, pods/exec]",
            ),
            (with(|part| part.rules[0].scope = Some("Namespaced".into())), part(), "spec.rules[0].scope *"),
            (with(|part| part.match_policy = Some("Exact".into())), part(), "spec.matchPolicy Equivalent"),
        ] {
            assert_eq!(proposal(own, other).as_deref(), Some(text));
        }
    }

    #[test]
    fn what_means_the_same_is_named() {
        let condition = |name: &str, text: &str| MatchCondition { name: name.into(), expression: text.into() };
        let mut conditions = part();
        conditions.match_conditions = vec![condition("a", "true"), condition("b", "object != null")];
        let mut renamed = part();
        renamed.match_conditions = vec![condition("b", "object != null "), condition("c", "true")];
        let selecting = |selector: Value| MatchPart { object_selector: Some(selector), ..part() };
        let one = json!({"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "In", "values": ["x", "y"]}]});
        let other = json!({"matchExpressions": [{"key": "c", "values": ["y", "x"], "operator": "In"}], "matchLabels": {"a": "b"}});
        for (own, other, text) in [
            (part(), with(|part| part.rules.reverse()), "spec.rules in the order"),
            (conditions, renamed, "spec.matchConditions written"),
            (selecting(one), selecting(other), "spec.objectSelector written"),
            (part(), selecting(json!({"matchLabels": {}})), "spec.objectSelector written"),
        ] {
            assert_eq!(proposal(own, other).as_deref(), Some(text));
        }
    }

    #[test]
    fn nothing_is_named_that_changes_more_or_lets_requests_pass() {
        for (own, other) in [
            (part(), part()),
            (part(), with(|part| part.failure_policy = FailurePolicy::Ignore)),
            (part(), with(|part| part.kind = WebhookKind::Mutating)),
            (part(), with(|part| part.namespace = Some("team".into()))),
            (part(), with(|part| part.match_policy = Some("Exact".into()))),
            (part(), with(|part| part.side_effects = Some("NoneOnDryRun".into()))),
            (part(), with(|part| part.object_selector = Some(json!({"matchLabels": {"a": "b"}})))),
            (part(), with(|part| part.rules[0].resources = words_of(&["nodes"]))),
            (part(), with(|part| part.rules[0].operations = words_of(&["UPDATE"]))),
            (part(), with(|part| part.rules[0].operations = words_of(&["CREATE", "UPDATE", "DELETE"]))),
            (with(|part| part.rules[0].operations = words_of(&["CREATE", "UPDATE"])), part()),
            (with(|part| part.rules[0].resources = words_of(&["pods", "pods/exec"])), part()),
            (part(), with(|part| part.rules[0].resources = words_of(&["*"]))),
            (part(), with(|part| drop(part.rules.pop()))),
            (part(), with(|part| part.rules.iter_mut().for_each(|rule| rule.operations = words_of(&["*"])))),
        ] {
            assert_eq!(proposal(own.clone(), other.clone()), None, "{own:?} {other:?}");
        }
        // With `Exact`, other versions are other requests.
        let exact = with(|part| part.match_policy = Some("Exact".into()));
        let mut all = exact.clone();
        all.rules[0].api_versions = words_of(&["*"]);
        assert_eq!(proposal(all.clone(), exact.clone()), None);
        assert!(proposal(exact, all).is_some());
    }

    #[test]
    fn the_nearest_one_is_named_and_a_policy_that_shares_a_webhook_is_not_told() {
        let more = || with(|part| part.rules[0].operations = words_of(&["CREATE", "UPDATE"]));
        let versions = || with(|part| part.rules[0].api_versions = words_of(&["*"]));
        let text = added(&part(), &id("own"), &others(vec![more(), versions(), more()]), false).expect("a warning");
        assert!(text.contains("apiVersions [*] as in cluster/p1 "), "{text}");
        assert_eq!(added(&part(), &id("own"), &others(vec![more(), part()]), false), None);
        // A policy's own former match part does not count as another policy's, and a policy that stays in its group adds no webhook.
        assert_eq!(added(&part(), &id("p0"), &others(vec![more()]), false), None);
        assert_eq!(added(&part(), &id("p1"), &others(vec![more(), part()]), false), None);
        assert!(added(&part(), &id("p1"), &others(vec![more(), versions()]), false).is_some());
    }

    #[test]
    fn where_webhooks_are_shared_only_what_they_do_not_share_is_named() {
        let condition = |text: &str| MatchCondition { name: "c".into(), expression: text.into() };
        let selecting = |value: &str| MatchPart {
            object_selector: Some(json!({"matchLabels": {"team": value}})),
            match_conditions: vec![condition("object.metadata.name != 'x'")],
            ..part()
        };
        let own = |part: &MatchPart, other: MatchPart| added(part, &id("own"), &others(vec![other]), true);
        assert_eq!(own(&selecting("a"), selecting("b")), None, "they share a webhook");
        assert_eq!(own(&selecting("a"), part()), None);
        let mut more = selecting("b");
        more.rules[0].operations = words_of(&["CREATE", "UPDATE"]);
        assert_eq!(own(&selecting("a"), more.clone()), None, "nor do operations matter");
        more.rules.iter_mut().for_each(|rule| rule.api_versions = words_of(&["v1", "v2"]));
        let text = own(&selecting("a"), more).expect("a warning");
        assert!(text.contains("with spec.rules[*].apiVersions [v1, v2] as in cluster/p0"), "{text}");
        // Only API servers can judge this condition, so the policy has a webhook of its own.
        let mut alone = part();
        alone.match_conditions = vec![condition("authorizer.group('').resource('pods').check('get').allowed()")];
        assert_eq!(own(&alone, part()), None, "no word would save the webhook");
    }
}
