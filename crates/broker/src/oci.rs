//! `oci/*`: digests, manifests and configurations of images, and their signatures.

mod manifest;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use portcullis_contract::{Capability, Digest};
use portcullis_registry::Whole;
use portcullis_registry::oci::{Image, Registry};
use portcullis_registry::signature::{self, Requirement, Signer, Subject};
use serde::Deserialize;
use serde_json::{Value, json};

use self::manifest::{Manifest, architecture, of_this_platform, reply};
use crate::ProvideError;
use crate::cache::Answer;
use crate::certificate::Certificate;
use crate::share::Askers;
use crate::work::Work;

/// The largest configuration of an image, in bytes.
const MAX_CONFIG: u64 = 4 << 20;
/// The most signers of one call.
const MAX_SIGNERS: usize = 100;

/// Images in registries.
pub(crate) struct Images {
    registry: Registry,
    trust_root: Option<PathBuf>,
    work: Arc<Work>,
}

/// What a guest wants to have verified, in the form of version 2.
#[derive(Debug, Deserialize)]
#[serde(tag = "type")]
enum Verify {
    #[serde(rename = "SigstorePubKeyVerify")]
    PubKey(PubKeys),
    #[serde(rename = "SigstoreKeylessVerify")]
    Keyless(Identities),
    #[serde(rename = "SigstoreKeylessPrefixVerify")]
    KeylessPrefix {
        image: String,
        keyless_prefix: Vec<IdentityPrefix>,
        #[serde(default)]
        annotations: Option<BTreeMap<String, String>>,
    },
    #[serde(rename = "SigstoreGithubActionsVerify")]
    GithubActions {
        image: String,
        owner: String,
        #[serde(default)]
        repo: Option<String>,
        #[serde(default)]
        annotations: Option<BTreeMap<String, String>>,
    },
    #[serde(rename = "SigstoreCertificateVerify")]
    Certificate {
        image: String,
        certificate: Vec<u8>,
        #[serde(default)]
        certificate_chain: Option<Vec<Vec<u8>>>,
        require_rekor_bundle: bool,
        #[serde(default)]
        annotations: Option<BTreeMap<String, String>>,
    },
}

/// The same in the form of version 1, which has the variant for a key: `{"SigstorePubKeyVerify": {…}}`.
#[derive(Deserialize)]
enum FirstVerify {
    #[serde(rename = "SigstorePubKeyVerify")]
    PubKey(PubKeys),
    #[serde(rename = "SigstoreKeylessVerify")]
    Keyless(Identities),
}

/// An image that these keys must have signed.
#[derive(Debug, Deserialize)]
struct PubKeys {
    image: String,
    pub_keys: Vec<String>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

/// An image that these identities must have signed.
#[derive(Debug, Deserialize)]
struct Identities {
    image: String,
    keyless: Vec<Identity>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

/// An identity of a signer.
#[derive(Debug, Deserialize)]
struct Identity {
    issuer: String,
    subject: String,
}

/// The beginning of a signer's identity.
#[derive(Debug, Deserialize)]
struct IdentityPrefix {
    issuer: String,
    url_prefix: String,
}

impl Verify {
    /// Parses either version.
    fn parse(capability: Capability, payload: &[u8]) -> Result<Self, ProvideError> {
        let parsed = match capability {
            Capability::OciVerifyV2 => serde_json::from_slice(payload),
            _ => serde_json::from_slice(payload).map(|first| match first {
                FirstVerify::PubKey(keys) => Self::PubKey(keys),
                FirstVerify::Keyless(identities) => Self::Keyless(identities),
            }),
        };
        parsed.map_err(ProvideError::failed)
    }

    /// The name of the image.
    fn image(&self) -> &str {
        match self {
            Self::PubKey(PubKeys { image, .. })
            | Self::Keyless(Identities { image, .. })
            | Self::KeylessPrefix { image, .. }
            | Self::GithubActions { image, .. }
            | Self::Certificate { image, .. } => image,
        }
    }

    /// The image, and the signers who must all have signed it.
    fn wanted(self) -> Result<(String, Vec<Signer>), ProvideError> {
        let some = |signers: Vec<Signer>, missing: &str| match signers.len() {
            0 => Err(ProvideError::failed(missing)),
            1..=MAX_SIGNERS => Ok(signers),
            count => Err(ProvideError::failed(format!("{count} signers are named, the limit is {MAX_SIGNERS}"))),
        };
        let issuer = |issuer: String, subject: Subject, annotations: &BTreeMap<String, String>| Signer::GenericIssuer {
            issuer,
            subject,
            annotations: annotations.clone(),
        };
        match self {
            Self::PubKey(PubKeys { image, pub_keys, annotations }) => {
                let annotations = annotations.unwrap_or_default();
                let key = |key| Signer::PubKey { owner: None, key, annotations: annotations.clone() };
                Ok((image, some(pub_keys.into_iter().map(key).collect(), "Must provide at least one pub key")?))
            }
            Self::Keyless(Identities { image, keyless, annotations }) => {
                let annotations = annotations.unwrap_or_default();
                let of = |known: Identity| issuer(known.issuer, Subject::Equal(known.subject), &annotations);
                Ok((image, some(keyless.into_iter().map(of).collect(), "Must provide keyless info")?))
            }
            Self::KeylessPrefix { image, keyless_prefix, annotations } => {
                let annotations = annotations.unwrap_or_default();
                let of =
                    |known: IdentityPrefix| issuer(known.issuer, Subject::UrlPrefix(known.url_prefix), &annotations);
                Ok((image, some(keyless_prefix.into_iter().map(of).collect(), "Must provide keyless info")?))
            }
            Self::GithubActions { owner, .. } if owner.is_empty() => {
                Err(ProvideError::failed("Must provide owner info"))
            }
            Self::GithubActions { image, owner, repo, annotations } => {
                Ok((image, vec![Signer::GithubAction { owner, repo, annotations: annotations.unwrap_or_default() }]))
            }
            Self::Certificate { image, certificate, certificate_chain, require_rekor_bundle, annotations } => {
                let checked = Certificate::check(&certificate, certificate_chain.as_deref(), Timestamp::now())?;
                let Certificate { key, not_before, not_after } = checked;
                let annotations = annotations.unwrap_or_default();
                let must_be_logged = require_rekor_bundle;
                Ok((image, vec![Signer::Certificate { key, not_before, not_after, must_be_logged, annotations }]))
            }
        }
    }
}

impl Images {
    /// Images of registries, read with the same client as modules.
    pub(crate) fn new(registry: Registry, trust_root: Option<PathBuf>, work: Arc<Work>) -> Self {
        Self { registry, trust_root, work }
    }

    /// Answers a call of `oci/*`.
    ///
    /// # Errors
    /// When the call cannot be parsed, or the registry does not answer it; a missing signature is an error too.
    pub(crate) async fn provide(&self, askers: &Askers, capability: Capability, payload: &[u8]) -> Answer {
        let reply = match capability {
            Capability::OciVerifyV1 | Capability::OciVerifyV2 => {
                self.verify(askers, Verify::parse(capability, payload)?).await?
            }
            Capability::OciManifestDigest => {
                let (_, digest) = self.manifest(&image(payload)?).await?;
                json!({ "digest": digest })
            }
            Capability::OciManifest => {
                let (bytes, _) = self.manifest(&image(payload)?).await?;
                return Ok(bytes);
            }
            _ => return self.manifest_and_config(image(payload)?).await,
        };
        Ok(Bytes::from(reply.to_string()))
    }

    async fn verify(&self, askers: &Askers, verify: Verify) -> Result<Value, ProvideError> {
        let read = move || {
            let (name, signers) = verify.wanted()?;
            Ok((parse(&name)?, Requirement::all_of(signers).map_err(ProvideError::failed)?))
        };
        let (image, requirement) = self.work.run(askers, read).await?;
        let (_, digest) = self.manifest(&image).await?;
        let fetched = signature::fetch(&self.registry, &image, &digest).await;
        let signatures = fetched.map_err(|error| ProvideError::failed(error.message))?;
        let trust_root = self.trust_root.clone();
        let judge = move || {
            let judged = signatures.judge(&image, &digest, &requirement, trust_root.as_deref());
            judged.map(|_| digest).map_err(|error| ProvideError::failed(error.message))
        };
        let digest = self.work.run(askers, judge).await?;
        Ok(json!({ "is_trusted": true, "digest": digest }))
    }

    /// The manifest of an image, or its index, which must be JSON.
    async fn manifest(&self, image: &Image) -> Result<(Bytes, Digest), ProvideError> {
        let found = self.registry.web().in_time(&image.host, self.registry.manifest_bytes(image)).await;
        let (bytes, digest) = found.map_err(|error| ProvideError::failed(error.message))?;
        match serde_json::from_slice::<serde::de::IgnoredAny>(&bytes) {
            Ok(_) => Ok((bytes.into(), digest)),
            Err(error) => Err(ProvideError::failed(format!("the manifest of {image} is not JSON: {error}"))),
        }
    }

    async fn manifest_and_config(&self, mut image: Image) -> Answer {
        let (mut manifest, mut digest) = self.manifest(&image).await?;
        if let Some(platforms) = Manifest::parse(&manifest).map_err(ProvideError::failed)?.manifests {
            image.digest = Some(of_this_platform(platforms).ok_or_else(|| {
                ProvideError::failed(format!("the index of {image} has no image for linux/{}", architecture()))
            })?);
            (manifest, digest) = self.manifest(&image).await?;
        }
        let named = Manifest::parse(&manifest).map_err(ProvideError::failed)?.config();
        let named =
            named.ok_or_else(|| ProvideError::failed(format!("the manifest of {image} names no configuration")))?;
        let mut body = Whole::new("the configuration", MAX_CONFIG);
        let fetched = self.registry.web().in_time(&image.host, self.registry.blob(&image, &named, &mut body)).await;
        fetched.map_err(|error| ProvideError::failed(error.message))?;
        let (config, found) = body.finish();
        if found != named {
            let text = format!("{} gave a configuration with the digest {found} for {named}", image.host);
            return Err(ProvideError::failed(text));
        }
        reply(&manifest, digest, &config).map_err(ProvideError::failed)
    }
}

/// The registry that a call asks; `None` for a payload that cannot be parsed, which asks none. It is parsed as for the answer, so that no
/// payload is in the share of one registry and asks another, and a second time: a call that waits for its share keeps the payload alone.
pub(crate) fn registry(capability: Capability, payload: &[u8]) -> Option<String> {
    let image = match capability {
        Capability::OciVerifyV1 | Capability::OciVerifyV2 => parse(Verify::parse(capability, payload).ok()?.image()),
        _ => image(payload),
    };
    Some(image.ok()?.api_host().to_owned())
}

/// The image that a payload names, which is a JSON string.
fn image(payload: &[u8]) -> Result<Image, ProvideError> {
    parse(&serde_json::from_slice::<String>(payload).map_err(ProvideError::failed)?)
}

fn parse(name: &str) -> Result<Image, ProvideError> {
    name.parse().map_err(|error| ProvideError::failed(format!("invalid reference {name:?}: {error}")))
}

#[cfg(test)]
mod tests;
