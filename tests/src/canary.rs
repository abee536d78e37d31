//! I1: a canary on the same server gives the right answer in time during the whole test.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use portcullis_contract::{EvaluatorState, Reason};
use portcullis_testkit::lock;
use reqwest::Method;
use tokio::runtime::Runtime;

use crate::review::RenewedBody;
use crate::{Answer, CANARY, Client, Moment, Process, Review, Stalls};

/// I1: the longest that an answer of the canary may take, as in docs/design/faults.md. The times that [`Moment::allowed`] leaves out do
/// not count.
pub(crate) const IN_TIME: Duration = Duration::from_secs(1);

/// The longest for a test that uses the whole machine by itself, as a flood of calls or connections does: half of the time for which an
/// API server waits for a webhook. A debug build and the clients of such a test have two cores together; `bench isolation` measures how
/// much slower calls get.
pub const FLOODED: Duration = Duration::from_secs(5);

/// The only answer of the guest `counter`: it counts its calls, and each call has its own instance.
const RIGHT: &str = "call 1 by global, call 1 by memory";
/// The interval of requests: 50 per second.
const PACE: Duration = Duration::from_millis(20);
/// The interval at which the test checks whether the evaluator serves the canary's policy yet.
const LOOK: Duration = Duration::from_millis(100);
/// The oldest moment from which the load of the machine is measured for a call.
const FRESH: Duration = Duration::from_millis(500);

/// A call without an answer in time is not the server's fault if the machine stood still for longer than this in the meantime, or was so
/// busy with others that an answer might have come as late.
const STALL: Duration = Duration::from_secs(1);

/// Calls the canary policy of a pod from the moment at which it is served until the test ends.
pub struct Canary {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Heard>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    paused: Mutex<bool>,
    answers: AtomicU64,
}

/// How the canary policy of a pod is called.
pub(crate) struct Calls {
    /// A client of the admission port that the test does not use for anything else.
    pub(crate) client: Client,
    /// A client of the evaluator's state port.
    pub(crate) state: Client,
    /// The evaluator. The loader counts as another program here: in a cluster it has a container, and so processor time, of its
    /// own.
    pub(crate) evaluator: Arc<Process>,
    /// A text in the object of each request, which must not appear anywhere else (I4).
    pub(crate) secret: String,
    /// The longest that an answer may take.
    pub(crate) limit: Duration,
    /// Whether the first call waits for [`Canary::resume`].
    pub(crate) is_paused: bool,
}

/// The results of all calls.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// The number of right answers.
    pub(crate) right: u64,
    /// The time of the slowest right answer.
    pub(crate) slowest: Duration,
    /// Calls that took too long while the machine stood still or was busy with others.
    pub(crate) excused: u64,
    /// A description of each wrong or late answer.
    pub(crate) wrong: Vec<String>,
}

impl Canary {
    /// Starts calling.
    pub(crate) fn start(calls: Calls) -> Self {
        let shared = Arc::new(Shared { paused: Mutex::new(calls.is_paused), ..Shared::default() });
        let seen = Arc::clone(&shared);
        let thread = thread::Builder::new().name("canary".into()).spawn(move || calls.run(&seen)).expect("a thread");
        Self { shared, thread: Some(thread) }
    }

    /// Stops calling until [`Canary::resume`], and waits for the last answer: for rows that kill the server.
    pub fn pause(&self) {
        *lock(&self.shared.paused) = true;
    }

    /// Starts calling again.
    pub fn resume(&self) {
        *lock(&self.shared.paused) = false;
    }

    /// The number of right answers.
    pub fn answers(&self) -> u64 {
        self.shared.answers.load(Ordering::SeqCst)
    }

    /// Stops calling, after at least one right answer, and returns the results of all calls.
    pub(crate) fn finish(mut self) -> Heard {
        let thread = self.thread.take().expect("it runs once");
        // A short test may be over before the first answer.
        let start = Instant::now();
        while self.answers() == 0 && !thread.is_finished() && start.elapsed() < crate::LIMIT {
            thread::sleep(PACE);
        }
        self.shared.stop.store(true, Ordering::SeqCst);
        thread.join().expect("the canary's thread ends")
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            // The test has failed already.
            let _ = thread.join();
        }
    }
}

impl Calls {
    /// The runtime is the canary's own, because clients of the test that flood the server keep the shared one busy.
    fn run(self, shared: &Shared) -> Heard {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (start, mut heard, mut serves) = (Instant::now(), Heard::default(), false);
        let review = Review::pod().with("/object/metadata/annotations/password", self.secret.as_str());
        let mut body = RenewedBody::new(&review);
        let mut since = self.moment();
        while !shared.stop.load(Ordering::SeqCst) {
            let begun = Instant::now();
            if since.age() > FRESH {
                since = self.moment();
            }
            // Locked for the whole call, so that a pause begins after it.
            let paused = lock(&shared.paused);
            if !*paused && !serves {
                serves = runtime.block_on(self.serves());
            }
            if !*paused && serves {
                body.renew();
                self.call(&runtime, &body, &since, start, &mut heard);
                shared.answers.store(heard.right, Ordering::SeqCst);
            }
            drop(paused);
            let pace = if serves { PACE } else { LOOK };
            // This sleeps in the runtime, not in the thread: so a kept connection that the server closes in the meantime is noticed,
            // and the next call opens another one.
            runtime.block_on(async { tokio::time::sleep(pace.saturating_sub(begun.elapsed())).await });
        }
        heard
    }

    fn moment(&self) -> Moment {
        Moment::now(self.evaluator.running().into_iter())
    }

    /// Whether the evaluator reports that it serves the canary policy, and the admission port answers: that port is open before the
    /// evaluator has read its certificate, which may be after it serves policies.
    async fn serves(&self) -> bool {
        let Ok(answer) = self.state.send(Method::GET, "/v1/state", None).await else { return false };
        let state: Option<EvaluatorState> = serde_json::from_str(&answer.body).ok();
        let is_current = state.is_some_and(|state| state.current.contains_key(id().as_str()));
        is_current && self.client.send(Method::GET, "/", None).await.is_ok()
    }

    fn call(&self, runtime: &Runtime, body: &RenewedBody, since: &Moment, start: Instant, heard: &mut Heard) {
        let asked = Instant::now();
        let path = format!("/validate/{}", id());
        let answer = runtime.block_on(self.client.send(Method::POST, &path, Some(body.bytes())));
        let took = asked.elapsed();
        let is_unanswered = answer.as_ref().map_or(true, is_too_late);
        match answer.and_then(|answer| check(&answer, body.uid())) {
            Ok(()) => {
                heard.right += 1;
                heard.slowest = heard.slowest.max(took);
                if took > self.limit {
                    let allowed = since.allowed(self.limit, &self.moment());
                    if took > allowed {
                        let when = start.elapsed();
                        heard
                            .wrong
                            .push(format!("after {when:?}: it took {took:?}, and {allowed:?} were allowed then"));
                    } else {
                        heard.excused += 1;
                    }
                }
            }
            Err(error) => {
                let lost = Stalls::watch().lost(asked.checked_sub(STALL).unwrap_or(asked), Instant::now());
                // The evaluator has a time limit of its own, which an evaluation may reach if the machine is busy with
                // others.
                let is_late = took > self.limit && took <= since.allowed(self.limit, &self.moment());
                if is_unanswered && (lost > STALL || is_late) {
                    eprintln!(
                        "the canary was not answered within {took:?}, while the machine stood still for {lost:?} or \
                         was busy with others: {error}"
                    );
                    heard.excused += 1;
                } else {
                    heard.wrong.push(format!("after {:?}: {error}", start.elapsed()));
                }
            }
        }
    }
}

/// The id of the canary policy.
pub(crate) fn id() -> String {
    format!("cluster/{CANARY}")
}

/// Whether the answer says that there was no time for a verdict.
fn is_too_late(answer: &Answer) -> bool {
    [Reason::EvaluationTimedOut, Reason::Overloaded].iter().any(|reason| answer.body.contains(reason.as_str()))
}

fn check(answer: &Answer, uid: &str) -> Result<(), String> {
    if answer.status != 200 {
        return Err(format!("{answer:?}"));
    }
    let verdict = answer.verdict();
    let right = verdict.uid == uid && !verdict.allowed && verdict.message == RIGHT;
    if right { Ok(()) } else { Err(format!("{answer:?}")) }
}
