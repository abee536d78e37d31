//! How often a kubelet looks.

use std::time::Duration;

/// How often a kubelet looks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rhythm {
    /// The time between two looks at containers.
    pub(super) pace: Duration,
    /// The time between two questions to the API server, for the pod and its Secrets.
    pub(super) ask: Duration,
}

impl Rhythm {
    /// So that tests wait little.
    pub(super) const QUICK: Self = Self { pace: Duration::from_millis(100), ask: Duration::from_millis(400) };
    /// For many pods.
    pub(super) const LEISURE: Self = Self { pace: Duration::from_secs(1), ask: Duration::from_secs(5) };
}
