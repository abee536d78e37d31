//! Asks this pod's evaluator for the verdict of a policy on an object.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use portcullis_contract::{AUDIT_PATH, AuditOutcome, AuditVerdict, PolicyId, clean};
use portcullis_kubernetes::{CallError, Failures};
use portcullis_process::{Answer, PostError, Poster};
use portcullis_util::{Backoff, lock};

/// Longest time for one answer: an evaluation of 30 seconds that has to wait for its turn.
const LONGEST: Duration = Duration::from_secs(60);
/// How long a question is repeated while the evaluator is busy or starts.
const PATIENCE: Duration = Duration::from_secs(600);
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
}

/// What an answer means.
#[derive(Debug, PartialEq, Eq)]
enum Reply {
    Verdict(AuditVerdict),
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
        Ok(Self { poster: Poster::new(address, LONGEST)?, failures: Mutex::new(failures) })
    }

    /// The verdict of a policy on an AdmissionReview; none if the evaluator cannot be asked. `generation` is the one that it serves, by its
    /// last report.
    pub(super) async fn ask(&self, policy: &PolicyId, generation: i64, review: &[u8]) -> Option<AuditVerdict> {
        let path = format!("{AUDIT_PATH}{policy}");
        let (begin, mut failed, mut busy) = (Instant::now(), 0, 0);
        loop {
            let reply = match self.poster.post(&path, review.to_vec()).await {
                Ok(answer) => reply(&answer, generation),
                Err(error) => {
                    let error = CallError::Unreachable(error.to_string());
                    lock(&self.failures).failed(&error);
                    Reply::Broken
                }
            };
            let pause = match reply {
                Reply::Verdict(verdict) => {
                    lock(&self.failures).over();
                    return Some(verdict);
                }
                Reply::Unserved => return None,
                Reply::Busy(asked) => {
                    busy += 1;
                    asked.unwrap_or_else(|| PAUSES.wait(busy, fastrand::f64()))
                }
                Reply::Broken => {
                    failed += 1;
                    PAUSES.wait(failed, fastrand::f64())
                }
            };
            if failed >= TRIES || begin.elapsed() + pause > PATIENCE {
                return None;
            }
            tokio::time::sleep(pause).await;
        }
    }
}

/// What an answer means. Pure.
fn reply(answer: &Answer, generation: i64) -> Reply {
    let refused = |message: String| {
        Reply::Verdict(AuditVerdict { outcome: AuditOutcome::Failed, generation, message: Some(message), reason: None })
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
        let allowed = AuditVerdict { outcome: AuditOutcome::Allowed, generation: 4, message: None, reason: None };
        assert_eq!(of(200, r#"{"outcome":"allowed","generation":4}"#), Reply::Verdict(allowed));
        assert_eq!(of(503, "busy"), Reply::Busy(Some(Duration::from_secs(7))));
        assert_eq!((of(404, ""), of(500, ""), of(200, "nonsense")), (Reply::Unserved, Reply::Broken, Reply::Broken));
    }

    #[test]
    fn an_object_that_the_evaluator_refuses_is_one_that_could_not_be_evaluated() {
        for (status, words) in [(413, "larger"), (400, "refuses the object with 400: too deep")] {
            let Reply::Verdict(verdict) = of(status, "too deep") else { panic!("{status}") };
            assert_eq!((verdict.outcome, verdict.generation), (AuditOutcome::Failed, 3));
            assert!(verdict.message.is_some_and(|message| message.contains(words)), "{status}");
        }
    }
}
