//! How the parts of a node are started: the first in new namespaces, the others in those.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::process::Command;

use crate::Kubernetes;
use crate::component::Component;

/// The kinds of namespaces, as flags of `unshare` and of `nsenter`.
const NAMESPACES: [&str; 5] = ["--net", "--mount", "--pid", "--uts", "--ipc"];

/// Where the programs of Kubernetes are inside. `kubernetes/node.go` mounts them there.
const PROGRAMS: &str = "/run/kubernetes";

/// The command that becomes a component, but for its arguments. Parts of a node other than the first enter the namespaces of this
/// process.
pub(crate) fn command(kubernetes: &Kubernetes, component: Component, node: Option<u32>) -> Command {
    let mut command = match (component, node) {
        (Component::Node, _) => {
            let mut unshare = Command::new("unshare");
            unshare.args(NAMESPACES).args(["--fork", "--mount-proc", "--kill-child", "--"]);
            unshare.arg(kubernetes.program(component.program()));
            unshare
        }
        (Component::Containerd, Some(node)) => {
            let mut enter = enter(node);
            enter.arg(component.program());
            enter
        }
        (Component::Kubelet | Component::KubeProxy, Some(node)) => {
            let mut enter = enter(node);
            enter.arg(format!("{PROGRAMS}/{}", component.program()));
            enter
        }
        _ => Command::new(kubernetes.program(component.program())),
    };
    command.env_clear();
    if component.is_of_node() {
        command.env("PATH", path());
    }
    command
}

/// A command that runs what follows on the node of this first process.
pub(crate) fn enter(node: u32) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["--target", &node.to_string()]).args(NAMESPACES).arg("--");
    command.env("PATH", path());
    command
}

/// Where programs are looked for: where this process does, and where those of an administrator are.
pub(crate) fn path() -> OsString {
    let mut folders: Vec<_> =
        env::var_os("PATH").iter().flat_map(|path| env::split_paths(path).collect::<Vec<_>>()).collect();
    folders.extend(["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(Into::into));
    env::join_paths(folders).expect("the folders are those of a path")
}

/// The process that `unshare` or `nsenter` has started as its only child, which is the component, as the machine counts processes.
pub(crate) fn process_inside(starter: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{starter}/task/{starter}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}
