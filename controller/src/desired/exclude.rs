//! The requests for which no webhook is called, whatever policies say, so that no policy can lock up the cluster or its own server.
//!
//! A namespace selector does not skip cluster-scoped objects, so match conditions do that.

use std::borrow::Cow;
use std::sync::LazyLock;

use portcullis_contract::{MatchPart, RuleWithOperations};
use portcullis_matching::system::{ACCOUNTS, CERTIFICATE_REQUESTS, KUBELETS, NEW_KUBELETS, RESOURCES, USERS};
use serde_json::{Value, json};

use super::selector;
use crate::marker::MARKER_ANNOTATION;

/// The largest number of match conditions that we add to a webhook. The API server allows 64, of which users have 60.
pub const OWN_CONDITIONS: usize = 4;

/// The label of every namespace with its name.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";
/// What is before the value of the annotation in the match condition of a marker.
const BEFORE_VALUE: &str = " == '";

/// A match condition of our own.
struct Exclusion {
    name: &'static str,
    expression: Cow<'static, str>,
    /// The API groups about which it decides, each with the resource; `None` for all of the group.
    about: Cow<'static, [(&'static str, Option<&'static str>)]>,
}

static CONDITIONS: LazyLock<[Exclusion; OWN_CONDITIONS]> = LazyLock::new(|| {
    [
        Exclusion {
            name: "portcullis.dev/own-kinds",
            expression: Cow::Borrowed(
                "request.resource.group != 'policies.portcullis.dev' && !(request.resource.group == 'apiextensions.k8s.io' \
                     && has(request.name) && request.name.endsWith('.policies.portcullis.dev'))",
            ),
            about: Cow::Borrowed(&[("policies.portcullis.dev", None), ("apiextensions.k8s.io", None)]),
        },
        Exclusion {
            name: "portcullis.dev/access-reviews",
            expression: Cow::Borrowed("!(request.resource.group in ['authentication.k8s.io', 'authorization.k8s.io'])"),
            about: Cow::Borrowed(&[("authentication.k8s.io", None), ("authorization.k8s.io", None)]),
        },
        Exclusion {
            name: "portcullis.dev/node-leases",
            expression: Cow::Borrowed(
                "!(request.resource.group == 'coordination.k8s.io' && has(request.namespace) \
                     && request.namespace == 'kube-node-lease')",
            ),
            about: Cow::Borrowed(&[("coordination.k8s.io", None)]),
        },
        kubelets(),
    ]
});

/// Excludes the requests by which nodes join and rejoin and volumes are attached. Without it, a policy that matches everything while no pod
/// answers would keep those pods from starting. `is_by_the_cluster` of `portcullis_matching` says the same.
fn kubelets() -> Exclusion {
    let is = |(group, resource): (&str, &str)| {
        format!("request.resource.group == '{group}' && request.resource.resource == '{resource}'")
    };
    let is_in = |group: &str| format!("has(request.userInfo.groups) && '{group}' in request.userInfo.groups");
    let resources = RESOURCES.map(is).join(" || ");
    let users = USERS.map(|user| format!("'{user}'")).join(", ");
    let expression = format!(
        "!(({resources}) && ({} || has(request.userInfo.username) && (request.userInfo.username.startsWith('{ACCOUNTS}') \
         || request.userInfo.username in [{users}]) || {} && {}))",
        is_in(KUBELETS),
        is(CERTIFICATE_REQUESTS),
        is_in(NEW_KUBELETS),
    );
    let about = RESOURCES.map(|(group, resource)| (group, Some(resource)));
    Exclusion { name: "portcullis.dev/kubelets", expression: Cow::Owned(expression), about: Cow::Owned(about.to_vec()) }
}

impl Exclusion {
    /// Whether a rule matches something about which the condition decides. An API server evaluates the conditions of a webhook for each
    /// request that its rules match, which costs it a tenth of a millisecond each; so a webhook has only those that can matter.
    fn matters(&self, rule: &RuleWithOperations) -> bool {
        let is_about = |(group, resource): &(&str, Option<&str>)| {
            let is_resource = |pattern: &String| {
                let name = pattern.split('/').next().unwrap_or_default();
                resource.is_none_or(|resource| name == "*" || name == resource)
            };
            let is_group = |named: &String| named == "*" || named == group;
            rule.api_groups.iter().any(is_group) && rule.resources.iter().any(is_resource)
        };
        self.about.iter().any(is_about)
    }
}

/// Our own match conditions, as far as they matter to the rules, then those of the policies.
pub(super) fn conditions(part: &MatchPart) -> Vec<Value> {
    let own = CONDITIONS.iter().filter(|own| part.rules.iter().any(|rule| own.matters(rule)));
    let own = own.map(|one| json!({"name": one.name, "expression": one.expression}));
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
pub(super) fn rules(part: &MatchPart) -> Vec<RuleWithOperations> {
    let rules = part.rules.iter().filter_map(|rule| {
        // A namespace selector does not exclude cluster-scoped objects.
        let scope = match (&part.namespace, rule.scope.as_deref().unwrap_or("*")) {
            (None, scope) => scope,
            (Some(_), "Cluster") => return None,
            (Some(_), _) => "Namespaced",
        };
        Some(RuleWithOperations { scope: Some(scope.to_owned()), ..rule.sorted() })
    });
    rules.collect()
}

/// The match conditions of a marker: a dry-run request by the controller itself, with this value of the annotation.
pub(super) fn marker(value: &str, username: &str) -> Vec<Value> {
    // A JSON string is also a CEL string.
    let user = Value::from(username);
    [
        ("controller", format!("request.userInfo.username == {user}")),
        ("dry-run", "has(request.dryRun) && request.dryRun".to_owned()),
        (
            "marker",
            format!(
                "has(object.metadata.annotations) && '{MARKER_ANNOTATION}' in object.metadata.annotations \
                 && object.metadata.annotations['{MARKER_ANNOTATION}']{BEFORE_VALUE}{value}'"
            ),
        ),
    ]
    .map(|(name, expression)| json!({"name": name, "expression": expression}))
    .to_vec()
}

/// The value of the marker's annotation that the match conditions of an entry want.
pub(super) fn marker_value(entry: &Value) -> Option<&str> {
    let conditions = entry["matchConditions"].as_array()?;
    let condition = conditions.iter().find(|condition| condition["name"] == "marker")?;
    condition["expression"].as_str()?.rsplit_once(BEFORE_VALUE)?.1.strip_suffix('\'')
}

#[cfg(test)]
mod tests {
    use portcullis_contract::MatchCondition;
    use portcullis_matching::{Conditions, Decision, is_by_the_cluster};

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
        assert_eq!(rules(&part)[0].scope.as_deref(), Some("Namespaced"));
        part.rules[0].scope = Some("Cluster".into());
        assert!(rules(&part).is_empty());
    }

    #[test]
    fn there_is_room_for_sixty_conditions_of_users() {
        const { assert!(OWN_CONDITIONS + 60 <= 64) };
    }

    #[test]
    fn a_webhook_has_the_conditions_that_matter_to_its_rules() {
        let conditions = |group: &str, resource: &str| {
            let mut part = part();
            part.rules[0].api_groups = vec![group.to_owned()];
            part.rules[0].resources = vec![resource.to_owned()];
            let names = conditions(&part).iter().map(|one| one["name"].to_string()).collect::<Vec<_>>().join(" ");
            names.replace("portcullis.dev/", "").replace('"', "")
        };
        let all = "own-kinds access-reviews node-leases kubelets mine";
        for (group, resource, expected) in [
            ("", "pods", "mine"),
            ("apps", "*/*", "mine"),
            ("", "nodes/status", "kubelets mine"),
            ("", "*", "kubelets mine"),
            ("", "persistentvolumes", "kubelets mine"),
            ("", "persistentvolumeclaims", "mine"),
            ("storage.k8s.io", "volumeattachments", "kubelets mine"),
            ("storage.k8s.io", "csinodes/status", "kubelets mine"),
            ("storage.k8s.io", "nodes", "mine"),
            ("storage.k8s.io", "storageclasses", "mine"),
            ("certificates.k8s.io", "certificatesigningrequests/approval", "kubelets mine"),
            ("certificates.k8s.io", "clustertrustbundles", "mine"),
            ("*", "*/status", all),
            ("*", "deployments", "own-kinds access-reviews node-leases mine"),
            ("policies.portcullis.dev", "policies", "own-kinds mine"),
            ("apiextensions.k8s.io", "customresourcedefinitions", "own-kinds mine"),
            ("authorization.k8s.io", "subjectaccessreviews", "access-reviews mine"),
            ("coordination.k8s.io", "leases", "node-leases mine"),
        ] {
            assert_eq!(conditions(group, resource), expected, "{group} {resource}");
        }
    }

    #[test]
    fn nodes_and_volumes_come_back_although_a_policy_is_about_everything() {
        let own = CONDITIONS.iter().find(|own| own.name == "portcullis.dev/kubelets").expect("the condition");
        let (name, expression) = (own.name.to_owned(), own.expression.to_string());
        let condition = Conditions::of(&[MatchCondition { name, expression }]);
        let node = json!({"username": "system:node:a", "groups": ["system:nodes", "system:authenticated"]});
        let account = |namespace: &str| {
            let username = format!("system:serviceaccount:{namespace}:node-controller");
            json!({"username": username, "groups": ["system:serviceaccounts"]})
        };
        let user = |name: &str| json!({"username": name});
        let components = ["system:kube-controller-manager", "system:cloud-controller-manager", "system:kube-scheduler"];
        let trusted = components.iter().map(|name| user(name)).chain([node, account("kube-system")]);
        // As kubeadm makes them; the user is that of a token.
        let groups = ["system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token"];
        let new_node = json!({"username": "system:bootstrap:abcdef", "groups": groups});
        let others = [account("karpenter"), account("kube-system-2"), user("admin"), user("system:kube-proxy")];
        let users: Vec<_> = trusted.map(|user| (user, true)).chain(others.map(|user| (user, false))).collect();
        let certificates = ("certificates.k8s.io", "certificatesigningrequests");
        let users: Vec<_> = users.into_iter().chain([(new_node.clone(), false)]).collect();
        for (group, resource, is_left_out) in [
            (certificates.0, certificates.1, true),
            ("certificates.k8s.io", "clustertrustbundles", false),
            ("", "certificatesigningrequests", false),
            ("", "nodes", true),
            ("", "persistentvolumes", true),
            ("storage.k8s.io", "csinodes", true),
            ("storage.k8s.io", "volumeattachments", true),
            ("", "pods", false),
            ("", "csinodes", false),
            ("storage.k8s.io", "nodes", false),
            ("storage.k8s.io", "storageclasses", false),
        ] {
            for (user, is_trusted) in &users {
                let resources = json!({"group": group, "version": "v1", "resource": resource});
                let request = json!({
                    "operation": "UPDATE", "name": "a", "resource": resources, "userInfo": user,
                    "object": {"metadata": {"name": "a"}}, "oldObject": {"metadata": {"name": "a"}},
                });
                let is_new_node = *user == new_node && (group, resource) == certificates;
                let expected = is_left_out && (*is_trusted || is_new_node);
                let decided = condition.decide_request(&request);
                let wanted = if expected { Decision::Excluded } else { Decision::Matches };
                assert_eq!(decided.expect("an answer"), wanted, "{group} {resource} {user}");
                assert_eq!(is_by_the_cluster(group, resource, user), expected, "{group} {resource} {user}");
            }
        }
    }

    #[test]
    fn a_marker_is_asked_by_the_controller_only() {
        let conditions = marker("0123456789abcdef", "system:serviceaccount:a:b");
        assert_eq!(conditions[0]["expression"], "request.userInfo.username == \"system:serviceaccount:a:b\"");
        assert!(conditions[2]["expression"].as_str().is_some_and(|text| text.ends_with("== '0123456789abcdef'")));
        assert_eq!(marker_value(&json!({"matchConditions": conditions})), Some("0123456789abcdef"));
        assert_eq!(marker_value(&json!({})), None);
    }
}
