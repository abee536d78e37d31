//! The control group of a node's pods: a folder below the root of each hierarchy, of version 1, 2, or both side by side.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::Error;

const ROOT: &str = "/sys/fs/cgroup";

/// The resources that the kubelet limits and counts. In version 2, each group must pass them on to the groups below it.
const CONTROLLERS: [&str; 6] = ["cpuset", "cpu", "io", "memory", "hugetlb", "pids"];

/// The weight of all pods together among the processes of the machine, as versions 1 and 2 write it: four times the default. A node's pods
/// have the whole machine apart from its system; here they are beside control planes, tests and perhaps builds, each of which has the default.
const WEIGHTS: [(&str, &str); 2] = [("cpu.shares", "4096"), ("cpu.weight", "400")];

/// How long a group may be busy after its last process has been killed.
const GONE: Duration = Duration::from_secs(120);

/// Makes the group.
pub(super) fn make(name: &str) -> Result<(), Error> {
    for hierarchy in hierarchies(Path::new(ROOT)) {
        let group = hierarchy.join(name);
        pass_on(&hierarchy);
        match fs::create_dir(&group) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(Error::file("create", &group)(error));
            }
            _ => {
                pass_on(&group);
                weigh(&group);
            }
        }
    }
    Ok(())
}

/// Gives the pods their weight, in the hierarchy that has it.
fn weigh(group: &Path) {
    for (name, weight) in WEIGHTS {
        let file = group.join(name);
        if file.exists() {
            let _ = fs::write(file, weight);
        }
    }
}

/// In version 2, lets groups below have the controllers. Controllers that this machine does not have are skipped; version 1
/// does not have this file.
fn pass_on(group: &Path) {
    let control = group.join("cgroup.subtree_control");
    for controller in CONTROLLERS.iter().filter(|_| control.exists()) {
        let _ = fs::write(&control, format!("+{controller}"));
    }
}

/// Removes the group with those below it. Their processes have been killed before.
pub(super) fn remove(name: &str) -> Result<(), Error> {
    hierarchies(Path::new(ROOT)).iter().try_for_each(|hierarchy| remove_tree(&hierarchy.join(name)))
}

/// Files of a group vanish with it, so only folders are removed, the innermost first.
fn remove_tree(group: &Path) -> Result<(), Error> {
    let Ok(entries) = fs::read_dir(group) else { return Ok(()) };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path())?;
        }
    }
    let start = Instant::now();
    loop {
        match fs::remove_dir(group) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && start.elapsed() < GONE => {
                thread::sleep(Duration::from_millis(20));
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Error::file("remove", group)(error)),
            _ => return Ok(()),
        }
    }
}

/// The roots of all hierarchies: only one of version 2, or one for each controller of version 1 and perhaps one of version
/// 2.
fn hierarchies(root: &Path) -> Vec<PathBuf> {
    let is_hierarchy = |path: &Path| path.join("cgroup.procs").exists();
    if is_hierarchy(root) {
        return vec![root.to_owned()];
    }
    let Ok(entries) = fs::read_dir(root) else { return Vec::new() };
    let mut found: Vec<_> = entries
        .flatten()
        // `cpu` may be a link to `cpu,cpuacct`.
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()) && is_hierarchy(&entry.path()))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hierarchy(path: &Path) {
        fs::create_dir_all(path).unwrap();
        fs::write(path.join("cgroup.procs"), "").unwrap();
    }

    #[test]
    fn version_1_has_a_hierarchy_for_each_controller() {
        let root = tempfile::tempdir().unwrap();
        hierarchy(&root.path().join("memory"));
        hierarchy(&root.path().join("cpu,cpuacct"));
        std::os::unix::fs::symlink("cpu,cpuacct", root.path().join("cpu")).unwrap();
        fs::create_dir(root.path().join("other")).unwrap();
        assert_eq!(hierarchies(root.path()), [root.path().join("cpu,cpuacct"), root.path().join("memory")]);
    }

    #[test]
    fn version_2_has_one() {
        let root = tempfile::tempdir().unwrap();
        hierarchy(root.path());
        hierarchy(&root.path().join("system.slice"));
        assert_eq!(hierarchies(root.path()), [root.path()]);
    }

    #[test]
    fn groups_are_removed_from_the_inside() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("a/b/c")).unwrap();
        fs::create_dir_all(root.path().join("a/d")).unwrap();
        remove_tree(&root.path().join("a")).unwrap();
        assert!(!root.path().join("a").exists());
        remove_tree(&root.path().join("a")).unwrap();
    }
}
