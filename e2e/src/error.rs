//! The failures of starting and using a cluster.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

/// A failed action. Its text names the thing, the cause and, if there is one, the next step.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Neither `PORTCULLIS_CACHE` nor `XDG_CACHE_HOME` nor `HOME` is an absolute path.
    #[error("failed to find a cache folder: set PORTCULLIS_CACHE to an absolute path")]
    NoCache,

    /// A file or folder of the cache; mostly a full disk, or a folder of another user.
    #[error("failed to {action} {}", path.display())]
    File {
        /// What was to be done, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },

    /// A program that is not there, or may not be run.
    #[error("failed to start {program}: {next}")]
    Start {
        /// The program's name.
        program: String,
        /// The next step.
        next: &'static str,
        /// Why it failed.
        source: io::Error,
    },

    /// A build; mostly the network, or a compiler that is too old.
    #[error("failed to build {name} ({status}):\n{output}")]
    Build {
        /// What was to be built.
        name: &'static str,
        /// How it ended.
        status: ExitStatus,
        /// The end of what it wrote.
        output: String,
    },

    /// A change of routes.
    #[error("failed to {action}: {output}")]
    Route {
        /// What was to be done.
        action: String,
        /// What `ip` said.
        output: String,
    },

    /// Two API servers need an address each that is not the loopback's.
    #[error("failed to give each of {0} API servers its own address: that needs root (CAP_NET_ADMIN)")]
    NeedsRoutes(u8),

    /// A node takes more than a control plane does.
    #[error("failed to make a node: this machine lacks {0}")]
    NodeNeeds(String),

    /// A cluster without a node, or one whose node has ended.
    #[error("failed to find the node of the cluster {0}: `cargo xtask cluster up --node` makes one")]
    NoNode(String),

    /// Something that was done on the node.
    #[error("failed to {action}: {output}")]
    Node {
        /// What was to be done.
        action: String,
        /// What the tool said.
        output: String,
    },

    /// None, or more than one cluster can have.
    #[error("failed to make a cluster of {asked} API servers: it can have 1 to {max}")]
    ApiServers {
        /// How many were asked for.
        asked: u8,
        /// How many it can have.
        max: u8,
    },

    /// 256 clusters are up, or their addresses are in use by something else.
    #[error("failed to find free addresses for one more cluster: `cargo xtask cluster down --all` makes room")]
    NoFreeSlot,

    /// A second cluster of one name.
    #[error("failed to make the cluster {0}: there is one of this name, see `cargo xtask cluster status`")]
    NameTaken(String),

    /// A name that is not valid.
    #[error("failed to use {0:?} as the name of a cluster: use 1 to 40 of a-z, 0-9 and -")]
    Name(String),

    /// A cluster that does not exist.
    #[error("failed to find the cluster {0}: `cargo xtask cluster up` makes one")]
    NotUp(String),

    /// The state file of a cluster that something else wrote.
    #[error("failed to read the state of a cluster in {}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },

    /// Making a key or a certificate.
    #[error("failed to make a certificate")]
    Certificate(#[from] rcgen::Error),

    /// The TLS configuration of our own client.
    #[error("failed to use the certificates of the cluster")]
    Tls(#[from] rustls::Error),

    /// A component that gave up while the cluster started.
    #[error("{component} ended ({status}) before the cluster was ready:\n{log}")]
    Ended {
        /// Its name.
        component: String,
        /// Its exit status.
        status: ExitStatus,
        /// The end of its log.
        log: String,
    },

    /// A condition that did not become true in time.
    #[error("waited for {what} for {limit:?} without success\n{log}")]
    NotReady {
        /// The condition.
        what: String,
        /// The limit.
        limit: Duration,
        /// The end of the log of the component in question.
        log: String,
    },

    /// A process that runs on despite SIGKILL.
    #[error("failed to end process {0}: it is still there {1:?} after SIGKILL")]
    StillAlive(u32, Duration),
}

impl Error {
    /// For `map_err`, after something was done with a file.
    pub(crate) fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File { action, path: path.to_owned(), source }
    }
}
