//! Kubernetes on this machine, for the tests: etcd, API servers, the controllers of Kubernetes, kubectl, and a node if one is
//! asked for.
//!
//! A test starts a [`Cluster`] of its own, which shares no addresses, data, certificates or processes with others, so that tests can
//! run in parallel. It ends with the test, however the test ends. `cargo xtask cluster up` makes one that stays. Everything is real.
//! Most clusters have no node, and a process of the test stands in for a pod ([`StandIn`]); a cluster with [`Options::node`] runs
//! pods.
//!
//! ```text
//! Cluster ──► Slots (state.json, addresses) ──► cache folder
//!    │
//!    ├──► etcd ◄── kube-apiserver (one or more) ◄── kube-controller-manager
//!    └──► kubectl ───────────┘
//! ```
//!
//! This crate is not a part of the product, and does not link any of it. README.md has examples.
#![forbid(unsafe_code)]

mod api;
mod audit_log;
mod cache;
mod canary_check;
mod chart_names;
mod client;
mod cluster;
mod command_line;
mod component;
mod connection;
mod direct;
mod earlier_release;
mod error;
mod etcd;
mod exclusive_cluster;
mod files;
mod go;
mod guard;
mod helm;
mod installation;
mod issuer;
mod json;
mod kubeconfig;
mod kubectl;
mod kubernetes;
mod layout;
mod lock;
mod name;
mod network;
mod node;
mod node_ready;
mod on_node;
mod operate;
mod pki;
mod process;
mod program;
mod proxy;
mod release;
mod report_definitions;
mod review_server;
mod running;
mod site;
mod slots;
mod source;
mod stand_in;
mod start;
mod state_file;
mod wait;

pub use api::{Api, Reply};
pub use cache::Cache;
pub use cluster::{Cluster, MAX_API_SERVERS, Options};
pub use component::Component;
pub use direct::Caller;
pub use earlier_release::EarlierRelease;
pub use error::Error;
pub use etcd::SMALL_DATABASE;
pub use exclusive_cluster::{ClusterGuard, ExclusiveCluster};
pub use helm::{HELM_VERSION, Helm, objects_of};
pub use installation::{
    CONTROLLER_ACCOUNT, Canary, Certificates, FLOODED, Heard, IN_TIME, Installation, InstallationOptions,
    LOADER_MEMORY, Listener, NEW_TOKEN, POLICY_SERVER_ACCOUNT, Pod, PodSetup, Policy, Right, SERVICE,
    assert_recovers_on_node, condition,
};
pub use issuer::Issuer;
pub use kubectl::Output;
pub use kubernetes::{Kubernetes, VERSION};
pub use name::Name;
pub use node::{POD_IMAGE, PodProgram};
pub use on_node::{Evidence, Rules};
pub use portcullis_testkit::{
    Moment, StopOnDrop, Usage, bytes_below, eventually_seen, eventually_within, example, guest, guest_with,
    large_module, never, never_lasting, note, one_round_in_time, rego, skip,
};
pub use program::{Process as Child, Program};
pub use proxy::{Proxy, Request, Rule};
pub use release::{Answer, Container, Frozen, Load, Reach, Release, probe_ports};
pub use report_definitions::fetch_report_definitions;
pub use review_server::ReviewServer;
pub use running::{Process, Running, Which};
pub use site::Site;
pub use source::Source;
pub use stand_in::StandIn;
pub use state_file::Health;
pub use wait::{LIMIT, eventually};

pub(crate) use portcullis_testkit::{lock, repository};
