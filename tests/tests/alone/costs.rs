//! What one request costs the evaluator, by counts that do not depend on the machine's speed: allocations, page faults, and each system
//! call. `tests/costs.yaml` has the figures, and says what to do when a count is off.
//!
//! The evaluator's own tests count the instructions of some steps of a request (`integration-tests/instructions.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use portcullis_tests::{Allocations, Folder, Pod, PodSetup, Policy, Program, Review, Usage, skip};
use serde::Deserialize;
use serde_json::json;

/// The expected figures, by the name of a case.
const FIGURES: &str = include_str!("../../costs.yaml");

/// How far a count may be from its figure, as a fraction of the figure.
const TOLERANCE: f64 = 0.1;
/// How far a count may always be from its figure, because work that the evaluator does now and then is counted too. What every request
/// does counts at least 1, so a figure of 0 means: never in a request.
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

/// How often each thing happened.
type Counts = BTreeMap<String, f64>;

/// What a request of one case costs.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Figures {
    allocations: f64,
    allocated_bytes: f64,
    page_faults: f64,
    /// By the name of the call. A call that is not here is not made by a request.
    system_calls: Counts,
}

/// Policies that one request asks.
struct Case {
    name: &'static str,
    /// Alone in a match group of their own.
    policies: Vec<Policy>,
    review: fn() -> Review,
    /// Whether the answer has a patch.
    patches: bool,
}

/// A guest that does nothing, one with an SDK that reads the whole object, one that changes it, and five that one request asks.
fn cases() -> [Case; 4] {
    let required = |name: &str, label: &str| {
        let policy = Policy::cluster(name).example("required-labels").settings(json!({"labels": [label]}));
        policy.on("services")
    };
    [
        Case {
            name: "always-accept",
            policies: vec![Policy::cluster("always-accept").guest("always_accept").on("configmaps")],
            review: Review::pod,
            patches: false,
        },
        Case {
            name: "no-privileged",
            policies: vec![Policy::cluster("no-privileged").example("no-privileged")],
            review: Review::pod,
            patches: false,
        },
        Case {
            name: "default-resources",
            policies: vec![
                Policy::cluster("default-resources")
                    .example("default-resources")
                    .settings(json!({"cpu": "100m", "memory": "64Mi"}))
                    .mutating(),
            ],
            review: Review::small_pod,
            patches: true,
        },
        Case {
            name: "group-of-five",
            policies: vec![
                required("a", "team"),
                required("b", "app.kubernetes.io/name"),
                required("c", "app.kubernetes.io/version"),
                required("d", "team"),
                required("e", "team"),
            ],
            review: Review::pod,
            patches: false,
        },
    ]
}

/// The figures of all cases, by their names.
fn all_figures() -> BTreeMap<String, Figures> {
    portcullis_yaml::read(FIGURES).expect("tests/costs.yaml has figures")
}

impl Case {
    /// Asks the policies by the path of their match group, as API servers do, one request after the other.
    fn ask(&self, pod: &Pod, times: u32) {
        let (group, review) = (self.policies[0].group(), (self.review)());
        let evaluated = |policy: &Policy| format!("{}.generation", policy.id().replace('/', "."));
        let evaluated: Vec<_> = self.policies.iter().map(evaluated).collect();
        for _ in 0..times {
            let verdict = pod.admit(&group, &review).verdict();
            assert!(verdict.allowed && verdict.patch.is_some() == self.patches, "{verdict:?}");
            assert!(evaluated.iter().all(|name| verdict.annotations.contains_key(name)), "{verdict:?}");
        }
    }

    /// Counts until all counts match the figures, or some have been off in each of several rounds: on a busy machine some requests take
    /// another path through the program. Returns a sentence for each count that is off.
    fn problems(&self, figures: impl Fn(Figures) -> Counts, count: impl Fn() -> Counts) -> Vec<String> {
        let figures = figures(all_figures().remove(self.name).expect("tests/costs.yaml has figures of each case"));
        let mut problems = Vec::new();
        for _ in 0..ROUNDS {
            let counts = count();
            say(self.name, &counts);
            problems = off(self.name, &figures, &counts);
            if problems.is_empty() {
                break;
            }
        }
        problems
    }
}

#[test]
fn a_request_allocates_and_touches_no_more_than_its_figures() {
    let (allocations, folder, cases) = (Allocations::new(), Folder::empty(), cases());
    let pod = serving(allocations.of(Program::Evaluator, Pod::on(&folder)), &folder, &cases);
    let finds_written_pages = tells_written_pages(&pod);
    let counts = |allocations: f64, bytes: f64, page_faults: f64| {
        let all = [("allocations", allocations), ("allocated bytes", bytes), ("page faults", page_faults)];
        let counts = all.into_iter().filter(|(name, _)| finds_written_pages || *name != "page faults");
        counts.map(|(name, count)| (name.to_owned(), count)).collect::<Counts>()
    };
    let so_far = || {
        let allocated = allocations.so_far();
        counts(allocated.calls as f64, allocated.bytes as f64, Usage::page_faults(pod.evaluator().pid()) as f64)
    };
    let mut problems = Vec::new();
    for case in &cases {
        case.ask(&pod, WARM_UP);
        assert!(allocations.so_far().calls > 0, "the library that counts was not loaded");
        problems.extend(case.problems(
            |figures| counts(figures.allocations, figures.allocated_bytes, figures.page_faults),
            || each(so_far, REQUESTS, || case.ask(&pod, REQUESTS)),
        ));
    }
    assert!(problems.is_empty(), "tests/costs.yaml says what to do: {}", problems.join("; "));
}

#[test]
fn a_request_makes_the_system_calls_of_its_figures_and_no_other() {
    let traces = Command::new("strace").args(["-f", "-qq", "-o", "/dev/null", "true"]).output();
    if !traces.is_ok_and(|output| output.status.success()) {
        skip("strace, and the right to use it; on Debian: `apt-get install --no-install-recommends strace`");
        return;
    }
    let (folder, cases) = (Folder::empty(), cases());
    let file = folder.path("calls");
    let path = file.display().to_string();
    // With `-D`, the process that was started is the program itself, and strace runs beside it. With `-y`, it tells what a descriptor is.
    let strace = ["strace", "-D", "-f", "-qq", "-y", "-s", "0", "-e", WAITING, "-o", &path];
    let pod = serving(Pod::on(&folder).through(Program::Evaluator, &strace), &folder, &cases);
    if !tells_written_pages(&pod) {
        return;
    }
    let mut problems = Vec::new();
    for case in &cases {
        case.ask(&pod, WARM_UP);
        problems.extend(case.problems(
            |figures| figures.system_calls,
            || {
                let counts = each(|| calls(&file), TRACED, || case.ask(&pod, TRACED));
                assert!(!counts.is_empty(), "strace wrote no calls to {path}");
                counts
            },
        ));
    }
    assert!(problems.is_empty(), "tests/costs.yaml says what to do: {}", problems.join("; "));
}

/// A pod that serves the policies of all cases, and whose evaluator gets no other requests.
fn serving(setup: PodSetup, folder: &Folder, cases: &[Case]) -> Pod {
    let policies = || cases.iter().flat_map(|case| &case.policies);
    policies().for_each(|policy| folder.put(policy));
    let pod = setup.without(Program::Reporter).start();
    for policy in policies() {
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

/// How often each thing happened per request, from the totals of the whole program before and after `work` sends `requests` requests.
/// What the program does periodically, and so more often the longer the requests take, is measured without requests and subtracted.
fn each(so_far: impl Fn() -> Counts, requests: u32, work: impl FnOnce()) -> Counts {
    let (took, counts) = counted(&so_far, work);
    let (rest, idle) = counted(&so_far, || thread::sleep(REST));
    let each = |(name, count): (String, f64)| {
        let idle = idle.get(&name).copied().unwrap_or(0.0) * took / rest;
        (name, (count - idle).max(0.0) / f64::from(requests))
    };
    counts.into_iter().map(each).collect()
}

/// The seconds that `work` took, and how often each thing happened in that time.
fn counted(so_far: &impl Fn() -> Counts, work: impl FnOnce()) -> (f64, Counts) {
    let (start, before) = (Instant::now(), so_far());
    work();
    let (seconds, mut counts) = (start.elapsed().as_secs_f64(), so_far());
    counts.iter_mut().for_each(|(name, count)| *count -= before.get(name).copied().unwrap_or(0.0));
    (seconds, counts)
}

/// How often each system call was made so far, from the output file of strace.
fn calls(file: &Path) -> Counts {
    let mut calls = Counts::new();
    let text = fs::read(file).expect("strace has written");
    for name in String::from_utf8_lossy(&text).lines().filter_map(call) {
        *calls.entry(name.to_owned()).or_default() += 1.0;
    }
    calls
}

/// The system call that a line reports the start of: `4711 read(3, …`, but not `4711 <... read resumed>…`. None for a write to an
/// eventfd, by which a thread wakes another one: whether that one waits depends on which thread is faster.
fn call(line: &str) -> Option<&str> {
    let (name, args) = line.split_once(' ')?.1.trim_start().split_once('(')?;
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let wakes = name == "write" && args.split(',').next().is_some_and(|descriptor| descriptor.contains("[eventfd"));
    (!name.is_empty() && name.bytes().all(is_name) && !wakes).then_some(name)
}

/// A sentence for each count that is not what its figure says. What has no figure should not happen, and what was not counted did not.
fn off(case: &str, figures: &Counts, counts: &Counts) -> Vec<String> {
    let names: BTreeSet<_> = figures.keys().chain(counts.keys()).collect();
    let one = |name: &String| {
        let [figure, count] = [figures, counts].map(|all| all.get(name).copied().unwrap_or(0.0));
        let is_off = (count - figure).abs() > SLACK.max(TOLERANCE * figure);
        is_off.then(|| format!("{case}: {count:.2} {name} in a request, and the figure is {figure}"))
    };
    names.into_iter().filter_map(one).collect()
}

/// Writes the counts of a case straight to stderr, without those that round to nothing: libtest shows what a test prints only if it fails.
fn say(case: &str, counts: &Counts) {
    let counts = counts.iter().filter(|(_, count)| **count >= 0.005);
    let counts: Vec<_> = counts.map(|(name, count)| format!("{count:.2} {name}")).collect();
    io::stderr().write_all(format!("\n{case}, in a request: {}\n", counts.join("; ")).as_bytes()).ok();
}

#[test]
fn a_count_may_be_a_tenth_off() {
    let counts = |all: &[(&str, f64)]| all.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect::<Counts>();
    let figures = counts(&[("allocations", 50.0), ("recvfrom", 2.0)]);
    let off = |all: &[(&str, f64)]| off("a", &figures, &counts(all)).len();
    assert_eq!(off(&[("allocations", 45.0), ("recvfrom", 2.5)]), 0);
    assert_eq!(off(&[("allocations", 55.0), ("recvfrom", 1.5), ("openat", 0.5)]), 0);
    assert_eq!(off(&[("allocations", 56.0), ("recvfrom", 2.6)]), 2);
    assert_eq!(off(&[("allocations", 44.0), ("recvfrom", 1.4)]), 2, "fewer calls are a new figure too");
    assert_eq!(
        off(&[("allocations", 50.0), ("recvfrom", 2.0), ("openat", 1.0)]),
        1,
        "a call without a figure is not made"
    );
    assert_eq!(off(&[]), 2, "a call with a figure is made");
}

#[test]
fn every_figure_is_one_of_a_case() {
    let figures = all_figures();
    let mut names = cases().map(|case| case.name);
    names.sort_unstable();
    assert!(figures.keys().eq(&names), "{:?}", figures.keys());
}

#[test]
fn lines_of_strace_begin_calls_or_do_not() {
    assert_eq!(call("4711  recvfrom(9<socket:[7]>, \"\"..., 8192, 0, NULL, NULL) = 12"), Some("recvfrom"));
    assert_eq!(call("4711 pread64(9,  <unfinished ...>"), Some("pread64"));
    assert_eq!(call("4711 write(2</log>, \"\"..., 8) = 8"), Some("write"));
    for line in [
        "4711 <... recvfrom resumed>\"\"..., 8192) = 1",
        "4711 +++ exited with 0 +++",
        "4711 --- SIGTERM {} ---",
        "4711 write(5<anon_inode:[eventfd]>, \"\"..., 8) = 8",
        "",
    ] {
        assert_eq!(call(line), None, "{line}");
    }
}
