//! Trials: policies that are tried because users apply them.

use std::sync::Arc;

use super::Plan;
use super::policy::Policy;
use crate::content::DesiredPolicy;
use portcullis_process::Now;

impl Plan {
    /// Updates which trials there are. A trial itself never changes.
    pub(super) fn try_out(&mut self, trials: &[Arc<DesiredPolicy>], now: Now) {
        self.policies.retain(|id, _| !id.is_check() || trials.iter().any(|trial| trial.id == *id));
        for trial in trials {
            if !self.policies.contains_key(&trial.id) {
                self.policies.insert(trial.id.clone(), Policy::new(DesiredPolicy::clone(trial), 1, now));
                self.begin(&trial.id, now);
            }
        }
    }
}
