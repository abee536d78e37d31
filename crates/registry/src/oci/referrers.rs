//! Artifacts that are about a manifest (OCI distribution specification 1.1, section "Listing Referrers").

use portcullis_contract::{Digest, Reason};
use serde::Deserialize;

use super::{INDEX_TYPE, Image, MAX_MANIFEST, Registry};
use crate::{FetchError, Whole};

/// The type of a configuration that says nothing. Some clients put it where the type of the artifact belongs.
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
    /// The manifests about the one with this digest whose artifact type begins with `kind`, or is not told. A registry that
    /// keeps no such list has it under a tag that clients agreed on.
    ///
    /// # Errors
    /// When the list cannot be had; that there is none is an empty one.
    pub async fn referrers(&self, image: &Image, digest: &Digest, kind: &str) -> Result<Vec<Digest>, FetchError> {
        let index = match self.index(image, &format!("referrers/{digest}")).await {
            Err(error) if error.reason == Reason::NotFound => {
                match self.index(image, &format!("manifests/sha256-{}", digest.hex())).await {
                    Err(error) if error.reason == Reason::NotFound => return Ok(Vec::new()),
                    result => result?,
                }
            }
            result => result?,
        };
        Ok(of_kind(index, kind))
    }

    async fn index(&self, image: &Image, path: &str) -> Result<Index, FetchError> {
        let answer = self.get(image, path, INDEX_TYPE).await?;
        let mut body = Whole::new("the list of signatures", MAX_MANIFEST);
        self.web.body(&image.host, answer, &mut body).await?;
        serde_json::from_slice(&body.finish().0).map_err(|_| {
            let text = format!("{} gives a list of artifacts that is no index", image.host);
            FetchError::new(Reason::ManifestUnsupported, text)
        })
    }
}

fn of_kind(index: Index, kind: &str) -> Vec<Digest> {
    let may_be = |referrer: &Referrer| match referrer.artifact_type.as_deref() {
        None | Some("" | EMPTY_TYPE) => true,
        Some(found) => found.starts_with(kind),
    };
    index.manifests.into_iter().filter(may_be).map(|referrer| referrer.digest).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
        assert_eq!(of_kind(index, "application/vnd.example.bundle"), [digests[0], digests[2], digests[3]]);
    }
}
