//! What is read of manifests, and the reply with a manifest and a configuration. The owner of the registry decides what is in them, and as a
//! tree of values they would take many times their length in memory: what is not read here stays text.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use portcullis_contract::Digest;
use serde::de::{Deserializer as _, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The fields of a manifest or an index that are read.
#[derive(Deserialize)]
pub(super) struct Manifest<'a> {
    /// The images of an index; `None` for the manifest of an image.
    #[serde(borrow)]
    pub(super) manifests: Option<&'a RawValue>,
    #[serde(borrow)]
    config: Option<&'a RawValue>,
}

/// The configuration of an image.
#[derive(Deserialize)]
struct Config {
    digest: Digest,
}

/// An image of an index.
#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(borrow)]
    platform: Platform<'a>,
    digest: Digest,
}

#[derive(Deserialize)]
struct Platform<'a> {
    #[serde(borrow)]
    os: Cow<'a, str>,
    #[serde(borrow)]
    architecture: Cow<'a, str>,
}

/// A manifest and its configuration as guests read them.
#[derive(Serialize)]
struct Reply<'a> {
    manifest: &'a RawValue,
    digest: Digest,
    config: &'a RawValue,
}

/// Finds the first image of an index for this machine's architecture. The others are not kept: an index may name a million of them.
struct OfThisPlatform;

impl<'a> Manifest<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(bytes)
    }

    /// The configuration, if one is named.
    pub(super) fn config(&self) -> Option<Digest> {
        let config: Config = serde_json::from_str(self.config?.get()).ok()?;
        Some(config.digest)
    }
}

/// The image of an index for this machine's architecture.
pub(super) fn of_this_platform(manifests: &RawValue) -> Option<Digest> {
    serde_json::Deserializer::from_str(manifests.get()).deserialize_seq(OfThisPlatform).ok()?
}

/// The reply: manifest and configuration as they are, which are JSON.
///
/// # Errors
/// When one of them is not.
pub(super) fn reply(manifest: &[u8], digest: Digest, config: &[u8]) -> serde_json::Result<Bytes> {
    let mut json = Vec::with_capacity(manifest.len() + config.len() + 128);
    let (manifest, config) = (serde_json::from_slice(manifest)?, serde_json::from_slice(config)?);
    serde_json::to_writer(&mut json, &Reply { manifest, digest, config })?;
    Ok(json.into())
}

/// This machine's architecture, as images name it.
pub(super) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

impl Entry<'_> {
    fn is_of_this_platform(&self) -> bool {
        self.platform.os == "linux" && self.platform.architecture == architecture()
    }
}

impl<'de> Visitor<'de> for OfThisPlatform {
    type Value = Option<Digest>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the images of an index")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut images: A) -> Result<Self::Value, A::Error> {
        while let Some(image) = images.next_element::<&RawValue>()? {
            let image: Option<Entry<'_>> = serde_json::from_str(image.get()).ok();
            if let Some(found) = image.filter(Entry::is_of_this_platform) {
                while images.next_element::<IgnoredAny>()?.is_some() {}
                return Ok(Some(found.digest));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(manifest: &str) -> Option<Digest> {
        of_this_platform(Manifest::parse(manifest.as_bytes()).expect("JSON").manifests?)
    }

    #[test]
    fn the_image_of_this_platform_is_taken() {
        let digest = Digest::of(b"ours");
        let index = json!({"manifests": [
            7,
            {"platform": {"os": "windows", "architecture": architecture()}, "digest": Digest::of(b"other")},
            {"platform": {"os": "linux", "architecture": architecture()}, "digest": "sha256:no"},
            {"platform": {"os": "linux", "architecture": architecture()}, "digest": digest},
            {"platform": {"os": "linux", "architecture": architecture()}, "digest": Digest::of(b"second")},
        ]});
        assert_eq!(found(&index.to_string()), Some(digest));
        for none in [r#"{"manifests": []}"#, r#"{"manifests": {}}"#, r#"{"manifests": 1}"#, r#"{"manifests": [{}]}"#] {
            assert!(Manifest::parse(none.as_bytes()).expect("JSON").manifests.is_some(), "it is an index");
            assert_eq!(found(none), None, "{none}");
        }
        assert!(Manifest::parse(b"{\"schemaVersion\": 2}").expect("JSON").manifests.is_none());
    }

    #[test]
    fn the_configuration_is_that_of_the_manifest() {
        let config = |manifest: &str| Manifest::parse(manifest.as_bytes()).expect("JSON").config();
        let digest = Digest::of(b"config");
        assert_eq!(config(&json!({"config": {"digest": digest, "size": [[1.5]]}}).to_string()), Some(digest));
        for none in ["{}", r#"{"config": null}"#, r#"{"config": 1}"#, r#"{"config": {"digest": "sha256:no"}}"#] {
            assert_eq!(config(none), None, "{none}");
        }
    }
}
