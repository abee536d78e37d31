//! The reporter: tells every policy's state, and decides nothing but that.
//!
//! ```text
//!  loader /v1/state ────┐ follow      view        join                decide             ┌─► status/<id>.yaml
//!                       ├───────► what was ───► this pod's ───► a status for each ───────┼─► events.jsonl
//!  evaluator /v1/state ─┘          heard          report              policy             └─► table or lines
//!                                                   │                 ▲
//!                                                   ▼                 │ all pods' reports, where this one leads
//!                                              ReplicaReport ─────────┴──────────────────► status and events of policies
//! ```
//!
//! One loop waits for a word of either program, or a second, and decides all policies anew. `decide` and `join` are pure, and the
//! same for a folder and for Kubernetes. The reporter never reads the volume, never serves a request, and its probes never depend
//! on the other programs or on the API server.
#![forbid(unsafe_code)]

pub mod args;
pub mod board;
pub mod decide;
pub mod event;
mod failing;
pub mod folder;
pub mod follow;
pub mod frame;
pub mod join;
pub mod kubernetes;
pub mod line;
mod local;
mod message;
pub mod metrics;
pub mod output;
mod replica;
pub mod report;
mod resolution;
pub mod view;

pub use args::Args;
pub use output::TableMode;
pub use report::run;
