//! Policies and revisions without what users may write freely into them.
//!
//! The free-form parts of a spec, like its settings, can have more than a megabyte of text, and take a hundred times as much memory when they
//! are decoded. A user who may write one Policy must not fill the memory of programs that watch all policies. Programs that need such a part
//! keep it as text.

use std::cell::Cell;
use std::fmt;
use std::ops::{Deref, DerefMut};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::DynamicObject;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::bounded::{BoundedObject, Levels, Room, dynamic_resource};
use super::{AUDIT_REQUESTED_ANNOTATION, MAX_AUDIT_REQUESTED};

/// The most memory that finalizers, owners, labels and annotations take each, in bytes: more than a thousand of them. It is separate, so that
/// many of them hide neither the name nor the spec.
const SHARE_BYTES: usize = 256 << 10;

/// A policy, revision or webhook configuration, with all that decides where a policy is called. Of its labels and annotations, those are there
/// that Portcullis knows. Free-form fields of a spec are there, but empty.
pub type Outline = Part<false>;

/// A policy with its switches and its status, and without the rest of its spec.
pub type PolicyHead = Part<true>;

/// A part of an object of an API server.
#[derive(Debug, Clone)]
pub struct Part<const HEAD: bool> {
    object: DynamicObject,
    spec_bytes: usize,
    is_cut: bool,
}

impl<const HEAD: bool> Part<HEAD> {
    /// The most memory that one of them takes, in bytes. What the schema of a policy accepts takes less.
    pub const MAX_BYTES: usize = if HEAD { 2 << 20 } else { 8 << 20 };

    /// The size of the whole spec as JSON, in bytes: that of a policy, or that in the data of a revision. It is not known of a head.
    pub fn spec_bytes(&self) -> usize {
        self.spec_bytes
    }

    /// Whether parts are missing that should be there, as all of them take more than [`Self::MAX_BYTES`].
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }
}

impl<'de, const HEAD: bool> Deserialize<'de> for Part<HEAD> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (room, spec_bytes) = (Room::of(Self::MAX_BYTES - 4 * SHARE_BYTES), Cell::new(0));
        let read = Read::Fields(if HEAD { head } else { outline });
        let selected = Selected { read, room: &room, spec_bytes: &spec_bytes };
        let mut data = selected.deserialize(deserializer)?.unwrap_or_default();
        let mut metadata = data.as_object_mut().and_then(|fields| fields.shift_remove("metadata")).unwrap_or_default();
        keep_texts(&mut metadata);
        let metadata = Option::<ObjectMeta>::deserialize(metadata).map_err(D::Error::custom)?.unwrap_or_default();
        let object = DynamicObject { types: None, metadata, data };
        Ok(Self { object, spec_bytes: spec_bytes.get(), is_cut: room.was_too_small() })
    }
}

/// Leaves only texts in those fields of the metadata that have no other values. Anything else there would fail a whole list of objects.
fn keep_texts(metadata: &mut Value) {
    for field in ["labels", "annotations"] {
        if let Some(fields) = metadata.get_mut(field).and_then(Value::as_object_mut) {
            fields.retain(|_, value| value.is_string());
        }
    }
    if let Some(items) = metadata.get_mut("finalizers").and_then(Value::as_array_mut) {
        items.retain(Value::is_string);
    }
}

/// What is read of a value.
#[derive(Clone, Copy)]
enum Read {
    Nothing,
    /// A list, an object or a string is there, but empty.
    Type,
    /// The whole value.
    All,
    /// The beginning of a string, this many bytes at most.
    Text(usize),
    /// The fields of an object, each as far as the function says.
    Fields(fn(&str) -> Read),
    /// As much as this, and within [`SHARE_BYTES`].
    Share(&'static Read),
    /// The same of a spec, whose size is noted.
    Spec(fn(&str) -> Read),
}

fn outline(field: &str) -> Read {
    match field {
        "apiVersion" | "kind" => Read::Nothing,
        "metadata" => Read::Fields(|field| match field {
            "managedFields" => Read::Nothing,
            "labels" | "annotations" => Read::Share(&Read::Fields(known)),
            "finalizers" | "ownerReferences" => Read::Share(&Read::All),
            _ => Read::All,
        }),
        "spec" => Read::Spec(spec),
        // Only revisions have these.
        "data" => Read::Fields(|field| if field == "spec" { Read::Spec(spec) } else { Read::All }),
        _ => Read::All,
    }
}

/// Labels and annotations.
fn known(name: &str) -> Read {
    match name {
        "app.kubernetes.io/managed-by" | "io.kubewarden.policy.severity" | "io.kubewarden.policy.category" => Read::All,
        _ if name.starts_with("policies.portcullis.dev/") => Read::All,
        _ => Read::Nothing,
    }
}

fn spec(field: &str) -> Read {
    match field {
        "settings" | "signatures" => Read::Type,
        "policies" => Read::Fields(|_| Read::Fields(|field| if field == "settings" { Read::Type } else { Read::All })),
        _ => Read::All,
    }
}

fn head(field: &str) -> Read {
    match field {
        "metadata" => Read::Fields(|field| match field {
            "name" | "namespace" | "uid" | "resourceVersion" | "generation" | "creationTimestamp"
            | "deletionTimestamp" => Read::All,
            "annotations" => Read::Fields(|name| match name {
                AUDIT_REQUESTED_ANNOTATION => Read::Text(MAX_AUDIT_REQUESTED),
                _ => Read::Nothing,
            }),
            _ => Read::Nothing,
        }),
        "spec" => Read::Fields(|field| match field {
            "policyServer" | "suspend" | "rollbackTo" => Read::All,
            _ => Read::Nothing,
        }),
        "status" => Read::All,
        _ => Read::Nothing,
    }
}

/// Reads what is selected of a value.
#[derive(Clone, Copy)]
struct Selected<'r> {
    read: Read,
    room: &'r Room,
    spec_bytes: &'r Cell<usize>,
}

impl<'r> Selected<'r> {
    fn scalar(self) -> Levels<'r> {
        Levels::within(self.room)
    }
}

impl<'de> DeserializeSeed<'de> for Selected<'_> {
    type Value = Option<Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<Value>, D::Error> {
        match self.read {
            Read::Nothing => IgnoredAny::deserialize(deserializer).map(|_| None),
            Read::All => Levels::within(self.room).deserialize(deserializer),
            Read::Share(read) => {
                let room = Room::of(SHARE_BYTES);
                let value = Selected { read: *read, room: &room, ..self }.deserialize(deserializer)?;
                if room.was_too_small() {
                    self.room.note_too_small();
                }
                Ok(value)
            }
            Read::Spec(fields) => {
                let text = Box::<RawValue>::deserialize(deserializer)?;
                self.spec_bytes.set(text.get().len());
                let selected = Self { read: Read::Fields(fields), ..self };
                selected.deserialize(&mut serde_json::Deserializer::from_str(text.get())).map_err(D::Error::custom)
            }
            Read::Type | Read::Text(_) | Read::Fields(_) => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Selected<'_> {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Option<Value>, E> {
        self.scalar().visit_unit()
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Option<Value>, E> {
        self.scalar().visit_bool(value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Option<Value>, E> {
        self.scalar().visit_i64(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Option<Value>, E> {
        self.scalar().visit_u64(value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Option<Value>, E> {
        self.scalar().visit_f64(value)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Option<Value>, E> {
        let most = if let Read::Text(most) = self.read { most } else { 0 };
        self.scalar().visit_str(&value[..value.floor_char_boundary(most)])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Option<Value>, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Some(Value::Array(Vec::new())))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Option<Value>, A::Error> {
        let mut map = Map::new();
        let read = if let Read::Fields(read) = self.read { read } else { |_: &str| Read::Nothing };
        if self.room.takes_object() {
            while let Some(key) = entries.next_key::<String>()? {
                let read = read(&key);
                if matches!(read, Read::Nothing) || !self.room.takes_field(&key) {
                    entries.next_value::<IgnoredAny>()?;
                } else {
                    map.extend(entries.next_value_seed(Self { read, ..self })?.map(|value| (key, value)));
                }
            }
        } else {
            while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        }
        Ok(Some(map.into()))
    }
}

impl<const HEAD: bool> Deref for Part<HEAD> {
    type Target = DynamicObject;

    fn deref(&self) -> &DynamicObject {
        &self.object
    }
}

impl<const HEAD: bool> DerefMut for Part<HEAD> {
    fn deref_mut(&mut self) -> &mut DynamicObject {
        &mut self.object
    }
}

impl<const HEAD: bool> From<Part<HEAD>> for Value {
    fn from(part: Part<HEAD>) -> Self {
        serde_json::to_value(part.object).unwrap_or_default()
    }
}

impl From<DynamicObject> for Outline {
    fn from(object: DynamicObject) -> Self {
        Self { object, spec_bytes: 0, is_cut: false }
    }
}

impl From<BoundedObject> for Outline {
    fn from(object: BoundedObject) -> Self {
        object.0.into()
    }
}

dynamic_resource!(Outline, object);
dynamic_resource!(PolicyHead, object);

#[cfg(test)]
mod tests;
