//! The reporter writes the state of every policy into its status, and decides nothing else.
//!
//! ```text
//!  loader /v1/state ────┐ follow      view        join                decide             ┌─► status/<id>.yaml
//!                       ├───────► what was ───► this pod's ───► a status for each ───────┼─► events.jsonl
//!  evaluator /v1/state ─┘           read          report              policy             └─► table or lines
//!                                                   │                 ▲
//!                                                   ▼                 │ all pods' reports, if this one leads
//!                                              ReplicaReport ─────────┴──────────────────► status and events of policies
//! ```
//!
//! One loop waits for a new state of either program, for at most a second, and decides about all policies again. `decide` and `join` are
//! pure, and the same for a folder and for Kubernetes. The reporter never reads the volume and never serves a request, and its probes
//! never depend on the other programs or on the API server.
#![forbid(unsafe_code)]

pub mod args;
mod audit;
mod context;
pub mod decide;
pub mod event;
pub mod facts;
mod failing;
#[cfg(test)]
mod fixtures;
pub mod folder;
pub mod follow;
pub mod frame;
mod impact;
pub mod join;
pub mod kubernetes;
pub mod line;
mod local;
mod message;
pub mod metrics;
mod mismatch;
pub mod output;
mod replica;
mod resolution;
mod run;
pub mod statuses;
mod turns;
pub mod view;

pub use args::Args;
pub use audit::AuditFormat;
pub use output::TableMode;
pub use run::run;
