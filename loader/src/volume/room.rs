//! The room on the volume: how much there is, which tenants have it, and which may have more.
//!
//! A pod whose volume grows beyond its limit is evicted, with all policies. So each byte of a module or an artifact is taken from a budget
//! before it is written. It counts for the tenants whose policies name the module: for ClusterPolicies if any of them does, otherwise for
//! the namespaces in equal parts. ClusterPolicies and what served before may use all that is free, all others as much as [`allowance`] says.
//!
//! A module that is not compiled yet also counts as its artifact, about as large. Otherwise modules that are fetched faster than they are
//! compiled would leave no room for artifacts, and nothing could serve from them.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use portcullis_contract::{Digest, Reason, Tenant, allowance, part};
use portcullis_util::lock;

use super::{ARTIFACTS, MODULES};
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
    /// The files that are being written, by number.
    writing: HashMap<u64, Writing>,
    counter: u64,
}

/// A file that is being written.
#[derive(Debug)]
struct Writing {
    /// The tenants that need it.
    claims: Arc<Claims>,
    /// Its reserved bytes.
    bytes: u64,
    is_module: bool,
}

/// Room for a file that is being written; given back when dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    room: Arc<Room>,
    number: u64,
    claims: Arc<Claims>,
    /// Whether it was refused only because the share of its tenants is used up.
    share_is_short: Arc<AtomicBool>,
}

impl Room {
    /// Room of `size` bytes; unlimited with `None`.
    pub(crate) fn new(size: Option<u64>) -> Arc<Self> {
        Arc::new(Self { size: size.unwrap_or(u64::MAX), usage: Mutex::default(), measuring: Mutex::default() })
    }

    /// Begins a file that these tenants need. No room is taken yet.
    pub(crate) fn reserve(self: &Arc<Self>, claims: Arc<Claims>) -> Reservation {
        self.begin(claims, false)
    }

    /// Begins a module that these tenants need. No room is taken yet, and none is granted that their other modules need for artifacts.
    pub(crate) fn reserve_module(self: &Arc<Self>, claims: Arc<Claims>) -> Reservation {
        self.begin(claims, true)
    }

    fn begin(self: &Arc<Self>, claims: Arc<Claims>, is_module: bool) -> Reservation {
        let mut usage = lock(&self.usage);
        usage.counter += 1;
        let number = usage.counter;
        usage.writing.insert(number, Writing { claims: Arc::clone(&claims), bytes: 0, is_module });
        Reservation { room: Arc::clone(self), number, claims, share_is_short: Arc::default() }
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
    /// Sets the flag when room is refused: whether only because the tenants that need the file have had their share, while the volume has
    /// enough for others.
    pub(crate) fn telling(mut self, share_is_short: &Arc<AtomicBool>) -> Self {
        self.share_is_short = Arc::clone(share_is_short);
        self
    }

    /// Reserves room for `bytes` in all.
    ///
    /// # Errors
    /// `VolumeFull` when the tenants that need the file may have no more.
    pub(crate) fn grow_to(&mut self, bytes: u64) -> Result<(), VolumeError> {
        let mut usage = lock(&self.room.usage);
        if bytes <= usage.reserved(self.number) {
            return Ok(());
        }
        let most = self.most(&usage, bytes)?;
        if let Some(writing) = usage.writing.get_mut(&self.number) {
            writing.bytes = bytes.saturating_add(STEP).min(most);
        }
        Ok(())
    }

    /// Checks whether there is room for `bytes` in all now, without reserving it.
    ///
    /// # Errors
    /// `VolumeFull` when the tenants that need the file may have no more.
    pub(crate) fn check(&self, bytes: u64) -> Result<(), VolumeError> {
        self.most(&lock(&self.room.usage), bytes).map(drop)
    }

    /// The most bytes that the file may have now.
    ///
    /// # Errors
    /// `VolumeFull` when `bytes` is more.
    fn most(&self, usage: &Usage, bytes: u64) -> Result<u64, VolumeError> {
        let size = self.room.size;
        let most = usage.reserved(self.number).saturating_add(usage.allowance(size, self.number, &self.claims));
        if bytes <= most {
            return Ok(most);
        }
        let share_is_short = usage.is_share_short(size, self.number, &self.claims, bytes);
        self.share_is_short.store(share_is_short, Ordering::Relaxed);
        Err(usage.refusal(size, &self.claims))
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
        files.chain(self.writing.values().map(|writing| &writing.bytes)).sum()
    }

    /// Bytes that are reserved for a file that is being written.
    fn reserved(&self, number: u64) -> u64 {
        self.writing.get(&number).map_or(0, |writing| writing.bytes)
    }

    /// Bytes that count for a tenant, in files and in reservations.
    fn own(&self, tenant: &Tenant) -> u64 {
        let files = self.files.values().map(|entry| self.part_of_file(tenant, entry));
        files.chain(self.writing.values().map(|writing| writing.part(tenant))).sum()
    }

    /// The modules on the volume that have no artifact.
    fn not_compiled(&self) -> Vec<&Entry> {
        let in_folder = |folder| self.files.iter().filter(move |(name, _)| name.starts_with(folder));
        let compiled: HashSet<_> = in_folder(ARTIFACTS).filter_map(|(_, (module, _))| *module).collect();
        let is_compiled = |module: Option<Digest>| module.is_some_and(|module| compiled.contains(&module));
        in_folder(MODULES).filter(|(_, (module, _))| !is_compiled(*module)).map(|(_, entry)| entry).collect()
    }

    fn part_of_file(&self, tenant: &Tenant, (module, bytes): &Entry) -> u64 {
        let owners = module.and_then(|module| self.owners.get(&module));
        owners.map_or(0, |owners| part(owners, tenant, *bytes))
    }

    /// How many more bytes the file with this number may have. Of the tenants that need it, the one that may have most decides. For a module,
    /// the tenants' other modules without an artifact count twice.
    fn allowance(&self, size: u64, number: u64, claims: &Claims) -> u64 {
        let used = self.used();
        let is_module = self.writing.get(&number).is_some_and(|writing| writing.is_module);
        let files = if is_module { self.not_compiled() } else { Vec::new() };
        let writing = || self.writing.iter().filter(|(other, file)| is_module && file.is_module && **other != number);
        let one = |(tenant, need): (&Tenant, Need)| {
            let is_first = is_first(tenant, need);
            let files = files.iter().map(|entry| self.part_of_file(tenant, entry));
            let waiting: u64 = files.chain(writing().map(|(_, file)| file.part(tenant))).sum();
            allowance(size, used.saturating_add(waiting), (!is_first).then(|| self.own(tenant).saturating_add(waiting)))
        };
        claims.iter().map(one).max().unwrap_or(0)
    }

    /// Whether a file that is refused would fit on the volume, and its tenants would have more than an equal part of it then.
    fn is_share_short(&self, size: u64, number: u64, claims: &Claims, bytes: u64) -> bool {
        let more = bytes.saturating_sub(self.reserved(number));
        let tenants: HashSet<&Tenant> =
            self.owners.values().flatten().chain(claims.iter().map(|(tenant, _)| tenant)).collect();
        let equal = size / (tenants.len() as u64 + 1);
        let is_over = |(tenant, need)| !is_first(tenant, need) && self.own(tenant).saturating_add(more) > equal;
        more <= size.saturating_sub(self.used()) && claims.iter().all(is_over)
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

/// Whether all that is free is for this tenant.
fn is_first(tenant: &Tenant, need: Need) -> bool {
    *tenant == Tenant::Cluster || need == Need::Served
}

impl Writing {
    /// Bytes of it that count for a tenant.
    fn part(&self, tenant: &Tenant) -> u64 {
        let tenants = self.claims.iter().map(|(tenant, _)| tenant.clone()).collect();
        part(&tenants, tenant, self.bytes)
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
    fn z08_modules_leave_room_for_their_artifacts() {
        let room = Room::new(Some(90 * MIB));
        let one = claims(&namespace("a"), Need::New);
        let fetch = |n: u64| {
            let mut reservation = room.reserve_module(Arc::clone(&one));
            reservation.grow_to(2 * MIB)?;
            let module = Digest::of(&n.to_be_bytes());
            reservation.settle(format!("{MODULES}/{n}"), module, 2 * MIB);
            Ok::<_, VolumeError>(module)
        };
        let fetched: Vec<_> = (0..40).filter_map(|n| fetch(n).ok()).collect();
        let compile = |module: &Digest| {
            let mut reservation = room.reserve(Arc::clone(&one));
            reservation.grow_to(2 * MIB + 4096)?;
            reservation.settle(format!("{ARTIFACTS}/{module}"), *module, 2 * MIB + 4096);
            Ok::<_, VolumeError>(())
        };
        assert!((10..=12).contains(&fetched.len()), "{}", fetched.len());
        let compiled = fetched.iter().filter(|module| compile(module).is_ok()).count();
        assert!(compiled + 1 >= fetched.len(), "{compiled} of {}", fetched.len());
    }

    #[test]
    fn without_a_size_there_is_no_end() {
        let room = Room::new(None);
        put(&room, "a", &claims(&namespace("a"), Need::New), 1 << 30).expect("there is room");
    }
}
