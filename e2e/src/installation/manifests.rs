//! The objects of an installation, as the chart makes them: namespace, accounts, rights, services, admission rules. The rig creates
//! the pods itself.

use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::Cache;
use crate::api::Api;
use crate::cluster::Cluster;
use crate::helm::{Helm, objects_of};

/// Placeholders for the namespace and the policy server in the chart's objects, which are rendered once and filled in
/// for each installation.
const NAMESPACE: &str = "the-namespace-of-the-rig";
const POLICY_SERVER: &str = "the-policy-server-of-the-rig";

/// The kinds of the chart's objects that the rig uses. The others are pods, or need a node.
const KINDS: [&str; 8] = [
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "ClusterRole",
    "ClusterRoleBinding",
    "Service",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
];

/// Those that are in no namespace, by their group.
const CLUSTER_KINDS: [(&str, [&str; 2]); 2] = [
    ("admissionregistration.k8s.io", ["validatingadmissionpolicybindings", "validatingadmissionpolicies"]),
    ("rbac.authorization.k8s.io", ["clusterrolebindings", "clusterroles"]),
];

/// The label with the namespace of the installation, on what does not stay when it is uninstalled.
const LABEL: &str = "portcullis-test-installation";

/// All objects as one text, for a namespace and a policy server.
///
/// # Panics
/// When helm cannot be built, or the chart does not render.
pub(crate) fn objects(namespace: &str, policy_server: &str) -> String {
    static RENDERED: LazyLock<String> = LazyLock::new(|| wanted(&render()));
    fill_in(&RENDERED, namespace, policy_server)
}

fn render() -> String {
    let cache = Cache::from_env().unwrap_or_else(|error| panic!("{error}"));
    let helm = Helm::build(&cache, &|line| eprintln!("{line}")).unwrap_or_else(|error| panic!("{error}"));
    let values = json!({
        "policyServer": POLICY_SERVER,
        // Tests switch these on for single pods.
        "siblings": { "enabled": true },
        "certificates": { "mode": "external" },
        "uninstall": { "hook": false },
        "audit": { "enabled": true },
        // For policies that read objects; other policies get no rights by this.
        "rbac": {
            "contextAwareReads": [{
                "apiGroups": [""], "resources": ["limitranges", "namespaces", "podtemplates"], "verbs": ["get", "list", "watch"],
            }],
            "accessReviews": true,
            // The flags of reporters decide whether anything is audited.
            "auditReads": [{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"] }],
        },
    });
    let rendered = helm.template("rig", NAMESPACE, &values);
    assert!(rendered.is_ok(), "the chart does not render:\n{}", rendered.stderr);
    rendered.stdout
}

/// The namespace, and the objects that the rig uses of a rendered chart.
fn wanted(rendered: &str) -> String {
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } });
    let is_hook = |object: &Value| !object["metadata"]["annotations"]["helm.sh/hook"].is_null();
    let is_wanted = |object: &Value| KINDS.iter().any(|kind| object["kind"] == *kind) && !is_hook(object);
    let label = |mut object: Value| {
        if object["metadata"]["annotations"]["helm.sh/resource-policy"] != "keep" {
            object["metadata"]["labels"][LABEL] = json!(NAMESPACE);
        }
        object
    };
    let of_chart = objects_of(rendered).into_iter().filter(is_wanted).map(label);
    let objects = std::iter::once(namespace).chain(of_chart);
    let text = |object: Value| portcullis_yaml::write(&object).expect("an object is YAML");
    objects.map(text).collect::<Vec<_>>().join("---\n")
}

/// Removes the objects of an installation that are in no namespace, as `helm uninstall` does. Those of a hundred installations that are over
/// would be looked at in each request to the cluster.
pub(crate) fn remove_cluster_objects(api: &Api, namespace: &str) {
    for (group, kinds) in CLUSTER_KINDS {
        for kind in kinds {
            // The cluster may have ended before the installation.
            let _ = api.delete(&format!("/apis/{group}/v1/{kind}?labelSelector={LABEL}%3D{namespace}"), None);
        }
    }
}

fn fill_in(text: &str, namespace: &str, policy_server: &str) -> String {
    text.replace(NAMESPACE, namespace).replace(POLICY_SERVER, policy_server)
}

/// Applies the custom resource definitions of the chart and waits until the API server serves them, unless the cluster has them from
/// another installation.
pub(crate) fn install_definitions(cluster: &Cluster) {
    cluster.definitions.get_or_init(|| apply_definitions(cluster));
}

fn apply_definitions(cluster: &Cluster) {
    let folder = Helm::chart().join("definitions");
    assert!(
        folder.is_dir(),
        "{} is not there: the custom resource definitions are generated into it",
        folder.display()
    );
    let folder = folder.display().to_string();
    cluster.kubectl(["apply", "--server-side", "--force-conflicts", "--filename", &folder]).expect("the definitions");
    let wait = ["wait", "--for=condition=Established", "--timeout=180s", "--filename", &folder];
    cluster.kubectl(wait).expect("definitions that are served");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_and_hooks_are_left_out_and_names_are_filled_in() {
        let rendered = format!(
            "kind: Deployment\n---\nkind: Role\nmetadata: {{ name: {POLICY_SERVER}, namespace: {NAMESPACE} }}\n---\n\
             kind: Role\nmetadata: {{ annotations: {{ helm.sh/hook: test }} }}\n---\nkind: Job\n"
        );
        let objects = objects_of(&fill_in(&wanted(&rendered), "shop", "two"));
        assert_eq!(
            objects,
            [
                json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "shop" } }),
                json!({ "kind": "Role", "metadata": { "name": "two", "namespace": "shop", "labels": { LABEL: "shop" } } }),
            ]
        );
    }
}
