//! The controller: keeps the revisions, the webhooks and the certificates of one policy server.
//!
//! ```text
//!  policies ─────────────┐                                                           ┌─► revisions
//!  revisions ────────────┼─ watch ───► world + memory ───► decide ───► execute ──────┼─► webhook configurations
//!  webhook configurations┘                                 (pure)                    ├─► finalizers, WebhookConfigured
//!        ▲                                                                           └─► events
//!        └──────────────────────── what was written ◄───────────────────────────────┘
//! ```
//!
//! One loop collects what the watches report and the results of its own writes, and decides everything again from the present state, so
//! a controller that was killed continues where it stopped. Several controllers may run; the one that holds the Lease writes.
//! It never fetches a module, never runs a policy, and writes no spec.
#![forbid(unsafe_code)]

pub mod action;
pub mod args;
pub mod certificates;
mod check;
mod control;
pub mod decide;
pub mod desired;
pub mod event;
mod execute;
mod failed;
mod failures;
mod identity;
mod keep;
pub mod marker;
pub mod memory;
mod metrics;
mod path_keys;
mod rewrites;
pub mod run;
mod slots;
mod uninstall;
mod watch;
pub mod world;

pub use args::Args;
pub use run::run;
