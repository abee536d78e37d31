//! The keys from which paths of webhooks are derived, so that only API servers can call an evaluator ([`portcullis_contract::PathKey`]).
//!
//! One Secret, which pods mount, holds the state. Its `keys` are [`portcullis_contract::PathKeys`], and its `made` is the time at which
//! the newest key was made. Evaluators accept all of them; webhooks are registered with the current one.
//!
//! ```text
//!  settled ──the key is old──► introducing ──all replicas accept it, a pause──► moving ──all webhooks have it, a pause──► settled
//!            (current)         (current, next)                      (current, previous)
//! ```
//!
//! The report of a replica says which keys it accepts. The pause is for what cannot be asked: a pod that starts with a copy of the Secret
//! from its kubelet's cache, and an API server that has not seen yet that a webhook has changed.
//!
//! Paths without a code count as a key too, so an installation of an earlier release gets codes in the same way in which others change
//! keys: evaluators of that release accept no key, and webhooks stay as they are until the last of those evaluators is gone.
//!
//! Somebody else may replace the Secret, for instance with a backup. `replaced` finds that out and puts back the key that webhooks have;
//! the key that was stored becomes the next one.
//!
//! `decide` decides the next step and knows neither clock nor network; [`PathKeeper`] reads, asks, writes and waits.

mod decide;
mod follow;
mod keeper;
mod metrics;
mod replaced;

pub(crate) use decide::PathRules;
pub(crate) use keeper::{PathKeeper, PathKeeperParts};
pub(crate) use metrics::PathKeyMetrics;
