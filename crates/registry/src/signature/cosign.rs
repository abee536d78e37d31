//! Signatures of cosign beside an artifact, under a tag of their own.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis_contract::{Digest, Reason};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::annotations::Names;
use super::legacy;
use super::material::Layer;
use super::refusal::Refusal;
use super::signed::{Certificate, Entry, Signed};
use super::trust::{Logged, NoTrustRoot, TrustRoot};
use crate::FetchError;
use crate::oci::{Descriptor, Image, Manifest, Registry, SIGNATURE};

/// The media type of a statement.
pub(super) const STATEMENT_TYPE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// The type that a statement names.
const KIND: &str = "cosign container image signature";
/// Largest statement, in bytes.
const MAX_STATEMENT: u64 = 64 << 10;
/// Most signatures that are looked at.
pub(super) const MAX_SIGNATURES: usize = 64;

#[derive(Deserialize)]
struct Statement<'a> {
    critical: Critical,
    /// The annotations.
    #[serde(borrow)]
    optional: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Critical {
    image: ImageOf,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct ImageOf {
    docker_manifest_digest: Digest,
}

/// The signatures under the tag, unchecked; empty if there are none.
///
/// # Errors
/// `SignatureInvalid` when the tag names something else, `SignatureUnavailable` when they cannot be fetched now.
pub(super) async fn fetch(registry: &Registry, image: &Image, manifest: &Digest) -> Result<Vec<Layer>, FetchError> {
    let tag = format!("sha256-{}.sig", manifest.hex());
    let place = Image { tag: Some(tag), digest: None, ..image.clone() };
    let list = match registry.manifest(&place).await {
        Ok(list) => list,
        Err(error) if error.reason == Reason::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(super::unlisted(image, error)),
    };
    let mut layers = Vec::new();
    for layer in statements(list) {
        layers.extend(statement(registry, &place, layer).await.map_err(|error| super::unavailable(image, error))?);
    }
    Ok(layers)
}

/// The layers that are looked at. The rest of the manifest is not kept while they are fetched.
fn statements(list: Manifest) -> Vec<Descriptor> {
    let mut layers = list.content.layers;
    layers.retain(|layer| layer.media_type == STATEMENT_TYPE);
    layers.truncate(MAX_SIGNATURES);
    layers.shrink_to_fit();
    layers
}

/// One of the signatures; `None` if the layer is not a signature.
async fn statement(registry: &Registry, place: &Image, layer: Descriptor) -> Result<Option<Layer>, FetchError> {
    if !layer.annotations.contains_key(SIGNATURE) || layer.size > MAX_STATEMENT {
        return Ok(None);
    }
    let mut receive = registry.whole("a signature", MAX_STATEMENT).refused_as(Reason::SignatureInvalid);
    registry.blob(place, &layer.digest, &mut receive).await?;
    let (body, digest) = receive.finish();
    let Descriptor { media_type, annotations, digest: wanted, .. } = layer;
    Ok((digest == wanted).then_some(Layer { media_type, annotations, body }))
}

/// A statement and its signature, if it is about this manifest, with those of its annotations that have these names. Statements about another
/// digest, and other documents, give `None`.
pub(super) fn read(
    layer: &Layer,
    manifest: &Digest,
    trust: &Result<TrustRoot, NoTrustRoot>,
    names: &Names<'_>,
) -> Option<Signed> {
    let Layer { media_type, annotations, body } = layer;
    if media_type != STATEMENT_TYPE || body.len() as u64 > MAX_STATEMENT {
        return None;
    }
    let signature = STANDARD.decode(annotations.get(SIGNATURE)?.trim()).ok()?;
    let said: Statement<'_> = serde_json::from_slice(body).ok()?;
    if said.critical.kind != KIND || said.critical.image.docker_manifest_digest != *manifest {
        return None;
    }
    let said = names.select(said.optional)?;
    let certificate = match (legacy::bundle(annotations, &Digest::of(body), &signature), trust) {
        (Ok(None), _) | (_, Err(_)) => Certificate::None,
        (Err(why), _) => Certificate::Refused(why),
        (Ok(Some(bundle)), Ok(trust)) => Certificate::of(trust.check(body, &bundle, Logged::Promise)),
    };
    let entry = entry(annotations, &Digest::of(body), &signature, trust);
    Some(Signed { message: body.clone(), signature, annotations: said, certificate, entry })
}

/// The log entry that comes with a signature over a statement with this digest.
fn entry(
    annotations: &BTreeMap<String, String>,
    statement: &Digest,
    signature: &[u8],
    trust: &Result<TrustRoot, NoTrustRoot>,
) -> Entry {
    match trust {
        Ok(trust) => match legacy::promise(annotations, statement, signature, trust) {
            Ok(None) => Entry::None,
            Ok(Some(promise)) => Entry::Promised(promise),
            Err(why) => Entry::Refused(why),
        },
        Err(NoTrustRoot::Unusable(_)) if legacy::has_entry(annotations) => Entry::Refused(Refusal::UncheckedEntry),
        Err(_) => Entry::None,
    }
}
