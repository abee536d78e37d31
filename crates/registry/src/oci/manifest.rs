//! Manifests of modules: which ones are accepted, and how one is made for a push.

use std::collections::BTreeMap;
use std::fmt;

use portcullis_contract::{Digest, Reason};
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
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
/// Most blobs of a manifest. A manifest with signatures has one for each of them.
const MAX_LAYERS: usize = 1000;

/// The annotation with a signature, in base64.
pub(crate) const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
/// The annotation with the signer's certificate, in PEM.
pub(crate) const CERTIFICATE: &str = "dev.sigstore.cosign/certificate";
/// The annotation with the certificates between it and the root, and perhaps the root.
pub(crate) const CHAIN: &str = "dev.sigstore.cosign/chain";
/// The annotation with the log's entry about a signature, and its promise.
pub(crate) const LOG_ENTRY: &str = "dev.sigstore.cosign/bundle";
/// The annotations that are read. Others are not kept: in memory, many small ones take ten times their length.
const ANNOTATIONS: [&str; 4] = [SIGNATURE, CERTIFICATE, CHAIN, LOG_ENTRY];

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
    /// The annotations that are read somewhere.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default, deserialize_with = "annotations")]
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

/// What is read of the content of a manifest. It takes little more memory than the manifest's bytes, whatever is in them.
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
    #[serde(deserialize_with = "layers")]
    pub layers: Vec<Descriptor>,
    /// In signatures and other additions: the manifest that this one is about.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub subject: Option<Descriptor>,
}

/// The content of a manifest that is pushed.
#[derive(Serialize)]
struct Pushed<'a> {
    #[serde(flatten)]
    content: &'a Content,
    /// The annotations, which repeat the module's metadata. Nothing reads them here.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
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
            manifests: Option<IgnoredAny>,
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
        };
        let bytes = serde_json::to_vec(&Pushed { content: &content, annotations }).expect("has text keys only");
        Self { digest: Digest::of(&bytes), bytes, content }
    }
}

fn index() -> String {
    "the name leads to an index of several manifests: name one of them by its digest".to_owned()
}

/// Reads the annotations of a descriptor that are read somewhere.
fn annotations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    struct Annotations;

    impl<'de> Visitor<'de> for Annotations {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("annotations")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut kept = BTreeMap::new();
            while let Some(Name(name)) = map.next_key()? {
                match name {
                    Some(name) => drop(kept.insert(name.to_owned(), map.next_value()?)),
                    None => drop(map.next_value::<IgnoredAny>()?),
                }
            }
            Ok(kept)
        }
    }

    /// The name of an annotation, if it is one that is read.
    struct Name(Option<&'static str>);

    impl<'de> Deserialize<'de> for Name {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Names;

            impl Visitor<'_> for Names {
                type Value = Name;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("the name of an annotation")
                }

                fn visit_str<E: serde::de::Error>(self, found: &str) -> Result<Name, E> {
                    Ok(Name(ANNOTATIONS.into_iter().find(|name| *name == found)))
                }
            }

            deserializer.deserialize_str(Names)
        }
    }

    deserializer.deserialize_map(Annotations)
}

/// Reads the blobs of a manifest, and no more than are accepted.
fn layers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Descriptor>, D::Error> {
    struct Layers;

    impl<'de> Visitor<'de> for Layers {
        type Value = Vec<Descriptor>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of layers")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut layers = Vec::new();
            while let Some(layer) = list.next_element()? {
                if layers.len() == MAX_LAYERS {
                    return Err(serde::de::Error::custom(format!("it has more than {MAX_LAYERS} layers")));
                }
                layers.push(layer);
            }
            Ok(layers)
        }
    }

    deserializer.deserialize_seq(Layers)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

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

    /// The bytes that a manifest keeps in memory, as far as the texts in it make them more or less.
    fn kept(manifest: &Manifest) -> usize {
        let of = |one: &Descriptor| {
            let texts = |(name, value): (&String, &String)| 48 + name.capacity() + value.capacity();
            one.media_type.capacity() + one.annotations.iter().map(texts).sum::<usize>() + size_of::<Descriptor>()
        };
        let Content { schema_version: _, media_type, config, layers, subject } = &manifest.content;
        let media_type = media_type.as_ref().map_or(0, String::capacity);
        let unused = (layers.capacity() - layers.len()) * size_of::<Descriptor>();
        layers.iter().chain([config]).chain(subject).map(of).sum::<usize>() + media_type + unused
    }

    #[test]
    fn annotations_without_end_take_no_memory() {
        let many: serde_json::Map<String, Value> =
            (0..95_000).map(|number| (format!("{number:x}"), json!(""))).collect();
        let mut content: Value =
            serde_json::from_slice(&Manifest::of_module(b"module", BTreeMap::new()).bytes).expect("JSON");
        content["subject"] = content["layers"][0].clone();
        content["annotations"] = json!(many);
        for place in ["/config", "/layers/0", "/subject"] {
            content.pointer_mut(place).expect(place)["annotations"] = json!(many);
        }
        for name in ANNOTATIONS {
            content["layers"][0]["annotations"][name] = json!("kept");
        }
        let bytes = content.to_string().into_bytes();
        assert!((3 << 20..MAX_MANIFEST as usize).contains(&bytes.len()), "{}", bytes.len());
        let manifest = Manifest::parse(bytes).expect("a manifest");
        let kept_names: Vec<_> = manifest.module().expect("one").annotations.keys().map(String::as_str).collect();
        assert_eq!(kept_names, [SIGNATURE, LOG_ENTRY, CERTIFICATE, CHAIN]);
        assert!(kept(&manifest) < 4096, "{}", kept(&manifest));
    }

    #[test]
    fn layers_without_end_are_refused() {
        let mut content: Value =
            serde_json::from_slice(&Manifest::of_module(b"module", BTreeMap::new()).bytes).expect("JSON");
        let layer = content["layers"][0].clone();
        content["layers"] = json!(vec![&layer; MAX_LAYERS]);
        let most = Manifest::parse(content.to_string().into_bytes()).expect("a manifest");
        assert_eq!(most.content.layers.len(), MAX_LAYERS);
        content["layers"] = json!(vec![&layer; MAX_LAYERS + 1]);
        let error = Manifest::parse(content.to_string().into_bytes()).expect_err("has too many");
        assert!(error.reason == Reason::ManifestUnsupported && error.message.contains("1000 layers"), "{error}");
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
