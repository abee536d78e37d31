//! Black-box tests of the real programs: the tools of a test to start them, break something, and see the result.
//!
//! A test writes policies into a [`Folder`], starts a [`Pod`] on it, and uses the pod: [`Pod::ask`] sends an AdmissionReview, and
//! [`Pod::health`], [`Pod::status`] and the states return what a user or a kubelet would see. It waits for conditions with a time limit
//! ([`eventually`]), and never for a fixed time. If a test panics, the pod prints the logs of its programs. Otherwise the pod asserts the
//! invariants of the fault catalogue at its end.
//!
//! The programs are started as they are shipped, and none of their crates is linked: this crate only knows the formats on the wire.
//! README.md has an example.
//!
//! ```text
//! Folder ──► Pod ──► Process (loader, evaluator, reporter)
//!   │         │
//!   │         ├──► Client ──► Answer
//!   │         └──► Canary: asked during the whole test
//!   ├─ Policy, guest, wat                   Raw: exact bytes at an exact pace
//!   └─ Volume                               Flood: clients with thousands of connections
//!                                           Source: a scripted server of modules
//! ```
#![forbid(unsafe_code)]

mod address;
mod allocations;
mod answer;
mod bombs;
mod canary;
mod certificate;
mod cgroup;
mod client;
mod clock;
mod expect;
mod files;
mod folder;
mod forward;
mod guests;
mod invariants;
mod leaks;
mod pod;
mod policy;
mod preload;
mod process;
mod programs;
mod raw;
mod recovery;
mod registry;
mod review;
mod secret;
mod server;
mod setup;
mod signing;
pub mod sigstore;
mod slow_writes;
mod source;
mod tls;
mod tokens;
mod volume;
mod wait;

pub use address::ports;
pub use allocations::{Allocated, Allocations};
pub use answer::{Answer, Verdict};
pub use bombs::{gzip_bomb, stored_in_gzip, tar, zstd_bomb};
pub use canary::{Canary, FLOODED};
pub use certificate::{Authority, Identity};
pub use cgroup::Cgroup;
pub use client::Client;
pub use clock::Clock;
pub use folder::{CANARY, Folder};
pub use forward::ForwardProxy;
pub use guests::SdkGuest;
pub use leaks::assert_no_leak;
pub use pod::{Health, Pod};
pub use policy::Policy;
pub use portcullis_testkit::{
    Asked, FAIL_POINT, Flood, Moment, Reply, Stalls, StopOnDrop, Stranger, Usage, bytes_below, eventually_within,
    guest, guest_with, large_module, never, note, one_round_in_time, rego, rego_calling, repository, skip, wat,
};
pub use process::{Launch, Process};
pub use programs::{Program, program};
pub use raw::{Handshake, Raw, RawResponse, client_hello, request};
pub use registry::{Registry, docker_config, password, token_service, write_docker_config};
pub use review::Review;
pub use secret::Secret;
pub use server::{DENIES, Server};
pub use setup::PodSetup;
pub use slow_writes::{Delayed, SlowWrites};
pub use source::Source;
pub use tls::{Tls, connector};
pub use tokens::TokenService;
pub use volume::{SmallVolume, Volume};
pub use wait::{LIMIT, allow_many_connections, eventually, heavy};
