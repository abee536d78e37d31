//! Kinds with more objects than can be kept. Finding that out costs as much as a list, so it is tried again after pauses that grow, and
//! the problem stands in the meantime. Pure.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use portcullis_contract::{ContextProblem, ContextReason};
use portcullis_util::Backoff;

use crate::ContextNeed;

/// The pauses between tries.
const PAUSES: Backoff = Backoff { shortest: Duration::from_secs(60), longest: Duration::from_secs(3600) };

/// The refused collections, by the need for which they were tried.
#[derive(Debug, Default)]
pub(super) struct Refusals(HashMap<ContextNeed, RefusedCollection>);

#[derive(Debug)]
struct RefusedCollection {
    problem: ContextProblem,
    /// How often the collection was refused in a row.
    tries: u32,
    /// When the collection may be tried again.
    again: Instant,
}

impl Refusals {
    /// The problem that stands, while it is too early to try again.
    pub(super) fn standing(&self, need: &ContextNeed, now: Instant) -> Option<ContextProblem> {
        self.0.get(need).filter(|refusal| now < refusal.again).map(|refusal| refusal.problem.clone())
    }

    /// What to report for a watch with this problem. While a new try is under way, the earlier problem is reported.
    pub(super) fn report(
        &mut self,
        need: &ContextNeed,
        problem: Option<ContextProblem>,
        now: Instant,
    ) -> Option<ContextProblem> {
        match problem.as_ref().map(|problem| problem.reason) {
            Some(ContextReason::ContextTooLarge) => {
                let problem = problem?;
                let first = || RefusedCollection { problem: problem.clone(), tries: 0, again: now };
                let refusal = self.0.entry(need.clone()).or_insert_with(first);
                if now >= refusal.again {
                    refusal.tries = refusal.tries.saturating_add(1);
                    refusal.again = now + PAUSES.bound(refusal.tries);
                    refusal.problem = problem.clone();
                }
                Some(problem)
            }
            Some(ContextReason::ContextNotSynced) => {
                self.0.get(need).map(|refusal| refusal.problem.clone()).or(problem)
            }
            _ => {
                self.0.remove(need);
                problem
            }
        }
    }

    /// Drops the entries that are no longer needed.
    pub(super) fn retain(&mut self, needs: &HashSet<ContextNeed>) {
        self.0.retain(|need, _| needs.contains(need));
    }
}

#[cfg(test)]
mod tests {
    use portcullis_contract::ContextAwareResource;

    use super::*;

    #[test]
    fn what_is_too_large_stands_through_tries_that_come_ever_later() {
        let kind = ContextAwareResource { api_version: "v1".to_owned(), kind: "Pod".to_owned() };
        let need = ContextNeed { kind, whole: true };
        let problem = |reason| ContextProblem::new(reason, "in words");
        let (too_large, reading) = (problem(ContextReason::ContextTooLarge), problem(ContextReason::ContextNotSynced));
        let (mut refusals, mut now) = (Refusals::default(), Instant::now());
        assert_eq!(refusals.report(&need, Some(reading.clone()), now), Some(reading.clone()));
        for pause in [60, 120, 240, 480, 960, 1920, 3600, 3600] {
            assert_eq!(refusals.standing(&need, now), None, "it is tried");
            let before = refusals.report(&need, Some(reading.clone()), now);
            assert_eq!(before, Some(if pause == 60 { reading.clone() } else { too_large.clone() }));
            assert_eq!(refusals.report(&need, Some(too_large.clone()), now), Some(too_large.clone()));
            now += Duration::from_secs(pause - 1);
            assert_eq!(
                refusals.report(&need, Some(too_large.clone()), now),
                Some(too_large.clone()),
                "the same refusal"
            );
            assert_eq!(refusals.standing(&need, now), Some(too_large.clone()), "{pause}");
            now += Duration::from_secs(1);
        }
        assert_eq!(refusals.report(&need, None, now), None);
        assert_eq!(refusals.report(&need, Some(reading.clone()), now), Some(reading), "all of them came meanwhile");
        refusals.report(&need, Some(too_large), now);
        refusals.retain(&HashSet::new());
        assert_eq!(refusals.standing(&need, now), None);
    }
}
