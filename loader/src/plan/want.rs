//! Which modules and artifacts the policies ask for.

use std::collections::BTreeMap;

use portcullis_contract::Digest;

use super::generation::{Generation, LastServed};
use super::pins::Resolved;
use super::policy::Policy;
use super::{Attempts, Plan, admission};
use crate::claims::{Claims, Need};
use crate::content::Body;
use crate::source::Reference;

/// What policies name, each with the tenants that need it now; none if it is only kept.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// Modules, by address.
    pub(super) references: BTreeMap<Reference, Claims>,
    /// Modules that policies are pinned to, by the address that the policy names.
    pub(super) admissions: BTreeMap<Reference, BTreeMap<Digest, Claims>>,
    /// Artifacts, by the digest of their module.
    pub(super) digests: BTreeMap<Digest, Claims>,
}

impl Plan {
    /// The modules and artifacts that policies name.
    pub(super) fn wanted(&mut self) -> Wanted {
        let mut wanted = Wanted::default();
        for served in self.policies.values_mut().filter_map(|policy| policy.last_served.as_mut()) {
            let unresolved: Vec<Reference> = served.unresolved().into_iter().cloned().collect();
            for reference in unresolved {
                if let Some(found) = self.modules.get(&reference).and_then(Attempts::result) {
                    served.resolve(&reference, found.digest);
                }
            }
        }
        for policy in self.policies.values() {
            let claim = |claims: &mut Claims, is_needed: bool| {
                if is_needed {
                    claims.add(&policy.tenant, policy.need());
                }
            };
            let known = policy.recent.iter().chain(&policy.last_good).chain(policy.served());
            for (part, digest) in known.flat_map(Generation::parts) {
                wanted.digests.entry(digest).or_default();
                if let Some(reference) = admission::asked(part) {
                    wanted.admissions.entry(reference.clone()).or_default().entry(digest).or_default();
                }
            }
            for (name, part) in policy.body.iter().flat_map(Body::parts) {
                if let Some(reference) = &part.reference {
                    let is_file = matches!(reference, Reference::File(_));
                    let is_unknown = policy.pins.get(name).is_none();
                    claim(wanted.references.entry(reference.clone()).or_default(), is_file || is_unknown);
                }
            }
            for (body, digest) in policy.target_parts() {
                let is_admitted = self.is_admitted(body, &digest);
                claim(wanted.digests.entry(digest).or_default(), is_admitted);
                if let Some(reference) = admission::asked(body) {
                    let admissions = wanted.admissions.entry(reference.clone()).or_default();
                    claim(admissions.entry(digest).or_default(), true);
                }
                if let Some(reference) = &body.reference {
                    let is_needed = is_admitted && self.has_no_module(&digest);
                    claim(wanted.references.entry(reference.clone()).or_default(), is_needed);
                    if matches!(reference, Reference::File(_)) {
                        // A file that was pinned before a restart may have changed since. The pin counts, and the file is read again.
                        self.modules.entry(reference.clone()).or_insert_with(|| {
                            let mut module = Attempts::done(Resolved::before(digest));
                            module.repeat();
                            module
                        });
                    }
                }
            }
            if self.needs_fallback(policy) {
                self.want_fallback(policy, &mut wanted);
            }
        }
        for digest in wanted.digests.keys() {
            self.artifacts.entry(*digest).or_default();
        }
        wanted
    }

    /// Adds what the best earlier generation needs, and the next best one too if that one fails as well, and so on.
    fn want_fallback(&self, policy: &Policy, wanted: &mut Wanted) {
        // What served on other replicas is fetched only if the newest generation has failed.
        let has_failed = policy.refused.contains_key(&policy.generation) || self.failure(policy).is_some();
        for fallback in policy.fallbacks() {
            if policy.is_foreign(fallback) && !has_failed {
                return;
            }
            let need = policy.need_of(fallback.number, fallback.digest);
            let mut cannot_be_had = false;
            for (part, digest) in fallback.parts() {
                if let Some(reference) = admission::asked(part) {
                    let admissions = wanted.admissions.entry(reference.clone()).or_default();
                    admissions.entry(digest).or_default().add(&policy.tenant, need);
                }
                let is_admitted = self.is_admitted(part, &digest);
                let claims = wanted.digests.entry(digest).or_default();
                if is_admitted {
                    claims.add(&policy.tenant, need);
                }
                let no_module = is_admitted && self.has_no_module(&digest);
                if let Some(reference) = part.reference.as_ref().filter(|_| no_module) {
                    wanted.references.entry(reference.clone()).or_default().add(&policy.tenant, need);
                }
                let is_refused = self.admission(part, &digest).is_some_and(Attempts::has_failed);
                let has_failed = |compilation: &super::Compilation| compilation.attempts.has_failed();
                cannot_be_had |= is_refused || self.artifacts.get(&digest).is_some_and(has_failed);
            }
            if !cannot_be_had {
                return;
            }
        }
        let served = policy.last_served.iter().filter(|_| has_failed);
        for reference in served.flat_map(LastServed::unresolved) {
            wanted.references.entry(reference.clone()).or_default().add(&policy.tenant, Need::Served);
        }
    }

    fn has_no_module(&self, digest: &Digest) -> bool {
        self.artifacts.get(digest).is_some_and(|compilation| compilation.no_module)
    }

    /// Whether an earlier generation must be able to serve, because the newest is on its way, failed, or was refused.
    pub(super) fn needs_fallback(&self, policy: &Policy) -> bool {
        policy.refused.contains_key(&policy.generation)
            || policy.target().is_none()
            || !self.is_ready(&policy.target_parts())
    }
}
