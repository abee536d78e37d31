//! How long to wait after failed calls. Pure: the random numbers for jitter come from the caller.

use std::time::Duration;

use portcullis_util::Backoff;

use crate::CallError;

/// The first pause after a failed call.
const FIRST: Duration = Duration::from_millis(250);
/// Longest pause while the API server is unavailable or busy: missed work is done within seconds of its return.
const LONGEST_AWAY: Duration = Duration::from_secs(4);
/// Longest pause while it refuses the call: an administrator has to change something first.
const LONGEST_REFUSED: Duration = Duration::from_secs(15);

/// The pauses between tries of a call to the API server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retry {
    failures: u32,
    /// Whether the API server refused the last try.
    is_refused: bool,
}

impl Retry {
    /// Notes that a try succeeded.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Notes that a try failed; returns how long to wait before the next one. The wait that the API server asks for is obeyed,
    /// plus a little, so that not all clients come back at the same time. `random` is from 0 to 1.
    pub fn pause(&mut self, error: &CallError, random: f64) -> Duration {
        let is_refused = matches!(error.code(), Some(400..=428 | 430..=499));
        if is_refused && !self.is_refused {
            // An API server that has just started refuses for a moment, until it has read its RBAC rules. The failures before it came
            // back must not make this wait longer.
            self.failures = 0;
        }
        self.is_refused = is_refused;
        self.failures = self.failures.saturating_add(1);
        let longest = if is_refused { LONGEST_REFUSED } else { LONGEST_AWAY };
        match error {
            CallError::Refused { retry_after: Some(asked), .. } => *asked + FIRST.mul_f64(4.0 * random),
            _ => Backoff { shortest: FIRST, longest }.wait(self.failures, random),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16, retry_after: Option<u64>) -> CallError {
        CallError::Refused { code, retry_after: retry_after.map(Duration::from_secs), message: String::new() }
    }

    fn pauses(error: &CallError, random: f64) -> Vec<u128> {
        let mut retry = Retry::default();
        (0..8).map(|_| retry.pause(error, random).as_millis()).collect()
    }

    #[test]
    fn pauses_are_longer_where_the_api_server_refuses() {
        let away = CallError::Unreachable(String::new());
        assert_eq!(pauses(&away, 1.0), [250, 500, 1000, 2000, 4000, 4000, 4000, 4000]);
        assert_eq!(pauses(&refused(403, None), 1.0)[7], 15_000);
        assert_eq!(pauses(&refused(500, None), 0.0)[7], 2000);
    }

    #[test]
    fn fault_r01_pauses_leave_time_to_write_within_five_seconds_of_the_return_and_are_spread() {
        let mut away = Retry::default();
        for _ in 0..1000 {
            away.pause(&CallError::TimedOut, 0.5);
        }
        let next = |random| {
            let mut client = away;
            client.pause(&CallError::TimedOut, random).as_millis()
        };
        assert_eq!((next(0.0), next(1.0)), (2000, 4000));
        // A hundred clients spread evenly: about ten of them come in each tenth of the time.
        let waits: Vec<_> = (0..100).map(|client| next(f64::from(client) / 100.0)).collect();
        let within = |from: u128| waits.iter().filter(|wait| (from..from + 200).contains(*wait)).count();
        assert!((2000..4000).step_by(200).all(|from| within(from) <= 11), "{waits:?}");
    }

    #[test]
    fn fault_r01_an_api_server_that_has_just_come_back_is_asked_again_soon_though_it_refuses() {
        let mut retry = Retry::default();
        for _ in 0..1000 {
            retry.pause(&CallError::TimedOut, 1.0);
        }
        let forbidden = refused(403, None);
        let pauses: Vec<_> = (0..4).map(|_| retry.pause(&forbidden, 1.0).as_millis()).collect();
        assert_eq!(pauses, [250, 500, 1000, 2000]);
    }

    #[test]
    fn what_the_api_server_asks_for_is_obeyed() {
        assert_eq!(pauses(&refused(429, Some(30)), 0.0)[0], 30_000);
        assert_eq!(pauses(&refused(429, Some(30)), 0.5)[0], 30_500);
    }

    #[test]
    fn after_a_success_pauses_are_short_again() {
        let mut retry = Retry::default();
        retry.pause(&CallError::TimedOut, 1.0);
        retry.pause(&CallError::TimedOut, 1.0);
        retry.reset();
        assert_eq!(retry.pause(&CallError::TimedOut, 1.0), FIRST);
    }
}
