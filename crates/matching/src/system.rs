//! What the components of a cluster write to nodes, volumes and the certificates of kubelets, about which no policy is asked.

use serde_json::Value;

/// Nodes, what attaches volumes to them, and the requests by which kubelets get certificates: group and resource.
pub const RESOURCES: [(&str, &str); 5] = [
    ("", "nodes"),
    ("", "persistentvolumes"),
    ("storage.k8s.io", "csinodes"),
    ("storage.k8s.io", "volumeattachments"),
    CERTIFICATE_REQUESTS,
];
/// The one of them that new nodes write, too.
pub const CERTIFICATE_REQUESTS: (&str, &str) = ("certificates.k8s.io", "certificatesigningrequests");
/// The group of kubelets.
pub const KUBELETS: &str = "system:nodes";
/// The group of kubelets that have no certificate yet.
pub const NEW_KUBELETS: &str = "system:bootstrappers";
/// What the names of accounts in kube-system begin with.
pub const ACCOUNTS: &str = "system:serviceaccount:kube-system:";
/// Components that have no account in kube-system everywhere.
pub const USERS: [&str; 3] =
    ["system:kube-controller-manager", "system:cloud-controller-manager", "system:kube-scheduler"];

/// Whether kubelets, the scheduler or controllers of kube-system write to these resources with this request, whose `userInfo` is given, or a
/// new node asks for its certificate. The controller makes its match condition `portcullis.dev/kubelets` of the same constants.
pub fn is_by_the_cluster(group: &str, resource: &str, user: &Value) -> bool {
    let is_in = |name: &str| user["groups"].as_array().is_some_and(|groups| groups.iter().any(|one| one == name));
    let name = user["username"].as_str().unwrap_or_default();
    let is_component = || is_in(KUBELETS) || name.starts_with(ACCOUNTS) || USERS.contains(&name);
    let is_of_new_kubelet = || (group, resource) == CERTIFICATE_REQUESTS && is_in(NEW_KUBELETS);
    RESOURCES.contains(&(group, resource)) && (is_component() || is_of_new_kubelet())
}
