//! The intervals of a kubelet.

use std::time::Duration;

/// The intervals of a kubelet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rhythm {
    /// The interval at which it checks the containers.
    pub(super) pace: Duration,
    /// The interval at which it asks the API server for the pod and its Secrets.
    pub(super) ask: Duration,
}

impl Rhythm {
    /// Short intervals, so that tests wait little.
    pub(super) const QUICK: Self = Self { pace: Duration::from_millis(100), ask: Duration::from_millis(400) };
    /// Long intervals, for many pods.
    pub(super) const LEISURE: Self = Self { pace: Duration::from_secs(1), ask: Duration::from_secs(5) };
}
