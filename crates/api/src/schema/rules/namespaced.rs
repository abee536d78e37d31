//! Rules for a Policy, whose author controls one namespace only. Fields that only a ClusterPolicy may set are refused, not ignored.

use portcullis_contract::RuleWithOperations;

use super::rule::{Rule, each_rule, has};

/// Kubernetes' own cluster-scoped resources, by API group.
const CLUSTER_SCOPED: &[(&str, &[&str])] = &[
    ("", &["namespaces", "nodes", "persistentvolumes"]),
    ("rbac.authorization.k8s.io", &["clusterroles", "clusterrolebindings"]),
    ("apiextensions.k8s.io", &["customresourcedefinitions"]),
    ("storage.k8s.io", &["storageclasses"]),
];

pub(super) const RULES: &[Rule] = &[
    Rule {
        at: "",
        field: "namespaceSelector",
        cel: "!has(self.namespaceSelector)",
        holds: |spec| spec.namespace_selector.is_none(),
        message: "is for a ClusterPolicy only, as a Policy applies to its own namespace: remove it, or use a ClusterPolicy",
    },
    Rule {
        at: "",
        field: "contextAwareResources",
        cel: "!has(self.contextAwareResources) || size(self.contextAwareResources) == 0",
        holds: |spec| spec.context_aware_resources.is_empty(),
        message: "is for a ClusterPolicy only, as a Policy cannot read the cluster: remove it, or use a ClusterPolicy",
    },
    Rule {
        at: "",
        field: "policies",
        cel: "!has(self.policies) || self.policies.all(name, !has(self.policies[name].contextAwareResources) || \
              size(self.policies[name].contextAwareResources) == 0)",
        holds: |spec| {
            let members = spec.policies.iter().flatten();
            members.into_iter().all(|(_, member)| member["contextAwareResources"].as_array().is_none_or(Vec::is_empty))
        },
        message: "has a member with contextAwareResources, which are for a ClusterPolicy only, as a Policy cannot read the cluster: \
                  remove them, or use a ClusterPolicy",
    },
    Rule {
        at: "rules[]",
        field: "scope",
        cel: "!has(self.scope) || self.scope == 'Namespaced'",
        holds: |spec| each_rule(spec, |rule| rule.scope.as_deref().is_none_or(|scope| scope == "Namespaced")),
        message: "must be Namespaced, as a Policy evaluates only requests in its namespace: remove it, or use a ClusterPolicy",
    },
    Rule {
        at: "rules[]",
        field: "",
        cel: "!('*' in self.apiGroups) || !self.resources.exists(name, name in ['*', '*/*'])",
        holds: |spec| each_rule(spec, |rule| !has(&rule.api_groups, "*") || !names_all(rule)),
        message: "matches all resources of all API groups, which only a ClusterPolicy may: name the groups or the resources, or use a \
                  ClusterPolicy",
    },
    Rule {
        at: "rules[]",
        field: "",
        cel: "!self.apiGroups.exists(group, group in ['*', 'wgpolicyk8s.io', 'openreports.io']) || !self.resources.exists(name, \
              name.split('/')[0] in ['policyreports', 'reports'] || (name in ['*', '*/*'] && ('wgpolicyk8s.io' in self.apiGroups || \
              'openreports.io' in self.apiGroups)))",
        holds: |spec| each_rule(spec, |rule| !matches_reports(rule)),
        message: "matches policyreports of wgpolicyk8s.io or reports of openreports.io, which hold the results of policies and which a \
                  Policy must not block: leave them out",
    },
    Rule {
        at: "rules[]",
        field: "",
        cel: "!('' in self.apiGroups && self.resources.exists(name, name.split('/')[0] in ['namespaces', 'nodes', \
              'persistentvolumes'])) && !('rbac.authorization.k8s.io' in self.apiGroups && self.resources.exists(name, name in \
              ['clusterroles', 'clusterrolebindings'])) && !('apiextensions.k8s.io' in self.apiGroups && \
              self.resources.exists(name, name.split('/')[0] == 'customresourcedefinitions')) && !('storage.k8s.io' in \
              self.apiGroups && 'storageclasses' in self.resources)",
        holds: |spec| each_rule(spec, |rule| !names_cluster_scoped(rule)),
        message: "names a cluster-scoped resource, like nodes or clusterroles, and a Policy evaluates only requests in its \
                  namespace: remove it, or use a ClusterPolicy",
    },
];

fn names_all(rule: &RuleWithOperations) -> bool {
    has(&rule.resources, "*") || has(&rule.resources, "*/*")
}

fn matches_reports(rule: &RuleWithOperations) -> bool {
    let group = ["wgpolicyk8s.io", "openreports.io"].iter().any(|group| has(&rule.api_groups, group));
    let named = |name: &String| matches!(name.split('/').next(), Some("policyreports" | "reports"));
    (group && names_all(rule)) || ((group || has(&rule.api_groups, "*")) && rule.resources.iter().any(named))
}

fn names_cluster_scoped(rule: &RuleWithOperations) -> bool {
    CLUSTER_SCOPED.iter().any(|(group, names)| {
        let named = |resource: &String| names.iter().any(|name| resource.split('/').next() == Some(name));
        has(&rule.api_groups, group) && rule.resources.iter().any(named)
    })
}
