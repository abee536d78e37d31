//! The node of a cluster: a real kubelet with containerd and kube-proxy, in namespaces of its own.
//!
//! One process is the first of a mount, network, process and host name namespace (`node-init`, see `kubernetes/node.go`); all else of the
//! node enters these. When it ends, in whatever way, the kernel ends every process of the node, pods included, and with the last of
//! them go mounts, interfaces, routes and packet filter rules. Outside are a folder, a control group, and one end of a link, which
//! [`Node::remove`] takes away.
//!
//! ```text
//! control plane, 198.18.N.0/24 ── link ── node, 198.19.N.254 ── pods, 198.19.N.130 …
//! ```

mod cgroup;
mod config;
mod containers;
mod evidence;
mod image;
mod link;
mod needs;
mod operate;
mod packet_filter;
mod pod_program;
mod ready;
mod spawn;
mod volumes;

pub(crate) use containers::import_archive;
pub use evidence::Evidence;
pub(crate) use needs::check as check_needs;
pub use packet_filter::Rules;
pub use pod_program::PodProgram;
pub(crate) use ready::{allow_kubelet_api, wait_for_node, wait_for_part};
pub(crate) use spawn::{command, path, process_inside};

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::layout::Layout;
use crate::network::Network;
use crate::{Error, files};

pub(crate) use config::{containerd_args, dns_args, kube_proxy_args, kubelet_args, node_args, scheduler_args};

/// The name of the node; a cluster has one at most.
pub(crate) const NAME: &str = "node-1";

/// The image of pods that are nothing but a test, which also holds the namespaces of every pod. Its program can `serve` at port
/// 8080, `get` a URL, and `lookup` a name.
pub const POD_IMAGE: &str = "localhost/portcullis/pod:1";

/// Where the folder of the cluster is inside, whatever its path is outside. `kubernetes/node.go` mounts it there.
const INSIDE: &str = "/run/cluster";

/// What a node has outside of its namespaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Node {
    /// The control group of its pods, directly below the root of each hierarchy. No other node of the machine has the same.
    pub(crate) cgroup: String,
}

impl Node {
    /// One for a cluster that this process owns.
    pub(crate) fn new(slot: u8, owner: u32) -> Self {
        Self { cgroup: format!("portcullis-{slot}-{owner}") }
    }

    /// Makes what the parts of the node find when they start.
    pub(crate) fn prepare(&self, layout: &Layout) -> Result<(), Error> {
        for name in ["", "cni"] {
            files::make_folder(&folder(layout).join(name))?;
        }
        // It tells of an earlier start.
        files::remove(&ready(layout))?;
        for (name, text) in config::files(layout, self, &needs::network_plugins()?) {
            files::write(&folder(layout).join(name), &text)?;
        }
        // A power cut leaves no groups. Kubelet would ask for three seconds after the containers of each.
        cgroup::remove(&self.cgroup)?;
        cgroup::make(&self.cgroup)
    }

    /// Removes all but the folder. Its processes have ended.
    pub(crate) fn remove(&self, network: Network) -> Result<(), Error> {
        link::remove(network)?;
        cgroup::remove(&self.cgroup)
    }
}

/// The folder of the node, in that of the cluster.
pub(crate) fn folder(layout: &Layout) -> PathBuf {
    layout.file(NAME)
}

/// What `kubernetes/node.go` writes when the namespaces are ready.
fn ready(layout: &Layout) -> PathBuf {
    folder(layout).join("ready")
}

/// A file of the folder of the cluster, as the node sees it.
fn inside(name: &str) -> String {
    Path::new(INSIDE).join(name).display().to_string()
}
