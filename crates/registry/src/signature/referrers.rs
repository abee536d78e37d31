//! Bundles beside a manifest, in artifacts that say they are about it.

use portcullis_contract::{Digest, Reason};

use super::material::Layer;
use super::verify::unavailable;
use crate::oci::{Image, Registry};
use crate::{FetchError, Whole};

/// How the media types of bundles begin, in all their versions.
pub(super) const BUNDLE: &str = "application/vnd.dev.sigstore.bundle";
/// Largest bundle, in bytes.
pub(super) const MAX_BUNDLE: u64 = 64 << 10;
/// Most bundles that are looked at.
pub(super) const MAX_BUNDLES: usize = 32;

/// The bundles about a manifest, as they are; none where there are none.
///
/// # Errors
/// `SignatureInvalid` when the registry's list of them is none, `SignatureUnavailable` when they cannot be had now.
pub(super) async fn fetch(registry: &Registry, image: &Image, manifest: &Digest) -> Result<Vec<Layer>, FetchError> {
    let referrers = match registry.referrers(image, manifest, BUNDLE).await {
        Ok(referrers) => referrers,
        Err(error) if error.reason == Reason::ManifestUnsupported => {
            let text = format!("the signatures of {image}: {}", error.message);
            return Err(FetchError::new(Reason::SignatureInvalid, text));
        }
        Err(error) => return Err(unavailable(image, error)),
    };
    let mut layers = Vec::new();
    for digest in referrers.into_iter().take(MAX_BUNDLES) {
        layers.extend(bundle(registry, image, digest).await.map_err(|error| unavailable(image, error))?);
    }
    Ok(layers)
}

/// The bundle in an artifact. Nothing when it is something else.
async fn bundle(registry: &Registry, image: &Image, digest: Digest) -> Result<Option<Layer>, FetchError> {
    let place = Image { tag: None, digest: Some(digest), ..image.clone() };
    let artifact = match registry.manifest(&place).await {
        Ok(artifact) => artifact,
        Err(error) if matches!(error.reason, Reason::ManifestUnsupported | Reason::NotFound) => return Ok(None),
        Err(error) => return Err(error),
    };
    let [layer] = artifact.content.layers.as_slice() else { return Ok(None) };
    if !layer.media_type.starts_with(BUNDLE) || layer.size > MAX_BUNDLE {
        return Ok(None);
    }
    let mut receive = Whole::new("a signature", MAX_BUNDLE);
    registry.blob(&place, &layer.digest, &mut receive).await?;
    let (body, found) = receive.finish();
    // What is said of a bundle is in the bundle.
    let annotations = Default::default();
    Ok((found == layer.digest).then(|| Layer { media_type: layer.media_type.clone(), annotations, body }))
}
