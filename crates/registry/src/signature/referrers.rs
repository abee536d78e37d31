//! Bundles beside a manifest, in artifacts that name the manifest as their subject.

use std::collections::BTreeMap;

use portcullis_contract::{Digest, Reason};

use super::material::Layer;
use crate::FetchError;
use crate::oci::{Descriptor, Image, Manifest, Registry};

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
    let mut receive = registry.whole("a signature", MAX_BUNDLE).refused_as(Reason::SignatureInvalid);
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

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use portcullis_util::lock;
    use serde_json::{Value, json};

    use super::*;
    use crate::BodyMemory;
    use crate::test_server::{serve, web};

    fn registry(host: &str) -> Registry {
        Registry::new(web(host), None)
    }

    /// Counts all that is kept.
    #[derive(Default)]
    struct Count(AtomicUsize);

    impl BodyMemory for Count {
        fn take(&self, bytes: usize) -> Pin<Box<dyn Future<Output = Result<(), FetchError>> + Send + '_>> {
            self.0.fetch_add(bytes, Ordering::Relaxed);
            Box::pin(std::future::ready(Ok(())))
        }
    }

    /// The manifest of an artifact with a bundle, whose annotations have this many bytes.
    fn artifact(bundle: &[u8], padding: usize) -> Vec<u8> {
        let mut manifest: Value =
            serde_json::from_slice(&Manifest::of_module(bundle, BTreeMap::new()).bytes).expect("JSON");
        manifest["layers"][0]["mediaType"] = format!("{BUNDLE}.v0.3+json").into();
        manifest["annotations"] = json!({"padding": "x".repeat(padding)});
        manifest.to_string().into_bytes()
    }

    #[tokio::test]
    async fn bundles_are_fetched_one_by_one_and_large_manifests_are_none() {
        let signed = Digest::of(b"signed");
        let (first, large, second) = (artifact(b"1", 0), artifact(b"2", 64 << 10), artifact(b"3", 0));
        let listed = [&first, &large, &second].map(|manifest| json!({"digest": Digest::of(manifest)}));
        let list = json!({"schemaVersion": 2, "manifests": listed}).to_string().into_bytes();
        let of = |bytes: &[u8]| Digest::of(bytes).to_string();
        let mut answers: HashMap<_, _> =
            [first.clone(), large.clone(), second.clone(), b"1".to_vec(), b"2".to_vec(), b"3".to_vec()]
                .into_iter()
                .map(|bytes| (of(&bytes), bytes))
                .collect();
        answers.insert(signed.to_string(), list);
        let (host, asked) = serve(answers).await;
        let (registry, image) = (registry(&host), format!("{host}/a:v1").parse().expect("a name"));
        let bodies: Vec<_> =
            fetch(&registry, &image, &signed).await.expect("fetches").into_iter().map(|one| one.body).collect();
        assert_eq!(bodies, [b"1", b"3"]);
        let order = [signed.to_string(), of(&first), of(b"1"), of(&large), of(&second), of(b"3")];
        assert_eq!(*lock(&asked), order);
        let found = bundles(&registry, &image, &signed).await.expect("fetches");
        assert_eq!(found, [Digest::of(&first), Digest::of(&second)]);
    }

    #[tokio::test]
    async fn all_that_is_kept_of_a_source_is_counted() {
        let signed = Digest::of(b"signed");
        let bundled = artifact(b"1", 0);
        let list = json!({"schemaVersion": 2, "manifests": [{"digest": Digest::of(&bundled)}]}).to_string();
        let sizes = list.len() + bundled.len() + 1;
        let answers = [
            (signed.to_string(), list.into_bytes()),
            (Digest::of(&bundled).to_string(), bundled),
            (Digest::of(b"1").to_string(), b"1".to_vec()),
        ];
        let (host, _) = serve(HashMap::from(answers)).await;
        let (count, image) = (Arc::<Count>::default(), format!("{host}/a:v1").parse().expect("a name"));
        let layers = fetch(&registry(&host).within(count.clone()), &image, &signed).await.expect("fetches");
        assert_eq!((layers.len(), count.0.load(Ordering::Relaxed)), (1, sizes));
    }

    #[tokio::test]
    async fn what_is_too_large_beside_a_module_is_not_the_module() {
        let signed = Digest::of(b"signed");
        let large = vec![b' '; (4 << 20) + 1];
        let (host, _) = serve(HashMap::from([(signed.to_string(), large.clone())])).await;
        let (of, image) = (registry(&host), format!("{host}/a:v1").parse().expect("a name"));
        let error = fetch(&of, &image, &signed).await.expect_err("refused");
        assert!(error.reason == Reason::SignatureInvalid && error.message.contains("list of signatures"), "{error}");
        let (host, _) = serve(HashMap::from([(format!("sha256-{}.sig", signed.hex()), large)])).await;
        let (of, image) = (registry(&host), format!("{host}/a:v1").parse().expect("a name"));
        let error = super::super::cosign::fetch(&of, &image, &signed).await.map(|layers| layers.len());
        assert_eq!(error.map_err(|error| error.reason), Err(Reason::SignatureInvalid));
    }
}
