//! Creates revisions.

use std::collections::BTreeMap;

use kube::api::{GetParams, Patch, Request, Resource as _};
use portcullis_api::PolicyReference;
use portcullis_api::kubernetes::Outline;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use super::{Executor, manager, posts};
use crate::decide::rolled_back;
use crate::failed::{Cause, Failed};
use crate::watch::resource;
use crate::world::{Collection, RevisionView};

/// A policy whose spec is text. Decoded, it can take a hundred times as much.
#[derive(Deserialize)]
struct StoredPolicy {
    metadata: StoredMetadata,
    spec: Box<RawValue>,
}

#[derive(Deserialize)]
struct StoredMetadata {
    uid: Option<String>,
    generation: Option<i64>,
}

/// A revision whose spec is text.
#[derive(Deserialize)]
struct StoredRevision {
    data: StoredData,
}

#[derive(Deserialize)]
struct StoredData {
    spec: Box<RawValue>,
}

impl Executor {
    /// Creates a revision with exactly the bytes of [`stable`], and with the present spec of the policy and of the source.
    pub(super) async fn create_revision(
        &self,
        policy: &PolicyReference,
        source: Option<&str>,
        object: &Value,
    ) -> Result<Outline, Failed> {
        let collection = Collection::Policies(policy.kind);
        let found: StoredPolicy = self.stored(collection, policy.namespace.as_deref(), &policy.name).await?;
        let StoredMetadata { uid, generation } = found.metadata;
        if uid.as_ref() != Some(&policy.uid) || generation != object["revision"].as_i64() {
            return Err(Failed::overtaken("the policy has changed since"));
        }
        let spec = match source {
            None => found.spec,
            Some(source) => {
                let source: StoredRevision = self.stored(Collection::Revisions, Some(&self.namespace), source).await?;
                rolled_back(&source.data.spec, &found.spec).map_err(unwritable)?
            }
        };
        self.create_whole_revision(object, stable(&with_spec(object, spec).map_err(unwritable)?)).await
    }

    /// An object as it is stored.
    async fn stored<T: DeserializeOwned>(
        &self,
        collection: Collection,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<T, kube::Error> {
        let path = Outline::url_path(&resource(collection), namespace);
        let request = Request::new(path).get(name, &GetParams::default()).map_err(kube::Error::BuildRequest)?;
        self.client.request(request).await
    }

    /// `text` is the object with its spec.
    async fn create_whole_revision(&self, object: &Value, text: Vec<u8>) -> Result<Outline, Failed> {
        let resource = resource(Collection::Revisions);
        let path = Outline::url_path(&resource, Some(&self.namespace));
        let request = Request::new(path).create(&posts(), text).map_err(kube::Error::BuildRequest)?;
        match self.client.request(request).await {
            // It exists but was not reported: a watch lags, or its labels were removed.
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                let patch = Patch::Merge(json!({"metadata": {"labels": object["metadata"]["labels"]}}));
                let found: Outline = self.api(Collection::Revisions).patch(name, &manager(), &patch).await?;
                // If its data name another policy or generation, this would fail for ever.
                let is_it = RevisionView::read(&found).is_some_and(|found| is_of(&found, object));
                let problem = format!(
                    "revision {name} exists, but for another policy or generation: delete it, and it is created again"
                );
                // Only somebody else can mend it.
                if is_it { Ok(found) } else { Err(Failed::of(Cause::Refused, problem)) }
            }
            created => Ok(created?),
        }
    }
}

fn is_of(found: &RevisionView, object: &Value) -> bool {
    let data = &object["data"];
    data["policy"]["uid"] == found.policy.uid.as_str() && data["generation"] == found.generation
}

fn unwritable(error: serde_json::Error) -> Failed {
    Failed::other(format!("failed to make a revision: {error}"))
}

/// A revision as JSON, with this spec.
fn with_spec(object: &Value, spec: Box<RawValue>) -> serde_json::Result<String> {
    let mut data = BTreeMap::<String, Box<RawValue>>::deserialize(&object["data"])?;
    data.insert("spec".to_owned(), spec);
    let mut object = BTreeMap::<String, Box<RawValue>>::deserialize(object)?;
    object.insert("data".to_owned(), to_raw_value(&data)?);
    serde_json::to_string(&object)
}

/// JSON, escaped as the API server escapes it. The API server compares the bytes of a revision's `data`, which must never
/// change, and writes them again with every patch of its annotations; so they must be escaped in that way from the beginning.
fn stable(text: &str) -> Vec<u8> {
    // Outside of strings, JSON has none of these.
    let escapes =
        [('&', "\\u0026"), ('<', "\\u003c"), ('>', "\\u003e"), ('\u{2028}', "\\u2028"), ('\u{2029}', "\\u2029")];
    escapes.iter().fold(text.to_owned(), |text, (letter, escape)| text.replace(*letter, escape)).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_api_server_escapes_is_escaped() {
        let object = json!({"expression": "a && b < c > d", "text": "\u{2028}\"\\\u{2029}"});
        let bytes = stable(&object.to_string());
        assert!(bytes.is_ascii() && !bytes.iter().any(|byte| b"&<>".contains(byte)));
        assert_eq!(serde_json::from_slice::<Value>(&bytes).ok(), Some(object));
    }

    #[test]
    fn a_revision_has_the_spec_as_it_is_stored() {
        let object = json!({"metadata": {"name": "a"}, "data": {"generation": 1, "spec": null}});
        let spec = r#"{"settings":{"z":[[[0]]],"a":1.50,"long":123456789012345678901234567890}}"#;
        let text = with_spec(&object, RawValue::from_string(spec.to_owned()).expect("JSON")).expect("JSON");
        assert_eq!(text, format!(r#"{{"data":{{"generation":1,"spec":{spec}}},"metadata":{{"name":"a"}}}}"#));
    }
}
