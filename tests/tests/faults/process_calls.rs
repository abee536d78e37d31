//! Section 8: calls that end badly, and an evaluator that is starved or hangs.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use portcullis_contract::Reason;
use portcullis_tests::{
    Answer, Cgroup, Folder, LIMIT, Pod, Policy, Process, Program, Raw, Review, StopOnDrop, assert_no_leak, eventually,
    eventually_within, heavy, one_round_in_time, request, skip,
};
use rustix::process::Signal;

const DENIES: &str = "cluster/denies";
const LOOPS: &str = "cluster/loops";
const SLEEPS: &str = "cluster/sleeps";

fn livez(pod: &Pod) -> Answer {
    pod.probe(Program::Evaluator, "/livez").expect("the probe port answers")
}

#[test]
fn fault_e05_panic_in_a_handler() {
    const PANICS: usize = 3;
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("denies").guest("always_deny"));
    let points = format!("evaluator.handler={PANICS}*panic");
    let setup = Pod::on(&folder).canary_later("the first calls panic");
    let pod = setup.fail_points(Program::Evaluator, &points).start();
    pod.wait_current(DENIES, 1);
    for number in 1..=PANICS {
        let review = Review::pod();
        pod.ask(DENIES, &review).assert_not_judged(&review, DENIES, Reason::InternalError);
        assert_eq!(pod.metric("portcullis_panics_total") as usize, number);
    }
    pod.canary().resume();
    let verdict = pod.ask(DENIES, &Review::pod()).verdict();
    assert_eq!(verdict.message, "denied by always_deny");
    assert_eq!(pod.metric("portcullis_panics_total") as usize, PANICS);
}

/// The barrier around a whole request, which is outside the one around a policy.
#[test]
fn fault_e05_panic_outside_any_policy() {
    let folder = Folder::with_canary();
    let strict = Policy::cluster("denies").guest("always_deny");
    let lax = strict.renamed("lax").on("services").ignoring_failure();
    folder.put(&strict);
    folder.put(&lax);
    let setup = Pod::on(&folder).canary_later("the first calls panic");
    let points = "evaluator.reading=2*panic;evaluator.understood=4*panic";
    let pod = setup.fail_points(Program::Evaluator, points).start();
    let ids = [strict.id(), lax.id()];
    ids.iter().for_each(|id| drop(pod.wait_current(id, 1)));
    let mut panics = 0;
    // The errors of each policy, after one more panic.
    let mut assert_counted = |errors: [usize; 2]| {
        panics += 1;
        assert_eq!(pod.metric("portcullis_panics_total") as usize, panics);
        assert_eq!(ids.each_ref().map(|id| pod.evaluation_errors(id, Reason::InternalError) as usize), errors);
    };

    // Before the request is understood, nobody knows whose answer it should get.
    for path in [format!("/validate/{}", strict.id()), format!("/admit/{}", lax.group())] {
        let mut connection = Raw::tls(pod.admission()).expect("connects");
        connection.send(request("POST", &path, &[], Review::pod().bytes())).expect("sends");
        let response = connection.response().expect("answers");
        assert!(response.status == 500 && response.closes(), "{response:?}");
        assert_eq!(response.body, r#"{"message":"Something went wrong","status":500}"#);
        assert!(connection.closed_within(LIMIT).is_some(), "it stays open");
        assert_counted([0, 0]);
    }

    // After that, each policy answers as to any other failure, and the connection stays open.
    let ask = |path: String| {
        let review = Review::pod();
        let answer = pod.client().post(&path, review.bytes()).expect("answers");
        assert_eq!(answer.headers.get("connection"), None, "{answer:?}");
        (answer, review)
    };
    for (path, errors) in
        [(format!("/validate/{}", strict.id()), [1, 0]), (format!("/admit/{}", strict.group()), [2, 0])]
    {
        let (answer, review) = ask(path);
        answer.assert_not_judged(&review, &strict.id(), Reason::InternalError);
        assert_counted(errors);
    }
    let (answer, review) = ask(format!("/validate/{}", lax.id()));
    answer.assert_ignored(&review, &lax.id(), Reason::InternalError);
    assert_counted([2, 1]);
    let (answer, review) = ask(format!("/admit/{}", lax.group()));
    let verdict = answer.verdict();
    assert!(verdict.allowed && verdict.uid == review.uid(), "{verdict:?}");
    let [warning] = &verdict.warnings[..] else { panic!("want one warning in {verdict:?}") };
    assert!(warning.contains(&lax.id()) && warning.contains(Reason::InternalError.as_str()), "{warning}");
    let annotation = verdict.annotations.get("cluster.lax.policy-not-evaluated");
    assert_eq!(annotation, Some(&format!("{}/{}", lax.id(), Reason::InternalError)), "{verdict:?}");
    assert_counted([2, 2]);

    // The next calls are evaluated.
    pod.canary().resume();
    for policy in [&strict, &lax] {
        for path in [format!("/validate/{}", policy.id()), format!("/admit/{}", policy.group())] {
            let (answer, _) = ask(path);
            assert!(answer.verdict().message.ends_with("denied by always_deny"), "{answer:?}");
        }
    }
    assert_eq!(pod.metric("portcullis_panics_total") as usize, panics);
}

/// Waits until the liveness probe passes: if the machine stands still, the evaluator seems dead for a moment.
fn wait_alive(pod: &Pod) {
    eventually("liveness", || (livez(pod).status == 200).then_some(()));
}

/// The own limit of a policy whose evaluations should end earlier, in seconds.
const OWN_LIMIT: u32 = 30;
/// A time well before that.
const BEFORE_THE_OWN_LIMIT: Duration = Duration::from_secs(10);

/// The two limits are so far apart that the test can tell which one applied even on a slow machine.
#[test]
fn fault_e07_the_smaller_of_two_limits() {
    let folder = Folder::with_canary();
    let policy = Policy::cluster("loops").guest("endless_loop").timeout(OWN_LIMIT);
    folder.put(&policy);
    folder.put(&Policy::cluster("short").guest("endless_loop").timeout(2));
    let pod = Pod::on(&folder).start();
    pod.wait_current(LOOPS, 1);
    pod.wait_current("cluster/short", 1);
    let ask = |path: &str| {
        let review = Review::pod();
        let answer = pod.client().post(path, review.bytes()).expect("answers");
        (review, answer)
    };
    let ask_in_time = |path: &str| pod.within(BEFORE_THE_OWN_LIMIT, path, || ask(path));
    for timeout in ["1s", "1000ms", "0.5s"] {
        let (review, answer) = ask_in_time(&format!("/validate/{LOOPS}?timeout={timeout}"));
        answer.assert_not_judged(&review, LOOPS, Reason::EvaluationTimedOut);
    }
    let (_, answer) = ask_in_time(&format!("/admit/{}?timeout=1s", policy.group()));
    assert!(
        answer.verdict().message.contains(&format!("policy {LOOPS}: {}", Reason::EvaluationTimedOut)),
        "{answer:?}"
    );
    // Each answer comes before the API server gives up, also where others are asked at the same moment.
    let paths = [format!("/validate/{LOOPS}?timeout=1s"), format!("/admit/{}?timeout=1s", policy.group())];
    let is_in_time = |path: &String| pod.timed(Duration::from_secs(1), || ask(path)).1;
    one_round_in_time(|_| (0..5).flat_map(|_| &paths).try_for_each(is_in_time));
    // A longer timeout in the request does not extend the policy's own limit.
    let (review, answer) = ask_in_time("/validate/cluster/short?timeout=30s");
    answer.assert_not_judged(&review, "cluster/short", Reason::EvaluationTimedOut);
}

/// How many evaluations of a policy have ended at a time limit.
fn timed_out(pod: &Pod, id: &str) -> usize {
    pod.evaluation_errors(id, Reason::EvaluationTimedOut) as usize
}

/// Without TLS, because ten thousand handshakes would take minutes in a debug build.
#[test]
fn fault_e08_caller_hangs_up() {
    /// So many callers hang up at the same moment.
    const CALLERS: usize = 50;
    /// So many batches of them for each of the two guests, in each window.
    const BATCHES: usize = 25;
    const WINDOWS: usize = 4;
    const HANG_UPS: u64 = (2 * BATCHES * CALLERS) as u64;
    const { assert!(HANG_UPS * WINDOWS as u64 == 10_000) };
    let _alone = heavy();
    let folder = Folder::with_canary();
    for (name, guest) in [("loops", "endless_loop"), ("sleeps", "clock_sleep")] {
        folder.put(&Policy::cluster(name).guest(guest).timeout(OWN_LIMIT));
    }
    // With 16 cores, a policy may have as many evaluations at the same time as there are callers.
    let pod = Pod::on(&folder).plain_http().evaluator("--cores", 16).start();
    // However busy the machine is: after the own limit, evaluations end in any case.
    let longest = Duration::from_secs(OWN_LIMIT.into()) - Duration::from_secs(5);
    let instances = || pod.metric("portcullis_instances");
    let are_free = || (instances() < 2.0).then_some(());
    let idle = || eventually_within(longest, "all instances to be free", are_free);
    let hang_up = |id: &str, batches: usize| {
        let bytes = request("POST", &format!("/validate/{id}"), &[], Review::pod().bytes());
        for _ in 0..batches {
            let callers: Vec<_> = (0..CALLERS)
                .map(|_| {
                    let mut caller = Raw::tcp(pod.admission()).expect("connects");
                    caller.send(&bytes).expect("sends");
                    caller
                })
                .collect();
            eventually("each caller's evaluation to run", || (instances() >= CALLERS as f64).then_some(()));
            drop(callers);
            pod.within(BEFORE_THE_OWN_LIMIT, "evaluations that nobody waits for", idle);
        }
    };
    for id in [LOOPS, SLEEPS] {
        pod.wait_current(id, 1);
        // An allocator takes most of what it keeps with the first thousands.
        hang_up(id, BATCHES);
    }
    let before = pod.evaluator().usage();
    let memory = || pod.memory_at_rest()[0];
    let mut sizes = vec![memory()];
    for _ in 0..WINDOWS {
        for id in [LOOPS, SLEEPS] {
            hang_up(id, BATCHES);
        }
        sizes.push(memory());
    }
    for id in [LOOPS, SLEEPS] {
        assert_eq!(timed_out(&pod, id), 0, "{id} reached its own limit");
    }
    assert_no_leak(pod.evaluator().name(), &sizes, HANG_UPS, "callers that hang up", 1 << 10);
    let mut after = pod.evaluator().usage();
    eventually(&format!("the evaluator to use no more than before, {before}, but {after}"), || {
        after = pod.evaluator().usage();
        after.is_back_to(&before).then_some(())
    });
}

/// Lets a process run for a tenth of the time by stopping it again and again, where the test may not make control groups.
struct Throttle<'p> {
    process: &'p Process,
    done: &'p AtomicBool,
}

impl Throttle<'_> {
    fn run(&self) {
        while !self.done.load(Ordering::SeqCst) {
            self.process.signal(Signal::STOP);
            thread::sleep(Duration::from_millis(90));
            self.process.signal(Signal::CONT);
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The number of failures in a row after which a kubelet restarts a program, as in the chart.
const IN_A_ROW: usize = 3;
/// The longest time for a probe of liveness, as in the chart.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time between two probes: a fifth of that in the chart, so that a short test sends several.
const PERIOD: Duration = Duration::from_secs(2);

/// Sends probes of liveness like those of a kubelet until `done`. Asserts that a kubelet would not restart the evaluator, and returns how
/// many probes there were.
fn assert_stays_alive(pod: &Pod, done: &AtomicBool) -> usize {
    let (mut count, mut in_a_row) = (0, Vec::new());
    while !done.load(Ordering::SeqCst) {
        let (answer, in_time) = pod.timed(PROBE_TIMEOUT, || pod.probe(Program::Evaluator, "/livez"));
        match answer {
            Ok(answer) if answer.status == 200 && in_time.is_ok() => in_a_row.clear(),
            failure => in_a_row.push(format!("{failure:?}, {in_time:?}")),
        }
        assert!(in_a_row.len() < IN_A_ROW, "a kubelet would restart it: {in_a_row:?}");
        count += 1;
        thread::sleep(PERIOD);
    }
    count
}

#[test]
fn fault_e15_a_tenth_of_a_processor() {
    const ROUNDS: usize = 4;
    let _alone = heavy();
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("denies").guest("always_deny").timeout(30));
    folder.put(&Policy::cluster("loops").guest("endless_loop").timeout(2));
    let pod = Pod::on(&folder).start();
    for id in [DENIES, LOOPS] {
        pod.wait_current(id, 1);
    }
    // The canary asks too often for a tenth of a processor. It is resumed afterwards.
    pod.canary().pause();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let cgroup = Cgroup::of_a_tenth_of_a_processor();
        if let Some(cgroup) = &cgroup {
            cgroup.take(pod.evaluator().pid());
        } else {
            skip(
                "in part, as it limits processor time with a control group, which takes root and a group that it may divide",
            );
            let throttle = Throttle { process: pod.evaluator(), done: &done };
            scope.spawn(move || throttle.run());
        }
        let prober = scope.spawn(|| assert_stays_alive(&pod, &done));
        let stop = StopOnDrop(&done);
        for round in 0..ROUNDS {
            let review = Review::pod();
            let ask = || pod.client().ask_at_once(4, LOOPS, &review);
            let mut timed_out = 0;
            for answer in pod.within(Duration::from_secs(5), "calls with two seconds each", ask) {
                let answer = answer.expect("answers");
                let overloaded = answer.verdict().message.contains(Reason::Overloaded.as_str());
                let reason = if overloaded { Reason::Overloaded } else { Reason::EvaluationTimedOut };
                answer.assert_not_judged(&review, LOOPS, reason);
                timed_out += usize::from(!overloaded);
            }
            assert!(timed_out > 0, "round {round}: no call was evaluated until its deadline");
            assert_eq!(pod.ask(DENIES, &review).verdict().message, "denied by always_deny");
        }
        drop(stop);
        let probes = prober.join().expect("liveness does not fail");
        assert!(probes >= IN_A_ROW, "{probes} probes cannot fail {IN_A_ROW} times in a row");
        if let Some(cgroup) = &cgroup {
            cgroup.release(pod.evaluator().pid());
            assert!(cgroup.throttled() > 0, "endless loops use up their share");
        }
    });
    pod.canary().resume();
    let before = pod.canary().answers();
    eventually("the canary", || (pod.canary().answers() > before + 20).then_some(()));
}

/// Asserts that the liveness probe of an evaluator that hangs fails and names `what`. The test then restarts the evaluator, as a kubelet
/// would, and it recovers.
fn assert_noticed(fail_point: &str, what: &str) {
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("denies").guest("always_deny"));
    let trigger = folder.path("hang-now");
    let armed = format!("{fail_point}@{}", trigger.display());
    let pod = Pod::on(&folder).fail_points(Program::Evaluator, &armed).start();
    let line = format!("[-]{what} failed");
    one_round_in_time(|round| {
        if round > 0 {
            fs::remove_file(&trigger).expect("it was written");
            pod.evaluator().restart_with(Some(&armed));
            pod.wait_ready();
        }
        pod.assert_recovered(DENIES, 1);
        assert!(!pod.ask(DENIES, &Review::pod()).verdict().allowed);
        wait_alive(&pod);
        pod.canary().pause();
        folder.write("hang-now", "");
        pod.recovers("liveness to fail", || {
            let live = pod.probe(Program::Evaluator, "/livez").ok()?;
            (live.status == 503 && live.body.contains(&line)).then_some(())
        })
    });
    // The other paths of the probe port still answer.
    for path in ["/readyz?verbose", "/metrics", "/healthz/policies"] {
        assert!(pod.probe(Program::Evaluator, path).is_ok(), "{path}");
    }
    pod.evaluator().restart_with(None);
    pod.wait_ready();
    pod.assert_recovered(DENIES, 1);
    pod.resume_canary();
    assert!(!pod.ask(DENIES, &Review::pod()).verdict().allowed);
    wait_alive(&pod);
}

#[test]
fn fault_e16_the_runtime_hangs() {
    assert_noticed("evaluator.runtime=hang", "runtime");
}

#[test]
fn fault_e17_the_ticks_stop() {
    assert_noticed("evaluator.tick=hang", "epoch");
}
