//! I3: how soon a row of the fault catalogue recovers, by the name of the test that runs.

use std::thread;
use std::time::Duration;

/// How soon something must be right again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bound {
    /// The longest that it may take.
    pub(crate) limit: Duration,
    /// Why it is that long.
    pub(crate) reason: &'static str,
}

/// The longest time between two attempts of the loader in seconds, as [`crate::PodSetup`] sets it.
const STEP: u64 = 2;

/// What counts for each row that is not in [`ROWS`].
const USUAL: Bound = bound(10 + STEP, "ten seconds and one step of the backoff, which is two seconds in tests");

/// The rows that state a bound of their own, and those whose tests need another one.
const ROWS: [(&str, Bound); 10] = [
    ("E12", bound(2, "the row's own: the last edit answers within two seconds")),
    (
        "E16",
        bound(12, "ten seconds after the last sign of life, and the fail point hangs the runtime in its second second"),
    ),
    ("E17", bound(3, "two seconds after the last tick, and then the next probe")),
    (
        "L02",
        bound(60, "attempts under way, of seven policies of one host, end at the header timeout of 20 seconds first"),
    ),
    ("L03", bound(30, "the download itself takes 14 seconds")),
    ("L05", bound(20, "manifest and module are each refused for three seconds")),
    ("L24", bound(60, "the row's own: all are Ready within a minute")),
    ("S05", bound(1, "the row's own: the new answer comes within a second")),
    ("V12", bound(1, "the row's own: the right set serves within a second")),
    ("V17", bound(60, "every write takes five seconds, and several come before the last")),
];

const fn bound(seconds: u64, reason: &'static str) -> Bound {
    Bound { limit: Duration::from_secs(seconds), reason }
}

/// The bound of the row that the running test is named after. Tests of no row have none.
pub(crate) fn of_this_test() -> Option<Bound> {
    of(thread::current().name()?)
}

/// The same where it is about Ready, never below the usual one: a status comes after an answer.
pub(crate) fn of_ready_in_this_test() -> Option<Bound> {
    of_this_test().map(|bound| if bound.limit < USUAL.limit { USUAL } else { bound })
}

/// Whether the running test is one of a row.
pub(crate) fn is_row_tested() -> bool {
    of_this_test().is_some()
}

/// The largest bound of the rows that a test is named after: `modules::fault_l01_l02_…` stands for two.
fn of(test: &str) -> Option<Bound> {
    let (_, name) = test.rsplit_once("::").unwrap_or(("", test));
    let rows = name.strip_prefix("fault_")?.split('_').map_while(row);
    let bound_of = |row: String| ROWS.iter().find(|(own, _)| *own == row).map_or(USUAL, |(_, bound)| *bound);
    rows.map(bound_of).max_by_key(|bound| bound.limit)
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
    fn a_row_has_its_own_bound_or_the_usual_one() {
        let seconds = |test| of(test).map(|bound| bound.limit.as_secs());
        assert_eq!(seconds("process_swaps::fault_e12_a_thousand_edits"), Some(2));
        assert_eq!(seconds("fault_l09_truncated_blob"), Some(12));
        assert_eq!(seconds("a::b::fault_s05_l24_two"), Some(60), "the largest of both");
        assert_eq!(seconds("promise_of_e12"), None);
        assert_eq!(seconds("fault_finding"), None);
    }
}
