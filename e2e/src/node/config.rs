//! The settings of the parts of a node: command lines and files. All of them are derived from the layout.

use std::path::Path;

use serde_json::{Value, json};

use super::paths::{NAME, POD_IMAGE, inside};
use crate::layout::{Layout, Node};

type Settings = Vec<(&'static str, String)>;

/// The socket of containerd, on the node.
pub(crate) const SOCKET: &str = "/run/containerd/containerd.sock";

/// The port of the kubelet.
pub(crate) const KUBELET_PORT: u16 = 10250;

/// The port of kube-proxy's health.
pub(crate) const PROXY_HEALTH_PORT: u16 = 10256;

/// The port of the cluster's DNS.
pub(crate) const DNS_PORT: u16 = 53;

pub(crate) fn scheduler_args(layout: &Layout) -> Settings {
    let kubeconfig = layout.kubeconfig_of("kube-scheduler").display().to_string();
    vec![
        ("kubeconfig", kubeconfig.clone()),
        ("authentication-kubeconfig", kubeconfig.clone()),
        ("authorization-kubeconfig", kubeconfig),
        ("bind-address", layout.first_host().to_string()),
        ("leader-elect", "false".into()),
    ]
}

/// The arguments of the DNS, which reads services and endpoints with the rights of kube-proxy.
pub(crate) fn dns_args(layout: &Layout) -> Settings {
    vec![
        ("kubeconfig", layout.kubeconfig_of("kube-proxy").display().to_string()),
        ("listen", format!("{}:{DNS_PORT}", layout.network.dns())),
    ]
}

/// The arguments of the node's first process. The programs of Kubernetes are in the folder `programs`.
pub(crate) fn node_args(layout: &Layout, programs: &Path) -> Settings {
    vec![
        ("cluster", layout.folder().display().to_string()),
        ("programs", programs.display().to_string()),
        ("name", NAME.to_owned()),
    ]
}

pub(crate) fn containerd_args() -> Settings {
    vec![("config", inside(&format!("{NAME}/containerd.toml")))]
}

pub(crate) fn kubelet_args(layout: &Layout) -> Settings {
    vec![
        ("config", inside(&format!("{NAME}/kubelet.json"))),
        ("kubeconfig", inside("kubelet.kubeconfig")),
        ("root-dir", inside(&format!("{NAME}/kubelet"))),
        ("hostname-override", NAME.to_owned()),
        ("node-ip", layout.network.node().to_string()),
    ]
}

pub(crate) fn kube_proxy_args() -> Settings {
    vec![("config", inside(&format!("{NAME}/kube-proxy.json")))]
}

/// The files of the node's folder, by their names. Plugins of the pod network are in the folder `plugins`.
pub(crate) fn files(layout: &Layout, node: &Node, plugins: &str) -> Vec<(&'static str, String)> {
    vec![
        ("containerd.toml", containerd(plugins)),
        ("cni/10-pods.conflist", pod_network(layout).to_string()),
        ("kubelet.json", kubelet(layout, node).to_string()),
        ("kube-proxy.json", kube_proxy(layout).to_string()),
        // The cluster's DNS is the only name server.
        ("resolv.conf", format!("nameserver {}\n", layout.network.dns())),
    ]
}

fn containerd(plugins: &str) -> String {
    // Version 2 is read by containerd 1.5 and newer, including 2.x. Without `restrict_oom_score_adj`, every pod fails on a
    // machine where the node may not protect a process from the kernel's OOM killer better than itself (no CAP_SYS_RESOURCE). An
    // AppArmor profile would stay in the kernel after the node.
    format!(
        r#"version = 2
root = "{root}"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.tracing", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]

[grpc]
address = "{SOCKET}"

[plugins."io.containerd.internal.v1.opt"]
path = "{opt}"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{POD_IMAGE}"
restrict_oom_score_adj = true
disable_apparmor = true
disable_tcp_service = true
stream_server_address = "127.0.0.1"

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{plugins}"
conf_dir = "{networks}"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"#,
        root = inside(&format!("{NAME}/containerd")),
        opt = inside(&format!("{NAME}/opt")),
        networks = inside(&format!("{NAME}/cni")),
    )
}

/// Each pod has its own link to the node, which routes. On a bridge, the answer to a pod that calls a service with a pod on
/// the same bridge would bypass the node and have the wrong sender, unless the kernel has br_netfilter.
fn pod_network(layout: &Layout) -> Value {
    let (first, last) = layout.network.pod_range();
    json!({
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [{
            "type": "ptp",
            "ipMasq": false,
            "ipam": {
                "type": "host-local",
                "ranges": [[{ "subnet": layout.network.pods(), "rangeStart": first.to_string(), "rangeEnd": last.to_string() }]],
                "routes": [{ "dst": "0.0.0.0/0" }],
                "dataDir": "/run/cni",
            },
        }],
    })
}

fn kubelet(layout: &Layout, node: &Node) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": { "enabled": false },
            "webhook": { "enabled": true },
            "x509": { "clientCAFile": inside("pki/ca.crt") },
        },
        "authorization": { "mode": "Webhook" },
        "tlsCertFile": inside("pki/kubelet.crt"),
        "tlsPrivateKeyFile": inside("pki/kubelet.key"),
        "port": KUBELET_PORT,
        "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", node.cgroup),
        "failCgroupV1": false,
        "failSwapOn": false,
        "oomScoreAdj": 0,
        "clusterDNS": [layout.network.dns()],
        "clusterDomain": "cluster.local",
        "resolvConf": inside(&format!("{NAME}/resolv.conf")),
        "podLogsDir": inside(&format!("{NAME}/pods")),
        "volumePluginDir": inside(&format!("{NAME}/volume-plugins")),
        "makeIPTablesUtilChains": false,
        // A full disk of the machine must not affect the test, and images cannot be pulled again.
        "evictionHard": { "memory.available": "50Mi", "nodefs.available": "0%", "imagefs.available": "0%", "nodefs.inodesFree": "0%" },
        "imageGCHighThresholdPercent": 100,
        // Tests kill a container again and again, and wait until it is back.
        "crashLoopBackOff": { "maxContainerRestartPeriod": "2s" },
    })
}

fn kube_proxy(layout: &Layout) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": { "kubeconfig": inside("kube-proxy.kubeconfig") },
        "hostnameOverride": NAME,
        "clusterCIDR": layout.network.pods(),
        "healthzBindAddress": format!("0.0.0.0:{PROXY_HEALTH_PORT}"),
        "oomScoreAdj": 0,
        // These settings belong to the machine, not to a network namespace.
        "conntrack": { "maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s" },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::{Kind, Network};

    fn layout() -> Layout {
        let node = Some(Node::new(3, 77));
        Layout { folder: "/c/3".into(), network: Network::new(3, Kind::Routed), api_servers: 1, node, etcd_quota: None }
    }

    #[test]
    fn pods_have_a_block_and_the_node_an_address_that_no_pod_gets() {
        let network = pod_network(&layout());
        let range = &network["plugins"][0]["ipam"]["ranges"][0][0];
        assert_eq!(range["subnet"], "198.19.3.128/25");
        assert_eq!((&range["rangeStart"], &range["rangeEnd"]), (&json!("198.19.3.130"), &json!("198.19.3.253")));
        assert_eq!(layout().network.node().to_string(), "198.19.3.254");
    }

    #[test]
    fn nothing_inside_is_told_a_path_of_the_machine() {
        let layout = layout();
        let files = files(&layout, layout.node.as_ref().unwrap(), "/usr/lib/cni");
        for (name, text) in files {
            assert!(!text.contains("/c/3"), "{name}: {text}");
        }
        for args in [kubelet_args(&layout), kube_proxy_args(), containerd_args()] {
            assert!(args.iter().all(|(_, value)| !value.contains("/c/3")), "{args:?}");
        }
    }

    #[test]
    fn pods_of_two_nodes_have_groups_of_their_own() {
        assert_eq!(kubelet(&layout(), &Node::new(3, 77))["cgroupRoot"], "/portcullis-3-77");
        assert_ne!(Node::new(3, 77), Node::new(3, 78));
    }
}
