//! One command runs the whole pod on a folder.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use portcullis_tests::{Client, Folder, LIMIT, Launch, Process, Program, eventually, program};
use rustix::process::Signal;
use serde_json::Value;

use crate::tool::{copy_examples, run, written};

/// Waits for a line of standard output or error that contains this text.
pub(crate) fn wait_line(tool: &Process, text: &str) -> String {
    eventually(&format!("a line with {text:?}"), || {
        let lines = tool.lines();
        assert!(tool.is_alive(), "it has ended:\n{}", lines.join("\n"));
        lines.into_iter().find(|line| line.contains(text))
    })
}

pub(crate) fn start(dir: &Path) -> Process {
    start_with(dir, &[])
}

/// Starts `portcullis run` on a folder, with free ports and these flags. The time limit of policies is as long as an API server waits by
/// default, so that they do not time out on a busy machine.
pub(crate) fn start_with(dir: &Path, flags: &[&str]) -> Process {
    let dir = dir.display().to_string();
    let args = ["run", &dir, "--address", "127.0.0.1:0", "--probe-address", "127.0.0.1:0"];
    Process::start(Launch {
        name: "portcullis run".to_owned(),
        program: program(Program::Cli),
        args: args.iter().chain(flags).map(Into::into).collect(),
        env: vec![("PORTCULLIS_POLICY_TIMEOUT".to_owned(), "10s".to_owned())],
        wrapper: Vec::new(),
        user: None,
    })
}

/// A client for the address that the tool prints, which trusts the tool's own authority like the printed curl command.
pub(crate) fn client(tool: &Process, dir: &Path) -> Client {
    let line = wait_line(tool, "Ready after");
    let address = line.rsplit_once("https://").and_then(|(_, address)| address.trim().parse().ok());
    let address = address.unwrap_or_else(|| panic!("no address in {line:?}"));
    let authority = fs::read_to_string(dir.join(".portcullis/tls/ca.crt")).expect("it is there");
    Client::trusting(address, &authority)
}

fn ask(client: &Client, dir: &Path, id: &str, request: &str) -> Value {
    let request = fs::read(dir.join("requests").join(request)).expect("it is there");
    let answer = client.post(&format!("/validate/{id}"), request).expect("answers");
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["response"].clone()
}

fn edit(dir: &Path, file: &str, from: &str, to: &str) {
    let path = dir.join(file);
    let text = fs::read_to_string(&path).expect("it is there");
    assert!(text.contains(from), "no {from:?} in {text}");
    // Writes the file in place, like many editors.
    fs::write(&path, text.replace(from, to)).expect("it can be written");
}

const LABELS: &str = "namespaced/default/required-labels";

/// The child processes of a process.
fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    children.flat_map(|text| text.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<_>>()).collect()
}

#[test]
fn promise_one_command_runs_the_pod_on_a_folder() {
    let folder = Folder::empty();
    let dir = folder.path("examples");
    fs::create_dir(&dir).expect("a folder");
    copy_examples(&dir);
    let tool = start(&dir);
    let caller = client(&tool, &dir);
    assert!(wait_line(&tool, "curl ").contains("/validate/"));
    let line = wait_line(&tool, "Status: ");
    let (_, command) = line.split_once("Status: ").expect("it is in the line");
    let (command, _) = command.split_once(" · ").expect("the logs come next");
    let pasted = Command::new("sh").args(["-c", command]).output().expect("it runs");
    assert!(pasted.status.success() && written(&pasted).contains("required-labels"), "{command}: {}", written(&pasted));

    // The policies answer.
    assert_eq!(ask(&caller, &dir, "cluster/no-privileged", "pod-ok.json")["allowed"], true);
    let denied = ask(&caller, &dir, "cluster/no-privileged", "pod-privileged.json");
    assert_eq!(
        denied["status"]["message"],
        "privileged containers are not allowed: container metrics, init container migrate"
    );
    assert!(ask(&caller, &dir, "cluster/default-resources", "pod-without-resources.json")["patch"].is_string());

    // After an edit, the answer comes from the new settings.
    let message = || ask(&caller, &dir, LABELS, "pod-ok.json")["status"]["message"].clone();
    assert_eq!(message(), Value::Null);
    edit(&dir, "required-labels.yaml", "      - team\n", "      - team\n      - cost-center\n");
    eventually("the new settings to answer", || (message() == "missing labels: cost-center").then_some(()));

    // While an edit is broken, the old version answers, and the status says why.
    edit(&dir, "required-labels.yaml", "    labels:\n", "    labels: []\n    ignored:\n");
    let line = wait_line(&tool, "SettingsInvalid; `");
    assert_eq!(message(), "missing labels: cost-center");
    let command = line.split('`').nth(1).expect("a command is in the line");
    eventually("the command of that line to say why", || {
        let pasted = Command::new("sh").args(["-c", command]).output().expect("it runs");
        (pasted.status.success() && written(&pasted).contains("SettingsInvalid")).then_some(())
    });
    let dir_text = dir.display().to_string();
    eventually("the status to say why", || {
        let output = run(["describe", "required-labels", "--dir", &dir_text]);
        let text = written(&output);
        (output.status.success() && text.contains("ServingPrevious") && text.contains("SettingsInvalid")).then_some(())
    });
    let table = written(&run(["get", "--dir", &dir_text]));
    assert!(table.contains("required-labels") && table.contains("ServingPrevious"), "{table}");

    // After a kill, no program is left behind, and a restart serves the old version again.
    let programs = children(tool.pid());
    assert!(programs.len() >= 3, "{programs:?}");
    tool.signal(Signal::KILL);
    tool.wait_for_end(LIMIT);
    let is_there = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.starts_with("Name:\tportcullis") && !status.contains("State:\tZ")
    };
    eventually("the programs to end with the tool", || (!programs.iter().any(is_there)).then_some(()));
    tool.start_again();
    let caller = eventually("the tool to be ready again", || {
        let ready = tool.lines().iter().filter(|line| line.contains("Ready after")).count();
        (ready == 2).then(|| last_client(&tool, &dir))
    });
    let message = || ask(&caller, &dir, LABELS, "pod-ok.json")["status"]["message"].clone();
    assert_eq!(message(), "missing labels: cost-center");

    // Once the file is mended, the new version answers.
    fs::copy(crate::tool::examples().join("required-labels.yaml"), dir.join("required-labels.yaml")).expect("copies");
    eventually("the mended version to answer", || (message() == Value::Null).then_some(()));
    eventually("the status to be well again", || {
        let text = written(&run(["get", "required-labels", "--dir", &dir_text]));
        text.contains("Active").then_some(())
    });

    // Ctrl-C stops everything, in order.
    let programs = children(tool.pid());
    tool.signal(Signal::INT);
    assert_eq!(tool.wait_for_end(LIMIT).code(), Some(0), "{}", tool.lines().join("\n"));
    eventually("no program to be left", || (!programs.iter().any(is_there)).then_some(()));
    // Everything that the tool wrote is in one folder, which git ignores.
    for name in ["volume/manifest.json", "status", "logs", "tls/ca.crt", ".gitignore"] {
        assert!(dir.join(".portcullis").join(name).exists(), "no {name}");
    }
}

fn last_client(tool: &Process, dir: &Path) -> Client {
    let lines = tool.lines();
    let line = lines.iter().rfind(|line| line.contains("Ready after")).expect("there is one");
    let address = line.rsplit_once("https://").and_then(|(_, address)| address.trim().parse().ok());
    let authority = fs::read_to_string(dir.join(".portcullis/tls/ca.crt")).expect("it is there");
    Client::trusting(address.unwrap_or_else(|| panic!("no address in {line:?}")), &authority)
}

#[test]
fn promise_a_program_that_ends_is_started_again() {
    let folder = Folder::empty();
    let dir = folder.path("examples");
    fs::create_dir(&dir).expect("a folder");
    copy_examples(&dir);
    let tool = start(&dir);
    let caller = client(&tool, &dir);
    for _ in 0..2 {
        let before = children(tool.pid());
        for pid in &before {
            let pid = i32::try_from(*pid).ok().and_then(rustix::process::Pid::from_raw).expect("a process id");
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        eventually("others in their place", || {
            let now = children(tool.pid());
            (now.len() >= before.len() && now.iter().all(|pid| !before.contains(pid))).then_some(())
        });
        portcullis_tests::eventually_within(LIMIT + Duration::from_secs(30), "answers on the same address", || {
            let request = fs::read(dir.join("requests/pod-privileged.json")).expect("it is there");
            let answer = caller.post("/validate/cluster/no-privileged", request).ok()?;
            (answer.status == 200 && answer.body.contains("privileged containers are not allowed")).then_some(())
        });
    }
    tool.signal(Signal::TERM);
    assert_eq!(tool.wait_for_end(LIMIT).code(), Some(0), "{}", tool.lines().join("\n"));
}
