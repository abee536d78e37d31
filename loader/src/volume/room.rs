//! The room on the volume: how much there is, which tenants have it, and which may have more.
//!
//! A pod whose volume grows beyond its limit is evicted, with all policies. So each byte of a module or an artifact is taken from a budget
//! before it is written. It counts for the tenants whose policies name the module: for ClusterPolicies if any of them does, otherwise for
//! the namespaces in equal parts. ClusterPolicies and what served before may use all that is free, all others as much as [`allowance`] says.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use portcullis_contract::{Digest, Reason, Tenant, allowance, part};
use portcullis_util::lock;

use crate::claims::{Claims, Need};
use crate::volume_error::VolumeError;

/// How many bytes are reserved ahead of what is written, if there is room.
const STEP: u64 = 1 << 20;

/// Tenants by module.
pub(crate) type Owners = HashMap<Digest, BTreeSet<Tenant>>;

/// The module that a file belongs to, if any, and the file's size in bytes.
type Entry = (Option<Digest>, u64);

/// The room on a volume.
#[derive(Debug)]
pub(crate) struct Room {
    size: u64,
    usage: Mutex<Usage>,
    /// Held while files are counted. Counting may take long on a slow disk, so writers do not wait for this lock.
    measuring: Mutex<()>,
}

#[derive(Debug, Default)]
struct Usage {
    /// The files, by `<folder>/<name>`.
    files: HashMap<String, Entry>,
    /// Files that were added (or removed, `None`) since counting began.
    changed: HashMap<String, Option<Entry>>,
    owners: Owners,
    /// The files that are being written, by number: the tenants that need each, and its reserved bytes.
    writing: HashMap<u64, (Arc<Claims>, u64)>,
    counter: u64,
}

/// Room for a file that is being written; given back when dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    room: Arc<Room>,
    number: u64,
    claims: Arc<Claims>,
}

impl Room {
    /// Room of `size` bytes; unlimited with `None`.
    pub(crate) fn new(size: Option<u64>) -> Arc<Self> {
        Arc::new(Self { size: size.unwrap_or(u64::MAX), usage: Mutex::default(), measuring: Mutex::default() })
    }

    /// Begins a file that these tenants need. No room is taken yet.
    pub(crate) fn reserve(self: &Arc<Self>, claims: Arc<Claims>) -> Reservation {
        let mut usage = lock(&self.usage);
        usage.counter += 1;
        let number = usage.counter;
        usage.writing.insert(number, (Arc::clone(&claims), 0));
        Reservation { room: Arc::clone(self), number, claims }
    }

    /// Sets which tenants own which modules.
    pub(crate) fn own(&self, owners: Owners) {
        lock(&self.usage).owners = owners;
    }

    /// Forgets a file that was removed.
    pub(super) fn forget(&self, name: &str) {
        let mut usage = lock(&self.usage);
        usage.files.remove(name);
        usage.changed.insert(name.to_owned(), None);
    }

    /// Updates which files there are. Blocks while `count` counts them.
    pub(super) fn measure<E>(&self, count: impl FnOnce() -> Result<HashMap<String, Entry>, E>) -> Result<(), E> {
        let _one_at_a_time = lock(&self.measuring);
        lock(&self.usage).changed.clear();
        let mut files = count()?;
        let mut usage = lock(&self.usage);
        for (name, entry) in std::mem::take(&mut usage.changed) {
            match entry {
                Some(entry) => files.insert(name, entry),
                None => files.remove(&name),
            };
        }
        usage.files = files;
        Ok(())
    }
}

impl Reservation {
    /// Reserves room for `bytes` in all.
    ///
    /// # Errors
    /// `VolumeFull` when the tenants that need the file may have no more.
    pub(crate) fn grow_to(&mut self, bytes: u64) -> Result<(), VolumeError> {
        let mut usage = lock(&self.room.usage);
        let has = usage.writing.get(&self.number).map_or(0, |(_, has)| *has);
        if bytes <= has {
            return Ok(());
        }
        let most = has.saturating_add(usage.allowance(self.room.size, &self.claims));
        if bytes > most {
            return Err(usage.refusal(self.room.size, &self.claims));
        }
        if let Some((_, has)) = usage.writing.get_mut(&self.number) {
            *has = bytes.saturating_add(STEP).min(most);
        }
        Ok(())
    }

    /// Checks whether there is room for `bytes` in all now, without reserving it.
    ///
    /// # Errors
    /// `VolumeFull` when the tenants that need the file may have no more.
    pub(crate) fn check(&self, bytes: u64) -> Result<(), VolumeError> {
        let usage = lock(&self.room.usage);
        let has = usage.writing.get(&self.number).map_or(0, |(_, has)| *has);
        let most = has.saturating_add(usage.allowance(self.room.size, &self.claims));
        if bytes > most { Err(usage.refusal(self.room.size, &self.claims)) } else { Ok(()) }
    }

    /// Counts the file under its final name, in place of the reservation.
    pub(super) fn settle(self, name: String, module: Digest, bytes: u64) {
        let mut usage = lock(&self.room.usage);
        usage.files.insert(name.clone(), (Some(module), bytes));
        usage.changed.insert(name, Some((Some(module), bytes)));
        let tenants = self.claims.iter().map(|(tenant, _)| tenant.clone());
        usage.owners.entry(module).or_default().extend(tenants);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        lock(&self.room.usage).writing.remove(&self.number);
    }
}

impl Usage {
    fn used(&self) -> u64 {
        let files = self.files.values().map(|(_, bytes)| bytes);
        files.chain(self.writing.values().map(|(_, bytes)| bytes)).sum()
    }

    /// Bytes that count for a tenant, in files and in reservations.
    fn own(&self, tenant: &Tenant) -> u64 {
        let files =
            self.files.values().filter_map(|(module, bytes)| Some(part(self.owners.get(&(*module)?)?, tenant, *bytes)));
        let writing = self.writing.values().map(|(claims, bytes)| {
            let tenants = claims.iter().map(|(tenant, _)| tenant.clone()).collect();
            part(&tenants, tenant, *bytes)
        });
        files.chain(writing).sum()
    }

    /// How many more bytes a file may have. Of the tenants that need it, the one that may have most decides.
    fn allowance(&self, size: u64, claims: &Claims) -> u64 {
        let used = self.used();
        let one = |(tenant, need): (&Tenant, Need)| {
            let is_first = *tenant == Tenant::Cluster || need == Need::Served;
            allowance(size, used, (!is_first).then(|| self.own(tenant)))
        };
        claims.iter().map(one).max().unwrap_or(0)
    }

    fn refusal(&self, size: u64, claims: &Claims) -> VolumeError {
        let free = size.saturating_sub(self.used()) >> 20;
        let message = match claims.iter().find(|(_, need)| *need == Need::New) {
            Some((tenant @ Tenant::Namespace(name), _)) => format!(
                "there is no room on the volume for more modules of the namespace {name}: they have {} MiB of it, and {free} MiB are \
                 left for all; use smaller or fewer modules, or enlarge the volume",
                self.own(tenant) >> 20
            ),
            _ => format!("of the {} MiB for modules on the volume {free} MiB are left; enlarge the volume", size >> 20),
        };
        VolumeError { reason: Reason::VolumeFull, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn namespace(name: &str) -> Tenant {
        Tenant::Namespace(name.into())
    }

    fn claims(tenant: &Tenant, need: Need) -> Arc<Claims> {
        let mut claims = Claims::default();
        claims.add(tenant, need);
        Arc::new(claims)
    }

    /// Writes one more module of `mib` MiB.
    fn put(room: &Arc<Room>, name: &str, claims: &Arc<Claims>, mib: u64) -> Result<(), VolumeError> {
        let mut reservation = room.reserve(Arc::clone(claims));
        reservation.grow_to(mib * MIB)?;
        reservation.settle(name.to_owned(), Digest::of(name.as_bytes()), mib * MIB);
        Ok(())
    }

    #[test]
    fn z08_a_flood_leaves_room_for_the_next() {
        let room = Room::new(Some(100 * MIB));
        let (greedy, small) = (claims(&namespace("greedy"), Need::New), claims(&namespace("small"), Need::New));
        let fit = (0..40).filter(|n| put(&room, &format!("greedy {n}"), &greedy, 10).is_ok()).count();
        assert_eq!(fit, 5);
        let error = put(&room, "one more", &greedy, 10).expect_err("refused");
        assert_eq!(error.reason, Reason::VolumeFull);
        assert!(error.message.contains("namespace greedy: they have 50 MiB of it, and 50 MiB are"), "{error}");
        put(&room, "small", &small, 20).expect("there is room");
        assert!(put(&room, "greedy again", &claims(&namespace("greedy"), Need::Served), 30).is_ok(), "what served");
        assert_eq!(put(&room, "small again", &small, 1).map_err(|error| error.reason), Err(Reason::VolumeFull));
    }

    #[test]
    fn z08_cluster_policies_may_have_all_and_what_they_share_is_theirs() {
        let room = Room::new(Some(100 * MIB));
        let (cluster, other) = (claims(&Tenant::Cluster, Need::New), claims(&namespace("a"), Need::New));
        put(&room, "shared", &cluster, 40).expect("there is room");
        let both = BTreeSet::from([Tenant::Cluster, namespace("a")]);
        room.own(HashMap::from([(Digest::of(b"shared"), both)]));
        put(&room, "a", &other, 30).expect("nothing was its own");
        put(&room, "last", &cluster, 30).expect("all that is free");
        let error = put(&room, "more", &cluster, 1).expect_err("refused");
        assert_eq!(error.message, "of the 100 MiB for modules on the volume 0 MiB are left; enlarge the volume");
    }

    #[test]
    fn z08_what_is_being_written_counts_until_it_is_given_up() {
        let room = Room::new(Some(100 * MIB));
        let one = claims(&namespace("a"), Need::New);
        let mut first = room.reserve(Arc::clone(&one));
        first.grow_to(45 * MIB).expect("there is room");
        assert!(put(&room, "second", &one, 30).is_err());
        assert!(first.check(46 * MIB).is_ok() && first.check(60 * MIB).is_err());
        drop(first);
        put(&room, "second", &one, 30).expect("it was given back");
        room.measure::<()>(|| Ok(HashMap::new())).expect("counts");
        put(&room, "third", &one, 50).expect("what is gone does not count");
    }

    #[test]
    fn what_comes_and_goes_while_files_are_counted_is_not_lost() {
        let room = Room::new(Some(100 * MIB));
        let cluster = claims(&Tenant::Cluster, Need::New);
        put(&room, "goes", &cluster, 50).expect("there is room");
        let count = || {
            put(&room, "comes", &cluster, 40).expect("nobody waits");
            room.forget("goes");
            Ok::<_, ()>(HashMap::from([("goes".to_owned(), (None, 50 * MIB))]))
        };
        room.measure(count).expect("counts");
        assert_eq!(lock(&room.usage).used(), 40 * MIB);
    }

    #[test]
    fn without_a_size_there_is_no_end() {
        let room = Room::new(None);
        put(&room, "a", &claims(&namespace("a"), Need::New), 1 << 30).expect("there is room");
    }
}
