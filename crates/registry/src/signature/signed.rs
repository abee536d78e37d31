//! One signature about a manifest: what was signed, and the signer as far as that is known.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

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
    /// The annotations of the statement that a signer requires.
    pub annotations: BTreeMap<String, String>,
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

/// A required signer, with its key ready for checks.
pub(super) struct Known<'a> {
    signer: &'a Signer,
    /// The key of the signer; `None` if it is known by an identity, or the key cannot be used.
    key: Option<PublicKey>,
}

/// What one signature says about one signer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The signer has signed.
    By(Evidence),
    /// The signature does not count for a signer whose certificate was checked before, for this reason. For other signers, the refusals are
    /// in [`Certificate::Refused`].
    Refused(Refusal),
    /// It is by somebody else, or the annotations that are required are missing.
    No,
}

/// How many signatures may still be checked with a key, as each check takes time.
#[derive(Debug)]
pub(super) struct Checks {
    left: Cell<usize>,
    is_exceeded: Cell<bool>,
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

impl<'a> Known<'a> {
    /// Parses the key of a signer.
    pub(super) fn of(signer: &'a Signer) -> Self {
        let key = match signer {
            Signer::PubKey { key, .. } | Signer::Certificate { key, .. } => PublicKey::from_pem(key).ok(),
            Signer::GenericIssuer { .. } | Signer::GithubAction { .. } => None,
        };
        Self { signer, key }
    }
}

impl Checks {
    /// So many checks.
    pub(super) fn most(number: usize) -> Self {
        Self { left: Cell::new(number), is_exceeded: Cell::new(false) }
    }

    /// How many are left.
    #[cfg(test)]
    pub(super) fn left(&self) -> usize {
        self.left.get()
    }

    /// Whether more checks were wanted than there are. What was not checked counts as not signed.
    pub(super) fn are_exceeded(&self) -> bool {
        self.is_exceeded.get()
    }

    /// Whether a key has made a signature over a message; false if no check is left.
    fn has_signed(&self, key: &PublicKey, message: &[u8], signature: &[u8]) -> bool {
        if !key.may_have_made(signature) {
            return false;
        }
        match self.left.get().checked_sub(1) {
            None => self.is_exceeded.set(true),
            Some(left) => self.left.set(left),
        }
        !self.are_exceeded() && key.has_signed(message, signature)
    }
}

impl Signed {
    /// Whether a signer has signed this, with the required annotations.
    pub(super) fn outcome(&self, known: &Known<'_>, checks: &Checks) -> Outcome {
        let Known { signer, key } = known;
        if !self.says_what_is_required(signer) {
            return Outcome::No;
        }
        match (signer, &self.certificate) {
            (Signer::PubKey { .. }, _) => {
                let is_by = |key: &PublicKey| checks.has_signed(key, &self.message, &self.signature);
                if key.as_ref().is_some_and(is_by) { Outcome::By(Evidence::Key) } else { Outcome::No }
            }
            (Signer::Certificate { not_before, not_after, must_be_logged, .. }, _) => {
                let checked = self.check_key(key.as_ref(), *not_before..=*not_after, *must_be_logged, checks);
                checked.map_or_else(Outcome::Refused, |()| Outcome::By(Evidence::Key))
            }
            (_, Certificate::Proved(identity)) if identity.is(signer) => {
                Outcome::By(Evidence::Certificate(identity.clone()))
            }
            (_, Certificate::Proved(_) | Certificate::None | Certificate::Refused(_)) => Outcome::No,
        }
    }

    /// Whether this has the signed annotations that `signer` requires.
    fn says_what_is_required(&self, signer: &Signer) -> bool {
        signer.annotations().iter().all(|(name, value)| self.annotations.get(name) == Some(value))
    }

    /// Checks that the key of a certificate has signed this, and that this was logged within the certificate's
    /// validity. If there is an entry, it must be right, whether one is required or not.
    fn check_key(
        &self,
        key: Option<&PublicKey>,
        validity: RangeInclusive<i64>,
        must_be_logged: bool,
        checks: &Checks,
    ) -> Result<(), Refusal> {
        let key = key.ok_or(Refusal::Lacks("the certificate's key cannot be used"))?;
        if !checks.has_signed(key, &self.message, &self.signature) {
            return Err(Refusal::Lacks("it is not by the key of the certificate"));
        }
        match &self.entry {
            Entry::None if must_be_logged => Err(Refusal::NotLogged),
            Entry::InBundle if must_be_logged => Err(Refusal::InBundle),
            Entry::None | Entry::InBundle => Ok(()),
            Entry::Refused(why) => Err(why.clone()),
            Entry::Promised(promise) if promise.key != *key => {
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
