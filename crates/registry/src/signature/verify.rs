//! Checks whether a manifest is signed as a requirement demands.

use std::path::Path;

use portcullis_contract::{Digest, Reason};

use super::cosign::{MAX_SIGNATURES, STATEMENT_TYPE};
use super::referrers::MAX_BUNDLES;
use super::refusal::Refusal;
use super::requirement::{Found, RequirementStatus};
use super::signed::{Proof, Signed};
use super::trust::NoTrustRoot;
use super::{Material, Requirement, Signer, TrustRoot, bundle, cosign, referrers};
use crate::FetchError;
use crate::oci::{Image, Registry};

/// Most signatures that a message lists.
const MOST_SHOWN: usize = 4;
/// Longest text about one signature, in bytes.
const MAX_SHOWN: usize = 400;

/// Fetches the signatures of a manifest and checks that they meet `requirement`. Returns the proofs.
///
/// # Errors
/// Those of [`fetch`] and [`Material::judge`].
pub async fn verify(
    registry: &Registry,
    image: &Image,
    manifest: &Digest,
    requirement: &Requirement,
    trust_root: Option<&Path>,
) -> Result<Vec<Proof>, FetchError> {
    fetch(registry, image, manifest).await?.judge(image, manifest, requirement, trust_root)
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
        let root = trust.as_ref().ok();
        let statements = self.layers.iter().filter(|layer| layer.media_type == STATEMENT_TYPE).take(MAX_SIGNATURES);
        let bundles = self.layers.iter().filter(|layer| layer.media_type != STATEMENT_TYPE).take(MAX_BUNDLES);
        let statements = statements.filter_map(|layer| cosign::read(layer, manifest, trust));
        let bundles = bundles.filter_map(|layer| bundle::read(layer, manifest, root));
        let signed: Vec<Signed> = statements.chain(bundles).collect();
        decide(image, &signed, requirement, trust.as_ref().err())
    }
}

/// Decides. `no_trust` is the reason why there is no trust root; `None` if there is one.
fn decide(
    image: &Image,
    signed: &[Signed],
    requirement: &Requirement,
    no_trust: Option<&NoTrustRoot>,
) -> Result<Vec<Proof>, FetchError> {
    let evidence = |signer: &Signer| signed.iter().find_map(|signed| signed.is_by(signer));
    let is_unchecked =
        |signer: &Signer| signed.iter().any(|signed| signed.refusal(signer) == Some(Refusal::UncheckedEntry));
    let find = |signer: &Signer| match evidence(signer) {
        Some(_) => Found::Yes,
        None if no_trust.is_some() && (signer.needs_trust_root() || is_unchecked(signer)) => Found::Unknown,
        None => Found::No,
    };
    let invalid = |text: String| FetchError::new(Reason::SignatureInvalid, text);
    match requirement.decide(find) {
        RequirementStatus::Met => {
            let proof =
                |signer: &Signer| evidence(signer).map(|evidence| Proof { signer: signer.to_string(), evidence });
            Ok(requirement.signers().filter_map(proof).collect())
        }
        RequirementStatus::Unmet(_) if signed.is_empty() => {
            Err(invalid(format!("no signatures found for image: {image}")))
        }
        RequirementStatus::Unmet(text) => {
            let shown = |signed: &Signed| {
                let refusal = requirement.signers().find_map(|signer| signed.refusal(signer));
                let text = refusal.map_or_else(|| signed.to_string(), |why| format!("one that does not count: {why}"));
                portcullis_contract::clean(&text, MAX_SHOWN)
            };
            let mut found: Vec<String> = signed.iter().take(MOST_SHOWN).map(shown).collect();
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
