//! The signatures beside an artifact. Kept with the artifact, they can be checked again without a network.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The signatures of one artifact, as they came, unchecked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Material {
    /// The layers, in the order of the registry: statements of cosign, then bundles.
    pub(super) layers: Vec<Layer>,
    /// Why there may be more signatures, which could not be fetched now; `None` if all are here.
    #[serde(skip)]
    pub(super) incomplete: Option<String>,
}

/// A layer of an artifact that holds signatures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Layer {
    /// The media type.
    pub(super) media_type: String,
    /// The annotations: the signature, and what proves the signer's identity.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub(super) annotations: BTreeMap<String, String>,
    /// The signed bytes; base64 in JSON.
    #[serde(serialize_with = "encode", deserialize_with = "decode")]
    pub(super) body: Vec<u8>,
}

impl Material {
    /// Whether there are no signatures at all.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }
}

fn encode<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&STANDARD.encode(bytes))
}

fn decode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    STANDARD.decode(text).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn material_is_read_back() {
        let annotations = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        let layer = Layer { media_type: "x".to_owned(), annotations, body: vec![0, 255, 7] };
        let material = Material { layers: vec![layer], incomplete: None };
        let text = serde_json::to_string(&material).expect("serialises");
        assert_eq!(serde_json::from_str::<Material>(&text).expect("parses"), material);
        serde_json::from_str::<Material>("{\"layers\":[{\"mediaType\":\"x\",\"body\":\"?\"}]}").expect_err("no base64");
    }
}
