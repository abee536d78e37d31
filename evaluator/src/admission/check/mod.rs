//! Has the loader of this pod check a policy that somebody applies. If the check itself fails, the policy is admitted with a warning.

mod permits;

use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_contract::{CheckOutcome, CheckVerdict, MAX_CHECK_TIME};

use self::permits::{NoPermit, Permits};
use super::answer_by;
use super::last_call::LastCall;
use crate::capability::{BrokerLink, LinkFailure};
use crate::metrics::Metrics;
use crate::review::Review;
use crate::review::applied::AppliedPolicy;
use crate::verdict::answer::Answer;
use crate::verdict::check;

/// How long an API server waits if the request does not say so.
const PATIENCE: Duration = Duration::from_secs(10);

/// Checks of policies that are applied.
pub(crate) struct Checks {
    link: Arc<BrokerLink>,
    last_call: LastCall,
    /// Separate from the permits of requests that policies decide on: neither takes permits from the other.
    permits: Permits,
    metrics: Metrics,
}

impl Checks {
    /// Checks by the loader at the other end of `link`, until the last call.
    pub(crate) fn new(link: Arc<BrokerLink>, last_call: LastCall, metrics: &Metrics) -> Arc<Self> {
        Arc::new(Self { link, last_call, permits: Permits::default(), metrics: metrics.clone() })
    }

    /// The answer to a review of a policy object that came at `arrived`, from a client that waits for `timeout`.
    pub(crate) async fn answer(&self, review: &Review<'_>, arrived: Instant, timeout: Option<Duration>) -> Answer {
        let (outcome, answer) = match review.applied_policy() {
            None => ("skipped", check::admitted()),
            Some(policy) => {
                let timeout = timeout.unwrap_or(PATIENCE).min(MAX_CHECK_TIME);
                self.asked(&policy, answer_by(arrived, Some(timeout)).unwrap_or(arrived)).await
            }
        };
        self.metrics.checks.with_label_values(&[outcome]).inc();
        answer
    }

    /// The answer about a policy, given by `until`, and the label of the metric that counts it.
    async fn asked(&self, policy: &AppliedPolicy<'_>, until: Instant) -> (&'static str, Answer) {
        const UNKNOWN: &str = "unknown";
        match self.last_call.or(self.verdict(policy, until)).await {
            Ok(Ok(verdict)) => {
                let outcome = match verdict.outcome {
                    CheckOutcome::Passed => "passed",
                    CheckOutcome::Refused => "refused",
                    CheckOutcome::Unknown => UNKNOWN,
                };
                (outcome, check::answered(verdict))
            }
            Ok(Err(failure)) => (UNKNOWN, check::not_checked(&failure.to_string())),
            Err(_) => (UNKNOWN, check::not_checked("this replica is about to stop")),
        }
    }

    /// Waits for a permit, for half of the time at most, and then for the loader's verdict.
    async fn verdict(&self, policy: &AppliedPolicy<'_>, until: Instant) -> Result<CheckVerdict, NotAsked> {
        let left = until.saturating_duration_since(Instant::now());
        let _permit = self.permits.take(&policy.user, &policy.tenant, until - left / 2).await?;
        Ok(self.link.check(policy.object, until).await?)
    }
}

/// Why there is no verdict.
#[derive(Debug, thiserror::Error)]
enum NotAsked {
    /// Too many other policies are being checked.
    #[error(transparent)]
    NoPermit(#[from] NoPermit),
    /// The loader does not answer, or not in time.
    #[error("{}", .0.cause())]
    Link(#[from] LinkFailure),
}

#[cfg(test)]
mod tests {
    use portcullis_contract::Tenant;

    use super::*;

    const POLICY: &str = r#"{"request":{"uid":"u","kind":{"group":"","version":"v1","kind":"Policy"},"resource":{"group":"","version":"v1","resource":"policies"},"operation":"CREATE","userInfo":{},"object":{"spec":{}}}}"#;

    struct Rig {
        checks: Arc<Checks>,
        last_call: LastCall,
    }

    impl Rig {
        /// Checks without a loader.
        fn new() -> Self {
            let (metrics, last_call) = (Metrics::new().expect("registers"), LastCall::default());
            let checks = Checks::new(BrokerLink::new(&metrics, false), last_call.clone(), &metrics);
            Self { checks, last_call }
        }

        async fn answer(&self, body: &str) -> Answer {
            let review = Review::parse(body.as_bytes()).expect("a review");
            self.checks.answer(&review, Instant::now(), Some(Duration::from_millis(200))).await
        }

        fn counted(&self) -> [u64; 4] {
            let outcomes = ["passed", "refused", "unknown", "skipped"];
            outcomes.map(|outcome| self.checks.metrics.checks.with_label_values(&[outcome]).get())
        }
    }

    #[tokio::test]
    async fn where_there_is_nothing_to_check_nobody_is_asked() {
        let rig = Rig::new();
        let answer = rig.answer(&POLICY.replace("CREATE", "DELETE")).await;
        assert_eq!(answer, Answer { allowed: true, ..Answer::default() });
        assert_eq!(rig.counted(), [0, 0, 0, 1]);
    }

    #[tokio::test]
    async fn without_a_loader_a_policy_is_admitted_with_a_warning() {
        let rig = Rig::new();
        let answer = rig.answer(POLICY).await;
        assert!(answer.allowed);
        assert!(answer.warnings[0].contains("not checked: the loader of this pod does not answer;"), "{answer:?}");
        assert_eq!(rig.counted(), [0, 0, 1, 0]);
    }

    #[tokio::test]
    async fn where_too_many_are_being_checked_a_policy_is_admitted_with_a_warning() {
        let rig = Rig::new();
        let soon = Instant::now() + Duration::from_secs(60);
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(rig.checks.permits.take("", &Tenant::Cluster, soon).await.expect("free"));
        }
        let answer = rig.answer(POLICY).await;
        assert!(answer.allowed);
        assert_eq!(
            answer.warnings,
            [
                "the policy was not checked: too many policies of this user are being checked on this replica; `kubectl describe` shows whether it loads"
            ]
        );
        assert_eq!(rig.counted(), [0, 0, 1, 0]);
    }

    #[tokio::test]
    async fn the_last_call_ends_a_check() {
        let rig = Rig::new();
        rig.last_call.announce();
        let answer = rig.answer(POLICY).await;
        assert!(answer.allowed && answer.warnings[0].contains("this replica is about to stop"), "{answer:?}");
    }
}
