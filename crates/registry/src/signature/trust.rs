//! The trust root: which authorities issue certificates to signers, and which logs attest the time of signatures.
//!
//! It is a file (`trusted_root.json` of Sigstore). Nothing is fetched over the network: what is not in the file is not
//! trusted.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use portcullis_contract::Digest;
use portcullis_process::files;
use serde_json::Value;
use sigstore_verify::crypto::SubjectAltName;
use sigstore_verify::trust_root::TrustedRoot;
use sigstore_verify::types::{Artifact, Bundle};
use sigstore_verify::{VerificationPolicy, Verifier};

use super::identity::{Identity, repository};
use super::refusal::Refusal;
use super::{PublicKey, crypto, explain};

/// Largest file, in bytes.
const LARGEST: u64 = 1 << 20;
/// Most certificates with one signature: the signer's, a root, and as many in between as webpki follows. That is one more than
/// `portcullis_certificate::MAX_CHAIN`, which leaves out the certificate that a chain is for.
pub(super) const MOST_CERTIFICATES: usize = 8;
/// Most log entries, and most timestamps, with one signature. Each may cost the check of a signature.
const MOST_ENTRIES: usize = 8;

/// The authorities and logs that are trusted.
pub struct TrustRoot {
    verifier: Verifier,
    logs: Vec<Log>,
}

/// A transparency log.
#[derive(Debug)]
struct Log {
    /// The digest of its key.
    id: Digest,
    key: PublicKey,
    /// When its key becomes valid, in seconds since 1970.
    from: i64,
    /// When its key expires, in seconds since 1970.
    until: i64,
}

impl Log {
    /// Reads a log of a trust root; `None` if its key is of an unknown kind.
    fn read(log: &Value) -> Option<Self> {
        let key = &log["publicKey"];
        let der = STANDARD.decode(key["rawBytes"].as_str()?).ok()?;
        // A log with a time that cannot be parsed is not trusted.
        let time = |text: &Value| Some(text.as_str()?.parse::<Timestamp>().ok()?.as_second());
        let from = time(&key["validFor"]["start"])?;
        let until = match &key["validFor"]["end"] {
            Value::Null => i64::MAX,
            end => time(end)?,
        };
        Some(Self { id: Digest::of(&der), key: PublicKey::from_der(&der).ok()?, from, until })
    }
}

/// A trust root that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TrustRootError(String);

/// Why there is no trust root to check with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoTrustRoot {
    /// None is needed, or none is configured.
    #[error("{0}")]
    Absent(&'static str),
    /// The one that is configured cannot be used.
    #[error("the trust root cannot be used: {0}")]
    Unusable(TrustRootError),
}

/// What proves that a signature is in a transparency log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Logged {
    /// The log's signed promise, the only proof that cosign keeps beside a signature with a tag of its own.
    Promise,
    /// A proof of inclusion in a tree whose head the log has signed.
    Included,
}

impl TrustRoot {
    /// Reads a file: a `trusted_root.json`, or a client's trust configuration that holds one.
    ///
    /// # Errors
    /// When it cannot be read, is malformed, or has nothing to check certificates with.
    pub fn read(path: &Path) -> Result<Self, TrustRootError> {
        let failed = |problem: &str| TrustRootError(format!("{}: {problem}", path.display()));
        // Mounted files are symbolic links.
        let real = path.canonicalize().map_err(|error| failed(&error.kind().to_string()))?;
        let bytes = files::read_regular(&real, LARGEST).map_err(|error| failed(&error.source.kind().to_string()))?;
        Self::from_json(&bytes).map_err(|TrustRootError(problem)| failed(&problem))
    }

    /// Parses the content of such a file.
    ///
    /// # Errors
    /// When it is malformed, or has nothing to check certificates with.
    pub fn from_json(json: &[u8]) -> Result<Self, TrustRootError> {
        crypto::install();
        let form = |error: &dyn std::error::Error| {
            let cause = portcullis_contract::clean(&error.to_string(), 300);
            TrustRootError(format!("it is not a trust root of Sigstore (trusted_root.json): {cause}"))
        };
        let mut value: Value = serde_json::from_slice(json).map_err(|error| form(&error))?;
        if let Some(inner) = value.get_mut("trustedRoot") {
            value = inner.take();
        }
        let logs = value["tlogs"].as_array().into_iter().flatten().filter_map(Log::read).collect();
        let root: TrustedRoot = serde_json::from_value(value).map_err(|error| form(&error))?;
        for (what, is_empty) in [
            ("certificateAuthorities", root.certificate_authorities.is_empty()),
            ("tlogs", root.tlogs.is_empty()),
            ("ctlogs", root.ctlogs.is_empty()),
        ] {
            if is_empty {
                let text = format!("it has no {what}, so that no certificate could be checked");
                return Err(TrustRootError(text));
            }
        }
        let verifier = Verifier::new(&root).map_err(|error| form(&error))?;
        Ok(Self { verifier, logs })
    }

    /// The key of the log with this id, if it is valid at a time in seconds since 1970.
    pub(super) fn log(&self, id: &[u8], time: i64) -> Option<&PublicKey> {
        let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let is_it = |log: &&Log| log.id.hex() == hex && (log.from..=log.until).contains(&time);
        self.logs.iter().find(is_it).map(|log| &log.key)
    }

    /// Checks a signature and all that came with it: the certificate's chain to an authority of the root at the time of the
    /// signature, its purpose, its entry in a certificate transparency log, the log's entry about this signature, and the
    /// signature itself. Returns the signer's identity, or why it is not known.
    pub(super) fn check<'a>(
        &self,
        artifact: impl Into<Artifact<'a>>,
        bundle: &Bundle,
        logged: Logged,
    ) -> Result<Identity, Refusal> {
        let material = &bundle.verification_material;
        let timestamps = material.timestamp_verification_data.rfc3161_timestamps.len();
        if material.tlog_entries.len() > MOST_ENTRIES || timestamps > MOST_ENTRIES {
            return Err(Refusal::ManyEntries(MOST_ENTRIES));
        }
        // The caller compares the identity with each signer of a requirement.
        let policy = VerificationPolicy::any_identity();
        let policy = match logged {
            Logged::Included => policy,
            // The promise is still checked: without one that a log of the root has signed, no time is known, and the
            // certificate does not count.
            Logged::Promise => policy.skip_tlog_unsafe(),
        };
        let result = self.verifier.verify(artifact, bundle, &policy).map_err(|error| explain::refusal(&error))?;
        // The policy above demands both; a verifier that skipped one must not be believed.
        if !result.certificate_verified() || !result.sct_verified() {
            return Err(Refusal::Unchecked);
        }
        let certificate = result.certificate().ok_or(Refusal::Lacks("it has no certificate"))?;
        let subject =
            result.identity().ok_or(Refusal::Lacks("its certificate names neither a mail address nor a URI"))?;
        let claims = &certificate.ci_claims;
        let signed_at =
            result.verified_timestamps().iter().min().ok_or(Refusal::Lacks("nothing says when it was signed"))?;
        Ok(Identity {
            issuer: result
                .issuer()
                .ok_or(Refusal::Lacks("its certificate does not say who issued the identity"))?
                .to_owned(),
            subject: subject.as_str().to_owned(),
            is_uri: matches!(subject, SubjectAltName::Uri(_)),
            repository: repository(
                claims.deprecated_github.workflow_repository.as_deref(),
                claims.source_repository_uri.as_deref(),
            ),
            signed_at: *signed_at,
        })
    }
}
