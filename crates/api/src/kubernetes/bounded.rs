//! Reads objects of any depth, without the levels that are too deep.
//!
//! `settings` have no schema, so users can nest them as deep as they like, and recursive JSON readers give up at 128 levels. Such an
//! object would break every list and watch that contains it, and with them all other policies. What is cut here is deeper than the
//! loader accepts in settings, so a policy that lost a part is refused and never loaded without it.

use std::borrow::Cow;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::{ApiResource, DynamicObject, DynamicResourceScope, Resource};
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Number, Value};

/// The deepest level of an object that is read; `spec.settings` is at level 3.
const MAX_DEPTH: usize = 104;

/// A JSON value whose lists and maps below the deepest level are empty.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct BoundedValue(#[serde(deserialize_with = "bounded")] pub Value);

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

impl Resource for BoundedObject {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::kind(resource)
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::group(resource)
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::version(resource)
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::plural(resource)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
    }
}

fn bounded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    Levels(MAX_DEPTH).deserialize(deserializer)
}

/// The number of levels of lists and maps that may follow.
struct Levels(usize);

impl<'de> DeserializeSeed<'de> for Levels {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Levels {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        match self.0.checked_sub(1) {
            Some(left) => {
                while let Some(item) = items.next_element_seed(Levels(left))? {
                    list.push(item);
                }
            }
            // Ignored values are skipped without recursion.
            None => while items.next_element::<IgnoredAny>()?.is_some() {},
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        match self.0.checked_sub(1) {
            Some(left) => {
                while let Some(key) = entries.next_key::<String>()? {
                    map.insert(key, entries.next_value_seed(Levels(left))?);
                }
            }
            None => while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {},
        }
        Ok(map.into())
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
    fn what_is_not_too_deep_stays_as_it_is() {
        let value = json!({"z": 9_007_199_254_740_993_u64, "a": [null, true, -1, 1.5, "x", {}], "n": {"m": []}});
        let read: BoundedValue = serde_json::from_str(&value.to_string()).expect("reads");
        assert_eq!(read.0.to_string(), value.to_string());
    }
}
