//! Nothing of a cluster is left after its end, and not for long after a crash.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use portcullis_e2e::{Cluster, Health, Name, Options, Running, eventually};

use crate::{all_running, cluster, fresh};

/// The ids of all processes that have this folder in their command line, as all processes of its cluster do.
fn processes_of(folder: &Path) -> Vec<u32> {
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let needle = format!("{}/", folder.display());
    pids.filter(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&needle)
    })
    .collect()
}

/// The number of routes to the addresses of this cluster.
fn routes_to(cluster: &Running) -> usize {
    let block = cluster.api_servers[0].trim_start_matches("https://").split(".1:").next().unwrap().to_owned();
    let output = Command::new("ip").args(["route", "show", "table", "local"]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).lines().filter(|line| line.contains(&format!(" {block}."))).count()
}

fn running(name: &str) -> Option<Running> {
    all_running().into_iter().find(|one| one.name == name)
}

fn folder_of(cluster: &Running) -> PathBuf {
    cluster.kubeconfig.parent().unwrap().to_owned()
}

#[test]
#[ignore = "starts a cluster"]
fn the_end_of_a_cluster_leaves_nothing() {
    let name: Name = format!("ends-{}", std::process::id()).parse().unwrap();
    let cluster = Cluster::start(&Options { name: Some(name.clone()), ..Options::default() }).unwrap();
    let seen = running(name.as_str()).unwrap();
    assert_eq!((seen.state, seen.processes.len(), seen.owner), (Health::Up, 3, Some(std::process::id())));
    assert_eq!(processes_of(cluster.folder()).len(), 3);

    drop(cluster);
    let left = (processes_of(&folder_of(&seen)), folder_of(&seen).exists(), routes_to(&seen));
    assert!(left == (vec![], false, 0) || seen.has_successor().unwrap(), "{left:?}");
}

#[test]
#[ignore = "starts a cluster"]
fn a_crash_leaves_no_process_and_the_next_start_removes_the_rest() {
    // Another process starts a cluster, and is killed before it is up.
    let name = format!("crashes-{}", std::process::id());
    let mut owner = Command::new(env!("CARGO_BIN_EXE_portcullis-e2e"))
        .args(["up", "--name", &name])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let seen = eventually("two processes", || running(&name).filter(|seen| seen.processes.len() >= 2));
    owner.kill().unwrap();
    owner.wait().unwrap();
    assert_ne!(seen.state, Health::Abandoned);

    let folder = folder_of(&seen);
    // Another test may have started a cluster in the meantime, which removes what is left and may use the same folder.
    let is_gone =
        |left: Option<&Running>| left.is_none_or(|left| left.processes.iter().all(|one| one.memory.is_none()));
    eventually("the end of its processes", || is_gone(running(&name).as_ref()).then_some(()));
    assert!(running(&name).is_none_or(|left| left.state == Health::Abandoned));

    let next = fresh();
    assert_eq!(running(&name), None);
    if next.folder() != folder && !folder.exists() {
        assert_eq!(processes_of(&folder), Vec::<u32>::new());
    }
}

#[test]
#[ignore = "starts a cluster"]
fn a_cluster_that_cannot_start_leaves_nothing() {
    let name: Name = format!("fails-{}", std::process::id()).parse().unwrap();
    let cluster = cluster();
    let taken = Options { name: Some(name.clone()), ..Options::default() };
    let first = Cluster::start(&taken).unwrap();
    let error = Cluster::start(&taken).err().unwrap();
    assert!(error.to_string().contains("there is one of this name"), "{error}");
    drop(first);
    assert_eq!(running(name.as_str()), None);
    cluster.kubectl(["get", "namespaces"]).expect("a cluster beside it");
}
