//! The loop: what watches tell and what came of writes becomes the world; then it is decided anew.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use portcullis_contract::PathKey;
use portcullis_kubernetes::Leadership;
use portcullis_process::{Beat, Shutdown};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::action::{Action, Key};
use crate::certificates::CaBundle;
use crate::decide::{Now, Rules, decide};
use crate::desired::Site;
use crate::execute::{Failed, Hands, Outcome};
use crate::failures::{Line, Troubles};
use crate::identity::{Identity, unknown};
use crate::memory::{Memory, Verdict};
use crate::metrics::Metrics;
use crate::world::{News, World};

/// How long news gather before it is decided.
const GATHER: Duration = Duration::from_millis(20);
/// How often the loop turns at least.
const TURN: Duration = Duration::from_secs(5);
/// Most proofs at the same time; each waits most of its time.
const PROOFS: usize = 8;

/// What the loop hears from.
pub(crate) struct Ears {
    pub(crate) news: mpsc::Receiver<News>,
    pub(crate) bundle: watch::Receiver<Option<Arc<CaBundle>>>,
    pub(crate) path_key: watch::Receiver<Option<PathKey>>,
    pub(crate) identity: watch::Receiver<Result<Identity, Verdict>>,
    pub(crate) leadership: Leadership,
}

/// The loop.
pub(crate) struct Control {
    pub(crate) world: World,
    pub(crate) rules: Rules,
    /// What of a webhook's target does not change; certificate, user and owner come later.
    pub(crate) service: (String, u16),
    pub(crate) hands: Arc<Hands>,
    pub(crate) metrics: Metrics,
    pub(crate) parallel: usize,
    pub(crate) memory: Memory,
    pub(crate) troubles: Troubles,
    pub(crate) running: BTreeSet<Key>,
    pub(crate) tasks: JoinSet<(Action, Result<Outcome, Failed>)>,
    pub(crate) is_leading: bool,
}

impl Control {
    /// Turns until the shutdown begins.
    pub(crate) async fn run(mut self, mut ears: Ears, beat: Beat, shutdown: Shutdown) {
        let mut decide_at = Some(Instant::now());
        let mut wake: Option<Instant> = None;
        while !shutdown.has_begun() {
            beat.now();
            let next = [decide_at, wake].into_iter().flatten().min();
            let next = next.unwrap_or_else(|| Instant::now() + TURN).min(Instant::now() + TURN);
            tokio::select! {
                () = shutdown.begun() => break,
                Some(news) = ears.news.recv() => {
                    self.world.take(news);
                    while let Ok(news) = ears.news.try_recv() {
                        self.world.take(news);
                    }
                }
                Some(done) = self.tasks.join_next() => match done {
                    Ok((action, result)) => self.done(&action, result),
                    // A task that panicked has said so on standard error; its object is looked at again.
                    Err(error) => {
                        tracing::error!(%error, "a write ended early");
                        self.tasks.abort_all();
                        while self.tasks.join_next().await.is_some() {}
                        self.running.clear();
                    }
                },
                _ = ears.bundle.changed() => {}
                _ = ears.path_key.changed() => {}
                _ = ears.identity.changed() => {}
                () = ears.leadership.changed() => {}
                () = tokio::time::sleep_until(next.into()) => {
                    self.look(&mut ears);
                    wake = self.decide();
                    decide_at = None;
                    continue;
                }
            }
            decide_at.get_or_insert_with(|| Instant::now() + GATHER);
        }
    }

    /// Takes in what stands in webhooks, and whether this program leads.
    fn look(&mut self, ears: &mut Ears) {
        let is_leading = ears.leadership.is_held();
        if is_leading && !self.is_leading {
            // Somebody else may have written meanwhile.
            self.memory = Memory::new(Instant::now());
        }
        self.is_leading = is_leading;
        self.metrics.leader.set(i64::from(is_leading));
        let bundle = ears.bundle.borrow_and_update().clone();
        let path_key = *ears.path_key.borrow_and_update();
        let identity = ears.identity.borrow_and_update().clone();
        self.rules.site = identity.and_then(|identity| {
            let bundle = bundle.filter(|bundle| !bundle.is_empty());
            let bundle = bundle.ok_or_else(|| unknown("CABundleInvalid", "there is no certificate authority yet"))?;
            let path_key = path_key.ok_or_else(|| unknown("Unknown", "the key of webhook paths is not known yet"))?;
            Ok(Site {
                namespace: self.rules.namespace.clone(),
                policy_server: self.rules.policy_server.clone(),
                service: self.service.0.clone(),
                service_port: self.service.1,
                username: identity.username,
                owner: identity.owner,
                ca_bundle: Arc::new(bundle.pem()),
                path_key,
            })
        });
    }

    /// Decides and begins what there is room for. Gives the time to decide again.
    fn decide(&mut self) -> Option<Instant> {
        self.count();
        if !self.is_leading {
            return None;
        }
        let now = Now { instant: Instant::now(), clock: whole_second(Timestamp::now()) };
        let timer = self.metrics.decisions.start_timer();
        let decision = decide(&self.world, &mut self.memory, &self.rules, now);
        timer.observe_duration();
        let mut wake = decision.wake;
        let wanted: BTreeSet<Key> = decision.actions.iter().map(Action::key).collect();
        for verb in self.troubles.retain(&wanted, now.instant) {
            tracing::info!(action = verb, "works again, or is not needed any more");
        }
        let (mut proofs, mut writes) = (0, 0);
        for key in &self.running {
            if matches!(key, Key::Proof(_)) { proofs += 1 } else { writes += 1 }
        }
        for action in decision.actions {
            let key = action.key();
            let (count, most) =
                if matches!(key, Key::Proof(_)) { (&mut proofs, PROOFS) } else { (&mut writes, self.parallel) };
            if *count >= most || self.running.contains(&key) {
                continue;
            }
            if let Some(until) = self.troubles.waits(&key, now.instant) {
                wake = Some(wake.map_or(until, |wake| wake.min(until)));
                continue;
            }
            *count += 1;
            self.metrics.actions.with_label_values(&[action.verb()]).inc();
            self.running.insert(key);
            let hands = Arc::clone(&self.hands);
            self.tasks.spawn(async move {
                let result = hands.carry_out(&action).await;
                (action, result)
            });
        }
        wake
    }

    /// Takes in what came of an action.
    fn done(&mut self, action: &Action, result: Result<Outcome, Failed>) {
        let (key, verb) = (action.key(), action.verb());
        self.running.remove(&key);
        let outcome = match result {
            Ok(outcome) => outcome,
            Err(failed) => return self.failed(action, failed),
        };
        let is_proven = !matches!(&outcome, Outcome::Proven(_, _, Some(_)));
        if is_proven && self.troubles.pass(&key, verb) == Some(Line::Ends) {
            tracing::info!(action = verb, "works again");
        }
        if matches!(
            action,
            Action::CreateWebhook { repaired: Some(_), .. } | Action::ChangeWebhook { repaired: Some(_), .. }
        ) {
            self.metrics.repairs.inc();
        }
        match outcome {
            Outcome::Done => {}
            Outcome::Wrote(news) => {
                if let Action::DeleteWebhook { name, .. } = action {
                    self.memory.unregistered(name);
                }
                self.world.take(news);
            }
            Outcome::Tried(group, answer) => {
                let remembered = self.memory.groups.entry(group).or_default();
                remembered.tried = Some(answer);
                remembered.refused = None;
            }
            Outcome::Proven(group, webhook, verdict) => {
                let remembered = self.memory.groups.entry(group).or_default();
                match verdict {
                    None => {
                        remembered.proven = Some(webhook);
                        remembered.unproven = None;
                    }
                    Some(verdict) => {
                        let text = verdict.message.clone();
                        remembered.unproven = Some(verdict);
                        self.failed(action, Failed { text, is_overtaken: false, is_forbidden: false });
                    }
                }
            }
        }
    }

    fn failed(&mut self, action: &Action, failed: Failed) {
        let verb = action.verb();
        self.metrics.failures.with_label_values(&[verb]).inc();
        if let Action::TryWebhook { group, .. }
        | Action::CreateWebhook { group, .. }
        | Action::ChangeWebhook { group, .. } = action
            && failed.is_forbidden
        {
            let refused = unknown("Forbidden", failed.text.clone());
            self.memory.groups.entry(group.clone()).or_default().refused = Some(refused);
        }
        let line = self.troubles.fail(action.key(), verb, failed.is_overtaken, Instant::now());
        if line == Some(Line::Begins) {
            tracing::warn!(action = verb, problem = failed.text, "failed; it is tried again");
        } else {
            tracing::debug!(action = verb, problem = failed.text, "failed");
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

/// Times in conditions have no fractions.
fn whole_second(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}
