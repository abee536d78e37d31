//! Checks whether a manifest is signed as a requirement demands.

use std::collections::BTreeMap;
use std::path::Path;

use portcullis_contract::{Digest, Reason};

use super::annotations::Names;
use super::cosign::{MAX_SIGNATURES, STATEMENT_TYPE};
use super::referrers::MAX_BUNDLES;
use super::refusal::Refusal;
use super::requirement::{Found, RequirementStatus};
use super::signed::{Checks, Evidence, Known, Outcome, Proof, Signed};
use super::trust::NoTrustRoot;
use super::{Material, Requirement, Signer, TrustRoot, bundle, cosign, referrers};
use crate::FetchError;
use crate::oci::{Image, Registry};

/// Most checks of one signature with one key, for one requirement: 20 signers and 96 signatures need no more. The largest keys and all signatures
/// that are looked at would otherwise take a processor for minutes.
const MAX_CHECKS: usize = 2000;
/// Most signatures that a message lists.
const MOST_SHOWN: usize = 4;
/// Longest text about one signature, in bytes.
const MAX_SHOWN: usize = 400;

/// Fetches the signatures of a manifest and checks that they meet `requirement`. Returns the proofs.
///
/// # Errors
/// Those of [`fetch`] and [`Material::judge`]. Judges on a thread that may block, as that takes time.
pub async fn verify(
    registry: &Registry,
    image: &Image,
    manifest: &Digest,
    requirement: &Requirement,
    trust_root: Option<&Path>,
) -> Result<Vec<Proof>, FetchError> {
    let material = fetch(registry, image, manifest).await?;
    let (image, manifest, requirement) = (image.clone(), *manifest, requirement.clone());
    let trust_root = trust_root.map(Path::to_owned);
    let judge = move || material.judge(&image, &manifest, &requirement, trust_root.as_deref());
    let failed =
        |_| FetchError::new(Reason::InternalError, "checking signatures failed because of a bug; the log says more");
    tokio::task::spawn_blocking(judge).await.map_err(failed)?
}

/// The signatures beside a manifest, unchecked; empty if there are none.
///
/// # Errors
/// `SignatureInvalid` when the place of the signatures holds something else, `SignatureUnavailable` when they cannot be
/// fetched now.
pub async fn fetch(registry: &Registry, image: &Image, manifest: &Digest) -> Result<Material, FetchError> {
    let mut layers = cosign::fetch(registry, image, manifest).await?;
    let incomplete = match referrers::fetch(registry, image, manifest).await {
        Ok(bundles) => {
            layers.extend(bundles);
            None
        }
        // The signatures that were fetched may suffice.
        Err(error) if !layers.is_empty() => Some(error.message),
        Err(error) => return Err(error),
    };
    Ok(Material { layers, incomplete })
}

impl Material {
    /// Checks that these signatures of the manifest with this digest meet `requirement`, and returns the proofs. No network is needed. `trust_root`
    /// is the file of a [`TrustRoot`], which signers by certificate need; it is read each time.
    ///
    /// # Errors
    /// `SignatureInvalid` when they do not, `SignatureUnavailable` when that cannot be known.
    pub fn judge(
        &self,
        image: &Image,
        manifest: &Digest,
        requirement: &Requirement,
        trust_root: Option<&Path>,
    ) -> Result<Vec<Proof>, FetchError> {
        let trust = match trust_root {
            _ if !requirement.uses_trust_root() => Err(NoTrustRoot::Absent("no signer has a certificate")),
            Some(path) => TrustRoot::read(path).map_err(NoTrustRoot::Unusable),
            None => {
                Err(NoTrustRoot::Absent("signatures by a certificate need a trust root: give one with --trust-root"))
            }
        };
        let judged = self.judge_with(image, manifest, requirement, &trust);
        match (judged, &self.incomplete) {
            (Err(error), Some(why)) if error.reason == Reason::SignatureInvalid => {
                let text = format!("{}; there may be others: {why}", error.message);
                Err(FetchError::new(Reason::SignatureUnavailable, text))
            }
            (judged, _) => judged,
        }
    }

    /// Judges with a trust root that was read before, or with the reason why there is none.
    pub(super) fn judge_with(
        &self,
        image: &Image,
        manifest: &Digest,
        requirement: &Requirement,
        trust: &Result<TrustRoot, NoTrustRoot>,
    ) -> Result<Vec<Proof>, FetchError> {
        let (root, names) = (trust.as_ref().ok(), Names::of(requirement));
        let statements = self.layers.iter().filter(|layer| layer.media_type == STATEMENT_TYPE).take(MAX_SIGNATURES);
        let bundles = self.layers.iter().filter(|layer| layer.media_type != STATEMENT_TYPE).take(MAX_BUNDLES);
        let statements = statements.filter_map(|layer| cosign::read(layer, manifest, trust, &names));
        let bundles = bundles.filter_map(|layer| bundle::read(layer, manifest, root, &names));
        let signed: Vec<Signed> = statements.chain(bundles).collect();
        decide(image, &signed, requirement, trust.as_ref().err(), &Checks::most(MAX_CHECKS))
    }
}

/// Decides. `no_trust` is the reason why there is no trust root; `None` if there is one.
fn decide(
    image: &Image,
    signed: &[Signed],
    requirement: &Requirement,
    no_trust: Option<&NoTrustRoot>,
    checks: &Checks,
) -> Result<Vec<Proof>, FetchError> {
    // What is found out once is kept: proofs and messages need it again.
    let (mut proofs, mut refusals) = (Vec::new(), BTreeMap::new());
    let find = |signer: &Signer| {
        let (evidence, refused) = about(&Known::of(signer), signed, checks);
        let is_unchecked = refused.iter().any(|(_, refusal)| *refusal == Refusal::UncheckedEntry);
        for (number, refusal) in refused {
            refusals.entry(number).or_insert(refusal);
        }
        match evidence {
            Some(evidence) => {
                proofs.push(Proof { signer: signer.to_string(), evidence });
                Found::Yes
            }
            None if no_trust.is_some() && (signer.needs_trust_root() || is_unchecked) => Found::Unknown,
            None => Found::No,
        }
    };
    let invalid = |text: String| FetchError::new(Reason::SignatureInvalid, text);
    match requirement.decide(find) {
        RequirementStatus::Met => Ok(proofs),
        _ if checks.are_exceeded() => Err(invalid(format!(
            "{image}: {} signatures and {} signers need more than {MAX_CHECKS} checks: name fewer signers, or remove old signatures",
            signed.len(),
            requirement.signers().count()
        ))),
        RequirementStatus::Unmet(_) if signed.is_empty() => {
            Err(invalid(format!("no signatures found for image: {image}")))
        }
        RequirementStatus::Unmet(text) => {
            let shown = |(number, signed): (usize, &Signed)| {
                let refusal = refusals.get(&number);
                let text = refusal.map_or_else(|| signed.to_string(), |why| format!("one that does not count: {why}"));
                portcullis_contract::clean(&text, MAX_SHOWN)
            };
            let mut found: Vec<String> = signed.iter().enumerate().take(MOST_SHOWN).map(shown).collect();
            if signed.len() > MOST_SHOWN {
                found.push(format!("and {} more", signed.len() - MOST_SHOWN));
            }
            Err(invalid(format!("{image}: {text}; signatures that were found: {}", found.join("; "))))
        }
        RequirementStatus::Unknown(signers) => {
            let why = no_trust.map_or_else(|| "they cannot be checked".to_owned(), ToString::to_string);
            let text = format!("{image}: {why}; without it, what these must have signed is not loaded: {signers}");
            Err(FetchError::new(Reason::SignatureUnavailable, text))
        }
    }
}

/// The evidence that a signer has signed, if there is any, and the signatures, by number, that do not count for the signer. Looks at no more
/// signatures than it must.
fn about(known: &Known<'_>, signed: &[Signed], checks: &Checks) -> (Option<Evidence>, Vec<(usize, Refusal)>) {
    let mut refused = Vec::new();
    for (number, signed) in signed.iter().enumerate() {
        match signed.outcome(known, checks) {
            Outcome::By(evidence) => return (Some(evidence), refused),
            Outcome::Refused(refusal) => refused.push((number, refusal)),
            Outcome::No => {}
        }
    }
    (None, refused)
}

#[cfg(test)]
mod tests {
    use rcgen::{KeyPair, SigningKey as _};
    use serde_json::json;

    use super::super::signed::{Certificate, Entry};
    use super::*;

    fn signed(pair: &KeyPair) -> Signed {
        let message = b"message".to_vec();
        let signature = pair.sign(&message).expect("signs");
        Signed { message, signature, annotations: BTreeMap::new(), certificate: Certificate::None, entry: Entry::None }
    }

    fn any_of(pairs: &[KeyPair], minimum: usize) -> Requirement {
        let signers: Vec<_> =
            pairs.iter().map(|pair| json!({"kind": "pubKey", "key": pair.public_key_pem()})).collect();
        let any = json!({"anyOf": {"minimumMatches": minimum, "signatures": signers}});
        Requirement::from_value(any).expect("a requirement")
    }

    /// Decides with at most so many checks, and returns how many were made.
    fn decided(signed: &[Signed], wanted: &Requirement, most: usize) -> (Result<usize, FetchError>, usize) {
        let (image, checks) = ("example.com/a:v1".parse().expect("a name"), Checks::most(most));
        let decided = decide(&image, signed, wanted, None, &checks).map(|proofs| proofs.len());
        (decided, most - checks.left())
    }

    #[test]
    fn each_signature_is_checked_once_with_each_key() {
        let pairs: Vec<_> = (0..5).map(|_| KeyPair::generate().expect("a key")).collect();
        let stranger = KeyPair::generate().expect("a key");
        let by_stranger: Vec<_> = (0..7).map(|_| signed(&stranger)).collect();
        let (unmet, checks) = decided(&by_stranger, &any_of(&pairs, 2), MAX_CHECKS);
        assert_eq!((unmet.expect_err("is not signed").reason, checks), (Reason::SignatureInvalid, 5 * 7));
        // A signer whose signature was found needs no more checks, neither for the proof nor for the count.
        let by_all: Vec<_> = pairs.iter().map(signed).collect();
        let (met, checks) = decided(&by_all, &any_of(&pairs, 2), MAX_CHECKS);
        assert_eq!((met.expect("is signed"), checks), (5, 1 + 2 + 3 + 4 + 5));
    }

    #[test]
    fn checks_have_a_limit_beyond_which_nothing_counts_as_signed() {
        let pairs: Vec<_> = (0..3).map(|_| KeyPair::generate().expect("a key")).collect();
        let by_last: Vec<_> = [&pairs[2]; 4].into_iter().map(signed).collect();
        let wanted = any_of(&pairs, 1);
        let (met, checks) = decided(&by_last, &wanted, 9);
        assert_eq!((met.expect("is signed"), checks), (1, 9));
        let (exceeded, checks) = decided(&by_last, &wanted, 8);
        let error = exceeded.expect_err("is not checked to the end");
        assert_eq!((error.reason, checks), (Reason::SignatureInvalid, 8));
        assert!(error.message.contains("4 signatures and 3 signers need more than"), "{error}");
    }

    #[test]
    fn what_cannot_be_by_a_key_is_not_checked_with_it() {
        let pair = KeyPair::generate().expect("a key");
        let large = Signed { signature: vec![1; 512], ..signed(&pair) };
        let (unmet, checks) = decided(&[large], &any_of(&[pair], 1), MAX_CHECKS);
        assert_eq!((unmet.is_err(), checks), (true, 0));
    }
}
