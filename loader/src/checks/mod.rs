//! Tries policies that users apply, before they are admitted.
//!
//! A *trial* is such a policy under an id of its own and without a match group, so that no request reaches it. It goes the way of every
//! policy: fetched, compiled, published, loaded by the evaluator. What loader and evaluator make of it is the answer. It stays for a while
//! after that: the policy itself comes a moment later, and finds its module fetched and compiled.

mod advice;
mod discovery;
mod impact;
mod nearest;
mod rules;
mod served;
mod verdict;
mod webhook;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::Client;
use portcullis_broker::{CheckRequest, PublishedGrants};
use portcullis_contract::{
    CheckOutcome, CheckVerdict, EvaluatorState, LoaderPolicy, MAX_CHECK_TIME, MAX_CHECKS, PolicyCheck, PolicyId,
    PolicyIdError,
};
use portcullis_process::set_if_new;
use portcullis_util::lock;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{timeout, timeout_at};

use self::discovery::Discovery;
pub(crate) use self::impact::Impact;
use self::impact::{Found, Memory, Stored, Subject};
use crate::content::{DesiredPolicy, Object};
use crate::input::{Applied, Desired, NotTried};

/// How long a trial stays after its check.
const STAYS: Duration = Duration::from_secs(10);
/// Most trials that stay after their checks; the oldest goes first.
const MOST_STAY: usize = 16;
/// A check leaves one part in this many of its time for sending the answer back.
const LEFT_FOR_REPLY: u32 = 20;

/// The trials, oldest first.
pub(crate) type Trials = Arc<Vec<Arc<DesiredPolicy>>>;

/// The installation's settings for checks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CheckSettings {
    /// Whether a policy that cannot load until it is edited is refused. If not, its author is only warned.
    pub denies: bool,
    /// Whether policies with different object selectors and match conditions share webhooks.
    pub shares_webhooks: bool,
}

/// The checks of this pod.
pub(crate) struct Checks {
    settings: CheckSettings,
    /// Permits for checks at the same time. The evaluator shares them between users and namespaces.
    permits: Arc<Semaphore>,
    /// The number of the next trial. The first is the time, so that an evaluator takes no trial for one of an earlier loader.
    next: AtomicU64,
    trials: watch::Sender<Trials>,
    /// How long a trial stays after its check; shorter in tests.
    stays: Duration,
    /// The trials that were checked and stay for a while.
    checked: Mutex<VecDeque<PolicyId>>,
    /// The state of the trials, from the loop.
    policies: watch::Sender<Arc<Vec<LoaderPolicy>>>,
    evaluator: watch::Receiver<Option<Arc<EvaluatorState>>>,
    /// The policies of the installation.
    desired: Desired,
    /// What policies may ask their host for. A trial may ask for nothing.
    grants: Arc<PublishedGrants>,
    /// The resources of the cluster.
    discovery: Discovery,
    /// `None` where checks do not look at objects that exist.
    impact: Option<Impact>,
    /// The figures of past checks, for policies that were stored since.
    counted: watch::Sender<Memory>,
}

/// How long parts of a check may take.
#[derive(Debug, Clone, Copy)]
struct Times {
    /// Longest wait for a permit.
    permit: Duration,
    /// When to stop looking at objects that exist.
    impact: Instant,
    /// When there must be an answer.
    all: Instant,
}

impl Times {
    fn of(begun: Instant, check: PolicyCheck) -> Self {
        let time = Duration::from_millis(check.millis).min(MAX_CHECK_TIME);
        Self { permit: time / 2, impact: begun + time / 2, all: begun + (time - time / LEFT_FOR_REPLY) }
    }
}

/// A trial that is being checked.
struct Trial {
    checks: Arc<Checks>,
    id: PolicyId,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Trial {
    fn drop(&mut self) {
        self.checks.keep_for_a_while(&self.id);
    }
}

impl Checks {
    /// Checks of an installation. `client` is for the API server, if there is one; `impact` asks about objects that exist, if that is configured.
    pub(crate) fn new(
        settings: CheckSettings,
        evaluator: watch::Receiver<Option<Arc<EvaluatorState>>>,
        desired: Desired,
        grants: Arc<PublishedGrants>,
        client: Option<Client>,
        impact: Option<Impact>,
    ) -> Arc<Self> {
        Arc::new(Self {
            settings,
            permits: Arc::new(Semaphore::new(MAX_CHECKS)),
            next: AtomicU64::new(u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(1)),
            trials: watch::Sender::default(),
            stays: STAYS,
            checked: Mutex::default(),
            policies: watch::Sender::default(),
            evaluator,
            desired,
            grants,
            discovery: Discovery::new(client),
            impact,
            counted: watch::Sender::default(),
        })
    }

    /// The trials, as they change.
    pub(crate) fn trials(&self) -> watch::Receiver<Trials> {
        self.trials.subscribe()
    }

    /// The figures of past checks about objects that exist, as they change.
    pub(crate) fn counted(&self) -> watch::Receiver<Memory> {
        self.counted.subscribe()
    }

    /// Adds to each policy the figures of the check of the same spec. The input says which specs are stored: the figures of a spec that was only
    /// tried, or that another webhook refused, are not shown.
    pub(crate) fn add_impacts(&self, policies: &mut [LoaderPolicy]) {
        let Some(snapshot) = self.desired.borrow().clone() else { return };
        let mut found = Vec::new();
        self.counted.send_if_modified(|memory| {
            found = memory.settle(snapshot.policies.iter().filter_map(stored));
            // No figures were added, so nobody need be notified.
            false
        });
        for (stored, figures) in found {
            let is_it = |policy: &&mut LoaderPolicy| {
                policy.id == *stored.id && policy.uid == stored.uid && policy.generation == stored.generation
            };
            if let Some(policy) = policies.iter_mut().find(is_it) {
                policy.impact = Some(figures);
            }
        }
    }

    /// Takes the state of the trials from the loop.
    pub(crate) fn learn(&self, policies: Vec<LoaderPolicy>) {
        set_if_new(&self.policies, Arc::new(policies));
    }

    /// Answers requests until the channel closes. Checks end with this task.
    pub(crate) async fn serve(self: Arc<Self>, mut requests: mpsc::Receiver<CheckRequest>) {
        let mut running = JoinSet::new();
        while let Some(mut request) = requests.recv().await {
            while running.try_join_next().is_some() {}
            let checks = Arc::clone(&self);
            running.spawn(async move {
                let begun = Instant::now();
                let verdict = tokio::select! {
                    verdict = checks.answer(request.check, &request.policy, begun) => verdict,
                    () = request.reply.closed() => return,
                };
                // The evaluator may have stopped waiting.
                let _ = request.reply.send(verdict);
            });
        }
    }

    async fn answer(self: &Arc<Self>, check: PolicyCheck, policy: &[u8], begun: Instant) -> CheckVerdict {
        let times = Times::of(begun, check);
        let applied = str::from_utf8(policy).map_err(|error| NotTried::Unreadable(error.to_string()));
        let applied = match applied.and_then(Applied::read) {
            Ok(applied) => applied,
            Err(NotTried::Unreadable(text)) => return CheckVerdict::unknown(None, text),
            Err(NotTried::Invalid(problem)) => {
                return self.as_configured(CheckVerdict::refused(problem.reason, problem.message));
            }
        };
        let is_suspended = applied.is_suspended;
        let subject = Subject {
            id: applied.id.clone(),
            fingerprint: applied.fingerprint,
            part: applied.part.clone(),
            mode: applied.mode(),
            reads_cluster: applied.reads_cluster(),
            is_suspended,
        };
        let advice =
            advice::advice(&subject.part, &subject.id, &self.discovery, &self.desired, self.settings.shares_webhooks);
        let tried = self.tried(applied, &subject, times);
        let (mut verdict, advice) = tokio::join!(tried, timeout_at(times.all.into(), advice));
        verdict.warnings.extend(advice.unwrap_or_default());
        tracing::debug!(
            policy = %subject.id,
            outcome = ?verdict.outcome,
            reason = verdict.failure.as_ref().and_then(|failure| failure.reason).map(tracing::field::display),
            milliseconds = begun.elapsed().as_millis(),
            "a policy that is applied was checked"
        );
        // A suspended policy is never refused: suspending one that cannot load must be possible before it is repaired.
        if is_suspended { warning(verdict) } else { self.as_configured(verdict) }
    }

    /// Tries a policy and waits until it loads or fails. If it loads, it is asked about objects that exist.
    async fn tried(self: &Arc<Self>, applied: Applied, subject: &Subject, times: Times) -> CheckVerdict {
        let trial = match timeout(times.permit, self.begin(applied)).await {
            Ok(Ok(trial)) => trial,
            Ok(Err(error)) => return CheckVerdict::unknown(None, error.to_string()),
            Err(_) => return CheckVerdict::unknown(None, "too many policies are being checked on this replica"),
        };
        let settled = timeout_at(times.all.into(), self.settled(&trial.id)).await;
        let mut verdict = settled.unwrap_or_else(|_| self.read(verdict::unfinished, &trial.id));
        let asks_host = || self.grants.was_refused_as_check(&trial.id);
        if asks_host() {
            verdict = verdict::of_one_that_asks_its_host(verdict);
        }
        if verdict.outcome == CheckOutcome::Passed
            && let Some(impact) = &self.impact
        {
            let look = impact.look(&trial.id, subject, &self.discovery, times.impact.into());
            // Boxed, as futures that use the network are large.
            let found = Box::pin(look).await;
            let found = if asks_host() { Found::unknown("asks its host") } else { found };
            verdict.warnings.extend(found.warnings);
            if let Some(figures) = found.figures {
                self.counted.send_modify(|memory| memory.remember(subject.id.clone(), subject.fingerprint, figures));
            }
        }
        verdict
    }

    /// Waits for a permit, and adds the trial to the others.
    async fn begin(self: &Arc<Self>, applied: Applied) -> Result<Trial, PolicyIdError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let id = PolicyId::check(applied.namespace.as_deref(), number)?;
        let permit = Arc::clone(&self.permits).acquire_owned().await.expect("the semaphore is never closed");
        let trial = Arc::new(applied.tried_as(id.clone()));
        self.trials.send_modify(|trials| Arc::make_mut(trials).push(trial));
        Ok(Trial { checks: Arc::clone(self), id, _permit: permit })
    }

    /// Waits until a trial loads or fails.
    async fn settled(&self, id: &PolicyId) -> CheckVerdict {
        let (mut policies, mut evaluator) = (self.policies.subscribe(), self.evaluator.clone());
        loop {
            policies.mark_unchanged();
            evaluator.mark_unchanged();
            if let Some(verdict) = self.read(verdict::settled, id) {
                return verdict;
            }
            let ended = tokio::select! {
                changed = policies.changed() => changed.is_err(),
                changed = evaluator.changed() => changed.is_err(),
            };
            if ended {
                // The program is ending, so no verdict will come.
                std::future::pending::<()>().await;
            }
        }
    }

    fn read<T>(&self, judge: impl FnOnce(Option<&LoaderPolicy>, Option<&EvaluatorState>) -> T, id: &PolicyId) -> T {
        let policies = Arc::clone(&self.policies.borrow());
        let evaluator = self.evaluator.borrow().clone();
        judge(policies.iter().find(|policy| policy.id == *id), evaluator.as_deref())
    }

    /// The verdict as this installation gives it.
    fn as_configured(&self, verdict: CheckVerdict) -> CheckVerdict {
        if self.settings.denies { verdict } else { warning(verdict) }
    }

    /// Keeps a trial for a while after its check; if too many are kept, the oldest one goes.
    fn keep_for_a_while(self: &Arc<Self>, id: &PolicyId) {
        let oldest = {
            let mut checked = lock(&self.checked);
            checked.push_back(id.clone());
            (checked.len() > MOST_STAY).then(|| checked.pop_front()).flatten()
        };
        oldest.iter().for_each(|id| self.forget(id));
        // A check that is dropped because the program ends has no runtime any longer.
        let Ok(runtime) = Handle::try_current() else { return };
        let (checks, id) = (Arc::clone(self), id.clone());
        runtime.spawn(async move {
            tokio::time::sleep(checks.stays).await;
            lock(&checks.checked).retain(|other| *other != id);
            checks.forget(&id);
        });
    }

    fn forget(&self, id: &PolicyId) {
        self.trials.send_if_modified(|trials| {
            let is_there = trials.iter().any(|trial| trial.id == *id);
            if is_there {
                Arc::make_mut(trials).retain(|trial| trial.id != *id);
            }
            is_there
        });
    }
}

/// A policy as the API server has stored it; `None` in a folder.
fn stored(policy: &DesiredPolicy) -> Option<Stored<'_>> {
    let Object { uid, generation, fingerprint, .. } = policy.object.as_ref()?;
    Some(Stored { id: &policy.id, uid, generation: *generation, fingerprint: *fingerprint })
}

/// The same verdict, but only a warning where it was a refusal.
fn warning(verdict: CheckVerdict) -> CheckVerdict {
    match verdict.outcome {
        CheckOutcome::Refused => CheckVerdict { outcome: CheckOutcome::Unknown, ..verdict },
        CheckOutcome::Passed | CheckOutcome::Unknown => verdict,
    }
}

#[cfg(test)]
mod tests {
    use portcullis_contract::Reason;
    use serde_json::json;

    use super::*;
    use crate::input::Snapshot;

    fn policy(kind: &str, namespace: Option<&str>, module: &str) -> Vec<u8> {
        let object = json!({
            "apiVersion": "policies.portcullis.dev/v1alpha1", "kind": kind, "metadata": {"name": "a", "namespace": namespace},
            "spec": {"module": module, "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]},
            ]},
        });
        object.to_string().into_bytes()
    }

    fn good() -> Vec<u8> {
        policy("ClusterPolicy", None, "https://example.com/a.wasm")
    }

    const CHECK: PolicyCheck = PolicyCheck { millis: 10_000 };
    /// For tests that wait until the time of a check is over.
    const SHORT_CHECK: PolicyCheck = PolicyCheck { millis: 3_000 };

    fn checks(denies: bool) -> (Arc<Checks>, watch::Sender<Option<Arc<EvaluatorState>>>) {
        let (sender, evaluator) = watch::channel(None);
        let (_, desired) = watch::channel(None);
        let settings = CheckSettings { denies, ..CheckSettings::default() };
        (Checks::new(settings, evaluator, desired, Arc::default(), None, None), sender)
    }

    /// Asks in the background, and gives the trial's id once it is tried.
    async fn ask(checks: &Arc<Checks>) -> (tokio::task::JoinHandle<CheckVerdict>, PolicyId) {
        let mut trials = checks.trials();
        trials.mark_unchanged();
        let own = Arc::clone(checks);
        let answer = tokio::spawn(async move { own.answer(CHECK, &good(), Instant::now()).await });
        trials.changed().await.expect("a trial");
        let id = trials.borrow().last().expect("a trial").id.clone();
        (answer, id)
    }

    fn loads(id: &PolicyId) -> EvaluatorState {
        let mut state = EvaluatorState::default();
        state.current.insert(id.clone(), verdict::tests::current(id));
        state
    }

    #[tokio::test]
    async fn a_trial_that_loads_passes_and_stays_until_the_policy_has_come() {
        let (mut checks, evaluator) = checks(true);
        let stays = Duration::from_secs(1);
        Arc::get_mut(&mut checks).expect("nobody else has them yet").stays = stays;
        let (answer, id) = ask(&checks).await;
        assert!(id.is_check());
        let before = Instant::now();
        checks.learn(vec![verdict::tests::policy(&id)]);
        evaluator.send_replace(Some(Arc::new(loads(&id))));
        assert_eq!(answer.await.expect("ends"), CheckVerdict::passed(Vec::new()));
        assert_eq!(checks.trials().borrow().len(), 1, "its module is needed in a moment");
        let mut trials = checks.trials();
        let goes = trials.wait_for(|trials| trials.is_empty());
        timeout(Duration::from_secs(60), goes).await.expect("it goes").expect("checks");
        assert!(before.elapsed() >= stays);
        assert!(checks.checked.lock().expect("not poisoned").is_empty());
    }

    #[tokio::test]
    async fn there_is_an_answer_in_time_whatever_hangs() {
        let (checks, _evaluator) = checks(true);
        let (policy, begun) = (good(), Instant::now());
        let over = begun + Duration::from_millis(SHORT_CHECK.millis);
        // The answer comes first even if this task runs so late that both are due.
        let verdict = tokio::select! {
            biased;
            verdict = checks.answer(SHORT_CHECK, &policy, begun) => verdict,
            () = tokio::time::sleep_until(over.into()) => panic!("there is no answer in time"),
        };
        assert_eq!(verdict.outcome, CheckOutcome::Unknown);
        assert_eq!(checks.trials().borrow().len(), 1, "it was tried");
    }

    #[tokio::test]
    async fn trials_have_a_number() {
        let (checks, evaluator) = checks(true);
        let next = checks.next.load(Ordering::Relaxed);
        let mut flood = Vec::new();
        for _ in 0..50 {
            let own = Arc::clone(&checks);
            flood.push(tokio::spawn(async move { own.answer(SHORT_CHECK, &good(), Instant::now()).await }));
        }
        // By then, each has a permit or waits for one.
        while checks.next.load(Ordering::Relaxed) < next + 50 {
            tokio::task::yield_now().await;
        }
        assert_eq!(checks.trials().borrow().len(), MAX_CHECKS);
        let first = checks.trials().borrow()[0].id.clone();
        checks.learn(vec![verdict::tests::policy(&first)]);
        evaluator.send_replace(Some(Arc::new(loads(&first))));
        let mut passed = 0;
        for one in flood {
            passed += usize::from(one.await.expect("ends").outcome == CheckOutcome::Passed);
            assert!(checks.trials().borrow().len() <= MAX_CHECKS + MOST_STAY);
        }
        assert_eq!(passed, 1, "the others found no permit, or nobody said what becomes of them");
    }

    #[test]
    fn what_was_counted_is_added_to_the_policy_that_is_stored_with_the_spec() {
        let applied = || Applied::read(str::from_utf8(&good()).expect("text")).expect("a policy");
        let (policy, fingerprint) = (applied().id, applied().fingerprint);
        let mut stored = applied().tried_as(policy.clone());
        let object = stored.object.as_mut().expect("an object");
        (object.generation, object.fingerprint) = (7, Some(fingerprint));
        let uid = object.uid.clone();
        let (input, desired) = watch::channel(None);
        let evaluator = watch::channel(None).1;
        let checks = Checks::new(CheckSettings::default(), evaluator, desired, Arc::default(), None, None);
        let counted = checks.counted();
        checks
            .counted
            .send_modify(|memory| memory.remember(policy.clone(), fingerprint, impact::tests::figures_of(12)));
        assert!(counted.has_changed().expect("checks"), "so that the loop tells it at once");
        let denied = |generation: i64| {
            let mut policies = [LoaderPolicy { generation, uid: uid.clone(), ..verdict::tests::policy(&policy) }];
            checks.add_impacts(&mut policies);
            policies[0].impact.as_ref().map(|figures| figures.denied)
        };
        assert_eq!(denied(7), None, "the input knows no such policy yet");
        input.send_replace(Some(Arc::new(Snapshot { policies: vec![stored], ..Snapshot::default() })));
        assert_eq!((denied(7), denied(6)), (Some(12), None));
    }

    #[tokio::test]
    async fn what_an_edit_alone_can_mend_is_refused_or_warned_of() {
        let bad = policy("ClusterPolicy", None, "ftp://example.com/a.wasm");
        for (denies, outcome) in [(true, CheckOutcome::Refused), (false, CheckOutcome::Unknown)] {
            let verdict = checks(denies).0.answer(CHECK, &bad, Instant::now()).await;
            assert_eq!(verdict.outcome, outcome);
            assert_eq!(verdict.failure.and_then(|failure| failure.reason), Some(Reason::SourceNotAllowed));
        }
        let odd = checks(true).0.answer(CHECK, &[0xff], Instant::now()).await;
        assert_eq!(odd.outcome, CheckOutcome::Unknown);
    }
}
