//! Rules for both kinds of policy.

use portcullis_contract::MatchCondition;
use serde_json::Value;

use super::rule::{Rule, each_rule, has, selector};
use crate::schema::names;
use crate::{LabelOperator, LabelSelector, PolicySpec};

pub(super) const RULES: &[Rule] = &[
    Rule {
        at: "",
        field: "module",
        cel: "has(self.module) || has(self.policies)",
        holds: |spec| spec.module.is_some() || spec.policies.is_some(),
        message: "is missing: write where the module is, like registry://example.com/policies/labels:v1, or the members of a \
                  group in `policies`",
    },
    Rule {
        at: "",
        field: "policies",
        cel: "!has(self.module) || !has(self.policies)",
        holds: |spec| spec.module.is_none() || spec.policies.is_none(),
        message: "cannot be set together with `module`: remove one of the two",
    },
    Rule {
        at: "",
        field: "expression",
        cel: "has(self.policies) || !has(self.expression)",
        holds: |spec| spec.policies.is_some() || spec.expression.is_none(),
        message: "is for a group, so it cannot be set without `policies`: remove it",
    },
    Rule {
        at: "",
        field: "expression",
        cel: "!has(self.policies) || has(self.expression)",
        holds: |spec| spec.policies.is_none() || spec.expression.is_some(),
        message: "is missing: say how the verdicts of a group's members are combined, like `a() && b()`",
    },
    Rule {
        at: "",
        field: "message",
        cel: "!has(self.policies) || has(self.message)",
        holds: |spec| spec.policies.is_none() || spec.message.is_some(),
        message: "is missing: a group needs the text that a denial shows",
    },
    Rule {
        at: "",
        field: "mutating",
        cel: "!has(self.policies) || !has(self.mutating) || !self.mutating",
        holds: |spec| spec.policies.is_none() || !spec.mutating,
        message: "must be false for a group, which cannot change objects: remove it, or use `module`",
    },
    Rule {
        at: "",
        field: "policies",
        cel: "!has(self.policies) || self.policies.all(name, name.matches('^[_a-zA-Z][_a-zA-Z0-9]{0,62}$') && !(name in ['as', \
              'break', 'const', 'continue', 'else', 'false', 'for', 'function', 'if', 'import', 'in', 'let', 'loop', 'namespace', \
              'null', 'package', 'return', 'true', 'var', 'void', 'while']))",
        holds: |spec| spec.policies.iter().flatten().all(|(name, _)| names::is_member(name)),
        message: "has a member whose name cannot be called in `expression`: use letters, digits and `_`, no digit first, 63 at most, \
                  and no reserved word such as `in` or `true`",
    },
    Rule {
        at: "",
        field: "policies",
        cel: "!has(self.policies) || self.policies.map(name, has(self.policies[name].timeoutEvalSeconds) ? \
              self.policies[name].timeoutEvalSeconds : 0).sum() <= (has(self.timeoutSeconds) ? self.timeoutSeconds : 10)",
        holds: |spec| member_seconds(spec) <= u64::from(spec.timeout_seconds.unwrap_or(10)),
        message: "has members whose timeoutEvalSeconds add up to more than timeoutSeconds (10 where absent), so the API server would \
                  give up first: lower them, or raise timeoutSeconds",
    },
    Rule {
        at: "",
        field: "timeoutEvalSeconds",
        cel: "!has(self.timeoutEvalSeconds) || self.timeoutEvalSeconds <= (has(self.timeoutSeconds) ? self.timeoutSeconds : 10)",
        holds: |spec| spec.timeout_eval_seconds.unwrap_or(1) <= spec.timeout_seconds.unwrap_or(10),
        message: "must not be above timeoutSeconds (10 where absent), as the API server would give up first: lower it, or raise \
                  timeoutSeconds",
    },
    Rule {
        at: "policyServer",
        field: "",
        cel: "self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
        holds: |spec| names::is_label(&spec.policy_server),
        message: "is not a valid name of an installation: use lower-case letters, digits and `-`, with a letter or digit at both ends",
    },
    Rule {
        at: "policyServer",
        field: "",
        cel: "self == oldSelf",
        holds: |_| true,
        message: "cannot be changed: delete the policy, and create it again for the other installation",
    },
    Rule {
        at: "rules[]",
        field: "",
        cel: "!('policies.portcullis.dev' in self.apiGroups)",
        holds: |spec| each_rule(spec, |rule| !has(&rule.api_groups, "policies.portcullis.dev")),
        message: "names the API group policies.portcullis.dev, which no policy may match, as a bad policy could never be removed: \
                  leave that group out of apiGroups",
    },
    Rule {
        at: "rules[]",
        field: "",
        cel: "[self.apiGroups, self.apiVersions, self.operations].all(list, !('*' in list) || size(list) == 1)",
        holds: |spec| {
            each_rule(spec, |rule| {
                [&rule.api_groups, &rule.api_versions, &rule.operations]
                    .into_iter()
                    .all(|list| !has(list, "*") || list.len() == 1)
            })
        },
        message: "has `*` together with other words in apiGroups, apiVersions or operations: `*` already matches all, so write it alone",
    },
    Rule {
        at: "rules[]",
        field: "",
        cel: "(!('*/*' in self.resources) || size(self.resources) == 1) && (!('*' in self.resources) || self.resources.all(name, \
              name == '*' || name.contains('/')))",
        holds: |spec| {
            each_rule(spec, |rule| {
                let names = &rule.resources;
                (!has(names, "*/*") || names.len() == 1)
                    && (!has(names, "*") || names.iter().all(|name| name == "*" || name.contains('/')))
            })
        },
        message: "has `*` or `*/*` in resources together with words that it already matches: write it alone",
    },
    Rule {
        at: "matchConditions[]",
        field: "name",
        cel: "self.name.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')",
        holds: |spec| each_condition(spec, |condition| names::is_qualified(&condition.name)),
        message: "is not a valid name of a condition: use letters, digits, `-`, `_` and `.`, 63 at most, with a letter or digit at both \
                  ends, and optionally a domain and `/` in front",
    },
    Rule {
        at: "matchConditions[]",
        field: "name",
        cel: "!self.name.startsWith('portcullis.dev/') && !self.name.startsWith('policies.portcullis.dev/')",
        holds: |spec| {
            each_condition(spec, |condition| {
                !condition.name.starts_with("portcullis.dev/")
                    && !condition.name.starts_with("policies.portcullis.dev/")
            })
        },
        message: "begins with portcullis.dev/ or policies.portcullis.dev/, which are reserved for conditions of Portcullis itself: choose \
                  another name",
    },
    Rule {
        at: "objectSelector.matchExpressions[]",
        field: "values",
        cel: VALUES,
        holds: |spec| values_fit(spec.object_selector.as_ref()),
        message: VALUES_MESSAGE,
    },
    Rule {
        at: "namespaceSelector.matchExpressions[]",
        field: "values",
        cel: VALUES,
        holds: |spec| values_fit(spec.namespace_selector.as_ref()),
        message: VALUES_MESSAGE,
    },
];

const VALUES: &str = "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)";
const VALUES_MESSAGE: &str = "must be given with the operators In and NotIn, and must be absent with Exists and DoesNotExist: add values, or remove them";

fn member_seconds(spec: &PolicySpec) -> u64 {
    spec.policies.iter().flatten().filter_map(|(_, member)| member["timeoutEvalSeconds"].as_u64()).sum()
}

fn each_condition(spec: &PolicySpec, holds: fn(&MatchCondition) -> bool) -> bool {
    spec.match_conditions.iter().all(holds)
}

fn values_fit(value: Option<&Value>) -> bool {
    let LabelSelector { match_expressions, .. } = selector(value);
    match_expressions.iter().all(|requirement| {
        let wants = matches!(requirement.operator, LabelOperator::In | LabelOperator::NotIn);
        wants != requirement.values.is_empty()
    })
}
