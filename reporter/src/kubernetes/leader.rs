//! What the holder of the Lease does: it joins all reports into the status of every policy, writes what has changed, and makes events.
//!
//! ```text
//!  policies, reports, endpoints ──► store ──► decide ──► pace ──► apply ──► what came back
//!                                     ▲                                        │
//!                                     └────────── last, given_up ──────────────┴──► events
//! ```
//!
//! Everything is decided from listed objects, so that a new leader needs nothing from the one before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::events::v1::Event;
use kube::api::{ApiResource, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use portcullis_api::kubernetes::BoundedObject;
use portcullis_api::{EventType, PolicyStatus};
use portcullis_contract::PolicyId;
use portcullis_kubernetes::{CallError, Failures, Leadership};
use portcullis_process::set_if_new;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::announce::{Announcer, Notice, Step};
use super::args::Settings;
use super::collections::{collections, follow};
use super::fields::{self, Fingerprint, Fit};
use super::judge::wanted;
use super::metrics::{ClusterMetrics, Losing};
use super::object::{Meta, PolicyObject};
use super::outdated::Outdated;
use super::pace::{Next, Pace};
use super::removals::Removals;
use super::store::{Change, Collection, Store, TrackedPolicy};
use super::tally::Said;
use super::tries::{Success, Tries};
use super::urgency::{Urgency, urgency};
use super::write::{self, Outcome, Written};
use crate::audit::Audit;
use crate::facts::Replica;
use crate::{event, failing};

/// Most changes of watched objects that wait in the channel. Each has a whole status, so it is few.
const CHANGES: usize = 64;
/// The same of reports, which can have a megabyte each.
const REPORT_CHANGES: usize = 4;
/// Most summaries of the audit that wait in the channel.
const QUEUE: usize = 1024;
/// How often staleness is judged and the remains of pods are looked for.
const TICK: Duration = Duration::from_secs(1);

/// Leads while the Lease is held, for ever.
pub(crate) async fn lead_whenever_held(
    client: Client,
    settings: Arc<Settings>,
    metrics: ClusterMetrics,
    mut leadership: Leadership,
    audit: Option<Audit>,
) {
    loop {
        metrics.leads.set(0);
        leadership.held().await;
        metrics.leads.set(1);
        lead(client.clone(), &settings, &metrics, leadership.clone(), audit.clone()).await;
    }
}

/// Leads until the Lease is lost.
async fn lead(
    client: Client,
    settings: &Settings,
    metrics: &ClusterMetrics,
    mut leadership: Leadership,
    audit: Option<Audit>,
) {
    let (sender, mut changes) = mpsc::channel(CHANGES);
    let (report_sender, mut reports) = mpsc::channel(REPORT_CHANGES);
    let mut watches = JoinSet::new();
    for (collection, doing, api, config) in collections(&client, settings) {
        let sender = if collection == Collection::Reports { &report_sender } else { &sender };
        watches.spawn(follow(collection, api, config, metrics.failures_to(doing), sender.clone()));
    }
    let mut leader = Leader::new(client, settings, metrics, leadership.clone());
    // The audit is aborted when this set is dropped, with the leadership.
    let mut audits = JoinSet::new();
    let (found, mut summaries) = mpsc::channel(QUEUE);
    let (policies, digest) = watch::channel(None);
    if let Some(audit) = audit {
        audits.spawn(audit.run(digest, leadership.clone(), found));
    }
    let mut tick = tokio::time::interval(TICK);
    while leadership.is_held() {
        let due = leader.turn();
        set_if_new(&policies, settings.audit.and_then(|_| leader.store.policies_digest()));
        let sleep = async {
            match due {
                Some(due) => tokio::time::sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(first) = changes.recv() => leader.apply_all(first, &mut changes),
            Some(first) = reports.recv() => leader.apply_all(first, &mut reports),
            Some(outcome) = leader.writes.join_next() => match outcome {
                Ok(Some(outcome)) => leader.written(outcome),
                Ok(None) | Err(_) => break,
            },
            Some(outcome) = leader.event.join_next() => match outcome {
                Ok(Some(outcome)) => leader.announced(outcome),
                Ok(None) | Err(_) => break,
            },
            Some(found) = summaries.recv() => leader.store.audited(found),
            Some(_) = watches.join_next() => break,
            Some(_) = audits.join_next() => break,
            Some(outcome) = leader.removals.join_next() => match outcome {
                Ok(Some(answer)) => leader.removals.ended(answer, fastrand::f64(), Instant::now()),
                Ok(None) | Err(_) => break,
            },
            _ = tick.tick() => leader.tick(),
            () = leadership.changed() => {}
            () = sleep => {}
        }
    }
    metrics.tally.show(std::iter::empty());
    metrics.audit.show(&BTreeMap::new());
    metrics.outdated.set(Losing::Status, false);
    if leadership.is_held() {
        // A part of the leader has panicked, as nothing else ends it. Its state cannot be trusted, so the leader starts
        // again.
        tracing::error!("a part of the leader ended; the leader starts again");
        tokio::time::sleep(TICK).await;
    }
}

/// Events of a namespace.
fn events(client: &Client, namespace: &str) -> Api<BoundedObject> {
    Api::namespaced_with(client.clone(), namespace, &ApiResource::erase::<Event>(&()))
}

/// How soon a policy's status is to be written; none if it need not be.
fn write_urgency(policy: &TrackedPolicy, replicas: &[Replica<'_>]) -> Option<Urgency> {
    wanted(policy, replicas, Timestamp::now()).map(|status| urgency(policy, &status))
}

struct Leader<'a> {
    client: Client,
    settings: &'a Settings,
    metrics: &'a ClusterMetrics,
    leadership: Leadership,
    store: Store,
    pace: Pace,
    announcer: Announcer,
    tries: Tries,
    /// Policies of which a write met a newer version. The watch brings that version.
    conflicts: BTreeSet<PolicyId>,
    /// Policies of which too many evaluations fail, and for which an event was made.
    failing: BTreeSet<PolicyId>,
    failures: Failures,
    event_failures: Failures,
    writes: JoinSet<Option<Outcome>>,
    event: JoinSet<Option<Result<(), CallError>>>,
    removals: Removals,
    outdated: Outdated,
}

impl<'a> Leader<'a> {
    fn new(client: Client, settings: &'a Settings, metrics: &'a ClusterMetrics, leadership: Leadership) -> Self {
        Self {
            client,
            settings,
            metrics,
            leadership,
            store: Store::new(
                &settings.identity.policy_server,
                settings.report_lifetime,
                settings.audit.map(|audit| audit.interval),
            ),
            pace: Pace::new(settings.status_writes, Instant::now()),
            announcer: Announcer::new(&settings.identity.pod),
            tries: Tries::default(),
            conflicts: BTreeSet::new(),
            failing: BTreeSet::new(),
            failures: metrics.failures_to("write status"),
            event_failures: metrics.failures_to("write events"),
            writes: JoinSet::new(),
            event: JoinSet::new(),
            removals: Removals::new(metrics.failures_to("remove reports"), Instant::now()),
            outdated: Outdated::default(),
        }
    }

    /// Takes in a change and those that wait behind it.
    fn apply_all(&mut self, first: (Collection, Change), rest: &mut mpsc::Receiver<(Collection, Change)>) {
        let mut next = Some(first);
        while let Some((collection, change)) = next {
            self.apply(collection, change);
            next = rest.try_recv().ok();
        }
    }

    fn apply(&mut self, collection: Collection, change: Change) {
        self.store.apply(collection, change, Instant::now(), Timestamp::now());
    }

    /// Decides about the policies that changed and starts what is due. Returns when to do so next.
    fn turn(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let dirty = self.store.take_dirty();
        if !dirty.is_empty() {
            dirty.iter().for_each(|id| self.find_tried(id));
            let replicas = self.store.replicas();
            for id in dirty {
                let policy = self.store.policy(&id);
                let urgency = policy.and_then(|policy| write_urgency(policy, &replicas));
                if urgency.is_none() && policy.is_none_or(|policy| policy.given_up.is_none()) {
                    self.outdated.leave(&id);
                }
                self.pace.want(&id, urgency, now);
                let failing = policy.and_then(|policy| failing::worst(&policy.object.meta.uid, &replicas));
                if let (Some(policy), Some(said)) = (policy, failing)
                    && self.failing.insert(id.clone())
                {
                    let notice = Notice {
                        policy: id.clone(),
                        uid: policy.object.meta.uid.clone(),
                        r#type: EventType::Warning,
                        reason: failing::REASON.to_owned(),
                        note: failing::note(&said.reason, said.since),
                    };
                    // The event has the time when the failing began, so that another leader makes the same event and not a second one.
                    self.announcer.add(notice, said.since, now);
                } else if failing.is_none() {
                    self.failing.remove(&id);
                }
                let is_outdated = policy.is_some_and(|policy| self.tries.is_outdated(&policy.object));
                if self.conflicts.remove(&id) || is_outdated {
                    self.pace.expedite(&id, now);
                }
            }
            let store = &self.store;
            self.pace.forget(|id| store.policy(id).is_some());
            self.tries.retain(|id| store.policy(id).is_some());
            self.failing.retain(|id| store.policy(id).is_some());
            let policies = self.store.policies();
            self.metrics
                .tally
                .show(policies.filter_map(|policy| Some((&policy.object.id, Said::of(policy.last.as_ref()?)))));
        }
        self.metrics.outdated.set(Losing::Status, self.outdated.is_seen());
        let status = self.start_writes(now);
        let event = self.start_event(now);
        [status, event].into_iter().flatten().min()
    }

    fn start_writes(&mut self, now: Instant) -> Option<Instant> {
        loop {
            if !self.leadership.is_held() {
                return None;
            }
            let id = match self.pace.next(now) {
                Next::Write(id) => id,
                Next::At(at) => return Some(at),
                Next::Idle => return None,
            };
            // The status is decided again now, as it may have changed since the write was first wanted.
            let replicas = self.store.replicas();
            let Some(policy) = self.store.policy(&id) else {
                self.pace.done(&id, None);
                continue;
            };
            let Some(status) = wanted(policy, &replicas, Timestamp::now()) else {
                self.pace.done(&id, None);
                continue;
            };
            let object = policy.object.clone();
            if let Some(policy) = self.store.policy_mut(&id) {
                policy.tried = Some(Box::new(status.clone()));
            }
            let may_ask = self.tries.may_ask(&object);
            self.writes.spawn(write::status(self.client.clone(), self.leadership.clone(), object, status, may_ask));
        }
    }

    /// Takes in a write whose answer was lost, if the watch shows that it succeeded: it counts like any other.
    fn find_tried(&mut self, id: &PolicyId) {
        let Some(policy) = self.store.policy_mut(id) else { return };
        let is_there = |tried: &PolicyStatus| Fingerprint::of(&json!(tried)) == policy.object.found;
        if policy.tried.as_deref().is_some_and(is_there)
            && let Some(status) = policy.tried.take()
        {
            let (object, before) = (policy.object.clone(), policy.last.replace((*status).clone()));
            self.announce(&object, before.as_ref(), &status);
        }
    }

    /// Adds the events of one change of status.
    fn announce(&mut self, object: &PolicyObject, before: Option<&PolicyStatus>, after: &PolicyStatus) {
        let mut none = false;
        let policy = self.store.policy_mut(&object.id).filter(|policy| policy.object.meta.uid == object.meta.uid);
        let has_failed = policy.map_or(&mut none, |policy| &mut policy.has_failed);
        for (r#type, reason, note) in event::events(before, after, has_failed) {
            let notice = Notice { policy: object.id.clone(), uid: object.meta.uid.clone(), r#type, reason, note };
            self.announcer.add(notice, Timestamp::now(), Instant::now());
        }
    }

    fn written(&mut self, outcome: Outcome) {
        let now = Instant::now();
        let Outcome { object, status, answer, knows_all } = outcome;
        let id = object.id.clone();
        match answer {
            Ok(Written { found, unswept: Some(error) }) => {
                self.failures.over();
                // The next try has to apply again, as it cannot know the newer version. Its pauses grow, so that there is no loop with a
                // program that writes all the time.
                let pause = self.tries.failed(&object, &error, knows_all, fastrand::f64(), now).pause;
                self.metrics.writes.inc();
                self.metrics.conflicts.inc();
                self.pace.done(&id, Some(now + pause));
                self.settle(&object, status, found, false);
            }
            Ok(Written { found, unswept: None }) => {
                self.failures.over();
                let Success { was_said, others } = self.tries.succeeded(&id);
                if was_said {
                    tracing::info!(policy = %id, "able to write the status again");
                }
                for other in others {
                    self.store.touch(&other);
                    self.pace.expedite(&other, now);
                }
                self.metrics.writes.inc();
                self.pace.done(&id, None);
                self.settle(&object, status, found, true);
            }
            Err(error) => {
                let mut failed = || {
                    let verdict = self.tries.failed(&object, &error, knows_all, fastrand::f64(), now);
                    if verdict.is_news {
                        // One line of each policy: that others are written does not show that this one can be.
                        tracing::warn!(policy = %id, %error, "failed to write the status, though others can be written; the object may \
                            be too large. It is tried again when the policy changes, and every minute");
                    }
                    Some(now + verdict.pause)
                };
                let again = match error.code() {
                    // The policy is gone, so there is nothing to try again. The watch brings a later policy of the same name.
                    Some(404) => {
                        self.store.forget(&object);
                        None
                    }
                    Some(409) => {
                        self.metrics.conflicts.inc();
                        self.conflicts.insert(id.clone());
                        failed()
                    }
                    _ => {
                        self.failures.failed(&error);
                        failed()
                    }
                };
                self.pace.done(&id, again);
            }
        }
        // If the watch brought a newer version before this answer, the policy is decided again at once, also after a conflict.
        if let Some(policy) = self.store.policy(&id) {
            let is_unchanged = policy.object.meta.version == object.meta.version;
            if !is_unchanged || !self.conflicts.contains(&id) {
                self.store.touch(&id);
            } else {
                let replicas = self.store.replicas();
                let urgency = write_urgency(policy, &replicas);
                self.pace.want(&id, urgency, now);
            }
        }
    }

    /// Takes in the result of a write that succeeded. `is_swept` is whether the API server also took the removal of foreign values, so that another
    /// write could not do better.
    fn settle(&mut self, object: &PolicyObject, status: PolicyStatus, found: Value, is_swept: bool) {
        let Some(policy) = self.store.policy_mut(&object.id) else { return };
        if policy.object.meta.uid != object.meta.uid {
            return;
        }
        let (wanted, left) = (json!(status), &found["status"]);
        let fit = fields::fit(&fields::ours(&wanted), &fields::ours(left));
        let (wanted, left) = (Fingerprint::of(&wanted), Fingerprint::of(left));
        let is_final = matches!(fit, Fit::Dropped(_)) || fit == Fit::Foreign && is_swept;
        policy.given_up = is_final.then_some((wanted, left));
        if let Some(meta) = Meta::of(&found).filter(|meta| !policy.object.meta.is_newer_than(meta)) {
            policy.object.meta = meta;
            policy.object.found = left;
        }
        policy.tried = None;
        let before = policy.last.replace(status.clone());
        self.announce(object, before.as_ref(), &status);
        let now = Instant::now();
        match fit {
            // It is logged once, as only an upgrade of the definition helps.
            Fit::Dropped(fields) if self.outdated.lost(&object.id, now) => self.log_outdated(object, &fields),
            Fit::Dropped(_) => {}
            Fit::Same | Fit::Foreign => {
                for other in self.outdated.fits(&object.id, now) {
                    self.try_again(&other);
                }
            }
        }
    }

    /// Has a status written again that could not be written as wanted.
    fn try_again(&mut self, id: &PolicyId) {
        if let Some(policy) = self.store.policy_mut(id) {
            policy.given_up = None;
            self.store.touch(id);
        }
    }

    /// Logs that the CustomResourceDefinition is older than this release.
    fn log_outdated(&mut self, object: &PolicyObject, fields: &[String]) {
        let shown = fields.iter().take(5).map(String::as_str).collect::<Vec<_>>().join(", ");
        let note =
            format!("the CustomResourceDefinition is older than the reporter and drops {shown}; install the newer one");
        tracing::warn!(policy = %object.id, "{note}");
        let notice = Notice {
            policy: object.id.clone(),
            uid: object.meta.uid.clone(),
            r#type: EventType::Warning,
            reason: "StatusSchemaOutdated".to_owned(),
            note,
        };
        self.announcer.add(notice, Timestamp::now(), Instant::now());
    }

    fn start_event(&mut self, now: Instant) -> Option<Instant> {
        if !self.leadership.is_held() {
            return None;
        }
        let (client, leadership) = (self.client.clone(), self.leadership.clone());
        match self.announcer.next(now) {
            Step::Create { namespace, object } => {
                self.event.spawn(write::event(leadership, async move {
                    let object = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
                    events(&client, &namespace).create(&PostParams::default(), &object).await
                }));
                None
            }
            Step::Raise { namespace, name, patch } => {
                self.event.spawn(write::event(leadership, async move {
                    events(&client, &namespace).patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await
                }));
                None
            }
            Step::At(at) => Some(at),
            Step::Idle => None,
        }
    }

    fn announced(&mut self, outcome: Result<(), CallError>) {
        match outcome {
            // The event exists already: an earlier try succeeded, but its answer was lost.
            Err(error) if error.code() != Some(409) => {
                self.event_failures.failed(&error);
                self.announcer.failed(&error, fastrand::f64(), Instant::now());
            }
            Ok(()) | Err(_) => {
                self.event_failures.over();
                self.metrics.events.inc();
                self.announcer.written();
            }
        }
    }

    fn tick(&mut self) {
        self.store.turn(Instant::now());
        if let Some(id) = self.outdated.due(Instant::now()) {
            self.try_again(&id);
        }
        let lost = std::mem::take(&mut self.announcer.lost);
        self.metrics.events_lost.inc_by(lost);
        if self.removals.may_begin(Instant::now()) && self.leadership.is_held() {
            let namespace = &self.settings.identity.namespace;
            self.removals.begin(self.store.dead_reports(Instant::now()), |report| {
                write::remove_report(self.client.clone(), self.leadership.clone(), namespace.clone(), report)
            });
        }
    }
}

#[cfg(test)]
mod tests;
