//! Clusters seen from outside the process that started them, for `cargo xtask cluster`.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;

use crate::component::Component;
use crate::kubectl::Kubectl;
use crate::process::ProcessId;
use crate::slots::{Slot, Slots};
use crate::state_file::{Health, StateFile};
use crate::{Cache, Error, Kubernetes, Name, node};

/// A cluster of the cache folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Running {
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: Health,
    /// The kubeconfig of an administrator.
    pub kubeconfig: PathBuf,
    /// URLs of its API servers.
    pub api_servers: Vec<String>,
    /// Whether it has a node.
    pub node: bool,
    /// The process with which it ends; absent if it stays until it is taken down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<u32>,
    /// Its processes.
    pub processes: Vec<Process>,
}

/// A process of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Process {
    /// Its name.
    pub name: String,
    /// Its process id.
    pub pid: u32,
    /// Its memory, in bytes; absent if it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
}

/// Which clusters to take down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// The cluster with this name.
    One(Name),
    /// All clusters of the cache folder, including those of running tests.
    All,
    /// The clusters whose owner has ended without taking them down.
    Abandoned,
}

impl Running {
    /// All clusters of the cache folder.
    ///
    /// # Errors
    /// When a state file cannot be read.
    pub fn list(cache: &Cache) -> Result<Vec<Self>, Error> {
        let slots = Slots::list(cache)?;
        Ok(slots.iter().filter_map(|slot| Some(Self::of(&slot.folder, slot.state.as_ref()?))).collect())
    }

    /// Whether another cluster has the folder and the addresses of this one by now. They are used again as soon as they are free, also by other
    /// processes.
    ///
    /// # Errors
    /// When its state file cannot be read.
    pub fn has_successor(&self) -> Result<bool, Error> {
        let found = self.kubeconfig.parent().map(StateFile::read).transpose()?.flatten();
        Ok(found.is_some_and(|found| found.name != self.name))
    }

    /// The cluster with this name, unless it is abandoned.
    ///
    /// # Errors
    /// When a state file cannot be read.
    pub fn find(cache: &Cache, name: &Name) -> Result<Option<Self>, Error> {
        let all = Self::list(cache)?;
        Ok(all.into_iter().find(|one| one.name == name.as_str() && one.state != Health::Abandoned))
    }

    /// Ends clusters and removes everything that is left of them, including abandoned ones. Returns their names.
    ///
    /// # Errors
    /// When something of them cannot be removed.
    pub fn take_down(cache: &Cache, which: &Which) -> Result<Vec<String>, Error> {
        let slots = Slots::take(cache)?;
        let mut names = Vec::new();
        for slot in slots.all()?.iter().filter(|slot| selects(which, slot)) {
            slots.remove(slot)?;
            names.extend(slot.state.as_ref().map(|state| state.name.clone()));
        }
        slots.clean()?;
        Ok(names)
    }

    /// The memory of all its processes, in bytes.
    pub fn memory(&self) -> u64 {
        self.processes.iter().filter_map(|process| process.memory).sum()
    }

    /// The real kubectl, for its administrator.
    pub fn kubectl(&self, kubernetes: &Kubernetes) -> Command {
        let folder = self.kubeconfig.parent().unwrap_or(Path::new("/"));
        Kubectl::new(kubernetes, &self.kubeconfig, folder).into_command()
    }

    /// Puts the images of an archive on its node, as [`crate::Cluster::import_image`] does.
    ///
    /// # Errors
    /// When it has no node that runs, or the archive cannot be read.
    pub fn import_image(&self, archive: &Path) -> Result<(), Error> {
        let first = Component::Node.to_string();
        let node = self.processes.iter().find(|process| process.name == first && process.memory.is_some());
        node::import_archive(node.ok_or_else(|| Error::NoNode(self.name.clone()))?.pid, archive)
    }

    fn of(folder: &Path, state: &StateFile) -> Self {
        let layout = state.layout(folder);
        let process = |name: &str, process: &ProcessId| {
            let memory = if process.is_alive() { process.memory() } else { None };
            Process { name: name.to_owned(), pid: process.pid, memory }
        };
        Self {
            name: state.name.clone(),
            state: state.health(ProcessId::is_alive),
            kubeconfig: layout.kubeconfig(),
            api_servers: layout
                .api_server_numbers()
                .map(|number| format!("https://{}", layout.api_server(number)))
                .collect(),
            node: state.node.is_some(),
            owner: (!state.detached).then_some(state.owner.pid),
            processes: state.members.iter().map(|member| process(&member.name, &member.process)).collect(),
        }
    }
}

fn selects(which: &Which, slot: &Slot) -> bool {
    match which {
        Which::All => true,
        Which::Abandoned => {
            slot.state.as_ref().is_some_and(|state| state.health(ProcessId::is_alive) == Health::Abandoned)
        }
        Which::One(name) => slot.state.as_ref().is_some_and(|state| state.name == name.as_str()),
    }
}
