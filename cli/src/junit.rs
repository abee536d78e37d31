//! JUnit's XML, which pipelines show as the results of tests. Pure.

use std::fmt::Write as _;

/// A test case.
pub(crate) struct Case {
    pub(crate) class: String,
    pub(crate) name: String,
    pub(crate) problem: Option<Problem>,
    /// Further text about it.
    pub(crate) output: Option<String>,
}

/// Why a case did not pass. A case has at most one, as readers count the elements.
pub(crate) struct Problem {
    /// Whether the case failed; otherwise its result is not known.
    pub(crate) is_failure: bool,
    /// One word.
    pub(crate) kind: String,
    pub(crate) message: String,
}

/// The XML of a suite of this name, which ends with a line feed.
pub(crate) fn xml(suite: &str, cases: &[Case]) -> String {
    let count = |is_failure: bool| {
        cases.iter().filter(|case| case.problem.as_ref().is_some_and(|one| one.is_failure == is_failure)).count()
    };
    let (all, failed, unknown) = (cases.len(), count(true), count(false));
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let suite = escaped(suite);
    let _ = writeln!(text, "<testsuite name=\"{suite}\" tests=\"{all}\" failures=\"{failed}\" errors=\"{unknown}\">");
    for Case { class, name, problem, output } in cases {
        let _ = writeln!(text, "  <testcase classname=\"{}\" name=\"{}\">", escaped(class), escaped(name));
        if let Some(Problem { is_failure, kind, message }) = problem {
            let element = if *is_failure { "failure" } else { "error" };
            let _ = writeln!(text, "    <{element} type=\"{}\" message=\"{}\"/>", escaped(kind), escaped(message));
        }
        if let Some(output) = output {
            let _ = writeln!(text, "    <system-out>{}</system-out>", escaped(output));
        }
        text.push_str("  </testcase>\n");
    }
    text.push_str("</testsuite>\n");
    text
}

/// A text, escaped for XML. Characters that are not allowed in XML become spaces.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&apos;"),
            '\u{fffe}' | '\u{ffff}' => escaped.push(' '),
            _ if letter.is_control() => escaped.push(' '),
            _ => escaped.push(letter),
        }
    }
    escaped
}
