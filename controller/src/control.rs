//! The loop: takes reports of watches and results of writes into the world, and decides again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use portcullis_contract::PathKey;
use portcullis_kubernetes::{Leadership, OfTerm};
use portcullis_process::{Beat, Now, Shutdown};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;

use crate::action::{Action, Key};
use crate::certificates::CaBundle;
use crate::decide::{Rules, decide};
use crate::desired::Installation;
use crate::execute::{Executor, Outcome};
use crate::failed::{Cause, Failed};
use crate::failures::FailingActions;
use crate::identity::Identity;
use crate::memory::{ConditionValue, Memory};
use crate::metrics::Metrics;
use crate::rewrites::Rewrites;
use crate::slots::Slots;
use crate::world::{Change, World};

/// How long changes gather before the next decision.
const GATHER: Duration = Duration::from_millis(20);
/// The longest time between two rounds of the loop.
const TURN: Duration = Duration::from_secs(5);
/// How often an event is tried.
const EVENT_TRIES: u32 = 6;

/// The inputs of the loop.
pub(crate) struct Inputs {
    pub(crate) changes: mpsc::Receiver<Change>,
    pub(crate) bundle: watch::Receiver<Option<OfTerm<Arc<CaBundle>>>>,
    pub(crate) path_key: watch::Receiver<Option<OfTerm<PathKey>>>,
    pub(crate) identity: watch::Receiver<Result<Identity, ConditionValue>>,
    pub(crate) leadership: Leadership,
}

/// The loop.
pub(crate) struct Control {
    pub(crate) world: World,
    pub(crate) rules: Rules,
    /// The name and port of the Service that webhooks call.
    pub(crate) service: (String, u16),
    pub(crate) executor: Arc<Executor>,
    /// Asks for the identity again.
    pub(crate) identity_again: Arc<Notify>,
    pub(crate) metrics: Metrics,
    pub(crate) memory: Memory,
    pub(crate) failures: FailingActions,
    pub(crate) rewrites: Rewrites,
    pub(crate) slots: Slots,
    pub(crate) tasks: JoinSet<(Action, Result<Outcome, Failed>)>,
    /// The term in which this program leads; `None` if it does not lead.
    pub(crate) term: Option<u64>,
}

/// What was learned in the present term; `None` if it is of an earlier one.
fn of_term<T>(term: Option<u64>, learned: Option<OfTerm<T>>) -> Option<T> {
    learned.filter(|learned| Some(learned.term) == term).map(|learned| learned.value)
}

impl Control {
    /// Runs until the shutdown begins.
    pub(crate) async fn run(mut self, mut inputs: Inputs, beat: Beat, shutdown: Shutdown) {
        let mut decide_at = Some(Instant::now());
        let mut wake: Option<Instant> = None;
        while !shutdown.has_begun() {
            beat.now();
            let next = [decide_at, wake].into_iter().flatten().min();
            let next = next.unwrap_or_else(|| Instant::now() + TURN).min(Instant::now() + TURN);
            tokio::select! {
                () = shutdown.begun() => break,
                Some(change) = inputs.changes.recv() => {
                    self.world.take(change);
                    while let Ok(change) = inputs.changes.try_recv() {
                        self.world.take(change);
                    }
                }
                Some(done) = self.tasks.join_next() => match done {
                    Ok((action, result)) => self.done(&action, result),
                    // The panic was written to standard error; the object is decided on again.
                    Err(error) => {
                        tracing::error!(%error, "a write ended early");
                        self.tasks.abort_all();
                        while self.tasks.join_next().await.is_some() {}
                        self.slots.all_ended();
                    }
                },
                _ = inputs.bundle.changed() => {}
                _ = inputs.path_key.changed() => {}
                _ = inputs.identity.changed() => {}
                () = inputs.leadership.changed() => {}
                () = tokio::time::sleep_until(next.into()) => {
                    self.look(&mut inputs);
                    wake = self.decide();
                    decide_at = None;
                    continue;
                }
            }
            decide_at.get_or_insert_with(|| Instant::now() + GATHER);
        }
    }

    /// Reads what webhooks contain about the installation, and whether this program leads.
    fn look(&mut self, inputs: &mut Inputs) {
        let term = inputs.leadership.term();
        if term.is_some() && term != self.term {
            // Another controller may have written meanwhile.
            self.memory = Memory::new(Instant::now());
        }
        self.term = term;
        self.metrics.leader.set(i64::from(term.is_some()));
        let bundle = of_term(term, inputs.bundle.borrow_and_update().clone());
        let path_key = of_term(term, inputs.path_key.borrow_and_update().clone());
        let identity = inputs.identity.borrow_and_update().clone();
        self.rules.installation = identity.and_then(|identity| {
            let bundle = bundle.filter(|bundle| !bundle.is_empty());
            let bundle = bundle.ok_or_else(|| {
                ConditionValue::not_configured("CABundleInvalid", "there is no certificate authority yet")
            })?;
            let path_key = path_key.ok_or_else(|| {
                ConditionValue::not_configured("Unknown", "the key of webhook paths is not known yet")
            })?;
            Ok(Installation {
                namespace: self.rules.namespace.clone(),
                policy_server: self.rules.policy_server.clone(),
                service: self.service.0.clone(),
                service_port: self.service.1,
                username: identity.username,
                owner: identity.owner,
                labels: Arc::clone(&self.rules.webhook_labels),
                ca_bundle: Arc::new(bundle.pem()),
                path_key,
            })
        });
    }

    /// Decides, and starts as many actions as may run. Returns when to decide again.
    fn decide(&mut self) -> Option<Instant> {
        self.count();
        self.term?;
        let now = Now { instant: Instant::now(), wall: whole_second(Timestamp::now()) };
        let timer = self.metrics.decisions.start_timer();
        let decision = decide(&self.world, &mut self.memory, &self.rules, now);
        timer.observe_duration();
        let mut wake = decision.wake;
        let wanted: BTreeSet<Key> = decision.actions.iter().chain(&decision.refusals).map(Action::key).collect();
        for verb in self.failures.retain(&wanted, now.instant) {
            tracing::info!(action = verb, "works again, or is no longer needed");
        }
        self.slots.retain(&wanted);
        let mut may_start = |action: &Action| {
            let key = action.key();
            let again = || action.written().and_then(|webhook| self.rewrites.waits(webhook, now.instant));
            let until = self.failures.waits(&key, now.instant).or_else(again);
            wake = [wake, until].into_iter().flatten().min();
            until.is_none() && !self.slots.is_running(&key)
        };
        let actions = decision.actions.into_iter().filter(&mut may_start).collect();
        let refusals = decision.refusals.into_iter().filter(&mut may_start).collect();
        for action in self.slots.start(actions, refusals) {
            if action.restores() {
                self.identity_again.notify_one();
            }
            self.metrics.actions.with_label_values(&[action.verb()]).inc();
            let executor = Arc::clone(&self.executor);
            self.tasks.spawn(async move {
                let result = executor.execute(&action).await;
                (action, result)
            });
        }
        wake
    }

    /// Handles the result of an action.
    fn done(&mut self, action: &Action, result: Result<Outcome, Failed>) {
        let (key, verb) = (action.key(), action.verb());
        self.slots.ended(&key);
        let outcome = match result {
            Ok(outcome) => outcome,
            Err(failed) => return self.failed(action, &failed),
        };
        let is_proven = !matches!(&outcome, Outcome::Proven(_, _, Some(_)));
        if is_proven && self.failures.pass(&key, verb) {
            tracing::info!(action = verb, "works again");
        }
        if action.is_repair() {
            self.metrics.repairs.inc();
        }
        if let Some(webhook) = action.written() {
            self.rewrites.wrote(webhook, Instant::now(), fastrand::f64());
        }
        self.memory.succeeded(action);
        match outcome {
            Outcome::Done => {}
            Outcome::Gone(uid) => drop(self.memory.gone.insert(uid)),
            Outcome::Wrote(change) => {
                if let Action::DeleteWebhook { kind, name, uid } = action {
                    self.memory.unregistered(&self.rules.policy_server, *kind, name, uid);
                }
                self.memory.wrote(action, &change);
                self.world.take(change);
            }
            Outcome::Tried(group, answer) => {
                let remembered = self.memory.groups.entry(group).or_default();
                remembered.tried = Some(answer);
                remembered.refused = None;
            }
            Outcome::Proven(group, webhook, failed) => {
                let remembered = self.memory.groups.entry(group).or_default();
                match failed {
                    None => {
                        remembered.proven = Some(webhook);
                        remembered.unproven = None;
                    }
                    Some(failed) => {
                        let text = failed.value.message.clone();
                        remembered.unproven = Some(failed);
                        self.failed(action, &Failed::other(text));
                    }
                }
            }
        }
    }

    fn failed(&mut self, action: &Action, failed: &Failed) {
        let (verb, object, problem) = (action.verb(), action.object(), failed.text.as_str());
        self.metrics.failed(verb, failed);
        self.memory.failed(action, failed, &self.world, Instant::now());
        if failed.cause == Cause::Forbidden && action.written().is_some() {
            self.identity_again.notify_one();
        }
        let key = action.key();
        if let Action::Warn(warning) = action
            && is_given_up(failed, self.failures.reached(&key) + 1)
        {
            self.memory.gave_up(warning);
            if self.failures.give_up(&key, verb, failed, Instant::now()) {
                tracing::warn!(action = verb, object, problem, "failed; this event is given up");
            } else {
                tracing::debug!(action = verb, object, problem, "failed; this event is given up");
            }
        } else if self.failures.fail(key, verb, failed, Instant::now(), fastrand::f64()) {
            tracing::warn!(action = verb, object, problem, "failed, trying again");
        } else {
            tracing::debug!(action = verb, object, problem, "failed");
        }
    }

    fn count(&self) {
        let revisions: usize = self.world.revisions.values().map(std::collections::BTreeMap::len).sum();
        let counts =
            [("policy", self.world.policies.len()), ("revision", revisions), ("webhook", self.world.webhooks.len())];
        for (kind, count) in counts {
            self.metrics.objects.with_label_values(&[kind]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}

/// Whether an event is not tried again, as nothing depends on it: one that the API server refuses, which it would refuse again, or that has failed
/// this many `times`, for instance because of a webhook of the policy's namespace. While there is no API server, none is given up.
fn is_given_up(failed: &Failed, times: u32) -> bool {
    failed.reason().is_some() || failed.cause != Cause::Unreachable && times >= EVENT_TRIES
}

/// Cuts off the fraction of a second, which times in conditions do not have.
fn whole_second(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_given_up_when_it_is_refused_or_has_failed_often() {
        for (cause, at_once, later) in [
            (Cause::Forbidden, true, true),
            (Cause::Refused, true, true),
            (Cause::Overtaken, false, true),
            (Cause::Other, false, true),
            (Cause::Unreachable, false, false),
        ] {
            let failed = Failed::of(cause, "its words".to_owned());
            let is_given_up = [1, EVENT_TRIES - 1, EVENT_TRIES].map(|times| is_given_up(&failed, times));
            assert_eq!(is_given_up, [at_once, at_once, later], "{cause:?}");
        }
    }
}
