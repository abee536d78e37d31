//! Messages about bad input name the thing, the cause and the next step; help has examples.

use std::fs;
use std::io::ErrorKind;
use std::thread;
use std::time::Duration;

use crate::portcullis;

fn refused(arguments: &[&str]) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let printed = portcullis(folder.path(), arguments);
    assert_eq!(printed.out, "", "{arguments:?}");
    (printed.code, printed.err)
}

#[test]
fn a_folder_that_is_not_there() {
    let (code, err) = refused(&["run", "nowhere"]);
    assert_eq!(code, Some(64));
    assert_eq!(err, "error: DIR: nowhere: No such file or directory (os error 2)\n");
}

#[test]
fn an_argument_that_is_none() {
    let (code, err) = refused(&["run", ".", "--adress", "x"]);
    assert_eq!(code, Some(64));
    assert!(err.contains("'--adress'") && err.contains("'--address'"), "{err}");
}

#[test]
fn programs_that_are_not_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let alone = folder.path().join("portcullis");
    fs::copy(env!("CARGO_BIN_EXE_portcullis"), &alone).expect("copies");
    let mut command = std::process::Command::new(&alone);
    command.args(["run", "."]).current_dir(folder.path()).env("PATH", "");
    let output = loop {
        match command.output() {
            // A child that another test starts at this moment may still hold the copy open for writing.
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => thread::sleep(Duration::from_millis(10)),
            output => break output.expect("runs"),
        }
    };
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        err.starts_with("error: portcullis-evaluator and portcullis-loader and portcullis-reporter found"),
        "{err}"
    );
    assert!(err.contains("`cargo build --package portcullis-evaluator && "), "{err}");
    assert!(!folder.path().join(".portcullis").exists(), "nothing is made before everything is there");
}

#[test]
fn no_status_and_where_there_is_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let nothing = portcullis(folder.path(), &["get"]);
    assert_eq!(nothing.code, Some(1));
    assert_eq!(
        nothing.err,
        "error: there is no kubeconfig, and . has no status as no pod has run on this folder; name a cluster with `--kubeconfig`, \
         start a pod with `portcullis run .`, or name the folder of a pod with `--dir`\n"
    );
    let named = portcullis(folder.path(), &["get", "--dir", "."]);
    assert!(named.err.starts_with("error: . has no status: no pod has run on this folder; start one"), "{}", named.err);
    fs::create_dir_all(folder.path().join("examples/.portcullis/status")).expect("makes");
    let hint = portcullis(folder.path(), &["describe", "x"]);
    assert!(hint.err.ends_with("or look at the one there is with `--dir examples`\n"), "{}", hint.err);
}

#[test]
fn nothing_to_judge_is_status_2() {
    let folder = tempfile::tempdir().expect("a folder");
    let (code, err) = refused(&["eval", "policy.yaml", "pod.json"]);
    assert_eq!(
        (code, err.as_str()),
        (Some(2), "error: failed to open policy.yaml: No such file or directory (os error 2)\n")
    );
    fs::write(folder.path().join("policy.yaml"), "kind: ConfigMap").expect("writes");
    let printed = portcullis(folder.path(), &["eval", "policy.yaml", "pod.json"]);
    assert_eq!(
        printed.err,
        "error: failed to take a policy from policy.yaml: it has no Policy or ClusterPolicy of \
         policies.portcullis.dev/v1alpha1\n"
    );
}

/// What the commands for modules refuse before they send any request.
#[test]
fn arguments_of_registries_that_make_no_sense() {
    for (arguments, setting) in [
        (&["pull", "registry://a.example/b:v1", "--source-ca", "nowhere"][..], "--source-ca: there is no file nowhere"),
        (&["pull", "registry://a.example/b:v1", "--sources", "nowhere"], "--sources: nowhere: failed to find nowhere"),
        (
            &["pull", "registry://a.example/b:v1", "--allow-http-host", "http://a"],
            "--allow-http-host: \"http://a\" is not a host",
        ),
        (&["pull", "registry://A B/c"], "want registry://host/repository:tag"),
        (&["verify", "registry://a.example/b:v1", "--verification", "nowhere"], "--verification: nowhere"),
        (&["verify", "registry://a.example/b:v1"], "--key <FILE>"),
        (&["inspect", "x.wasm", "--manifest", "-o", "json"], "cannot be used with"),
        (&["run", ".", "--source-ca", "nowhere"], "--source-ca: there is no file nowhere"),
    ] {
        let (code, err) = refused(arguments);
        assert_eq!(code, Some(64), "{arguments:?}: {err}");
        assert!(err.starts_with("error: ") && err.contains(setting), "{arguments:?}: {err}");
    }
}

#[test]
fn a_probe_port_without_room_for_the_next_two() {
    let (code, err) = refused(&["run", ".", "--probe-address", "127.0.0.1:65535"]);
    assert_eq!(code, Some(64));
    assert_eq!(err, "error: --probe-address: 65535 has no room for the next two ports\n");
}

#[test]
fn help_teaches_with_examples_and_completion_knows_the_commands() {
    let folder = tempfile::tempdir().expect("a folder");
    let of_policies = ["run", "get", "describe", "history", "diff", "rollback", "eval", "completion"];
    let of_modules = ["pull", "push", "inspect", "verify", "save", "load"];
    for command in of_policies.iter().chain(&of_modules) {
        let help = portcullis(folder.path(), &[command, "--help"]);
        assert_eq!(help.code, Some(0));
        assert!(help.out.contains("\nExamples:\n  "), "{}", help.out);
    }
    for command in of_modules {
        let help = portcullis(folder.path(), &[command, "--help"]).out;
        assert!(["Exit status: 0", "--docker-config", "--output <"].iter().all(|word| help.contains(word)), "{help}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = portcullis(folder.path(), &["completion", shell]);
        assert!(script.code == Some(0) && script.out.contains("describe"), "{shell}");
    }
    let script = portcullis(folder.path(), &["completion", "kubectl"]);
    assert!(script.out.starts_with("#!/bin/sh\n"), "{}", script.out);
    let words = portcullis(folder.path(), &["__complete", "--", "get", "-o", "y"]);
    assert_eq!(words.out, "yaml\n:4\n");
    let version = portcullis(folder.path(), &["version"]);
    assert_eq!(version.out, format!("portcullis {}\n", env!("CARGO_PKG_VERSION")));
}
