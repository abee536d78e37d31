//! Section 8: more requests than can be judged, for a minute.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use portcullis_contract::Reason;
use portcullis_tests::{
    Answer, FLOODED, Folder, LIMIT, Pod, Policy, Program, Review, allow_many_connections, eventually,
};

const HEAVY: &str = "cluster/heavy";

/// How many times more requests come than can be judged.
const TOO_MANY: f64 = 5.0;

/// The time limit of the policy, in seconds. It is long enough to judge some requests on a machine that is busy with other programs.
const TIMEOUT: u32 = 8;

/// An answer within this time, half of [`TIMEOUT`], is early.
const EARLY: Duration = Duration::from_secs(4);

/// The time between two requests of a caller. It is longer than an answer takes, so the rate does not depend on the answers.
const PERIOD: Duration = Duration::from_secs(10);

/// How many requests each caller sends: they take a minute.
const ROUNDS: u32 = 6;

/// The most callers, because each is a thread with a connection of its own. It is enough for 40 judged requests a second, which is more than
/// [`CORES`] can do.
const MOST_CALLERS: usize = 2000;

/// The processors that the evaluator plans for, on every machine.
const CORES: u32 = 2;

/// If other programs use more than this fraction of the machine, the rest may not be enough to refuse requests early.
const TOO_BUSY: f64 = 0.3;

/// The outcomes of the requests.
#[derive(Debug, Default)]
struct Outcomes {
    judged: AtomicUsize,
    overloaded: AtomicUsize,
    /// How many of `overloaded` were refused early.
    early: AtomicUsize,
    timed_out: AtomicUsize,
}

impl Outcomes {
    fn count(&self, answer: &Answer, review: &Review) {
        let add = |counter: &AtomicUsize| {
            counter.fetch_add(1, Ordering::Relaxed);
        };
        let verdict = answer.verdict();
        if verdict.allowed {
            add(&self.judged);
        } else if verdict.message.contains(Reason::Overloaded.as_str()) {
            answer.assert_not_judged(review, HEAVY, Reason::Overloaded);
            assert_eq!(verdict.code, 503, "{answer:?}");
            add(&self.overloaded);
            if answer.elapsed < EARLY {
                add(&self.early);
            }
        } else {
            answer.assert_not_judged(review, HEAVY, Reason::EvaluationTimedOut);
            add(&self.timed_out);
        }
    }
}

/// How many requests a second are judged if each caller waits for its answer. On a machine that is busy with other programs, some of them
/// may time out.
fn capacity(pod: &Pod) -> f64 {
    let (start, outcomes, review) = (Instant::now(), Outcomes::default(), Review::pod());
    let check = |answer: Result<Answer, String>| outcomes.count(&answer.expect("answers"), &review);
    let is_over = || {
        let limit = if outcomes.judged.load(Ordering::Relaxed) > 0 { Duration::from_secs(5) } else { LIMIT };
        start.elapsed() > limit
    };
    pod.client().ask_until(4, HEAVY, &review, check, is_over);
    assert!(outcomes.judged.load(Ordering::Relaxed) > 0, "some are judged");
    assert_eq!(outcomes.overloaded.load(Ordering::Relaxed), 0, "four callers are not too many");
    outcomes.judged.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64()
}

/// Sends requests at this rate for a minute.
fn load(pod: &Pod, per_second: f64) -> Outcomes {
    let callers = (per_second * PERIOD.as_secs_f64()).ceil() as usize;
    assert!(callers <= MOST_CALLERS, "{callers} callers are too many here: the policy needs more work");
    println!("{callers} callers, {per_second:.0} requests a second");
    let (outcomes, start) = (Outcomes::default(), Instant::now());
    thread::scope(|scope| {
        for number in 0..callers {
            let (client, outcomes) = (pod.client().clone(), &outcomes);
            let first = start + PERIOD.mul_f64(number as f64 / callers as f64);
            let caller = move || {
                for round in 0..ROUNDS {
                    thread::sleep((first + PERIOD * round).saturating_duration_since(Instant::now()));
                    let review = Review::pod();
                    outcomes.count(&client.ask(HEAVY, &review), &review);
                }
            };
            thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, caller).expect("a thread");
        }
    });
    outcomes
}

#[test]
fn fault_e06_five_times_more_requests_than_can_be_judged_for_a_minute() {
    allow_many_connections();
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("heavy").guest("heavy").timeout(TIMEOUT));
    // Without TLS, because a debug build cannot do a thousand handshakes within seconds.
    let setup = Pod::on(&folder).without(Program::Reporter).plain_http().evaluator("--cores", CORES);
    let pod = setup.canary_within(FLOODED, "five times more calls come than can be judged").start();
    pod.wait_current(HEAVY, 1);
    let best = capacity(&pod);
    let (before, since) = (pod.evaluator().usage(), pod.moment_with_test());
    let Outcomes { judged, overloaded, early, timed_out } = load(&pod, best * TOO_MANY);
    let is_too_busy = since.taken_by_others(&pod.moment_with_test()) > TOO_BUSY;
    // Recovery is immediate: the next call is judged, or on a machine that is busy with other programs one of the next three.
    let is_judged = |_| pod.ask(HEAVY, &Review::pod()).verdict().allowed;
    assert!((0..3).any(is_judged), "the next calls are not judged");
    let [judged, overloaded, early, timed_out] = [judged, overloaded, early, timed_out].map(AtomicUsize::into_inner);
    println!(
        "{judged} judged, {overloaded} overloaded, {early} of them early, {timed_out} timed out; {best:.0} a second at best"
    );
    assert!(judged > 0, "some are judged");
    assert!(overloaded > timed_out, "{overloaded} were refused and {timed_out} timed out");
    let all = judged + overloaded + timed_out;
    assert!(timed_out * 10 <= all || is_too_busy, "{timed_out} of {all} timed out, and {overloaded} were refused");
    assert!(early * 2 > overloaded || is_too_busy, "{early} of {overloaded} refusals were early");
    assert!(pod.metric("portcullis_overloaded_total") > 0.0);
    let after = pod.evaluator().usage();
    assert!(after.peak < before.peak + (256 << 20), "{before} became {after}");
    eventually("all instances to be free", || (pod.metric("portcullis_instances") < 2.0).then_some(()));
    eventually("at least half the earlier pace", || (capacity(&pod) * 2.0 > best).then_some(()));
}
