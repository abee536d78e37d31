//! One signature about a manifest: what was signed, and the signer as far as that is known.

use std::collections::BTreeMap;
use std::fmt;

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
    /// What a transparency log of the trust root promises, if one does.
    pub logged: Option<Promise>,
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
        let says = |(name, value): (&String, &String)| {
            self.annotations.get(name).and_then(Value::as_str).is_some_and(|said| said == value)
        };
        if !signer.annotations().iter().all(says) {
            return None;
        }
        match (signer, &self.certificate) {
            (Signer::PubKey { key, .. }, _) => {
                let key = PublicKey::from_pem(key).ok()?;
                key.has_signed(&self.message, &self.signature).then_some(Evidence::Key)
            }
            (Signer::Certificate { key, not_before, not_after, must_be_logged, .. }, _) => {
                let key = PublicKey::from_pem(key).ok()?;
                let is_in_time = match &self.logged {
                    Some(logged) => logged.key == key && (*not_before..=*not_after).contains(&logged.time),
                    None => !must_be_logged,
                };
                (is_in_time && key.has_signed(&self.message, &self.signature)).then_some(Evidence::Key)
            }
            (_, Certificate::Proved(identity)) => identity.is(signer).then(|| Evidence::Certificate(identity.clone())),
            (_, Certificate::None | Certificate::Refused(_)) => None,
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
