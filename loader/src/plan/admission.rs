//! Whether a policy may have the module that it is pinned to, by the rules for its address and by its signatures.
//!
//! A fetch checks that first. But for a policy that is pinned to a digest, the bytes may already be on the volume, fetched for another policy
//! under other rules. It is then checked here, once for each address and digest.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use portcullis_contract::{Digest, Failure, Reason};

use super::attempts::{AttemptError, Attempts};
use super::generation::Generation;
use super::policy::Policy;
use super::saved::Trusted;
use super::{Admission, Job, Plan};
use crate::claims::Claims;
use crate::content::Body;
use crate::retry::Retry;
use crate::source::Reference;
use crate::volume::ArtifactRecord;
use portcullis_process::Now;

/// The checks, by address.
#[derive(Debug, Default)]
pub(super) struct Admissions(HashMap<Reference, BTreeMap<Digest, Attempts<Grant>>>);

/// Why policies that name an address may have a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Grant {
    /// The address was found to lead to it, and the rules allowed it.
    Checked,
    /// The source could not say so far, and the pin is trusted until it does.
    Trusted,
}

/// The address that must be checked. `None` for a file, which each loader reads itself, and for a candidate of an earlier manifest, which was
/// checked before it was published.
pub(super) fn asked(body: &Body) -> Option<&Reference> {
    body.reference.as_ref().filter(|reference| !matches!(reference, Reference::File(_)))
}

impl Admissions {
    fn get(&self, body: &Body, digest: &Digest) -> Option<&Attempts<Grant>> {
        self.0.get(asked(body)?)?.get(digest)
    }

    pub(super) fn get_mut(&mut self, reference: &Reference, digest: &Digest) -> Option<&mut Attempts<Grant>> {
        self.0.get_mut(reference)?.get_mut(digest)
    }

    /// Whether nothing is left to check: the module is admitted, or needs no check.
    pub(super) fn are_done(&self, body: &Body, digest: &Digest) -> bool {
        asked(body).is_none() || self.get(body, digest).is_some_and(|admission| admission.result().is_some())
    }

    /// Records that the module is admitted.
    pub(super) fn grant(&mut self, reference: &Reference, digest: Digest) {
        self.0.entry(reference.clone()).or_default().insert(digest, Attempts::done(Grant::Checked));
    }

    /// Admits what was served before a restart at once, and has it checked again, as the rules may have changed. What was only `trusted` before
    /// is still to be asked about.
    pub(super) fn restore(&mut self, policy: &Policy, trusted: &Trusted) {
        let is_published =
            policy.target().is_some_and(|(_, digest)| policy.published == Some((policy.generation, digest)));
        let published = if is_published { policy.target_parts() } else { Vec::new() };
        let good = policy.last_good.iter().flat_map(Generation::parts);
        for (body, digest) in published.into_iter().chain(good) {
            let Some(reference) = asked(body) else { continue };
            let address = (reference.clone(), digest);
            let grant = if trusted.contains(&address) { Grant::Trusted } else { Grant::Checked };
            let mut admission = Attempts::done(grant);
            admission.repeat();
            self.0.entry(address.0).or_default().insert(digest, admission);
        }
    }

    /// The addresses of a policy that could not be asked yet.
    pub(super) fn trusted(&self, policy: &Policy) -> Trusted {
        let good = policy.last_good.iter().flat_map(Generation::parts);
        let known = policy.target_parts().into_iter().chain(good);
        let trusted = known.filter_map(|(body, digest)| {
            let is_trusted = self.get(body, &digest)?.result() == Some(&Grant::Trusted);
            is_trusted.then_some((asked(body)?.clone(), digest))
        });
        trusted.collect()
    }

    /// Repeats a check that failed at once, because a new generation needs it.
    pub(super) fn retry_now(&mut self, reference: &Reference, digest: &Digest) {
        if let Some(admission) = self.get_mut(reference, digest) {
            admission.retry_now();
        }
    }

    /// A watched file has changed. The rules may be narrower now, so what they admitted before is checked again, too, and so is what is being
    /// checked by the earlier ones.
    pub(super) fn outside_changed(&mut self) {
        for admission in self.0.values_mut().flat_map(BTreeMap::values_mut) {
            admission.retry_outside();
            // Failures that no rule can mend wait on. What is admitted does not, although its source may have asked for time.
            if admission.result().is_some() || admission.is_due() {
                admission.repeat();
            }
        }
    }

    pub(super) fn wakes_at(&self) -> Option<Instant> {
        self.0.values().flat_map(BTreeMap::values).filter_map(Attempts::wakes_at).min()
    }

    /// The checks by address, each with its failure if it fails.
    pub(super) fn failures(&self) -> impl Iterator<Item = (&Reference, Option<Failure>)> {
        let of = |(reference, digests)| {
            let digests: &BTreeMap<Digest, Attempts<Grant>> = digests;
            (reference, digests.values().find_map(|admission| admission.failure(0, None)))
        };
        self.0.iter().map(of)
    }

    /// Takes the checks that are needed, forgets all others, and returns the jobs that should run.
    pub(super) fn turn(
        &mut self,
        wanted: BTreeMap<Reference, BTreeMap<Digest, Claims>>,
        now: Now,
    ) -> BTreeMap<Job, Claims> {
        let mut jobs = BTreeMap::new();
        self.0.retain(|reference, _| wanted.contains_key(reference));
        for (reference, digests) in wanted {
            let known = self.0.entry(reference.clone()).or_default();
            known.retain(|digest, _| digests.contains_key(digest));
            for (digest, claims) in digests {
                let admission = known.entry(digest).or_default();
                if claims.is_empty() {
                    admission.forget_failure();
                    continue;
                }
                admission.wake(now);
                if admission.is_due() {
                    admission.begin();
                    let again = admission.result() == Some(&Grant::Checked);
                    jobs.insert(Job::Admit { reference: reference.clone(), digest, again }, claims);
                }
            }
        }
        jobs
    }

    /// [`Job::Admit`] has ended.
    pub(super) fn end(
        &mut self,
        reference: &Reference,
        digest: &Digest,
        result: Result<Admission, AttemptError>,
        retry: &Retry,
        now: Now,
        random: f64,
    ) {
        let Some(admission) = self.get_mut(reference, digest) else { return };
        match (result, admission.result().copied()) {
            (Ok(Admission::Checked), _) => admission.succeed(Grant::Checked),
            (Ok(Admission::Trusted(error)), known) => {
                admission.put_off(known.unwrap_or(Grant::Trusted), error, retry, random, now);
            }
            // A module that was admitted stays admitted until a check refuses it, and is checked until one can say.
            (Err(error), Some(grant)) if !is_refusal(&error, grant) => {
                admission.put_off(grant, error, retry, random, now);
            }
            (Err(error), _) => admission.fail(error, retry, random, now),
        }
    }
}

/// Whether the error is a refusal. After any other one it is not known whether the module is allowed. That an address leads elsewhere
/// refuses only what it was never found to lead to.
fn is_refusal(error: &AttemptError, grant: Grant) -> bool {
    is_against_rules(error) || (error.reason == Reason::DigestMismatch && grant == Grant::Trusted)
}

/// Whether the rules of the installation or of the policy refuse a module. They do not where another attempt may help: then only what a name
/// server said of the host is refused.
pub(crate) fn is_against_rules(error: &AttemptError) -> bool {
    matches!(error.reason, Reason::SourceNotAllowed | Reason::SignatureInvalid) && error.retry_after.is_none()
}

impl Plan {
    /// Whether a policy may have this module.
    pub(super) fn is_admitted(&self, body: &Body, digest: &Digest) -> bool {
        self.admissions.are_done(body, digest)
    }

    pub(super) fn admission(&self, body: &Body, digest: &Digest) -> Option<&Attempts<Grant>> {
        self.admissions.get(body, digest)
    }

    /// Whether all these modules of a generation are admitted and have an artifact.
    pub(super) fn is_ready(&self, parts: &[(&Body, Digest)]) -> bool {
        parts.iter().all(|(part, digest)| self.candidate_artifact(part, digest).is_some())
    }

    /// The artifact of a module, if the policy may have it.
    pub(super) fn candidate_artifact(&self, body: &Body, digest: &Digest) -> Option<&ArtifactRecord> {
        self.artifact(digest).filter(|_| self.is_admitted(body, digest))
    }
}
