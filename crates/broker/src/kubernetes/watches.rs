//! Collections that are watched, so that a list costs no call of the API server.
//!
//! A watch begins with the first list, or earlier for the objects that published policies need, and serves all policies that ask the
//! same. A list waits until the watch has all objects: no guest sees only some of them. A watch that was not asked for in a while, or
//! that no policy may read any longer, ends.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt as _;
use jiff::Timestamp;
use kube::runtime::watcher::Event;
use portcullis_contract::{ContextAwareResource, ContextProblem, PolicyId};
use portcullis_kubernetes::{CallError, Failures, ObjectText};
use portcullis_util::lock;
use serde_json::value::RawValue;
use tokio::task::AbortHandle;

use super::collection::{Collection, Discovered, Shape};
use super::freshness::{Failed, Outage, State, problem, reason_of};
use super::objects::{CollectionError, Key, Objects};
use super::read::ListQuery;
use super::room::{Begun, Held, MOST, ends_for, in_the_way};
use crate::cache::Answer;
use crate::{Metrics, ProvideError, PublishedGrants};

/// The largest collection, in bytes as they are kept.
const LARGEST: u64 = 64 << 20;
/// The size of all collections together, in bytes.
const ALL: u64 = 192 << 20;
/// How far above `ALL` complete collections may grow by changes, in bytes, so that the new list of another one does not
/// end them.
const GROWTH: u64 = 16 << 20;
/// The most collections that published policies need. The others are kept free for what guests ask for.
const MOST_NEEDED: usize = MOST * 3 / 4;
/// How long a watch goes on without being asked for.
const UNUSED: Duration = Duration::from_secs(600);
/// The same for a watch that failed before it was complete.
const FAILED: Duration = Duration::from_secs(5);
/// How long a collection counts as too large before it is tried again: finding out costs as much as a list.
const REFUSED: Duration = Duration::from_secs(60);

/// The watches by what they watch.
type Running = Mutex<HashMap<ListQuery, Arc<Watched>>>;

/// All watches.
pub(super) struct Watches {
    running: Arc<Running>,
    published: Arc<PublishedGrants>,
    metrics: Metrics,
    bytes: Arc<AtomicU64>,
}

/// One watch.
pub(super) struct Watched {
    pub(super) discovered: Discovered,
    objects: Mutex<Objects>,
    state: tokio::sync::watch::Sender<State>,
    /// The failures of the watch since it last worked, if it fails now.
    outage: Mutex<Option<Outage>>,
    used: Mutex<Instant>,
    task: Mutex<Option<AbortHandle>>,
    bytes: Arc<AtomicU64>,
    /// The policy that asked first; empty if none did.
    asked_by: OnceLock<PolicyId>,
    /// Whether published policies need the objects, by their `contextAwareResources`. Then the watch counts in no policy's share, is not
    /// ended for others, and goes on while it fails. That changes as policies come and go.
    is_needed: AtomicBool,
    /// Whether the watch only shows that the objects can be watched. It keeps none of them.
    is_probe: bool,
}

impl Watches {
    pub(super) fn new(published: Arc<PublishedGrants>, metrics: Metrics) -> Self {
        Self { running: Arc::default(), published, metrics, bytes: Arc::default() }
    }

    /// Waits until a watch knows all objects. The advice is for collections that are too large.
    ///
    /// # Errors
    /// When the objects cannot be listed, or are too many.
    pub(super) async fn wait(
        watched: Arc<Watched>,
        kind: &ContextAwareResource,
        advice: &str,
    ) -> Result<Arc<Watched>, ProvideError> {
        let mut states = watched.state.subscribe();
        let settled = states.wait_for(|state| *state != State::Incomplete(None)).await;
        let state = settled.map(|state| state.clone()).unwrap_or(State::Incomplete(Some(Failed::ended())));
        match state {
            State::Complete => Ok(watched),
            State::Incomplete(failed) => {
                Err(failed_to_list(kind, failed.as_ref().map_or("it is being read", |failed| &failed.why)))
            }
            State::Refused(why) => Err(failed_to_list(kind, format!("{why}; {advice}"))),
        }
    }

    /// The running watch of these objects, if there is one. It counts as used. `asker` is the policy that asks, if one does.
    pub(super) fn find(&self, query: &ListQuery, asker: Option<&PolicyId>) -> Option<Arc<Watched>> {
        let running = lock(&self.running);
        let found = running.get(query).filter(|found| !found.has_expired())?;
        found.note_use();
        if let Some(asker) = asker {
            found.asked_by.get_or_init(|| asker.clone());
        }
        Some(Arc::clone(found))
    }

    /// The watch of these objects, which begins now unless it is running already: for the policy `asker`, whose guest asks, or because
    /// published policies need it if `asker` is `None`.
    ///
    /// # Errors
    /// When there are too many watches, and none of them gives way.
    pub(super) fn begin(&self, asker: Option<&PolicyId>, collection: Collection) -> Result<Arc<Watched>, ProvideError> {
        if let Some(found) = self.find(&collection.query, asker) {
            return Ok(found);
        }
        // Only for a new watch and not for each list, as it looks at the grants of all policies.
        self.sweep();
        let mut running = lock(&self.running);
        // Another call may have begun it in the meantime.
        if let Some(found) = running.get(&collection.query) {
            return Ok(Arc::clone(found));
        }
        let too_many =
            |limit: usize| ProvideError::failed(format!("{limit} collections are watched already, which is the limit"));
        let needed = running.values().filter(|watched| watched.charged_to().is_none()).count();
        if asker.is_none() && needed >= MOST_NEEDED {
            return Err(too_many(MOST_NEEDED));
        }
        let begun = running.iter().map(|(query, watched)| Begun {
            watch: query,
            charged_to: watched.charged_to(),
            is_whole: query.is_whole(),
            last_use: watched.last_use(),
        });
        let ends = ends_for(&begun.collect::<Vec<_>>(), asker).cloned();
        if let Some(ended) = ends.and_then(|query| running.remove(&query)) {
            ended.end();
        }
        if running.len() >= MOST {
            return Err(too_many(MOST));
        }
        let watched = Arc::new(Watched {
            discovered: collection.discovered.clone(),
            objects: Mutex::default(),
            state: tokio::sync::watch::Sender::new(State::Incomplete(None)),
            outage: Mutex::default(),
            used: Mutex::new(Instant::now()),
            task: Mutex::default(),
            bytes: Arc::clone(&self.bytes),
            asked_by: asker.cloned().map(OnceLock::from).unwrap_or_default(),
            is_needed: AtomicBool::new(asker.is_none()),
            is_probe: collection.query.is_probe(),
        });
        let query = collection.query.clone();
        let task = tokio::spawn(follow(Arc::clone(&watched), collection, Arc::clone(&self.running)));
        *lock(&watched.task) = Some(task.abort_handle());
        running.insert(query, Arc::clone(&watched));
        Ok(watched)
    }

    /// Notes which objects published policies need now, also those that a guest asked for first.
    pub(super) fn note_needs(&self, needed: &HashSet<ListQuery>) {
        for (query, watched) in lock(&self.running).iter() {
            watched.is_needed.store(needed.contains(query), Ordering::Relaxed);
        }
    }

    /// Ends the watches that are no longer wanted.
    pub(super) fn sweep(&self) {
        let mut running = lock(&self.running);
        running.retain(|query, watched| watched.is_wanted(query, &self.published));
        self.metrics.watches.set(i64::try_from(running.len()).unwrap_or(i64::MAX));
        self.metrics.watched_bytes.set(i64::try_from(self.bytes.load(Ordering::Relaxed)).unwrap_or(i64::MAX));
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        lock(&self.running).drain().for_each(|(_, watched)| watched.end());
    }
}

pub(super) fn failed_to_list(kind: &ContextAwareResource, why: impl Display) -> ProvideError {
    ProvideError::failed(format!("failed to list {}/{}: {why}", kind.api_version, kind.kind))
}

/// Keeps a collection up to date until it must be refused.
async fn follow(watched: Arc<Watched>, collection: Collection, running: Arc<Running>) {
    let shape = collection.shape();
    let (failing, working) = (Arc::clone(&watched), Arc::clone(&watched));
    let failures = Failures::new("watch objects for policies", move |error| failing.call_failed(error));
    let failures = failures.and_over(move || working.works());
    let mut events = collection.events(failures);
    while let Some(event) = events.next().await {
        let most = if matches!(event, Event::Apply(_) | Event::Delete(_)) { ALL + GROWTH } else { ALL };
        let taken = watched.take(event, &shape);
        if let Err(why) = taken.and_then(|grew| if grew { make_room(&running, &watched, most) } else { Ok(()) }) {
            watched.refuse(&why);
            return;
        }
    }
}

/// Drops the lists that were made of collections, and then ends collections, until all together take no more than `most` bytes.
///
/// # Errors
/// When it is `taker`, which grew, that must end.
fn make_room(running: &Running, taker: &Watched, most: u64) -> Result<(), CollectionError> {
    if taker.bytes.load(Ordering::Relaxed) <= most {
        return Ok(());
    }
    let running = lock(running);
    for watched in running.values() {
        if taker.bytes.load(Ordering::Relaxed) > most {
            watched.change(&mut lock(&watched.objects), Objects::forget_list);
        }
    }
    while taker.bytes.load(Ordering::Relaxed) > most {
        let held = running.values().map(|watched| Held {
            collection: &**watched,
            charged_to: watched.charged_to(),
            bytes: lock(&watched.objects).bytes,
        });
        let why = CollectionError::AllTooLarge(ALL);
        match in_the_way(&held.collect::<Vec<_>>(), taker.charged_to()) {
            Some(other) if !ptr::eq(other, taker) => other.refuse(&why),
            _ => return Err(why),
        }
    }
    Ok(())
}

impl Watched {
    /// Whether it has not been used for so long that it should end.
    fn has_expired(&self) -> bool {
        let limit = match *self.state.borrow() {
            State::Complete | State::Incomplete(None) => UNUSED,
            // A watch that is needed anyway keeps the pauses between its own tries.
            State::Incomplete(Some(_)) if self.is_needed() => UNUSED,
            State::Incomplete(Some(_)) => FAILED,
            State::Refused(_) => REFUSED,
        };
        self.last_use().elapsed() >= limit
    }

    fn is_needed(&self) -> bool {
        self.is_needed.load(Ordering::Relaxed)
    }

    /// The policy in whose share the watch counts; `None` while published policies need it.
    pub(super) fn charged_to(&self) -> Option<&PolicyId> {
        self.asked_by.get().filter(|_| !self.is_needed())
    }

    fn last_use(&self) -> Instant {
        *lock(&self.used)
    }

    fn note_use(&self) {
        // A refusal stands for a while, however often the collection is asked for.
        if !matches!(*self.state.borrow(), State::Refused(_)) {
            *lock(&self.used) = Instant::now();
        }
    }

    /// Whether the watch is still wanted. If not, this ends it.
    fn is_wanted(&self, query: &ListQuery, published: &PublishedGrants) -> bool {
        let is_wanted = !self.has_expired() && published.reads(&query.kind);
        if !is_wanted {
            self.end();
        }
        is_wanted
    }

    fn end(&self) {
        // A list that still waits for this watch gets an error.
        self.failed(Failed::ended());
        self.stop();
    }

    /// Ends the watch for a while, in which lists get the cause.
    fn refuse(&self, why: &CollectionError) {
        let why = why.to_string();
        tracing::warn!(kind = self.discovered.resource.kind, why, "objects for policies are not watched");
        // Both under one lock, so that an event that is taken at the same time comes before both or after both.
        let mut objects = lock(&self.objects);
        self.state.send_replace(State::Refused(why));
        self.drop_all(&mut objects);
    }

    fn stop(&self) {
        self.drop_all(&mut lock(&self.objects));
    }

    /// Drops the objects for good. The task may be taking an event at this moment: that is why it looks at the objects again, under their lock.
    fn drop_all(&self, objects: &mut Objects) {
        if let Some(task) = lock(&self.task).take() {
            task.abort();
        }
        self.bytes.fetch_sub(objects.end(), Ordering::Relaxed);
    }

    fn failed(&self, failed: Failed) {
        self.state.send_if_modified(|state| match state {
            State::Incomplete(before) => {
                *before = Some(failed);
                true
            }
            // The known objects can still be used.
            State::Complete | State::Refused(_) => false,
        });
    }

    fn call_failed(&self, error: &CallError) {
        let why = error.to_string();
        self.failed(Failed { reason: reason_of(error), why: why.clone() });
        lock(&self.outage).get_or_insert_with(|| Outage { since: Instant::now(), time: Timestamp::now(), why });
    }

    fn works(&self) {
        *lock(&self.outage) = None;
    }

    /// What is wrong with the objects, for policies that read all of them.
    pub(super) fn problem(&self, kind: &ContextAwareResource) -> Option<ContextProblem> {
        let state = self.state.borrow().clone();
        problem(kind, &self.discovered.resource, &state, lock(&self.outage).as_ref(), Instant::now())
    }

    /// Applies an event. Gives whether the collection takes more than before. An error ends the watch.
    fn take(&self, event: Event<ObjectText>, shape: &Shape) -> Result<bool, CollectionError> {
        if self.is_probe && !matches!(event, Event::Init | Event::InitDone) {
            return Ok(false);
        }
        let mut objects = lock(&self.objects);
        if objects.has_ended {
            // In the meantime, to make room or because nobody wants it any longer.
            return Ok(false);
        }
        let before = objects.bytes;
        let is_complete = self.change(&mut objects, |objects| {
            let taken = objects.take(event, shape);
            if objects.bytes > LARGEST {
                objects.forget_list();
            }
            let taken = taken.and_then(|is_complete| match objects.bytes {
                now if now > LARGEST => Err(CollectionError::TooLarge(LARGEST)),
                _ => Ok(is_complete),
            });
            if taken.is_err() {
                objects.clear();
            }
            taken
        })?;
        if is_complete {
            // Before the objects are released: a refusal that follows must be the last word.
            self.state.send_if_modified(State::complete);
        }
        Ok(objects.bytes > before)
    }

    /// Changes the objects, and counts by how much they take more or less than before.
    fn change<T>(&self, objects: &mut Objects, change: impl FnOnce(&mut Objects) -> T) -> T {
        let before = objects.bytes;
        let result = change(objects);
        self.bytes.fetch_add(objects.bytes.wrapping_sub(before), Ordering::Relaxed);
        result
    }

    /// The list for guests.
    ///
    /// # Errors
    /// When it is too large, or the watch has ended.
    pub(super) fn list(&self, kind: &ContextAwareResource) -> Answer {
        self.render(kind).map_err(|why| failed_to_list(kind, why))
    }

    /// The list, which is kept only where nothing must end for it: it can be made again.
    fn render(&self, kind: &ContextAwareResource) -> Result<Bytes, CollectionError> {
        let mut objects = lock(&self.objects);
        let (own, all) = (objects.bytes, self.bytes.load(Ordering::Relaxed));
        self.change(&mut objects, |objects| objects.render(kind, |bytes| own + bytes <= LARGEST && all + bytes <= ALL))
    }

    /// A number that changes with the objects, and their length as JSON in bytes.
    ///
    /// # Errors
    /// When the watch has ended.
    pub(super) fn version(&self) -> Result<(u64, usize), CollectionError> {
        let mut objects = lock(&self.objects);
        Ok((objects.version, objects.length()?))
    }

    /// All objects, in the order of their keys.
    ///
    /// # Errors
    /// When the watch has ended.
    pub(super) fn snapshot(&self) -> Result<Vec<(Key, Arc<RawValue>)>, CollectionError> {
        let mut objects = lock(&self.objects);
        objects.length()?;
        Ok(objects.current.iter().map(|(key, json)| (key.clone(), Arc::clone(json))).collect())
    }
}

#[cfg(test)]
mod tests;
