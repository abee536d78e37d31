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

    /// Working with a file or folder of the cache failed; usually the disk is full, or the folder belongs to another
    /// user.
    #[error("failed to {action} {}", path.display())]
    File {
        /// The action, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },

    /// A program does not exist, or may not be run.
    #[error("failed to start {program}: {next}")]
    Start {
        /// The program's name.
        program: String,
        /// The next step.
        next: &'static str,
        /// Why it failed.
        source: io::Error,
    },

    /// A build failed; usually because of the network, or a compiler that is too old.
    #[error("failed to build {name} ({status}):\n{output}")]
    Build {
        /// The program that was to be built.
        name: &'static str,
        /// How it ended.
        status: ExitStatus,
        /// The end of what it wrote.
        output: String,
    },

    /// Changing routes failed.
    #[error("failed to {action}: {output}")]
    Route {
        /// The action.
        action: String,
        /// The output of `ip`.
        output: String,
    },

    /// Several API servers need an address each that is not a loopback address.
    #[error("failed to give each of {0} API servers its own address: that needs root (CAP_NET_ADMIN)")]
    NeedsRoutes(u8),

    /// A node needs something that a control plane alone does not.
    #[error("failed to make a node: this machine lacks {0}")]
    NodeNeeds(String),

    /// The cluster has no node, or its node has ended.
    #[error("failed to find the node of the cluster {0}: `cargo xtask cluster up --node` makes one")]
    NoNode(String),

    /// An action on the node failed.
    #[error("failed to {action}: {output}")]
    Node {
        /// The action.
        action: String,
        /// The output of the tool.
        output: String,
    },

    /// The number of API servers is zero, or more than a cluster can have.
    #[error("failed to make a cluster of {asked} API servers: it can have 1 to {max}")]
    ApiServers {
        /// The number that was asked for.
        asked: u8,
        /// The largest number.
        max: u8,
    },

    /// 256 clusters are up, or their addresses are in use by something else.
    #[error("failed to find free addresses for one more cluster: `cargo xtask cluster down --all` makes room")]
    NoFreeSlot,

    /// There is a cluster of this name already.
    #[error("failed to make the cluster {0}: there is one of this name, see `cargo xtask cluster status`")]
    NameTaken(String),

    /// The name of a cluster is not valid.
    #[error("failed to use {0:?} as the name of a cluster: use 1 to 40 of a-z, 0-9 and -")]
    Name(String),

    /// The cluster does not exist.
    #[error("failed to find the cluster {0}: `cargo xtask cluster up` makes one")]
    NotUp(String),

    /// The state file of a cluster was written by another program, or is damaged.
    #[error("failed to read the state of a cluster in {}", path.display())]
    StateFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },

    /// A key or a certificate could not be made.
    #[error("failed to make a certificate")]
    Certificate(#[from] rcgen::Error),

    /// The TLS configuration of our own client is not valid.
    #[error("failed to use the certificates of the cluster")]
    Tls(#[from] rustls::Error),

    /// A component ended while the cluster was starting.
    #[error("{component} ended ({status}) before the cluster was ready:\n{log}")]
    Ended {
        /// Its name.
        component: String,
        /// Its exit status.
        status: ExitStatus,
        /// The end of its log.
        log: String,
    },

    /// A condition did not become true in time.
    #[error("waited for {what} for {limit:?} without success\n{log}")]
    NotReady {
        /// The condition.
        what: String,
        /// The limit.
        limit: Duration,
        /// The end of the log of the component in question.
        log: String,
    },

    /// A process still runs despite SIGKILL.
    #[error("failed to end process {0}: it is still there {1:?} after SIGKILL")]
    StillAlive(u32, Duration),
}

impl Error {
    /// Makes the error for `map_err` when an action on a file failed.
    pub(crate) fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File { action, path: path.to_owned(), source }
    }
}
