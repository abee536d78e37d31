//! Collections that are watched, so that a list costs no call of the API server.
//!
//! A watch begins with the first list and serves all policies that ask the same. A list waits until the watch has all objects: no guest
//! sees a part of them. A watch that nobody has asked for a while, or that no policy may read any longer, ends.

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::{BufMut as _, Bytes, BytesMut};
use futures::StreamExt as _;
use kube::Api;
use kube::api::DynamicObject;
use kube::discovery::ApiResource;
use kube::runtime::watcher::{self, Event};
use portcullis_contract::{BROKER_MAX_REPLY, PolicyId};
use portcullis_kubernetes::Failures;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::mask;
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
/// What an object takes beside its JSON, in bytes.
const OVERHEAD: u64 = 256;
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
struct Watched {
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

/// The objects of a collection, as JSON, by namespace and name.
#[derive(Default)]
struct Objects {
    current: BTreeMap<(String, String), Bytes>,
    /// Those of a list that is not complete.
    next: Option<BTreeMap<(String, String), Bytes>>,
    bytes: u64,
    /// The last reply, until an object changes.
    rendered: Option<Bytes>,
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
        let (kind, api_version) = (collection.query.kind.kind.clone(), collection.query.kind.api_version.clone());
        let watched = self.watched(policy, collection)?;
        let mut states = watched.state.subscribe();
        let settled = states.wait_for(|state| *state != State::Incomplete(None)).await;
        let state = settled.map(|state| state.clone()).unwrap_or(State::Incomplete(Some("the watch ended".to_owned())));
        match state {
            State::Complete => watched.render(&api_version, &kind),
            State::Incomplete(why) => {
                let why = why.unwrap_or_else(|| "it is being read".to_owned());
                Err(ProvideError::failed(format!("failed to list {api_version}/{kind}: {why}")))
            }
            State::Refused(why) => Err(ProvideError::failed(format!("failed to list {api_version}/{kind}: {why}"))),
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
        let own = running.iter().filter(|(_, watched)| watched.begun_by == *policy);
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
                return Err(format!(
                    "its objects take more than {LARGEST} bytes; select fewer by labels, or fewer fields by field_masks"
                ));
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

    fn render(&self, api_version: &str, kind: &str) -> Answer {
        let mut objects = self.objects();
        if let Some(rendered) = &objects.rendered {
            return Ok(rendered.clone());
        }
        let length: usize = objects.current.values().map(|json| json.len() + 1).sum();
        if length > BROKER_MAX_REPLY {
            return Err(ProvideError::failed(format!(
                "the list of {api_version}/{kind} has {length} bytes, the limit is {BROKER_MAX_REPLY}; select fewer objects by \
                 labels, or fewer fields by field_masks"
            )));
        }
        let mut reply = BytesMut::with_capacity(length + 256);
        let head =
            serde_json::json!({"apiVersion": api_version, "kind": format!("{kind}List"), "metadata": {}}).to_string();
        reply.put_slice(&head.as_bytes()[..head.len() - 1]);
        reply.put_slice(b",\"items\":[");
        for (number, json) in objects.current.values().enumerate() {
            if number > 0 {
                reply.put_u8(b',');
            }
            reply.put_slice(json);
        }
        reply.put_slice(b"]}");
        let reply = reply.freeze();
        objects.rendered = Some(reply.clone());
        Ok(reply)
    }
}

impl Objects {
    /// Takes an event. Whether the collection is complete now.
    fn take(&mut self, event: Event<DynamicObject>, resource: &ApiResource, masks: &[String]) -> Result<bool, String> {
        match event {
            // What is known stays known until the new list is complete; both count.
            Event::Init => {
                let dropped = self.next.replace(BTreeMap::new());
                self.bytes -= dropped.iter().flatten().map(size).sum::<u64>();
                return Ok(false);
            }
            Event::InitApply(object) => {
                let (key, json) = kept(object, resource, masks)?;
                self.bytes += size((&key, &json));
                self.next.get_or_insert_default().insert(key, json);
                return Ok(false);
            }
            Event::InitDone => {
                let before = std::mem::replace(&mut self.current, self.next.take().unwrap_or_default());
                self.bytes -= before.iter().map(size).sum::<u64>();
            }
            Event::Apply(object) => {
                let (key, json) = kept(object, resource, masks)?;
                self.bytes += size((&key, &json));
                if let Some(before) = self.current.insert(key.clone(), json) {
                    self.bytes -= size((&key, &before));
                }
            }
            Event::Delete(object) => {
                let key = key(&object);
                if let Some(before) = self.current.remove(&key) {
                    self.bytes -= size((&key, &before));
                }
            }
        }
        self.rendered = None;
        Ok(true)
    }

    /// Forgets everything; gives how many bytes that were.
    fn clear(&mut self) -> u64 {
        std::mem::take(self).bytes
    }
}

fn size((key, json): (&(String, String), &Bytes)) -> u64 {
    u64::try_from(key.0.len() + key.1.len() + json.len()).unwrap_or(u64::MAX) + OVERHEAD
}

fn key(object: &DynamicObject) -> (String, String) {
    let metadata = &object.metadata;
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

/// An object as it is kept. Objects of a list do not say what they are, so that is added.
fn kept(
    mut object: DynamicObject,
    resource: &ApiResource,
    masks: &[String],
) -> Result<((String, String), Bytes), String> {
    let key = key(&object);
    object.types.get_or_insert_with(|| kube::core::TypeMeta {
        api_version: resource.api_version.clone(),
        kind: resource.kind.clone(),
    });
    let mut value = serde_json::to_value(object).map_err(|error| error.to_string())?;
    mask::trim(&mut value);
    mask::keep(&mut value, masks);
    Ok((key, Bytes::from(value.to_string())))
}

#[cfg(test)]
mod tests {
    use kube::core::GroupVersionKind;
    use serde_json::{Value, json};

    use super::*;

    fn resource() -> ApiResource {
        ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod"))
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
        let list = watched.render("v1", "Pod").expect("a list");
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
        assert!(refused.contains("67108864 bytes") && refused.contains("field_masks"), "{refused}");
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
        let error = watched.render("v1", "Pod").expect_err("too long").to_string();
        assert!(error.contains("8388608") && error.contains("field_masks"), "{error}");
    }
}
