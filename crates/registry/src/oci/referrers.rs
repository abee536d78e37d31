//! Artifacts that are about a manifest (OCI distribution specification 1.1, section "Listing Referrers").

use portcullis_contract::{Digest, Reason};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{INDEX_TYPE, Image, MANIFEST_TYPE, MAX_MANIFEST, Manifest, Registry};
use crate::{FetchError, Redirects};

/// The media type of an empty configuration. Some clients put it where the type of the artifact belongs.
const EMPTY_TYPE: &str = "application/vnd.oci.empty.v1+json";

#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    manifests: Vec<Referrer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Referrer {
    digest: Digest,
    #[serde(default)]
    artifact_type: Option<String>,
}

impl Registry {
    /// The first `most` manifests about the one with this digest whose artifact type begins with `kind`, or is absent. If the
    /// registry does not keep such a list itself, clients keep it under an agreed tag.
    ///
    /// # Errors
    /// When the list cannot be fetched; a missing list counts as an empty one.
    pub async fn referrers(
        &self,
        image: &Image,
        digest: &Digest,
        kind: &str,
        most: usize,
    ) -> Result<Vec<Digest>, FetchError> {
        let list = match self.list(image, &format!("referrers/{digest}")).await? {
            None => self.list(image, &format!("manifests/{}", tag(digest))).await?,
            list => list,
        };
        let index = list.map(|list| serde_json::from_slice(&list)).transpose();
        Ok(of_kind(index.map_err(|_| no_index(image))?.unwrap_or(Index { manifests: Vec::new() }), kind, most))
    }

    /// Adds a pushed artifact to the list of those about its subject, if the registry does not do that itself. An entry that
    /// another client adds at the same time may be lost.
    ///
    /// # Errors
    /// When the list cannot be fetched or pushed.
    pub async fn list_referrer(&self, image: &Image, artifact: &Manifest) -> Result<(), FetchError> {
        let Some(subject) = &artifact.content.subject else { return Ok(()) };
        let subject = subject.digest;
        if self.list(image, &format!("referrers/{subject}")).await?.is_some() {
            return Ok(());
        }
        let list = self.list(image, &format!("manifests/{}", tag(&subject))).await?;
        match with(list.as_deref(), artifact).ok_or_else(|| no_index(image))? {
            Some(list) => self.put_manifest(image, &tag(&subject), INDEX_TYPE, list).await,
            None => Ok(()),
        }
    }

    async fn list(&self, image: &Image, path: &str) -> Result<Option<Vec<u8>>, FetchError> {
        let answer = match self.get(image, path, INDEX_TYPE, Redirects::Allowed).await {
            Ok(answer) => answer,
            Err(error) if error.reason == Reason::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut body = self.whole("the list of signatures", MAX_MANIFEST).refused_as(Reason::SignatureInvalid);
        self.web.body(&image.host, answer, &mut body).await?;
        Ok(Some(body.finish().0))
    }
}

/// The tag of the list, if the registry keeps no list itself.
fn tag(subject: &Digest) -> String {
    format!("sha256-{}", subject.hex())
}

fn no_index(image: &Image) -> FetchError {
    let text = format!("{} gives a list of artifacts that is not an index", image.host);
    FetchError::new(Reason::ManifestUnsupported, text)
}

/// The list with this artifact added. `Some(None)` if it is there already, `None` if the list cannot be parsed.
fn with(list: Option<&[u8]>, artifact: &Manifest) -> Option<Option<Vec<u8>>> {
    let empty = || json!({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": []});
    let mut list = list.map_or_else(|| Some(empty()), |list| serde_json::from_slice(list).ok())?;
    let entries = list.get_mut("manifests")?.as_array_mut()?;
    let digest = artifact.digest.to_string();
    if entries.iter().any(|entry| entry["digest"] == digest.as_str()) {
        return Some(None);
    }
    let said: Value = serde_json::from_slice(&artifact.bytes).ok()?;
    let mut entry = json!({"mediaType": MANIFEST_TYPE, "digest": digest, "size": artifact.bytes.len()});
    if let Some(kind) = said.get("artifactType") {
        entry["artifactType"] = kind.clone();
    }
    entries.push(entry);
    Some(Some(list.to_string().into_bytes()))
}

fn of_kind(index: Index, kind: &str, most: usize) -> Vec<Digest> {
    let may_be = |referrer: &Referrer| match referrer.artifact_type.as_deref() {
        None | Some("" | EMPTY_TYPE) => true,
        Some(found) => found.starts_with(kind),
    };
    index.manifests.iter().filter(|referrer| may_be(referrer)).map(|referrer| referrer.digest).take(most).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn an_artifact_is_listed_once() {
        let artifact = Manifest::of_module(b"signature", BTreeMap::new());
        let first = with(None, &artifact).expect("a list").expect("is new");
        assert_eq!(with(Some(&first), &artifact), Some(None));
        let other = Manifest::of_module(b"another", BTreeMap::new());
        let both = with(Some(&first), &other).expect("a list").expect("is new");
        let index: Index = serde_json::from_slice(&both).expect("an index");
        assert_eq!(of_kind(index, "x", 9), [artifact.digest, other.digest]);
        for list in [&b"no JSON"[..], b"[]", b"{}"] {
            assert_eq!(with(Some(list), &artifact), None);
        }
    }

    #[test]
    fn what_is_said_to_be_something_else_is_left_out() {
        let digests = [b"a", b"b", b"c", b"d"].map(|text| Digest::of(text));
        let index = json!({"schemaVersion": 2, "manifests": [
            {"digest": digests[0], "artifactType": "application/vnd.example.bundle.v0.3+json"},
            {"digest": digests[1], "artifactType": "application/spdx+json"},
            {"digest": digests[2], "artifactType": EMPTY_TYPE},
            {"digest": digests[3]},
        ]});
        let index: Index = serde_json::from_value(index).expect("reads");
        let bundles = of_kind(index, "application/vnd.example.bundle", 2);
        assert_eq!(bundles, [digests[0], digests[2]], "and no more than are wanted");
    }
}
