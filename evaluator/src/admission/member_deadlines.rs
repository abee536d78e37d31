//! How long each member of a mutating group may take, where they are asked one after the other. Pure.
//!
//! The controller lets API servers wait for the sum of the members' limits, so that each member has its own. Where they wait less (a
//! webhook that another release registered, a direct call with a `timeout`), each has its share of what is left, in proportion to the
//! limits of the members still to come. So a slow member uses up its own time and no other's, whatever its place.

use std::time::{Duration, Instant};

use portcullis_contract::{PolicyId, Reason};

use crate::verdict::EvaluationError;

/// The least time that a member gets; with less left, it is not asked. Hardly any policy answers in less, and it would be blamed for the
/// time that others took.
const LEAST: Duration = Duration::from_millis(10);

/// The deadlines of the members, for one request.
#[derive(Debug)]
pub(super) struct MemberDeadlines {
    /// When the answer must be on its way; none if the sender does not say.
    until: Option<Instant>,
    /// The sum of the limits of the members still to come.
    to_come: Duration,
    /// The member that took longest so far.
    longest: Option<(PolicyId, Duration)>,
}

impl MemberDeadlines {
    /// The deadlines of members with these limits, where the answer must be on its way at `until`.
    pub(super) fn new(until: Option<Instant>, limits: impl Iterator<Item = Duration>) -> Self {
        Self { until, to_come: limits.fold(Duration::ZERO, Duration::saturating_add), longest: None }
    }

    /// The deadline of the next member, whose own limit is `limit`.
    ///
    /// # Errors
    /// When there is no time left to ask it.
    pub(super) fn next(&mut self, now: Instant, limit: Duration) -> Result<Instant, EvaluationError> {
        let to_come = self.to_come.max(limit);
        self.to_come = self.to_come.saturating_sub(limit);
        let Some(until) = self.until else { return Ok(now + limit) };
        let left = until.saturating_duration_since(now);
        if left < LEAST {
            return Err(self.skipped());
        }
        if left >= to_come {
            return Ok(now + limit);
        }
        let share = left.mul_f64(limit.as_secs_f64() / to_come.as_secs_f64());
        Ok(now + share.max(LEAST))
    }

    /// Whether no member is still to come.
    pub(super) fn are_over(&self) -> bool {
        self.to_come.is_zero()
    }

    /// Notes how long a member took.
    pub(super) fn took(&mut self, policy: &PolicyId, time: Duration) {
        if self.longest.as_ref().is_none_or(|(_, longest)| time > *longest) {
            self.longest = Some((policy.clone(), time));
        }
    }

    fn skipped(&self) -> EvaluationError {
        let why = match &self.longest {
            Some((policy, time)) => {
                format!(
                    "policy {policy} before it took {:.1} s of the time that the API server waits",
                    time.as_secs_f64()
                )
            }
            None => "the time that the API server waits was over before".to_owned(),
        };
        EvaluationError::new(Reason::EvaluationSkipped, format!("the policy was not asked: {why}; try again"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// Asks members, each with its limit and the time that it takes unless its deadline comes first, both in milliseconds. Gives the time
    /// that each one had; none where it was not asked.
    fn had(timeout: Option<u64>, members: &[(u64, u64)]) -> Vec<Option<u128>> {
        let start = Instant::now();
        let until = timeout.map(|timeout| start + ms(timeout));
        let mut deadlines = MemberDeadlines::new(until, members.iter().map(|(limit, _)| ms(*limit)));
        let mut now = start;
        let one = |(limit, takes): &(u64, u64)| {
            let deadline = deadlines.next(now, ms(*limit)).ok()?;
            let had = deadline - now;
            now += had.min(ms(*takes));
            Some(had.as_millis())
        };
        members.iter().map(one).collect()
    }

    const SLEEPER: (u64, u64) = (10_000, u64::MAX);
    const QUICK: (u64, u64) = (2000, 1);

    #[test]
    fn z03_where_the_sender_waits_for_all_each_has_its_own_limit() {
        for place in 0..4 {
            let mut members = [QUICK; 4];
            members[place] = SLEEPER;
            let expected: Vec<_> = members.iter().map(|(limit, _)| Some(u128::from(*limit))).collect();
            assert_eq!(had(Some(16_000), &members), expected, "at {place}");
            assert_eq!(had(None, &members), expected);
        }
    }

    #[test]
    fn z03_where_it_does_not_each_has_its_share() {
        assert_eq!(had(Some(8000), &[SLEEPER, QUICK, QUICK, QUICK]), [Some(5000), Some(1000), Some(1499), Some(2000)]);
        assert_eq!(had(Some(8000), &[QUICK, SLEEPER, QUICK, QUICK]), [Some(1000), Some(5713), Some(1142), Some(2000)]);
        assert_eq!(had(Some(8000), &[QUICK, QUICK, QUICK, SLEEPER]), [Some(1000), Some(1142), Some(1333), Some(7997)]);
    }

    #[test]
    fn they_are_over_after_the_last_member() {
        let (now, limit) = (Instant::now(), ms(2000));
        let mut deadlines = MemberDeadlines::new(None, [limit; 2].into_iter());
        assert!(!deadlines.are_over());
        deadlines.next(now, limit).expect("there is time");
        assert!(!deadlines.are_over());
        deadlines.next(now, limit).expect("there is time");
        assert!(deadlines.are_over());
    }

    #[test]
    fn who_is_alone_has_what_the_sender_waits() {
        assert_eq!(had(Some(1000), &[SLEEPER]), [Some(1000)]);
        assert_eq!(had(Some(5000), &[QUICK]), [Some(2000)]);
    }

    #[test]
    fn z03_who_cannot_be_asked_any_more_is_told_whose_time_it_was() {
        let (start, slow) = (Instant::now(), "cluster/slow".parse().expect("an id"));
        let mut deadlines = MemberDeadlines::new(Some(start + ms(1000)), [ms(2000); 3].into_iter());
        assert!(deadlines.next(start, ms(2000)).is_ok());
        // It ended after its deadline, as it may on a busy machine.
        deadlines.took(&slow, ms(994));
        deadlines.took(&"cluster/quick".parse().expect("an id"), ms(1));
        let error = deadlines.next(start + ms(995), ms(2000)).expect_err("no time is left");
        assert_eq!(error.reason, Reason::EvaluationSkipped);
        assert_eq!(
            error.text,
            "the policy was not asked: policy cluster/slow before it took 1.0 s of the time that the API server waits; try again"
        );
        let mut late = MemberDeadlines::new(Some(start), [ms(2000)].into_iter());
        let error = late.next(start, ms(2000)).expect_err("no time is left");
        assert!(error.text.contains("was over before"), "{}", error.text);
    }

    #[test]
    fn nobody_is_asked_for_next_to_nothing() {
        let many = vec![(2000, 0); 1000];
        assert_eq!(had(Some(100), &many)[0], Some(10));
    }
}
