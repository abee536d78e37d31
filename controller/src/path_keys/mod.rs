//! The keys by which paths of webhooks are made, so that only API servers can ask an evaluator ([`portcullis_contract::PathKey`]).
//!
//! One Secret is the truth, which pods mount. Its `keys` are [`portcullis_contract::PathKeys`], its `made` is when the newest of them was
//! made. Evaluators accept all of them; webhooks are registered by the current one.
//!
//! ```text
//!  settled ──the key is old──► introducing ──all replicas accept it, a pause──► moving ──all webhooks have it, a pause──► settled
//!            (current)         (current, next)                      (current, previous)
//! ```
//!
//! Which keys a replica accepts stands in its report. The pause is for those who are not asked: a pod that starts with what its kubelet
//! remembered of the Secret, and an API server that has not seen yet that a webhook has changed.
//!
//! Paths without a code are a key too, so that an installation of an earlier release comes to have codes as others come to another key:
//! evaluators of that release accept no key, and webhooks stay as they are until the last of them has gone.
//!
//! What to do next is decided by `decide`, which knows neither clock nor network; [`PathKeeper`] reads, asks, writes and waits.

mod decide;
mod follow;
mod keeper;
mod metrics;

pub(crate) use decide::PathRules;
pub(crate) use keeper::{PathKeeper, PathKeeperParts};
pub(crate) use metrics::PathKeyMetrics;
