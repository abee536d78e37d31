//! The node of a cluster: a real kubelet with containerd and kube-proxy, in namespaces of its own.
//!
//! One process is the first of a mount, network, process and host name namespace (`node-init`, see `kubernetes/node.go`); all other
//! processes of the node enter these. When it ends, in whatever way, the kernel ends every process of the node, including pods, and with
//! the last of them mounts, interfaces, routes and packet filter rules vanish. Outside are a folder, a control group, and one end of a
//! link, which [`Node::remove`] removes.
//!
//! ```text
//! control plane, 198.18.N.0/24 ── link ── node, 198.19.N.254 ── pods, 198.19.N.130 …
//! ```

mod cgroup;
pub(crate) mod config;
mod image;
pub(crate) mod import;
pub(crate) mod link;
mod needs;
pub(crate) mod paths;
mod pod_program;
pub(crate) mod spawn;

pub(crate) use import::import_archive;
pub(crate) use needs::check as check_needs;
pub use paths::POD_IMAGE;
pub(crate) use paths::{NAME, folder};
pub use pod_program::PodProgram;
pub(crate) use spawn::{command, path, process_inside};

use crate::layout::{Layout, Node};
use crate::network::Network;
use crate::{Error, files};

pub(crate) use config::{containerd_args, dns_args, kube_proxy_args, kubelet_args, node_args, scheduler_args};

impl Node {
    /// Makes the files and the control group that the parts of the node need.
    pub(crate) fn prepare(&self, layout: &Layout) -> Result<(), Error> {
        for name in ["", "cni"] {
            files::make_folder(&paths::folder(layout).join(name))?;
        }
        // The file of an earlier start.
        files::remove(&paths::ready(layout))?;
        for (name, text) in config::files(layout, self, &needs::network_plugins()?) {
            files::write(&paths::folder(layout).join(name), &text)?;
        }
        // After a power cut there are no groups. If these stayed, the kubelet would ask for three seconds after the
        // containers of each.
        cgroup::remove(&self.cgroup)?;
        cgroup::make(&self.cgroup)
    }

    /// Removes everything except the folder. The processes must have ended.
    pub(crate) fn remove(&self, network: Network) -> Result<(), Error> {
        link::remove(network)?;
        cgroup::remove(&self.cgroup)
    }
}
