//! Creates revisions.

use kube::api::{Patch, Request, Resource as _};
use portcullis_api::PolicyReference;
use portcullis_api::kubernetes::{BoundedObject, raw_spec};
use serde_json::{Value, json};

use super::{Executor, Failed, manager, posts};
use crate::decide::rolled_back;
use crate::watch::resource;
use crate::world::{Collection, RevisionView};

impl Executor {
    /// Creates a revision with exactly the bytes of [`stable`], and with the present spec of the policy and of the source.
    pub(super) async fn create_revision(
        &self,
        policy: &PolicyReference,
        source: Option<&str>,
        object: &Value,
    ) -> Result<BoundedObject, Failed> {
        let mut object = object.clone();
        let found = self.policies(policy).get(&policy.name).await?.0;
        if found.metadata.uid.as_ref() != Some(&policy.uid) || found.metadata.generation != object["revision"].as_i64()
        {
            return Err(Failed::overtaken("the policy has changed since"));
        }
        let spec = raw_spec(&found);
        object["data"]["spec"] = match source {
            None => spec.clone(),
            Some(source) => {
                let source = self.api(Collection::Revisions).get(source).await?.0;
                rolled_back(&source.data["data"]["spec"], spec)
            }
        };
        self.create_whole_revision(&object).await
    }

    async fn create_whole_revision(&self, object: &Value) -> Result<BoundedObject, Failed> {
        let resource = resource(Collection::Revisions);
        let path = BoundedObject::url_path(&resource, Some(&self.namespace));
        let request = Request::new(path).create(&posts(), stable(object)).map_err(kube::Error::BuildRequest)?;
        match self.client.request(request).await {
            // It exists but was not reported: a watch lags, or its labels were removed.
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                let patch = Patch::Merge(json!({"metadata": {"labels": object["metadata"]["labels"]}}));
                let found: BoundedObject = self.api(Collection::Revisions).patch(name, &manager(), &patch).await?;
                // If its data name another policy or generation, this would fail for ever.
                let is_it = RevisionView::read(&found.0).is_some_and(|found| is_of(&found, object));
                let problem = format!(
                    "revision {name} exists, but for another policy or generation: delete it, and it is created again"
                );
                if is_it { Ok(found) } else { Err(Failed::other(problem)) }
            }
            created => Ok(created?),
        }
    }
}

fn is_of(found: &RevisionView, object: &Value) -> bool {
    let data = &object["data"];
    data["policy"]["uid"] == found.policy.uid.as_str() && data["generation"] == found.generation
}

/// An object as JSON, escaped as the API server escapes it. The API server compares the bytes of a revision's `data`, which must never
/// change, and writes them again with every patch of its annotations; so they must be escaped in that way from the beginning.
fn stable(object: &Value) -> Vec<u8> {
    // Outside of strings, JSON has none of these.
    let escapes =
        [('&', "\\u0026"), ('<', "\\u003c"), ('>', "\\u003e"), ('\u{2028}', "\\u2028"), ('\u{2029}', "\\u2029")];
    let text = escapes.iter().fold(object.to_string(), |text, (letter, escape)| text.replace(*letter, escape));
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_api_server_escapes_is_escaped() {
        let object = json!({"expression": "a && b < c > d", "text": "\u{2028}\"\\\u{2029}"});
        let bytes = stable(&object);
        assert!(bytes.is_ascii() && !bytes.iter().any(|byte| b"&<>".contains(byte)));
        assert_eq!(serde_json::from_slice::<Value>(&bytes).ok(), Some(object));
    }
}
