//! Starts the parts of a node: the first in new namespaces, the others in the same ones.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::process::Command;

use crate::Kubernetes;
use crate::component::Component;

/// The kinds of namespaces, as flags of `unshare` and of `nsenter`.
const NAMESPACES: [&str; 5] = ["--net", "--mount", "--pid", "--uts", "--ipc"];

/// The folder of Kubernetes' programs on the node. `kubernetes/node.go` mounts it there.
const PROGRAMS: &str = "/run/kubernetes";

/// Settings of Go's garbage collector. Tests that start many clusters trade memory for processor time; benchmarks do not.
const COLLECTOR: [&str; 2] = ["GOGC", "GOMEMLIMIT"];

/// The command that becomes a component, without the component's arguments. All parts of a node except the first enter the
/// namespaces of the process `node`.
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
    command.env_clear().envs(COLLECTOR.iter().filter_map(|name| Some((name, env::var_os(name)?))));
    if component.is_of_node() {
        command.env("PATH", path());
    }
    command
}

/// A command that runs further arguments as a command on the node with this first process.
pub(crate) fn enter(node: u32) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["--target", &node.to_string()]).args(NAMESPACES).arg("--");
    command.env("PATH", path());
    command
}

/// The folders to find programs in: this process's, and those of an administrator.
pub(crate) fn path() -> OsString {
    let mut folders: Vec<_> =
        env::var_os("PATH").iter().flat_map(|path| env::split_paths(path).collect::<Vec<_>>()).collect();
    folders.extend(["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(Into::into));
    env::join_paths(folders).expect("the folders are those of a path")
}

/// The process id, on this machine, of the component that `unshare` or `nsenter` has started as its only child.
pub(crate) fn process_inside(starter: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{starter}/task/{starter}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}
