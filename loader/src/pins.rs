//! The modules that a generation is pinned to: one, or one for each member of a policy group.

use std::collections::BTreeMap;

use portcullis_contract::Digest;
use serde::Serialize;

/// The name under which a policy that is not a group has its module. No member can have it.
const OWN: &str = "";

/// Digests of modules, by the name of a body's part. Parts whose module is not known yet are absent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Pins(BTreeMap<String, Digest>);

impl Pins {
    /// What was recorded: the module of a policy, or those of a group's members.
    pub(crate) fn new(module: Option<Digest>, members: BTreeMap<String, Digest>) -> Self {
        let own = module.filter(|_| members.is_empty()).map(|digest| (OWN.to_owned(), digest));
        Self(members.into_iter().chain(own).collect())
    }

    /// The module, where it is not a group.
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

    /// Pins a part, or nothing any more.
    pub(crate) fn set(&mut self, part: &str, digest: Option<Digest>) {
        match digest {
            Some(digest) => drop(self.0.insert(part.to_owned(), digest)),
            None => drop(self.0.remove(part)),
        }
    }

    /// Takes what others say; what only this knows stays.
    pub(crate) fn merge(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Leaves what `keep` says.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&str, &Digest) -> bool) {
        self.0.retain(|part, digest| keep(part, digest));
    }
}
