//! Generations other than the newest one, which may serve while that one does not.

use portcullis_broker::EarlierModule;
use portcullis_contract::{Digest, ExecutionMode, PolicyId};

use crate::content::Body;
use crate::pins::Pins;
use crate::source::Reference;

/// A generation whose modules are all known.
#[derive(Debug, Clone)]
pub(super) struct Generation {
    pub(super) number: i64,
    pub(super) digest: Digest,
    pub(super) pins: Pins,
    pub(super) body: Body,
}

/// An older generation that served everywhere, and its modules as far as they are known.
#[derive(Debug, Clone)]
pub(super) struct LastServed {
    pub(super) number: i64,
    pub(super) body: Body,
    pub(super) pins: Pins,
    ready: Option<Generation>,
}

impl Generation {
    /// Whether both are the same generation with the same modules.
    pub(super) fn is(&self, other: &Self) -> bool {
        (self.number, self.digest) == (other.number, other.digest)
    }

    /// Its parts, each with its module.
    pub(super) fn parts(&self) -> Vec<(&Body, Digest)> {
        self.body.pinned_parts(&self.pins)
    }

    /// Its modules, with what they were granted. `mode` gives the mode of a module that is still on the volume.
    pub(super) fn granted(
        &self,
        policy: &PolicyId,
        mode: impl Fn(&Digest) -> Option<ExecutionMode>,
    ) -> Vec<EarlierModule> {
        let module = |(name, part): (&str, &Body)| {
            Some(EarlierModule {
                policy: policy.clone(),
                generation: self.number,
                member: Some(name.to_owned()).filter(|name| !name.is_empty()),
                host_capabilities: part.host_capabilities.clone(),
                context_aware_resources: part.context_aware_resources.clone(),
                execution_mode: mode(&self.pins.get(name)?)?,
            })
        };
        self.body.parts().into_iter().filter_map(module).collect()
    }
}

impl LastServed {
    pub(super) fn new(number: i64, body: Body, pins: Pins) -> Self {
        let digest = body.digest(&pins);
        let ready = digest.map(|digest| Generation { number, digest, pins: pins.clone(), body: body.clone() });
        Self { number, body, pins, ready }
    }

    /// The addresses of its modules that are not known yet.
    pub(super) fn unresolved(&self) -> Vec<&Reference> {
        let parts = self.body.parts().into_iter().filter(|(name, _)| self.pins.get(name).is_none());
        parts.filter_map(|(_, part)| part.reference.as_ref()).collect()
    }

    /// Records the module that an address gave, for parts whose module is not known yet.
    pub(super) fn resolve(&mut self, reference: &Reference, digest: Digest) {
        let parts = self.body.parts_at(reference).map(|(name, _)| name).filter(|name| self.pins.get(name).is_none());
        let parts: Vec<String> = parts.map(str::to_owned).collect();
        if !parts.is_empty() {
            let mut pins = self.pins.clone();
            parts.iter().for_each(|part| pins.set(part, Some(digest)));
            *self = Self::new(self.number, self.body.clone(), pins);
        }
    }

    /// The generation; `None` until all its modules are known.
    pub(super) fn ready(&self) -> Option<&Generation> {
        self.ready.as_ref()
    }
}
