//! Modules that policies are pinned to, by digest, wherever their tags point by now, and when a policy is pinned to what another one got.

use std::time::{Duration, Instant};

use portcullis_contract::{Digest, PolicyId, Reason};

use super::attempts::AttemptError;
use super::generation::Generation;
use super::policy::Policy;
use super::{Job, Plan};
use crate::content::Body;
use crate::source::Reference;
use portcullis_process::Now;

/// How long what a tag led to for one policy counts for the next one that names it: a policy that is applied has been tried a moment before, and
/// several that are applied together should agree.
const FRESH: Duration = Duration::from_mins(1);

/// The module that an address led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Resolved {
    pub(super) digest: Digest,
    /// When the address was asked; `None` if this loader has not asked it.
    at: Option<Instant>,
}

impl Resolved {
    pub(super) fn now(digest: Digest, now: Now) -> Self {
        Self { digest, at: Some(now.instant) }
    }

    /// It was known before.
    pub(super) fn before(digest: Digest) -> Self {
        Self { digest, at: None }
    }

    /// Whether a policy that begins now may be pinned to it. Files are watched, and a digest always names the same module; a tag, or the content
    /// of a web address, may be another one by now.
    pub(super) fn counts_for(&self, reference: &Reference, now: Now) -> bool {
        let is_fixed =
            matches!(reference, Reference::File(_)) || reference.image().is_some_and(|image| image.digest.is_some());
        is_fixed || self.at.is_some_and(|at| now.instant.saturating_duration_since(at) <= FRESH)
    }
}

impl Plan {
    /// Prepares for a new generation: what failed is tried at once, and a module that never worked is fetched again.
    pub(super) fn begin(&mut self, id: &PolicyId, now: Now) {
        let Some(policy) = self.policies.get_mut(id) else { return };
        let references = policy.body.as_ref().map(Body::references).unwrap_or_default();
        for (part, reference) in references {
            if let Some(pin) = policy.pins.get(&part) {
                self.admissions.retry_now(&reference, &pin);
                if let Some(compilation) = self.artifacts.get_mut(&pin) {
                    compilation.attempts.retry_now();
                    // That it could not be brought is a failure of its address.
                    if let Some(module) = self.modules.get_mut(&reference).filter(|_| compilation.no_module) {
                        module.retry_now();
                    }
                }
                continue;
            }
            let Some(module) = self.modules.get_mut(&reference) else { continue };
            match module.result().copied() {
                Some(_) if module.is_due() => {}
                Some(found) if self.artifacts.get(&found.digest).is_some_and(|m| m.attempts.has_failed()) => {
                    module.repeat();
                }
                // It was fetched for another policy a moment ago.
                Some(found) if found.counts_for(&reference, now) => policy.pins.set(&part, Some(found.digest)),
                Some(_) => module.repeat(),
                None => module.retry_now(),
            }
        }
    }

    /// The digests by which policies want the module of a fetch, because the volume has lost it or never had it.
    pub(crate) fn pins_of(&self, job: &Job) -> Vec<Digest> {
        let Job::Fetch(reference) = job else { return Vec::new() };
        self.pins_missing_at(reference)
    }

    /// The missing modules that policies are pinned to at an address.
    pub(super) fn pins_missing_at(&self, reference: &Reference) -> Vec<Digest> {
        if let Reference::File(_) = reference {
            return Vec::new();
        }
        let is_missing = |digest: &Digest| self.artifacts.get(digest).is_some_and(|compilation| compilation.no_module);
        let is_granted = |(body, digest): &(&Body, Digest)| self.is_admitted(body, digest) && is_missing(digest);
        let mut pins: Vec<Digest> = Vec::new();
        for policy in self.policies.values() {
            let others = policy.fallbacks().flat_map(Generation::parts);
            let named = policy.target_parts().into_iter().chain(others);
            let named = named.filter(|(part, _)| part.reference.as_ref() == Some(reference));
            pins.extend(named.filter(is_granted).map(|(_, pin)| pin));
        }
        pins.sort();
        pins.dedup();
        pins
    }

    /// A fetch by digests has ended. Each wish fails alone: that a pinned module cannot be had is no failure of another one, nor of those who
    /// want to know where the tag leads.
    pub(super) fn brought(
        &mut self,
        reference: &Reference,
        brought: Vec<(Digest, Result<(), AttemptError>)>,
        now: Now,
        random: f64,
    ) {
        let names = |policy: &Policy| policy.parts_at(reference).iter().any(|(_, pin)| pin.is_none());
        let is_tag_wanted = self.policies.values().any(names);
        let Some(module) = self.modules.get_mut(reference) else { return };
        let was_before = self.fetched_before.remove(reference);
        let first = brought.iter().find_map(|(pin, result)| result.is_ok().then_some(*pin));
        if let Some(first) = first.filter(|_| !is_tag_wanted) {
            // The tag was not resolved. That is done when the next policy names it.
            module.succeed(Resolved::before(first));
            module.repeat();
        }
        for (pin, result) in brought {
            let Some(compilation) = self.artifacts.get_mut(&pin) else { continue };
            match result {
                Ok(()) => {
                    compilation.no_module = false;
                    compilation.attempts.module_came();
                }
                // A source that asked for time gets it, whatever is wanted of it.
                Err(error) if error.reason != Reason::RegistryThrottled && (is_tag_wanted || first.is_some()) => {
                    compilation.no_module = false;
                    compilation.attempts.fail(error, &self.settings.retry, random, now);
                    if was_before {
                        compilation.attempts.retry_outside();
                    }
                }
                Err(error) => module.fail(error, &self.settings.retry, random, now),
            }
        }
        // What the watched file said before may be why something failed.
        if was_before {
            module.retry_outside();
        }
    }
}
