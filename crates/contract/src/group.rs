//! Match groups: policies whose match part is the same to the letter share one webhook (docs/design/overview.md, section 3).

use std::collections::BTreeSet;
use std::fmt;
use std::fmt::Write as _;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Digest, FailurePolicy};

/// The kind of webhook that calls a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WebhookKind {
    /// May only admit or deny.
    Validating,
    /// May also change the object.
    Mutating,
}

/// Which requests are judged: those with an operation, a group, a version and a resource of these lists
/// (`admissionregistration.k8s.io/v1` RuleWithOperations).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RuleWithOperations {
    /// API groups of the resources; `""` is the core group, `*` stands for all and stands alone.
    pub api_groups: Vec<String>,
    /// API versions of the resources; `*` stands for all and stands alone.
    pub api_versions: Vec<String>,
    /// Resources by their plural, for instance `pods` or `pods/status`; `*` stands for all without subresources, `*/*` for all with them.
    pub resources: Vec<String>,
    /// What is done to the resource: `CREATE`, `UPDATE`, `DELETE` or `CONNECT`; `*` stands for all and stands alone.
    pub operations: Vec<String>,
    /// `Namespaced` for objects in namespaces, `Cluster` for objects in none, `*` for both. Where absent `*`, in a Policy `Namespaced`,
    /// which is all that it may be there.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub scope: Option<String>,
}

impl RuleWithOperations {
    /// The same rule, with the words of its lists in order, each once.
    pub fn sorted(&self) -> Self {
        let mut rule = self.clone();
        for list in [&mut rule.api_groups, &mut rule.api_versions, &mut rule.resources, &mut rule.operations] {
            list.sort();
            list.dedup();
        }
        rule
    }
}

/// A CEL expression that must hold for the webhook to be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MatchCondition {
    /// A name for messages, each one once.
    pub name: String,
    /// CEL over `object`, `oldObject`, `request` and `authorizer`; where it is false the policy is not asked.
    pub expression: String,
}

/// Everything that decides which requests reach a policy and how. Absent and default are the same.
#[derive(Debug, Clone, PartialEq)]
pub struct MatchPart {
    /// Validating or mutating.
    pub kind: WebhookKind,
    /// The namespace of a Policy; `None` for a ClusterPolicy.
    pub namespace: Option<String>,
    /// The rules.
    pub rules: Vec<RuleWithOperations>,
    /// `Exact` or `Equivalent`, the default.
    pub match_policy: Option<String>,
    /// A LabelSelector on the object.
    pub object_selector: Option<Value>,
    /// A LabelSelector on the object's namespace.
    pub namespace_selector: Option<Value>,
    /// CEL conditions, in order.
    pub match_conditions: Vec<MatchCondition>,
    /// What an unserved policy answers.
    pub failure_policy: FailurePolicy,
    /// `None`, the default, or `NoneOnDryRun`.
    pub side_effects: Option<String>,
}

/// Which requests of a shared webhook one member is asked about. The evaluator decides this, in the way in which API servers decide it
/// for a webhook of the member's own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberMatch {
    /// The rules; empty for all requests of the webhook.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub rules: Vec<RuleWithOperations>,
    /// A LabelSelector on the object; absent selects every object.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub object_selector: Option<Value>,
    /// CEL conditions, in order.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub match_conditions: Vec<MatchCondition>,
}

impl MatchPart {
    /// The part that this policy shares with policies that differ only in resources, operations and scope of their rules, in object selector
    /// and match conditions; and the rest, which is its own. The rules of the shared part name groups and versions only: the webhook has the
    /// rules of all its members.
    pub fn shared(&self) -> (Self, MemberMatch) {
        let own = MemberMatch {
            rules: self.rules.clone(),
            object_selector: self.object_selector.clone(),
            match_conditions: self.match_conditions.clone(),
        };
        let rules = self.rules.iter().map(RuleWithOperations::sorted);
        let versions: BTreeSet<_> = rules.map(|rule| (rule.api_groups, rule.api_versions)).collect();
        let rules = versions.into_iter().map(|(api_groups, api_versions)| RuleWithOperations {
            api_groups,
            api_versions,
            resources: Vec::new(),
            operations: Vec::new(),
            scope: None,
        });
        let rules = rules.collect();
        (Self { rules, object_selector: None, match_conditions: Vec::new(), ..self.clone() }, own)
    }
}

/// The id of a match group: 16 lower-case hex digits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GroupId(String);

impl GroupId {
    /// The digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for GroupId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() == 16 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            Ok(Self(text.to_owned()))
        } else {
            Err("not a match group: want 16 lower-case hex digits")
        }
    }
}

impl TryFrom<String> for GroupId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<GroupId> for String {
    fn from(id: GroupId) -> Self {
        id.0
    }
}

impl std::borrow::Borrow<str> for GroupId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The group of a match part: the first 16 hex digits of the SHA-256 of its canonical form. The order of rules and
/// conditions matters; the order of keys, and of the words in a rule's lists, does not.
pub fn group_id(part: &MatchPart) -> GroupId {
    shard_id(part, 0)
}

/// The group of one shard of a match part. Shard 0 is the group of [`group_id`]. The others have webhooks of their own, for
/// mutating policies whose turns do not fit into the time that an API server waits for one webhook.
pub fn shard_id(part: &MatchPart, shard: u32) -> GroupId {
    let mut canonical = part.canonical();
    if shard > 0 {
        canonical["shard"] = shard.into();
    }
    let mut text = String::new();
    write_canonical(&canonical, &mut text);
    let mut hex = Digest::of(text.as_bytes()).hex();
    hex.truncate(16);
    GroupId(hex)
}

impl MatchPart {
    /// Whether both mean exactly the same, that is whether they differ at most in the order of keys and of the words in a rule's lists.
    pub fn is_same(&self, other: &Self) -> bool {
        self == other || self.canonical() == other.canonical()
    }

    fn canonical(&self) -> Value {
        let rules: Vec<Value> = self
            .rules
            .iter()
            .map(|rule| {
                let rule = rule.sorted();
                serde_json::json!({
                    "apiGroups": rule.api_groups,
                    "apiVersions": rule.api_versions,
                    "resources": rule.resources,
                    "operations": rule.operations,
                    "scope": rule.scope.as_deref().unwrap_or("*"),
                })
            })
            .collect();
        let conditions: Vec<Value> = self
            .match_conditions
            .iter()
            .map(|c| serde_json::json!({"name": c.name, "expression": c.expression}))
            .collect();
        let selector = |selector: &Option<Value>| match selector {
            None | Some(Value::Null) => serde_json::json!({}),
            Some(value) => value.clone(),
        };
        serde_json::json!({
            "kind": self.kind,
            "namespace": self.namespace,
            "rules": rules,
            "matchPolicy": self.match_policy.as_deref().unwrap_or("Equivalent"),
            "objectSelector": selector(&self.object_selector),
            "namespaceSelector": selector(&self.namespace_selector),
            "matchConditions": conditions,
            "failurePolicy": self.failure_policy,
            "sideEffects": self.side_effects.as_deref().unwrap_or("None"),
        })
    }
}

/// JSON with sorted keys and no white space.
fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<_> = map.keys().collect();
            keys.sort();
            out.push('{');
            for (i, key) in keys.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_canonical(&Value::from(key.as_str()), out);
                out.push(':');
                write_canonical(&map[key], out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_canonical(item, out);
            }
            out.push(']');
        }
        scalar => write!(out, "{scalar}").expect("writing to a String never fails"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods() -> MatchPart {
        MatchPart {
            kind: WebhookKind::Validating,
            namespace: None,
            rules: vec![RuleWithOperations {
                api_groups: vec![String::new()],
                api_versions: vec!["v1".into()],
                resources: vec!["pods".into()],
                operations: vec!["CREATE".into(), "UPDATE".into()],
                scope: None,
            }],
            match_policy: None,
            object_selector: None,
            namespace_selector: None,
            match_conditions: Vec::new(),
            failure_policy: FailurePolicy::Fail,
            side_effects: None,
        }
    }

    #[test]
    fn the_id_is_stable_across_releases() {
        assert_eq!(group_id(&pods()).as_str(), "c00ef5eb6ddf5cac");
    }

    #[test]
    fn each_shard_is_a_group_and_the_first_is_that_of_the_match_part() {
        assert_eq!(shard_id(&pods(), 0), group_id(&pods()));
        assert_eq!(shard_id(&pods(), 1).as_str(), "3897c267fe3f8b3d");
        assert_ne!(shard_id(&pods(), 1), shard_id(&pods(), 2));
    }

    #[test]
    fn defaults_and_order_of_words_make_no_difference() {
        let mut other = pods();
        other.match_policy = Some("Equivalent".into());
        other.side_effects = Some("None".into());
        other.object_selector = Some(serde_json::json!({}));
        other.rules[0].scope = Some("*".into());
        other.rules[0].operations.reverse();
        assert_eq!(group_id(&other), group_id(&pods()));
    }

    #[test]
    fn a_shared_part_names_groups_and_versions_once() {
        let mut one = pods();
        one.object_selector = Some(serde_json::json!({"matchLabels": {"a": "b"}}));
        let mut other = pods();
        other.rules[0].resources = vec!["services".into(), "pods/exec".into()];
        other.rules[0].operations = vec!["*".into()];
        other.rules.push(RuleWithOperations { scope: Some("Namespaced".into()), ..pods().rules.remove(0) });
        let (part, own) = other.shared();
        assert_eq!(part, one.shared().0);
        assert_eq!((part.rules.len(), own.rules), (1, other.rules.clone()));
        other.rules[1].api_versions.push("v2".into());
        assert_ne!(group_id(&other.shared().0), group_id(&part));
    }

    #[test]
    fn each_part_makes_a_difference() {
        let mut parts = vec![pods()];
        let mut change = |f: fn(&mut MatchPart)| {
            let mut part = pods();
            f(&mut part);
            parts.push(part);
        };
        change(|p| p.kind = WebhookKind::Mutating);
        change(|p| p.namespace = Some("team-a".into()));
        change(|p| p.failure_policy = FailurePolicy::Ignore);
        change(|p| p.match_policy = Some("Exact".into()));
        change(|p| p.side_effects = Some("NoneOnDryRun".into()));
        change(|p| p.object_selector = Some(serde_json::json!({"matchLabels": {"a": "b"}})));
        change(|p| p.namespace_selector = Some(serde_json::json!({"matchLabels": {"a": "b"}})));
        change(|p| p.match_conditions.push(MatchCondition { name: "x".into(), expression: "true".into() }));
        change(|p| p.rules[0].resources.push("services".into()));
        let ids: BTreeSet<_> = parts.iter().map(group_id).collect();
        assert_eq!(ids.len(), parts.len());
    }
}
