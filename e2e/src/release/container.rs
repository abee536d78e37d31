//! A container of a pod as seen from the machine: its first process, and the kernel's data about it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use portcullis_testkit::Usage;
use rustix::process::{Pid, Signal};
use serde_json::Value;

/// The first process of a container that runs on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    pid: u32,
}

impl Container {
    /// The container with this name in a pod; `None` while it does not run.
    pub fn of(pod: &Value, name: &str) -> Option<Self> {
        let id = id(pod, name)?;
        let processes = fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let is_first = |pid: &u32| {
            let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
            read("cgroup").contains(&id) && is_first_of_its_namespace(&read("status"))
        };
        processes.into_iter().find(is_first).map(|pid| Self { pid })
    }

    /// Its process id on this machine.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Kills it, as the kernel does when memory is short.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Pauses it until the result is dropped.
    pub fn freeze(self) -> Frozen {
        self.signal(Signal::STOP);
        Frozen(self)
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) {
            // It may have ended in the meantime.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// The values of a line of the process's status: `Uid`, `CapEff`, `NoNewPrivs`, `Seccomp`.
    ///
    /// # Panics
    /// When the process is gone.
    pub fn status(&self, word: &str) -> String {
        let status = self.read("status");
        let line = status.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(':'));
        line.map(str::trim).unwrap_or_else(|| panic!("no {word} in\n{status}")).to_owned()
    }

    /// What its first process uses.
    ///
    /// # Panics
    /// When the process is gone.
    pub fn usage(&self) -> Usage {
        Usage::of(self.pid)
    }

    /// Its mounts: paths, each with its options, like `ro,nosuid`.
    ///
    /// # Panics
    /// When the process is gone.
    pub fn mounts(&self) -> Vec<(String, String)> {
        mounts(&self.read("mountinfo"))
    }

    /// The names of its environment variables.
    ///
    /// # Panics
    /// When the process is gone.
    pub fn environment(&self) -> Vec<String> {
        let names = |text: &str| {
            text.split('\0').filter_map(|pair| pair.split_once('=')).map(|(name, _)| name.to_owned()).collect()
        };
        names(&self.read("environ"))
    }

    /// A path of the container as a path of this machine.
    pub fn path(&self, path: &str) -> PathBuf {
        Path::new("/proc").join(self.pid.to_string()).join("root").join(path.trim_start_matches('/'))
    }

    /// The files in the container's root, without other mounts and without folders.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn files(&self) -> io::Result<Vec<String>> {
        let mounts: Vec<String> = self.mounts().into_iter().map(|(path, _)| path).filter(|path| path != "/").collect();
        let mut files = Vec::new();
        let mut folders = vec![String::new()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(self.path(&format!("{folder}/")))? {
                let entry = entry?;
                let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
                match entry.file_type()?.is_dir() {
                    _ if mounts.contains(&path) => {}
                    true => folders.push(path),
                    false => files.push(path),
                }
            }
        }
        files.sort();
        Ok(files)
    }

    fn read(&self, file: &str) -> String {
        let path = format!("/proc/{}/{file}", self.pid);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("failed to read {path}: {error}"))
    }
}

/// A paused container, which is resumed when this is dropped.
pub struct Frozen(Container);

impl Drop for Frozen {
    fn drop(&mut self) {
        self.0.signal(Signal::CONT);
    }
}

/// The runtime's id of a running container of a pod.
fn id(pod: &Value, name: &str) -> Option<String> {
    let containers = pod["status"]["containerStatuses"].as_array()?;
    let container = containers.iter().find(|container| container["name"] == name)?;
    let is_running = !container["state"]["running"].is_null();
    let (_, id) = container["containerID"].as_str().filter(|_| is_running)?.split_once("://")?;
    Some(id.to_owned())
}

/// `NSpid` lists the ids of a process, from the outermost process namespace to its own.
fn is_first_of_its_namespace(status: &str) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    let numbers: Vec<&str> = line.split_whitespace().collect();
    numbers.len() > 1 && numbers.last() == Some(&"1")
}

/// Path and options of each line of a `mountinfo`.
fn mounts(text: &str) -> Vec<(String, String)> {
    let mount = |line: &str| {
        let mut words = line.split(' ').skip(4);
        Some((words.next()?.to_owned(), words.next()?.to_owned()))
    };
    text.lines().filter_map(mount).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_container_has_an_id_while_it_runs() {
        let pod = |state: Value| json!({ "status": { "containerStatuses": [{ "name": "loader", "state": state, "containerID": "containerd://abc" }] } });
        assert_eq!(id(&pod(json!({ "running": {} })), "loader").as_deref(), Some("abc"));
        assert_eq!(id(&pod(json!({ "running": {} })), "reporter"), None);
        assert_eq!(id(&pod(json!({ "waiting": {} })), "loader"), None);
    }

    #[test]
    fn the_first_process_is_number_one_inside() {
        assert!(is_first_of_its_namespace("Name:\ta\nNSpid:\t4711\t1\n"));
        assert!(!is_first_of_its_namespace("NSpid:\t4711\t7\n"));
        assert!(!is_first_of_its_namespace("NSpid:\t1\n"));
    }

    #[test]
    fn a_mount_has_a_path_and_options() {
        let text = "36 35 98:0 /mnt1 /volume ro,noatime master:1 - ext3 /dev/root rw\n";
        assert_eq!(mounts(text), [("/volume".to_owned(), "ro,noatime".to_owned())]);
    }

    #[test]
    fn this_process_has_a_status_and_an_environment() {
        let this = Container { pid: std::process::id() };
        let usage = this.usage();
        assert!(usage.anonymous > 0 && usage.descriptors > 2 && usage.threads > 0, "{usage}");
        assert_eq!(this.status("NoNewPrivs").len(), 1);
        assert!(this.mounts().iter().any(|(path, _)| path == "/"));
        assert!(this.path("/proc").starts_with("/proc"));
    }
}
