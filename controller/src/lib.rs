//! The controller: keeps the revisions, the webhooks and the certificates of one policy server.
//!
//! ```text
//!  policies ─────────────┐              world               decide                 ┌─► revisions
//!  revisions ────────────┼─ watch ───► what there is ──────► what to do ─ workers ──┼─► webhook configurations
//!  webhook configurations┘              + memory            (pure)                 ├─► finalizers, WebhookConfigured
//!        ▲                                                                          └─► events
//!        └──────────────────────── what was written ◄──────────────────────────────┘
//! ```
//!
//! One loop gathers what the watches tell and what came of its own writes, and decides everything anew from what there is, so a
//! controller that was killed goes on where it stopped. Two controllers may run; the one that holds the Lease writes.
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
mod failures;
mod identity;
pub mod marker;
pub mod memory;
mod metrics;
mod path_keys;
pub mod run;
mod uninstall;
mod watch;
pub mod world;

pub use args::Args;
pub use run::run;
