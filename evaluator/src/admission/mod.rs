//! Puts an admission request to its policies and joins what they decide: the side of [`crate::verdict`] that has guests, counters
//! and a clock.
//!
//! A panic ends as little as it can. Whatever runs for one policy, from its guest to its decision, runs inside the barrier of
//! [`crate::lanes::Share::run`], and a panic there is this policy's failure. Around the request is one more barrier, in
//! [`crate::http`]: a panic that no policy caused becomes the answer that each policy gives to a failure ([`Admission::refused`]).
//!
//! A request that applies a policy goes to the loader of this pod instead ([`check`]). Existing objects are evaluated by one policy at a
//! time, with the capacity that requests leave over ([`audit`]).

pub(crate) mod audit;
pub(crate) mod check;
pub(crate) mod last_call;
mod member_deadlines;
mod members;
mod policy_group;
mod step;
mod yielding;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use portcullis_contract::{Mode, Reason, WebhookKind};
use portcullis_process::failpoint;
use serde_json::value::RawValue;
use tokio::task::JoinSet;
use tracing::field::Empty;
use tracing::{Instrument as _, debug_span};

use crate::admission::last_call::LastCall;
use crate::admission::member_deadlines::MemberDeadlines;
use crate::admission::policy_group::Asking;
use crate::admission::step::{Step, step};
use crate::fair::claimant::Claimant;
use crate::guest::loaded::{Content, Loaded};
use crate::lanes::LaneError;
use crate::memory::WhenFull;
use crate::metrics::kubewarden::{RequestLabels, VerdictLabels};
use crate::metrics::{Count, Metrics};
use crate::review::{RawReview, Review, ReviewError};
use crate::table::{MatchGroup, ServedPolicy, Serving};
use crate::verdict::answer::Answer;
use crate::verdict::decision::{self, Decision, Mutation, ServingSpec};
use crate::verdict::draft::{Draft, Edit, Judged, Kept};
use crate::verdict::{EvaluationError, group};

/// The longest that an API server waits for an answer: the largest `timeoutSeconds` of a webhook.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Puts requests to policies.
#[derive(Clone)]
pub(crate) struct Admission {
    /// Counters.
    pub(crate) metrics: Metrics,
    /// Ends evaluations before the process does.
    pub(crate) last_call: LastCall,
}

/// The policies that a request is for, as they were served when its head came.
#[derive(Clone)]
pub(crate) enum Target {
    /// One policy.
    Policy(Arc<ServedPolicy>),
    /// The members of a match group, with the body, which says which policies the request is for.
    Group(Arc<MatchGroup>, Bytes),
}

impl Target {
    /// The policy that a request counts for; `None` for a match group without members.
    pub(crate) fn claimant(&self) -> Option<&Arc<Claimant>> {
        match self {
            Self::Policy(policy) => Some(policy.share.claimant()),
            Self::Group(group, _) => group.claimant(),
        }
    }
}

/// What the verdict of a single policy is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To decide a request: mode, mutation and custom message count.
    Admission,
    /// To report it to the sender of a request, without mode and custom message.
    Audit,
    /// The same about an object that exists, with the capacity that requests leave over.
    Background,
}

impl Purpose {
    /// Whether the verdict is given as it is, without mode and custom message.
    fn is_audit(self) -> bool {
        self != Self::Admission
    }

    /// Whether several instances may be used at the same time, as far as there are some to spare. Requests would wait for the whole of an audit.
    fn may_take_spares(self) -> bool {
        self != Self::Background
    }

    /// What an instance does where no memory is left: the sender of a request waits for it.
    fn when_full(self) -> WhenFull {
        match self {
            Self::Admission | Self::Audit => WhenFull::Wait,
            Self::Background => WhenFull::Refuse,
        }
    }
}

/// One policy to be evaluated, with everything that its part of the request needs.
struct Evaluation {
    policy: Arc<ServedPolicy>,
    loaded: Arc<Loaded>,
    /// What the guest sees of the request. The members of a validating group share it.
    request: Bytes,
    edit: Edit,
    /// Whether its change of the object may be sent.
    may_mutate: bool,
    /// Whether other policies are asked about the object as this one leaves it.
    is_followed: bool,
    purpose: Purpose,
}

/// A policy that gave a verdict.
struct Evaluated {
    decision: Decision,
    count: Count,
    said: VerdictLabels,
    /// The change of the object that the next policy sees; none where nothing changed or the change does not count.
    kept: Option<Kept>,
}

/// The result of an evaluation, and how long it took; zero where the policy was not asked.
type Timed = (Result<Evaluated, EvaluationError>, Duration);

/// A member of a group, and what is to be done about it.
type Member<'r> = (&'r Arc<ServedPolicy>, Step<'r>);

impl Admission {
    /// The answer of one policy to a review. `until` is when it must be on its way.
    pub(crate) async fn review(
        &self,
        policy: &Arc<ServedPolicy>,
        review: &Review<'_>,
        until: Option<Instant>,
        purpose: Purpose,
    ) -> Answer {
        let payload = || review.payload(review.object().map(RawValue::get));
        let asked = self.asked(review, purpose);
        self.one(policy, payload, Draft::object(review.object()), until, purpose, asked).await
    }

    /// The answer of one policy to a raw request.
    pub(crate) async fn raw(
        &self,
        policy: &Arc<ServedPolicy>,
        review: &RawReview<'_>,
        until: Option<Instant>,
    ) -> Answer {
        let (draft, asked) =
            (Draft::raw(review.request()), self.metrics.has_kubewarden().then_some(RequestLabels::Raw));
        self.one(policy, || review.payload(), draft, until, Purpose::Admission, asked).await
    }

    async fn one(
        &self,
        policy: &Arc<ServedPolicy>,
        payload: impl FnOnce() -> Bytes,
        mut draft: Draft<'_>,
        until: Option<Instant>,
        purpose: Purpose,
        asked: Option<RequestLabels>,
    ) -> Answer {
        let loaded = match step(policy) {
            Step::Evaluate(loaded) => loaded,
            Step::Decided(decision) => return decision.alone(&policy.id, None),
        };
        if draft.is_raw() && !loaded.takes_raw() {
            let text = "internal server error: Gatekeeper does not support raw validation requests";
            let refused = Err(EvaluationError::new(Reason::ModuleUnsupported, text));
            return self
                .conclude(policy, (refused, Duration::ZERO), &mut draft, asked.as_ref())
                .alone(&policy.id, None);
        }
        let deadline = deadline(until, Instant::now(), loaded.timeout());
        let evaluation = Evaluation { purpose, ..Evaluation::new(policy, loaded, payload(), draft.edit()) };
        let result = self.evaluate(evaluation, deadline).await;
        let decision = self.conclude(policy, result, &mut draft, asked.as_ref());
        decision.alone(&policy.id, draft.into_patch())
    }

    /// The answer of all members of a match group. The review is a part of `body`.
    pub(crate) async fn group(
        &self,
        group: &Arc<MatchGroup>,
        review: &Review<'_>,
        body: &Bytes,
        until: Option<Instant>,
    ) -> Answer {
        let members = self.members(group, review, body, until).await;
        match group.kind {
            WebhookKind::Validating => self.side_by_side(members, review, until).await,
            WebhookKind::Mutating => self.in_turn(members, review, until).await,
        }
    }

    /// Asks mutating members one after the other, each about the object as the ones before left it.
    async fn in_turn(&self, members: Vec<Member<'_>>, review: &Review<'_>, until: Option<Instant>) -> Answer {
        let mut draft = Draft::object(review.object());
        let asked = self.asked(review, Purpose::Admission);
        let mut decisions = Vec::with_capacity(members.len());
        let limits = members.iter().filter_map(|(_, step)| match step {
            Step::Evaluate(loaded) => Some(loaded.timeout()),
            Step::Decided(_) => None,
        });
        let mut deadlines = MemberDeadlines::new(until, limits);
        for (policy, step) in members {
            let decision = match step {
                Step::Decided(decision) => *decision,
                Step::Evaluate(loaded) => {
                    let begin = Instant::now();
                    let result = match deadlines.next(begin, loaded.timeout()) {
                        Ok(deadline) => {
                            let (request, edit) = (review.payload(draft.text()), draft.edit());
                            let is_followed = !deadlines.are_over();
                            let evaluation =
                                Evaluation { is_followed, ..Evaluation::new(policy, loaded, request, edit) };
                            self.evaluate(evaluation, deadline).await
                        }
                        Err(skipped) => (Err(skipped), Duration::ZERO),
                    };
                    deadlines.took(&policy.id, begin.elapsed());
                    self.conclude(policy, result, &mut draft, asked.as_ref())
                }
            };
            decisions.push((policy.id.clone(), decision));
        }
        group::join(decisions, draft.into_patch())
    }

    /// Asks validating members all at once: the last one in this task, the others on any free thread.
    async fn side_by_side(&self, members: Vec<Member<'_>>, review: &Review<'_>, until: Option<Instant>) -> Answer {
        let mut results: Vec<_> = members.iter().map(|_| (Err(EvaluationError::timed_out()), Duration::ZERO)).collect();
        let due = members.iter().enumerate().filter_map(|(place, (policy, step))| match step {
            Step::Evaluate(loaded) => Some((place, *policy, *loaded)),
            Step::Decided(_) => None,
        });
        let mut due: Vec<_> = due.collect();
        let mut draft = Draft::object(review.object());
        if let Some((here, policy, loaded)) = due.pop() {
            let request = review.payload(review.object().map(RawValue::get));
            let evaluation = |policy: &Arc<ServedPolicy>, loaded: &Arc<Loaded>| {
                let edit = draft.edit().leaving_out(loaded.mutating());
                Evaluation { may_mutate: false, ..Evaluation::new(policy, loaded, request.clone(), edit) }
            };
            let mut tasks = JoinSet::new();
            for (place, policy, loaded) in due {
                let (admission, evaluation) = (self.clone(), evaluation(policy, loaded));
                let evaluating = async move {
                    let deadline = deadline(until, Instant::now(), evaluation.loaded.timeout());
                    (place, admission.evaluate(evaluation, deadline).await)
                };
                tasks.spawn(evaluating.in_current_span());
            }
            let deadline = deadline(until, Instant::now(), loaded.timeout());
            results[here] = self.evaluate(evaluation(policy, loaded), deadline).await;
            // Tasks that the last call cuts off are aborted with the set, and their results stay "timed out". A task that fails by
            // itself costs only the verdict of its own policy.
            while let Ok(Some(ended)) = self.last_call.or(tasks.join_next()).await {
                if let Ok((place, result)) = ended {
                    results[place] = result;
                }
            }
        }
        let asked = self.asked(review, Purpose::Admission);
        let decisions = members.into_iter().zip(results).map(|((policy, step), result)| {
            let decision = match step {
                Step::Decided(decision) => *decision,
                Step::Evaluate(_) => self.conclude(policy, result, &mut draft, asked.as_ref()),
            };
            (policy.id.clone(), decision)
        });
        group::join(decisions.collect(), None)
    }

    /// Evaluates one policy in its share, until `deadline` or the last call.
    async fn evaluate(&self, evaluation: Evaluation, deadline: Instant) -> Timed {
        let share = Arc::clone(&evaluation.policy.share);
        let begin = Instant::now();
        let span = debug_span!(
            "evaluation", policy = %evaluation.policy.id, generation = evaluation.loaded.generation(),
            verdict = Empty, reason = Empty
        );
        let evaluating = self.last_call.or(share.run(deadline, evaluation.run(deadline))).instrument(span.clone());
        let result = match evaluating.await {
            Ok(Ok(result)) => result,
            Ok(Err(error)) => {
                if error == LaneError::Panicked {
                    self.metrics.panics.inc();
                }
                Err(error.into())
            }
            Err(_) => Err(EvaluationError::timed_out()),
        };
        let (verdict, reason) = match &result {
            Ok(evaluated) => (evaluated.count.verdict(), evaluated.count.reason()),
            Err(error) => ("error", Some(error.reason)),
        };
        span.record("verdict", verdict).record("reason", reason.map(Reason::as_str));
        (result, begin.elapsed())
    }

    /// The labels of the request for Kubewarden's metrics; none where these are off.
    fn asked(&self, review: &Review<'_>, purpose: Purpose) -> Option<RequestLabels> {
        self.metrics.has_kubewarden().then(|| RequestLabels::review(review, purpose.is_audit()))
    }

    /// Counts a result, and takes the policy's change of the object.
    fn conclude(
        &self,
        policy: &ServedPolicy,
        (result, took): Timed,
        draft: &mut Draft<'_>,
        asked: Option<&RequestLabels>,
    ) -> Decision {
        if let (Some(series), Some(asked)) = (&policy.metrics.kubewarden, asked) {
            let failed = |error: &EvaluationError| VerdictLabels {
                code: Some(error.reason.class().code()),
                ..VerdictLabels::default()
            };
            let said = result.as_ref().map_or_else(failed, |evaluated| evaluated.said);
            series.evaluated(policy.is_group, policy.mode, asked, said, took);
        }
        match result {
            Ok(Evaluated { decision, count, kept, .. }) => {
                policy.metrics.count(count);
                kept.into_iter().for_each(|kept| draft.keep(kept));
                decision
            }
            Err(error) => {
                if error.reason == Reason::Overloaded {
                    self.metrics.overloaded.inc();
                }
                self.failed(policy, &error)
            }
        }
    }

    fn failed(&self, policy: &ServedPolicy, error: &EvaluationError) -> Decision {
        policy.metrics.error(error.reason);
        tracing::debug!(policy = %policy.id, reason = %error.reason, "evaluation failed");
        let generation = match &policy.serving {
            Serving::Ready(loaded) => loaded.generation(),
            Serving::Unserved(_) => policy.generation,
        };
        decision::failed(policy.newest(), generation, error)
    }

    /// The answer where no policy was evaluated: each decides by its own `failurePolicy`.
    ///
    /// # Errors
    /// When the body of a request to a group is no review.
    pub(crate) fn refused(&self, target: &Target, error: &EvaluationError) -> Result<Answer, ReviewError> {
        Ok(match target {
            Target::Policy(policy) => self.policy_refused(policy, error),
            Target::Group(group, body) => self.group_refused(group, &Review::parse(body)?, body, error),
        })
    }

    /// The answer of one policy that was not evaluated.
    pub(crate) fn policy_refused(&self, policy: &Arc<ServedPolicy>, error: &EvaluationError) -> Answer {
        self.unasked(policy, step(policy), error).alone(&policy.id, None)
    }

    /// The decision of a policy that cannot be asked because of `error`, where `step` would be next.
    fn unasked(&self, policy: &ServedPolicy, step: Step<'_>, error: &EvaluationError) -> Decision {
        match step {
            Step::Decided(decision) => *decision,
            Step::Evaluate(_) => self.failed(policy, error),
        }
    }
}

impl Evaluation {
    /// The evaluation of a policy alone, to decide a request.
    fn new(policy: &Arc<ServedPolicy>, loaded: &Arc<Loaded>, request: Bytes, edit: Edit) -> Self {
        let (policy, loaded) = (Arc::clone(policy), Arc::clone(loaded));
        let (may_mutate, is_followed, purpose) = (loaded.mutating(), false, Purpose::Admission);
        Self { policy, loaded, request, edit, may_mutate, is_followed, purpose }
    }

    /// Asks the guest, judges its change of the object and decides, all in the policy's own time.
    async fn run(self, deadline: Instant) -> Result<Evaluated, EvaluationError> {
        let Self { policy, loaded, request, edit, may_mutate, is_followed, purpose } = self;
        failpoint::hit_of("evaluator.asking", &policy.id);
        failpoint::hit_async("evaluator.handler").await;
        let Judged { verdict, mutation, change } = match loaded.content() {
            Content::Module(module) => {
                let (when_full, kept) = (purpose.when_full(), edit.held());
                let asked = module.validate_with(request.clone(), edit.subject(), deadline, when_full, kept).await;
                let (verdict, _hold) = asked?;
                edit.judge(policy.share.claimant(), verdict, request, deadline).await?
            }
            Content::PolicyGroup(group) => {
                let asking = Asking { share: &policy.share, edit: &edit, request: &request, deadline, purpose };
                let mut verdict = policy_group::evaluate(group, asking).await?;
                verdict.message = loaded.message().filter(|_| !verdict.accepted).map(str::to_owned);
                Judged { verdict, mutation: Mutation::None, change: None }
            }
        };
        failpoint::hit_of("evaluator.concluding", &policy.id);
        let keeps = purpose.is_audit() || (may_mutate && policy.mode != Mode::Monitor);
        let count = match (verdict.accepted, mutation) {
            (false, _) => Count::Denied,
            (true, Mutation::None) => Count::Allowed,
            (true, Mutation::Changed) if keeps || may_mutate => Count::Mutated,
            (true, Mutation::Changed | Mutation::OfNothing) => Count::PatchInvalid,
        };
        let said =
            VerdictLabels { accepted: verdict.accepted, mutated: mutation != Mutation::None, code: verdict.code };
        let generation = loaded.generation();
        let decision = if purpose.is_audit() {
            decision::plain(generation, verdict, mutation)
        } else {
            if policy.mode == Mode::Monitor {
                let mutated = mutation == Mutation::Changed;
                loaded.log().monitored(verdict.accepted, mutated, verdict.code, verdict.message.as_deref());
            }
            // The verdict of a policy group already has the group's message; those of its members are its causes.
            let message = loaded.message().filter(|_| matches!(loaded.content(), Content::Module(_)));
            let serving = ServingSpec { generation, mutating: may_mutate, message };
            decision::judged(policy.newest(), serving, verdict, mutation)
        };
        let mut kept = change.filter(|_| keeps);
        if let Some(kept) = kept.as_mut().filter(|_| is_followed) {
            let taken = kept.take_memory(policy.share.memory(), policy.share.claimant(), deadline).await;
            taken.map_err(|error| EvaluationError::new(Reason::Overloaded, error.to_string()))?;
        }
        Ok(Evaluated { decision, count, said, kept })
    }
}

/// When an answer must be on its way, if its sender waits for `timeout` from the request's arrival: the way back takes a moment.
pub(crate) fn answer_by(arrived: Instant, timeout: Option<Duration>) -> Option<Instant> {
    let way = |timeout: Duration| (timeout / 10).min(Duration::from_millis(200));
    timeout.and_then(|timeout| arrived.checked_add(timeout - way(timeout)))
}

/// When a policy with this time limit that is asked `now` must have answered: by its own limit or the sender's, whichever comes first.
fn deadline(until: Option<Instant>, now: Instant, limit: Duration) -> Instant {
    until.map_or(now + limit, |until| until.min(now + limit))
}

#[cfg(test)]
mod tests {
    use super::members::tests::unloaded;
    use super::*;

    #[tokio::test]
    async fn an_evaluation_without_room_is_a_refused_request() {
        let metrics = Metrics::new().expect("registers");
        let admission = Admission { metrics: metrics.clone(), last_call: LastCall::default() };
        let policy = unloaded("cluster/a", true, false, &metrics);
        for (reason, refused) in [(Reason::EvaluationTimedOut, 0), (Reason::Overloaded, 1)] {
            let result = (Err(EvaluationError::new(reason, "no")), Duration::ZERO);
            admission.conclude(&policy, result, &mut Draft::object(None), None);
            assert_eq!(metrics.overloaded.get(), refused, "{reason}");
        }
    }

    #[test]
    fn only_what_nobody_has_sent_a_request_for_does_without_memory() {
        assert_eq!([Purpose::Admission, Purpose::Audit].map(Purpose::when_full), [WhenFull::Wait; 2]);
        assert_eq!(Purpose::Background.when_full(), WhenFull::Refuse);
        assert!(!Purpose::Admission.is_audit() && Purpose::Audit.is_audit() && Purpose::Background.is_audit());
    }

    #[test]
    fn the_smaller_limit_counts() {
        let arrived = Instant::now();
        let asked = arrived + Duration::from_millis(100);
        let after = |timeout: Option<u64>, limit| {
            let until = answer_by(arrived, timeout.map(Duration::from_millis));
            (deadline(until, asked, Duration::from_millis(limit)) - arrived).as_millis()
        };
        assert_eq!(after(None, 2000), 2100);
        assert_eq!(after(Some(10_000), 2000), 2100);
        assert_eq!(after(Some(1000), 5000), 900);
        assert_eq!(after(Some(10_000), 30_000), 9800);
    }
}
