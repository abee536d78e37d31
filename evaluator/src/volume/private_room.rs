//! The room in the folder of private copies: which tenant has how much, and which may have more.
//!
//! A pod whose folder grows beyond its limit is evicted, with the policies of all tenants. The loader keeps any namespace from filling
//! the volume; these limits matter for a folder that is smaller than the volume. Policies that were enforced come first, and so do
//! ClusterPolicies.

use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;

use portcullis_contract::{Digest, Tenant, allowance, part};
use portcullis_util::lock;

/// The room in a folder.
#[derive(Debug)]
pub(crate) struct PrivateRoom {
    size: u64,
    copies: Mutex<HashMap<Digest, Held>>,
}

/// A copy that exists or is being made.
#[derive(Debug, Default)]
struct Held {
    bytes: u64,
    owners: BTreeSet<Tenant>,
}

/// The policy that needs a copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Requester<'a> {
    /// The policy's tenant.
    pub(crate) tenant: &'a Tenant,
    /// Whether any generation of the policy was enforced.
    pub(crate) enforced: bool,
}

/// Why there is no room for a copy.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoRoom {
    /// The folder is full, for every tenant.
    #[error("of the {size} MiB for private copies {free} MiB are left")]
    Full {
        /// The folder's size in MiB.
        size: u64,
        /// What is left of it, in MiB.
        free: u64,
    },
    /// This namespace has as much as it may.
    #[error("the private copies of the namespace {namespace} have {own} MiB, and {free} MiB are left for all")]
    Share {
        /// The namespace.
        namespace: String,
        /// What its copies take, in MiB.
        own: u64,
        /// What is left for all, in MiB.
        free: u64,
    },
}

impl PrivateRoom {
    /// The room in a folder of at most `size` bytes that has these copies; without a size there is no limit.
    pub(crate) fn new(size: Option<u64>, there: impl IntoIterator<Item = (Digest, u64)>) -> Self {
        let copies = there.into_iter().map(|(digest, bytes)| (digest, Held { bytes, owners: BTreeSet::new() }));
        // A sixteenth is left for what a file system adds to each file.
        let size = size.map_or(u64::MAX, |size| size - size / 16);
        Self { size, copies: Mutex::new(copies.collect()) }
    }

    /// Takes room for a copy of `bytes` bytes. A copy that exists already takes no more room.
    ///
    /// # Errors
    /// When there is no room for it.
    pub(crate) fn take(&self, digest: Digest, bytes: u64, requester: Requester<'_>) -> Result<(), NoRoom> {
        let mut copies = lock(&self.copies);
        let has = copies.get(&digest).map_or(0, |copy| copy.bytes);
        if bytes > has {
            let used = copies.values().map(|copy| copy.bytes).sum();
            let own = copies.values().map(|copy| part(&copy.owners, requester.tenant, copy.bytes)).sum();
            let is_first = requester.enforced || *requester.tenant == Tenant::Cluster;
            let own = (!is_first).then_some(own);
            if bytes - has > allowance(self.size, used, own) {
                let free = self.size.saturating_sub(used) >> 20;
                return Err(match (own, requester.tenant) {
                    (Some(own), Tenant::Namespace(name)) => {
                        NoRoom::Share { namespace: name.to_string(), own: own >> 20, free }
                    }
                    _ => NoRoom::Full { size: self.size >> 20, free },
                });
            }
        }
        let copy = copies.entry(digest).or_default();
        copy.bytes = copy.bytes.max(bytes);
        copy.owners.insert(requester.tenant.clone());
        Ok(())
    }

    /// Notes who has these copies, which others loaded first or have left since. The owners of other copies stay.
    pub(crate) fn set_owners(&self, owners: &HashMap<Digest, BTreeSet<Tenant>>) {
        for (digest, copy) in lock(&self.copies).iter_mut() {
            if let Some(owners) = owners.get(digest) {
                copy.owners.clone_from(owners);
            }
        }
    }

    /// Gives back the room of a copy that does not exist (any longer).
    pub(crate) fn give_back(&self, digest: &Digest) {
        lock(&self.copies).remove(digest);
    }

    /// The copies that take room.
    pub(crate) fn digests(&self) -> Vec<Digest> {
        lock(&self.copies).keys().copied().collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::MutexGuard;

    use super::*;

    /// While this is there, all who ask for room or give it back wait.
    pub(crate) struct RoomThatWaits<'a>(
        #[expect(dead_code, reason = "it is held")] MutexGuard<'a, HashMap<Digest, Held>>,
    );

    impl PrivateRoom {
        pub(crate) fn that_waits(&self) -> RoomThatWaits<'_> {
            RoomThatWaits(lock(&self.copies))
        }
    }

    const MIB: u64 = 1 << 20;

    fn namespace(name: &str) -> Tenant {
        Tenant::Namespace(name.into())
    }

    fn room() -> PrivateRoom {
        PrivateRoom::new(Some(64 * MIB), [])
    }

    fn digest(n: u8) -> Digest {
        Digest::of(&[n])
    }

    #[test]
    fn z08_a_flood_leaves_room_for_the_next_and_what_was_enforced_comes_first() {
        let (room, greedy, small) = (room(), namespace("greedy"), namespace("small"));
        let requester = |tenant, enforced| Requester { tenant, enforced };
        let fit = (0..40).filter(|n| room.take(digest(*n), 10 * MIB, requester(&greedy, false)).is_ok()).count();
        assert_eq!(fit, 3);
        let error = room.take(digest(50), 10 * MIB, requester(&greedy, false)).expect_err("refused");
        assert_eq!(error, NoRoom::Share { namespace: "greedy".to_owned(), own: 30, free: 30 });
        room.take(digest(0), 10 * MIB, requester(&greedy, false)).expect("it is there");
        room.take(digest(51), 10 * MIB, requester(&small, false)).expect("there is room");
        room.take(digest(52), 10 * MIB, requester(&greedy, true)).expect("it was enforced");
        room.take(digest(53), 10 * MIB, requester(&Tenant::Cluster, false)).expect("all that is free");
        let error = room.take(digest(54), MIB, requester(&Tenant::Cluster, false)).expect_err("refused");
        assert_eq!(error, NoRoom::Full { size: 60, free: 0 });
        room.give_back(&digest(51));
        room.take(digest(54), MIB, requester(&small, false)).expect("there is room again");
        room.digests().iter().for_each(|digest| room.give_back(digest));
        room.take(digest(55), 30 * MIB, requester(&greedy, false)).expect("nothing is left of it");
    }

    #[test]
    fn z08_what_an_earlier_start_left_counts_until_it_goes() {
        let room = PrivateRoom::new(Some(64 * MIB), [(digest(1), 50 * MIB)]);
        let (tenant, other) = (namespace("a"), namespace("b"));
        let requester = Requester { tenant: &tenant, enforced: false };
        assert!(room.take(digest(2), 20 * MIB, requester).is_err());
        room.take(digest(1), 50 * MIB, requester).expect("it is there");
        assert!(room.take(digest(2), MIB, requester).is_err(), "and is his now");
        assert!(room.take(digest(2), MIB, Requester { tenant: &other, ..requester }).is_ok());
    }

    #[test]
    fn z08_a_copy_counts_for_those_whose_policies_name_it_and_no_longer_for_who_had_it_made() {
        let (room, first, next) = (room(), namespace("first"), namespace("next"));
        let may_take = |n: u8, tenant: &Tenant| {
            let requester = Requester { tenant, enforced: false };
            room.take(digest(n), 20 * MIB, requester).inspect(|()| room.give_back(&digest(n))).is_ok()
        };
        room.take(digest(0), 20 * MIB, Requester { tenant: &first, enforced: false }).expect("there is room");
        assert!(!may_take(1, &first) && may_take(1, &next), "a namespace has half of what the others leave");
        room.set_owners(&HashMap::from([(digest(0), BTreeSet::from([next.clone()])), (digest(9), BTreeSet::new())]));
        assert!(may_take(1, &first) && !may_take(1, &next));
        room.set_owners(&HashMap::new());
        assert!(may_take(1, &first) && !may_take(1, &next), "nobody has said otherwise");
    }
}
