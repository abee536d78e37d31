//! `oci/*`: digests, manifests and configurations of images, and their signatures.

mod manifest;
mod memory;

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
use self::memory::{QuestionMemory, Room};
use crate::ProvideError;
use crate::cache::Answer;
use crate::certificate::Certificate;
use crate::share::Askers;
use crate::work::Work;

/// The largest configuration of an image, in bytes.
const MAX_CONFIG: u64 = 4 << 20;
/// The most signers of one call.
const MAX_SIGNERS: usize = 100;
/// The most annotations that one call requires of each signature. Each signer gets a copy of them.
const MAX_ANNOTATIONS: usize = 64;
/// The most bytes of their names and values.
const MAX_ANNOTATION_BYTES: usize = 16 << 10;

/// Images in registries.
pub(crate) struct Images {
    registry: Registry,
    trust_root: Option<PathBuf>,
    work: Arc<Work>,
    room: Arc<Room>,
}

/// Where one question is asked.
struct Source {
    /// The client, which counts what the question keeps.
    registry: Registry,
    memory: Arc<QuestionMemory>,
    image: Image,
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
        // Before each of them gets its copy of the annotations.
        let count = |signers: usize, missing: &str| match signers {
            0 => Err(ProvideError::failed(missing)),
            1..=MAX_SIGNERS => Ok(()),
            count => Err(ProvideError::failed(format!("{count} signers are named, the limit is {MAX_SIGNERS}"))),
        };
        let issuer = |issuer: String, subject: Subject, annotations: &BTreeMap<String, String>| Signer::GenericIssuer {
            issuer,
            subject,
            annotations: annotations.clone(),
        };
        match self {
            Self::PubKey(PubKeys { image, pub_keys, annotations }) => {
                count(pub_keys.len(), "Must provide at least one pub key")?;
                let annotations = required(annotations)?;
                let key = |key| Signer::PubKey { owner: None, key, annotations: annotations.clone() };
                Ok((image, pub_keys.into_iter().map(key).collect()))
            }
            Self::Keyless(Identities { image, keyless, annotations }) => {
                count(keyless.len(), "Must provide keyless info")?;
                let annotations = required(annotations)?;
                let of = |known: Identity| issuer(known.issuer, Subject::Equal(known.subject), &annotations);
                Ok((image, keyless.into_iter().map(of).collect()))
            }
            Self::KeylessPrefix { image, keyless_prefix, annotations } => {
                count(keyless_prefix.len(), "Must provide keyless info")?;
                let annotations = required(annotations)?;
                let of =
                    |known: IdentityPrefix| issuer(known.issuer, Subject::UrlPrefix(known.url_prefix), &annotations);
                Ok((image, keyless_prefix.into_iter().map(of).collect()))
            }
            Self::GithubActions { owner, .. } if owner.is_empty() => {
                Err(ProvideError::failed("Must provide owner info"))
            }
            Self::GithubActions { image, owner, repo, annotations } => {
                Ok((image, vec![Signer::GithubAction { owner, repo, annotations: required(annotations)? }]))
            }
            Self::Certificate { image, certificate, certificate_chain, require_rekor_bundle, annotations } => {
                let annotations = required(annotations)?;
                let checked = Certificate::check(&certificate, certificate_chain.as_deref(), Timestamp::now())?;
                let Certificate { key, not_before, not_after } = checked;
                let must_be_logged = require_rekor_bundle;
                Ok((image, vec![Signer::Certificate { key, not_before, not_after, must_be_logged, annotations }]))
            }
        }
    }
}

impl Images {
    /// Images of registries, read with the same client as modules.
    pub(crate) fn new(registry: Registry, trust_root: Option<PathBuf>, work: Arc<Work>) -> Self {
        Self { registry, trust_root, work, room: Arc::default() }
    }

    /// Answers a call of `oci/*`.
    ///
    /// # Errors
    /// When the call cannot be parsed, or the registry does not answer it; a missing image or signature is an error too, but
    /// [`ProvideError::Negative`].
    pub(crate) async fn provide(&self, askers: &Askers, capability: Capability, payload: &Bytes) -> Answer {
        let reply = match capability {
            Capability::OciVerifyV1 | Capability::OciVerifyV2 => self.verify(askers, capability, payload).await?,
            Capability::OciManifestDigest => {
                let (_, digest) = self.source(askers, image(payload)?).manifest().await?;
                json!({ "digest": digest })
            }
            Capability::OciManifest => {
                let (bytes, _) = self.source(askers, image(payload)?).manifest().await?;
                return Ok(bytes);
            }
            _ => return self.source(askers, image(payload)?).manifest_and_config().await,
        };
        Ok(Bytes::from(reply.to_string()))
    }

    /// Where policies ask about an image.
    fn source(&self, askers: &Askers, image: Image) -> Source {
        let memory = Arc::new(QuestionMemory::new(&self.room, askers, image.api_host()));
        Source { registry: self.registry.within(memory.clone()), memory, image }
    }

    /// Verifies signatures. The payload is decoded in the turn of each check, and again for the second one: decoded it may take many times its
    /// length, so few are decoded at the same time, and none while a registry is asked, which may be slow.
    async fn verify(&self, askers: &Askers, capability: Capability, payload: &Bytes) -> Result<Value, ProvideError> {
        let asked = payload.clone();
        let image = self.work.run(askers, move || Ok(decode(capability, &asked)?.0)).await?;
        let source = self.source(askers, image);
        let (_, digest) = source.manifest().await?;
        let fetched = signature::fetch(&source.registry, &source.image, &digest).await;
        let signatures = fetched.map_err(|error| source.memory.failed(error))?;
        let (asked, trust_root) = (payload.clone(), self.trust_root.clone());
        let judge = move || {
            // It counts what the signatures take, also if nobody waits for the result any longer.
            let Source { image, memory, .. } = source;
            let (_, requirement) = decode(capability, &asked)?;
            let judged = signatures.judge(&image, &digest, &requirement, trust_root.as_deref());
            judged.map(|_| digest).map_err(|error| memory.failed(error))
        };
        let digest = self.work.run(askers, judge).await?;
        Ok(json!({ "is_trusted": true, "digest": digest }))
    }
}

impl Source {
    /// The manifest of the image, or its index, which must be JSON.
    async fn manifest(&self) -> Result<(Bytes, Digest), ProvideError> {
        let image = &self.image;
        let found = self.registry.web().in_time(&image.host, self.registry.manifest_bytes(image)).await;
        let (bytes, digest) = found.map_err(|error| self.memory.failed(error))?;
        match serde_json::from_slice::<serde::de::IgnoredAny>(&bytes) {
            Ok(_) => Ok((bytes.into(), digest)),
            Err(error) => Err(ProvideError::failed(format!("the manifest of {image} is not JSON: {error}"))),
        }
    }

    async fn manifest_and_config(mut self) -> Answer {
        let (mut manifest, mut digest) = self.manifest().await?;
        if let Some(platforms) = Manifest::parse(&manifest).map_err(ProvideError::failed)?.manifests {
            self.image.digest = Some(of_this_platform(platforms).ok_or_else(|| {
                ProvideError::negative(format!("the index of {} has no image for linux/{}", self.image, architecture()))
            })?);
            (manifest, digest) = self.manifest().await?;
        }
        let image = &self.image;
        let named = Manifest::parse(&manifest).map_err(ProvideError::failed)?.config();
        let named =
            named.ok_or_else(|| ProvideError::negative(format!("the manifest of {image} names no configuration")))?;
        let mut body = Whole::new("the configuration", MAX_CONFIG).within(Some(self.memory.clone()));
        let fetched = self.registry.web().in_time(&image.host, self.registry.blob(image, &named, &mut body)).await;
        fetched.map_err(|error| self.memory.failed(error))?;
        let (config, found) = body.finish();
        if found != named {
            let text = format!("{} gave a configuration with the digest {found} for {named}", image.host);
            return Err(ProvideError::failed(text));
        }
        reply(&manifest, digest, &config).map_err(ProvideError::failed)
    }
}

/// The image that a payload names, and what must have signed it.
fn decode(capability: Capability, payload: &[u8]) -> Result<(Image, Requirement), ProvideError> {
    let (name, signers) = Verify::parse(capability, payload)?.wanted()?;
    Ok((parse(&name)?, Requirement::all_of(signers).map_err(ProvideError::failed)?))
}

/// The annotations that signatures must have, if they are not too many.
fn required(annotations: Option<BTreeMap<String, String>>) -> Result<BTreeMap<String, String>, ProvideError> {
    let annotations = annotations.unwrap_or_default();
    let bytes: usize = annotations.iter().map(|(name, value)| name.len() + value.len()).sum();
    match (annotations.len(), bytes) {
        (0..=MAX_ANNOTATIONS, 0..=MAX_ANNOTATION_BYTES) => Ok(annotations),
        (0..=MAX_ANNOTATIONS, bytes) => {
            let text =
                format!("the annotations that are required have {bytes} bytes, the limit is {MAX_ANNOTATION_BYTES}");
            Err(ProvideError::failed(text))
        }
        (count, _) => {
            let text = format!("{count} annotations are required, the limit is {MAX_ANNOTATIONS}");
            Err(ProvideError::failed(text))
        }
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
