//! I3: how soon a row of the fault catalogue is right again, by the name of the test that runs.

use std::thread;
use std::time::Duration;

use crate::Moment;

/// How often a measurement of a few seconds is repeated until it is in time: a busy machine is late now and then, while a program that does
/// not keep its bound is late each time.
const ROUNDS: u32 = 5;

/// How soon something must be right again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    /// The longest that it may take.
    pub limit: Duration,
    /// Why it is that long.
    pub reason: &'static str,
}

/// The bounds of rows that are tried with an API server.
const ROWS: [(&str, Bound); 6] = [
    ("K03", bound(10, "the row's own: entries and counts follow within ten seconds")),
    ("R01", bound(5, "the row's own: the status is right within five seconds of the return")),
    ("R15", bound(15 + 2, "the row's own: another leads within the time of the Lease, 15 seconds, and two more")),
    ("R19", bound(10, "the row's own: ten seconds after the deletion of the pod")),
    ("R25", bound(5, "the row's own: repaired within five seconds")),
    ("W02", bound(5, "the row's own: repaired within five seconds")),
];

const fn bound(seconds: u64, reason: &'static str) -> Bound {
    Bound { limit: Duration::from_secs(seconds), reason }
}

impl Bound {
    /// The bound of the row that the running test is named after.
    ///
    /// # Panics
    /// When the test is named after no row with a bound.
    pub fn of_this_test() -> Self {
        let test = thread::current();
        let name = test.name().unwrap_or_default();
        of(name).unwrap_or_else(|| panic!("{name} is named after no row that has a bound"))
    }

    /// Whether what lasted from one moment to another one was in time. What other programs and a machine that stood still took of the time
    /// does not count.
    ///
    /// # Errors
    /// When it took longer.
    pub fn check(&self, what: &str, since: &Moment, now: &Moment) -> Result<(), String> {
        let Self { limit, reason } = self;
        let (took, allowed) = (since.until(now), since.allowed(*limit, now));
        crate::note(&format!("{what} took {took:.1?} of {limit:?}, {allowed:.1?} allowed here and now"));
        if took <= allowed {
            return Ok(());
        }
        Err(format!("{what} took {took:?}, and {allowed:?} were allowed here and now (I3: {limit:?}, {reason})"))
    }
}

/// Repeats a round until it is in time. Each round breaks and mends the same again, and says whether that was in time.
///
/// # Panics
/// When no round is in time.
pub fn one_round_in_time(mut round: impl FnMut(u32) -> Result<(), String>) {
    let mut late = Vec::new();
    for number in 0..ROUNDS {
        match round(number) {
            Ok(()) => return,
            Err(error) => late.push(error),
        }
    }
    panic!("no round was in time: {late:#?}");
}

/// The largest bound of the rows that a test is named after: `fleet::fault_k02_k03_…` stands for two.
fn of(test: &str) -> Option<Bound> {
    let (_, name) = test.rsplit_once("::").unwrap_or(("", test));
    let rows = name.strip_prefix("fault_")?.split('_').map_while(row);
    let bound_of = |row: String| ROWS.iter().find(|(own, _)| *own == row).map(|(_, bound)| *bound);
    rows.filter_map(bound_of).max_by_key(|bound| bound.limit)
}

/// `L01` of `l01`.
fn row(part: &str) -> Option<String> {
    let (letter, number) = (part.chars().next()?, part.get(1..)?);
    let is_row = letter.is_ascii_lowercase() && number.len() == 2 && number.bytes().all(|digit| digit.is_ascii_digit());
    is_row.then(|| part.to_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_bound_that_it_states() {
        let seconds = |test| of(test).map(|bound| bound.limit.as_secs());
        assert_eq!(seconds("objects::fault_r25_an_edited_status_is_repaired"), Some(5));
        assert_eq!(seconds("fault_k02_k03_many"), Some(10));
        assert_eq!(seconds("a::b::fault_r01_r15_two"), Some(17), "the largest of both");
        assert_eq!(seconds("promise_of_r25"), None);
        assert_eq!(seconds("fault_x09_clean"), None);
    }

    #[test]
    fn one_round_of_five_is_enough() {
        one_round_in_time(|round| if round == 4 { Ok(()) } else { Err("late".to_owned()) });
    }

    #[test]
    #[should_panic(expected = "no round was in time")]
    fn five_late_rounds_are_too_many() {
        one_round_in_time(|_| Err("late".to_owned()));
    }
}
