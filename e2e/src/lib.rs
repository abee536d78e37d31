//! Kubernetes control planes on this machine, for the tests: etcd, API servers, the controllers of Kubernetes, and kubectl.
//!
//! A test starts a [`Cluster`], which is its own: its addresses, data, certificates and processes are shared with no other, so
//! that tests run side by side. It ends with the test, however that ends. `cargo xtask cluster up` makes one that stays.
//! Everything is real; what is missing are nodes, so a process of the test stands in for a pod ([`StandIn`]).
//!
//! ```text
//! Cluster ──► Slots (state.json, addresses) ──► cache folder
//!    │
//!    ├──► etcd ◄── kube-apiserver (one or more) ◄── kube-controller-manager
//!    └──► kubectl ───────────┘
//! ```
//!
//! This crate never becomes a part of the product, and links none of it. README.md has examples.
#![forbid(unsafe_code)]

mod cache;
mod client;
mod cluster;
mod component;
mod error;
mod files;
mod kubeconfig;
mod kubectl;
mod kubernetes;
mod layout;
mod lock;
mod name;
mod network;
mod pki;
mod process;
mod record;
mod running;
mod slots;
mod stand_in;
mod start;

pub use cache::Cache;
pub use cluster::{Cluster, MAX_API_SERVERS, Options};
pub use error::Error;
pub use kubectl::Output;
pub use kubernetes::{Kubernetes, VERSION};
pub use name::Name;
pub use record::Health;
pub use running::{Process, Running, Which};
pub use stand_in::StandIn;
