//! The requests for which no webhook is called, whatever policies say, so that no policy can lock up the cluster or its own server.
//!
//! A namespace selector does not skip cluster-scoped objects, so match conditions do that.

use portcullis_contract::{GroupId, MatchPart};
use serde_json::{Value, json};

use super::selector;
use crate::marker::MARKER_ANNOTATION;

/// The number of match conditions that we add to a webhook. The API server allows 64, of which users have 60.
pub const OWN_CONDITIONS: usize = CONDITIONS.len();

/// The label of every namespace with its name.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

const CONDITIONS: [(&str, &str); 4] = [
    (
        "portcullis.dev/own-kinds",
        "request.resource.group != 'policies.portcullis.dev' && !(request.resource.group == 'apiextensions.k8s.io' \
         && has(request.name) && request.name.endsWith('.policies.portcullis.dev'))",
    ),
    ("portcullis.dev/access-reviews", "!(request.resource.group in ['authentication.k8s.io', 'authorization.k8s.io'])"),
    (
        "portcullis.dev/node-leases",
        "!(request.resource.group == 'coordination.k8s.io' && has(request.namespace) \
         && request.namespace == 'kube-node-lease')",
    ),
    (
        "portcullis.dev/kubelets",
        "!(request.resource.group == '' && request.resource.resource == 'nodes' \
         && has(request.userInfo.groups) && 'system:nodes' in request.userInfo.groups)",
    ),
];

/// Our own match conditions, then those of the policies.
pub(super) fn conditions(part: &MatchPart) -> Vec<Value> {
    let own = CONDITIONS.iter().map(|(name, expression)| json!({"name": name, "expression": expression}));
    let theirs = part.match_conditions.iter().map(|one| json!({"name": one.name, "expression": one.expression}));
    own.chain(theirs).collect()
}

/// The namespace selector: that of the ClusterPolicies, or the namespace of the Policies, without the installation's own namespace and
/// those of the system.
pub(super) fn namespaces(part: &MatchPart, own: &str) -> Value {
    let expression =
        |operator: &str, names: &[&str]| json!({"key": NAMESPACE_NAME, "operator": operator, "values": names});
    match &part.namespace {
        // A Policy in a namespace of the system is there on purpose.
        Some(namespace) => {
            let home = expression("In", &[namespace]);
            selector::and(json!({}), [home, expression("NotIn", &[own])])
        }
        None => {
            let mut out = vec!["kube-node-lease", "kube-system", own];
            out.sort_unstable();
            out.dedup();
            selector::and(selector::read(part.namespace_selector.as_ref()), [expression("NotIn", &out)])
        }
    }
}

/// The rules, with sorted lists, as the group's id does not depend on their order.
pub(super) fn rules(part: &MatchPart) -> Vec<Value> {
    let sorted = |list: &[String]| {
        let mut list = list.to_vec();
        list.sort();
        list.dedup();
        list
    };
    let rules = part.rules.iter().filter_map(|rule| {
        // A namespace selector does not exclude cluster-scoped objects.
        let scope = match (&part.namespace, rule.scope.as_deref().unwrap_or("*")) {
            (None, scope) => scope,
            (Some(_), "Cluster") => return None,
            (Some(_), _) => "Namespaced",
        };
        Some(json!({
            "apiGroups": sorted(&rule.api_groups),
            "apiVersions": sorted(&rule.api_versions),
            "resources": sorted(&rule.resources),
            "operations": sorted(&rule.operations),
            "scope": scope,
        }))
    });
    rules.collect()
}

/// The match conditions of a marker: a dry-run request by the controller itself, about this group.
pub(super) fn marker(group: &GroupId, username: &str) -> Vec<Value> {
    // A JSON string is also a CEL string.
    let user = Value::from(username);
    [
        ("controller", format!("request.userInfo.username == {user}")),
        ("dry-run", "has(request.dryRun) && request.dryRun".to_owned()),
        (
            "marker",
            format!(
                "has(object.metadata.annotations) && '{MARKER_ANNOTATION}' in object.metadata.annotations \
                 && object.metadata.annotations['{MARKER_ANNOTATION}'] == '{group}'"
            ),
        ),
    ]
    .map(|(name, expression)| json!({"name": name, "expression": expression}))
    .to_vec()
}

#[cfg(test)]
mod tests {
    use super::super::tests::part;
    use super::*;

    #[test]
    fn a_cluster_policy_skips_the_system_and_the_installation() {
        let selector = json!({"matchLabels": {"team": "a"}});
        let part = MatchPart { namespace_selector: Some(selector), ..part() };
        assert_eq!(
            namespaces(&part, "portcullis"),
            json!({
                "matchLabels": {"team": "a"},
                "matchExpressions": [{"key": NAMESPACE_NAME, "operator": "NotIn",
                                      "values": ["kube-node-lease", "kube-system", "portcullis"]}],
            })
        );
    }

    #[test]
    fn a_policy_stays_in_its_namespace() {
        let mut part = MatchPart { namespace: Some("team-a".into()), ..part() };
        assert_eq!(namespaces(&part, "portcullis")["matchExpressions"][0]["values"], json!(["team-a"]));
        assert_eq!(rules(&part)[0]["scope"], "Namespaced");
        part.rules[0].scope = Some("Cluster".into());
        assert!(rules(&part).is_empty());
    }

    #[test]
    fn there_is_room_for_sixty_conditions_of_users() {
        const { assert!(OWN_CONDITIONS + 60 <= 64) };
        assert_eq!(conditions(&part()).len(), OWN_CONDITIONS + 1);
    }

    #[test]
    fn a_marker_is_asked_by_the_controller_only() {
        let group = "0123456789abcdef".parse().expect("a group");
        let conditions = marker(&group, "system:serviceaccount:a:b");
        assert_eq!(conditions[0]["expression"], "request.userInfo.username == \"system:serviceaccount:a:b\"");
        assert!(conditions[2]["expression"].as_str().is_some_and(|text| text.ends_with("== '0123456789abcdef'")));
    }
}
