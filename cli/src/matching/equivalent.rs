//! Resources under another name: other versions and groups, between which API servers convert objects. Pure.

use portcullis_contract::RuleWithOperations;
use portcullis_matching::{Asked, rules};

/// Resources that are the same in two API groups. The definition of a custom resource has one group.
const SAME: [([&str; 2], &[&str]); 5] = [
    (["", "events.k8s.io"], &["events"]),
    (["", "extensions"], &["replicationcontrollers"]),
    (["apps", "extensions"], &["daemonsets", "deployments", "replicasets"]),
    (["networking.k8s.io", "extensions"], &["ingresses", "networkpolicies"]),
    (["policy", "extensions"], &["podsecuritypolicies"]),
];

/// Whether a rule that does not match may match the same object in another version, or in another group that has the same resource, to which
/// an API server converts it.
pub(super) fn may_be_equivalent(rule: &RuleWithOperations, asked: &Asked) -> bool {
    let Asked { group, resource, .. } = asked;
    let others = SAME
        .iter()
        .filter(|(pair, resources)| pair.contains(&group.as_str()) && resources.contains(&resource.as_str()));
    let groups = others.flat_map(|(pair, _)| *pair).chain([group.as_str()]);
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
    groups.into_iter().any(of_group)
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
    fn some_resources_are_in_two_groups_and_others_in_several_versions() {
        for (rule, asked, may_be) in [
            (["extensions", "v1beta1", "deployments"], ["apps", "v1", "deployments"], true),
            (["extensions", "v1beta1", "*"], ["apps", "v1", "deployments"], true),
            (["extensions", "v1beta1", "ingresses"], ["networking.k8s.io", "v1", "ingresses"], true),
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
