//! The rules of webhooks: which requests they match, and the rules of a webhook that several policies share.

use std::collections::{BTreeMap, BTreeSet};

use portcullis_contract::RuleWithOperations;

use crate::request::{Asked, matches_rule};

/// The operations of rules, for which `*` stands.
const OPERATIONS: [&str; 4] = ["CONNECT", "CREATE", "DELETE", "UPDATE"];
/// The scopes of rules.
const SCOPES: [&str; 3] = ["*", "Cluster", "Namespaced"];

/// A resource of a rule with one operation, the smallest part of rules that is matched by itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Atom<'r> {
    groups: BTreeSet<&'r str>,
    versions: BTreeSet<&'r str>,
    resource: &'r str,
    scope: &'r str,
    operation: &'r str,
}

/// Whether one of the rules matches a request, as in an API server.
pub fn matches(rules: &[RuleWithOperations], asked: &Asked) -> bool {
    // The namespace of a request about a Namespace is its name.
    let is_namespace = asked.group.is_empty() && asked.version == "v1" && asked.resource == "namespaces";
    let is_namespaced = !asked.namespace.is_empty() && !is_namespace;
    rules.iter().any(|rule| {
        let is_in_scope = match rule.scope.as_deref() {
            Some("Namespaced") => is_namespaced,
            Some("Cluster") => !is_namespaced,
            _ => true,
        };
        is_in_scope && matches_rule(rule, asked)
    })
}

/// The rules that together match what at least one of these matches, and nothing else. All must name the same groups and versions. A
/// resource with a wildcard has a rule of its own, as API servers refuse some lists of resources with a wildcard.
pub fn union<'r>(rules: impl IntoIterator<Item = &'r RuleWithOperations>) -> Vec<RuleWithOperations> {
    let mut operations: BTreeMap<_, BTreeSet<&str>> = BTreeMap::new();
    for Atom { groups, versions, resource, scope, operation } in rules.into_iter().flat_map(atoms) {
        operations.entry((groups, versions, scope, resource)).or_default().insert(operation);
    }
    let mut resources: BTreeMap<_, Vec<&str>> = BTreeMap::new();
    for ((groups, versions, scope, resource), operations) in operations {
        let operations = if operations.len() == OPERATIONS.len() { BTreeSet::from(["*"]) } else { operations };
        let alone = resource.contains('*').then_some(resource);
        resources.entry((groups, versions, scope, operations, alone)).or_default().push(resource);
    }
    let rule =
        |((groups, versions, scope, operations, _), resources): ((_, _, &str, _, _), Vec<&str>)| RuleWithOperations {
            api_groups: listed(&groups),
            api_versions: listed(&versions),
            resources: resources.into_iter().map(str::to_owned).collect(),
            operations: listed(&operations),
            scope: Some(scope.to_owned()),
        };
    resources.into_iter().map(rule).collect()
}

/// Whether a webhook with the rules `registered` is called for each request that one of `rules` matches, as far as the words tell: a
/// resource that is matched only by a wildcard of another rule does not count.
pub fn covers(registered: &[RuleWithOperations], rules: &[RuleWithOperations]) -> bool {
    let registered: BTreeSet<_> = registered.iter().flat_map(atoms).collect();
    rules.iter().flat_map(atoms).all(|atom| registered.contains(&atom))
}

/// The rules that match what one of `first` and one of `second` match, where both name the same groups and versions.
pub fn intersection(first: &[RuleWithOperations], second: &[RuleWithOperations]) -> Vec<RuleWithOperations> {
    let both = |one: &Atom<'_>, other: &Atom<'_>| {
        if (&one.groups, &one.versions, one.operation) != (&other.groups, &other.versions, other.operation) {
            return None;
        }
        Some(RuleWithOperations {
            api_groups: listed(&one.groups),
            api_versions: listed(&one.versions),
            resources: vec![common_resource(one.resource, other.resource)?],
            operations: vec![one.operation.to_owned()],
            scope: Some(common(one.scope, other.scope)?.to_owned()),
        })
    };
    let second: Vec<_> = second.iter().flat_map(atoms).collect();
    let rules = first.iter().flat_map(atoms);
    let rules: Vec<_> =
        rules.flat_map(|one| second.iter().filter_map(|other| both(&one, other)).collect::<Vec<_>>()).collect();
    union(&rules)
}

/// The pattern of the resources that both match: `pods` for `*` and `pods`.
fn common_resource(one: &str, other: &str) -> Option<String> {
    let ((resource, sub), (other, other_sub)) = (split(one), split(other));
    let (resource, sub) = (common(resource, other)?, common(sub, other_sub)?);
    Some(if sub.is_empty() { resource.to_owned() } else { format!("{resource}/{sub}") })
}

fn split(resource: &str) -> (&str, &str) {
    resource.split_once('/').unwrap_or((resource, ""))
}

/// The word that two words or wildcards have in common.
fn common<'w>(one: &'w str, other: &'w str) -> Option<&'w str> {
    match (one, other) {
        ("*", word) | (word, "*") => Some(word),
        (one, other) => (one == other).then_some(one),
    }
}

/// The resources that rules name, with their scopes.
pub fn resources(rules: &[RuleWithOperations]) -> BTreeSet<(String, String)> {
    rules.iter().flat_map(atoms).map(|atom| (atom.resource.to_owned(), atom.scope.to_owned())).collect()
}

/// Whether every API server takes these rules, beside any others of this kind. One that it refuses would keep all members of a shared
/// webhook from being called.
pub(crate) fn are_plain(rules: &[RuleWithOperations]) -> bool {
    let is_word = |word: &str| !word.is_empty() && word.len() <= 253 && word.chars().all(is_plain);
    let is_alone = |list: &[String]| list.len() == 1 || !list.iter().any(|word| word == "*");
    !rules.is_empty()
        && rules.iter().all(|rule| {
            let lists = [&rule.api_groups, &rule.api_versions, &rule.operations];
            lists.iter().all(|list| !list.is_empty() && is_alone(list))
                // The core group has no name.
                && rule.api_groups.iter().all(|group| group.is_empty() || is_word(group))
                && rule.api_versions.iter().all(|version| is_word(version))
                && rule.operations.iter().all(|operation| operation == "*" || OPERATIONS.contains(&operation.as_str()))
                && !rule.resources.is_empty()
                && rule.resources.iter().all(|resource| is_resource(resource))
                && rule.scope.as_deref().is_none_or(|scope| SCOPES.contains(&scope))
        })
}

/// Whether this is a resource with at most one subresource, of plain characters, or with a wildcard for one or both.
fn is_resource(text: &str) -> bool {
    let is_word = |word: &str| !word.is_empty() && (word == "*" || !word.contains('*')) && word.chars().all(is_plain);
    text.len() <= 253 && text.split('/').count() <= 2 && text.split('/').all(is_word)
}

fn is_plain(char: char) -> bool {
    char.is_ascii_alphanumeric() || ['-', '.', '*'].contains(&char)
}

fn atoms(rule: &RuleWithOperations) -> impl Iterator<Item = Atom<'_>> {
    let (groups, versions) = (words(&rule.api_groups), words(&rule.api_versions));
    let scope = rule.scope.as_deref().unwrap_or("*");
    rule.resources.iter().flat_map(move |resource| {
        let (groups, versions) = (groups.clone(), versions.clone());
        let is_named = |name: &&str| rule.operations.iter().any(|operation| operation == name || operation == "*");
        OPERATIONS.into_iter().filter(is_named).map(move |operation| Atom {
            groups: groups.clone(),
            versions: versions.clone(),
            resource,
            scope,
            operation,
        })
    })
}

fn words(list: &[String]) -> BTreeSet<&str> {
    list.iter().map(String::as_str).collect()
}

fn listed(words: &BTreeSet<&str>) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::tests::asked as request;

    fn rule(resources: &[&str], operations: &[&str], scope: Option<&str>) -> RuleWithOperations {
        let words = |list: &[&str]| list.iter().map(|&word| word.to_owned()).collect();
        RuleWithOperations {
            api_groups: words(&[""]),
            api_versions: words(&["v1"]),
            resources: words(resources),
            operations: words(operations),
            scope: scope.map(str::to_owned),
        }
    }

    fn asked(resource: &str, operation: &str, namespace: &str) -> Asked {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        Asked { namespace: namespace.into(), ..request(resource, subresource, operation) }
    }

    #[test]
    fn a_scope_leaves_out_what_is_of_the_other() {
        let pods = |scope| matches(&[rule(&["pods"], &["CREATE"], scope)], &asked("pods", "CREATE", "team"));
        assert!(pods(None) && pods(Some("*")) && pods(Some("Namespaced")) && !pods(Some("Cluster")));
        let team = |scope| matches(&[rule(&["*"], &["*"], Some(scope))], &asked("namespaces", "CREATE", "team"));
        assert!(team("Cluster") && !team("Namespaced"), "a Namespace is in no namespace");
        assert!(!matches(&[rule(&["*"], &["*"], Some("Namespaced"))], &asked("nodes", "CREATE", "")));
    }

    #[test]
    fn a_union_is_what_one_of_its_rules_matches_and_nothing_else() {
        let rules = [
            rule(&["pods", "services"], &["CREATE"], None),
            rule(&["services"], &["UPDATE", "CREATE"], Some("*")),
            rule(&["pods/*", "configmaps"], &["*"], Some("Namespaced")),
            rule(&["configmaps"], &["DELETE"], Some("Namespaced")),
            rule(&["*"], &["CONNECT"], Some("Cluster")),
        ];
        let together = union(&rules);
        for resource in ["pods", "pods/exec", "services", "services/status", "configmaps", "nodes", "namespaces"] {
            for operation in ["CREATE", "UPDATE", "DELETE", "CONNECT"] {
                for namespace in ["", "team"] {
                    let asked = asked(resource, operation, namespace);
                    assert_eq!(matches(&together, &asked), matches(&rules, &asked), "{asked:?}");
                }
            }
        }
        assert_eq!(together, union(&together), "it stays the same");
        assert_eq!(union(rules.iter().rev()), together, "whatever the order");
        assert!(covers(&together, &rules) && rules.iter().all(|rule| covers(&together, std::slice::from_ref(rule))));
        assert!(!covers(&together, &[rule(&["pods"], &["UPDATE"], None)]));
        assert!(!covers(&rules[..1], &together) && covers(&[], &[]));
    }

    #[test]
    fn an_intersection_is_what_both_match() {
        let words = ["pods", "pods/exec", "pods/*", "*", "*/*", "*/exec", "nodes"];
        let scopes = [None, Some("Cluster"), Some("Namespaced")];
        for (one, other) in words.iter().flat_map(|one| words.iter().map(move |other| (*one, *other))) {
            for (scope, other_scope) in scopes.iter().flat_map(|one| scopes.iter().map(move |other| (*one, *other))) {
                let first = [rule(&[one], &["*"], scope)];
                let second = [rule(&[other], &["UPDATE", "CREATE"], other_scope)];
                let both = intersection(&first, &second);
                for resource in ["pods", "pods/exec", "pods/log", "nodes", "nodes/exec", "services"] {
                    for (operation, namespace) in [("CREATE", ""), ("UPDATE", "team"), ("DELETE", "team")] {
                        let asked = asked(resource, operation, namespace);
                        let expected = matches(&first, &asked) && matches(&second, &asked);
                        assert_eq!(matches(&both, &asked), expected, "{one} {other} {asked:?}: {both:?}");
                    }
                }
            }
        }
        let elsewhere = RuleWithOperations { api_versions: vec!["v2".into()], ..rule(&["pods"], &["*"], None) };
        assert!(intersection(&[rule(&["pods"], &["*"], None)], &[elsewhere]).is_empty());
    }

    #[test]
    fn resources_without_a_wildcard_share_a_rule_and_others_have_their_own() {
        let resources = |rules: &[RuleWithOperations]| -> Vec<String> {
            union(rules).iter().map(|rule| rule.resources.join(" ")).collect()
        };
        let all = ["CREATE"];
        assert_eq!(resources(&[rule(&["services"], &all, None), rule(&["pods"], &all, None)]), ["pods services"]);
        let mixed = [rule(&["*"], &all, None), rule(&["pods", "pods/*", "*/*"], &all, None)];
        assert_eq!(resources(&mixed), ["pods", "*", "*/*", "pods/*"]);
    }

    #[test]
    fn what_an_api_server_might_refuse_is_not_plain() {
        assert!(are_plain(&[rule(&["pods", "*/*", "*/scale", "pods/*"], &["CREATE", "UPDATE"], Some("Cluster"))]));
        assert!(!are_plain(&[]));
        for odd in [
            rule(&[], &["CREATE"], None),
            rule(&["pods"], &[], None),
            rule(&["pods"], &["*", "CREATE"], None),
            rule(&["pods"], &["PATCH"], None),
            rule(&[""], &["CREATE"], None),
            rule(&["p*"], &["CREATE"], None),
            rule(&["a/b/c"], &["CREATE"], None),
            rule(&["pods\n"], &["CREATE"], None),
            rule(&["pods"], &["CREATE"], Some("Planet")),
            RuleWithOperations { api_groups: vec!["*".into(), String::new()], ..rule(&["pods"], &["CREATE"], None) },
            RuleWithOperations { api_versions: Vec::new(), ..rule(&["pods"], &["CREATE"], None) },
        ] {
            assert!(!are_plain(std::slice::from_ref(&odd)), "{odd:?}");
        }
    }
}
