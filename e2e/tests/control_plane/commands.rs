//! The commands of `cargo xtask cluster`.

use std::process::{Command, Output};

use serde_json::Value;

use crate::all_running;

/// The commands on one cluster, which is always taken down at the end.
struct Commands {
    name: String,
}

impl Commands {
    fn run(&self, command: &str, args: &[&str]) -> Output {
        let mut run = Command::new(env!("CARGO_BIN_EXE_portcullis-e2e"));
        run.arg(command).args(["--name", &self.name]).args(args).output().unwrap()
    }

    fn ok(&self, command: &str, args: &[&str]) -> String {
        let output = self.run(command, args);
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The status of the cluster; `None` if it does not exist.
    fn status(&self) -> Option<Value> {
        let output =
            Command::new(env!("CARGO_BIN_EXE_portcullis-e2e")).args(["status", "-o", "json"]).output().unwrap();
        let all: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        all.into_iter().find(|one| one["name"] == self.name)
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        self.run("down", &[]);
    }
}

#[test]
#[ignore = "starts a cluster"]
fn a_cluster_stays_until_it_is_taken_down() {
    let commands = Commands { name: format!("stays-{}", std::process::id()) };
    let up = commands.ok("up", &[]);
    assert!(up.starts_with(&format!("cluster {} is up after ", commands.name)), "{up}");
    let kubeconfig = up.lines().find_map(|line| line.strip_prefix("export KUBECONFIG=")).unwrap();
    assert!(std::path::Path::new(kubeconfig).is_file());

    // The process that started it has ended.
    assert!(commands.ok("kubectl", &["--", "get", "namespaces"]).contains("kube-system"));
    assert_eq!(commands.status().unwrap()["state"], "up");
    assert!(commands.ok("up", &[]).contains("is up already"));
    let other = commands.run("up", &["--apiservers", "2"]);
    assert!(String::from_utf8_lossy(&other.stderr).contains("has 1 API server"), "{other:?}");

    let seen = all_running().into_iter().find(|one| one.name == commands.name).unwrap();
    assert_eq!(commands.ok("down", &[]), format!("down: {}\n", commands.name));
    assert_eq!(commands.status(), None);
    assert!(!std::path::Path::new(kubeconfig).exists() || seen.has_successor().unwrap());
    assert_eq!(commands.ok("down", &[]), "there was no such cluster\n");
    assert!(!commands.run("kubectl", &["--", "get", "namespaces"]).status.success());
}

#[test]
#[ignore = "starts a cluster"]
fn a_component_that_ended_is_told() {
    let commands = Commands { name: format!("limps-{}", std::process::id()) };
    let up: Value = serde_json::from_str(&commands.ok("up", &["--output", "json"])).unwrap();
    let controllers = up["processes"].as_array().unwrap().iter().find(|one| one["name"] == "kube-controller-manager");
    let pid = controllers.unwrap()["pid"].to_string();
    assert!(Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
    let degraded = || commands.status().filter(|status| status["state"] == "degraded");
    portcullis_e2e::eventually("the state degraded", degraded);
    let again = commands.run("up", &[]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("have ended"), "{again:?}");
}
