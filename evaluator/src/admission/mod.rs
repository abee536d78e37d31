//! Asks policies: the thin side of [`crate::verdict::decision`] and [`crate::verdict::group`], with guests, counters and the clock.

pub(crate) mod last_call;
mod member_deadlines;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt as _;
use jiff::Timestamp;
use portcullis_contract::{Mode, PolicyId, Reason, WebhookKind};
use portcullis_process::failpoint;
use serde_json::value::RawValue;
use tokio::task::JoinSet;

use crate::admission::last_call::LastCall;
use crate::admission::member_deadlines::MemberDeadlines;
use crate::guest::loaded::{CallLimits, Loaded, Payload};
use crate::lanes::{Refusal, TIMED_OUT};
use crate::metrics::Metrics;
use crate::review::{RawReview, Review};
use crate::table::{Group, Record, Serving};
use crate::verdict::answer::Answer;
use crate::verdict::decision::{self, Mutation, Opinion, Terms};
use crate::verdict::draft::{Draft, Edit, Judged};
use crate::verdict::group;
use crate::verdict::{EvaluationError, Verdict};

/// When a request came, and how long its sender waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    /// When its head was read.
    pub arrived: Instant,
    /// The `timeout` that the API server names.
    pub timeout: Option<Duration>,
}

impl Call {
    /// When a policy with this time limit that is asked at `now` must have answered. The smaller of both limits counts; the
    /// sender's runs since the request's arrival, and the answer needs a moment for its way.
    fn deadline(self, now: Instant, limit: Duration) -> Instant {
        self.until().map_or(now + limit, |sender| sender.min(now + limit))
    }

    /// When the answer must be on its way.
    fn until(self) -> Option<Instant> {
        let way = |timeout: Duration| (timeout / 10).min(Duration::from_millis(200));
        self.timeout.and_then(|timeout| self.arrived.checked_add(timeout - way(timeout)))
    }
}

/// What asking needs beside policy and request.
#[derive(Clone)]
pub(crate) struct Asker {
    /// Counters.
    pub metrics: Metrics,
    /// Ends evaluations before the process does.
    pub last_call: LastCall,
}

/// How far a verdict of a single policy is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It decides: mode, mutation and custom message count.
    Admission,
    /// It is told as it is.
    Audit,
}

impl Asker {
    /// Asks one policy about a review.
    pub(crate) async fn review(
        &self,
        record: &Arc<Record>,
        review: &Review<'_>,
        call: Call,
        purpose: Purpose,
    ) -> Answer {
        let payload = || review.payload(review.object().map(RawValue::get));
        self.one(record, payload, Draft::object(review.object()), call, purpose).await
    }

    /// Asks one policy about a raw request.
    pub(crate) async fn raw(&self, record: &Arc<Record>, review: &RawReview<'_>, call: Call) -> Answer {
        self.one(record, || review.payload(), Draft::raw(review.request()), call, Purpose::Admission).await
    }

    async fn one(
        &self,
        record: &Arc<Record>,
        payload: impl FnOnce() -> Bytes,
        mut draft: Draft<'_>,
        call: Call,
        purpose: Purpose,
    ) -> Answer {
        let loaded = match standing(record) {
            Standing::Open(loaded) => loaded,
            Standing::Settled(opinion) => return opinion.alone(&record.id, None),
        };
        let result = self.spared(self.evaluate(record, loaded, payload(), draft.edit(), call)).await;
        let mutating = loaded.mutating();
        let opinion = self.conclude(record, loaded, result, &mut draft, Weight { mutating, purpose });
        opinion.alone(&record.id, draft.into_patch())
    }

    /// Asks every member of a group.
    pub(crate) async fn group(&self, group: &Group, review: &Review<'_>, call: Call) -> Answer {
        let standing = |record| (record, standing_for(record, review));
        let members: Vec<_> = group.members.iter().map(standing).collect();
        match group.kind {
            WebhookKind::Validating => self.side_by_side(members, review, call).await,
            WebhookKind::Mutating => self.in_turn(members, review, call).await,
        }
    }

    /// Mutating members, each on the object that the ones before left.
    async fn in_turn(&self, members: Vec<Member<'_>>, review: &Review<'_>, call: Call) -> Answer {
        let mut draft = Draft::object(review.object());
        let mut opinions = Vec::with_capacity(members.len());
        let limits = members.iter().filter_map(|(_, standing)| match standing {
            Standing::Open(loaded) => Some(loaded.timeout()),
            Standing::Settled(_) => None,
        });
        let mut deadlines = MemberDeadlines::new(call.until(), limits);
        for (record, standing) in members {
            let opinion = match standing {
                Standing::Settled(opinion) => *opinion,
                Standing::Open(loaded) => {
                    let begin = Instant::now();
                    let result = match deadlines.next(begin, loaded.timeout()) {
                        Ok(deadline) => {
                            let payload = review.payload(draft.text());
                            let asking = self.evaluate_until(deadline, record, loaded, payload, draft.edit());
                            self.spared(asking).await
                        }
                        Err(skipped) => Err(skipped),
                    };
                    deadlines.took(&record.id, begin.elapsed());
                    let weight = Weight { mutating: loaded.mutating(), purpose: Purpose::Admission };
                    self.conclude(record, loaded, result, &mut draft, weight)
                }
            };
            opinions.push((record.id.clone(), opinion));
        }
        group::join(opinions, draft.into_patch())
    }

    /// Validating members, all at once: all but the last on whatever thread is free, the last one here.
    async fn side_by_side(&self, members: Vec<Member<'_>>, review: &Review<'_>, call: Call) -> Answer {
        let mut results: Vec<_> = members.iter().map(|_| Err(timed_out())).collect();
        let open = members.iter().enumerate().filter_map(|(place, (record, standing))| match standing {
            Standing::Open(loaded) => Some((place, *record, *loaded)),
            Standing::Settled(_) => None,
        });
        let mut open: Vec<_> = open.collect();
        let mut draft = Draft::object(review.object());
        if let Some((here, record, loaded)) = open.pop() {
            let payload = review.payload(review.object().map(RawValue::get));
            let mut tasks = JoinSet::new();
            for (place, record, loaded) in open {
                let (asker, payload, edit) =
                    (self.clone(), payload.clone(), draft.edit().leaving_out(loaded.mutating()));
                let (record, loaded) = (Arc::clone(record), Arc::clone(loaded));
                tasks.spawn(async move {
                    let asking = asker.evaluate(&record, &loaded, payload, edit, call);
                    (place, asker.spared(asking).await)
                });
            }
            let edit = draft.edit().leaving_out(loaded.mutating());
            results[here] = self.spared(self.evaluate(record, loaded, payload, edit, call)).await;
            // What the last call cuts off is aborted with the set and stays out of time; so does a task that somebody else
            // aborts, and it ends nobody's but its own.
            while let Ok(Some(ended)) = self.last_call.or(tasks.join_next()).await {
                if let Ok((place, result)) = ended {
                    results[place] = result;
                }
            }
        }
        let opinions = members.into_iter().zip(results).map(|((record, standing), result)| {
            let opinion = match standing {
                Standing::Settled(opinion) => *opinion,
                Standing::Open(loaded) => {
                    let weight = Weight { mutating: false, purpose: Purpose::Admission };
                    self.conclude(record, loaded, result, &mut draft, weight)
                }
            };
            (record.id.clone(), opinion)
        });
        group::join(opinions.collect(), None)
    }

    /// Runs one policy's part; a panic in it is that policy's own failure.
    async fn spared(
        &self,
        asking: impl Future<Output = Result<Judged, EvaluationError>>,
    ) -> Result<Judged, EvaluationError> {
        AssertUnwindSafe(asking).catch_unwind().await.unwrap_or_else(|_| {
            self.metrics.panics.inc();
            Err(Refusal::Panicked.into())
        })
    }

    /// Asks one policy and judges its mutation, both in its own time.
    async fn evaluate(
        &self,
        record: &Arc<Record>,
        loaded: &Arc<Loaded>,
        request: Bytes,
        edit: Edit,
        call: Call,
    ) -> Result<Judged, EvaluationError> {
        self.evaluate_until(call.deadline(Instant::now(), loaded.timeout()), record, loaded, request, edit).await
    }

    async fn evaluate_until(
        &self,
        deadline: Instant,
        record: &Arc<Record>,
        loaded: &Arc<Loaded>,
        request: Bytes,
        edit: Edit,
    ) -> Result<Judged, EvaluationError> {
        failpoint::hit_of("evaluator.asking", &record.id);
        let loaded = Arc::clone(loaded);
        let run = record.share.run(deadline, async move {
            failpoint::hit_async("evaluator.handler").await;
            let verdict = loaded.validate(Payload { request: request.clone() }, CallLimits { deadline }).await?;
            edit.judge(verdict, request, deadline).await
        });
        match self.last_call.or(run).await {
            Ok(Ok(result)) => result,
            Ok(Err(refusal)) => {
                if refusal == Refusal::Panicked {
                    self.metrics.panics.inc();
                }
                Err(refusal.into())
            }
            Err(_) => Err(timed_out()),
        }
    }

    /// Counts a result and makes an opinion of it; a panic over it is that policy's own failure.
    fn conclude(
        &self,
        record: &Record,
        loaded: &Loaded,
        result: Result<Judged, EvaluationError>,
        draft: &mut Draft<'_>,
        weight: Weight,
    ) -> Opinion {
        // A draft takes a change as a whole, after everything that could fail.
        let concluding = || self.weigh(record, loaded, result, draft, weight);
        catch_unwind(AssertUnwindSafe(concluding)).unwrap_or_else(|_| {
            self.metrics.panics.inc();
            self.failed(record, &Refusal::Panicked.into())
        })
    }

    fn weigh(
        &self,
        record: &Record,
        loaded: &Loaded,
        result: Result<Judged, EvaluationError>,
        draft: &mut Draft<'_>,
        Weight { mutating, purpose }: Weight,
    ) -> Opinion {
        failpoint::hit_of("evaluator.concluding", &record.id);
        let mode = record.mode;
        let keep = purpose == Purpose::Audit || (mutating && mode != Mode::Monitor);
        let Judged { verdict, mutation, change } = match result {
            Ok(judged) => judged,
            Err(error) => return self.failed(record, &error),
        };
        if let Some(change) = change.filter(|_| keep) {
            draft.keep(change);
        }
        match (verdict.accepted, mutation) {
            (false, _) => record.metrics.denied.inc(),
            (true, Mutation::None) => record.metrics.allowed.inc(),
            (true, Mutation::Changed) if keep || mutating => record.metrics.mutated.inc(),
            (true, Mutation::Changed | Mutation::OfNothing) => record.metrics.error(Reason::PatchInvalid),
        }
        let generation = loaded.generation();
        if purpose == Purpose::Audit {
            return decision::plain(generation, verdict, mutation);
        }
        if mode == Mode::Monitor {
            monitored(&record.id, generation, &verdict, mutation);
        }
        decision::judged(record.into(), Terms { generation, mutating, message: loaded.message() }, verdict, mutation)
    }

    fn failed(&self, record: &Record, error: &EvaluationError) -> Opinion {
        record.metrics.error(error.reason);
        tracing::debug!(policy = %record.id, reason = %error.reason, "evaluation failed");
        decision::failed(record.into(), generation(record), error)
    }

    /// The answer where no evaluation was even tried: each member's own, by its `failurePolicy`.
    pub(crate) fn refused(&self, target: Target<'_>, error: &EvaluationError) -> Answer {
        let opinion = |record: &Record, standing: Standing<'_>| match standing {
            Standing::Settled(opinion) => *opinion,
            Standing::Open(_) => self.failed(record, error),
        };
        match target {
            Target::Policy(record) => opinion(record, standing(record)).alone(&record.id, None),
            Target::Group(members) => {
                let member = |record: &Arc<Record>| (record.id.clone(), opinion(record, standing_in_group(record)));
                group::join(members.iter().map(member).collect(), None)
            }
        }
    }

    /// Runs `asking`; a panic in it becomes the answer that its policies give to any failure.
    pub(crate) async fn guarded(&self, target: Target<'_>, asking: impl Future<Output = Answer>) -> Answer {
        match AssertUnwindSafe(asking).catch_unwind().await {
            Ok(answer) => answer,
            Err(_) => {
                self.metrics.panics.inc();
                self.refused(target, &EvaluationError::new(Reason::InternalError, "internal server error: a panic"))
            }
        }
    }
}

/// Who is asked.
#[derive(Clone, Copy)]
pub(crate) enum Target<'a> {
    /// One policy.
    Policy(&'a Arc<Record>),
    /// A group's members.
    Group(&'a [Arc<Record>]),
}

/// How a verdict counts.
#[derive(Clone, Copy)]
struct Weight {
    mutating: bool,
    purpose: Purpose,
}

/// Whether a policy has to be asked.
enum Standing<'r> {
    /// This generation.
    Open(&'r Arc<Loaded>),
    /// No: this is its opinion already.
    Settled(Box<Opinion>),
}

fn standing(record: &Arc<Record>) -> Standing<'_> {
    if record.suspend {
        return Standing::Settled(Box::new(decision::suspended(record.generation)));
    }
    match &record.serving {
        Serving::Ready(loaded) => Standing::Open(loaded),
        Serving::Unserved(failure) => {
            record.metrics.error(failure.reason);
            Standing::Settled(Box::new(decision::unserved(record.as_ref().into(), failure, Timestamp::now())))
        }
    }
}

/// A member of a group, and whether it has to be asked.
type Member<'r> = (&'r Arc<Record>, Standing<'r>);

/// The standing of a member of a group for a request, which may be of another namespace.
fn standing_for<'r>(record: &'r Arc<Record>, review: &Review<'_>) -> Standing<'r> {
    if record.id.namespace().is_some_and(|own| !review.is_in(own)) {
        return Standing::Settled(Box::new(decision::outside_its_namespace(&record.id)));
    }
    standing_in_group(record)
}

/// The standing of a member of a group. One that was never enforced is asked once it is loaded here, and not before: who asks the
/// group has done so all along without it. Who asks a policy by its own id means this one, and is told that it cannot answer.
fn standing_in_group(record: &Arc<Record>) -> Standing<'_> {
    let is_asked = record.enforced || record.suspend || matches!(record.serving, Serving::Ready(_));
    if is_asked {
        return standing(record);
    }
    record.metrics.passed_over.inc();
    Standing::Settled(Box::new(decision::passed_over(&record.id)))
}

fn generation(record: &Record) -> i64 {
    match &record.serving {
        Serving::Ready(loaded) => loaded.generation(),
        Serving::Unserved(_) => record.generation,
    }
}

fn timed_out() -> EvaluationError {
    EvaluationError::new(Reason::EvaluationTimedOut, TIMED_OUT)
}

/// What a policy in monitor mode would have done; nobody else is told.
fn monitored(policy: &PolicyId, generation: i64, verdict: &Verdict, mutation: Mutation) {
    let text = verdict.message.as_deref().map(crate::verdict::text::denial);
    let (allowed, mutated, code) = (verdict.accepted, mutation == Mutation::Changed, verdict.code);
    if allowed && !mutated {
        tracing::debug!(%policy, generation, allowed, mutated, code, text, "verdict in monitor mode");
    } else {
        tracing::info!(%policy, generation, allowed, mutated, code, text, "verdict in monitor mode");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_limit_counts() {
        let arrived = Instant::now();
        let asked = arrived + Duration::from_millis(100);
        let after = |timeout: Option<u64>, limit| {
            let call = Call { arrived, timeout: timeout.map(Duration::from_millis) };
            (call.deadline(asked, Duration::from_millis(limit)) - arrived).as_millis()
        };
        assert_eq!(after(None, 2000), 2100);
        assert_eq!(after(Some(10_000), 2000), 2100);
        assert_eq!(after(Some(1000), 5000), 900);
        assert_eq!(after(Some(10_000), 30_000), 9800);
    }
}
