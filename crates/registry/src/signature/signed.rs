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
    /// The bytes that are signed.
    pub message: Vec<u8>,
    /// The signature over them.
    pub signature: Vec<u8>,
    /// What the statement says besides.
    pub annotations: BTreeMap<String, Value>,
    /// The signer's certificate.
    pub certificate: Certificate,
    /// What a transparency log says of it.
    pub entry: Entry,
}

/// What is known of a signature's entry in a transparency log.
#[derive(Debug)]
pub(super) enum Entry {
    /// There is no entry, or no trust root is configured that could tell which logs count.
    None,
    /// The signature is in a Sigstore bundle, whose entry is not read for a certificate of one's own.
    InBundle,
    /// There is an entry that does not count, for this reason.
    Refused(Refusal),
    /// What a log of the trust root promises.
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

/// How the signer is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evidence {
    /// The signature is by the public key of the requirement.
    Key,
    /// The signature is by a certificate that a trust root vouches for.
    Certificate(Identity),
}

/// A required signer, and how it is known that this one has signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// The required signer.
    pub signer: String,
    /// How it is known.
    pub evidence: Evidence,
}

impl Certificate {
    /// From the outcome of a check.
    pub(super) fn of(checked: Result<Identity, Refusal>) -> Self {
        checked.map_or_else(Self::Refused, Self::Proved)
    }
}

impl Signed {
    /// Whether `signer` has signed this, with the required annotations.
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

    /// Why this does not count for a signer whose certificate was checked before. Nothing for other signers, whose
    /// refusals are in [`Certificate::Refused`], and where the annotations are what is missing.
    pub(super) fn refusal(&self, signer: &Signer) -> Option<Refusal> {
        let Signer::Certificate { key, not_before, not_after, must_be_logged, .. } = signer else { return None };
        if !self.says_what_is_required(signer) {
            return None;
        }
        self.check_key(key, *not_before..=*not_after, *must_be_logged).err()
    }

    /// Whether the annotations are there that `signer` must have signed too.
    fn says_what_is_required(&self, signer: &Signer) -> bool {
        let says = |(name, value): (&String, &String)| {
            self.annotations.get(name).and_then(Value::as_str).is_some_and(|said| said == value)
        };
        signer.annotations().iter().all(says)
    }

    /// Checks that the key of a certificate has signed this, and that this was logged within the certificate's
    /// validity. An entry that is there must be right, whether one is required or not.
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
