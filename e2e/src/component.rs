//! The components of a control plane.

use std::fmt;

use crate::layout::Layout;

/// One process of a control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component {
    /// The database.
    Etcd,
    /// An API server, by its number from 1.
    ApiServer(u8),
    /// The controllers of Kubernetes.
    ControllerManager,
    /// The scheduler. It and all components below exist only in a cluster with a node.
    Scheduler,
    /// The DNS of the cluster.
    Dns,
    /// The first process of the node; all its other processes end with it.
    Node,
    /// The container runtime.
    Containerd,
    /// The kubelet.
    Kubelet,
    /// kube-proxy, which makes Services work on the node.
    KubeProxy,
}

impl fmt::Display for Component {
    /// The name in logs and in the state file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ApiServer(number) => write!(f, "{}-{number}", self.program()),
            _ => f.write_str(self.program()),
        }
    }
}

impl Component {
    /// The components that a control plane has only for a node.
    const FOR_NODE: [Self; 2] = [Self::Scheduler, Self::Dns];

    /// The components of the node itself, in the order in which they are started.
    pub(crate) const OF_NODE: [Self; 4] = [Self::Node, Self::Containerd, Self::Kubelet, Self::KubeProxy];

    /// The components that switch to another API server when theirs has ended.
    pub(crate) const CLIENTS: [Self; 5] =
        [Self::ControllerManager, Self::Scheduler, Self::Dns, Self::Kubelet, Self::KubeProxy];

    /// The number of components of a cluster.
    pub(crate) fn count(api_servers: u8, has_node: bool) -> usize {
        let node = if has_node { Self::FOR_NODE.len() + Self::OF_NODE.len() } else { 0 };
        usize::from(api_servers) + 2 + node
    }

    /// Whether the component runs on the node.
    pub(crate) fn is_of_node(self) -> bool {
        Self::OF_NODE.contains(&self)
    }

    /// All components of a cluster, in the order in which they are started: each API server when the one before it is ready.
    ///
    /// Two that start at once may both publish a list of addresses without the other one, and check it again only ten seconds
    /// later. The controller manager soon gives up on an API server that does not answer.
    pub(crate) fn in_order(layout: &Layout) -> Vec<Self> {
        let mut all = vec![Self::Etcd, Self::ApiServer(1), Self::ControllerManager];
        all.extend(layout.api_server_numbers().skip(1).map(Self::ApiServer));
        if layout.node.is_some() {
            all.extend(Self::FOR_NODE.into_iter().chain(Self::OF_NODE));
        }
        all
    }

    /// The name of the component's program.
    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer(_) => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Dns => "cluster-dns",
            Self::Node => "node-init",
            Self::Containerd => "containerd",
            Self::Kubelet => "kubelet",
            Self::KubeProxy => "kube-proxy",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Node;
    use crate::network::{Kind, Network};

    fn layout(kind: Kind) -> Layout {
        Layout { folder: "/c/3".into(), network: Network::new(3, kind), api_servers: 2, node: None, etcd_quota: None }
    }

    #[test]
    fn a_cluster_has_as_many_components_as_are_started() {
        let with = Layout { node: Some(Node::new(3, 1)), ..layout(Kind::Routed) };
        assert_eq!(Component::in_order(&with).len(), Component::count(2, true));
        assert_eq!(Component::in_order(&layout(Kind::Routed)).len(), Component::count(2, false));
    }

    #[test]
    fn names_tell_api_servers_apart() {
        let names: Vec<_> = Component::in_order(&layout(Kind::Routed)).iter().map(ToString::to_string).collect();
        assert_eq!(names, ["etcd", "kube-apiserver-1", "kube-controller-manager", "kube-apiserver-2"]);
    }
}
