//! Resources under another name: other versions and groups, between which API servers convert objects. Pure.

use portcullis_contract::RuleWithOperations;
use portcullis_matching::{Asked, rules};

/// The API groups that have the same Events. No other resource of Kubernetes 1.30 or later is in two groups, and the definition of a custom
/// resource has one.
const EVENTS: [&str; 2] = ["", "events.k8s.io"];

/// Whether a rule that does not match may match the same object in another version, or in another group that has the same resource, to which
/// an API server converts it.
pub(super) fn may_be_equivalent(rule: &RuleWithOperations, asked: &Asked) -> bool {
    let Asked { group, resource, .. } = asked;
    let is_event = resource == "events" && EVENTS.contains(&group.as_str());
    let of_group = |group: &str| {
        let mut rule = rule.clone();
        let mut asked = Asked { group: group.to_owned(), ..asked.clone() };
        if group.is_empty() {
            // The core group has one version.
            asked.version = "v1".to_owned();
        } else {
            rule.api_versions = vec!["*".to_owned()];
        }
        rules::matches(&[rule], &asked)
    };
    of_group(group) || is_event && EVENTS.into_iter().any(of_group)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rule: [&str; 3], asked: [&str; 3]) -> bool {
        let [groups, versions, resources] = rule.map(|word| vec![word.to_owned()]);
        let operations = vec!["*".to_owned()];
        let rule =
            RuleWithOperations { api_groups: groups, api_versions: versions, resources, operations, scope: None };
        let [group, version, resource] = asked.map(str::to_owned);
        let (operation, namespace) = ("CREATE".to_owned(), "shop".to_owned());
        let asked = Asked { group, version, resource, subresource: String::new(), operation, namespace };
        may_be_equivalent(&rule, &asked)
    }

    #[test]
    fn a_wrong_group_or_version_in_a_rule_is_no_other_version_of_a_pod() {
        for (group, version) in
            [("apps", "v1"), ("core", "v1"), ("v1", "v1"), ("", "v2"), ("*", "v2"), ("extensions", "*")]
        {
            assert!(!of([group, version, "pods"], ["", "v1", "pods"]), "{group:?} {version}");
        }
    }

    #[test]
    fn events_are_in_two_groups_and_other_resources_in_several_versions() {
        for (rule, asked, may_be) in [
            (["extensions", "v1beta1", "deployments"], ["apps", "v1", "deployments"], false),
            (["extensions", "v1beta1", "*"], ["apps", "v1", "deployments"], false),
            (["extensions", "v1beta1", "ingresses"], ["networking.k8s.io", "v1", "ingresses"], false),
            (["apps", "v1", "deployments"], ["extensions", "v1beta1", "deployments"], false),
            (["apps", "v1beta2", "deployments"], ["apps", "v1", "deployments"], true),
            (["", "v1", "events"], ["events.k8s.io", "v1", "events"], true),
            (["", "v2", "events"], ["events.k8s.io", "v1", "events"], false),
            (["events.k8s.io", "v1beta1", "events"], ["", "v1", "events"], true),
            (["events.k8s.io", "v1", "pods"], ["", "v1", "pods"], false),
            (["apps", "v1", "ingresses"], ["networking.k8s.io", "v1", "ingresses"], false),
            (["autoscaling", "v1", "*"], ["autoscaling", "v2", "horizontalpodautoscalers"], true),
            (["example.com", "v2", "widgets"], ["example.com", "v1", "widgets"], true),
            (["example.org", "v1", "widgets"], ["example.com", "v1", "widgets"], false),
        ] {
            assert_eq!(of(rule, asked), may_be, "{rule:?} {asked:?}");
        }
    }
}
