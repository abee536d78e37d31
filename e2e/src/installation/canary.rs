//! I1: the evaluators of an installation give right answers in time, also through an API server, while something fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use portcullis_testkit::{Moment, most_excused, note};
use serde_json::{Value, json};

use super::Installation;
use crate::api::Api;
use crate::canary_check::CanaryCheck;
use crate::lock;
use crate::program::Program;

/// I1: the longest that an answer may take, as in docs/design/faults.md. The times that [`Moment::allowed`] leaves out do not
/// count.
pub const IN_TIME: Duration = Duration::from_secs(1);

/// The longest for a test whose own evaluators use the whole machine.
pub const FLOODED: Duration = Duration::from_secs(5);

/// The interval of calls: 50 per second.
const PACE: Duration = Duration::from_millis(20);

/// The oldest moment from which the load of the machine is measured for a call.
const FRESH: Duration = Duration::from_millis(500);

/// Listens to the evaluators of an installation or a release. Copies are cheap.
#[derive(Clone)]
pub struct Listener {
    /// The process ids of the evaluators.
    evaluators: Arc<dyn Fn() -> Vec<u32> + Send + Sync>,
    canary_check: CanaryCheck,
}

/// The results of many calls, one after the other.
#[derive(Debug)]
#[must_use = "`in_time` asserts that the answers were in time"]
pub struct Heard<T> {
    answers: Vec<T>,
    slowest: Duration,
    /// Calls that took too long while the machine stood still or was busy with others.
    excused: usize,
    /// Descriptions of the calls that took too long.
    late: Vec<String>,
}

/// The answer that a canary expects.
#[derive(Debug, Clone)]
pub enum Right {
    /// The object is admitted.
    Admitted,
    /// The object is denied, with this text in the message.
    Denied(String),
}

/// Tries to create an object 50 times per second, from now on until it ends.
#[must_use = "`end` asserts what it heard"]
pub struct Canary {
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<Heard<(u16, String)>>>,
    right: Right,
}

impl Installation<'_> {
    /// Listens to its evaluators.
    pub fn listener(&self) -> Listener {
        let pods = Arc::clone(&self.pods);
        let evaluators = move || {
            let pods = lock(&pods).clone();
            // An evaluator that has ended uses no time.
            let running = pods.iter().filter(|pod| pod.has(Program::Evaluator));
            running.filter_map(|pod| pod.program(Program::Evaluator).pid()).collect()
        };
        Listener::new(evaluators, &self.canary_check)
    }

    /// A canary in a namespace whose pods are always admitted, or always denied.
    pub fn canary(&self, namespace: &str, right: Right) -> Canary {
        let (api, namespace) = (self.api(), namespace.to_owned());
        Canary::start(self.listener(), IN_TIME, right, move || try_pod(&api, &namespace))
    }

    /// Tries to create a pod without creating it: the status and the message of the API server.
    ///
    /// # Panics
    /// When no API server answers.
    pub fn try_pod(&self, namespace: &str) -> (u16, String) {
        try_pod(&self.api(), namespace)
    }
}

impl Listener {
    /// Listens to the evaluators with these process ids, for a test that this check is about.
    pub(crate) fn new(evaluators: impl Fn() -> Vec<u32> + Send + Sync + 'static, canary_check: &CanaryCheck) -> Self {
        Self { evaluators: Arc::new(evaluators), canary_check: canary_check.clone() }
    }

    /// Calls 50 times per second, one call after the other, until `done` is set, and at least once. An answer is in time if it comes within the
    /// limit, or is late only because other programs, or the machine itself, took the time. The evaluators are the tested programs here: in a
    /// cluster, the other containers have processor time of their own.
    pub fn hear<T>(&self, limit: Duration, done: &AtomicBool, mut call: impl FnMut() -> T) -> Heard<T> {
        self.canary_check.done();
        let mut heard = Heard { answers: Vec::new(), slowest: Duration::ZERO, excused: 0, late: Vec::new() };
        let (start, mut since) = (Instant::now(), self.moment());
        loop {
            if since.age() > FRESH {
                since = self.moment();
            }
            let asked = Instant::now();
            heard.answers.push(call());
            let took = asked.elapsed();
            heard.slowest = heard.slowest.max(took);
            if took > limit {
                let allowed = since.allowed(limit, &self.moment());
                if took > allowed {
                    let when = start.elapsed();
                    heard.late.push(format!("after {when:?}: it took {took:?}, and {allowed:?} were allowed then"));
                } else {
                    heard.excused += 1;
                }
            }
            if done.load(Ordering::SeqCst) {
                return heard;
            }
            // It does not catch up after a late answer: a burst of calls would keep a busy machine busy.
            thread::sleep(PACE.saturating_sub(asked.elapsed()));
        }
    }

    fn moment(&self) -> Moment {
        Moment::now((self.evaluators)().into_iter())
    }
}

impl<T> Heard<T> {
    /// Prints how many answers there were and how long the slowest took, and returns the answers.
    ///
    /// # Panics
    /// When an answer was late, or more were late because of the machine than any machine excuses (I1).
    pub fn in_time(self) -> Vec<T> {
        let Self { answers, slowest, excused, late } = self;
        let count = answers.len();
        note(&format!(
            "the canary: {count} answers, the slowest after {slowest:.1?}; {} late, {excused} excused",
            late.len()
        ));
        assert!(late.is_empty(), "{} answers of the canary were late (I1), the first {}", late.len(), late[0]);
        assert!(
            excused as u64 <= most_excused((count - excused) as u64),
            "{excused} of {count} answers of the canary were late, which no busy machine excuses (I1)"
        );
        answers
    }
}

impl Right {
    /// Whether an answer is right.
    fn is(&self, code: u16, message: &str) -> bool {
        match self {
            Self::Admitted => code == 201,
            Self::Denied(text) => code >= 400 && message.contains("denied the request") && message.contains(text),
        }
    }
}

impl Canary {
    /// Repeats `attempt` from now on, with this limit for each answer: the status and the message of the API server.
    pub(crate) fn start(
        listener: Listener,
        limit: Duration,
        right: Right,
        attempt: impl FnMut() -> (u16, String) + Send + 'static,
    ) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let is_done = Arc::clone(&done);
        let thread = thread::spawn(move || listener.hear(limit, &is_done, attempt));
        Self { done, thread: Some(thread), right }
    }

    /// Ends the canary, and asserts that each answer was right and in time.
    ///
    /// # Panics
    /// When an answer was wrong or late.
    pub fn end(mut self) {
        self.done.store(true, Ordering::SeqCst);
        let heard = self.thread.take().expect("it ends once").join().expect("an API server answers");
        let answers = heard.in_time();
        let wrong: Vec<_> = answers.iter().filter(|(code, message)| !self.right.is(*code, message)).collect();
        let (count, right) = (answers.len(), &self.right);
        assert!(
            wrong.is_empty(),
            "{} of {count} answers of the canary are not {right:?} (I1), the first {:?}",
            wrong.len(),
            wrong[0]
        );
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        self.done.store(true, Ordering::SeqCst);
        if let Some(calling) = self.thread.take() {
            // What it heard does not count if the test has failed already.
            let _ = calling.join();
            assert!(thread::panicking(), "nobody has called `end` of a canary, which asserts what it heard");
        }
    }
}

fn try_pod(api: &Api, namespace: &str) -> (u16, String) {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "generateName": "tried-", "namespace": namespace },
        "spec": { "containers": [{ "name": "main", "image": "example.invalid/none" }] },
    });
    try_to_create(api, &format!("/api/v1/namespaces/{namespace}/pods"), &pod)
}

/// Tries to create an object in a collection without creating it: the status and the message of the API server.
pub(super) fn try_to_create(api: &Api, collection: &str, object: &Value) -> (u16, String) {
    let reply = api.create(&format!("{collection}?dryRun=All"), object);
    let reply = reply.expect("an API server answers");
    (reply.code, reply.body["message"].as_str().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_right_by_its_status_and_its_text() {
        let denied = Right::Denied("not today".to_owned());
        assert!(denied.is(403, "admission webhook \"a\" denied the request: policy cluster/a: not today"));
        assert!(!denied.is(403, "admission webhook \"a\" denied the request: policy cluster/a: something else"));
        assert!(!denied.is(500, "failed calling webhook: not today"));
        assert!(!denied.is(201, ""));
        assert!(Right::Admitted.is(201, "") && !Right::Admitted.is(403, "no"));
    }

    #[test]
    fn answers_are_given_back_and_one_in_time_is_not_late() {
        let listener = Listener::new(Vec::new, &CanaryCheck::default());
        let done = AtomicBool::new(false);
        let mut count = 0;
        let heard = listener.hear(Duration::from_secs(60), &done, || {
            count += 1;
            done.store(count == 3, Ordering::SeqCst);
            count
        });
        assert_eq!(heard.in_time(), [1, 2, 3]);
    }

    #[test]
    #[should_panic(expected = "1 answers of the canary were late (I1), the first x")]
    fn one_late_answer_is_too_many() {
        Heard { answers: vec![1], slowest: Duration::ZERO, excused: 0, late: vec!["x".to_owned()] }.in_time();
    }

    #[test]
    #[should_panic(expected = "14 of 514 answers of the canary were late, which no busy machine excuses (I1)")]
    fn a_busy_machine_does_not_excuse_everything() {
        let heard =
            |excused| Heard { answers: vec![1; 500 + excused], slowest: Duration::ZERO, excused, late: Vec::new() };
        assert_eq!(heard(13).in_time().len(), 513);
        heard(14).in_time();
    }
}
