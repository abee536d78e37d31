//! The objects of an installation, as the chart makes them: namespace, accounts, rights, services, admission rules. The rig creates
//! the pods itself.

use std::fs;
use std::sync::LazyLock;

use serde_json::{Value, json};

use super::condition;
use crate::Cache;
use crate::api::Api;
use crate::cluster::Cluster;
use crate::helm::{Helm, objects_of};
use crate::wait::eventually;

/// Placeholders for the namespace and the policy server in the chart's objects, which are rendered once and filled in
/// for each installation.
const NAMESPACE: &str = "the-namespace-of-the-rig";
const POLICY_SERVER: &str = "the-policy-server-of-the-rig";

/// The kinds of the chart's objects that the rig uses, each with its name in paths. The others are pods, or need a node.
const KINDS: [(&str, &str); 8] = [
    ("ServiceAccount", "serviceaccounts"),
    ("Role", "roles"),
    ("RoleBinding", "rolebindings"),
    ("ClusterRole", "clusterroles"),
    ("ClusterRoleBinding", "clusterrolebindings"),
    ("Service", "services"),
    ("ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
    ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
];

/// The same for the other objects that the rig makes.
const OWN_KINDS: [(&str, &str); 2] =
    [("Namespace", "namespaces"), ("CustomResourceDefinition", "customresourcedefinitions")];

/// The kinds that are in no namespace, by their group.
const CLUSTER_KINDS: [(&str, [&str; 2]); 2] = [
    ("admissionregistration.k8s.io", ["validatingadmissionpolicybindings", "validatingadmissionpolicies"]),
    ("rbac.authorization.k8s.io", ["clusterrolebindings", "clusterroles"]),
];

/// The label with the namespace of the installation, on what does not stay when it is uninstalled.
const LABEL: &str = "portcullis-test-installation";

/// An object: its path, and itself as JSON.
#[derive(Debug, PartialEq)]
struct Rendered {
    path: String,
    json: String,
}

/// Applies all objects on the server's side, for a namespace and a policy server. Others may apply the same at the same time.
///
/// # Panics
/// When helm cannot be built, the chart does not render, or the API server refuses an object.
pub(crate) fn install(cluster: &Cluster, namespace: &str, policy_server: &str) {
    static RENDERED: LazyLock<Vec<Rendered>> = LazyLock::new(|| wanted(&render()));
    for object in &*RENDERED {
        let Rendered { path, json } = object.filled_in(namespace, policy_server);
        apply(cluster, &path, &json);
    }
}

/// `kubectl apply --server-side` of an object of this path. kubectl is started only if it is refused.
fn apply(cluster: &Cluster, path: &str, json: &str) {
    if !cluster.api().apply_as_kubectl(path, json) {
        cluster.apply_server_side(json).expect(path);
    }
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
fn wanted(rendered: &str) -> Vec<Rendered> {
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } });
    let is_hook = |object: &Value| !object["metadata"]["annotations"]["helm.sh/hook"].is_null();
    let is_wanted = |object: &Value| KINDS.iter().any(|(kind, _)| object["kind"] == *kind) && !is_hook(object);
    let label = |mut object: Value| {
        if object["metadata"]["annotations"]["helm.sh/resource-policy"] != "keep" {
            object["metadata"]["labels"][LABEL] = json!(NAMESPACE);
        }
        object
    };
    let of_chart = objects_of(rendered).into_iter().filter(is_wanted).map(label);
    let objects = std::iter::once(namespace).chain(of_chart);
    objects.map(|object| Rendered { path: path(&object), json: object.to_string() }).collect()
}

/// The path of an object of one of the kinds.
fn path(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (version, metadata) = (text(&object["apiVersion"]), &object["metadata"]);
    let api = if version.contains('/') { "apis" } else { "api" };
    let namespace = metadata["namespace"].as_str().map(|name| format!("/namespaces/{name}")).unwrap_or_default();
    let kind = KINDS.iter().chain(&OWN_KINDS).find(|(kind, _)| object["kind"] == *kind);
    let (_, kind) = kind.expect("one of the kinds");
    format!("/{api}/{version}{namespace}/{kind}/{}", text(&metadata["name"]))
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

impl Rendered {
    fn filled_in(&self, namespace: &str, policy_server: &str) -> Self {
        let fill_in = |text: &str| text.replace(NAMESPACE, namespace).replace(POLICY_SERVER, policy_server);
        Self { path: fill_in(&self.path), json: fill_in(&self.json) }
    }
}

/// Applies the custom resource definitions of the chart and waits until the API server serves them and kubectl knows them, unless the cluster
/// has them from another installation.
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
    let files = fs::read_dir(&folder).and_then(|files| files.map(|file| fs::read_to_string(file?.path())).collect());
    let texts: Vec<String> = files.unwrap_or_else(|error| panic!("failed to read {}: {error}", folder.display()));
    let definitions: Vec<Value> = texts.iter().flat_map(|text| objects_of(text)).collect();
    definitions.iter().for_each(|definition| apply(cluster, &path(definition), &definition.to_string()));
    let names: Vec<&str> = definitions.iter().filter_map(|object| object["metadata"]["name"].as_str()).collect();
    let (api, names) = (cluster.api(), names.join(","));
    for definition in &definitions {
        let path = path(definition);
        eventually(&format!("{path} to be served"), || {
            api.get(&path)
                .filter(|object| condition(object, "Established").is_some_and(|found| found["status"] == "True"))
        });
    }
    let get = ["get", &names, "--all-namespaces"];
    eventually(&format!("kubectl to know {names}"), || cluster.kubectl(get).is_ok().then_some(()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_and_hooks_are_left_out_and_names_are_filled_in() {
        let rendered = format!(
            "kind: Deployment\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: Role\n\
             metadata: {{ name: {POLICY_SERVER}, namespace: {NAMESPACE} }}\n---\n\
             kind: Role\nmetadata: {{ annotations: {{ helm.sh/hook: test }} }}\n---\nkind: Job\n"
        );
        let objects: Vec<_> = wanted(&rendered).iter().map(|object| object.filled_in("shop", "two")).collect();
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": { "name": "two", "namespace": "shop", "labels": { LABEL: "shop" } },
        });
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "shop" } });
        assert_eq!(
            objects,
            [
                Rendered { path: "/api/v1/namespaces/shop".into(), json: namespace.to_string() },
                Rendered {
                    path: "/apis/rbac.authorization.k8s.io/v1/namespaces/shop/roles/two".into(),
                    json: role.to_string()
                },
            ]
        );
    }
}
