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

/// Largest manifest of an artifact with a bundle, in bytes. Those that cosign writes have about one thousand.
const MAX_BUNDLE_MANIFEST: u64 = 64 << 10;

/// The bundles about a manifest, unchecked; empty if there are none.
///
/// # Errors
/// `SignatureInvalid` when the registry's list of them cannot be parsed, `SignatureUnavailable` when they cannot be fetched
/// now.
pub(super) async fn fetch(registry: &Registry, image: &Image, manifest: &Digest) -> Result<Vec<Layer>, FetchError> {
    let unlisted = |error| super::unlisted(image, error);
    let mut layers = Vec::new();
    for artifact in listed(registry, image, manifest).await.map_err(unlisted)? {
        // Each bundle is fetched before the next manifest, so that only one manifest is in memory.
        let Some(layer) = layer_of(registry, &artifact).await.map_err(unlisted)? else { continue };
        layers.extend(bundle(registry, &artifact, layer).await.map_err(|error| super::unavailable(image, error))?);
    }
    Ok(layers)
}

/// The digests of the artifacts with bundles about a manifest.
///
/// # Errors
/// When they cannot be fetched, or the registry's list of them cannot be read.
pub async fn bundles(registry: &Registry, image: &Image, manifest: &Digest) -> Result<Vec<Digest>, FetchError> {
    let mut bundles = Vec::new();
    for artifact in listed(registry, image, manifest).await? {
        if layer_of(registry, &artifact).await?.is_some() {
            bundles.extend(artifact.digest);
        }
    }
    Ok(bundles)
}

/// The artifacts about a manifest that may be bundles.
async fn listed(registry: &Registry, image: &Image, manifest: &Digest) -> Result<Vec<Image>, FetchError> {
    let digests = registry.referrers(image, manifest, BUNDLE, MAX_BUNDLES).await?;
    Ok(digests.into_iter().map(|digest| Image { tag: None, digest: Some(digest), ..image.clone() }).collect())
}

/// The only layer of an artifact, if it is a bundle.
async fn layer_of(registry: &Registry, artifact: &Image) -> Result<Option<Descriptor>, FetchError> {
    let bytes = registry.manifest_within(artifact, MAX_BUNDLE_MANIFEST).await;
    match bytes.and_then(|(bytes, _)| Manifest::parse(bytes)) {
        Ok(manifest) => Ok(only_bundle(manifest)),
        // Another kind of artifact, or one that has been removed although the list still names it.
        Err(FetchError { reason: Reason::ManifestUnsupported | Reason::NotFound | Reason::ModuleTooLarge, .. }) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

async fn bundle(registry: &Registry, artifact: &Image, layer: Descriptor) -> Result<Option<Layer>, FetchError> {
    let mut receive = Whole::new("a signature", MAX_BUNDLE);
    registry.blob(artifact, &layer.digest, &mut receive).await?;
    let (body, found) = receive.finish();
    // A bundle contains all that is said about it, so the annotations are not read.
    let annotations = BTreeMap::new();
    Ok((found == layer.digest).then_some(Layer { media_type: layer.media_type, annotations, body }))
}

fn only_bundle(mut manifest: Manifest) -> Option<Descriptor> {
    let layer = manifest.content.layers.pop().filter(|_| manifest.content.layers.is_empty())?;
    (layer.media_type.starts_with(BUNDLE) && layer.size <= MAX_BUNDLE).then_some(layer)
}
