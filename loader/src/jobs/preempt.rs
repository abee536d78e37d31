//! Which running job is ended so that another one can begin. Pure: no clock, no task, no lock.
//!
//! With the chart's settings one module is compiled at a time, which may take a minute: as long as a fresh pod waits for its policies
//! before it answers. If each compilation ran to its end, a module of one namespace that is slow to compile could take all that time. So
//! those of namespaces are ended for others, and begin again when their turn comes:
//!
//! - A job that is needed more ends them at once: one of a ClusterPolicy, or one that served before where they did not.
//! - A job of another namespace that is needed as much ends them after [`SLICE`], once their namespace has had twice the time of the other.
//!   As that makes each run longer than the one before, a module that is slow to compile comes to its end.
//!
//! **No job is ended for ever.** If no namespace's job has come to its end for [`PATIENCE`], the next slot is given in turn, regardless of
//! need, and the job that gets it is not ended.

use std::time::Duration;

use portcullis_contract::Tenant;

use crate::claims::Need;

/// How long a job runs before one that is needed as much ends it. A usual module is compiled in less.
const SLICE: Duration = Duration::from_secs(10);
/// How long jobs of namespaces may wait and be ended before one of them runs to its end: longer than a fresh pod waits for its policies.
pub(super) const PATIENCE: Duration = Duration::from_secs(180);

/// How much a tenant needs a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    Cluster,
    Served,
    New,
}

/// What a tenant has had of the slots.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Account {
    /// The slots that it holds.
    pub(super) held: usize,
    /// How long it held slots that it gave back.
    pub(super) used: Duration,
    /// The number of the last slot that it got.
    pub(super) turn: u64,
}

impl Class {
    pub(super) fn of(tenant: &Tenant, need: Need) -> Self {
        match (tenant, need) {
            (Tenant::Cluster, _) => Self::Cluster,
            (Tenant::Namespace(_), Need::Served) => Self::Served,
            (Tenant::Namespace(_), Need::New) => Self::New,
        }
    }
}

/// Whether the job that is next, with the account of its tenant, ends one that has run for this long.
pub(super) fn ends(next: (Class, Account), running: (Class, Account), ran: Duration) -> bool {
    let ((class, account), (running_class, running_account)) = (next, running);
    if class != running_class {
        return class < running_class;
    }
    // A tenant that holds as many slots, like that of the running job itself, would not get this one next.
    let is_behind = account.held < running_account.held;
    is_behind && ran >= SLICE && running_account.used + ran >= 2 * account.used + SLICE
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Account = Account { held: 0, used: Duration::ZERO, turn: 0 };

    fn held(used: u64) -> Account {
        Account { held: 1, used: Duration::from_secs(used), turn: 1 }
    }

    fn had(used: u64) -> Account {
        Account { held: 0, ..held(used) }
    }

    #[test]
    fn z09_what_is_needed_more_ends_at_once_what_is_needed_less() {
        let classes = [Class::Cluster, Class::Served, Class::New];
        for (n, next) in classes.into_iter().enumerate() {
            for (m, running) in classes.into_iter().enumerate() {
                assert_eq!(ends((next, had(100)), (running, held(0)), Duration::ZERO), n < m, "{next:?} {running:?}");
            }
        }
    }

    #[test]
    fn z09_what_is_needed_as_much_ends_what_ran_for_its_slice() {
        let ends = |next, running, ran| ends((Class::Served, next), (Class::Served, running), ran);
        let nearly = SLICE - Duration::from_nanos(1);
        assert!(!ends(NONE, held(0), nearly) && ends(NONE, held(0), SLICE));
        assert!(!ends(NONE, held(100), nearly), "quick jobs are not ended, however much time their namespace had");
        assert!(!ends(held(0), held(0), SLICE), "neither of two with a slot each gets one of the other");
    }

    #[test]
    fn z09_each_run_of_a_slow_job_is_longer_than_the_one_before() {
        let longest = |used: u64, other: u64| {
            let ends = |ran: &u64| ends((Class::New, had(other)), (Class::New, held(used)), Duration::from_secs(*ran));
            (0..1000).find(ends)
        };
        // The other namespace has its time again before each run.
        assert_eq!((longest(0, 0), longest(10, 10), longest(30, 30)), (Some(10), Some(20), Some(40)));
    }
}
