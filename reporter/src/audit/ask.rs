//! Asks this pod's evaluator for the verdict of a policy on an object.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portcullis_contract::{AUDIT_PATH, AuditAnswer, AuditOutcome, AuditRefusal, AuditVerdict, PolicyId, clean};
use portcullis_kubernetes::{CallError, Failures};
use portcullis_process::{Answer, PostError, Poster};
use portcullis_util::{Backoff, lock};

/// Longest time for one answer: an evaluation of 30 seconds that has to wait for its turn.
const LONGEST: Duration = Duration::from_secs(60);
/// How long a question is repeated while the evaluator is busy or starts.
const PATIENCE: Duration = Duration::from_secs(600);
/// How long a question is repeated while the evaluator refuses it and answers others. Requests may take all that its policy may take, on purpose.
const PATIENCE_ALONE: Duration = Duration::from_secs(10);
/// The most tries while the evaluator does not answer: an object that makes it crash must not do so for ever.
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
    /// How much of the audit's time it took that the policy pays for.
    pub(super) time: Duration,
}

/// How much of the audit's time a question has taken without an answer. What all policies wait for, because the replica is busy, none pays for.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Taken {
    /// Evaluations without a verdict, and pauses because requests take all places of the policy while others are answered.
    own: Duration,
    /// The same, and such pauses while nobody else is answered.
    held_up: Duration,
    /// Evaluations without a verdict, and all pauses while others are answered.
    alone: Duration,
}

/// What an answer means.
#[derive(Debug, PartialEq, Eq)]
enum Reply {
    Verdict(AuditAnswer),
    /// The evaluator does not serve the policy.
    Unserved,
    /// Ask again after this time, if it was given.
    Busy(Option<Duration>, Refused),
    /// The evaluator fails.
    Broken,
}

/// What the evaluator says about a refusal.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Refused {
    /// Whether requests to the policy itself are the cause.
    is_of_policy: bool,
    /// How long it evaluated before that.
    evaluated: Duration,
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
        let mut taken = Taken::default();
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
            let (pause, is_of_policy) = match reply {
                Reply::Verdict(AuditAnswer { verdict, microseconds }) => {
                    lock(&self.failures).over();
                    self.answered.fetch_add(1, Ordering::Relaxed);
                    return Asked { verdict: Some(verdict), time: taken.own + Duration::from_micros(microseconds) };
                }
                Reply::Unserved => return Asked { verdict: None, time: taken.own },
                Reply::Busy(asked, refused) => {
                    busy += 1;
                    taken.evaluated(refused.evaluated);
                    (asked.unwrap_or_else(|| PAUSES.wait(busy, fastrand::f64())), refused.is_of_policy)
                }
                Reply::Broken => {
                    failed += 1;
                    (PAUSES.wait(failed, fastrand::f64()), false)
                }
            };
            if let Some(time) = taken.given_up(failed, begin.elapsed() + pause) {
                return Asked { verdict: None, time };
            }
            tokio::time::sleep(pause).await;
            taken.paused(pause, is_of_policy, self.answered.load(Ordering::Relaxed) > answered);
        }
    }
}

impl Taken {
    /// Notes an evaluation that gave no verdict. All others had to wait for it.
    fn evaluated(&mut self, time: Duration) {
        self.own += time;
        self.held_up += time;
        self.alone += time;
    }

    /// Notes a pause. `is_of_policy` says whether it was made because of the requests to the policy, and `are_others_answered` whether other
    /// questions were answered in it.
    fn paused(&mut self, pause: Duration, is_of_policy: bool, are_others_answered: bool) {
        let counted = |counts: bool| if counts { pause } else { Duration::ZERO };
        self.own += counted(is_of_policy && are_others_answered);
        self.held_up += counted(is_of_policy);
        self.alone += counted(are_others_answered);
    }

    /// What the policy pays for, if its question is not tried again. `waited` is the time from the first try to the next one.
    fn given_up(&self, failed: u32, waited: Duration) -> Option<Duration> {
        if waited > PATIENCE {
            return Some(self.held_up);
        }
        if self.alone >= PATIENCE_ALONE {
            // The load of a replica refuses now this question, now that one. One that is refused each time while others are answered is about a
            // policy or a namespace that holds as much as it may, and would hold up the audit with each of its objects.
            return Some(self.alone);
        }
        (failed >= TRIES).then_some(self.own)
    }
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
        408 | 429 | 503 => {
            // Most refusals have a text.
            let said: AuditRefusal = serde_json::from_slice(&answer.body).unwrap_or_default();
            let evaluated = Duration::from_micros(said.microseconds);
            Reply::Busy(answer.retry_after, Refused { is_of_policy: said.is_of_policy, evaluated })
        }
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
        assert_eq!(of(503, "busy"), Reply::Busy(Some(Duration::from_secs(7)), Refused::default()));
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
    fn a_refusal_says_whether_it_is_about_the_policy_and_how_long_it_evaluated() {
        let refused = |is_of_policy, microseconds| {
            let message = "requests take all places of this policy".to_owned();
            let said = AuditRefusal { message, is_of_policy, microseconds };
            of(503, &serde_json::to_string(&said).expect("encodes"))
        };
        for is_of_policy in [true, false] {
            let said = Refused { is_of_policy, evaluated: Duration::from_micros(7) };
            assert_eq!(refused(is_of_policy, 7), Reply::Busy(Some(Duration::from_secs(7)), said));
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    /// A question that is refused again and again for a while, with pauses of a second: what its policy pays for if it is given up, and if it is
    /// answered after that.
    fn refused(seconds: u32, is_of_policy: bool, are_others_answered: bool) -> (Option<Duration>, Duration) {
        let mut taken = Taken::default();
        for second in 1..=seconds {
            if let Some(time) = taken.given_up(0, SECOND * second) {
                return (Some(time), taken.own);
            }
            taken.paused(SECOND, is_of_policy, are_others_answered);
        }
        (taken.given_up(0, SECOND * (seconds + 1)), taken.own)
    }

    #[test]
    fn requests_that_take_all_places_of_a_policy_count_while_others_are_answered() {
        assert_eq!(refused(9, true, true), (None, SECOND * 9));
        assert_eq!(refused(1000, true, true), (Some(PATIENCE_ALONE), PATIENCE_ALONE));
        assert_eq!(refused(9, true, false), (None, Duration::ZERO));
        assert_eq!(
            refused(1000, true, false),
            (Some(PATIENCE), Duration::ZERO),
            "it has held up the audit all the time"
        );
    }

    #[test]
    fn load_of_the_whole_replica_is_charged_to_no_policy() {
        assert_eq!(refused(9, false, true), (None, Duration::ZERO), "it is answered after some tries");
        assert_eq!(refused(1000, false, false), (Some(Duration::ZERO), Duration::ZERO), "nobody is answered");
        assert_eq!(refused(1000, false, true).0, Some(PATIENCE_ALONE), "only this one is refused");
    }

    #[test]
    fn evaluations_without_a_verdict_count_and_end_a_question() {
        let mut taken = Taken::default();
        taken.evaluated(SECOND * 9);
        taken.paused(SECOND, false, false);
        assert_eq!((taken.given_up(0, SECOND * 11), taken.own), (None, SECOND * 9));
        taken.evaluated(SECOND * 9);
        assert_eq!(taken.given_up(0, SECOND * 21), Some(SECOND * 18));
        assert_eq!(taken.given_up(0, PATIENCE + SECOND), Some(SECOND * 18));
    }

    #[test]
    fn an_evaluator_that_is_away_is_asked_some_times_and_no_policy_pays() {
        let mut taken = Taken::default();
        taken.paused(SECOND * 9, false, true);
        assert_eq!(taken.given_up(TRIES - 1, SECOND * 9), None);
        assert_eq!(taken.given_up(TRIES, SECOND * 9), Some(Duration::ZERO));
    }
}
