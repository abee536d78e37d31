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

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use portcullis_util::lock;
    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::{Guard, SourcesFile, Web, WebSettings};

    /// A registry without TLS that gives these answers, by the last part of the path. Returns its host, and the parts that it was asked for.
    async fn serve(answers: HashMap<String, Vec<u8>>) -> (String, Arc<Mutex<Vec<String>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let host = listener.local_addr().expect("is bound").to_string();
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let noted = Arc::clone(&asked);
        tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                let mut request = vec![0; 16 << 10];
                let length = connection.read(&mut request).await.unwrap_or(0);
                let text = String::from_utf8_lossy(&request[..length]);
                // What does not begin like this is TLS, which is tried first.
                let Some(path) = text.strip_prefix("GET ").and_then(|rest| rest.split(' ').next()) else { continue };
                let last = path.rsplit('/').next().unwrap_or_default().to_owned();
                let (status, body) = answers.get(&last).map_or(("404 Not Found", &[][..]), |body| ("200 OK", body));
                lock(&noted).push(last);
                let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
                let answer = [head.as_bytes(), body].concat();
                connection.write_all(&answer).await.expect("writes");
            }
        });
        (host, asked)
    }

    /// A client that asks this host without TLS and without a proxy, whatever the environment says.
    fn registry(host: &str) -> Registry {
        let sources = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(&sources, format!("insecure_sources: ['{host}']\nproxies: {{}}\n")).expect("writes");
        let web = Web::new(WebSettings {
            header: Duration::from_secs(30),
            total: Duration::from_secs(30),
            lowest_rate: 1,
            authorities: None,
            plain_hosts: BTreeSet::new(),
            allowed: Vec::new(),
            guard: Guard::new(vec!["127.0.0.0/8".parse().expect("a network")]),
            sources: Some(SourcesFile::read(sources.path()).expect("good")),
            name_server: None,
            user_agent: "tests",
        });
        Registry::new(web, None)
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
}
