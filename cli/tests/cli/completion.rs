//! Completion as users have it: each shell reads its script and is asked what it offers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use portcullis_testkit::skip;

use crate::portcullis;
use crate::status::write_status;

/// The folders of shells.
const PATH: &str = "/usr/bin:/bin:/usr/local/bin";

/// Calls the function of bash as readline does, with the words that it makes of a line.
const BASH: &str = r#"
source <(portcullis completion bash)
ask() {
    COMP_WORDS=(portcullis "$@")
    COMP_CWORD=$#
    _portcullis
    local IFS=' '
    echo "${COMPREPLY[*]}"
}
"#;

/// Calls the function of zsh, with functions that print what they get in place of those of its completion system.
const ZSH: &str = r#"
compdef() { }
compset() { PREFIX=${PREFIX#*=} }
_files() { echo files }
_describe() { print -r -- ${(P)argv[-1]} }
source <(portcullis completion zsh)
ask() {
    words=(portcullis "$@")
    CURRENT=$#words
    PREFIX=$words[-1]
    _portcullis || echo
}
"#;

/// Asks fish itself. Descriptions are after a tab.
const FISH: &str = r#"
portcullis completion fish | source
function ask
    echo (complete -C "portcullis $argv" | string replace -r '\t.*' '')
end
"#;

/// What a shell prints for the questions of a script.
fn asked(shell: &str, script: &str, questions: &str, folder: &Path) -> Vec<String> {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_portcullis"));
    let path = format!("{}:{PATH}", program.parent().expect("a folder").display());
    let mut command = Command::new(shell);
    command.env_clear().env("PATH", path).env("HOME", folder).env("TERM", "dumb").current_dir(folder);
    // A busy machine may take longer than users wait.
    command.env("PORTCULLIS_COMPLETION_TIMEOUT", "10m");
    let output = command.args(["-c", &format!("{script}\n{questions}")]).output().expect("runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    assert_eq!(text(output.stderr), "", "completion is silent");
    text(output.stdout).lines().map(str::to_owned).collect()
}

/// Whether this machine has the shell; if not, the test counts as skipped.
fn has(shell: &str) -> bool {
    let is_there = PATH.split(':').any(|folder| Path::new(folder).join(shell).exists());
    if !is_there {
        skip(shell);
    }
    is_there
}

/// A folder with a manifest of two policies, a kubeconfig of a cluster that does not exist, and the folder `my policies`, which has been
/// served.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    write_status(&folder.path().join("my policies"));
    let manifest = ["first", "second"].map(|name| {
        format!("{{apiVersion: policies.portcullis.dev/v1alpha1, kind: ClusterPolicy, metadata: {{name: {name}}}}}\n")
    });
    fs::write(folder.path().join("two.yaml"), manifest.join("---\n")).expect("writes");
    fs::write(folder.path().join("config"), crate::cluster::NOWHERE).expect("writes");
    let contexts = ["admin@kind", "arn:aws:eks:eu-west-1:1:cluster/a", "arn:aws:eks:eu-west-1:2:cluster/b"];
    let contexts = contexts.map(|name| format!("- {{name: \"{name}\", context: {{cluster: c, user: u}}}}\n"));
    fs::write(folder.path().join("many"), format!("contexts:\n{}", contexts.concat())).expect("writes");
    folder
}

#[test]
fn bash_completes_names_of_policies_and_what_else_may_come() {
    let folder = folder();
    let questions = r#"
ask get --dir "'my policies'" ''
ask get --dir my\\\ policies no
ask get --dir = '"my policies"' -n team-a ''
ask describe --dir '~/my\ policies' cluster/
ask get --output = js
ask eval two.yaml pod.json --policy ''
ask hist
ask get --context '' --kubeconfig config
ask get --kubeconfig config --context ''
ask get --kubeconfig many --context arn : aws : eks : eu-
ask get --kubeconfig many --context = arn : aws :
ask get --kubeconfig many --context "'arn:aws:"
ask get --kubeconfig many --context admin @ k
ask get --kubeconfig many --context = admin @
ask get --kubeconfig config ''
ask get --dir nowhere ''
ask run ''
"#;
    let wanted = [
        "no-privileged required-labels",
        "no-privileged",
        "required-labels",
        "cluster/no-privileged",
        "json",
        "first second",
        "history",
        "",
        "shop",
        "eu-west-1:1:cluster/a eu-west-1:2:cluster/b",
        "eks:eu-west-1:1:cluster/a eks:eu-west-1:2:cluster/b",
        "arn:aws:eks:eu-west-1:1:cluster/a arn:aws:eks:eu-west-1:2:cluster/b",
        "@kind",
        "@kind",
        "",
        "",
        "",
    ];
    assert_eq!(asked("bash", BASH, questions, folder.path()), wanted);
}

#[test]
fn zsh_completes_with_descriptions() {
    if !has("zsh") {
        return;
    }
    let folder = folder();
    let questions = r#"
ask get --dir "'my policies'" ''
ask get --dir '~/my\ policies' --output=js
ask get --dir nowhere ''
ask run ''
"#;
    let wanted = [
        "no-privileged:cluster/no-privileged required-labels:namespaced/team-a/required-labels",
        "json:JSON objects",
        "",
        "files",
    ];
    assert_eq!(asked("zsh", ZSH, questions, folder.path()), wanted);
}

#[test]
fn fish_completes_names_of_policies_and_files() {
    if !has("fish") {
        return;
    }
    let folder = folder();
    let questions = r#"
ask "get --dir 'my policies' "
ask "get --dir='my policies' no"
ask "get --output=js"
ask "impact two.yaml --policy "
ask "get --dir nowhere "
ask "check tw"
ask "get --kubeconfig=con"
"#;
    let wanted = [
        "no-privileged required-labels",
        "no-privileged",
        "--output=json",
        "first second",
        "",
        "two.yaml",
        "--kubeconfig=config",
    ];
    assert_eq!(asked("fish", FISH, questions, folder.path()), wanted);
}

#[test]
fn the_program_answers_every_shell_in_one_form() {
    let folder = folder();
    let complete = |words: &[&str]| {
        let printed = portcullis(folder.path(), &[&["__complete", "--"], words].concat());
        assert_eq!((printed.code, printed.err.as_str()), (Some(0), ""), "{words:?}");
        printed.out
    };
    let names = "no-privileged\tcluster/no-privileged\nrequired-labels\tnamespaced/team-a/required-labels\n:4\n";
    for command in ["get", "describe", "history"] {
        assert_eq!(complete(&[command, "--dir", "my policies", ""]), names, "{command}");
    }
    assert_eq!(complete(&["run", ""]), ":0\n", "files");
    for nothing in
        [&["rollback", "--kubeconfig", "config", ""][..], &["get", "--kubeconfig", "nowhere", ""], &["x", ""]]
    {
        assert_eq!(complete(nothing), ":4\n", "{nothing:?}");
    }
    for shell in ["elvish", "powershell"] {
        let script = portcullis(folder.path(), &["completion", shell]).out;
        assert!(script.contains("describe") && !script.contains("__complete"), "{script}");
    }
    let kubectl = portcullis(folder.path(), &["completion", "kubectl"]).out;
    assert!(kubectl.starts_with("#!/bin/sh\n") && kubectl.contains("exec kubectl-portcullis __complete"), "{kubectl}");
}
