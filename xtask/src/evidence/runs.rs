//! The tests that ran, parsed from the output of the test runners.
//!
//! libtest writes `test path::name ... ok`, in several pieces, and Go writes `--- PASS: TestName (0.00s)`. Between two pieces there may be
//! a whole line of a test itself, which says that it was skipped, why it fails or what it measured (`crates/testkit/src/test_lines.rs`).

use std::collections::BTreeMap;

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TestOutcome {
    Passed,
    Failed,
    Skipped,
}

/// One test that ran, or that its runner skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Its path within its binary, `module::name`.
    pub(crate) test: String,
    pub(crate) outcome: TestOutcome,
    /// Why it was skipped, or the place and message of its first panic. Empty if nothing is known.
    pub(crate) words: String,
    /// Whether its runner counts it as passed, although the test itself reported that it was skipped.
    pub(crate) is_skipped_inside: bool,
}

impl Run {
    /// The name of the test's function.
    pub(crate) fn function(&self) -> &str {
        self.test.rsplit("::").next().unwrap_or(&self.test)
    }
}

/// The tests that ran, in the order in which they ended.
pub(crate) fn parse(output: &str) -> Vec<Run> {
    let mut reader = Reader::default();
    let mut begun = String::new();
    for line in output.split_inclusive('\n') {
        // Without the test's own line, the pieces before and after it form one line again.
        if let Some((before, own)) = own_line(line) {
            begun += before;
            reader.note(own);
            continue;
        }
        begun += line;
        reader.read(begun.trim_end_matches(['\n', '\r']));
        begun.clear();
    }
    reader.read(&begun);
    let Reader { mut runs, printed, .. } = reader;
    for run in runs.iter_mut().filter(|run| run.outcome == TestOutcome::Failed && run.words.is_empty()) {
        run.words = printed.get(&run.test).cloned().unwrap_or_default();
    }
    runs
}

/// The complete lines that report a panic.
pub(crate) fn panics(output: &str) -> impl Iterator<Item = &str> {
    let panic = |line| own_line(line).filter(|(_, own)| own.kind == Kind::Panic).map(|(_, own)| own.line);
    output.lines().filter_map(panic)
}

/// What a line of a test reports.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Skip,
    Panic,
    Note,
}

/// A line that a test wrote itself.
struct Own<'o> {
    line: &'o str,
    kind: Kind,
    test: &'o str,
    words: &'o str,
}

/// The line that a test itself wrote, and the text before it: nothing, or a piece of libtest's output.
fn own_line(line: &str) -> Option<(&str, Own<'_>)> {
    let own = |at: usize, mark: &str, kind: Kind| {
        let line = line[at..].trim_end();
        let (test, words) = line[mark.len()..].split_once(": ")?;
        let is_name = !test.is_empty() && !test.contains(char::is_whitespace);
        is_name.then_some(Own { line, kind, test, words })
    };
    let found = |(mark, kind): (&str, Kind)| {
        let at = line.find(mark).filter(|at| *at == 0 || line.starts_with("test "))?;
        Some((&line[..at], own(at, mark, kind)?))
    };
    [("SKIPPED ", Kind::Skip), ("FAILING ", Kind::Panic), ("NOTED ", Kind::Note)].into_iter().find_map(found)
}

#[derive(Default)]
struct Reader {
    runs: Vec<Run>,
    /// The test whose name libtest wrote last, if it has no outcome yet.
    waiting: Option<String>,
    /// The reasons of tests that reported that they were skipped.
    skips: BTreeMap<String, String>,
    /// The first panic in each test's thread.
    panics: BTreeMap<String, String>,
    /// The first panic in each thread, as the standard library prints it. libtest shows that after all outcomes.
    printed: BTreeMap<String, String>,
    /// Thread and place of a panic whose message is in the next line.
    panicking: Option<(String, String)>,
}

impl Reader {
    fn note(&mut self, own: Own<'_>) {
        let reported = match own.kind {
            Kind::Skip => &mut self.skips,
            Kind::Panic => &mut self.panics,
            // Only for readers of the log.
            Kind::Note => return,
        };
        reported.entry(own.test.to_owned()).or_insert_with(|| own.words.to_owned());
    }

    fn read(&mut self, line: &str) {
        if let Some((thread, place)) = self.panicking.take() {
            self.printed.entry(thread).or_insert_with(|| format!("{place}: {line}"));
        }
        if let Some((name, outcome)) = go_result(line) {
            self.ended(name, outcome);
        } else if let Some((name, rest)) = line.strip_prefix("test ").and_then(|line| line.split_once(" ... ")) {
            let name = name.strip_suffix(" - should panic").unwrap_or(name);
            match rust_result(rest) {
                Some(outcome) => self.ended(name, outcome),
                None => self.waiting = Some(name.to_owned()),
            }
        } else if let Some(outcome) = rust_result(line)
            && let Some(name) = self.waiting.take()
        {
            self.ended(&name, outcome);
        } else {
            self.panicking = printed_panic(line);
        }
    }

    fn ended(&mut self, test: &str, reported: TestOutcome) {
        self.waiting = None;
        let (skip, panic) = (self.skips.remove(test), self.panics.remove(test));
        let is_skipped_inside = reported == TestOutcome::Passed && skip.is_some();
        let outcome = if is_skipped_inside { TestOutcome::Skipped } else { reported };
        let words = match outcome {
            TestOutcome::Passed => None,
            TestOutcome::Failed => panic,
            TestOutcome::Skipped => skip,
        };
        self.runs.push(Run { test: test.to_owned(), outcome, words: words.unwrap_or_default(), is_skipped_inside });
    }
}

/// `thread 'a::b' (4711) panicked at x.rs:1:2:`
fn printed_panic(line: &str) -> Option<(String, String)> {
    let (thread, rest) = line.strip_prefix("thread '")?.split_once('\'')?;
    let (_, place) = rest.split_once(" panicked at ")?;
    Some((thread.to_owned(), place.trim_end_matches(':').to_owned()))
}

/// `ok`, `FAILED`, `ignored, starts a cluster`
fn rust_result(text: &str) -> Option<TestOutcome> {
    match text {
        "ok" => Some(TestOutcome::Passed),
        "FAILED" => Some(TestOutcome::Failed),
        "ignored" => Some(TestOutcome::Skipped),
        other => other.starts_with("ignored, ").then_some(TestOutcome::Skipped),
    }
}

/// `--- PASS: TestA (0.00s)`; the parts of a test are indented and do not count.
fn go_result(line: &str) -> Option<(&str, TestOutcome)> {
    let (result, rest) = line.strip_prefix("--- ")?.split_once(": ")?;
    let outcome = match result {
        "PASS" => TestOutcome::Passed,
        "FAIL" => TestOutcome::Failed,
        "SKIP" => TestOutcome::Skipped,
        _ => return None,
    };
    Some((rest.split_whitespace().next()?, outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests with their outcomes and words.
    fn outcomes(output: &str) -> Vec<(String, TestOutcome, String)> {
        parse(output).into_iter().map(|run| (run.test, run.outcome, run.words)).collect()
    }

    fn run(test: &str, outcome: TestOutcome, words: &str) -> (String, TestOutcome, String) {
        (test.to_owned(), outcome, words.to_owned())
    }

    #[test]
    fn each_test_of_libtest_has_its_outcome() {
        let output = "\nrunning 4 tests\ntest loads::one ... ok\ntest two ... FAILED\ntest three ... ignored, starts a cluster\n\
            test four - should panic ... ok\ntest slow has been running for over 60 seconds\n\nfailures:\n\n---- two stdout ----\n\
            it says ok\n\nfailures:\n    two\n\n\
            test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s\n";
        assert_eq!(
            outcomes(output),
            [
                run("loads::one", TestOutcome::Passed, ""),
                run("two", TestOutcome::Failed, ""),
                run("three", TestOutcome::Skipped, ""),
                run("four", TestOutcome::Passed, ""),
            ],
        );
        assert_eq!(parse(output)[0].function(), "one");
    }

    #[test]
    fn a_test_that_says_so_was_skipped() {
        let output = "SKIPPED volume::v01: only root can mount\ntest volume::v01 ... ok\ntest volume::v02 ... ok\n";
        assert_eq!(
            outcomes(output),
            [
                run("volume::v01", TestOutcome::Skipped, "only root can mount"),
                run("volume::v02", TestOutcome::Passed, "")
            ],
        );
        assert_eq!(parse(output).iter().map(|run| run.is_skipped_inside).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn a_line_of_a_test_may_be_in_the_middle_of_one_of_libtest() {
        // Written by another thread between two pieces.
        for (one, two) in [("test a::b", " ... ok\n"), ("test a::b ... ", "ok\n"), ("test a::b ... ok", "\n")] {
            let output = format!("{one}SKIPPED c::d: nothing: here\n{two}test c::d ... ok\n");
            assert_eq!(
                outcomes(&output),
                [run("a::b", TestOutcome::Passed, ""), run("c::d", TestOutcome::Skipped, "nothing: here")],
                "{one:?}",
            );
        }
    }

    #[test]
    fn what_a_test_measured_changes_no_outcome() {
        let output =
            "NOTED a::b: 7 answers\ntest a::b ... NOTED a::b: 8 answers\nok\ntest c ... NOTED c: none\nFAILED\n";
        assert_eq!(outcomes(output), [run("a::b", TestOutcome::Passed, ""), run("c", TestOutcome::Failed, "")]);
        assert!(panics(output).next().is_none());
    }

    #[test]
    fn one_test_at_a_time_has_its_name_first_and_its_outcome_last() {
        let output = "test one ... SKIPPED one: no node\nok\ntest two ... 17.1 s: a fault\nok\ntest three ... FAILED\n";
        assert_eq!(
            outcomes(output),
            [
                run("one", TestOutcome::Skipped, "no node"),
                run("two", TestOutcome::Passed, ""),
                run("three", TestOutcome::Failed, ""),
            ],
        );
    }

    #[test]
    fn a_failed_test_has_its_first_panic_and_a_skip_does_not_hide_it() {
        let output = "FAILING a::b: x.rs:1:2: first\nSKIPPED a::b: in part\nFAILING a::b: x.rs:3:4: second\n\
            FAILING worker: y.rs:1:1: elsewhere\ntest a::b ... FAILED\nFAILING e::f: z.rs:1:1: expected\ntest e::f ... ok\n";
        assert_eq!(
            outcomes(output),
            [run("a::b", TestOutcome::Failed, "x.rs:1:2: first"), run("e::f", TestOutcome::Passed, "")],
        );
        let lines: Vec<_> = panics("test q ... FAILING a::b: x.rs:1:2: first\nSKIPPED a::b: no\nFAILED\n").collect();
        assert_eq!(lines, ["FAILING a::b: x.rs:1:2: first"]);
    }

    #[test]
    fn a_failed_test_that_says_nothing_itself_has_the_printed_panic() {
        let output = "test a::b ... FAILED\ntest c ... FAILED\n\nfailures:\n\n---- a::b stdout ----\n\n\
            thread 'a::b' (4711) panicked at x.rs:1:2:\nassertion failed: one\nnote: run with `RUST_BACKTRACE=1`\n\n\
            ---- c stdout ----\nthread 'c' panicked at y.rs:3:4:\nwhy\n";
        assert_eq!(
            outcomes(output),
            [
                run("a::b", TestOutcome::Failed, "x.rs:1:2: assertion failed: one"),
                run("c", TestOutcome::Failed, "y.rs:3:4: why"),
            ],
        );
    }

    #[test]
    fn a_binary_that_dies_leaves_its_last_test_without_an_outcome() {
        assert_eq!(outcomes("test one ... ok\ntest two ... "), [run("one", TestOutcome::Passed, "")]);
    }

    #[test]
    fn tests_in_go_are_read_without_their_parts() {
        let output = "=== RUN   TestA\n    --- PASS: TestA/one (0.00s)\n--- PASS: TestA (0.00s)\n--- FAIL: TestB (0.01s)\n--- SKIP: TestC (0.00s)\n";
        assert_eq!(
            outcomes(output),
            [
                run("TestA", TestOutcome::Passed, ""),
                run("TestB", TestOutcome::Failed, ""),
                run("TestC", TestOutcome::Skipped, ""),
            ],
        );
    }

    #[test]
    fn other_lines_are_not_taken_for_a_tests_own() {
        let words = "SKIPPED: nothing\nSKIPPED in part: no Go\nleft: \"SKIPPED a: b\"\n";
        assert!(outcomes(words).is_empty());
        assert!(panics(words).next().is_none());
    }
}
