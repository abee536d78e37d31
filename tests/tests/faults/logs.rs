//! Sections 5 and 14: what guests log is cut, and affects neither the lines of others nor requests.

use std::time::{Duration, Instant};

use portcullis_contract::Reason;
use portcullis_tests::{Folder, Pod, Policy, Program, Review, eventually};
use rustix::process::Signal;
use serde_json::Value;

/// What the policies of a namespace may log: at once, and then in a second.
const AT_ONCE: usize = 128 << 10;
const A_SECOND: usize = 32 << 10;
const LOST: &str = "portcullis_log_lines_lost_total";

/// Policies of a namespace, each of which logs 10 MiB when it is asked.
fn floods(namespace: &str, count: usize) -> Vec<Policy> {
    let flood = |number| Policy::namespaced(namespace, &format!("floods-{number}")).guest("log_flood").timeout(30);
    (0..count).map(flood).collect()
}

fn is_of_guest(line: &Value, id: &str) -> bool {
    line["message"] == "policy log" && line["policy"] == id
}

/// The number of lines of a policy in the log so far.
fn lines_of(pod: &Pod, id: &str) -> usize {
    pod.evaluator().logs().iter().filter(|line| is_of_guest(line, id)).count()
}

/// How many lines of a policy were dropped.
fn dropped(pod: &Pod, id: &str) -> f64 {
    pod.metric(&format!("portcullis_policy_log_lines_dropped_total{{policy=\"{id}\"}}"))
}

/// Asks policies that flood the log until more lines came than are kept for a reader who does not read them.
fn flood_until_lines_are_lost(pod: &Pod, floods: &[Policy]) {
    eventually("lines to be lost", || {
        floods.iter().for_each(|policy| assert!(pod.ask(&policy.id(), &Review::pod()).verdict().allowed));
        (pod.metric(LOST) > 0.0).then_some(())
    });
}

#[test]
fn fault_m25_lines_of_a_mebibyte() {
    /// Longest text of a guest in the log, in bytes.
    const LONGEST: usize = 2 << 10;
    let folder = Folder::with_canary();
    // What is not kept of a standard error of a mebibyte counts as a dropped line, once a call.
    let policies = [("logs", "log_long_lines", 3, 0.0), ("wasi-logs", "wasi_stderr_long_line", 1, 1.0)]
        .map(|(name, guest, lines, dropped)| (Policy::cluster(name).guest(guest), lines, dropped));
    policies.iter().for_each(|(policy, ..)| folder.put(policy));
    let pod = Pod::on(&folder).start();
    for (policy, lines, dropped_a_call) in policies {
        let (id, review) = (policy.id(), Review::pod());
        pod.wait_current(&id, 1);
        assert!(pod.ask(&id, &review).verdict().allowed);
        eventually(&format!("{lines} lines of {id}"), || (lines_of(&pod, &id) == lines).then_some(()));
        assert_eq!(dropped(&pod, &id), dropped_a_call, "{id}");
        for line in pod.evaluator().logs().iter().filter(|line| is_of_guest(line, &id)) {
            let said = line["said"].as_str().expect("a text");
            assert!(said.len() <= LONGEST && said.ends_with("xxx…"), "{} bytes: {line}", said.len());
        }
        let mut calls = 1.0;
        eventually(&format!("more lines of {id} to be dropped"), || {
            let answers = pod.client().ask_at_once(20, &id, &review);
            answers.into_iter().for_each(|answer| assert!(answer.expect("answers").verdict().allowed));
            calls += 20.0;
            (dropped(&pod, &id) > calls * dropped_a_call).then_some(())
        });
    }
}

#[test]
fn fault_z21_a_namespace_logs_all_it_may_beside_a_neighbour() {
    let folder = Folder::with_canary();
    let (floods, quiet) = (floods("team-a", 16), Policy::namespaced("team-b", "quiet").guest("log_one"));
    floods.iter().chain([&quiet]).for_each(|policy| folder.put(policy));
    let pod = Pod::on(&folder).start();
    floods.iter().chain([&quiet]).for_each(|policy| drop(pod.wait_current(&policy.id(), 1)));
    let start = Instant::now();
    for (number, policy) in floods.iter().enumerate() {
        assert!(pod.ask(&policy.id(), &Review::pod()).verdict().allowed);
        assert!(pod.ask(&quiet.id(), &Review::pod()).verdict().allowed);
        // Each call logs two lines.
        eventually("every line of the neighbour", || (lines_of(&pod, &quiet.id()) == 2 * (number + 1)).then_some(()));
    }
    let is_excess = |line: &Value| {
        let policy = line["policy"].as_str().unwrap_or_default();
        line["message"] == "the policy logged more than its share: lines were dropped"
            && policy.starts_with("namespaced/team-a/floods-")
            && line["lines"].as_u64().is_some_and(|lines| lines > 1000)
            && line["bytes"].as_u64().is_some_and(|bytes| bytes > 1 << 20)
    };
    pod.evaluator().wait_for_log("a line about the lines that were dropped", is_excess);
    let seconds = usize::try_from(start.elapsed().as_secs() + 1).expect("not so many");
    let logged =
        pod.evaluator().lines().into_iter().filter(|line| line.contains("team-a") && line.contains("policy log"));
    let bytes: usize = logged.map(|line| line.len() + 1).sum();
    let share = AT_ONCE + A_SECOND * seconds;
    assert!(bytes > AT_ONCE / 2 && bytes <= share, "{bytes} bytes in {seconds} s, the share is {share}");
    for policy in &floods {
        assert!(dropped(&pod, &policy.id()) > 1000.0, "{}", policy.id());
    }
    assert_eq!((dropped(&pod, &quiet.id()), pod.metric(LOST)), (0.0, 0.0));
}

#[test]
fn fault_z21_nobody_reads_standard_error() {
    let folder = Folder::with_canary();
    let floods: Vec<_> = (0..8).flat_map(|team| floods(&format!("team-{team}"), 2)).collect();
    let (quiet, panics) = (Policy::cluster("quiet").guest("log_one"), Policy::cluster("panics").guest("always_accept"));
    floods.iter().chain([&quiet, &panics]).for_each(|policy| folder.put(policy));
    let panic = format!("evaluator.asking/{}=panic", panics.id());
    let pod = Pod::on(&folder).fail_points(Program::Evaluator, &panic).start();
    floods.iter().chain([&quiet, &panics]).for_each(|policy| drop(pod.wait_current(&policy.id(), 1)));
    pod.evaluator().read_streams(false);
    flood_until_lines_are_lost(&pod, &floods);
    // Requests are answered, edits are taken in, and the canary is asked all the time. More panics than there are threads hold up none of it.
    for _ in 0..16 {
        let review = Review::pod();
        pod.ask(&panics.id(), &review).assert_not_judged(&review, &panics.id(), Reason::InternalError);
    }
    assert!(pod.ask(&quiet.id(), &Review::pod()).verdict().allowed);
    let broken = Policy::cluster("broken").guest("trap_in_init");
    folder.put(&broken);
    pod.wait_failure(&broken.id(), Reason::InstantiationFailed);
    assert_eq!(pod.health(&quiet.id()).code, 200);
    pod.evaluator().read_streams(true);
    // The program's own lines had room, and it says how many of the others are missing.
    let id = broken.id();
    let is_failure = |line: &Value| line["policy"] == id.as_str() && line["level"] == "WARN";
    pod.evaluator().wait_for_log("the failure of a policy", is_failure);
    let is_about_lost = |line: &Value| {
        let message = line["message"].as_str().unwrap_or_default();
        message.starts_with("log lines were lost") && line["lines"].as_u64().is_some_and(|lines| lines > 0)
    };
    pod.evaluator().wait_for_log("a line about the lines that were lost", is_about_lost);
    let is_panic = |line: &str| line.starts_with("thread '") && line.contains("panicked at");
    eventually("the panics", || {
        (pod.evaluator().lines().iter().filter(|line| is_panic(line)).count() == 16).then_some(())
    });
    let before = lines_of(&pod, &quiet.id());
    assert!(pod.ask(&quiet.id(), &Review::pod()).verdict().allowed);
    eventually("the log to go on", || (lines_of(&pod, &quiet.id()) == before + 2).then_some(()));
}

/// What is read is written to its end: `crates/process/src/exit.rs` has the test of that.
#[test]
fn fault_z21_the_end_waits_for_nobody_who_does_not_read() {
    /// How long the evaluator goes on answering after the signal.
    const DRAIN_DELAY: Duration = Duration::from_secs(1);
    let folder = Folder::with_canary();
    let floods: Vec<_> = (0..8).flat_map(|team| floods(&format!("team-{team}"), 2)).collect();
    floods.iter().for_each(|policy| folder.put(policy));
    let delay = format!("{}s", DRAIN_DELAY.as_secs());
    let pod = Pod::on(&folder).evaluator("--drain-delay", delay).start();
    floods.iter().for_each(|policy| drop(pod.wait_current(&policy.id(), 1)));
    pod.canary().pause();
    pod.evaluator().read_streams(false);
    flood_until_lines_are_lost(&pod, &floods);
    let status = pod.within(DRAIN_DELAY + Duration::from_secs(10), "an end that waits for nobody", || {
        pod.evaluator().signal(Signal::TERM);
        eventually("the end of the evaluator", || pod.evaluator().ended())
    });
    assert!(status.success(), "{status}");
    pod.evaluator().read_streams(true);
    pod.evaluator().start_again();
    pod.resume_canary();
}

#[test]
fn fault_z21_nobody_reads_the_standard_error_of_the_loader() {
    const FAILING: usize = 400;
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("good").denying("before"));
    let pod = Pod::on(&folder).start();
    pod.wait_current("cluster/good", 1);
    pod.loader().read_streams(false);
    // Each is a line of the log, and together they are more than a pipe holds.
    let name = |number: usize| format!("is-not-there-{number:03}-{}", "x".repeat(150));
    for number in 0..FAILING {
        let module = format!("modules/{}.wasm", name(number));
        folder.put(&Policy::cluster(&format!("missing-{number}")).module(&module));
    }
    folder.put(&Policy::cluster("good").denying("after"));
    pod.wait_current("cluster/good", 2);
    pod.wait_failure(&format!("cluster/missing-{}", FAILING - 1), Reason::NotFound);
    pod.loader().read_streams(true);
    let is_about = |number| move |line: &Value| line.to_string().contains(&name(number));
    pod.loader().wait_for_log("the last line", is_about(FAILING - 1));
    let bytes: usize = pod.loader().lines().iter().map(String::len).sum();
    assert!(bytes > 64 << 10, "only {bytes} bytes, which a pipe holds");
}

/// A policy in mode `monitor` denies with a text of its own each time, and the log says so.
#[test]
fn fault_z21_verdicts_in_monitor_mode_have_the_share_of_other_lines() {
    let folder = Folder::with_canary();
    let monitors =
        |namespace: &str, name: &str, text: &str| Policy::namespaced(namespace, name).denying(text).mode("monitor");
    let long = "x".repeat(1000);
    let floods: Vec<_> = (0..8).map(|number| monitors("team-a", &format!("floods-{number}"), &long)).collect();
    let quiet = monitors("team-b", "quiet", "seldom");
    floods.iter().chain([&quiet]).for_each(|policy| folder.put(policy));
    let pod = Pod::on(&folder).start();
    floods.iter().chain([&quiet]).for_each(|policy| drop(pod.wait_current(&policy.id(), 1)));
    let dropped = |policy: &Policy| {
        pod.metric(&format!("portcullis_policy_log_lines_dropped_total{{policy=\"{}\"}}", policy.id()))
    };
    let is_verdict = |line: &Value, id: &str| {
        line["message"] == "verdict in monitor mode" && line["policy"] == id && line["target"] == "policy"
    };
    let said = || pod.evaluator().logs().iter().filter(|line| is_verdict(line, &quiet.id())).count();
    let start = Instant::now();
    for (number, policy) in floods.iter().enumerate() {
        eventually("a line to be dropped", || {
            (0..10).for_each(|_| assert!(pod.ask(&policy.id(), &Review::pod()).verdict().allowed));
            (dropped(policy) > 0.0).then_some(())
        });
        assert!(pod.ask(&quiet.id(), &Review::pod()).verdict().allowed);
        eventually("every line of the neighbour", || (said() == number + 1).then_some(()));
    }
    let is_excess = |line: &Value| {
        line["message"] == "the policy logged more than its share: lines were dropped"
            && line["policy"].as_str().is_some_and(|policy| policy.starts_with("namespaced/team-a/floods-"))
    };
    pod.evaluator().wait_for_log("a line about the lines that were dropped", is_excess);
    let seconds = usize::try_from(start.elapsed().as_secs() + 1).expect("not so many");
    let logged = pod.evaluator().lines().into_iter().filter(|line| line.contains("team-a") && line.contains(&long));
    let bytes: usize = logged.map(|line| line.len() + 1).sum();
    let share = AT_ONCE + A_SECOND * seconds;
    assert!(bytes > AT_ONCE / 2 && bytes <= share, "{bytes} bytes in {seconds} s, the share is {share}");
    assert_eq!((dropped(&quiet), pod.metric(LOST)), (0.0, 0.0));
}
