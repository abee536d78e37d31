//! Section 13, without the rows that need an API server: what code can do after it has broken out of its instance.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use portcullis_tests::{Folder, Pod, PodSetup, Policy, Program, Review, Secret, skip};
use serde_json::Value;

const DENIES: &str = "cluster/denies";

/// The outcome of each attempt of the probe inside the evaluator.
fn attempts(pod: &Pod) -> BTreeMap<String, String> {
    pod.evaluator().wait_for_log("the end of the probe", |line| line["attempt"] == "environment");
    let lines = pod.evaluator().logs();
    let probes = lines.iter().filter(|line| line["message"] == "probe");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    probes.map(|line| (text(&line["attempt"]), text(&line["outcome"]))).collect()
}

fn folder() -> Folder {
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("denies").guest("always_deny"));
    folder
}

fn probed(setup: PodSetup) -> Pod {
    let pod = setup.fail_points(Program::Evaluator, "evaluator.probe_inside=error").start();
    pod.wait_current(DENIES, 1);
    pod
}

#[test]
fn fault_x01_code_inside_the_evaluator_looks_for_a_way_out() {
    let folder = folder();
    let secret = Secret::planted_in("environment");
    // Only the loader may have this.
    let pod = probed(Pod::on(&folder).env(Program::Loader, "REGISTRY_PASSWORD", secret.text()));
    if pod.metric("portcullis_landlock_enforced") < 1.0 || pod.metric("portcullis_seccomp_enforced") < 1.0 {
        // The evaluator itself warns about it. The rest of the test applies to what the kernel does enforce.
        let told = |line: &&Value| line["level"] == "WARN" && line["message"] == "shut in only in part";
        let logs = pod.evaluator().logs();
        assert!(logs.iter().any(|line| line["level"] == "WARN" && line["landlock"].is_string()), "{logs:?}");
        skip(&format!("in part, as this kernel has no Landlock or no seccomp: {:?}", logs.iter().find(told)));
    }
    let attempts = attempts(&pod);
    let landlock = pod.metric("portcullis_landlock_enforced") >= 1.0;
    let seccomp = pod.metric("portcullis_seccomp_enforced") >= 1.0;
    // The filter refuses connections, listeners and programs; Landlock files, and again connections and programs.
    for (attempt, is_due) in [
        ("connect", seccomp || landlock),
        ("listen", seccomp || landlock),
        ("datagram", seccomp),
        ("exec", seccomp || landlock),
        ("exec itself", seccomp || landlock),
        ("write", landlock),
        ("write to the volume", landlock),
        ("write beside the private copies", landlock),
        ("write to shared memory", landlock),
        ("read", landlock),
        ("look around", landlock),
        ("look for processes", landlock),
    ] {
        let outcome = attempts.get(attempt).unwrap_or_else(|| panic!("no {attempt} in {attempts:?}"));
        assert!(!is_due || outcome.starts_with("refused: "), "{attempt}: {outcome}");
        assert!(!outcome.contains("refused: Connection refused"), "{attempt} got as far as the network");
    }
    assert_eq!(attempts["write a private copy"], "written", "what it needs it may do");
    assert!(attempts["token"].starts_with("refused: "), "{attempts:?}");
    assert_eq!(attempts["environment"], "nothing", "no credential in the environment");

    // From outside, every thread has no new privileges, and has the filter.
    for thread in fs::read_dir(format!("/proc/{}/task", pod.evaluator().pid())).expect("it runs").flatten() {
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        let value = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.map(|value| value.trim().to_owned()).unwrap_or_default()
        };
        if !status.is_empty() {
            assert_eq!(value("NoNewPrivs:"), "1", "{}", value("Name:"));
            assert!(!seccomp || value("Seccomp:") == "2", "{}", value("Name:"));
        }
    }
    assert!(!pod.ask(DENIES, &Review::pod()).verdict().allowed);
}

/// System calls that are on no list are refused for every user, and those that threads and connections need are not. Unit tests of the
/// filter try each number.
#[test]
fn fault_z19_system_calls_beyond_the_list() {
    let folder = folder();
    let pod = probed(Pod::on(&folder));
    if pod.metric("portcullis_seccomp_enforced") < 1.0 {
        skip("in part, as this kernel has no seccomp");
    } else {
        let attempts = attempts(&pod);
        let calls = ["mount", "open a file system", "handle of a process", "listen", "datagram", "exec"];
        for attempt in calls.into_iter().chain(["connect while sending"]) {
            let outcome = &attempts[attempt];
            assert_eq!(outcome, "refused: Operation not permitted (os error 1)", "{attempt}: {attempts:?}");
        }
    }
    // Everything that comes later still works: files of the volume, threads of the slow lane, connections, a swap.
    folder.put(&Policy::cluster("loops").guest("endless_loop").timeout(3));
    pod.wait_current("cluster/loops", 1);
    let verdict = pod.ask("cluster/loops", &Review::pod()).verdict();
    assert!(verdict.message.contains("EvaluationTimedOut"), "{verdict:?}");
    folder.put(&Policy::cluster("denies").denying("generation two"));
    pod.assert_recovered(DENIES, 2);
}

/// The evaluator's user cannot write to the volume, and neither can code inside the evaluator; it writes only its private copies.
#[test]
fn fault_x02_evaluator_writes_to_the_volume() {
    let folder = folder();
    let is_root = rustix::process::geteuid().is_root();
    let setup = Pod::on(&folder);
    let pod = probed(if is_root { setup.separate_users() } else { setup });
    let attempts = attempts(&pod);
    if is_root || pod.metric("portcullis_landlock_enforced") >= 1.0 {
        assert!(attempts["write to the volume"].starts_with("refused: "), "{attempts:?}");
    }
    if is_root {
        // The evaluator's user has no right to write there: everything belongs to the loader, and other users cannot write to it.
        let evaluator = fs::metadata(format!("/proc/{}", pod.evaluator().pid())).expect("it runs").uid();
        assert_not_writable(pod.volume().path(), evaluator);
    } else {
        skip("in part, as only root can run the evaluator as another user");
    }
    // The code that it runs is in a folder that only its own user can open.
    let private = fs::metadata(pod.path("private")).expect("it is there");
    assert_eq!(private.mode() & 0o077, 0, "the private folder is open to others");
    folder.put(&Policy::cluster("denies").denying("generation two"));
    pod.assert_recovered(DENIES, 2);
}

fn assert_not_writable(path: &Path, user: u32) {
    let metadata = fs::symlink_metadata(path).expect("it is there");
    assert_ne!(metadata.uid(), user, "{} is the evaluator's", path.display());
    assert!(metadata.is_symlink() || metadata.mode() & 0o022 == 0, "{} can be written by others", path.display());
    if metadata.is_dir() {
        for entry in fs::read_dir(path).expect("it is ours").flatten() {
            // Temporary files may have disappeared by now.
            if entry.path().exists() {
                assert_not_writable(&entry.path(), user);
            }
        }
    }
}
