//! Bundles beside a manifest, in artifacts that name the manifest as their subject.

use std::collections::BTreeMap;

use portcullis_contract::{Digest, Reason};

use super::material::Layer;
use crate::oci::{Descriptor, Image, Manifest, Registry};
use crate::{FetchError, Whole};

/// The prefix of the media types of bundles, in all their versions.
pub(super) const BUNDLE: &str = "application/vnd.dev.sigstore.bundle";
/// Largest bundle, in bytes.
pub(super) const MAX_BUNDLE: u64 = 64 << 10;
/// Most bundles that are looked at.
pub(super) const MAX_BUNDLES: usize = 32;

/// The bundles about a manifest, unchecked; empty if there are none.
///
/// # Errors
/// `SignatureInvalid` when the registry's list of them cannot be parsed, `SignatureUnavailable` when they cannot be fetched
/// now.
pub(super) async fn fetch(registry: &Registry, image: &Image, manifest: &Digest) -> Result<Vec<Layer>, FetchError> {
    let artifacts = bundles(registry, image, manifest).await;
    let mut layers = Vec::new();
    for artifact in artifacts.map_err(|error| super::unlisted(image, error))? {
        layers.extend(bundle(registry, image, &artifact).await.map_err(|error| super::unavailable(image, error))?);
    }
    Ok(layers)
}

/// The artifacts with bundles about a manifest.
///
/// # Errors
/// When they cannot be fetched, or the registry's list of them cannot be read.
pub async fn bundles(registry: &Registry, image: &Image, manifest: &Digest) -> Result<Vec<Manifest>, FetchError> {
    let mut artifacts = Vec::new();
    for digest in registry.referrers(image, manifest, BUNDLE).await?.into_iter().take(MAX_BUNDLES) {
        let place = Image { tag: None, digest: Some(digest), ..image.clone() };
        match registry.manifest(&place).await {
            Ok(artifact) => artifacts.extend(layer(&artifact).is_some().then_some(artifact)),
            // Another kind of artifact, or one that has been removed although the list still names it.
            Err(error) if matches!(error.reason, Reason::ManifestUnsupported | Reason::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(artifacts)
}

async fn bundle(registry: &Registry, image: &Image, artifact: &Manifest) -> Result<Option<Layer>, FetchError> {
    let Some(layer) = layer(artifact) else { return Ok(None) };
    let place = Image { tag: None, digest: Some(artifact.digest), ..image.clone() };
    let mut receive = Whole::new("a signature", MAX_BUNDLE);
    registry.blob(&place, &layer.digest, &mut receive).await?;
    let (body, found) = receive.finish();
    // A bundle contains all that is said about it, so the annotations are not read.
    let annotations = BTreeMap::new();
    Ok((found == layer.digest).then(|| Layer { media_type: layer.media_type.clone(), annotations, body }))
}

/// The only layer of an artifact, if it is a bundle.
fn layer(artifact: &Manifest) -> Option<&Descriptor> {
    let [layer] = artifact.content.layers.as_slice() else { return None };
    (layer.media_type.starts_with(BUNDLE) && layer.size <= MAX_BUNDLE).then_some(layer)
}
