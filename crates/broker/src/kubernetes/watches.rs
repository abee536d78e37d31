//! Collections that are watched, so that a list costs no call of the API server.
//!
//! A watch begins with the first list and serves all policies that ask the same. A list waits until the watch has all objects: no guest
//! sees a part of them. A watch that nobody has asked for a while, or that no policy may read any longer, ends.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt as _;
use kube::Api;
use kube::api::DynamicObject;
use kube::discovery::ApiResource;
use kube::runtime::watcher::{self, Event};
use portcullis_contract::{ContextAwareResource, PolicyId};
use portcullis_kubernetes::Failures;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::objects::{Key, Objects, SELECT_LESS};
use super::read::ListQuery;
use crate::cache::Answer;
use crate::{Metrics, ProvideError, Record};

/// Objects of one page of a list.
const PAGE: u32 = 500;
/// Largest collection, in bytes, as it is kept.
const LARGEST: u64 = 64 << 20;
/// All collections together, in bytes.
const ALL: u64 = 192 << 20;
/// Most collections at the same time.
const MOST: usize = 256;
/// Most collections that one policy began.
const MOST_OF_ONE: usize = 32;
/// How long a watch goes on without a question.
const UNUSED: Duration = Duration::from_secs(600);
/// The same for one that failed before it was complete.
const FAILED: Duration = Duration::from_secs(5);
/// How long it stands that a collection is too large: finding out costs as much as a list.
const REFUSED: Duration = Duration::from_secs(60);

/// A collection that a guest asks for.
pub(super) struct Collection {
    pub(super) query: ListQuery,
    pub(super) api: Api<DynamicObject>,
    pub(super) resource: ApiResource,
}

/// All watches.
pub(super) struct Watches {
    running: Mutex<HashMap<ListQuery, Arc<Watched>>>,
    record: Arc<Record>,
    metrics: Metrics,
    bytes: Arc<AtomicU64>,
}

/// One watch.
pub(super) struct Watched {
    objects: Mutex<Objects>,
    state: watch::Sender<State>,
    used: Mutex<Instant>,
    task: Mutex<Option<AbortHandle>>,
    bytes: Arc<AtomicU64>,
    /// The policy that asked first.
    begun_by: PolicyId,
}

/// What is known of a collection.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// Not all objects have come yet. The text says why, if something failed.
    Incomplete(Option<String>),
    /// All objects are here.
    Complete,
    /// It is too large, or there is no room.
    Refused(String),
}

impl Watches {
    pub(super) fn new(record: Arc<Record>, metrics: Metrics) -> Self {
        Self { running: Mutex::default(), record, metrics, bytes: Arc::default() }
    }

    /// The objects of a collection, once all are known.
    ///
    /// # Errors
    /// When they cannot be listed, or are too many.
    pub(super) async fn list(&self, policy: &PolicyId, collection: Collection) -> Answer {
        let kind = collection.query.kind.clone();
        let watched = self.complete(policy, collection, SELECT_LESS).await?;
        watched.render(&kind).map_err(|why| failed_to_list(&kind, &why))
    }

    /// The watch of a collection, once it knows all objects. The advice is for collections that are too large.
    ///
    /// # Errors
    /// When they cannot be listed, or are too many.
    pub(super) async fn complete(
        &self,
        policy: &PolicyId,
        collection: Collection,
        advice: &str,
    ) -> Result<Arc<Watched>, ProvideError> {
        let kind = collection.query.kind.clone();
        let watched = self.watched(policy, collection)?;
        let mut states = watched.state.subscribe();
        let settled = states.wait_for(|state| *state != State::Incomplete(None)).await;
        let state = settled.map(|state| state.clone()).unwrap_or(State::Incomplete(Some("the watch ended".to_owned())));
        match state {
            State::Complete => Ok(watched),
            State::Incomplete(why) => Err(failed_to_list(&kind, why.as_deref().unwrap_or("it is being read"))),
            State::Refused(why) => Err(failed_to_list(&kind, &format!("{why}; {advice}"))),
        }
    }

    fn watched(&self, policy: &PolicyId, collection: Collection) -> Result<Arc<Watched>, ProvideError> {
        if let Some(found) = self.running().get(&collection.query).filter(|found| !found.has_expired()) {
            found.note_use();
            return Ok(Arc::clone(found));
        }
        // Not for each list: it looks at the grants of all policies.
        self.sweep();
        let mut running = self.running();
        // Another list may have begun it meanwhile.
        if let Some(found) = running.get(&collection.query) {
            return Ok(Arc::clone(found));
        }
        // A policy with selectors made of requests begins one after the other: its oldest makes room.
        let own = running.iter().filter(|(query, watched)| watched.begun_by == *policy && !query.is_whole());
        if own.clone().count() >= MOST_OF_ONE
            && let Some(oldest) = own.min_by_key(|(_, watched)| watched.last_use()).map(|(query, _)| query.clone())
            && let Some(oldest) = running.remove(&oldest)
        {
            oldest.end();
        }
        if running.len() >= MOST {
            return Err(ProvideError::failed(format!("{MOST} collections are watched already, which is the limit")));
        }
        let watched = Arc::new(Watched {
            objects: Mutex::default(),
            state: watch::Sender::new(State::Incomplete(None)),
            used: Mutex::new(Instant::now()),
            task: Mutex::default(),
            bytes: Arc::clone(&self.bytes),
            begun_by: policy.clone(),
        });
        let query = collection.query.clone();
        let task = tokio::spawn(follow(Arc::clone(&watched), collection));
        *watched.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task.abort_handle());
        running.insert(query, Arc::clone(&watched));
        Ok(watched)
    }

    /// Ends the watches that are not wanted any longer.
    pub(super) fn sweep(&self) {
        let mut running = self.running();
        running.retain(|query, watched| watched.is_wanted(query, &self.record));
        self.metrics.watches.set(i64::try_from(running.len()).unwrap_or(i64::MAX));
        self.metrics.watched_bytes.set(i64::try_from(self.bytes.load(Ordering::Relaxed)).unwrap_or(i64::MAX));
    }

    fn running(&self) -> MutexGuard<'_, HashMap<ListQuery, Arc<Watched>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        let running = self.running.get_mut().unwrap_or_else(PoisonError::into_inner);
        running.drain().for_each(|(_, watched)| watched.end());
    }
}

pub(super) fn failed_to_list(kind: &ContextAwareResource, why: &str) -> ProvideError {
    ProvideError::failed(format!("failed to list {}/{}: {why}", kind.api_version, kind.kind))
}

/// Keeps a collection as the API server has it.
async fn follow(watched: Arc<Watched>, collection: Collection) {
    let ListQuery { label_selector, field_selector, masks, .. } = collection.query;
    let config = watcher::Config { label_selector, field_selector, ..watcher::Config::default() }.page_size(PAGE);
    let failing = Arc::clone(&watched);
    let failures = Failures::new("watch objects for policies", move |error| failing.failed(&error.to_string()));
    let mut events = pin!(portcullis_kubernetes::watch(collection.api, config, failures));
    while let Some(event) = events.next().await {
        if let Err(why) = watched.take(event, &collection.resource, &masks) {
            tracing::warn!(kind = collection.resource.kind, why, "objects for policies are not watched");
            watched.state.send_replace(State::Refused(why));
            return;
        }
    }
}

impl Watched {
    /// Whether it was not used for so long that it ends.
    fn has_expired(&self) -> bool {
        let limit = match *self.state.borrow() {
            State::Complete | State::Incomplete(None) => UNUSED,
            State::Incomplete(Some(_)) => FAILED,
            State::Refused(_) => REFUSED,
        };
        self.last_use().elapsed() >= limit
    }

    fn last_use(&self) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_use(&self) {
        // A refusal stands for a while, however often it is asked for.
        if !matches!(*self.state.borrow(), State::Refused(_)) {
            *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        }
    }

    /// Whether it goes on. One that is not wanted has ended afterwards.
    fn is_wanted(&self, query: &ListQuery, record: &Record) -> bool {
        let is_wanted = !self.has_expired() && record.reads(&query.kind);
        if !is_wanted {
            self.end();
        }
        is_wanted
    }

    fn end(&self) {
        if let Some(task) = self.task.lock().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
        // A list that still waits for it waits in vain.
        self.failed("its watch has ended");
        let mut objects = self.objects();
        let bytes = objects.clear();
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn failed(&self, why: &str) {
        self.state.send_if_modified(|state| match state {
            State::Incomplete(before) => {
                *before = Some(why.to_owned());
                true
            }
            // What is known stays known.
            State::Complete | State::Refused(_) => false,
        });
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an event. An error ends the watch.
    fn take(&self, event: Event<DynamicObject>, resource: &ApiResource, masks: &[String]) -> Result<(), String> {
        let mut objects = self.objects();
        let before = objects.bytes;
        let taken = objects.take(event, resource, masks).and_then(|is_complete| {
            let (now, all) = (objects.bytes, self.bytes.load(Ordering::Relaxed));
            if now > LARGEST {
                return Err(format!("its objects take more than {LARGEST} bytes"));
            }
            if now > before && all + (now - before) > ALL {
                return Err(format!("the objects that policies read take more than {ALL} bytes in all"));
            }
            self.bytes.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
            Ok(is_complete)
        });
        if taken.is_err() {
            objects.clear();
            self.bytes.fetch_sub(before, Ordering::Relaxed);
        }
        drop(objects);
        if taken? {
            self.state.send_if_modified(|state| std::mem::replace(state, State::Complete) != State::Complete);
        }
        Ok(())
    }

    /// The list for guests, or why there is none.
    fn render(&self, kind: &ContextAwareResource) -> Result<Bytes, String> {
        self.objects().render(kind)
    }

    /// A number that changes with the objects, and how many bytes they have together as JSON.
    ///
    /// # Errors
    /// When the watch has ended.
    pub(super) fn version(&self) -> Result<(u64, usize), String> {
        let mut objects = self.objects();
        Ok((objects.version, objects.length()?))
    }

    /// All objects, in the order of their keys.
    ///
    /// # Errors
    /// When the watch has ended.
    pub(super) fn snapshot(&self) -> Result<Vec<(Key, Arc<RawValue>)>, String> {
        let mut objects = self.objects();
        objects.length()?;
        Ok(objects.current.iter().map(|(key, json)| (key.clone(), Arc::clone(json))).collect())
    }
}

#[cfg(test)]
mod tests {
    use kube::core::GroupVersionKind;
    use serde_json::{Value, json};

    use super::super::objects::size;
    use super::*;

    fn resource() -> ApiResource {
        ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod"))
    }

    fn pods() -> ContextAwareResource {
        ContextAwareResource { api_version: "v1".to_owned(), kind: "Pod".to_owned() }
    }

    fn pod(name: &str, text: &str) -> DynamicObject {
        serde_json::from_value(json!({"metadata": {"name": name, "namespace": "n"}, "spec": {"text": text}}))
            .expect("a pod")
    }

    fn watched() -> Watched {
        Watched {
            objects: Mutex::default(),
            state: watch::Sender::new(State::Incomplete(None)),
            used: Mutex::new(Instant::now()),
            task: Mutex::default(),
            bytes: Arc::default(),
            begun_by: "cluster/a".parse().expect("an id"),
        }
    }

    fn take(watched: &Watched, event: Event<DynamicObject>) -> Result<(), String> {
        watched.take(event, &resource(), &[])
    }

    fn names(watched: &Watched) -> Vec<String> {
        let list = watched.render(&pods()).expect("a list");
        let list: Value = serde_json::from_slice(&list).expect("JSON");
        assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("PodList"), &json!("v1")));
        let items = list["items"].as_array().expect("items");
        items.iter().map(|item| item["metadata"]["name"].as_str().expect("a name").to_owned()).collect()
    }

    #[test]
    fn a_list_is_there_once_all_of_it_is_and_follows_what_changes() {
        let watched = watched();
        take(&watched, Event::Init).expect("room");
        for name in ["b", "a"] {
            take(&watched, Event::InitApply(pod(name, "x"))).expect("room");
        }
        assert_eq!(*watched.state.borrow(), State::Incomplete(None));
        take(&watched, Event::InitDone).expect("room");
        assert_eq!(
            (&*watched.state.borrow(), names(&watched)),
            (&State::Complete, vec!["a".to_owned(), "b".to_owned()])
        );
        take(&watched, Event::Apply(pod("c", "y"))).expect("room");
        take(&watched, Event::Delete(pod("a", "x"))).expect("room");
        assert_eq!(names(&watched), ["b", "c"]);
        // A new list replaces the old one only when it is complete.
        take(&watched, Event::Init).expect("room");
        take(&watched, Event::InitApply(pod("d", "z"))).expect("room");
        assert_eq!(names(&watched), ["b", "c"]);
        take(&watched, Event::InitDone).expect("room");
        assert_eq!(names(&watched), ["d"]);
        let kept = watched.objects().current.iter().map(size).sum::<u64>();
        assert_eq!((watched.objects().bytes, watched.bytes.load(Ordering::Relaxed)), (kept, kept));
        watched.end();
        assert_eq!(watched.bytes.load(Ordering::Relaxed), 0);
        let ended = Err("its watch has ended".to_owned());
        assert_eq!((watched.render(&pods()), watched.version().map(drop)), (ended.clone(), ended.map(drop)));
    }

    #[test]
    fn what_failed_is_known_to_those_who_wait() {
        let watched = watched();
        watched.failed("forbidden");
        assert_eq!(*watched.state.borrow(), State::Incomplete(Some("forbidden".to_owned())));
        take(&watched, Event::Init).expect("room");
        take(&watched, Event::InitDone).expect("room");
        watched.failed("gone for a moment");
        assert_eq!(*watched.state.borrow(), State::Complete, "what is known stays known");
    }

    #[test]
    fn a_collection_above_its_limit_is_refused() {
        let watched = watched();
        take(&watched, Event::Init).expect("room");
        let text = "x".repeat(1 << 20);
        let refused = (0..100).find_map(|n| take(&watched, Event::InitApply(pod(&n.to_string(), &text))).err());
        let refused = refused.expect("a limit");
        assert!(refused.contains("67108864 bytes"), "{refused}");
        assert_eq!(watched.bytes.load(Ordering::Relaxed), 0, "it holds nothing any longer");
    }

    #[test]
    fn a_list_that_is_no_reply_any_more_says_what_to_do() {
        let watched = watched();
        take(&watched, Event::Init).expect("room");
        let text = "x".repeat(1 << 20);
        for n in 0..9 {
            take(&watched, Event::InitApply(pod(&n.to_string(), &text))).expect("room");
        }
        take(&watched, Event::InitDone).expect("room");
        let error = watched.render(&pods()).expect_err("too long");
        assert!(error.contains("8388608") && error.contains("field_masks"), "{error}");
    }
}
