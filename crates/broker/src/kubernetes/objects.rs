//! The objects of a collection, in the form in which they are kept.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use kube::Resource as _;
use kube::runtime::watcher::Event;
use portcullis_contract::{BROKER_MAX_REPLY, ContextAwareResource};
use portcullis_kubernetes::ObjectText;
use serde::Serialize;
use serde_json::value::RawValue;

use super::collection::Shape;

/// What helps when a collection is too large.
pub(super) const SELECT_LESS: &str = "select fewer objects by labels, or fewer fields by field_masks";
/// The memory that an object takes besides its JSON, in bytes.
const OVERHEAD: u64 = 256;
/// Counts the changes of all collections, so that each state of a collection has a unique number.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// Why a collection cannot be read, or is no longer watched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum CollectionError {
    /// It was not asked for in a while, or no policy may read it.
    #[error("its watch has ended")]
    Ended,
    /// The list has this many bytes and does not fit in a reply.
    #[error("the list has {0} bytes, the limit is {BROKER_MAX_REPLY}; {SELECT_LESS}")]
    LongList(usize),
    /// This collection alone has more than this many bytes.
    #[error("its objects take more than {0} bytes")]
    TooLarge(u64),
    /// All collections together have more than this many bytes.
    #[error("the objects that policies read take more than {0} bytes in all")]
    AllTooLarge(u64),
    /// An object is not what an API server sends.
    #[error("an object cannot be read: {0}")]
    Unreadable(String),
}

impl From<serde_json::Error> for CollectionError {
    fn from(error: serde_json::Error) -> Self {
        Self::Unreadable(error.to_string())
    }
}

/// Namespace and name of an object; the namespace is empty for cluster-scoped objects.
pub(super) type Key = (String, String);

/// The objects of a collection, as JSON.
#[derive(Default)]
pub(super) struct Objects {
    pub(super) current: BTreeMap<Key, Arc<RawValue>>,
    /// The objects of a new list that is not complete yet.
    next: Option<BTreeMap<Key, Arc<RawValue>>>,
    /// Whether `current` has all objects: false before the first list is complete, and after the watch has ended.
    is_complete: bool,
    /// Whether the watch has ended for good. It then takes nothing any more.
    pub(super) has_ended: bool,
    /// The number of the last change.
    pub(super) version: u64,
    /// What the objects take, and the last list that was made of them.
    pub(super) bytes: u64,
    /// The length of all objects as JSON; computed when asked for, and `None` after a change.
    length: Option<usize>,
    /// The last list for guests; `None` after a change, and where there was no room for it.
    rendered: Option<Bytes>,
}

/// A list in the form that guests read.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct List<'a> {
    api_version: &'a str,
    kind: String,
    metadata: BTreeMap<(), ()>,
    items: Vec<&'a RawValue>,
}

impl Objects {
    /// The list for guests. It is kept for the next one if `keeps` says so of its length in bytes.
    ///
    /// # Errors
    /// When the list is too large, or the watch has ended.
    pub(super) fn render(
        &mut self,
        kind: &ContextAwareResource,
        keeps: impl FnOnce(u64) -> bool,
    ) -> Result<Bytes, CollectionError> {
        let length = self.length()?;
        if let Some(rendered) = &self.rendered {
            return Ok(rendered.clone());
        }
        if length > BROKER_MAX_REPLY {
            return Err(CollectionError::LongList(length));
        }
        let list = List {
            api_version: &kind.api_version,
            kind: format!("{}List", kind.kind),
            metadata: BTreeMap::new(),
            items: self.current.values().map(|json| &**json).collect(),
        };
        // The room for what is around the objects is enough, so that the list takes no more than its length.
        let mut reply = Vec::with_capacity(length + kind.api_version.len() + kind.kind.len() + 128);
        serde_json::to_writer(&mut reply, &list)?;
        let reply = Bytes::from(reply);
        if keeps(length_of(&reply)) {
            self.bytes += length_of(&reply);
            self.rendered = Some(reply.clone());
        }
        Ok(reply)
    }

    /// Drops the list that is kept, which can be made again.
    pub(super) fn forget_list(&mut self) {
        self.bytes -= self.rendered.take().as_ref().map_or(0, length_of);
    }

    /// The length of all objects as JSON, in bytes.
    ///
    /// # Errors
    /// When not all objects are known.
    pub(super) fn length(&mut self) -> Result<usize, CollectionError> {
        if !self.is_complete {
            return Err(CollectionError::Ended);
        }
        let sum = || self.current.values().map(|json| json.get().len() + 1).sum();
        Ok(*self.length.get_or_insert_with(sum))
    }

    /// Applies an event. Returns whether the collection is complete now.
    pub(super) fn take(&mut self, event: Event<ObjectText>, shape: &Shape) -> Result<bool, CollectionError> {
        match event {
            // The known objects stay until the new list is complete; the bytes of both count.
            Event::Init => {
                let dropped = self.next.replace(BTreeMap::new());
                self.bytes -= dropped.iter().flatten().map(size).sum::<u64>();
                return Ok(false);
            }
            Event::InitApply(object) => {
                let (key, json) = shape.kept(object)?;
                self.bytes += size((&key, &json));
                self.next.get_or_insert_default().insert(key, json);
                return Ok(false);
            }
            Event::InitDone => {
                let before = std::mem::replace(&mut self.current, self.next.take().unwrap_or_default());
                self.bytes -= before.iter().map(size).sum::<u64>();
                self.is_complete = true;
            }
            Event::Apply(object) => {
                let (key, json) = shape.kept(object)?;
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
        self.length = None;
        self.forget_list();
        self.version = CHANGES.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    /// Drops all objects; returns how many bytes they took.
    pub(super) fn clear(&mut self) -> u64 {
        std::mem::take(self).bytes
    }

    /// Drops all objects for good; returns how many bytes they took.
    pub(super) fn end(&mut self) -> u64 {
        let bytes = self.clear();
        self.has_ended = true;
        bytes
    }
}

pub(super) fn length_of(list: &Bytes) -> u64 {
    u64::try_from(list.len()).unwrap_or(u64::MAX)
}

pub(super) fn size((key, json): (&Key, &Arc<RawValue>)) -> u64 {
    u64::try_from(key.0.len() + key.1.len() + json.get().len()).unwrap_or(u64::MAX) + OVERHEAD
}

fn key(object: &ObjectText) -> Key {
    let metadata = object.meta();
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

impl Shape {
    /// An object in the form in which it is kept. Objects in a list do not name their type, so it is added.
    fn kept(&self, object: ObjectText) -> Result<(Key, Arc<RawValue>), CollectionError> {
        let key = key(&object);
        let object = if self.metadata_only { object.only_metadata()? } else { object };
        let whole = object.typed(&self.resource.api_version, &self.resource.kind)?;
        Ok((key, self.selection.apply(&whole)?.into()))
    }
}
