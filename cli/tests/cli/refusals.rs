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
    assert_eq!(err, "error: DIR: there is no folder nowhere\n");
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
        err.starts_with(
            "error: portcullis-evaluator and portcullis-loader and portcullis-reporter are neither beside "
        ),
        "{err}"
    );
    assert!(err.contains("`cargo install --locked --path evaluator && "), "{err}");
    assert!(!folder.path().join(".portcullis").exists(), "nothing is made before everything is there");
}

#[test]
fn no_status_and_where_there_is_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let nothing = portcullis(folder.path(), &["get"]);
    assert_eq!(nothing.code, Some(1));
    assert_eq!(
        nothing.err,
        "error: there is no kubeconfig, and . has no status: `portcullis run` has not served this folder yet; name a cluster with \
         `--kubeconfig`, serve the folder with `portcullis run .`, or name another folder with `--dir`\n"
    );
    let named = portcullis(folder.path(), &["get", "--dir", "."]);
    assert_eq!(
        named.err,
        "error: . has no status: `portcullis run` has not served this folder yet; start it with `portcullis run .`, or name another \
         folder with `--dir`\n"
    );
    let missing = portcullis(folder.path(), &["get", "--dir", "nowhere"]);
    assert_eq!((missing.code, missing.err.as_str()), (Some(64), "error: --dir: there is no folder nowhere\n"));
    fs::create_dir_all(folder.path().join("examples/.portcullis/status")).expect("makes");
    let hint = portcullis(folder.path(), &["describe", "x"]);
    assert!(hint.err.ends_with("or name the folder that it has served with `--dir examples`\n"), "{}", hint.err);
}

#[test]
fn nothing_to_evaluate_is_status_2() {
    let folder = tempfile::tempdir().expect("a folder");
    let (code, err) = refused(&["eval", "policy.yaml", "pod.json"]);
    assert_eq!(
        (code, err.as_str()),
        (Some(2), "error: failed to open policy.yaml: No such file or directory (os error 2)\n")
    );
    fs::write(folder.path().join("policy.yaml"), "kind: ConfigMap").expect("writes");
    let printed = portcullis(folder.path(), &["eval", "policy.yaml", "pod.json"]);
    let nothing = "error: no Policy or ClusterPolicy of policies.portcullis.dev/v1alpha1 in policy.yaml";
    assert_eq!(printed.err, format!("{nothing}\n"));
    // All that read policies say the same.
    let theirs = "{apiVersion: policies.kubewarden.io/v1, kind: ClusterAdmissionPolicy, metadata: {name: a}}";
    fs::write(folder.path().join("policy.yaml"), theirs).expect("writes");
    for arguments in [&["eval", "policy.yaml", "pod.json"][..], &["check", "policy.yaml"], &["impact", "policy.yaml"]] {
        let printed = portcullis(folder.path(), arguments);
        let hint = "; it has manifests of Kubewarden: `portcullis migrate kubewarden policy.yaml` translates them\n";
        assert_eq!((printed.code, printed.err), (Some(2), format!("{nothing}{hint}")), "{arguments:?}");
    }
    fs::create_dir(folder.path().join("ex")).expect("makes");
    for arguments in [&["eval", "ex", "pod.json"][..], &["impact", "ex"]] {
        let printed = portcullis(folder.path(), arguments);
        let hint = "error: ex is a folder; name one manifest in it (`portcullis check ex` reads a whole folder)\n";
        assert_eq!((printed.code, printed.err.as_str()), (Some(2), hint), "{arguments:?}");
    }
}

#[test]
fn a_reader_of_notes_that_goes_away_is_no_failure() {
    let folder = tempfile::tempdir().expect("a folder");
    let policy = "apiVersion: policies.kubewarden.io/v1\nkind: ClusterAdmissionPolicy\nmetadata: {name: a}\nspec:\n  module: registry://a.example/b:v1\n  \
                  rules: [{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [CREATE]}]\n";
    fs::write(folder.path().join("a.yaml"), policy).expect("writes");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_portcullis"));
    let output = command.current_dir(folder.path()).args(["migrate", "kubewarden", "a.yaml"]).stderr(writer).output();
    let output = output.expect("it starts");
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stdout).contains("kind: ClusterPolicy"));
}

#[test]
fn files_that_cannot_be_used_are_named_once_with_the_cause() {
    let folder = tempfile::tempdir().expect("a folder");
    let made = |name: &str, length: u64| {
        let file = fs::File::create(folder.path().join(name)).expect("creates");
        file.set_len(length).expect("it is sparse");
    };
    made("large.yaml", (16 << 20) + 1);
    made("large.wasm", (256 << 20) + 1);
    fs::write(folder.path().join("text.tar"), "\u{1b}[31m".repeat(200)).expect("writes");
    fs::create_dir(folder.path().join("folder")).expect("makes");
    let said = |arguments: &[&str]| portcullis(folder.path(), arguments).err;
    for arguments in
        [&["check", "large.yaml"][..], &["eval", "large.yaml", "x"], &["migrate", "kubewarden", "large.yaml"]]
    {
        assert_eq!(said(arguments), "error: failed to read large.yaml: it is larger than 16 MiB\n", "{arguments:?}");
    }
    let large = said(&["inspect", "large.wasm"]);
    assert_eq!(large.matches("it is longer than 256MiB").count(), 1, "{large}");
    assert_eq!(said(&["eval", "x.wasm", "folder"]), "error: folder is a folder; name one file\n");
    assert_eq!(said(&["save", "folder", "-f", "x.tar"]), "error: no policy in folder names a module in a registry\n");
    // Before anything is asked of the registry, which is not there.
    let lost = said(&["save", "registry://127.0.0.1:1/a:v1", "-f", "missing/x.tar"]);
    assert_eq!(lost, "error: failed to write missing/x.tar: No such file or directory (os error 2)\n");
    let damaged = said(&["load", "text.tar", "registry.example/mirror"]);
    assert!(
        damaged.starts_with("error: failed to read text.tar: it is not a tar archive, or it is damaged"),
        "{damaged}"
    );
    assert!(!damaged.contains('\u{1b}'), "no terminal takes commands from a file: {damaged:?}");
    assert_eq!(
        said(&["pull", "ftp://a.example/b"]),
        "error: ftp://a.example/b: modules do not come by \"ftp://\"; want registry://host/repository:tag\n"
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
        (&["verify", "registry://a.example/b:v1", "--key", "nowhere"], "--key: failed to read nowhere"),
        (
            &["verify", "registry://a.example/b:v1"],
            "name who must have signed it: --key, --verification, --issuer or --github-owner",
        ),
        (&["check", ".", "--sources", "nowhere"], "--sources: nowhere: failed to find nowhere"),
        (&["impact", "x.yaml", "--sources", "nowhere"], "--sources: nowhere: failed to find nowhere"),
        (&["eval", "x.yaml", "y.yaml", "--settings-path", "nowhere"], "--settings-path: failed to open nowhere"),
        (&["eval", "x.yaml", "y.yaml", "--settings-json", "{"], "--settings-json: it is not JSON"),
        (&["audit", "--kubeconfig", "nowhere"], "--kubeconfig: "),
        (&["run", ".", "--policies", "nowhere"], "--policies: nowhere"),
        (&["inspect", "x.wasm", "--manifest", "-o", "json"], "cannot be used with"),
        (&["run", ".", "--source-ca", "nowhere"], "--source-ca: there is no file nowhere"),
    ] {
        let (code, err) = refused(arguments);
        assert_eq!(code, Some(64), "{arguments:?}: {err}");
        assert!(err.starts_with("error: ") && err.contains(setting), "{arguments:?}: {err}");
    }
}

#[test]
fn a_folder_or_a_file_that_is_not_there_is_not_looked_for_in_a_registry() {
    let instead = "name a file that is there, or an artifact in a registry: registry://host/repository:tag";
    for (arguments, words) in [
        (&["inspect", "."][..], ". is a folder; name the module's file"),
        (&["pull", "nowhere.yaml"], &format!("there is no file nowhere.yaml; {instead}")),
        (&["inspect", "nowhere.wasm"], &format!("there is no file nowhere.wasm; {instead}")),
        (&["save", "nowhere.yaml", "-f", "o.tar"], &format!("there is no file nowhere.yaml; {instead}")),
    ] {
        assert_eq!(refused(arguments), (Some(1), format!("error: {words}\n")));
    }
    let instead = "name an artifact in a registry: registry://host/repository:tag";
    for (image, words) in [("nowhere.yaml", "there is no file nowhere.yaml"), (".", ". is a file or a folder")] {
        for arguments in [&["verify", image, "--key", "key.pub"][..], &["push", "policy.wasm", image]] {
            assert_eq!(refused(arguments), (Some(64), format!("error: IMAGE: {words}; {instead}\n")));
        }
    }
}

#[test]
fn a_probe_port_without_room_for_the_next_two() {
    let (code, err) = refused(&["run", ".", "--probe-address", "127.0.0.1:65535"]);
    assert_eq!(code, Some(64));
    assert_eq!(err, "error: --probe-address: 65535 has no room for the next two ports\n");
}

#[test]
fn help_teaches_with_examples() {
    let folder = tempfile::tempdir().expect("a folder");
    let of_policies = ["run", "get", "describe", "history", "diff", "rollback", "eval", "completion"];
    let of_modules = ["pull", "push", "inspect", "verify", "save", "load"];
    for command in of_policies.iter().chain(&of_modules) {
        let help = portcullis(folder.path(), &[command, "--help"]);
        assert_eq!(help.code, Some(0));
        assert!(help.out.contains("\nExamples:\n  "), "{}", help.out);
        assert_examples_fit(&help.out);
    }
    assert_examples_fit(&portcullis(folder.path(), &["--help"]).out);
    for command in of_modules {
        let help = portcullis(folder.path(), &[command, "--help"]).out;
        assert!(["Exit status: 0", "--docker-config", "--output <"].iter().all(|word| help.contains(word)), "{help}");
        assert_eq!(help.matches("Exit status").count(), 1, "{help}");
        let places = ["--output <", "\nRegistries:", "\nSigners:"].into_iter().filter_map(|word| help.find(word));
        assert!(places.is_sorted(), "the output stands below `Options`: {help}");
    }
    for command in
        ["run", "get", "describe", "history", "diff", "rollback", "eval", "check", "impact", "audit", "migrate"]
    {
        let help = portcullis(folder.path(), &[command, "--help"]).out;
        assert_eq!(help.matches("Exit status: 0").count(), 1, "{help}");
        assert!(help.split_whitespace().collect::<Vec<_>>().join(" ").contains("64 for a bad argument."), "{help}");
        let reads_folders = ["get", "describe", "history"].contains(&command);
        assert_eq!(help.contains("--dir <DIR>"), reads_folders, "{help}");
    }
    let version = portcullis(folder.path(), &["version"]);
    assert_eq!(version.out, format!("portcullis {}\n", env!("CARGO_PKG_VERSION")));
}

/// Asserts that no example is folded: each line begins with a command, or goes on with one that ended with a backslash.
fn assert_examples_fit(help: &str) {
    let examples = help.split_once("\nExamples:\n").expect("examples").1;
    let lines: Vec<_> = examples.lines().take_while(|line| !line.is_empty()).collect();
    for (line, before) in lines.iter().zip([&""].into_iter().chain(&lines)) {
        let is_command = ["portcullis ", "kubectl ", "source ", "chmod ", "ln ", "helm ", "curl "];
        let begins = is_command.iter().any(|command| line.trim_start().starts_with(command));
        assert!(begins || before.ends_with('\\'), "{line:?} is the rest of {before:?}: {help}");
    }
}
