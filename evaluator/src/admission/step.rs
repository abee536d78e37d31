//! What is to be done about a policy that a request is for: evaluate it, or decide without it.

use std::sync::Arc;

use jiff::Timestamp;

use crate::guest::loaded::Loaded;
use crate::review::Review;
use crate::table::{ServedPolicy, Serving};
use crate::verdict::decision::{self, Decision};

/// What is to be done about one policy.
pub(super) enum Step<'r> {
    /// Evaluate this generation.
    Evaluate(&'r Arc<Loaded>),
    /// Do not evaluate it: this decision has been made without it.
    Decided(Box<Decision>),
}

/// The step for a policy that a request is for.
pub(super) fn step(policy: &Arc<ServedPolicy>) -> Step<'_> {
    if policy.suspend {
        return Step::Decided(Box::new(decision::suspended(policy.generation)));
    }
    match &policy.serving {
        Serving::Ready(loaded) => Step::Evaluate(loaded),
        Serving::Unserved(failure) => {
            policy.metrics.error(failure.reason);
            if let Some(series) = &policy.metrics.kubewarden {
                series.not_initialized(policy.is_group, failure.reason);
            }
            Step::Decided(Box::new(decision::unserved(policy.newest(), failure, Timestamp::now())))
        }
    }
}

/// The step for a member of a group, where the request may be in another namespace than the member. A member that was never enforced is asked
/// once it is loaded here, and not before: the group has answered without it all along. A request to a policy's own path is for this policy
/// alone, and its answer says that it cannot judge.
pub(super) fn step_in_group<'r>(policy: &'r Arc<ServedPolicy>, review: &Review<'_>) -> Step<'r> {
    if policy.id.namespace().is_some_and(|own| !review.is_in(own)) {
        return Step::Decided(Box::new(decision::outside_its_namespace(&policy.id)));
    }
    let is_asked = policy.enforced || policy.suspend || matches!(policy.serving, Serving::Ready(_));
    if is_asked {
        return step(policy);
    }
    policy.metrics.passed_over.inc();
    Step::Decided(Box::new(decision::passed_over(&policy.id)))
}
