//! Fetches, verifies and precompiles policy modules onto the shared volume.
//!
//! ```text
//!  folder or ──► input ──► plan ──► jobs ──► volume (artifacts, manifest) ──► evaluator
//!  cluster                 ▲ │      │                                           │
//!                          │ │      └── sources, compile children               │
//!                          │ └──► state, health, metrics                        │
//!                          └──────────────── /v1/state ◄────────────────────────┘
//! ```
//!
//! `plan` only decides; `work` does what it says. This program never runs a policy, and the only process that parses a module is a child
//! that has given up all other access.

#![forbid(unsafe_code)]

mod args;
mod checks;
mod claims;
pub mod compile;
mod content;
mod declared;
mod end;
mod health;
mod input;
mod jobs;
mod metrics;
mod mismatch;
mod pins;
mod plan;
mod problem;
mod progress_log;
mod retry;
mod run;
mod siblings;
mod source;
mod volume;
mod volume_error;
mod work;

pub use args::Args;
pub use run::run;
