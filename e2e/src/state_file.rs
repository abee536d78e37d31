//! The state file of a cluster: who owns it and which processes it has, so that any process can take it down.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::component::Component;
use crate::layout::Layout;
use crate::layout::Node;
use crate::network::Network;
use crate::process::ProcessId;
use crate::{Error, files};

/// The name of the file in the folder of a cluster.
const FILE: &str = "state.json";

/// What the state file of a cluster says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StateFile {
    pub(crate) name: String,
    pub(crate) network: Network,
    pub(crate) api_servers: u8,
    /// Its node, if it has one.
    #[serde(default)]
    pub(crate) node: Option<Node>,
    /// The process that made it.
    pub(crate) owner: ProcessId,
    /// Whether it outlives its owner.
    pub(crate) detached: bool,
    pub(crate) members: Vec<Member>,
}

/// A process of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) process: ProcessId,
}

/// The state of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// Its owner is starting it.
    Starting,
    /// All of its processes run.
    Up,
    /// Some of its processes have ended.
    Degraded,
    /// Its owner has ended. The next cluster that starts removes what is left of it.
    Abandoned,
}

impl StateFile {
    /// The state file in this folder, if there is one.
    pub(crate) fn read(folder: &Path) -> Result<Option<Self>, Error> {
        let path = folder.join(FILE);
        match fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text).map(Some).map_err(|source| Error::StateFile { path, source }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::file("read", &path)(error)),
        }
    }

    pub(crate) fn write(&self, folder: &Path) -> Result<(), Error> {
        let text = serde_json::to_string_pretty(self).expect("it is strings and numbers");
        files::write(&folder.join(FILE), &text)
    }

    pub(crate) fn layout(&self, folder: &Path) -> Layout {
        let node = self.node.clone();
        Layout {
            folder: folder.to_owned(),
            network: self.network,
            api_servers: self.api_servers,
            node,
            etcd_quota: None,
        }
    }

    /// The state of the cluster, judged by its processes.
    pub(crate) fn health(&self, is_alive: impl Fn(&ProcessId) -> bool) -> Health {
        let owned = is_alive(&self.owner);
        let alive = self.members.iter().filter(|member| is_alive(&member.process)).count();
        let complete = self.members.len() == Component::count(self.api_servers, self.node.is_some());
        match (owned, self.detached) {
            // After a restart of the machine, none of the processes run. The same holds if the owner died while it detached
            // the cluster.
            (_, true) if alive == 0 => Health::Abandoned,
            (false, false) => Health::Abandoned,
            _ if !complete => Health::Starting,
            _ if alive < self.members.len() => Health::Degraded,
            _ => Health::Up,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Kind;

    /// Judges a state file with the process ids of the owner and of the components; `alive` are those that run.
    fn health(detached: bool, owner: u32, members: &[u32], alive: &[u32]) -> Health {
        let process = |pid| ProcessId { pid, ..ProcessId::own() };
        let state = StateFile {
            name: "one".to_owned(),
            network: Network::new(0, Kind::Routed),
            api_servers: 1,
            node: None,
            owner: process(owner),
            detached,
            members: members.iter().map(|&pid| Member { name: pid.to_string(), process: process(pid) }).collect(),
        };
        state.health(|process| alive.contains(&process.pid))
    }

    #[test]
    fn a_cluster_of_a_test_lives_with_the_test() {
        assert_eq!(health(false, 1, &[], &[1]), Health::Starting);
        assert_eq!(health(false, 1, &[2], &[1, 2]), Health::Starting);
        assert_eq!(health(false, 1, &[2, 3, 4], &[1, 2, 3, 4]), Health::Up);
        assert_eq!(health(false, 1, &[2, 3, 4], &[1, 2, 4]), Health::Degraded);
        assert_eq!(health(false, 1, &[2, 3, 4], &[2, 3, 4]), Health::Abandoned);
    }

    #[test]
    fn a_cluster_that_was_let_go_lives_while_any_of_it_does() {
        assert_eq!(health(true, 1, &[2, 3, 4], &[2, 3, 4]), Health::Up);
        assert_eq!(health(true, 1, &[2, 3, 4], &[3]), Health::Degraded);
        assert_eq!(health(true, 1, &[2, 3, 4], &[]), Health::Abandoned);
        assert_eq!(health(true, 1, &[2, 3, 4], &[1]), Health::Abandoned);
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(StateFile::read(folder.path()).unwrap(), None);
        let state = StateFile {
            name: "one".to_owned(),
            network: Network::new(7, Kind::Loopback),
            api_servers: 2,
            node: Some(Node::new(7, 1)),
            owner: ProcessId::own(),
            detached: false,
            members: vec![Member { name: "etcd".to_owned(), process: ProcessId::own() }],
        };
        state.write(folder.path()).unwrap();
        assert_eq!(StateFile::read(folder.path()).unwrap(), Some(state));
        fs::write(folder.path().join(FILE), "{}").unwrap();
        assert!(matches!(StateFile::read(folder.path()), Err(Error::StateFile { .. })));
    }
}
