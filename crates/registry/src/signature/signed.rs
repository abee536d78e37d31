//! One signature about a manifest: what was signed, and the signer as far as that is known.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

use serde_json::Value;

use super::identity::Identity;
use super::legacy::Promise;
use super::refusal::Refusal;
use super::{PublicKey, Signer};

/// A statement about the manifest in question, with its signature.
#[derive(Debug)]
pub(super) struct Signed {
    /// The signed bytes.
    pub message: Vec<u8>,
    /// The signature over them.
    pub signature: Vec<u8>,
    /// The annotations of the statement.
    pub annotations: BTreeMap<String, Value>,
    /// The signer's certificate.
    pub certificate: Certificate,
    /// Its entry in a transparency log.
    pub entry: Entry,
}

/// What is known of a signature's entry in a transparency log.
#[derive(Debug)]
pub(super) enum Entry {
    /// There is no entry, or no trust root is configured that names the logs to trust.
    None,
    /// The signature is in a Sigstore bundle, whose log entry is not read if the policy names the certificate.
    InBundle,
    /// There is an entry, but it does not count, for this reason.
    Refused(Refusal),
    /// The promise of a log of the trust root.
    Promised(Promise),
}

/// What a signature's certificate proves.
#[derive(Debug)]
pub(super) enum Certificate {
    /// There is no certificate, or no trust root to check it with.
    None,
    /// The certificate does not count, for this reason.
    Refused(Refusal),
    /// The identity of the signer.
    Proved(Identity),
}

/// The evidence by which a signer is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evidence {
    /// The signature is by the public key of the requirement.
    Key,
    /// The signature is by a certificate that a trust root vouches for.
    Certificate(Identity),
}

/// A required signer, and the evidence that this signer has signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// The required signer.
    pub signer: String,
    /// The evidence.
    pub evidence: Evidence,
}

impl Certificate {
    /// The certificate, from the outcome of a check.
    pub(super) fn of(checked: Result<Identity, Refusal>) -> Self {
        checked.map_or_else(Self::Refused, Self::Proved)
    }
}

impl Signed {
    /// Whether `signer` has signed this, with the required annotations; `None` if not.
    pub(super) fn is_by(&self, signer: &Signer) -> Option<Evidence> {
        if !self.says_what_is_required(signer) {
            return None;
        }
        match (signer, &self.certificate) {
            (Signer::PubKey { key, .. }, _) => {
                let key = PublicKey::from_pem(key).ok()?;
                key.has_signed(&self.message, &self.signature).then_some(Evidence::Key)
            }
            (Signer::Certificate { key, not_before, not_after, must_be_logged, .. }, _) => {
                let checked = self.check_key(key, *not_before..=*not_after, *must_be_logged);
                checked.is_ok().then_some(Evidence::Key)
            }
            (_, Certificate::Proved(identity)) => identity.is(signer).then(|| Evidence::Certificate(identity.clone())),
            (_, Certificate::None | Certificate::Refused(_)) => None,
        }
    }

    /// Why this does not count for a signer whose certificate was checked before. `None` for other signers, whose
    /// refusals are in [`Certificate::Refused`], and if only the annotations are missing.
    pub(super) fn refusal(&self, signer: &Signer) -> Option<Refusal> {
        let Signer::Certificate { key, not_before, not_after, must_be_logged, .. } = signer else { return None };
        if !self.says_what_is_required(signer) {
            return None;
        }
        self.check_key(key, *not_before..=*not_after, *must_be_logged).err()
    }

    /// Whether this has the signed annotations that `signer` requires.
    fn says_what_is_required(&self, signer: &Signer) -> bool {
        let says = |(name, value): (&String, &String)| {
            self.annotations.get(name).and_then(Value::as_str).is_some_and(|said| said == value)
        };
        signer.annotations().iter().all(says)
    }

    /// Checks that the key of a certificate has signed this, and that this was logged within the certificate's
    /// validity. If there is an entry, it must be right, whether one is required or not.
    fn check_key(&self, key: &str, validity: RangeInclusive<i64>, must_be_logged: bool) -> Result<(), Refusal> {
        let key = PublicKey::from_pem(key).map_err(|_| Refusal::Lacks("the certificate's key cannot be used"))?;
        if !key.has_signed(&self.message, &self.signature) {
            return Err(Refusal::Lacks("it is not by the key of the certificate"));
        }
        match &self.entry {
            Entry::None if must_be_logged => Err(Refusal::NotLogged),
            Entry::InBundle if must_be_logged => Err(Refusal::InBundle),
            Entry::None | Entry::InBundle => Ok(()),
            Entry::Refused(why) => Err(why.clone()),
            Entry::Promised(promise) if promise.key != key => {
                Err(Refusal::Lacks("its log entry is about another certificate"))
            }
            Entry::Promised(promise) if !validity.contains(&promise.time) => {
                Err(Refusal::Lacks("it was not logged within the validity of the certificate"))
            }
            Entry::Promised(_) => Ok(()),
        }
    }
}

impl fmt::Display for Signed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.certificate {
            Certificate::None => f.write_str("one by a key"),
            Certificate::Refused(why) => write!(f, "one that does not count: {why}"),
            Certificate::Proved(identity) => write!(f, "one of {identity}"),
        }
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key => f.write_str("with this key"),
            Self::Certificate(identity) => {
                let time = identity.signed_at;
                write!(f, "{identity}, by a certificate that the trust root vouches for, logged at {time:.0}")
            }
        }
    }
}
