//! I3: how soon the programs must work again in a row of the fault catalogue, by the name of the running test.

use std::thread;
use std::time::Duration;

use crate::Moment;

/// How often a measurement of a few seconds is repeated until it is in time: a busy machine is late now and then, while a program that
/// misses its bound is late each time.
const ROUNDS: u32 = 5;

/// How soon something must work again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    /// The longest that it may take.
    pub limit: Duration,
    /// Why the bound is that long.
    pub reason: &'static str,
}

/// The longest time between two attempts of the loader in seconds, as the tests set it.
const STEP: u64 = 2;

/// The longest time between two tries of a call to the API server in seconds: after a refusal, which somebody has to end, and after another
/// failure.
const REFUSED: u64 = 15;
const AWAY: u64 = 4;

/// The bound of each row that is not in [`ROWS`].
const USUAL: Bound = bound(10 + STEP, "ten seconds and one step of the backoff, which is two seconds in tests");

/// The rows that state a bound of their own, and those whose tests need another one.
const ROWS: [(&str, Bound); 25] = [
    (
        "B10",
        bound(
            4 + 50 + 10,
            "a pause of four seconds, and 50 without a failure, by which a watch without changes shows that it works",
        ),
    ),
    ("E01", bound(2, "the row's own: a hundred policies are back within two seconds")),
    ("E02", bound(2, "as E01")),
    ("E12", bound(2, "the row's own: the last edit answers within two seconds")),
    (
        "E16",
        bound(12, "ten seconds after the last sign of life, and the fail point hangs the runtime in its second second"),
    ),
    ("E17", bound(3, "two seconds after the last tick, and then the next probe")),
    ("K02", bound(10, "as K03: the same tests start the replicas that they stop")),
    ("K03", bound(10, "the row's own: entries and counts follow within ten seconds")),
    (
        "K12",
        bound(
            15 + 2 + 10 + STEP,
            "the last fault may have taken the leader: another leads as in R15, and then as usual",
        ),
    ),
    ("L02", bound(10 + 12, "attempts under way end at the header timeout of ten seconds first")),
    ("L03", bound(30, "the download itself takes 14 seconds")),
    ("L05", bound(20, "the source is not asked again for seven seconds, or for three for each of manifest and module")),
    ("L24", bound(60, "the row's own: all are Ready within a minute")),
    ("R01", bound(5, "the row's own: the status is right within five seconds of the return")),
    ("R08", bound(10 + REFUSED, "ten seconds and the longest pause after a call that the API server refuses")),
    ("R12", bound(10 + REFUSED, "as R08: without the definition, the API server answers 404")),
    ("R15", bound(15 + 2, "the row's own: another leads within the time of the Lease, 15 seconds, and two more")),
    ("R19", bound(10, "the row's own: ten seconds after the deletion of the pod")),
    ("R25", bound(5, "the row's own: repaired within five seconds")),
    ("R32", bound(10 + AWAY, "ten seconds and the longest pause after a call that fails")),
    ("S05", bound(1, "the row's own: the new answer comes within a second")),
    ("V12", bound(1, "the row's own: the right set serves within a second")),
    ("V13", bound(2, "the row's own: the volume is read every second while it cannot be watched")),
    ("V17", bound(60, "every write takes five seconds, and several come before the last")),
    ("W02", bound(5, "the row's own: repaired within five seconds")),
];

const fn bound(seconds: u64, reason: &'static str) -> Bound {
    Bound { limit: Duration::from_secs(seconds), reason }
}

impl Bound {
    /// The bound of the row that the running test is named after; `None` for a test that is not named after a row.
    pub fn of_this_test() -> Option<Self> {
        of(thread::current().name()?)
    }

    /// The bound for Ready, which is never below the usual one: a status comes after an answer.
    pub fn of_ready_in_this_test() -> Option<Self> {
        Self::of_this_test().map(|bound| if bound.limit < USUAL.limit { USUAL } else { bound })
    }

    /// Checks whether the time between two moments was within the bound. The time that other programs or a stalled machine took does not
    /// count.
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

    /// Asserts that the time between two moments was within the bound, as [`Bound::check`] counts it.
    ///
    /// # Panics
    /// When it took longer.
    pub fn assert(&self, what: &str, since: &Moment, now: &Moment) {
        self.check(what, since, now).unwrap_or_else(|late| panic!("{late}"));
    }
}

/// Repeats a round until it is in time. Each round breaks and mends the same thing again, and returns whether that was
/// in time.
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
    let bound_of = |row: String| ROWS.iter().find(|(own, _)| *own == row).map_or(USUAL, |(_, bound)| *bound);
    rows.map(bound_of).max_by_key(|bound| bound.limit)
}

/// The row of a part of a test's name: `L01` for `l01`.
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
        assert_eq!(seconds("fault_k03_fifty"), Some(10));
        assert_eq!(seconds("fleet::fault_k02_k03_many"), Some(10));
        assert_eq!(seconds("a::b::fault_s05_l24_two"), Some(60), "the largest of both");
        assert_eq!(seconds("promise_of_e12"), None);
        assert_eq!(seconds("fault_finding"), None);
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
