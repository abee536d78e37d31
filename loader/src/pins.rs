//! The modules that a generation is pinned to: one, or one for each member of a policy group.

use std::collections::BTreeMap;

use portcullis_contract::Digest;
use serde::Serialize;

/// The part's name for a policy that is not a group. No member can have this name.
const OWN: &str = "";

/// Digests of modules, by the name of the part of a body. Parts whose module is not known yet are absent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Pins(BTreeMap<String, Digest>);

impl Pins {
    /// Pins from a record: the module of a policy, or those of a group's members.
    pub(crate) fn new(module: Option<Digest>, members: BTreeMap<String, Digest>) -> Self {
        let own = module.filter(|_| members.is_empty()).map(|digest| (OWN.to_owned(), digest));
        Self(members.into_iter().chain(own).collect())
    }

    /// The module of a policy that is not a group.
    pub(crate) fn module(&self) -> Option<Digest> {
        self.get(OWN)
    }

    /// The modules of members.
    pub(crate) fn members(&self) -> BTreeMap<String, Digest> {
        self.0.iter().filter(|(part, _)| *part != OWN).map(|(part, digest)| (part.clone(), *digest)).collect()
    }

    /// The module of a part.
    pub(crate) fn get(&self, part: &str) -> Option<Digest> {
        self.0.get(part).copied()
    }

    /// Pins a part; with `None` it is no longer pinned.
    pub(crate) fn set(&mut self, part: &str, digest: Option<Digest>) {
        match digest {
            Some(digest) => drop(self.0.insert(part.to_owned(), digest)),
            None => drop(self.0.remove(part)),
        }
    }

    /// Adds the other pins; where both have a part, the other's pin counts.
    pub(crate) fn merge(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Keeps only the pins for which `keep` is true.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&str, &Digest) -> bool) {
        self.0.retain(|part, digest| keep(part, digest));
    }
}
