//! All clusters of a cache folder: each has a slot, which is a folder and a block of addresses.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::layout::Node;
use crate::lock::Lock;
use crate::network::{Kind, Network};
use crate::process::ProcessId;
use crate::state_file::{Health, StateFile};
use crate::{Cache, Error, files};

/// The slots, locked: no other process creates or removes a cluster in the meantime.
pub(crate) struct Slots {
    clusters: PathBuf,
    _lock: Lock,
}

/// A slot that is in use.
pub(crate) struct Slot {
    pub(crate) number: u8,
    pub(crate) folder: PathBuf,
    /// The state file of the cluster; absent if it was never started, or is removed except for its folder.
    pub(crate) state: Option<StateFile>,
}

impl Slots {
    /// Waits for the lock.
    pub(crate) fn take(cache: &Cache) -> Result<Self, Error> {
        let clusters = cache.clusters();
        Ok(Self { _lock: Lock::take(&clusters.join("lock"), || ())?, clusters })
    }

    /// The slots in use, without the lock: they may change in the meantime.
    pub(crate) fn list(cache: &Cache) -> Result<Vec<Slot>, Error> {
        list(cache.clusters())
    }

    /// The slots in use.
    pub(crate) fn all(&self) -> Result<Vec<Slot>, Error> {
        list(self.clusters.clone())
    }

    /// Removes what is left of clusters whose owner has ended without removing them.
    pub(crate) fn clean(&self) -> Result<(), Error> {
        for slot in self.all()? {
            let is_left = match &slot.state {
                // If its state file were removed, its routes would no longer be known.
                Some(state) if state.network.is_out_of_reach() => false,
                Some(state) => state.health(ProcessId::is_alive) == Health::Abandoned,
                None => true,
            };
            if is_left {
                self.remove(&slot)?;
            }
        }
        Ok(())
    }

    /// Takes a free slot, and records that this process owns it.
    pub(crate) fn claim(
        &self,
        name: &str,
        api_servers: u8,
        has_node: bool,
        kind: Kind,
    ) -> Result<(StateFile, PathBuf), Error> {
        let used = self.all()?;
        if used.iter().any(|slot| slot.state.as_ref().is_some_and(|state| state.name == name)) {
            return Err(Error::NameTaken(name.to_owned()));
        }
        for number in 0..=u8::MAX {
            let network = Network::new(number, kind);
            if used.iter().any(|slot| slot.number == number) || network.is_taken()? {
                continue;
            }
            let folder = self.clusters.join(number.to_string());
            files::make_folder(&folder)?;
            let (owner, detached, members) = (ProcessId::own(), false, Vec::new());
            let node = has_node.then(|| Node::new(number, owner.pid));
            let state = StateFile { name: name.to_owned(), network, api_servers, node, owner, detached, members };
            state.write(&folder)?;
            return Ok((state, folder));
        }
        Err(Error::NoFreeSlot)
    }

    /// Removes a cluster of this process, unless another process has done so: the slot may belong to another cluster by
    /// now.
    pub(crate) fn give_back(&self, state: &StateFile, folder: &Path) -> Result<(), Error> {
        let found = StateFile::read(folder)?;
        if found.is_none_or(|found| (found.name, found.owner) != (state.name.clone(), state.owner.clone())) {
            return Ok(());
        }
        let slot = Slot { number: state.network.slot, folder: folder.to_owned(), state: Some(state.clone()) };
        self.remove(&slot)
    }

    /// Ends the processes of a cluster and removes everything it has. The folder is removed last, so that an interrupted removal can be
    /// repeated.
    pub(crate) fn remove(&self, slot: &Slot) -> Result<(), Error> {
        if let Some(state) = &slot.state {
            for member in &state.members {
                member.process.kill()?;
            }
            if let Some(node) = &state.node {
                node.remove(state.network)?;
            }
            state.network.down()?;
        }
        files::remove_folder(&slot.folder)
    }
}

fn list(clusters: PathBuf) -> Result<Vec<Slot>, Error> {
    let entries = match fs::read_dir(&clusters) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(Error::file("read", &clusters))?,
    };
    let mut slots = Vec::new();
    for entry in entries {
        let folder = entry.map_err(Error::file("read", &clusters))?.path();
        // Files are skipped: the lock is a file in the same folder.
        let number = folder.file_name().and_then(|name| name.to_str()?.parse().ok());
        if let Some(number) = number {
            slots.push(Slot { number, state: StateFile::read(&folder)?, folder });
        }
    }
    slots.sort_by_key(|slot| slot.number);
    Ok(slots)
}

#[cfg(test)]
mod tests {
    use super::*;

    // On loopback addresses: these tests make no routes.
    fn claim(cache: &Cache, name: &str) -> Result<(StateFile, PathBuf), Error> {
        Slots::take(cache).unwrap().claim(name, 1, false, Kind::Loopback)
    }

    #[test]
    fn two_clusters_get_two_slots() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        let ((one, _), (two, _)) = (claim(&cache, "one").unwrap(), claim(&cache, "two").unwrap());
        assert_ne!(one.network, two.network);
        let names: Vec<_> = Slots::list(&cache).unwrap().into_iter().map(|slot| slot.state.unwrap().name).collect();
        assert_eq!(names, ["one", "two"]);
        assert!(matches!(claim(&cache, "two"), Err(Error::NameTaken(name)) if name == "two"));
    }

    #[test]
    fn a_slot_that_went_to_another_is_not_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        let (first, slot) = claim(&cache, "first").unwrap();
        Slots::take(&cache).unwrap().give_back(&first, &slot).unwrap();
        assert!(!slot.exists());

        let (second, same) = claim(&cache, "second").unwrap();
        assert_eq!((same.as_path(), second.network), (slot.as_path(), first.network));
        Slots::take(&cache).unwrap().give_back(&first, &slot).unwrap();
        assert!(slot.exists());
    }

    #[test]
    fn an_abandoned_cluster_is_removed_and_another_stays() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        let (mut gone, gone_folder) = claim(&cache, "gone").unwrap();
        let (_, stays) = claim(&cache, "stays").unwrap();
        gone.owner.started += 1;
        gone.write(&gone_folder).unwrap();
        let begun = cache.clusters().join("200");
        files::make_folder(&begun).unwrap();

        Slots::take(&cache).unwrap().clean().unwrap();

        assert!(!gone_folder.exists() && !begun.exists() && stays.exists());
    }
}
