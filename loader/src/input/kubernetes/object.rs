//! A ControllerRevision as it comes from the API server, with its content as plain text.
//!
//! Not the type of `k8s-openapi`: that one builds a tree of everything, and one revision nested deeper than a JSON reader goes
//! would fail the list that it is in. Here only what is used is read, and the content is judged one revision at a time.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use kube::core::NamespaceResourceScope;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// A ControllerRevision.
#[derive(Debug, Clone)]
pub(super) struct Object {
    /// Name, resource version, time, labels and annotations; nothing else is read.
    pub(super) metadata: ObjectMeta,
    /// Its number.
    pub(super) revision: i64,
    /// Its content as JSON text.
    pub(super) data: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Wire {
    metadata: WireMetadata,
    #[serde(default)]
    revision: i64,
    #[serde(default)]
    data: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireMetadata {
    name: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<Time>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Wire { metadata, revision, data } = Wire::deserialize(deserializer)?;
        let metadata = ObjectMeta {
            name: metadata.name,
            resource_version: metadata.resource_version,
            creation_timestamp: metadata.creation_timestamp,
            labels: metadata.labels,
            annotations: metadata.annotations,
            ..ObjectMeta::default()
        };
        Ok(Self { metadata, revision, data })
    }
}

impl Resource for Object {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        ControllerRevision::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        ControllerRevision::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        ControllerRevision::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        ControllerRevision::plural(&())
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

    /// Deeper than JSON readers that recurse will go, in the content and in what the API server notes about its fields.
    fn deep() -> String {
        let nest = |key: &str| format!("{}1{}", format!("{{\"{key}\":").repeat(1000), "}".repeat(1000));
        format!(
            r#"{{"apiVersion":"apps/v1","kind":"ControllerRevision","metadata":{{"name":"a","resourceVersion":"7",
            "managedFields":[{{"fieldsV1":{}}}]}},"revision":3,"data":{{"spec":{}}}}}"#,
            nest("f:a"),
            nest("a")
        )
    }

    #[test]
    fn s03_content_of_any_depth_fails_no_list_and_no_watch() {
        let list = format!(
            r#"{{"apiVersion":"apps/v1","kind":"ControllerRevisionList","metadata":{{"resourceVersion":"9"}},
            "items":[{},{{"metadata":{{"name":"b"}}}}]}}"#,
            deep()
        );
        let list: ObjectList<Object> = serde_json::from_str(&list).expect("reads");
        assert_eq!((list.items[0].revision, list.items[1].metadata.name.as_deref()), (3, Some("b")));
        let event = format!(r#"{{"type":"MODIFIED","object":{}}}"#, deep());
        let event: WatchEvent<Object> = serde_json::from_str(&event).expect("reads");
        assert!(matches!(event, WatchEvent::Modified(object) if object.data.is_some()));
    }
}
