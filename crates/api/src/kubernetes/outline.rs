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
        let mut data = Selected { read, room: &room, spec_bytes: &spec_bytes }.deserialize(deserializer)?;
        let metadata = data.as_object_mut().and_then(|fields| fields.shift_remove("metadata")).unwrap_or_default();
        let metadata = Option::<ObjectMeta>::deserialize(metadata).map_err(D::Error::custom)?.unwrap_or_default();
        let object = DynamicObject { types: None, metadata, data };
        Ok(Self { object, spec_bytes: spec_bytes.get(), is_cut: room.was_too_small() })
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
    let prefixes = ["policies.portcullis.dev/", "policies.kubewarden.io/"];
    let is_known = name == "app.kubernetes.io/managed-by" || prefixes.iter().any(|prefix| name.starts_with(prefix));
    if is_known { Read::All } else { Read::Nothing }
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
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self.read {
            Read::Nothing => IgnoredAny::deserialize(deserializer).map(|_| Value::Null),
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
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        self.scalar().visit_unit()
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        self.scalar().visit_bool(value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        self.scalar().visit_i64(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        self.scalar().visit_u64(value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        self.scalar().visit_f64(value)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        let most = if let Read::Text(most) = self.read { most } else { 0 };
        self.scalar().visit_str(&value[..value.floor_char_boundary(most)])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Array(Vec::new()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        let read = if let Read::Fields(read) = self.read { read } else { |_: &str| Read::Nothing };
        if self.room.takes_object() {
            while let Some(key) = entries.next_key::<String>()? {
                let read = read(&key);
                if matches!(read, Read::Nothing) || !self.room.takes_field(&key) {
                    entries.next_value::<IgnoredAny>()?;
                } else {
                    map.insert(key, entries.next_value_seed(Self { read, ..self })?);
                }
            }
        } else {
            while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        }
        Ok(map.into())
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
mod tests {
    use kube_core::{ObjectList, WatchEvent};
    use serde_json::json;

    use super::*;

    /// The most text that an API server takes of an object, in bytes, with some for what is not free-form.
    const TEXT: usize = 1_400_000;

    /// A list of lists, a hundred levels deep, that fills an object: two bytes of text for each of them.
    fn nested() -> String {
        let one = format!("{}0{}", "[".repeat(100), "]".repeat(100));
        format!("[{}]", vec![one.as_str(); TEXT / (one.len() + 1)].join(","))
    }

    /// Bytes that a value takes with all that it points to.
    fn taken(value: &Value) -> usize {
        let field = size_of::<u64>() + size_of::<String>() + size_of::<Value>();
        let below = match value {
            Value::String(text) => text.capacity(),
            Value::Array(list) => {
                let spare = (list.capacity() - list.len()) * size_of::<Value>();
                spare + list.iter().map(taken).sum::<usize>()
            }
            Value::Object(fields) => fields
                .iter()
                .map(|(name, value)| field + name.capacity() + taken(value) - size_of::<Value>())
                .sum::<usize>(),
            _ => 0,
        };
        size_of::<Value>() + below
    }

    fn whole_size(part: impl Into<Value>) -> usize {
        taken(&part.into())
    }

    fn read<const HEAD: bool>(text: &str) -> Part<HEAD> {
        serde_json::from_str(text).expect("an object")
    }

    fn policy(free: &str) -> String {
        format!(
            r#"{{"apiVersion":"a/v1","kind":"Policy","metadata":{{"annotations":{{"other":"x",
            "policies.portcullis.dev/audit-requested-at":"now"}},"generation":3,"labels":{{"a":"b"}},
            "managedFields":[{{"fieldsV1":{free}}}],"name":"c","resourceVersion":"7","uid":"u"}},
            "spec":{{"matchConditions":[{{"name":"n","expression":"true"}}],
            "policies":{{"m":{{"contextAwareResources":[1],"settings":{{"a":{free}}}}}}},"policyServer":"one","rollbackTo":2,
            "settings":{{"a":{free}}},"signatures":{free},"suspend":true}},"status":{{"observedGeneration":2}}}}"#
        )
    }

    #[test]
    fn z10_the_largest_settings_take_no_memory() {
        let nested = nested();
        // As a whole it takes more than the container of any program that watches policies.
        let whole: BoundedObject =
            serde_json::from_str(&format!(r#"{{"spec":{{"settings":{nested}}}}}"#)).expect("reads");
        assert!(taken(&whole.0.data) > 100 << 20);
        let text = policy(&nested);
        let (outline, head) = (read::<false>(&text), read::<true>(&text));
        assert!(!outline.is_cut() && !head.is_cut());
        assert!(outline.spec_bytes() > 3 * nested.len() && outline.spec_bytes() < text.len());
        assert!(whole_size(outline) < 8 << 10);
        assert!(whole_size(head) < 8 << 10);
    }

    #[test]
    fn what_decides_where_a_policy_is_called_is_there() {
        let outline = read::<false>(&policy("[[0]]"));
        assert_eq!(
            outline.data["spec"],
            json!({
                "matchConditions": [{"name": "n", "expression": "true"}],
                "policies": {"m": {"contextAwareResources": [1], "settings": {}}},
                "policyServer": "one", "rollbackTo": 2, "settings": {}, "signatures": [], "suspend": true,
            })
        );
        assert_eq!((outline.metadata.labels.clone(), outline.metadata.generation), (Some([].into()), Some(3)));
        assert_eq!(outline.metadata.annotations.as_ref().map(std::collections::BTreeMap::len), Some(1));
        let revision = r#"{"metadata":{"name":"r"},"revision":4,"data":{"generation":4,"spec":{"settings":{"a":1},"mode":"warn"}}}"#;
        let outline = read::<false>(revision);
        let data = json!({"revision": 4, "data": {"generation": 4, "spec": {"settings": {}, "mode": "warn"}}});
        assert_eq!((outline.spec_bytes(), &outline.data), (r#"{"settings":{"a":1},"mode":"warn"}"#.len(), &data));
    }

    #[test]
    fn a_head_is_its_switches_and_its_status() {
        let head = Value::from(read::<true>(&policy("[[0]]")));
        assert_eq!(head["spec"], json!({"policyServer": "one", "rollbackTo": 2, "suspend": true}));
        assert_eq!(head["status"], json!({"observedGeneration": 2}));
        let metadata = json!({
            "annotations": {"policies.portcullis.dev/audit-requested-at": "now"},
            "generation": 3, "name": "c", "resourceVersion": "7", "uid": "u",
        });
        assert_eq!(head["metadata"], metadata);
        let long = policy("0").replace("now", &"ä".repeat(100));
        let annotations = read::<true>(&long).metadata.annotations.clone().expect("one");
        assert_eq!(annotations.values().map(String::len).collect::<Vec<_>>(), [MAX_AUDIT_REQUESTED]);
    }

    #[test]
    fn s03_odd_and_deep_objects_fail_no_list_and_no_watch() {
        let deep = format!("{}1{}", "{\"a\":".repeat(1000), "}".repeat(1000));
        let odd = r#"{"metadata":{"name":"d"},"spec":"text","data":7,"status":[[]]}"#;
        let list = format!(r#"{{"metadata":{{"resourceVersion":"1"}},"items":[{},{odd},{{}}]}}"#, policy(&deep));
        let outlines: ObjectList<Outline> = serde_json::from_str(&list).expect("reads");
        let heads: ObjectList<PolicyHead> = serde_json::from_str(&list).expect("reads");
        assert_eq!((outlines.items.len(), heads.items.len()), (3, 3));
        assert_eq!(outlines.items[1].data, json!({"spec": "", "data": 7, "status": [[]]}));
        let event = format!(r#"{{"type":"ADDED","object":{}}}"#, policy(&deep));
        assert!(matches!(serde_json::from_str(&event), Ok(WatchEvent::<Outline>::Added(_))));
        assert!(matches!(serde_json::from_str(&event), Ok(WatchEvent::<PolicyHead>::Added(_))));
    }

    #[test]
    fn what_takes_too_much_all_the_same_is_cut() {
        let known = (0..TEXT / 30).map(|number| format!("\"policies.portcullis.dev/{number}\":\"\""));
        let known = known.collect::<Vec<_>>().join(",");
        let labelled = read::<false>(&format!(r#"{{"metadata":{{"labels":{{{known}}},"name":"a"}}}}"#));
        assert!(labelled.is_cut() && labelled.metadata.name.is_some());
        assert!(whole_size(labelled) < SHARE_BYTES);
        let finalizers = vec!["\"a/b\""; TEXT / 6].join(",");
        let many =
            format!(r#"{{"metadata":{{"finalizers":[{finalizers}],"name":"a"}},"spec":{{"policyServer":"one"}}}}"#);
        let outline = read::<false>(&many);
        assert!(outline.is_cut());
        assert_eq!(
            (outline.metadata.name.as_deref(), &outline.data["spec"]["policyServer"]),
            (Some("a"), &json!("one"))
        );
        assert!(whole_size(outline) < SHARE_BYTES);
        // A head has no finalizers.
        assert!(!read::<true>(&many).is_cut());
        for field in ["spec", "status", "webhooks"] {
            let text = format!(r#"{{"metadata":{{}},"{field}":{{"rules":{}}}}}"#, nested());
            let outline = read::<false>(&text);
            assert!(outline.is_cut());
            assert!(whole_size(outline) < Outline::MAX_BYTES);
            let head = read::<true>(&text);
            assert_eq!(head.is_cut(), field == "status");
            assert!(whole_size(head) < PolicyHead::MAX_BYTES);
        }
    }

    #[test]
    fn the_largest_policy_that_the_schema_accepts_is_read_whole() {
        let texts = |count: usize, length: usize| vec!["x".repeat(length); count];
        let selector = json!({
            "matchLabels": (0..32).map(|number| (format!("label-{number}"), json!("x"))).collect::<Map<_, _>>(),
            "matchExpressions": vec![json!({"key": "k", "operator": "In", "values": texts(64, 8)}); 32],
        });
        let grants = json!({
            "module": "m", "hostCapabilities": texts(64, 8),
            "contextAwareResources": vec![json!({"apiVersion": "v1", "kind": "Pod"}); 64],
        });
        let rule = json!({
            "apiGroups": texts(32, 32), "apiVersions": texts(16, 8), "resources": texts(32, 32),
            "operations": texts(5, 6), "scope": "*",
        });
        let mut spec = json!({
            "rules": vec![rule; 32], "matchConditions": vec![json!({"name": "n", "expression": "x".repeat(16 << 10)}); 60],
            "objectSelector": selector, "namespaceSelector": selector,
            "policies": (0..16).map(|number| (number.to_string(), grants.clone())).collect::<Map<_, _>>(),
        });
        spec.as_object_mut().expect("fields").extend(grants.as_object().expect("fields").clone());
        let text = json!({"metadata": {"name": "a"}, "spec": spec}).to_string();
        assert!(text.len() > 1 << 20, "{}", text.len());
        let outline = read::<false>(&text);
        assert_eq!(outline.data["spec"], spec);
        assert!(!outline.is_cut());
    }
}
