//! What a machine must have for a node, in addition to what a control plane needs.

use std::env;
use std::fs;
use std::path::Path;

use crate::Error;

/// Programs, each with the Debian package that has it.
const PROGRAMS: [(&str, &str); 7] = [
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
    ("nft", "nftables"),
    ("ip", "iproute2"),
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
];

/// The folders where distributions and the upstream project install plugins of pod networks.
const PLUGIN_FOLDERS: [&str; 3] = ["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"];

/// The plugins that are used.
const PLUGINS: [&str; 3] = ["loopback", "ptp", "host-local"];

/// Fails with the list of what is missing.
pub(crate) fn check() -> Result<(), Error> {
    let mut missing: Vec<String> = PROGRAMS
        .iter()
        .filter(|(program, _)| !is_on_path(program))
        .map(|(program, package)| format!("{program} (Debian package {package})"))
        .collect();
    if find_plugins().is_none() {
        missing.push("plugins of pod networks (Debian package containernetworking-plugins)".to_owned());
    }
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    if !rustix::process::geteuid().is_root() || !is_of_machine(&map) {
        missing.push("the rights of root, in the user namespace of the machine".to_owned());
    }
    if missing.is_empty() { Ok(()) } else { Err(Error::NodeNeeds(missing.join(", "))) }
}

/// The folder of the plugins.
pub(super) fn network_plugins() -> Result<String, Error> {
    let missing = || Error::NodeNeeds(format!("{} in one of {}", PLUGINS.join(", "), PLUGIN_FOLDERS.join(", ")));
    find_plugins().map(str::to_owned).ok_or_else(missing)
}

fn find_plugins() -> Option<&'static str> {
    PLUGIN_FOLDERS.into_iter().find(|folder| PLUGINS.iter().all(|name| Path::new(folder).join(name).is_file()))
}

fn is_on_path(program: &str) -> bool {
    env::split_paths(&super::spawn::path()).any(|folder| folder.join(program).is_file())
}

/// Whether `/proc/self/uid_map` maps every user id to itself.
fn is_of_machine(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_of_a_user_namespace_is_not_root_of_the_machine() {
        assert!(is_of_machine("         0          0 4294967295\n"));
        assert!(!is_of_machine("         0       1000          1\n"));
        assert!(!is_of_machine(""));
    }

    #[test]
    fn programs_are_found_in_folders_of_the_path() {
        assert!(is_on_path("sh"));
        assert!(!is_on_path("no-such-program"));
    }
}
