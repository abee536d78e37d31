//! The intervals of a kubelet.

use std::time::Duration;

/// The intervals of a kubelet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Intervals {
    /// The interval at which it checks the containers until all are ready.
    pub(super) start: Duration,
    /// The interval at which it checks containers that are ready.
    pub(super) pace: Duration,
    /// The interval at which it asks the API server for the pod and its Secrets.
    pub(super) ask: Duration,
}

impl Intervals {
    /// Short intervals, so that tests wait little, and long enough that the probes of some dozen pods leave the machine to what is tested.
    pub(super) const SHORT: Self =
        Self { start: Duration::from_millis(100), pace: Duration::from_millis(300), ask: Duration::from_secs(1) };
    /// Long intervals, for many pods.
    pub(super) const LONG: Self =
        Self { start: Duration::from_secs(1), pace: Duration::from_secs(1), ask: Duration::from_secs(5) };
}
