//! Counts tests in the output of the test runners.

use std::fmt;
use std::ops::AddAssign;

/// Numbers of tests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Totals {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Totals {
    /// Counts tests in the output of `cargo test` (its `test result:` lines) or `go test -v` (one line per test).
    pub(crate) fn parse(output: &str) -> Self {
        let mut totals = Self::default();
        for line in output.lines() {
            if let Some(result) = line.strip_prefix("test result: ") {
                totals += rust_result(result);
            } else if line.starts_with("--- PASS: ") {
                totals.passed += 1;
            } else if line.starts_with("--- FAIL: ") {
                totals.failed += 1;
            } else if line.starts_with("--- SKIP: ") {
                totals.skipped += 1;
            }
        }
        totals
    }
}

impl Totals {
    /// The same totals, with `count` tests moved from passed to skipped: their runner counts them as passed, but they
    /// reported that they were skipped.
    pub(crate) fn with_skips_inside(self, count: u64) -> Self {
        let count = count.min(self.passed);
        Self { passed: self.passed - count, skipped: self.skipped + count, ..self }
    }
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// `ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s`
fn rust_result(result: &str) -> Totals {
    let result = result.split_once(". ").map_or(result, |(_, counts)| counts);
    let mut totals = Totals::default();
    for part in result.split("; ") {
        let Some((number, word)) = part.split_once(' ') else { continue };
        let Ok(number) = number.parse::<u64>() else { continue };
        match word {
            "passed" => totals.passed += number,
            "failed" => totals.failed += number,
            "ignored" => totals.skipped += number,
            _ => {}
        }
    }
    totals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_binary_of_a_crate_counts() {
        let output = "running 2 tests\n\
            test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 4 filtered out; finished in 0.00s\n\
            \n\
            test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.50s\n";
        assert_eq!(Totals::parse(output), Totals { passed: 5, failed: 1, skipped: 1 });
    }

    #[test]
    fn tests_in_go_count_without_their_parts() {
        let output = "=== RUN   TestA\n    --- PASS: TestA/one (0.00s)\n--- PASS: TestA (0.00s)\n--- FAIL: TestB (0.00s)\n\
            --- SKIP: TestC (0.00s)\nok  \tallowed-registries\t0.003s\n";
        assert_eq!(Totals::parse(output), Totals { passed: 1, failed: 1, skipped: 1 });
    }

    #[test]
    fn a_skip_inside_a_test_counts_as_one() {
        let totals = Totals { passed: 3, failed: 1, skipped: 0 };
        assert_eq!(totals.with_skips_inside(2), Totals { passed: 1, failed: 1, skipped: 2 });
    }

    #[test]
    fn other_output_counts_nothing() {
        assert_eq!(Totals::parse("error: could not compile\n"), Totals::default());
    }

    #[test]
    fn the_last_line_has_a_fixed_form() {
        assert_eq!(Totals { passed: 12, failed: 0, skipped: 1 }.to_string(), "12 passed, 0 failed, 1 skipped");
    }
}
