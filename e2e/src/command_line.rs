//! The command lines of the components of a control plane.

use std::path::Path;

use crate::component::Component;
use crate::layout::Layout;
use crate::network::API_SERVER_PORT;
use crate::node;
use crate::pki::TOKENS;

/// The port at which etcd answers its clients.
pub(crate) const ETCD_PORT: u16 = 2379;

/// The port of the controller manager's health.
pub(crate) const CONTROLLER_MANAGER_PORT: u16 = 10257;

/// The issuer of service account tokens, and their default audience.
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// The controllers that are off in a cluster without a node.
const OFF_WITHOUT_NODE: [&str; 16] = [
    // Stand-ins for nodes have no kubelet to report that they are healthy, so these two would remove their pods.
    "node-lifecycle-controller",
    "taint-eviction-controller",
    // It says nothing about rules for all versions of a kind, which are those of the chart, but writes a status for each, and API servers
    // compile the rule again.
    "validatingadmissionpolicy-status-controller",
    // These would find nothing to do, and each has an account, a token and watches.
    "certificatesigningrequest-approving-controller",
    "certificatesigningrequest-cleaner-controller",
    "certificatesigningrequest-signing-controller",
    "cronjob-controller",
    "daemonset-controller",
    "ephemeral-volume-controller",
    "legacy-serviceaccount-token-cleaner-controller",
    "persistentvolume-attach-detach-controller",
    "persistentvolume-binder-controller",
    "persistentvolume-expander-controller",
    "resourceclaim-controller",
    "ttl-after-finished-controller",
    "ttl-controller",
];

/// The arguments of a component. The programs of Kubernetes are in the folder `programs`.
pub(crate) fn args(component: Component, layout: &Layout, programs: &Path) -> Vec<String> {
    let pki = |name: &str| layout.pki(name).display().to_string();
    let file = |name: &str| layout.file(name).display().to_string();
    let first = layout.first_host();
    let settings = match component {
        Component::Etcd => {
            let (clients, peers) = (format!("https://{first}:{ETCD_PORT}"), format!("https://{first}:2380"));
            etcd(&pki, &file, layout, &clients, &peers)
        }
        Component::ApiServer(number) => api_server(&pki, &file, layout, number),
        Component::ControllerManager => controller_manager(&pki, layout),
        Component::Scheduler => node::scheduler_args(layout),
        Component::Dns => node::dns_args(layout),
        Component::Node => node::node_args(layout, programs),
        Component::Containerd => node::containerd_args(),
        Component::Kubelet => node::kubelet_args(layout),
        Component::KubeProxy => node::kube_proxy_args(),
    };
    settings.into_iter().map(|(name, value)| format!("--{name}={value}")).collect()
}

type Settings = Vec<(&'static str, String)>;

fn etcd(
    pki: &dyn Fn(&str) -> String,
    file: &dyn Fn(&str) -> String,
    layout: &Layout,
    clients: &str,
    peers: &str,
) -> Settings {
    let mut settings = vec![
        ("name", "etcd".into()),
        ("data-dir", file("etcd")),
        ("listen-client-urls", clients.into()),
        ("advertise-client-urls", clients.into()),
        ("listen-peer-urls", peers.into()),
        ("initial-advertise-peer-urls", peers.into()),
        ("initial-cluster", format!("etcd={peers}")),
        ("cert-file", pki("etcd.crt")),
        ("key-file", pki("etcd.key")),
        ("client-cert-auth", "true".into()),
        ("trusted-ca-file", pki("ca.crt")),
        ("peer-cert-file", pki("etcd.crt")),
        ("peer-key-file", pki("etcd.key")),
        ("peer-client-cert-auth", "true".into()),
        ("peer-trusted-ca-file", pki("ca.crt")),
        // A test does not need its data after a crash of the machine.
        ("unsafe-no-fsync", "true".into()),
        ("log-level", "warn".into()),
    ];
    settings.extend(layout.etcd_quota.map(|bytes| ("quota-backend-bytes", bytes.to_string())));
    settings
}

fn api_server(pki: &dyn Fn(&str) -> String, file: &dyn Fn(&str) -> String, layout: &Layout, number: u8) -> Settings {
    let own = layout.api_server(number).ip().to_string();
    // A loopback address cannot be published, and each attempt would be an error in the log.
    let publishing = if layout.has_endpoints() { "lease" } else { "none" };
    let mut settings = vec![
        ("etcd-servers", format!("https://{}:{ETCD_PORT}", layout.first_host())),
        ("etcd-cafile", pki("ca.crt")),
        ("etcd-certfile", pki("etcd-client.crt")),
        ("etcd-keyfile", pki("etcd-client.key")),
        ("bind-address", own.clone()),
        ("advertise-address", own),
        ("secure-port", API_SERVER_PORT.to_string()),
        ("endpoint-reconciler-type", publishing.into()),
        ("tls-cert-file", pki("kube-apiserver.crt")),
        ("tls-private-key-file", pki("kube-apiserver.key")),
        ("client-ca-file", pki("ca.crt")),
        ("token-auth-file", pki(TOKENS)),
        ("authorization-mode", "Node,RBAC".into()),
        ("service-account-issuer", ISSUER.into()),
        ("service-account-key-file", pki("service-accounts.pub")),
        ("service-account-signing-key-file", pki("service-accounts.key")),
        ("service-cluster-ip-range", layout.network.services()),
        // The front proxy's own certificate and not its authority, which signs for users too: else the API server would verify the
        // signature of a user's certificate twice at each request, here first, and that takes a tenth of a millisecond.
        ("requestheader-client-ca-file", pki("front-proxy.crt")),
        ("requestheader-allowed-names", "front-proxy".into()),
        ("requestheader-username-headers", "X-Remote-User".into()),
        ("requestheader-group-headers", "X-Remote-Group".into()),
        ("requestheader-extra-headers-prefix", "X-Remote-Extra-".into()),
        ("proxy-client-cert-file", pki("front-proxy.crt")),
        ("proxy-client-key-file", pki("front-proxy.key")),
        // Webhooks are called at their endpoints, because there is no kube-proxy that makes cluster addresses work.
        ("enable-aggregator-routing", "true".into()),
        ("kubelet-preferred-address-types", "InternalIP".into()),
        ("allow-privileged", "true".into()),
        ("audit-policy-file", file("audit-policy.yaml")),
        ("audit-log-path", file(&format!("logs/audit-{number}.log"))),
        ("audit-log-maxsize", "100".into()),
        ("audit-log-maxbackup", "1".into()),
    ];
    if layout.node.is_some() {
        settings.extend([
            ("kubelet-certificate-authority", pki("ca.crt")),
            ("kubelet-client-certificate", pki("kube-apiserver-kubelet-client.crt")),
            ("kubelet-client-key", pki("kube-apiserver-kubelet-client.key")),
        ]);
    }
    settings
}

fn controller_manager(pki: &dyn Fn(&str) -> String, layout: &Layout) -> Settings {
    let kubeconfig = layout.kubeconfig_of("kube-controller-manager").display().to_string();
    let off: &[&str] = if layout.node.is_some() { &[] } else { &OFF_WITHOUT_NODE };
    let off: String = off.iter().map(|name| format!(",-{name}")).collect();
    vec![
        ("kubeconfig", kubeconfig.clone()),
        ("authentication-kubeconfig", kubeconfig.clone()),
        ("authorization-kubeconfig", kubeconfig),
        ("bind-address", layout.first_host().to_string()),
        ("secure-port", CONTROLLER_MANAGER_PORT.to_string()),
        ("tls-cert-file", pki("kube-controller-manager-server.crt")),
        ("tls-private-key-file", pki("kube-controller-manager-server.key")),
        ("leader-elect", "false".into()),
        ("use-service-account-credentials", "true".into()),
        ("kube-api-qps", "500".into()),
        ("kube-api-burst", "1000".into()),
        ("root-ca-file", pki("ca.crt")),
        ("service-account-private-key-file", pki("service-accounts.key")),
        ("cluster-signing-cert-file", pki("ca.crt")),
        ("cluster-signing-key-file", pki("ca.key")),
        ("controllers", format!("*{off}")),
    ]
}

/// Logs requests without bodies, so that a test can see the users, the requests and the webhooks that were called. What an
/// administrator or a component of the control plane reads is left out: that would be most of the log.
pub(crate) const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  nonResourceURLs: [/livez*, /readyz*, /healthz*, /metrics]
- level: None
  users: [admin, 'system:kube-controller-manager', 'system:kube-scheduler', 'system:apiserver']
  verbs: [get, list, watch]
- level: None
  userGroups: ['system:serviceaccounts:kube-system']
  verbs: [get, list, watch]
- level: Metadata
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Node;
    use crate::network::{Kind, Network};

    fn layout(kind: Kind) -> Layout {
        Layout { folder: "/c/3".into(), network: Network::new(3, kind), api_servers: 2, node: None, etcd_quota: None }
    }

    fn setting(component: Component, layout: &Layout, name: &str) -> String {
        let prefix = format!("--{name}=");
        let args = args(component, layout, Path::new("/programs"));
        let values: Vec<_> = args.iter().filter_map(|arg| arg.strip_prefix(&prefix)).collect();
        assert_eq!(values.len(), 1, "{name} in {args:?}");
        values[0].to_owned()
    }

    #[test]
    fn api_servers_share_a_port_and_have_addresses_of_their_own() {
        let layout = layout(Kind::Routed);
        let of = |number, name| setting(Component::ApiServer(number), &layout, name);
        assert_eq!(
            (of(1, "advertise-address"), of(2, "advertise-address")),
            ("198.18.3.1".into(), "198.18.3.2".into())
        );
        assert_eq!(of(1, "secure-port"), of(2, "secure-port"));
        assert_ne!(of(1, "audit-log-path"), of(2, "audit-log-path"));
    }

    #[test]
    fn a_database_has_a_quota_where_one_is_wanted() {
        let args = |etcd_quota| {
            let layout = Layout { etcd_quota, ..layout(Kind::Routed) };
            args(Component::Etcd, &layout, Path::new("/programs"))
        };
        assert!(args(Some(1 << 25)).contains(&"--quota-backend-bytes=33554432".to_owned()));
        assert!(!args(None).iter().any(|arg| arg.contains("quota")));
    }

    #[test]
    fn nobody_but_the_front_proxy_speaks_for_others() {
        let of = |name| setting(Component::ApiServer(1), &layout(Kind::Routed), name);
        assert_eq!(of("requestheader-client-ca-file"), of("proxy-client-cert-file"));
        assert_ne!(of("requestheader-client-ca-file"), of("client-ca-file"));
    }

    #[test]
    fn an_api_server_on_the_loopback_publishes_nothing() {
        let of = |kind| setting(Component::ApiServer(1), &layout(kind), "endpoint-reconciler-type");
        assert_eq!((of(Kind::Routed), of(Kind::Loopback)), ("lease".into(), "none".into()));
    }

    #[test]
    fn controllers_that_take_pods_from_silent_nodes_or_have_nothing_to_do_are_on_only_with_a_node() {
        let with = Layout { node: Some(Node::new(3, 1)), ..layout(Kind::Routed) };
        assert_eq!(setting(Component::ControllerManager, &with, "controllers"), "*");
        let without = setting(Component::ControllerManager, &layout(Kind::Routed), "controllers");
        assert!(without.starts_with("*,-node-lifecycle-controller,-taint-eviction-controller,"), "{without}");
        assert_eq!(without.split(",-").count(), 1 + OFF_WITHOUT_NODE.len());
    }
}
