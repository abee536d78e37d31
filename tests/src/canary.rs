//! I1 and I2: a canary on the same server gives the right answer during the whole test, and no program ends.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use portcullis_contract::Reason;
use portcullis_testkit::lock;

use crate::{Answer, CANARY, Pod, Review, Stalls};

/// The only answer of the guest `counter`: it counts its calls, and each call has its own instance.
const RIGHT: &str = "call 1 by global, call 1 by memory";
/// The time between two requests: 50 a second.
const PACE: Duration = Duration::from_millis(20);

/// A call that is not answered in its time is no fault of the server if the machine stood still for longer than this meanwhile.
const STALL: Duration = Duration::from_secs(1);

/// Calls the canary until this is dropped.
pub struct Canary {
    stop: Arc<AtomicBool>,
    paused: Arc<Mutex<bool>>,
    answers: Arc<AtomicU64>,
    thread: Option<JoinHandle<Vec<String>>>,
}

impl Canary {
    /// Waits until the canary serves, then calls it 50 times a second. The folder must be [`crate::Folder::with_canary`].
    ///
    /// # Panics
    /// When the canary does not come to serve.
    pub fn on(pod: &Pod) -> Self {
        let id = format!("cluster/{CANARY}");
        pod.wait_current(&id, 1);
        let (stop, paused, answers) = (Arc::default(), Arc::default(), Arc::default());
        let asks = Asks {
            client: pod.new_client(),
            stop: Arc::clone(&stop),
            paused: Arc::clone(&paused),
            answers: Arc::clone(&answers),
        };
        let thread = thread::Builder::new().name("canary".into()).spawn(move || asks.run(&id)).expect("a thread");
        Self { stop, paused, answers, thread: Some(thread) }
    }

    /// Stops calling until [`Canary::resume`], and waits for the last answer: for rows that kill the server.
    pub fn pause(&self) {
        *lock(&self.paused) = true;
    }

    /// Starts calling again.
    pub fn resume(&self) {
        *lock(&self.paused) = false;
    }

    /// The number of right answers.
    pub fn answers(&self) -> u64 {
        self.answers.load(Ordering::SeqCst)
    }

    /// Stops calling, and asserts that every answer was right and all programs run.
    ///
    /// # Panics
    /// When one was not, or a program has ended.
    pub fn finish(mut self, pod: &Pod) {
        // A short test may be over before the first answer.
        let start = Instant::now();
        while self.answers() == 0 && start.elapsed() < crate::LIMIT {
            thread::sleep(PACE);
        }
        self.stop.store(true, Ordering::SeqCst);
        let wrong = self.thread.take().expect("it runs once").join().expect("the canary's thread ends");
        assert!(wrong.is_empty(), "{} answers of the canary were wrong (I1), first {}", wrong.len(), wrong[0]);
        assert!(self.answers() > 0, "the canary was never asked");
        pod.assert_alive();
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            // The test has failed already, or did not call `finish`.
            let _ = thread.join();
        }
    }
}

struct Asks {
    client: crate::Client,
    stop: Arc<AtomicBool>,
    paused: Arc<Mutex<bool>>,
    answers: Arc<AtomicU64>,
}

impl Asks {
    fn run(&self, id: &str) -> Vec<String> {
        let (start, mut wrong) = (Instant::now(), Vec::new());
        while !self.stop.load(Ordering::SeqCst) {
            let asked = Instant::now();
            // Held for the whole call, so that a pause begins after it.
            let paused = lock(&self.paused);
            if !*paused {
                let review = Review::pod();
                let answer = self.client.try_ask(id, &review);
                let is_unanswered = match &answer {
                    Ok(answer) => is_too_late(answer),
                    Err(_) => true,
                };
                let lost = Stalls::watch().lost(asked.checked_sub(STALL).unwrap_or(asked), Instant::now());
                match answer.and_then(|answer| check(&answer, &review)) {
                    Ok(()) => {
                        self.answers.fetch_add(1, Ordering::SeqCst);
                    }
                    Err(error) if is_unanswered && lost > STALL => {
                        eprintln!("the canary was not answered while the machine stood still for {lost:?}: {error}");
                    }
                    Err(error) => wrong.push(format!("after {:?}: {error}", start.elapsed())),
                }
            }
            drop(paused);
            thread::sleep(PACE.saturating_sub(asked.elapsed()));
        }
        wrong
    }
}

/// Whether there was no time for a verdict.
fn is_too_late(answer: &Answer) -> bool {
    [Reason::EvaluationTimedOut, Reason::Overloaded].iter().any(|reason| answer.body.contains(reason.as_str()))
}

fn check(answer: &Answer, review: &Review) -> Result<(), String> {
    if answer.status != 200 {
        return Err(format!("{answer:?}"));
    }
    let verdict = answer.verdict();
    let right = verdict.uid == review.uid() && !verdict.allowed && verdict.message == RIGHT;
    if right { Ok(()) } else { Err(format!("{answer:?}")) }
}
