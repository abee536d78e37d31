//! The results of tests, for people and for pipelines. Pure.

use std::fmt::Write as _;

use serde::Serialize;

use crate::args::TestForm;
use crate::junit;

/// All cases, in the order of the files, and then what could not be read and the tests that are wrong.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    cases: Vec<Tried>,
}

/// One case.
#[derive(Debug, Serialize)]
pub(super) struct Tried {
    /// The file of the test.
    pub(super) file: String,
    /// The line that its document begins on, from 1.
    pub(super) line: usize,
    /// The name of the test; empty if it has none, or its file could not be read.
    pub(super) test: String,
    /// The policy's id; empty if the test could not be read.
    pub(super) policy: String,
    /// The name of the case.
    pub(super) case: String,
    pub(super) outcome: Outcome,
    /// How the answer differs from what is expected, or why there is no answer.
    pub(super) messages: Vec<String>,
    /// What a reader should know beside that.
    pub(super) notes: Vec<String>,
}

/// The result of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Outcome {
    Passed,
    /// It could not be evaluated.
    NotEvaluated,
    /// The policy does not do what is expected.
    Failed,
}

impl Tried {
    /// `the file` or `the folder` that could not be read, or `the test` that is wrong, as a case of its own: its own cases are not known.
    pub(super) fn not_evaluated(file: String, what: &str, why: String) -> Self {
        Self {
            file,
            line: 1,
            test: String::new(),
            policy: String::new(),
            case: what.to_owned(),
            outcome: Outcome::NotEvaluated,
            messages: vec![why],
            notes: Vec::new(),
        }
    }
}

fn safe(text: &str) -> String {
    portcullis_contract::clean(text, usize::MAX)
}

/// A name after that of what it is in. What could not be read has no test, and a test may have no name.
fn named(whole: &str, part: &str) -> String {
    [whole, part].into_iter().filter(|name| !name.is_empty()).collect::<Vec<_>>().join(": ")
}

impl Report {
    /// Adds a case. Its texts come from tests, manifests and policies, and are made safe for terminals and logs.
    pub(super) fn add(&mut self, mut tried: Tried) {
        let texts = [&mut tried.test, &mut tried.policy, &mut tried.case].into_iter();
        for text in texts.chain(&mut tried.messages).chain(&mut tried.notes) {
            *text = safe(text);
        }
        self.cases.push(tried);
    }

    /// The exit status: 1 if a case failed, otherwise 2 if one could not be evaluated, otherwise 0.
    pub(super) fn status(&self) -> u8 {
        match self.cases.iter().map(|case| case.outcome).max() {
            Some(Outcome::Failed) => 1,
            Some(Outcome::NotEvaluated) => 2,
            Some(Outcome::Passed) | None => 0,
        }
    }

    /// The report in a form, which ends with a line feed.
    pub(super) fn in_form(&self, form: TestForm) -> String {
        match form {
            TestForm::Text => self.text(),
            TestForm::Json => format!("{:#}\n", self.json()),
            TestForm::Junit => self.junit(),
        }
    }

    fn count(&self, outcome: Outcome) -> usize {
        self.cases.iter().filter(|case| case.outcome == outcome).count()
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for Tried { file, line, test, case, outcome, messages, notes, .. } in &self.cases {
            let result = match outcome {
                Outcome::Passed => "ok",
                Outcome::Failed => "FAILED",
                Outcome::NotEvaluated => "NOT EVALUATED",
            };
            let file = safe(file);
            let name = named(test, case);
            let _ = writeln!(text, "{file}:{line}: {name}: {result}");
            for message in messages {
                let _ = writeln!(text, "  {message}");
            }
            for note in notes {
                let _ = writeln!(text, "  note: {note}");
            }
        }
        let counts = [Outcome::Passed, Outcome::Failed, Outcome::NotEvaluated].map(|outcome| self.count(outcome));
        let [passed, failed, others] = counts;
        let _ = writeln!(text, "\n{passed} passed, {failed} failed, {others} not evaluated");
        text
    }

    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "cases": self.cases,
            "passed": self.count(Outcome::Passed),
            "failed": self.count(Outcome::Failed),
            "notEvaluated": self.count(Outcome::NotEvaluated),
        })
    }

    fn junit(&self) -> String {
        let cases = self.cases.iter().map(|case| junit::Case {
            class: named(&case.file, &case.test),
            name: case.case.clone(),
            problem: (case.outcome != Outcome::Passed).then(|| junit::Problem {
                is_failure: case.outcome == Outcome::Failed,
                kind: if case.outcome == Outcome::Failed { "Failed" } else { "NotEvaluated" }.to_owned(),
                message: case.messages.join("; "),
            }),
            output: (!case.notes.is_empty()).then(|| case.notes.join("; ")),
        });
        junit::xml("portcullis test", &cases.collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn report(outcomes: &[Outcome]) -> Report {
        let mut report = Report::default();
        for (number, outcome) in outcomes.iter().enumerate() {
            report.add(Tried {
                file: "tests/a.yaml".to_owned(),
                line: 2,
                test: "labels".to_owned(),
                policy: "cluster/a".to_owned(),
                case: format!("case {number}"),
                outcome: *outcome,
                messages: if *outcome == Outcome::Passed { Vec::new() } else { vec!["1 < 2".to_owned()] },
                notes: if number == 0 { vec!["by the way".to_owned()] } else { Vec::new() },
            });
        }
        report
    }

    #[test]
    fn the_worst_outcome_decides_the_exit_status() {
        use Outcome::{Failed, NotEvaluated, Passed};
        for (outcomes, status) in
            [(&[][..], 0), (&[Passed], 0), (&[Passed, NotEvaluated], 2), (&[Failed, NotEvaluated, Passed], 1)]
        {
            assert_eq!(report(outcomes).status(), status, "{outcomes:?}");
        }
    }

    #[test]
    fn a_file_that_could_not_be_read_is_a_case_that_is_not_evaluated() {
        let mut report = report(&[Outcome::Passed]);
        report.add(Tried::not_evaluated(
            "tests/b.yaml".to_owned(),
            "the file",
            "failed to open tests/b.yaml".to_owned(),
        ));
        assert_eq!(report.status(), 2);
        let text = report.in_form(TestForm::Text);
        let end = "tests/b.yaml:1: the file: NOT EVALUATED\n  failed to open tests/b.yaml\n\n\
                   1 passed, 0 failed, 1 not evaluated\n";
        assert!(text.ends_with(end), "{text}");
        let junit = report.in_form(TestForm::Junit);
        assert!(junit.contains("<testcase classname=\"tests/b.yaml\" name=\"the file\">"), "{junit}");
    }

    #[test]
    fn names_and_messages_write_no_codes_and_no_lines_to_a_terminal() {
        let hostile = |text: &str| format!("{text}\u{1b}[2J\n9 passed");
        let mut report = Report::default();
        report.add(Tried {
            file: hostile("a.yaml"),
            line: 2,
            test: hostile("test"),
            policy: "cluster/a".to_owned(),
            case: hostile("case"),
            outcome: Outcome::Failed,
            messages: vec![hostile("message")],
            notes: vec![hostile("note")],
        });
        let safe = |text: &str| format!("{text} [2J 9 passed");
        let [file, test, case, message, note] = ["a.yaml", "test", "case", "message", "note"].map(safe);
        assert_eq!(
            report.in_form(TestForm::Text),
            format!(
                "{file}:2: {test}: {case}: FAILED\n  {message}\n  note: {note}\n\n0 passed, 1 failed, 0 not evaluated\n"
            )
        );
    }

    #[test]
    fn each_form_names_the_case_and_what_is_wrong() {
        let report = report(&[Outcome::Passed, Outcome::Failed, Outcome::NotEvaluated]);
        assert_eq!(
            report.in_form(TestForm::Text),
            "tests/a.yaml:2: labels: case 0: ok\n  note: by the way\ntests/a.yaml:2: labels: case 1: FAILED\n  1 < 2\n\
             tests/a.yaml:2: labels: case 2: NOT EVALUATED\n  1 < 2\n\n1 passed, 1 failed, 1 not evaluated\n"
        );
        let json: Value = serde_json::from_str(&report.in_form(TestForm::Json)).expect("JSON");
        assert_eq!((&json["failed"], &json["cases"][1]["outcome"]), (&json!(1), &json!("failed")));
        let junit = report.in_form(TestForm::Junit);
        assert!(junit.contains("tests=\"3\" failures=\"1\" errors=\"1\""), "{junit}");
        assert!(junit.contains("<failure type=\"Failed\" message=\"1 &lt; 2\"/>"), "{junit}");
        assert!(junit.contains("<testcase classname=\"tests/a.yaml: labels\" name=\"case 2\">"), "{junit}");
    }
}
