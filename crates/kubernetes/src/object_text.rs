//! Objects of any kind, kept as their JSON text.
//!
//! A decoded object can take a hundred times as much memory as its text: `[0]` takes 300 bytes. Users choose what is in objects, so a
//! program that reads many of them, or does not know their kind, decodes only what it needs.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::{ApiResource, DynamicObject, DynamicResourceScope};
use serde::{Deserialize, Deserializer, de};
use serde_json::value::RawValue;

use crate::Selection;

/// An object whose kind is known at run time only. Of its metadata, only what names it is decoded.
#[derive(Debug, Clone)]
pub struct ObjectText {
    /// Name, namespace, uid and resource version.
    metadata: ObjectMeta,
    /// Whether the text has `apiVersion` and `kind`. Objects in lists often lack them.
    has_type: bool,
    json: Box<RawValue>,
}

/// What is decoded of an object. The other fields are skipped without recursion and without memory.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head<'a> {
    #[serde(borrow)]
    api_version: Option<Cow<'a, str>>,
    metadata: Identity,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Identity {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
}

/// The type that an object says it has.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Type<'a> {
    #[serde(borrow)]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
}

impl ObjectText {
    /// Whether the object says that it has this type. One in a list often says nothing.
    pub fn is_a(&self, api_version: &str, kind: &str) -> bool {
        let said: serde_json::Result<Type<'_>> = serde_json::from_str(self.json.get());
        said.is_ok_and(|said| said.api_version == api_version && said.kind == kind)
    }

    /// The object as the API server sent it.
    pub fn json(&self) -> &RawValue {
        &self.json
    }

    /// The object with nothing but its metadata. It then lacks a type: that of metadata says nothing about the object.
    ///
    /// # Errors
    /// Never for a text that was read from an API server.
    pub fn only_metadata(self) -> serde_json::Result<Self> {
        let json = Selection::fields([("metadata", Selection::All)], false).apply(&self.json)?;
        Ok(Self { has_type: false, json, ..self })
    }

    /// The object as policies are asked about it: with `apiVersion` and `kind`, and without `managedFields`.
    ///
    /// # Errors
    /// Never for a text that was read from an API server.
    pub fn whole(self, api_version: &str, kind: &str) -> serde_json::Result<Box<RawValue>> {
        let metadata = Selection::fields([("managedFields", Selection::Nothing)], true);
        Selection::fields([("metadata", metadata)], true).apply(&self.typed(api_version, kind)?)
    }

    /// The object as JSON with `apiVersion` and `kind`, which are added where they are missing.
    ///
    /// # Errors
    /// Never for a text that was read from an API server.
    pub fn typed(self, api_version: &str, kind: &str) -> serde_json::Result<Box<RawValue>> {
        if self.has_type {
            return Ok(self.json);
        }
        let (api_version, kind) = (serde_json::to_string(api_version)?, serde_json::to_string(kind)?);
        let fields = self.json.get().strip_prefix('{').unwrap_or_default();
        let comma = if fields.trim_start().starts_with('}') { "" } else { "," };
        RawValue::from_string(format!(r#"{{"apiVersion":{api_version},"kind":{kind}{comma}{fields}"#))
    }
}

impl<'de> Deserialize<'de> for ObjectText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Box::<RawValue>::deserialize(deserializer)?;
        let Head { api_version, metadata } = serde_json::from_str(json.get()).map_err(de::Error::custom)?;
        let Identity { name, namespace, uid, resource_version } = metadata;
        let metadata = ObjectMeta { name, namespace, uid, resource_version, ..ObjectMeta::default() };
        Ok(Self { metadata, has_type: api_version.is_some(), json })
    }
}

impl Resource for ObjectText {
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
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use kube::core::{ObjectList, WatchEvent};

    use super::*;

    #[test]
    fn lists_and_watches_keep_objects_as_they_were_sent() {
        let nested = format!("{}{}", "[".repeat(3000), "]".repeat(3000));
        let object = format!(
            r#"{{"metadata":{{"name":"a","namespace":"n","uid":"u","resourceVersion":"7","managedFields":{nested}}},"n":1.50}}"#
        );
        let list = format!(r#"{{"kind":"List","apiVersion":"v1","metadata":{{}},"items":[{object}]}}"#);
        let list: ObjectList<ObjectText> = serde_json::from_str(&list).expect("reads");
        let WatchEvent::Added(watched) =
            serde_json::from_str(&format!(r#"{{"type":"ADDED","object":{object}}}"#)).expect("reads")
        else {
            panic!("another event")
        };
        for read in [&list.items[0], &watched] {
            let ObjectMeta { name, namespace, uid, resource_version, .. } = read.meta();
            let found = [name, namespace, uid, resource_version].map(|text| text.as_deref().unwrap_or_default());
            assert_eq!((found, read.json().get()), (["a", "n", "u", "7"], object.as_str()));
        }
        let typed = watched.typed("v1", "Pod").expect("JSON");
        assert_eq!(typed.get(), format!(r#"{{"apiVersion":"v1","kind":"Pod",{}"#, &object[1..]));
        let whole = list.items[0].clone().whole("v1", "Pod").expect("JSON");
        assert_eq!(
            whole.get(),
            r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7"},"n":1.50}"#
        );
        let again: ObjectText = serde_json::from_str(typed.get()).expect("reads");
        assert!(again.is_a("v1", "Pod") && !again.is_a("v1", "Secret") && !again.is_a("v2", "Pod"));
        assert!(!list.items[0].is_a("v1", "Pod"), "it says nothing");
        assert_eq!(again.typed("v2", "Other").expect("JSON").get(), typed.get(), "its own type stays");
    }
}
