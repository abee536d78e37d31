//! Section 8: calls that end badly, and an evaluator that is starved or hangs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use portcullis_contract::Reason;
use portcullis_tests::{
    Answer, Canary, Folder, Pod, Policy, Process, Program, Raw, Review, Stalls, StopOnDrop, eventually,
    eventually_within, heavy, request,
};
use rustix::process::Signal;

const DENIES: &str = "cluster/denies";
const LOOPS: &str = "cluster/loops";

fn livez(pod: &Pod) -> Answer {
    pod.probe(Program::Evaluator, "/livez").expect("the probe port answers")
}

#[test]
fn fault_e05_panic_in_a_handler() {
    const PANICS: usize = 3;
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("denies").guest("always_deny"));
    let points = format!("evaluator.handler={PANICS}*panic");
    let pod = Pod::on(&folder).fail_points(Program::Evaluator, &points).start();
    pod.wait_current(DENIES, 1);
    // The canary comes after them, or it would be hit itself.
    for number in 1..=PANICS {
        let review = Review::pod();
        pod.ask(DENIES, &review).assert_not_judged(&review, DENIES, Reason::InternalError);
        assert_eq!(pod.metric("portcullis_panics_total") as usize, number);
    }
    let canary = Canary::on(&pod);
    let verdict = pod.ask(DENIES, &Review::pod()).verdict();
    assert_eq!(verdict.message, "denied by always_deny");
    assert_eq!(pod.metric("portcullis_panics_total") as usize, PANICS);
    canary.finish(&pod);
}

/// For some seconds instead of a minute.
#[test]
fn fault_e06_more_requests_than_capacity() {
    const CALLS: usize = 400;
    let _alone = heavy();
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("heavy").guest("heavy").timeout(5));
    let pod = Pod::on(&folder).start();
    pod.wait_current("cluster/heavy", 1);
    let canary = Canary::on(&pod);
    assert!(pod.ask("cluster/heavy", &Review::pod()).verdict().allowed);
    let before = pod.evaluator().usage();
    for _ in 0..2 {
        let review = Review::pod();
        let mut overloaded = 0;
        for answer in pod.client().ask_at_once(CALLS, "cluster/heavy", &review) {
            let answer = answer.expect("answers");
            if !answer.verdict().allowed {
                let is_overloaded = answer.verdict().message.contains(Reason::Overloaded.as_str());
                let reason = if is_overloaded { Reason::Overloaded } else { Reason::EvaluationTimedOut };
                answer.assert_not_judged(&review, "cluster/heavy", reason);
                overloaded += usize::from(is_overloaded);
            }
        }
        assert!(overloaded > 0, "{CALLS} calls at once are no overload");
        assert!(pod.metric("portcullis_overloaded_total") > 0.0);
        // Recovery at once: the next call is judged.
        assert!(pod.ask("cluster/heavy", &Review::pod()).verdict().allowed);
    }
    let after = pod.evaluator().usage();
    assert!(after.peak < before.peak + (256 << 20), "{before} became {after}");
    canary.finish(&pod);
}

/// Whether an answer that has just come was there well before 30 seconds were over.
fn is_before_the_own_limit(answer: &Answer) -> bool {
    Stalls::watch().is_in_time(Duration::from_secs(15), answer.elapsed)
}

/// The limits are so far apart that a slow machine does not blur them.
#[test]
fn fault_e07_the_smaller_of_two_limits() {
    let folder = Folder::with_canary();
    let policy = Policy::cluster("loops").guest("endless_loop").timeout(30);
    folder.put(&policy);
    folder.put(&Policy::cluster("short").guest("endless_loop").timeout(1));
    let pod = Pod::on(&folder).start();
    pod.wait_current(LOOPS, 1);
    pod.wait_current("cluster/short", 1);
    let canary = Canary::on(&pod);
    let ask = |path: String| {
        let review = Review::pod();
        let answer = pod.client().post(&path, review.bytes()).expect("answers");
        (review, answer)
    };
    for timeout in ["1s", "1000ms", "0.5s"] {
        let (review, answer) = ask(format!("/validate/{LOOPS}?timeout={timeout}"));
        answer.assert_not_judged(&review, LOOPS, Reason::EvaluationTimedOut);
        assert!(is_before_the_own_limit(&answer), "the policy's own limit was waited for: {answer:?}");
    }
    let (_, answer) = ask(format!("/admit/{}?timeout=1s", policy.group()));
    assert!(
        answer.verdict().message.contains(&format!("policy {LOOPS}: {}", Reason::EvaluationTimedOut)),
        "{answer:?}"
    );
    assert!(is_before_the_own_limit(&answer), "{answer:?}");
    // The answer is there before the API server gives up, unless the machine is busy with other tests at that moment.
    eventually("an answer within the second that the API server waits", || {
        let (_, answer) = ask(format!("/validate/{LOOPS}?timeout=1s"));
        (answer.elapsed < Duration::from_secs(1)).then_some(())
    });
    // A longer timeout of the request does not extend the policy's own.
    let (review, answer) = ask("/validate/cluster/short?timeout=30s".to_owned());
    answer.assert_not_judged(&review, "cluster/short", Reason::EvaluationTimedOut);
    assert!(is_before_the_own_limit(&answer), "{answer:?}");
    canary.finish(&pod);
}

/// 300 times instead of 10 000: each is a connection with a handshake of its own.
#[test]
fn fault_e08_caller_hangs_up() {
    let folder = Folder::with_canary();
    for (name, guest) in [("loops", "endless_loop"), ("sleeps", "clock_sleep")] {
        folder.put(&Policy::cluster(name).guest(guest).timeout(30));
    }
    let pod = Pod::on(&folder).start();
    let canary = Canary::on(&pod);
    let idle = || eventually("all instances to be free", || (pod.metric("portcullis_instances") < 2.0).then_some(()));
    let hang_up = |id: &str, times: usize| {
        let bytes = request("POST", &format!("/validate/{id}"), &[], Review::pod().bytes());
        for _ in 0..times {
            let callers: Vec<_> = (0..5)
                .map(|_| {
                    let mut caller = Raw::tls(pod.admission()).expect("connects");
                    caller.send(&bytes).expect("sends");
                    caller
                })
                .collect();
            eventually("an evaluation to run", || (pod.metric("portcullis_instances") >= 2.0).then_some(()));
            drop(callers);
        }
        idle();
    };
    for id in [LOOPS, "cluster/sleeps"] {
        pod.wait_current(id, 1);
        hang_up(id, 2);
    }
    let before = pod.evaluator().usage();
    for id in [LOOPS, "cluster/sleeps"] {
        hang_up(id, 30);
    }
    eventually("memory, descriptors and threads as before (I5)", || {
        pod.evaluator().usage().is_back_to(&before).then_some(())
    });
    canary.finish(&pod);
}

/// Lets a process run a tenth of the time, as `cpu.max` does: by stopping it again and again.
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

#[test]
fn fault_e15_a_tenth_of_a_processor() {
    let _alone = heavy();
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("denies").guest("always_deny").timeout(30));
    folder.put(&Policy::cluster("loops").guest("endless_loop").timeout(1));
    let pod = Pod::on(&folder).start();
    for id in [DENIES, LOOPS] {
        pod.wait_current(id, 1);
    }
    // Its pace is not one for a tenth of a processor; it looks at what is left behind.
    let canary = Canary::on(&pod);
    canary.pause();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let throttle = Throttle { process: pod.evaluator(), done: &done };
        scope.spawn(move || throttle.run());
        let _stop = StopOnDrop(&done);
        for _ in 0..3 {
            let review = Review::pod();
            for answer in pod.client().ask_at_once(4, LOOPS, &review) {
                let answer = answer.expect("answers");
                let overloaded = answer.verdict().message.contains(Reason::Overloaded.as_str());
                let reason = if overloaded { Reason::Overloaded } else { Reason::EvaluationTimedOut };
                answer.assert_not_judged(&review, LOOPS, reason);
                assert!(Stalls::watch().is_in_time(Duration::from_secs(20), answer.elapsed), "{answer:?}");
            }
            assert_eq!(pod.ask(DENIES, &review).verdict().message, "denied by always_deny");
            // A kubelet asks every ten seconds, and restarts a program that fails three times in a row.
            eventually_within(Duration::from_secs(30), "liveness", || (livez(&pod).status == 200).then_some(()));
        }
    });
    canary.resume();
    let before = canary.answers();
    eventually("the canary", || (canary.answers() > before + 20).then_some(()));
    canary.finish(&pod);
}

/// The evaluator's liveness probe fails and names `what`. The test restarts it, as a kubelet would, and it recovers.
fn assert_noticed(fail_point: &str, what: &str) {
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("denies").guest("always_deny"));
    let pod = Pod::on(&folder).fail_points(Program::Evaluator, fail_point).begin();
    let line = format!("[-]{what} failed");
    eventually("liveness to fail", || {
        let live = pod.probe(Program::Evaluator, "/livez").ok()?;
        (live.status == 503 && live.body.contains(&line)).then_some(())
    });
    // The other probes answer all the same.
    for path in ["/readyz?verbose", "/metrics", "/healthz/policies"] {
        assert!(pod.probe(Program::Evaluator, path).is_ok(), "{path}");
    }
    pod.evaluator().restart_with(None);
    pod.wait_ready();
    pod.assert_recovered(DENIES, 1);
    let canary = Canary::on(&pod);
    assert!(!pod.ask(DENIES, &Review::pod()).verdict().allowed);
    assert_eq!(livez(&pod).status, 200);
    canary.finish(&pod);
}

#[test]
fn fault_e16_the_runtime_hangs() {
    assert_noticed("evaluator.runtime=hang", "runtime");
}

#[test]
fn fault_e17_the_ticks_stop() {
    assert_noticed("evaluator.tick=hang", "epoch");
}
