//! Signatures of cosign beside an artifact: fetched, matched to the manifest, and checked.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis_contract::{Digest, Reason};
use serde::Deserialize;
use serde_json::Value;

use super::requirement::{Found, Verdict};
use super::{PublicKey, Requirement, Signer};
use crate::oci::{Descriptor, Image, Registry};
use crate::{FetchError, Whole};

/// The media type of a statement.
const STATEMENT_TYPE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// Where its signature is, in base64.
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
/// What a statement says it is.
const KIND: &str = "cosign container image signature";
/// Largest statement, in bytes.
const MAX_STATEMENT: u64 = 64 << 10;
/// Most signatures that are looked at.
const MAX_SIGNATURES: usize = 64;

/// A statement and its signature.
#[derive(Debug)]
struct Signed {
    statement: Vec<u8>,
    signature: Vec<u8>,
    annotations: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
struct Statement {
    critical: Critical,
    #[serde(default)]
    optional: Option<BTreeMap<String, Value>>,
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

/// Checks that the manifest with this digest is signed by whom `requirement` names.
///
/// # Errors
/// `SignatureInvalid` when it is not, `SignatureUnavailable` when that cannot be known now.
pub async fn verify(
    registry: &Registry,
    image: &Image,
    manifest: &Digest,
    requirement: &Requirement,
) -> Result<(), FetchError> {
    let signed = signatures(registry, image, manifest).await?;
    judge(image, &signed, requirement)
}

fn judge(image: &Image, signed: &[Signed], requirement: &Requirement) -> Result<(), FetchError> {
    let invalid = |text: String| FetchError::new(Reason::SignatureInvalid, text);
    if signed.is_empty() {
        return Err(invalid(format!("no signatures found for image: {image}")));
    }
    match requirement.decide(|signer| find(signer, signed)) {
        Verdict::Met => Ok(()),
        Verdict::Unmet(text) => Err(invalid(format!("{image}: {text}"))),
        Verdict::Unknown(signers) => {
            let text = format!(
                "{image}: signatures by a certificate cannot be checked by this release, so that what needs them is not \
                 loaded: {signers}; name a public key (kind: pubKey)"
            );
            Err(FetchError::new(Reason::SignatureUnavailable, text))
        }
    }
}

fn find(signer: &Signer, signed: &[Signed]) -> Found {
    let Signer::PubKey { key, annotations, .. } = signer else { return Found::Unknown };
    let Ok(key) = PublicKey::from_pem(key) else { return Found::No };
    let says = |signed: &Signed| {
        annotations.iter().all(|(name, value)| signed.annotations.get(name).and_then(Value::as_str) == Some(value))
    };
    let is_his = |signed: &&Signed| says(signed) && key.has_signed(&signed.statement, &signed.signature);
    if signed.iter().any(|signed| is_his(&signed)) { Found::Yes } else { Found::No }
}

/// The statements about a manifest. Those about another digest, and what is none, do not count.
async fn signatures(registry: &Registry, image: &Image, manifest: &Digest) -> Result<Vec<Signed>, FetchError> {
    let tag = format!("sha256-{}.sig", manifest.hex());
    let place = Image { tag: Some(tag), digest: None, ..image.clone() };
    let list = match registry.manifest(&place).await {
        Ok(list) => list,
        Err(error) if error.reason == Reason::NotFound => return Ok(Vec::new()),
        Err(error) if error.reason == Reason::ManifestUnsupported => {
            return Err(FetchError::new(
                Reason::SignatureInvalid,
                format!("the signatures of {image}: {}", error.message),
            ));
        }
        Err(error) => return Err(unavailable(image, error)),
    };
    let mut found = Vec::new();
    let layers = list.content.layers.iter().filter(|layer| layer.media_type == STATEMENT_TYPE);
    for layer in layers.take(MAX_SIGNATURES) {
        found.extend(signature(registry, &place, layer, manifest).await.map_err(|error| unavailable(image, error))?);
    }
    Ok(found)
}

async fn signature(
    registry: &Registry,
    place: &Image,
    layer: &Descriptor,
    manifest: &Digest,
) -> Result<Option<Signed>, FetchError> {
    let Some(signature) = layer.annotations.get(SIGNATURE).and_then(|text| STANDARD.decode(text.trim()).ok()) else {
        return Ok(None);
    };
    if layer.size > MAX_STATEMENT {
        return Ok(None);
    }
    let mut body = Whole::new("a signature", MAX_STATEMENT);
    registry.blob(place, &layer.digest, &mut body).await?;
    let (statement, digest) = body.finish();
    Ok(if digest == layer.digest { read(statement, signature, manifest) } else { None })
}

/// A statement, if it is one about this manifest.
fn read(statement: Vec<u8>, signature: Vec<u8>, manifest: &Digest) -> Option<Signed> {
    let said: Statement = serde_json::from_slice(&statement).ok()?;
    let is_about = said.critical.kind == KIND && said.critical.image.docker_manifest_digest == *manifest;
    is_about.then(|| Signed { statement, signature, annotations: said.optional.unwrap_or_default() })
}

/// What may pass is the signatures' being away; the rest says itself what is wrong.
fn unavailable(image: &Image, error: FetchError) -> FetchError {
    let reason = if error.reason.class().is_retryable() { Reason::SignatureUnavailable } else { error.reason };
    let text = format!("the signatures of {image} cannot be had: {}", error.message);
    FetchError { retry_after: error.retry_after, ..FetchError::new(reason, text) }
}

#[cfg(test)]
mod tests {
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
    use serde_json::json;

    use super::*;

    fn sign(pair: &rcgen::KeyPair, statement: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &pair.serialize_der(), &random);
        pair.expect("a key").sign(&random, statement).expect("signs").as_ref().to_vec()
    }

    fn statement(digest: &Digest, kind: &str) -> Vec<u8> {
        json!({"critical": {"identity": {"docker-reference": "x"}, "image": {"docker-manifest-digest": digest}, "type": kind},
               "optional": {"env": "prod"}})
        .to_string()
        .into_bytes()
    }

    #[test]
    fn l21_only_the_right_key_over_the_right_digest_counts() {
        let image: Image = "example.com/a:v1".parse().expect("a name");
        let (ours, theirs) = (rcgen::KeyPair::generate().expect("a key"), rcgen::KeyPair::generate().expect("a key"));
        let (manifest, other) = (Digest::of(b"manifest"), Digest::of(b"other"));
        let good = statement(&manifest, KIND);
        let signed = |statement: Vec<u8>, pair: &rcgen::KeyPair| {
            let signature = sign(pair, &statement);
            read(statement, signature, &manifest).into_iter().collect::<Vec<_>>()
        };
        let by = |text: &str| {
            let key = ours.public_key_pem().replace('\n', "\\n");
            Requirement::from_yaml(&text.replace("KEY", &format!("\"{key}\""))).expect(text)
        };
        let ask = |signed: &[Signed], text: &str| judge(&image, signed, &by(text)).map_err(|error| error.reason);
        let ours_alone = "allOf: [{kind: pubKey, key: KEY}]";
        assert_eq!(ask(&signed(good.clone(), &ours), ours_alone), Ok(()));
        assert_eq!(ask(&signed(good.clone(), &theirs), ours_alone), Err(Reason::SignatureInvalid));
        assert_eq!(ask(&signed(statement(&other, KIND), &ours), ours_alone), Err(Reason::SignatureInvalid));
        assert_eq!(ask(&signed(statement(&manifest, "x"), &ours), ours_alone), Err(Reason::SignatureInvalid));
        assert_eq!(ask(&[], ours_alone), Err(Reason::SignatureInvalid));
        let with = |value: &str| format!("allOf: [{{kind: pubKey, key: KEY, annotations: {{env: {value}}}}}]");
        assert_eq!(ask(&signed(good.clone(), &ours), &with("prod")), Ok(()));
        assert_eq!(ask(&signed(good.clone(), &ours), &with("test")), Err(Reason::SignatureInvalid));
        let keyless = "allOf: [{kind: githubAction, owner: a}]";
        assert_eq!(
            ask(&signed(good, &ours), keyless),
            Err(Reason::SignatureUnavailable),
            "never let through unchecked"
        );
    }
}
