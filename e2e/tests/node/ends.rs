//! Nothing of a node is left after its end, and not for long after a crash.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use portcullis_e2e::{Cache, Cluster, Health, Name, Options, Running, eventually};

use crate::scene::Scene;

fn running(name: &str) -> Option<Running> {
    Running::list(&Cache::from_env().unwrap()).unwrap().into_iter().find(|one| one.name == name)
}

/// The id of a process of a cluster.
fn process(cluster: &Running, name: &str) -> Option<u32> {
    cluster.processes.iter().find(|process| process.name == name).map(|process| process.pid)
}

/// The process namespace of a process. While it is open, the kernel does not give its number to another namespace.
fn namespace(pid: u32) -> File {
    File::open(format!("/proc/{pid}/ns/pid")).unwrap()
}

/// All processes in this process namespace of a node. Those of pods have namespaces of their own.
fn processes_in(wanted: &File) -> Vec<u32> {
    let wanted = wanted.metadata().unwrap().ino();
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let number = |pid| fs::metadata(format!("/proc/{pid}/ns/pid")).ok().map(|namespace| namespace.ino());
    pids.filter(|&pid| number(pid) == Some(wanted)).collect()
}

/// All processes in a control group and in those below it.
fn processes_of(group: &Path) -> Vec<String> {
    let mut found: Vec<_> =
        fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default().lines().map(str::to_owned).collect();
    for entry in fs::read_dir(group).unwrap().flatten().filter(|entry| entry.path().is_dir()) {
        found.extend(processes_of(&entry.path()));
    }
    found
}

/// The control groups of the node of a cluster in this slot that the process `owner` started.
fn groups(slot: &str, owner: u32) -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let below = fs::read_dir(root).unwrap().flatten().map(|entry| entry.path());
    let name = format!("portcullis-{slot}-{owner}");
    [root.to_owned()].into_iter().chain(below).map(|folder| folder.join(&name)).filter(|group| group.exists()).collect()
}

fn has_interface(slot: &str) -> bool {
    let output = Command::new("ip").args(["link", "show", &format!("portcullis-{slot}")]).output().unwrap();
    output.status.success()
}

fn slot_of(cluster: &Running) -> (PathBuf, String) {
    let folder = cluster.kubeconfig.parent().unwrap().to_owned();
    let slot = folder.file_name().unwrap().to_str().unwrap().to_owned();
    (folder, slot)
}

#[test]
#[ignore = "starts a cluster"]
fn the_end_of_a_cluster_leaves_nothing_of_its_node() {
    let name: Name = format!("node-ends-{}", std::process::id()).parse().unwrap();
    let options = Options { name: Some(name.clone()), node: true, ..Options::default() };
    let cluster = Cluster::start(&options).unwrap();
    assert!(Cluster::own_network(), "a link to a node is no way out");
    {
        let scene = Scene::new(&cluster, "ends");
        scene.make_pod("one");
    }
    let seen = running(name.as_str()).unwrap();
    assert_eq!((seen.state, seen.node), (Health::Up, true));
    let (folder, slot) = slot_of(&seen);
    let node = namespace(process(&seen, "node-init").unwrap());
    // The init process, containerd, kubelet, kube-proxy, and the pod's shim.
    assert!(processes_in(&node).len() >= 5, "{:?}", processes_in(&node));
    assert!(has_interface(&slot));
    // The pod's program, and the pause process that holds its namespaces.
    let of_pods = groups(&slot, std::process::id()).iter().map(|group| processes_of(group).len()).max();
    assert_eq!(of_pods, Some(2));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&folder.display().to_string()), "mounts of the node are its own:\n{mounts}");

    drop(cluster);
    // The kernel needs a while to remove namespaces.
    eventually("the end of all processes of the node", || processes_in(&node).is_empty().then_some(()));
    eventually("the end of its interface", || (!has_interface(&slot) || seen.has_successor().unwrap()).then_some(()));
    let left = (groups(&slot, std::process::id()), folder.exists());
    assert!(left == (vec![], false) || seen.has_successor().unwrap(), "{left:?}");
}

#[test]
#[ignore = "starts a cluster"]
fn a_crash_leaves_no_process_of_a_node_and_the_next_start_removes_the_rest() {
    let name = format!("node-crashes-{}", std::process::id());
    let mut owner = Command::new(env!("CARGO_BIN_EXE_portcullis-e2e"))
        .args(["up", "--node", "--name", &name])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let begun = eventually("a kubelet", || running(&name).filter(|seen| process(seen, "kubelet").is_some()));
    let node = namespace(process(&begun, "node-init").unwrap());
    let (folder, slot) = slot_of(&begun);
    owner.kill().unwrap();
    owner.wait().unwrap();
    eventually("the end of all processes of the node", || processes_in(&node).is_empty().then_some(()));
    assert!(running(&name).is_none_or(|left| left.state == Health::Abandoned));

    let next = Cluster::start(&Options::default()).unwrap();
    assert_eq!(running(&name), None);
    assert_eq!(groups(&slot, owner.id()), Vec::<PathBuf>::new());
    if next.folder() != folder && !folder.exists() {
        eventually("the end of its interface", || (!has_interface(&slot)).then_some(()));
    }
}
