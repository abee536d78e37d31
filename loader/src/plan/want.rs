//! Which modules and artifacts the policies ask for.

use std::collections::BTreeMap;

use portcullis_contract::Digest;

use super::policy::Policy;
use super::{Attempts, Plan, admission};
use crate::claims::{Claims, Need};
use crate::source::Reference;

/// What policies name, and the tenants that need it now.
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
            let module = served.body.reference.as_ref().and_then(|reference| self.modules.get(reference));
            if let Some(digest) = module.and_then(Attempts::result) {
                served.resolve(*digest);
            }
        }
        for policy in self.policies.values() {
            let claim = |claims: &mut Claims, is_needed: bool| {
                if is_needed {
                    claims.add(&policy.tenant, policy.need());
                }
            };
            for known in policy.recent.iter().chain(&policy.last_good).chain(policy.served()) {
                wanted.digests.entry(known.digest).or_default();
                if let Some(reference) = admission::asked(&known.body) {
                    wanted.admissions.entry(reference.clone()).or_default().entry(known.digest).or_default();
                }
            }
            if let Ok(body) = &policy.body
                && let Some(reference) = &body.reference
            {
                let is_file = matches!(reference, Reference::File(_));
                claim(wanted.references.entry(reference.clone()).or_default(), is_file || policy.pin.is_none());
            }
            if let Some((body, digest)) = policy.target() {
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
                        // A file that was pinned before a restart may be another now: it counts as read, and is read again.
                        self.modules.entry(reference.clone()).or_insert_with(|| {
                            let mut module = Attempts::done(digest);
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

    /// The best of what served before; the next best too when that one cannot be had either.
    fn want_fallback(&self, policy: &Policy, wanted: &mut Wanted) {
        // What served on other replicas is brought here for want of anything else only.
        let has_failed = policy.refused.contains(&policy.generation) || self.failure(policy).is_some();
        for fallback in policy.fallbacks() {
            if policy.is_foreign(fallback) && !has_failed {
                return;
            }
            let need = policy.need_of(fallback.number, fallback.digest);
            if let Some(reference) = admission::asked(&fallback.body) {
                let admissions = wanted.admissions.entry(reference.clone()).or_default();
                admissions.entry(fallback.digest).or_default().add(&policy.tenant, need);
            }
            let is_admitted = self.is_admitted(&fallback.body, &fallback.digest);
            let claims = wanted.digests.entry(fallback.digest).or_default();
            if is_admitted {
                claims.add(&policy.tenant, need);
            }
            let no_module = is_admitted && self.has_no_module(&fallback.digest);
            if let Some(reference) = fallback.body.reference.as_ref().filter(|_| no_module) {
                wanted.references.entry(reference.clone()).or_default().add(&policy.tenant, need);
            }
            let is_refused = self.admission(&fallback.body, &fallback.digest).is_some_and(Attempts::has_failed);
            if !is_refused
                && !self.artifacts.get(&fallback.digest).is_some_and(|compilation| compilation.attempts.has_failed())
            {
                return;
            }
        }
        if has_failed
            && let Some(served) = policy.last_served.as_ref().filter(|served| served.pin.is_none())
            && let Some(reference) = &served.body.reference
        {
            wanted.references.entry(reference.clone()).or_default().add(&policy.tenant, Need::Served);
        }
    }

    fn has_no_module(&self, digest: &Digest) -> bool {
        self.artifacts.get(digest).is_some_and(|compilation| compilation.no_module)
    }

    /// Whether something else must be able to serve: the newest generation is on its way, failed, or was refused.
    pub(super) fn needs_fallback(&self, policy: &Policy) -> bool {
        policy.refused.contains(&policy.generation)
            || policy.target().is_none_or(|(body, digest)| self.candidate_artifact(body, &digest).is_none())
    }
}
