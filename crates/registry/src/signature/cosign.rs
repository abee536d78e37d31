//! Signatures of cosign beside an artifact: fetched, matched to the manifest, and checked.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis_contract::{Digest, Reason};
use serde::Deserialize;
use serde_json::Value;

use super::material::Layer;
use super::requirement::{Found, Verdict};
use super::{Material, PublicKey, Requirement, Signer};
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
    fetch(registry, image, manifest).await?.judge(image, manifest, requirement)
}

impl Material {
    /// Checks that it says that the manifest with this digest is signed by whom `requirement` names. No network is needed.
    ///
    /// # Errors
    /// `SignatureInvalid` when it does not, `SignatureUnavailable` when that cannot be known.
    pub fn judge(&self, image: &Image, manifest: &Digest, requirement: &Requirement) -> Result<(), FetchError> {
        let signed: Vec<Signed> =
            self.layers.iter().take(MAX_SIGNATURES).filter_map(|one| read(one, manifest)).collect();
        judge(image, &signed, requirement)
    }
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

/// The signatures beside a manifest, as they are; none where nobody signed.
///
/// # Errors
/// `SignatureInvalid` when what lies there is something else, `SignatureUnavailable` when they cannot be had now.
pub async fn fetch(registry: &Registry, image: &Image, manifest: &Digest) -> Result<Material, FetchError> {
    let tag = format!("sha256-{}.sig", manifest.hex());
    let place = Image { tag: Some(tag), digest: None, ..image.clone() };
    let list = match registry.manifest(&place).await {
        Ok(list) => list,
        Err(error) if error.reason == Reason::NotFound => return Ok(Material::default()),
        Err(error) if error.reason == Reason::ManifestUnsupported => {
            return Err(FetchError::new(
                Reason::SignatureInvalid,
                format!("the signatures of {image}: {}", error.message),
            ));
        }
        Err(error) => return Err(unavailable(image, error)),
    };
    let mut layers = Vec::new();
    for layer in list.content.layers.iter().filter(|layer| layer.media_type == STATEMENT_TYPE).take(MAX_SIGNATURES) {
        layers.extend(statement(registry, &place, layer).await.map_err(|error| unavailable(image, error))?);
    }
    Ok(Material { layers })
}

/// One of them; nothing where it is no signature.
async fn statement(registry: &Registry, place: &Image, layer: &Descriptor) -> Result<Option<Layer>, FetchError> {
    if !layer.annotations.contains_key(SIGNATURE) || layer.size > MAX_STATEMENT {
        return Ok(None);
    }
    let mut receive = Whole::new("a signature", MAX_STATEMENT);
    registry.blob(place, &layer.digest, &mut receive).await?;
    let (body, digest) = receive.finish();
    let annotations = layer.annotations.clone();
    Ok((digest == layer.digest).then(|| Layer { media_type: layer.media_type.clone(), annotations, body }))
}

/// A statement and its signature, if it is one about this manifest. Those about another digest, and what is none, do not count.
fn read(layer: &Layer, manifest: &Digest) -> Option<Signed> {
    if layer.media_type != STATEMENT_TYPE || layer.body.len() as u64 > MAX_STATEMENT {
        return None;
    }
    let signature = STANDARD.decode(layer.annotations.get(SIGNATURE)?.trim()).ok()?;
    let said: Statement = serde_json::from_slice(&layer.body).ok()?;
    let is_about = said.critical.kind == KIND && said.critical.image.docker_manifest_digest == *manifest;
    let (statement, annotations) = (layer.body.clone(), said.optional.unwrap_or_default());
    is_about.then_some(Signed { statement, signature, annotations })
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
        let signed = |body: Vec<u8>, pair: &rcgen::KeyPair| {
            let annotations = [(SIGNATURE.to_owned(), STANDARD.encode(sign(pair, &body)))].into();
            Material { layers: vec![Layer { media_type: STATEMENT_TYPE.to_owned(), annotations, body }] }
        };
        let by = |text: &str| {
            let key = ours.public_key_pem().replace('\n', "\\n");
            Requirement::from_yaml(&text.replace("KEY", &format!("\"{key}\""))).expect(text)
        };
        let ask =
            |signed: &Material, text: &str| signed.judge(&image, &manifest, &by(text)).map_err(|error| error.reason);
        let ours_alone = "allOf: [{kind: pubKey, key: KEY}]";
        assert_eq!(ask(&signed(good.clone(), &ours), ours_alone), Ok(()));
        assert_eq!(ask(&signed(good.clone(), &theirs), ours_alone), Err(Reason::SignatureInvalid));
        assert_eq!(ask(&signed(statement(&other, KIND), &ours), ours_alone), Err(Reason::SignatureInvalid));
        assert_eq!(ask(&signed(statement(&manifest, "x"), &ours), ours_alone), Err(Reason::SignatureInvalid));
        assert_eq!(ask(&Material::default(), ours_alone), Err(Reason::SignatureInvalid));
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
