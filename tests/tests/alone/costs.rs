//! What one request costs the evaluator, by counts that do not depend on the machine's speed: allocations, page faults, reads and writes,
//! and system calls. `tests/costs.yaml` has the figures, and says what to do when a count is off.
//!
//! Instructions are not counted: few virtual machines have counters for them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use portcullis_tests::{Allocations, Counters, Folder, Pod, PodSetup, Policy, Program, Review, skip};

/// The expected figures, by policy and by what is counted.
const FIGURES: &str = include_str!("../../costs.yaml");

/// How far a count may be from its figure, as a fraction of the figure.
const TOLERANCE: f64 = 0.2;
/// How far a count may always be from its figure, because work that the evaluator does now and then is counted too.
const SLACK: f64 = 0.5;

/// Requests before the first that is counted, so that threads, pools and caches have settled.
const WARM_UP: u32 = 200;
/// Requests that are counted.
const REQUESTS: u32 = 1000;
/// Requests that are counted under strace, which makes each of them slow.
const TRACED: u32 = 300;
/// How long the program is watched without requests.
const REST: Duration = Duration::from_secs(2);
/// How many times counting is tried before a count that is off is a problem.
const ROUNDS: u32 = 5;

/// The filter that makes strace leave out the system calls by which threads wait: their number depends on which thread is faster.
const WAITING: &str =
    "trace=!?futex,?epoll_wait,?epoll_pwait,?epoll_pwait2,?clock_nanosleep,?sched_yield,?restart_syscall";

/// What is counted, and how often it happens per request.
type Count = (&'static str, f64);

#[test]
fn a_request_allocates_and_touches_no_more_than_its_figures() {
    let (allocations, folder, policies) = (Allocations::new(), Folder::empty(), policies());
    let pod = serving(allocations.of(Program::Evaluator, Pod::on(&folder)), &folder, &policies);
    let finds_written_pages = tells_written_pages(&pod);
    let so_far = || {
        let (allocated, counters) = (allocations.so_far(), Counters::of(pod.evaluator().pid()));
        [allocated.calls, allocated.bytes, counters.reads_and_writes, counters.page_faults]
    };
    let mut problems = Vec::new();
    for policy in &policies {
        ask(&pod, policy, WARM_UP);
        assert!(so_far()[0] > 0, "the library that counts was not loaded");
        problems.extend(problems_of(policy.name(), || {
            let each = each(so_far, REQUESTS, || ask(&pod, policy, REQUESTS));
            let names = ["allocations", "allocated bytes", "reads and writes", "page faults"];
            let counts = names.into_iter().zip(each);
            counts.filter(|(name, _)| finds_written_pages || *name != "page faults").collect()
        }));
    }
    assert!(problems.is_empty(), "tests/costs.yaml says what to do: {}", problems.join("; "));
}

#[test]
fn a_request_makes_as_many_system_calls_as_its_figure() {
    let traces = Command::new("strace").args(["-f", "-qq", "-o", "/dev/null", "true"]).output();
    if !traces.is_ok_and(|output| output.status.success()) {
        skip("strace, and the right to use it; on Debian: `apt-get install --no-install-recommends strace`");
        return;
    }
    let (folder, policies) = (Folder::empty(), policies());
    let file = folder.path("calls");
    let path = file.display().to_string();
    // With `-D`, the process that was started is the program itself, and strace runs beside it.
    let strace = ["strace", "-D", "-f", "-qq", "-s", "0", "-e", WAITING, "-o", &path];
    let pod = serving(Pod::on(&folder).through(Program::Evaluator, &strace), &folder, &policies);
    if !tells_written_pages(&pod) {
        return;
    }
    let mut problems = Vec::new();
    for policy in &policies {
        ask(&pod, policy, WARM_UP);
        problems.extend(problems_of(policy.name(), || {
            let before = calls(&file);
            let all = || [calls(&file).into_values().sum::<u64>()];
            let [each] = each(all, TRACED, || ask(&pod, policy, TRACED));
            let shown: Vec<_> = calls(&file)
                .into_iter()
                .map(|(name, after)| {
                    let times = after.saturating_sub(before.get(&name).copied().unwrap_or(0));
                    (name, times as f64 / f64::from(TRACED))
                })
                .filter(|(_, times)| *times > 0.01)
                .map(|(name, times)| format!("{name} {times:.2}"))
                .collect();
            assert!(!shown.is_empty(), "strace wrote no calls to {path}");
            say(&format!("system calls of {}, with those of the program itself: {}", policy.name(), shown.join(", ")));
            vec![("system calls", each)]
        }));
    }
    assert!(problems.is_empty(), "tests/costs.yaml says what to do: {}", problems.join("; "));
}

/// The policies whose requests are counted, each in a match group of its own: one that does nothing, and one with an SDK that reads the
/// whole object.
fn policies() -> [Policy; 2] {
    [
        Policy::cluster("always-accept").guest("always_accept").on("configmaps"),
        Policy::cluster("no-privileged").example("no-privileged"),
    ]
}

/// A pod that serves these policies, and whose evaluator gets no other requests.
fn serving(setup: PodSetup, folder: &Folder, policies: &[Policy]) -> Pod {
    for policy in policies {
        folder.put(policy);
    }
    let pod = setup.without(Program::Reporter).start();
    for policy in policies {
        pod.wait_current(&policy.id(), 1);
    }
    // The loader has compiled everything; its requests to the evaluator would be counted.
    pod.loader().kill();
    pod
}

/// Whether the figures of memory are valid for this kernel. If not, the test is marked as skipped in part.
fn tells_written_pages(pod: &Pod) -> bool {
    let tells = pod.metric("portcullis_written_pages_found") > 0.5;
    if !tells {
        skip("Linux 6.7 or newer, which tells what pages a policy wrote; what clearing them costs was not compared");
    }
    tells
}

/// Asks a policy by the path of its match group, as API servers do, one request after the other.
fn ask(pod: &Pod, policy: &Policy, times: u32) {
    let (group, review) = (policy.group(), Review::pod());
    let evaluated = format!("{}.generation", policy.id().replace('/', "."));
    for _ in 0..times {
        let verdict = pod.admit(&group, &review).verdict();
        assert!(verdict.allowed && verdict.annotations.contains_key(&evaluated), "{verdict:?}");
    }
}

/// How often each thing happened per request, from the totals of the whole program before and after `work` sends `requests` requests.
/// What the program does periodically, and so more often the longer the requests take, is measured without requests and subtracted.
fn each<const N: usize>(so_far: impl Fn() -> [u64; N], requests: u32, work: impl FnOnce()) -> [f64; N] {
    let (took, counts) = counted(&so_far, work);
    let (rest, idle) = counted(&so_far, || thread::sleep(REST));
    std::array::from_fn(|n| (counts[n] - idle[n] * took / rest).max(0.0) / f64::from(requests))
}

/// The seconds that `work` took, and how often each thing happened in that time.
fn counted<const N: usize>(so_far: &impl Fn() -> [u64; N], work: impl FnOnce()) -> (f64, [f64; N]) {
    let (start, before) = (Instant::now(), so_far());
    work();
    let (seconds, after) = (start.elapsed().as_secs_f64(), so_far());
    (seconds, std::array::from_fn(|n| after[n].saturating_sub(before[n]) as f64))
}

/// Counts until all counts of a policy match its figures, or some have been off in each of several rounds: on a busy machine some
/// requests take another path through the program. Returns a sentence for each count that is off.
fn problems_of(policy: &str, mut count: impl FnMut() -> Vec<Count>) -> Vec<String> {
    let mut problems = Vec::new();
    for _ in 0..ROUNDS {
        let counts = count();
        print(policy, &counts);
        problems = off(&figures(), policy, &counts);
        if problems.is_empty() {
            break;
        }
    }
    problems
}

/// How often each system call was made so far, from the output file of strace.
fn calls(file: &Path) -> BTreeMap<String, u64> {
    let mut calls = BTreeMap::new();
    let text = fs::read(file).expect("strace has written");
    for name in String::from_utf8_lossy(&text).lines().filter_map(call) {
        *calls.entry(name.to_owned()).or_default() += 1;
    }
    calls
}

/// The system call that a line reports the start of: `4711 read(3, …`, but not `4711 <... read resumed>…`.
fn call(line: &str) -> Option<&str> {
    let (name, _) = line.split_once(' ')?.1.trim_start().split_once('(')?;
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    (!name.is_empty() && name.bytes().all(is_name)).then_some(name)
}

fn figures() -> BTreeMap<String, BTreeMap<String, f64>> {
    portcullis_yaml::read(FIGURES).expect("tests/costs.yaml has figures of policies")
}

/// A sentence for each count that is not what the figures of a policy say.
fn off(figures: &BTreeMap<String, BTreeMap<String, f64>>, policy: &str, counts: &[Count]) -> Vec<String> {
    let of_policy = figures.get(policy);
    let one = |(what, count): &Count| {
        let figure = of_policy.and_then(|figures| figures.get(*what)).copied();
        let is_off = figure.is_none_or(|figure| (count - figure).abs() > SLACK.max(TOLERANCE * figure));
        let figure = figure.map_or_else(|| "no figure".to_owned(), |figure| figure.to_string());
        is_off.then(|| format!("{policy}: {count:.2} {what} in a request, and the figure is {figure}"))
    };
    counts.iter().filter_map(one).collect()
}

/// Prints the counts.
fn print(policy: &str, counts: &[Count]) {
    let counts: Vec<_> = counts.iter().map(|(what, count)| format!("{count:.2} {what}")).collect();
    say(&format!("{policy}, in a request: {}", counts.join("; ")));
}

/// Writes a line straight to stderr: libtest shows what a test prints only if it fails.
fn say(words: &str) {
    io::stderr().write_all(format!("\n{words}\n").as_bytes()).ok();
}

#[test]
fn a_count_may_be_a_fifth_off() {
    let figures =
        BTreeMap::from([("a".to_owned(), BTreeMap::from([("calls".to_owned(), 10.0), ("x".to_owned(), 0.0)]))]);
    let is_off = |policy: &str, what: &'static str, count: f64| !off(&figures, policy, &[(what, count)]).is_empty();
    assert!(!is_off("a", "calls", 8.0) && !is_off("a", "calls", 12.0));
    assert!(is_off("a", "calls", 7.9) && is_off("a", "calls", 12.1), "fewer calls are a new figure too");
    assert!(!is_off("a", "x", 0.5) && is_off("a", "x", 0.6));
    assert!(is_off("a", "other", 0.0) && is_off("b", "calls", 10.0), "every count has a figure");
}

#[test]
fn lines_of_strace_begin_calls_or_do_not() {
    assert_eq!(call("4711  recvfrom(9, \"\"..., 8192, 0, NULL, NULL) = 12"), Some("recvfrom"));
    assert_eq!(call("4711 pread64(9,  <unfinished ...>"), Some("pread64"));
    for line in
        ["4711 <... recvfrom resumed>\"\"..., 8192) = 1", "4711 +++ exited with 0 +++", "4711 --- SIGTERM {} ---", ""]
    {
        assert_eq!(call(line), None, "{line}");
    }
}
