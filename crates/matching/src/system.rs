//! What the components of a cluster write to nodes and volumes, about which no policy is asked.

use serde_json::Value;

/// Nodes, and what attaches volumes to them: group and resource.
const RESOURCES: [(&str, &str); 4] =
    [("", "nodes"), ("", "persistentvolumes"), ("storage.k8s.io", "csinodes"), ("storage.k8s.io", "volumeattachments")];
/// Components that have no account in kube-system everywhere.
const USERS: [&str; 3] = ["system:kube-controller-manager", "system:cloud-controller-manager", "system:kube-scheduler"];

/// Whether kubelets, the scheduler or controllers of kube-system write to nodes or volumes with this request, whose `userInfo` is given. The
/// controller's match condition `portcullis.dev/kubelets` says the same in CEL.
pub fn is_by_the_cluster(group: &str, resource: &str, user: &Value) -> bool {
    let is_kubelet = || user["groups"].as_array().is_some_and(|groups| groups.iter().any(|one| one == "system:nodes"));
    let name = user["username"].as_str().unwrap_or_default();
    let is_controller = || name.starts_with("system:serviceaccount:kube-system:") || USERS.contains(&name);
    RESOURCES.contains(&(group, resource)) && (is_kubelet() || is_controller())
}
