//! Where the files of a cluster are, and the addresses and numbers that all of its parts share.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::network::{API_SERVER_PORT, Kind, Network};

/// The layout of a cluster, from which all settings of its components follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Its folder.
    pub(crate) folder: PathBuf,
    pub(crate) network: Network,
    /// How many API servers it has; they are counted from 1.
    pub(crate) api_servers: u8,
    /// Its node; absent if it has none.
    pub(crate) node: Option<Node>,
    /// The size that the database may have, in bytes; if absent, etcd's default.
    pub(crate) etcd_quota: Option<u64>,
}

/// The things of a node that are outside of its namespaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Node {
    /// The control group of its pods, directly below the root of each hierarchy. No other node of the machine has the same.
    pub(crate) cgroup: String,
}

impl Node {
    /// A layout for a cluster that this process owns.
    pub(crate) fn new(slot: u8, owner: u32) -> Self {
        Self { cgroup: format!("portcullis-{slot}-{owner}") }
    }
}

impl Layout {
    /// A file of its folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A key or a certificate.
    pub(crate) fn pki(&self, name: &str) -> PathBuf {
        self.folder.join("pki").join(name)
    }

    /// The log of a component.
    pub(crate) fn log(&self, component: &str) -> PathBuf {
        self.folder.join("logs").join(format!("{component}.log"))
    }

    /// The kubeconfig of an administrator.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.file("kubeconfig")
    }

    /// The kubeconfig of a component.
    pub(crate) fn kubeconfig_of(&self, component: &str) -> PathBuf {
        self.file(&format!("{component}.kubeconfig"))
    }

    /// The address of an API server.
    pub(crate) fn api_server(&self, number: u8) -> SocketAddr {
        SocketAddr::from((self.network.host(number), API_SERVER_PORT))
    }

    /// All API servers, in the order of their numbers.
    pub(crate) fn api_server_numbers(&self) -> impl Iterator<Item = u8> + use<> {
        1..=self.api_servers
    }

    /// The addresses of proxies before the API servers.
    pub(crate) fn proxies(&self) -> impl Iterator<Item = SocketAddr> + use<> {
        let network = self.network;
        (16..32).map(move |number| SocketAddr::from((network.host(number), API_SERVER_PORT)))
    }

    /// The address of etcd and the controller manager.
    pub(crate) fn first_host(&self) -> Ipv4Addr {
        self.network.host(1)
    }

    /// Whether API servers can publish their addresses.
    pub(crate) fn has_endpoints(&self) -> bool {
        self.network.kind == Kind::Routed
    }

    /// The folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }
}
