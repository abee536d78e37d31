//! Section 7: how the evaluator notices that the volume has changed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use portcullis_tests::{Folder, Pod, Policy, Program, Review, eventually, heavy, one_round_in_time, skip};
use rustix::process::Signal;
use serde_json::Value;

use crate::volume_evaluator::{VICTIM, folder};

/// Edits the victim, and waits until the loader has published this generation.
fn publish(folder: &Folder, pod: &Pod, generation: i64) {
    folder.put(&Policy::cluster("victim").denying(&format!("generation {generation}")));
    eventually("the loader to publish", || (pod.volume().entry(VICTIM).generation == generation).then_some(()));
}

/// Whether this generation of the victim serves.
fn is_served(pod: &Pod, generation: i64) -> Option<()> {
    (pod.evaluator_state()?.current.get(VICTIM)?.generation == generation).then_some(())
}

#[test]
fn fault_v12_event_queue_overflows() {
    let _alone = heavy();
    let folder = folder();
    // Polling is so slow that it cannot find the change in time.
    let pod = Pod::on(&folder).evaluator("--poll-interval", "10m").start();
    pod.assert_recovered(VICTIM, 1);
    // More events than the kernel queues (fs.inotify.max_queued_events, usually 16384).
    let queue = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").expect("Linux has inotify");
    let count = queue.trim().parse::<u32>().expect("a number") + 4_000;
    let mut generation = 1;
    one_round_in_time(|round| {
        generation += 1;
        pod.canary().pause();
        pod.evaluator().signal(Signal::STOP);
        for number in 0..count {
            fs::write(pod.volume().path().join(format!("noise-{round}-{number}")), b"").expect("writes");
        }
        publish(&folder, &pod, generation);
        pod.evaluator().signal(Signal::CONT);
        pod.canary().resume();
        pod.recovers("the right set", || is_served(&pod, generation))
    });
    pod.assert_recovered(VICTIM, generation);
    assert_eq!(pod.ask(VICTIM, &Review::pod()).verdict().message, format!("generation {generation}"));
}

/// The limits of a user namespace on what watches files.
const WATCH_LIMITS: [&str; 2] = ["max_inotify_instances", "max_inotify_watches"];

/// The command that sets one of the limits to 0, in the user namespace in which it runs.
fn forbid_watches(limit: &str) -> String {
    format!("echo 0 > /proc/sys/user/{limit}")
}

/// Starts a pod with the evaluator in a user namespace of its own; `None` if that is not possible here. The poll interval beside a working
/// watch is long. Without a watch, the evaluator polls often.
fn pod_with_own_limits(folder: &Folder, before: &str) -> Option<Pod> {
    let script = format!("{before} && exec \"$0\" \"$@\"");
    let wrapper = ["unshare", "--user", "--map-root-user", "sh", "-c", &script];
    let possible = Command::new(wrapper[0]).args(&wrapper[1..]).arg("true").output();
    if !possible.is_ok_and(|output| output.status.success()) {
        skip("it needs user namespaces");
        return None;
    }
    Some(Pod::on(folder).evaluator("--poll-interval", "10m").through(Program::Evaluator, &wrapper).start())
}

/// Asserts that the evaluator says that it polls, and that it finds edits as soon as the row says. The victim is at generation 1 before.
fn assert_polls(folder: &Folder, pod: &Pod, limit: &str) {
    eventually("the metric to say so", || (pod.metric("portcullis_watch_polling") as u8 == 1).then_some(()));
    let mut generation = 1;
    one_round_in_time(|_| {
        generation += 1;
        publish(folder, pod, generation);
        pod.recovers("the edit to be found", || is_served(pod, generation))
    });
    pod.assert_recovered(VICTIM, generation);
    let told = |line: &&Value| line["level"] == "WARN" && line.to_string().contains("poll");
    assert_eq!(pod.evaluator().logs().iter().filter(told).count(), 1, "{limit}: one line says so");
}

#[test]
fn fault_v13_watch_limit_reached_at_the_start() {
    for limit in WATCH_LIMITS {
        let folder = folder();
        let Some(pod) = pod_with_own_limits(&folder, &forbid_watches(limit)) else { return };
        pod.assert_recovered(VICTIM, 1);
        assert_polls(&folder, &pod, limit);
    }
}

/// What is watched already stays so at the limit. The folder that takes its place is not.
#[test]
fn fault_v13_watch_limit_reached_later() {
    for limit in WATCH_LIMITS {
        let folder = folder();
        let Some(pod) = pod_with_own_limits(&folder, "true") else { return };
        pod.assert_recovered(VICTIM, 1);
        assert_eq!(pod.metric("portcullis_watch_polling") as u8, 0, "{limit}");
        let namespace = format!("--user=/proc/{}/ns/user", pod.evaluator().pid());
        let mut forbid = Command::new("nsenter");
        forbid.args([&namespace, "--preserve-credentials", "sh", "-c", &forbid_watches(limit)]);
        let output = forbid.output().expect("it comes with unshare");
        assert!(output.status.success(), "{limit}: {}", String::from_utf8_lossy(&output.stderr));
        pod.loader().kill();
        replace_volume(&folder, "old-volume");
        pod.loader().start_again();
        pod.wait_ready();
        assert_polls(&folder, &pod, limit);
    }
}

/// Puts a new folder with the same content in the place of the volume, which gets another name.
fn replace_volume(folder: &Folder, old: &str) {
    let (volume, old) = (folder.volume(), folder.path(old));
    fs::rename(&volume, &old).expect("renames");
    fs::create_dir(&volume).expect("a folder");
    copy(&old, &volume);
}

#[test]
fn fault_v14_watched_directory_is_made_again() {
    let folder = folder();
    let pod = Pod::on(&folder).evaluator("--poll-interval", "10m").start();
    pod.assert_recovered(VICTIM, 1);
    pod.loader().kill();
    for round in 0..2 {
        replace_volume(&folder, &format!("old-volume-{round}"));
        pod.loader().start_again();
        pod.wait_ready();
        let text = format!("round {round}");
        folder.put(&Policy::cluster("victim").denying(&text));
        eventually(&text, || (pod.ask(VICTIM, &Review::pod()).verdict().message == text).then_some(()));
        pod.loader().kill();
    }
    pod.loader().start_again();
}

#[test]
fn fault_v14_directory_behind_a_link_is_replaced() {
    let folder = folder();
    let (first, second, link) = (folder.path("volume-1"), folder.path("volume-2"), folder.path("volume-link"));
    fs::create_dir(&first).expect("a folder");
    symlink(&first, &link).expect("links");
    // The watched folder does not change, so only the poll finds the other one. It comes later than an edit may take.
    let pod = Pod::on(&folder).volume(&link).evaluator("--poll-interval", "20s").start();
    pod.assert_recovered(VICTIM, 1);
    pod.loader().kill();
    fs::create_dir(&second).expect("a folder");
    copy(&first, &second);
    let temporary = folder.path("volume-link-new");
    symlink(&second, &temporary).expect("links");
    fs::rename(&temporary, &link).expect("swaps");
    pod.loader().start_again();
    folder.put(&Policy::cluster("victim").denying("generation 2"));
    pod.wait_current(VICTIM, 2);
    // From then on, that one is watched.
    folder.put(&Policy::cluster("victim").denying("generation 3"));
    pod.assert_recovered(VICTIM, 3);
}

fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").arg(format!("{}/.", from.display())).arg(to).status();
    assert!(status.is_ok_and(|status| status.success()), "failed to copy {}", from.display());
}

#[test]
fn fault_v15_no_events_at_all() {
    let folder = folder();
    let pod = Pod::on(&folder).fail_points(Program::Evaluator, "evaluator.drop_events=error").start();
    pod.assert_recovered(VICTIM, 1);
    for generation in 2..=3 {
        folder.put(&Policy::cluster("victim").denying(&format!("generation {generation}")));
        pod.assert_recovered(VICTIM, generation);
    }
}
