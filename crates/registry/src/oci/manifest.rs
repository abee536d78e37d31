//! Manifests of modules: which ones are accepted, and how one is made for a push.

use std::collections::BTreeMap;

use portcullis_contract::{Digest, Reason};
use serde::{Deserialize, Serialize};

use crate::FetchError;

/// Largest manifest, in bytes.
pub const MAX_MANIFEST: u64 = 4 << 20;
/// The media type of a manifest.
pub const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
/// The media type of an index, which is not a module.
pub const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
/// The media type of a module's configuration, which is `{}`.
pub const CONFIG_TYPE: &str = "application/vnd.wasm.config.v1+json";
/// The media type of a module.
pub const LAYER_TYPE: &str = "application/vnd.wasm.content.layer.v1+wasm";
/// The media type of Docker's manifests, which have the same form.
const DOCKER_MANIFEST_TYPE: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_LIST_TYPE: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

/// A blob, by its digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// The media type.
    pub media_type: String,
    /// The digest of its bytes.
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
    /// The annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub annotations: BTreeMap<String, String>,
}

/// A manifest that was checked against its digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The digest of its bytes.
    pub digest: Digest,
    /// The bytes as they came.
    pub bytes: Vec<u8>,
    /// The parsed content.
    pub content: Content,
}

/// The content of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Content {
    /// The version of the form; always 2.
    pub schema_version: u32,
    /// The manifest's own type.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub media_type: Option<String>,
    /// The configuration.
    pub config: Descriptor,
    /// The blobs.
    pub layers: Vec<Descriptor>,
    /// In signatures and other additions: the manifest that this one is about.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub subject: Option<Descriptor>,
    /// The annotations, which repeat the module's metadata.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub annotations: BTreeMap<String, String>,
}

impl Manifest {
    /// Parses a manifest.
    ///
    /// # Errors
    /// `ManifestUnsupported` when the bytes are not a manifest, or are an index.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, FetchError> {
        let refused = |text: String| FetchError::new(Reason::ManifestUnsupported, text);
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Kind {
            media_type: Option<String>,
            manifests: Option<serde::de::IgnoredAny>,
        }
        let kind: Kind =
            serde_json::from_slice(&bytes).map_err(|_| refused("the manifest is not a JSON object".to_owned()))?;
        match kind.media_type.as_deref() {
            Some(INDEX_TYPE | DOCKER_LIST_TYPE) => return Err(refused(index())),
            _ if kind.manifests.is_some() => return Err(refused(index())),
            None | Some(MANIFEST_TYPE | DOCKER_MANIFEST_TYPE) => {}
            Some(other) => {
                let other = portcullis_contract::clean(other, 100);
                return Err(refused(format!("the manifest has the media type {other:?}, not {MANIFEST_TYPE:?}")));
            }
        }
        let content: Content = serde_json::from_slice(&bytes).map_err(|error| {
            refused(format!("the manifest cannot be read: {}", portcullis_contract::clean(&error.to_string(), 200)))
        })?;
        Ok(Self { digest: Digest::of(&bytes), bytes, content })
    }

    /// The only layer, which is the module.
    ///
    /// # Errors
    /// `ManifestUnsupported` when there is not exactly one layer, or it is not a module.
    pub fn module(&self) -> Result<&Descriptor, FetchError> {
        let refused = |text: String| Err(FetchError::new(Reason::ManifestUnsupported, text));
        let is_module = |layer: &&Descriptor| layer.media_type == LAYER_TYPE;
        match self.content.layers.as_slice() {
            [layer] if is_module(&layer) => Ok(layer),
            [layer] => {
                let found = portcullis_contract::clean(&layer.media_type, 100);
                refused(format!("the layer has the media type {found:?}, not {LAYER_TYPE:?}: is this a policy?"))
            }
            layers => refused(format!("the manifest has {} layers, where a module is one", layers.len())),
        }
    }

    /// The manifest for a module that is pushed.
    pub fn of_module(module: &[u8], annotations: BTreeMap<String, String>) -> Self {
        let config = Descriptor {
            media_type: CONFIG_TYPE.to_owned(),
            digest: Digest::of(b"{}"),
            size: 2,
            annotations: BTreeMap::new(),
        };
        let layer = Descriptor {
            media_type: LAYER_TYPE.to_owned(),
            digest: Digest::of(module),
            size: module.len() as u64,
            annotations: BTreeMap::new(),
        };
        let content = Content {
            schema_version: 2,
            media_type: Some(MANIFEST_TYPE.to_owned()),
            config,
            layers: vec![layer],
            subject: None,
            annotations,
        };
        let bytes = serde_json::to_vec(&content).expect("has text keys only");
        Self { digest: Digest::of(&bytes), bytes, content }
    }
}

fn index() -> String {
    "the name leads to an index of several manifests: name one of them by its digest".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(json: &str) -> Reason {
        let manifest = Manifest::parse(json.as_bytes().to_vec());
        manifest.and_then(|manifest| manifest.module().cloned()).expect_err(json).reason
    }

    #[test]
    fn what_is_made_is_taken() {
        let annotations = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        let manifest = Manifest::of_module(b"module", annotations);
        let read = Manifest::parse(manifest.bytes.clone()).expect("parses");
        assert_eq!(read, manifest);
        assert_eq!(read.module().expect("one").digest, Digest::of(b"module"));
    }

    #[test]
    fn l19_other_manifests_are_refused() {
        let whole = String::from_utf8(Manifest::of_module(b"module", BTreeMap::new()).bytes).expect("text");
        let layers = &whole[whole.find("\"layers\":[").expect("layers") + 10..whole.rfind(']').expect("layers")];
        for json in [
            "no JSON".to_owned(),
            "[]".to_owned(),
            "{}".to_owned(),
            whole.replace(MANIFEST_TYPE, INDEX_TYPE),
            whole.replace(MANIFEST_TYPE, "application/x"),
            whole.replace(LAYER_TYPE, "application/vnd.oci.image.layer.v1.tar+gzip"),
            whole.replace(layers, ""),
            whole.replace(layers, &format!("{layers},{layers}")),
            r#"{"schemaVersion": 2, "manifests": []}"#.to_owned(),
        ] {
            assert_eq!(reason(&json), Reason::ManifestUnsupported, "{json}");
        }
    }
}
