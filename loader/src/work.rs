//! The loop: asks the plan what to do, does it, and reports the results to the plan.

mod unanswered;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use portcullis_broker::{Contexts, PublishedGrants};
use portcullis_contract::{EvaluatorState, LoaderState, Phase, PolicyId, Program, Reason};
use portcullis_process::{Beat, Shutdown, StateFeed};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use self::unanswered::{OneAtATime, Silence};
use crate::checks::Checks;
use crate::claims::Claims;
use crate::input::{Desired, Stamp};
use crate::jobs::{JobContext, JobRunner, blocking, mistake};
use crate::mismatch::Provided;
use crate::plan::{self, AttemptError, Job, Outcome, Plan, PlanSettings};
use crate::progress_log::ProgressLog;
use portcullis_process::Now;

/// Longest time between two turns of the loop.
const TICK: Duration = Duration::from_secs(1);
/// The same while downloads run, so that their progress is shown.
const PROGRESS_TICK: Duration = Duration::from_millis(200);
/// How often the volume and the watched inputs are looked at.
const LOOK: Duration = Duration::from_secs(2);
/// Shortest time between two prunings.
const PRUNE: Duration = Duration::from_secs(2);

/// Everything the loop needs from outside.
#[derive(Clone)]
pub(crate) struct Outside {
    pub(crate) settings: PlanSettings,
    pub(crate) desired: Desired,
    pub(crate) evaluator: watch::Receiver<Option<Arc<EvaluatorState>>>,
    pub(crate) feed: StateFeed<LoaderState>,
    pub(crate) program: Program,
    /// Files whose change may make a failed fetch work.
    pub(crate) watched_files: Vec<PathBuf>,
    pub(crate) beat: Beat,
    pub(crate) shutdown: Shutdown,
    /// What the broker may do for policies.
    pub(crate) grants: Arc<PublishedGrants>,
    /// What the broker says is wrong with the objects that policies read.
    pub(crate) contexts: watch::Sender<Arc<Contexts>>,
    /// What the installation provides to policies.
    pub(crate) provided: Arc<Provided>,
    /// Tries policies that users apply.
    pub(crate) checks: Arc<Checks>,
}

/// One run of the loop.
struct Work {
    outside: Outside,
    runner: Arc<JobRunner>,
    plan: Plan,
    running: HashMap<Job, Running>,
    events: mpsc::UnboundedSender<Event>,
    counter: u64,
    /// When the publication began that is under way; `None` if there is none.
    publishing: Option<Instant>,
    /// [`Plan::changes`] when the state was published last; `None` if it never was.
    shown: Option<u64>,
    logged: BTreeMap<PolicyId, (i64, Reason)>,
    prune_due: bool,
    pruned: Instant,
    looked: Instant,
    look_due: bool,
    looking: OneAtATime<(bool, Looked)>,
    /// Whether a publication began while the look was under way, so that the look may have taken the new manifest for another program's.
    overtaken: bool,
    silence: Silence,
    watched: Looked,
}

/// What was found the last time of what fetches depend on.
#[derive(Debug, PartialEq, Eq)]
struct Looked {
    stamps: Vec<Option<Stamp>>,
    /// Whether it is known where modules may come from. The files that `sources.yml` names are not watched, and one of them may be what it
    /// lacks.
    rules_are_known: bool,
}

struct Running {
    number: u64,
    task: JoinHandle<()>,
    context: Arc<JobContext>,
    /// `None` while the job waits in its queue.
    progress_log: Option<ProgressLog>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Running {
    /// Logs a download that takes long.
    fn log_progress(&mut self, job: &Job, now: Instant) {
        let elapsed = self.progress_log.get_or_insert_with(|| ProgressLog::new(now)).due(now);
        if let (Some(elapsed), Job::Fetch(reference)) = (elapsed, job) {
            let (bytes, total) = self.context.bytes.read();
            tracing::info!(
                module = reference.label(),
                bytes,
                total,
                seconds = elapsed.as_secs(),
                "a module is still being fetched"
            );
        }
    }

    /// Logs the outcome of a job, at debug level.
    fn log_end(&self, outcome: &Outcome, now: Instant) {
        let milliseconds = self.progress_log.map_or(0, |progress_log| progress_log.elapsed(now).as_millis());
        let (bytes, _) = self.context.bytes.read();
        match outcome {
            Outcome::Fetched(reference, Ok(digest)) => {
                tracing::debug!(module = reference.label(), %digest, bytes, milliseconds, "a module was fetched");
            }
            Outcome::Prepared(digest, Ok(_)) => {
                tracing::debug!(%digest, milliseconds, "a module is ready to be served");
            }
            _ => {}
        }
    }
}

enum Event {
    Job(u64, Job, Box<Outcome>),
    Published(Result<u64, AttemptError>),
}

/// Runs until the shutdown. It begins with the manifest on the volume, so that it may be called again after a panic.
pub(crate) async fn work(mut outside: Outside, runner: Arc<JobRunner>) {
    let volume = Arc::clone(&runner.volume);
    let (settings, provided) = (outside.settings, Arc::clone(&outside.provided));
    let grants = Arc::clone(&outside.grants);
    let restored = blocking(move || {
        let manifest = volume.manifest();
        volume.number_from(manifest.as_ref());
        let plan =
            Plan::restore(settings, provided, manifest.as_ref(), |candidate| volume.artifact_of(candidate), Now::get());
        // The evaluator may serve a generation that the manifest no longer names.
        grants.remember(plan.earlier_modules(|digest| volume.execution_mode(digest)), Instant::now());
        manifest.iter().for_each(|manifest| grants.publish(manifest));
        plan
    });
    let restored = restored.await;
    // The broker waits for this before it connects to the evaluator, whatever came of it.
    outside.grants.set_restored();
    let Ok(plan) = restored else { return };
    let (events, mut incoming) = mpsc::unbounded_channel();
    let watched = look_at(&outside.watched_files, &runner);
    let mut work = Work {
        runner,
        plan,
        running: HashMap::new(),
        events,
        counter: 0,
        publishing: None,
        shown: None,
        logged: BTreeMap::new(),
        prune_due: true,
        pruned: Instant::now(),
        looked: Instant::now(),
        look_due: false,
        looking: OneAtATime::default(),
        overtaken: false,
        silence: Silence::default(),
        watched,
        outside: outside.clone(),
    };
    outside.desired.mark_changed();
    outside.evaluator.mark_changed();
    let mut contexts = outside.contexts.subscribe();
    let mut trials = outside.checks.trials();
    trials.mark_changed();
    let mut counted = outside.checks.counted();
    while !outside.shutdown.has_begun() {
        outside.beat.now();
        let wake = work.turn();
        tokio::select! {
            biased;
            () = outside.shutdown.begun() => {}
            event = incoming.recv() => {
                let mut next = event;
                while let Some(event) = next {
                    work.happened(event);
                    next = incoming.try_recv().ok();
                }
            }
            changed = outside.desired.changed() => {
                if changed.is_err() {
                    tokio::time::sleep(TICK).await;
                }
                if let Some(snapshot) = outside.desired.borrow_and_update().clone() {
                    work.take(plan::Event::Desired(snapshot), Now::get());
                }
            }
            changed = outside.evaluator.changed() => {
                if changed.is_err() {
                    tokio::time::sleep(TICK).await;
                }
                let state = outside.evaluator.borrow_and_update().clone();
                if let Some(state) = state {
                    work.evaluator(state);
                }
            }
            // This cannot fail: `checks` holds the sender, and outlives the loop.
            _ = trials.changed() => {
                let trials = Arc::clone(&trials.borrow_and_update());
                work.take(plan::Event::Tried(trials), Now::get());
            }
            // This cannot fail either: `checks` holds the sender.
            _ = counted.changed() => work.publish_state(),
            // This cannot fail: `outside` holds the sender.
            _ = contexts.changed() => work.publish_state(),
            () = tokio::time::sleep(wake) => {}
        }
        work.look().await;
    }
}

impl Work {
    /// One turn: starts and stops jobs, and publishes. Returns the longest time to wait before the next turn.
    fn turn(&mut self) -> Duration {
        let now = Now::get();
        let mut progresses = false;
        for (job, running) in &mut self.running {
            if running.context.runs.load(Ordering::Relaxed) {
                let (bytes, total) = running.context.bytes.read();
                self.plan.progress(job, bytes, total, now);
                running.log_progress(job, now.instant);
                progresses = true;
            } else if running.progress_log.take().is_some() {
                self.plan.wait_again(job);
                progresses = true;
            }
        }
        let removed = self.runner.removed();
        if !removed.is_empty() {
            self.take(plan::Event::Removed(removed), now);
        }
        let turn = self.plan.turn(now);
        // Dropping a job that is no longer wanted ends it.
        self.running.retain(|job, _| turn.jobs.contains_key(job));
        let mut have_others = false;
        for (job, claims) in turn.jobs {
            match self.running.get(&job) {
                Some(running) => have_others |= running.context.claim(&claims),
                None => self.start(job, claims),
            }
        }
        if have_others {
            self.runner.renew();
        }
        if let Some(manifest) = turn.publish {
            // The broker must know the grants before an evaluator sees the manifest: policies may call their host at once.
            let evaluator = self.outside.evaluator.borrow().clone();
            self.outside.grants.replace(&manifest, evaluator.as_deref(), now.instant);
            self.runner.keep(self.plan.keep());
            self.publishing = Some(now.instant);
            self.overtaken = true;
            let (runner, events) = (Arc::clone(&self.runner), self.events.clone());
            tokio::spawn(async move {
                let result = runner.publish(manifest).await;
                // This fails only if the loop has ended, with the program or by a panic.
                let _ = events.send(Event::Published(result));
            });
        }
        if self.prune_due && self.publishing.is_none() && self.pruned.elapsed() >= PRUNE {
            (self.prune_due, self.pruned) = (false, Instant::now());
            let (runner, keep) = (Arc::clone(&self.runner), self.plan.keep());
            runner.keep(keep.clone());
            tokio::spawn(async move { runner.prune(keep).await });
        }
        let has_changed = self.silence.note(&[self.publishing, self.looking.since()], now);
        if has_changed {
            match self.silence.failure() {
                Some(failure) => {
                    tracing::warn!(
                        problem = failure.message,
                        "what is on the volume serves on; changes may not be seen or published"
                    )
                }
                None => tracing::info!("the volume and the files answer again"),
            }
        }
        if progresses || has_changed || self.shown != Some(self.plan.changes()) {
            self.publish_state();
        }
        let longest = if self.running.keys().any(|job| matches!(job, Job::Fetch(_))) { PROGRESS_TICK } else { TICK };
        let wake = turn.wake.map(|wake| wake.saturating_duration_since(now.instant));
        wake.unwrap_or(longest).min(longest)
    }

    fn take(&mut self, event: plan::Event, now: Now) {
        self.plan.take(event, now, fastrand::f64());
    }

    fn start(&mut self, job: Job, claims: Claims) {
        self.counter += 1;
        let number = self.counter;
        let context = Arc::new(JobContext::new(claims));
        let (runner, events) = (Arc::clone(&self.runner), self.events.clone());
        let (key, own_context) = (job.clone(), Arc::clone(&context));
        let pins = self.plan.pins_of(&job);
        let task = tokio::spawn(async move {
            // The job runs in a task of its own, so that a panic becomes an ordinary failure. That task ends when this one is dropped.
            let mut inner = tokio::task::JoinSet::new();
            let run = runner.run(key.clone(), pins, own_context);
            inner.spawn(run);
            let outcome = match inner.join_next().await {
                Some(Ok(outcome)) => outcome,
                _ => key.clone().failed(mistake(Reason::InternalError, "a job")),
            };
            let _ = events.send(Event::Job(number, key, Box::new(outcome)));
        });
        self.running.insert(job, Running { number, task, context, progress_log: None });
    }

    fn happened(&mut self, event: Event) {
        let now = Now::get();
        match event {
            Event::Published(result) => {
                self.publishing = None;
                self.prune_due = true;
                if let Ok(number) = &result {
                    self.outside.grants.written(now.instant);
                    self.runner.metrics.manifests.inc();
                    self.runner.metrics.manifest_number.set(i64::try_from(*number).unwrap_or(i64::MAX));
                }
                self.take(plan::Event::Published(result), now);
            }
            Event::Job(number, job, outcome) => {
                if self.running.get(&job).is_none_or(|running| running.number != number) {
                    // The job was stopped when it had already ended.
                    return;
                }
                if let Some(running) = self.running.remove(&job) {
                    running.log_end(&outcome, now.instant);
                }
                self.take(plan::Event::Ended(*outcome), now);
            }
        }
    }

    fn evaluator(&mut self, state: Arc<EvaluatorState>) {
        if state.manifest_failure.is_some() {
            // Another program may have written the manifest: look at the volume.
            self.look_due = true;
        }
        if self.runner.volume.count_from(state.manifest_number) {
            // The evaluator follows a manifest that this volume has lost, and would take ours for an older one.
            self.take(plan::Event::ManifestLost, Now::get());
        }
        self.outside.grants.follow(&state, Instant::now());
        self.take(plan::Event::Evaluator(state), Now::get());
    }

    /// Looks for changes that send no events: of the manifest on the volume, and of the files that fetches depend on.
    async fn look(&mut self) {
        if !self.looking.has_begun() {
            let is_due = self.looked.elapsed() >= LOOK || self.look_due;
            if !is_due || self.publishing.is_some() {
                return;
            }
            (self.looked, self.look_due, self.overtaken) = (Instant::now(), false, false);
        }
        let (runner, files) = (Arc::clone(&self.runner), self.outside.watched_files.clone());
        let look = move || (runner.volume.is_manifest_foreign(), look_at(&files, &runner));
        // A volume that hangs must not block the loop. What a slow one shows is taken in a later turn.
        let Some((foreign, watched)) = self.looking.run(TICK, look).await else { return };
        if foreign && self.overtaken {
            self.look_due = true;
        } else if foreign {
            tracing::warn!("another program changed the manifest on the volume; publishing it again");
            self.take(plan::Event::ManifestLost, Now::get());
        }
        if watched != self.watched {
            self.watched = watched;
            self.take(plan::Event::OutsideChanged, Now::get());
        }
    }

    /// Publishes the state, and logs failures that began or ended.
    fn publish_state(&mut self) {
        self.shown = Some(self.plan.changes());
        let mut state = self.plan.state(&self.outside.program, &self.outside.contexts.borrow());
        // Trials are left out of the state; only the checks need them.
        let (tried, policies) = state.policies.into_iter().partition(|policy| policy.id.is_check());
        state.policies = policies;
        state.volume_failure = state.volume_failure.or_else(|| self.silence.failure());
        self.outside.checks.learn(tried);
        self.outside.checks.add_impacts(&mut state.policies);
        let metrics = &self.runner.metrics;
        let published = state.policies.iter().filter(|policy| policy.phase == Phase::Published).count();
        let mut failing = BTreeMap::new();
        for policy in &state.policies {
            let Some(failure) = &policy.failure else { continue };
            failing.insert(policy.id.clone(), (policy.generation, failure.reason));
            if self.logged.get(&policy.id) != Some(&(policy.generation, failure.reason)) {
                metrics.failure(failure.reason);
                tracing::warn!(
                    policy = %policy.id,
                    generation = policy.generation,
                    stage = %failure.stage(),
                    reason = %failure.reason,
                    message = failure.message,
                    "a policy cannot be loaded"
                );
            }
        }
        for id in self.logged.keys().filter(|id| !failing.contains_key(*id)) {
            match state.policies.iter().find(|policy| policy.id == *id) {
                Some(policy) => tracing::info!(policy = %id, generation = policy.generation, "the policy loads again"),
                None => tracing::info!(policy = %id, "the policy that could not be loaded is gone"),
            }
        }
        metrics.published.set(i64::try_from(published).unwrap_or(i64::MAX));
        metrics.failed.set(i64::try_from(failing.len()).unwrap_or(i64::MAX));
        self.logged = failing;
        self.outside.feed.publish(state, |state, version| state.version = version);
    }
}

/// Looks at what fetches depend on. A mounted file is a symbolic link, so its stamp is that of the file that it leads to.
fn look_at(files: &[PathBuf], runner: &JobRunner) -> Looked {
    let stamps = files.iter().map(|file| file.canonicalize().ok().and_then(|real| Stamp::of(&real))).collect();
    Looked { stamps, rules_are_known: runner.sources.rules_are_known() }
}
