//! Asks this pod's evaluator for the verdict of a policy on an object.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portcullis_contract::{AUDIT_PATH, AuditAnswer, AuditOutcome, AuditVerdict, PolicyId, clean};
use portcullis_kubernetes::{CallError, Failures};
use portcullis_process::{Answer, PostError, Poster};
use portcullis_util::{Backoff, lock};

/// Longest time for one answer: an evaluation of 30 seconds that has to wait for its turn.
const LONGEST: Duration = Duration::from_secs(60);
/// How long a question is repeated while the evaluator is busy or starts.
const PATIENCE: Duration = Duration::from_secs(600);
/// How long a question is repeated while the evaluator refuses it and answers others. Requests may take all that its policy may take, on purpose.
const PATIENCE_ALONE: Duration = Duration::from_secs(10);
/// Most tries while the evaluator does not answer: an object that makes it crash must not do so for ever.
const TRIES: u32 = 6;
/// Pauses between the tries.
const PAUSES: Backoff = Backoff { shortest: Duration::from_millis(500), longest: Duration::from_secs(10) };
/// Longest text of a refusal that is quoted, in bytes.
const MAX_QUOTE: usize = 300;

/// The evaluator of this pod.
pub(super) struct Evaluator {
    poster: Poster,
    failures: Mutex<Failures>,
    /// The number of questions that it has answered.
    answered: AtomicU64,
}

/// The outcome of a question.
#[derive(Debug)]
pub(super) struct Asked {
    /// None if the evaluator cannot be asked.
    pub(super) verdict: Option<AuditVerdict>,
    /// How much of the audit's time it took: that of the evaluation, and pauses in which others were answered.
    pub(super) time: Duration,
}

/// What an answer means.
#[derive(Debug, PartialEq, Eq)]
enum Reply {
    Verdict(AuditAnswer),
    /// The evaluator does not serve the policy.
    Unserved,
    /// Ask again after this time, if it was given.
    Busy(Option<Duration>),
    /// The evaluator fails.
    Broken,
}

impl Evaluator {
    /// The evaluator whose state port is `address`.
    ///
    /// # Errors
    /// When no HTTP client can be made.
    pub(super) fn new(address: SocketAddr, failures: Failures) -> Result<Self, PostError> {
        Ok(Self { poster: Poster::new(address, LONGEST)?, failures: Mutex::new(failures), answered: AtomicU64::new(0) })
    }

    /// Asks a policy about an AdmissionReview. `generation` is the one that the evaluator serves, by its last report.
    pub(super) async fn ask(&self, policy: &PolicyId, generation: i64, review: &[u8]) -> Asked {
        let path = format!("{AUDIT_PATH}{policy}");
        let (begin, mut failed, mut busy) = (Instant::now(), 0, 0);
        let mut alone = Duration::ZERO;
        loop {
            let reply = match self.poster.post(&path, review.to_vec()).await {
                Ok(answer) => reply(&answer, generation),
                Err(error) => {
                    let error = CallError::Unreachable(error.to_string());
                    lock(&self.failures).failed(&error);
                    Reply::Broken
                }
            };
            let answered = self.answered.load(Ordering::Relaxed);
            let pause = match reply {
                Reply::Verdict(AuditAnswer { verdict, microseconds }) => {
                    lock(&self.failures).over();
                    self.answered.fetch_add(1, Ordering::Relaxed);
                    return Asked { verdict: Some(verdict), time: alone + Duration::from_micros(microseconds) };
                }
                Reply::Unserved => return Asked { verdict: None, time: alone },
                Reply::Busy(asked) => {
                    busy += 1;
                    asked.unwrap_or_else(|| PAUSES.wait(busy, fastrand::f64()))
                }
                Reply::Broken => {
                    failed += 1;
                    PAUSES.wait(failed, fastrand::f64())
                }
            };
            if let Some(time) = given_up(failed, alone, begin.elapsed() + pause) {
                return Asked { verdict: None, time };
            }
            tokio::time::sleep(pause).await;
            if self.answered.load(Ordering::Relaxed) > answered {
                alone += pause;
            }
        }
    }
}

/// How much of the audit's time a question took, if it is not tried again. `waited` is the time from the first try to the next one. Pure.
fn given_up(failed: u32, alone: Duration, waited: Duration) -> Option<Duration> {
    if waited > PATIENCE {
        // It has held up the audit all the time.
        return Some(waited);
    }
    (failed >= TRIES || alone >= PATIENCE_ALONE).then_some(alone)
}

/// What an answer means. Pure.
fn reply(answer: &Answer, generation: i64) -> Reply {
    let refused = |message: String| {
        let message = Some(message);
        let verdict = AuditVerdict { outcome: AuditOutcome::Failed, generation, message, reason: None };
        Reply::Verdict(AuditAnswer { verdict, microseconds: 0 })
    };
    match answer.status {
        200 => serde_json::from_slice(&answer.body).map_or(Reply::Broken, Reply::Verdict),
        404 => Reply::Unserved,
        413 => refused("the object is larger than the evaluator takes".to_owned()),
        408 | 429 | 503 => Reply::Busy(answer.retry_after),
        400..=499 => {
            let words = clean(&String::from_utf8_lossy(&answer.body), MAX_QUOTE);
            refused(format!("the evaluator refuses the object with {}: {words}", answer.status))
        }
        _ => Reply::Broken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: u16, body: &str) -> Reply {
        let retry_after = (status == 503).then_some(Duration::from_secs(7));
        reply(&Answer { status, retry_after, body: body.into() }, 3)
    }

    #[test]
    fn answers_are_verdicts_or_say_when_to_ask_again() {
        let verdict = AuditVerdict { outcome: AuditOutcome::Allowed, generation: 4, message: None, reason: None };
        let allowed = |microseconds| Reply::Verdict(AuditAnswer { verdict: verdict.clone(), microseconds });
        assert_eq!(of(200, r#"{"outcome":"allowed","generation":4,"microseconds":7}"#), allowed(7));
        assert_eq!(of(200, r#"{"outcome":"allowed","generation":4}"#), allowed(0));
        assert_eq!(of(503, "busy"), Reply::Busy(Some(Duration::from_secs(7))));
        assert_eq!((of(404, ""), of(500, ""), of(200, "nonsense")), (Reply::Unserved, Reply::Broken, Reply::Broken));
    }

    #[test]
    fn an_object_that_the_evaluator_refuses_is_one_that_could_not_be_evaluated() {
        for (status, words) in [(413, "larger"), (400, "refuses the object with 400: too deep")] {
            let Reply::Verdict(AuditAnswer { verdict, .. }) = of(status, "too deep") else { panic!("{status}") };
            assert_eq!((verdict.outcome, verdict.generation), (AuditOutcome::Failed, 3));
            assert!(verdict.message.is_some_and(|message| message.contains(words)), "{status}");
        }
    }

    #[test]
    fn a_question_is_given_up_sooner_if_only_this_one_is_refused() {
        let second = Duration::from_secs(1);
        assert_eq!(given_up(TRIES - 1, PATIENCE_ALONE - second, PATIENCE), None);
        assert_eq!(given_up(0, PATIENCE_ALONE, PATIENCE_ALONE), Some(PATIENCE_ALONE));
        assert_eq!(
            given_up(TRIES, Duration::ZERO, second),
            Some(Duration::ZERO),
            "the evaluator is away, which no policy pays for"
        );
        assert_eq!(given_up(0, Duration::ZERO, PATIENCE + second), Some(PATIENCE + second));
    }
}
