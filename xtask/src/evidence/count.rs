//! How many rows a complete run has shown: those of the fault catalogue, and those of the pages that name tests.

use std::collections::{BTreeMap, BTreeSet};

use super::catalogue::{self, rows_of};
use super::outcomes::Shown;
use super::pages;
use super::runs::{Run, TestOutcome};
use super::sources::{self, TestFunction};
use crate::files::TextFile;

/// The result of a complete run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    /// One line for the catalogue and for each page, one for each test whose skip leaves a row only partly shown, and one for each test
    /// that should have run but did not.
    pub(crate) lines: Vec<String>,
    /// What was shown of each row of the catalogue, by its id.
    pub(crate) rows: BTreeMap<String, Shown>,
    /// The names of the tests of these rows.
    pub(crate) tests: BTreeSet<String>,
    /// How many tests did not run.
    pub(crate) missing: u64,
}

/// Counts what these tests have shown. `left_out` has parts of the paths of files whose tests were all skipped.
pub(crate) fn count(files: &[TextFile], runs: &[Run], left_out: &[&str]) -> Count {
    let functions = sources::tests(files);
    let mut tally = Tally::new(&functions, runs, left_out);
    let mut of_rows: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for function in &functions {
        for row in rows_of(&function.name) {
            of_rows.entry(row).or_default().push(&function.name);
        }
    }
    let of_catalogue: Vec<_> = catalogue::of(files)
        .into_iter()
        .map(|row| {
            let shown = tally.row(&row.id, of_rows.get(&row.id).into_iter().flatten().copied());
            (row.id, shown)
        })
        .collect();
    let mut lines = vec![line("fault catalogue", &of_catalogue)];
    for page in pages::of(files) {
        let rows: Vec<_> = pages::named(&page.text)
            .into_iter()
            .map(|row| {
                let shown = tally.row(&row.title, row.tests.iter().map(String::as_str));
                (row.title, shown)
            })
            .collect();
        lines.push(line(&page.path.display().to_string(), &rows));
    }
    let in_part = |(test, rows): (&String, &BTreeSet<String>)| {
        let rows: Vec<_> = rows.iter().map(String::as_str).collect();
        format!("IN PART: {test} was skipped, so these rows are shown by their other tests only: {}", rows.join(", "))
    };
    lines.extend(tally.in_part.iter().map(in_part));
    let missing = tally.missing.len() as u64;
    let not_run = |test: &String| format!("NOT RUN: {test} stands for a row and did not run to its end");
    lines.extend(tally.missing.iter().map(not_run));
    let tests = of_rows.values().flatten().map(|&name| name.to_owned()).collect();
    Count { lines, rows: of_catalogue.into_iter().collect(), tests, missing }
}

/// `fault catalogue: 2 of 4 rows shown by tests that all passed; in part: L01; no test: K01`
fn line(what: &str, rows: &[(String, Shown)]) -> String {
    let of = |wanted: Shown| -> Vec<&str> {
        rows.iter().filter(|(_, shown)| *shown == wanted).map(|(row, _)| row.as_str()).collect()
    };
    let mut text = format!("{what}: {} of {} rows shown by tests that all passed", of(Shown::Passed).len(), rows.len());
    for shown in [Shown::InPart, Shown::Skipped, Shown::Untested, Shown::NotRun, Shown::Failed] {
        let rows = of(shown);
        if !rows.is_empty() {
            text += &format!("; {shown}: {}", rows.join(", "));
        }
    }
    text
}

/// The outcomes of all tests, by the names of their functions.
struct Tally<'r> {
    outcomes: BTreeMap<&'r str, Vec<TestOutcome>>,
    /// How many functions have each name, without those that were left out.
    expected: BTreeMap<&'r str, usize>,
    /// The names of which at least one function was left out.
    left_out: BTreeSet<&'r str>,
    /// Tests that were skipped, with the rows that other tests have shown.
    in_part: BTreeMap<String, BTreeSet<String>>,
    /// The tests that stand for a row but did not run.
    missing: BTreeSet<String>,
}

impl<'r> Tally<'r> {
    fn new(functions: &'r [TestFunction], runs: &'r [Run], left_out: &[&str]) -> Self {
        let mut tally = Self {
            outcomes: BTreeMap::new(),
            expected: BTreeMap::new(),
            left_out: BTreeSet::new(),
            in_part: BTreeMap::new(),
            missing: BTreeSet::new(),
        };
        for run in runs {
            tally.outcomes.entry(run.function()).or_default().push(run.outcome);
        }
        for function in functions {
            if left_out.iter().any(|part| function.file.contains(part)) {
                tally.left_out.insert(&function.name);
            } else {
                *tally.expected.entry(&function.name).or_default() += 1;
            }
        }
        tally
    }

    /// A row is shown if all its tests passed, and shown in part if some were skipped. If one failed or did not run, the row is
    /// not shown.
    fn row<'t>(&mut self, row: &str, tests: impl Iterator<Item = &'t str>) -> Shown {
        let tests: Vec<_> = tests.map(|test| (test, self.test(test))).collect();
        let (Some(best), Some(worst)) =
            (tests.iter().map(|(_, shown)| *shown).min(), tests.iter().map(|(_, shown)| *shown).max())
        else {
            return Shown::Untested;
        };
        if worst >= Shown::NotRun || best == worst && worst != Shown::InPart {
            return worst;
        }
        for (test, _) in tests.iter().filter(|(_, shown)| *shown != Shown::Passed) {
            self.in_part.entry((*test).to_owned()).or_default().insert(row.to_owned());
        }
        Shown::InPart
    }

    /// Several functions may have one name: then all must have passed.
    fn test(&mut self, test: &str) -> Shown {
        let outcomes = self.outcomes.get(test).map(Vec::as_slice).unwrap_or_default();
        let expected = self.expected.get(test).copied().unwrap_or(0);
        if outcomes.contains(&TestOutcome::Failed) {
            Shown::Failed
        } else if outcomes.len() < expected || (expected == 0 && !self.left_out.contains(test)) {
            self.missing.insert(test.to_owned());
            Shown::NotRun
        } else if !outcomes.contains(&TestOutcome::Passed) {
            Shown::Skipped
        } else if outcomes.contains(&TestOutcome::Skipped) || self.left_out.contains(test) {
            Shown::InPart
        } else {
            Shown::Passed
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> TextFile {
        TextFile { path: path.into(), text: text.replace("FAULT_", catalogue::PREFIX) }
    }

    fn files() -> Vec<TextFile> {
        let tests = "#[test]\nfn FAULT_l01_one() {}\n#[test]\nfn FAULT_l01_l02_two() {}\n#[test]\nfn FAULT_l04_four() {}\n\
            #[test]\nfn acceptance_of_all() {}\n";
        vec![
            file(
                catalogue::PAGE,
                "## 4. Fetching\n| L01 | a | b |\n| L02 | c | d |\n| L03 | e | f |\n| L04 | g | h |\n",
            ),
            file(
                "docs/compatibility.md",
                "| Rust | works | `acceptance_of_all` |\n| Go | works | `FAULT_l04_four` |\n",
            ),
            file("tests/tests/faults/main.rs", tests),
            file("e2e/tests/node/main.rs", "#[test]\nfn FAULT_l02_on_a_node() {}\n"),
        ]
    }

    fn run(test: &str, outcome: TestOutcome) -> Run {
        let test = test.replace("FAULT_", catalogue::PREFIX);
        Run { test, outcome, words: String::new(), is_skipped_inside: false }
    }

    /// The tests of rows in [`files`].
    fn tests() -> BTreeSet<String> {
        let names = ["l01_one", "l01_l02_two", "l02_on_a_node", "l04_four"];
        names.map(|name| format!("{}{name}", catalogue::PREFIX)).into()
    }

    fn in_part(test: &str, row: &str) -> String {
        let test = format!("{}{test}", catalogue::PREFIX);
        format!("IN PART: {test} was skipped, so these rows are shown by their other tests only: {row}")
    }

    #[test]
    fn a_test_that_was_skipped_is_not_hidden_by_one_that_passed() {
        let runs = [
            run("a::FAULT_l01_one", TestOutcome::Skipped),
            run("a::FAULT_l01_l02_two", TestOutcome::Passed),
            run("a::FAULT_l04_four", TestOutcome::Skipped),
            run("b::acceptance_of_all", TestOutcome::Passed),
        ];
        let rows = [("L01", Shown::InPart), ("L02", Shown::InPart), ("L03", Shown::Untested), ("L04", Shown::Skipped)];
        assert_eq!(
            count(&files(), &runs, &["e2e/tests/node/"]),
            Count {
                lines: vec![
                    "fault catalogue: 0 of 4 rows shown by tests that all passed; in part: L01, L02; skipped: L04; \
                     no test: L03"
                        .to_owned(),
                    "docs/compatibility.md: 1 of 2 rows shown by tests that all passed; skipped: Go".to_owned(),
                    in_part("l01_one", "L01"),
                    in_part("l02_on_a_node", "L02"),
                ],
                rows: rows.map(|(row, shown)| (row.to_owned(), shown)).into(),
                tests: tests(),
                missing: 0,
            },
        );
    }

    #[test]
    fn a_test_that_did_not_run_fails_a_whole_run_and_one_that_failed_shows_no_row() {
        let runs = [
            run("FAULT_l01_one", TestOutcome::Passed),
            run("FAULT_l01_l02_two", TestOutcome::Failed),
            run("FAULT_l04_four", TestOutcome::Passed),
            run("FAULT_l02_on_a_node", TestOutcome::Passed),
        ];
        let rows = [("L01", Shown::Failed), ("L02", Shown::Failed), ("L03", Shown::Untested), ("L04", Shown::Passed)];
        assert_eq!(
            count(&files(), &runs, &[]),
            Count {
                lines: vec![
                    "fault catalogue: 1 of 4 rows shown by tests that all passed; no test: L03; failed: L01, L02"
                        .to_owned(),
                    "docs/compatibility.md: 1 of 2 rows shown by tests that all passed; not run: Rust".to_owned(),
                    "NOT RUN: acceptance_of_all stands for a row and did not run to its end".to_owned(),
                ],
                rows: rows.map(|(row, shown)| (row.to_owned(), shown)).into(),
                tests: tests(),
                missing: 1,
            },
        );
    }

    #[test]
    fn each_of_two_tests_of_one_name_must_run() {
        let mut files = files();
        files.push(file("tests/tests/promises/main.rs", "#[test]\nfn FAULT_l01_one() {}\n"));
        let runs = [run("FAULT_l01_one", TestOutcome::Passed), run("FAULT_l01_l02_two", TestOutcome::Passed)];
        let counted = count(&files, &runs, &["e2e/"]);
        assert!(counted.lines[0].contains("not run: L01, L04"), "{counted:?}");
    }
}
