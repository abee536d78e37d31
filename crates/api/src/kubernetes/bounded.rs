//! Reads objects of any depth, without the levels that are too deep, and without what takes too much memory.
//!
//! `settings` have no schema, so users can nest them as deep as they like, and recursive JSON readers give up at 128 levels. Such an
//! object would break every list and watch that contains it, and with them all other policies. What is cut here is deeper than the
//! loader accepts in settings, so a policy that lost a part is refused and never loaded without it.

use std::cell::Cell;
use std::fmt;

use kube_core::DynamicObject;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

/// The deepest level of an object that is read; `spec.settings` is at level 3.
const MAX_DEPTH: usize = 104;

/// Bytes of a decoded value, without what it points to.
const VALUE: usize = size_of::<Value>();
/// Bytes of a field of a decoded object: its hash, its name and its value.
const FIELD: usize = size_of::<u64>() + size_of::<String>() + VALUE;
/// What the allocator adds to a piece of memory, in bytes.
const PIECE: usize = 32;

/// A JSON value whose lists and maps below the deepest level are empty.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct BoundedValue(#[serde(deserialize_with = "bounded")] pub Value);

impl BoundedValue {
    /// The most memory that a value of [`BoundedValue::read`] takes, in bytes. Ordinary objects of the largest size that API servers store take
    /// less than half of it.
    pub const MAX_BYTES: usize = 64 << 20;

    /// Reads an object of any kind, whose content users decide; `None` if it takes too much memory when it is decoded.
    pub fn read(json: &RawValue) -> Option<Value> {
        let room = Room::of(Self::MAX_BYTES);
        let value = Levels::within(&room).deserialize(&mut serde_json::Deserializer::from_str(json.get()));
        value.ok().flatten().filter(|_| !room.was_too_small())
    }
}

/// An object of an API server, read like [`BoundedValue`] and without `managedFields`, which nest as deep as the object does.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct BoundedObject(pub DynamicObject);

impl<'de> Deserialize<'de> for BoundedObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut value = bounded(deserializer)?;
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        serde_json::from_value(value).map(Self).map_err(D::Error::custom)
    }
}

impl From<BoundedObject> for Value {
    fn from(object: BoundedObject) -> Self {
        serde_json::to_value(object.0).unwrap_or_default()
    }
}

/// Makes a type a resource whose kind is known at run time only, as is the `DynamicObject` in its field.
macro_rules! dynamic_resource {
    ($object:ty, $field:tt) => {
        impl kube_core::Resource for $object {
            type DynamicType = kube_core::ApiResource;
            type Scope = kube_core::DynamicResourceScope;

            fn kind(resource: &kube_core::ApiResource) -> std::borrow::Cow<'_, str> {
                <kube_core::DynamicObject as kube_core::Resource>::kind(resource)
            }

            fn group(resource: &kube_core::ApiResource) -> std::borrow::Cow<'_, str> {
                <kube_core::DynamicObject as kube_core::Resource>::group(resource)
            }

            fn version(resource: &kube_core::ApiResource) -> std::borrow::Cow<'_, str> {
                <kube_core::DynamicObject as kube_core::Resource>::version(resource)
            }

            fn plural(resource: &kube_core::ApiResource) -> std::borrow::Cow<'_, str> {
                <kube_core::DynamicObject as kube_core::Resource>::plural(resource)
            }

            fn meta(&self) -> &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                kube_core::Resource::meta(&self.$field)
            }

            fn meta_mut(&mut self) -> &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                kube_core::Resource::meta_mut(&mut self.$field)
            }
        }
    };
}

pub(super) use dynamic_resource;

dynamic_resource!(BoundedObject, 0);

fn bounded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    Levels::within(&Room::of(usize::MAX)).deserialize(deserializer).map(Option::unwrap_or_default)
}

/// How many bytes decoded values may still take. A decoded value can take a hundred times as much as its text: `[0]` takes 300 bytes, as a
/// list begins with room for four values.
#[derive(Debug)]
pub(super) struct Room {
    left: Cell<usize>,
    was_too_small: Cell<bool>,
}

impl Room {
    pub(super) fn of(bytes: usize) -> Self {
        Self { left: Cell::new(bytes), was_too_small: Cell::new(false) }
    }

    /// Whether something was left out because it did not fit.
    pub(super) fn was_too_small(&self) -> bool {
        self.was_too_small.get()
    }

    /// Notes that something was left out elsewhere.
    pub(super) fn note_too_small(&self) {
        self.was_too_small.set(true);
    }

    /// Room for a string.
    fn takes_text(&self, length: usize) -> bool {
        self.takes(PIECE + length)
    }

    /// Room for the first items of a list.
    fn takes_list(&self) -> bool {
        self.takes(PIECE + 4 * VALUE)
    }

    /// Room for one more item of a list. A list that is full doubles.
    fn takes_item(&self) -> bool {
        self.takes(2 * VALUE)
    }

    /// Room for the first fields of an object, and for the table of their names.
    pub(super) fn takes_object(&self) -> bool {
        self.takes(3 * PIECE + 4 * FIELD)
    }

    /// Room for one more field of an object. An object that is full doubles.
    pub(super) fn takes_field(&self, name: &str) -> bool {
        self.takes(2 * (FIELD + PIECE) + name.len())
    }

    fn takes(&self, bytes: usize) -> bool {
        let left = self.left.get().checked_sub(bytes);
        match left {
            Some(left) => self.left.set(left),
            None => self.was_too_small.set(true),
        }
        left.is_some()
    }
}

/// Reads a value whole, as far as levels and room suffice; none if a text does not fit. Such a text is left out with its field or its place in
/// a list: a null in its place would not be what the object's type wants, and the whole list of objects could not be decoded.
#[derive(Clone, Copy)]
pub(super) struct Levels<'r> {
    /// The number of levels of lists and maps that may follow.
    left: usize,
    room: &'r Room,
}

impl<'r> Levels<'r> {
    pub(super) fn within(room: &'r Room) -> Self {
        Self { left: MAX_DEPTH, room }
    }

    /// What may be below a list or an object.
    fn below(self) -> Option<Self> {
        Some(Self { left: self.left.checked_sub(1)?, ..self })
    }
}

impl<'de> DeserializeSeed<'de> for Levels<'_> {
    type Value = Option<Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<Value>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Levels<'_> {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Option<Value>, E> {
        Ok(Some(Value::Null))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Option<Value>, E> {
        Ok(Some(value.into()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Option<Value>, E> {
        Ok(Some(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Option<Value>, E> {
        Ok(Some(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Option<Value>, E> {
        Ok(Some(Number::from_f64(value).map_or(Value::Null, Value::Number)))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Option<Value>, E> {
        Ok(self.room.takes_text(value.len()).then(|| value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Option<Value>, A::Error> {
        let mut list = Vec::new();
        match self.below().filter(|_| self.room.takes_list()) {
            Some(below) => {
                while let Some(item) = items.next_element_seed(below)? {
                    // An item that is left out takes no room.
                    list.extend(item.filter(|_| self.room.takes_item()));
                }
            }
            // Ignored values are skipped without recursion.
            None => while items.next_element::<IgnoredAny>()?.is_some() {},
        }
        Ok(Some(list.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Option<Value>, A::Error> {
        let mut map = Map::new();
        match self.below().filter(|_| self.room.takes_object()) {
            Some(below) => {
                while let Some(key) = entries.next_key::<String>()? {
                    if self.room.takes_field(&key) {
                        map.extend(entries.next_value_seed(below)?.map(|value| (key, value)));
                    } else {
                        entries.next_value::<IgnoredAny>()?;
                    }
                }
            }
            None => while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {},
        }
        Ok(Some(map.into()))
    }
}

#[cfg(test)]
mod tests {
    use kube_core::{ObjectList, WatchEvent};
    use serde_json::json;

    use super::*;

    fn depth(value: &Value) -> usize {
        match value {
            Value::Array(list) => 1 + list.iter().map(depth).max().unwrap_or(0),
            Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
            _ => 0,
        }
    }

    fn policy(levels: usize) -> String {
        let nest = |key: &str| format!("{}1{}", format!("{{\"{key}\":").repeat(levels), "}".repeat(levels));
        format!(
            r#"{{"apiVersion":"a/v1","kind":"B","metadata":{{"name":"c","managedFields":[{{"fieldsV1":{}}}]}},"spec":{{"settings":{}}}}}"#,
            nest("f:a"),
            nest("a")
        )
    }

    #[test]
    fn s03_an_object_of_any_depth_fails_no_list_and_no_watch() {
        let list = format!(r#"{{"metadata":{{"resourceVersion":"1"}},"items":[{},{}]}}"#, policy(1000), policy(2));
        let list: ObjectList<BoundedObject> = serde_json::from_str(&list).expect("reads");
        assert_eq!(list.items[1].0.data, json!({"spec": {"settings": {"a": {"a": 1}}}}));
        // Deeper than the 100 levels that a loader accepts.
        assert!(depth(&list.items[0].0.data["spec"]["settings"]) > 100);
        let event: WatchEvent<BoundedObject> =
            serde_json::from_str(&format!(r#"{{"type":"ADDED","object":{}}}"#, policy(1000))).expect("reads");
        let WatchEvent::Added(object) = event else { panic!("another event") };
        let again = serde_json::to_string(&object).expect("writes");
        assert!(serde_json::from_str::<BoundedObject>(&again).is_ok());
    }

    #[test]
    fn z23_an_object_that_takes_too_much_memory_is_not_decoded() {
        /// The most text that an API server takes of an object, in bytes.
        const TEXT: usize = 1_500_000;
        let filled = |one: &str| {
            let data = vec![one; TEXT / (one.len() + 1)].join(",");
            let json = format!(r#"{{"metadata":{{"name":"a"}},"data":[{data}]}}"#);
            BoundedValue::read(&RawValue::from_string(json).expect("JSON"))
        };
        let ordinary = r#"{"name":"a","value":"some text of ordinary length","enabled":true,"weight":1}"#;
        assert_eq!(filled(ordinary).expect("it is small enough")["metadata"]["name"], "a");
        assert_eq!((filled("[0]"), filled(r#"{"a":{}}"#)), (None, None));
    }

    #[test]
    fn what_is_not_too_deep_stays_as_it_is() {
        let value = json!({"z": 9_007_199_254_740_993_u64, "a": [null, true, -1, 1.5, "x", {}], "n": {"m": []}});
        let read: BoundedValue = serde_json::from_str(&value.to_string()).expect("reads");
        assert_eq!(read.0.to_string(), value.to_string());
    }
}
