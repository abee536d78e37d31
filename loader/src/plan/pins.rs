//! Modules that policies are pinned to, by digest, wherever their tags point by now.

use portcullis_contract::Digest;

use super::attempts::AttemptError;
use super::generation::Generation;
use super::policy::Policy;
use super::{Job, Plan};
use crate::content::Body;
use crate::source::Reference;
use portcullis_process::Now;

impl Plan {
    /// The digests by which policies want the module of a fetch, because the volume has lost it or never had it.
    pub(crate) fn pins_of(&self, job: &Job) -> Vec<Digest> {
        let Job::Fetch(reference) = job else { return Vec::new() };
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

    /// A fetch by digests has ended.
    pub(super) fn brought(
        &mut self,
        reference: &Reference,
        pins: &[Digest],
        result: Result<(), AttemptError>,
        now: Now,
        random: f64,
    ) {
        let names = |policy: &Policy| policy.parts_at(reference).iter().any(|(_, pin)| pin.is_none());
        let is_tag_wanted = self.policies.values().any(names);
        let Some(module) = self.modules.get_mut(reference) else { return };
        match (result, pins.first()) {
            (Err(error), _) => module.fail(error, &self.settings.retry, random, now),
            (Ok(()), Some(first)) => {
                if !is_tag_wanted {
                    // The tag was not resolved. That is done when the next policy names it.
                    module.succeed(*first);
                    module.repeat();
                }
                for pin in pins {
                    if let Some(compilation) = self.artifacts.get_mut(pin) {
                        compilation.no_module = false;
                    }
                }
            }
            (Ok(()), None) => {}
        }
    }
}
