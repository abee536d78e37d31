//! What was found, for people and for pipelines. Pure.

use std::fmt::Write as _;
use std::path::Path;

use portcullis_contract::{Class, Failure, Reason};
use serde::Serialize;
use serde_json::{Value, json};

use crate::args::CheckForm;
use crate::junit;

/// All policies, in the order of the files, and then what could not be read.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    policies: Vec<Checked>,
}

/// One policy.
#[derive(Debug, Serialize)]
struct Checked {
    file: String,
    /// The line that its document begins on, from 1.
    line: usize,
    /// Its id, or its name if it has no id; `None` if the document cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<String>,
    outcome: Outcome,
    findings: Vec<Finding>,
}

/// The result for a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
enum Outcome {
    /// It would load.
    Passed,
    /// It is not known: a source did not answer.
    Unknown,
    /// It would not load.
    Failed,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Level {
    /// The policy is right where it is, and would not be elsewhere. No check fails because of it.
    Note,
    /// The policy loads, and may not do what its author means.
    Warning,
    /// It could not be found out whether the policy loads.
    Unknown,
    /// The policy does not load.
    Error,
}

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    level: Level,
    /// One word, as in a policy's status.
    reason: String,
    /// What, and what to do.
    message: String,
}

impl Finding {
    pub(super) fn new(level: Level, reason: &str, message: String) -> Self {
        // It may quote the manifest, whose author need not be the reader.
        Self { level, reason: reason.to_owned(), message: safe(&message) }
    }

    /// A manifest that every API server would refuse.
    pub(super) fn invalid(message: String) -> Self {
        Self::new(Level::Error, Reason::SpecInvalid.as_str(), message)
    }

    /// A policy about which loader and evaluator did not report a result.
    pub(super) fn not_known(message: String) -> Self {
        Self::new(Level::Unknown, "NotLoaded", message)
    }

    /// A policy that does not load.
    pub(super) fn of_failure(failure: &Failure) -> Self {
        let level = if failure.class() == Class::Retry { Level::Unknown } else { Level::Error };
        Self::new(level, failure.reason.as_str(), failure.message.clone())
    }
}

/// A text of a manifest, made safe for terminals and logs.
fn safe(text: &str) -> String {
    portcullis_contract::clean(text, usize::MAX)
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Unknown => "unknown",
            Self::Error => "error",
        }
    }
}

impl Report {
    /// Whether no policy was found.
    pub(super) fn is_empty(&self) -> bool {
        self.policies.is_empty()
    }

    /// How many policies were found.
    pub(super) fn len(&self) -> usize {
        self.policies.len()
    }

    /// Adds a policy and returns its place in the report.
    pub(super) fn policy(&mut self, file: &str, line: usize, policy: Option<String>, findings: Vec<Finding>) -> usize {
        self.policies.push(Checked {
            file: file.to_owned(),
            line,
            policy: policy.map(|policy| safe(&policy)),
            outcome: Outcome::Passed,
            findings: Vec::new(),
        });
        let place = self.policies.len() - 1;
        self.add(place, findings);
        place
    }

    /// Adds findings of the policy at a place.
    pub(super) fn add(&mut self, place: usize, findings: Vec<Finding>) {
        let Some(policy) = self.policies.get_mut(place) else { return };
        let worst = findings.iter().map(|finding| match finding.level {
            Level::Note | Level::Warning => Outcome::Passed,
            Level::Unknown => Outcome::Unknown,
            Level::Error => Outcome::Failed,
        });
        policy.outcome = worst.max().unwrap_or(Outcome::Passed).max(policy.outcome);
        policy.findings.extend(findings);
    }

    /// The same with errors in the place of warnings.
    pub(super) fn strict(mut self) -> Self {
        for policy in &mut self.policies {
            for finding in policy.findings.iter_mut().filter(|finding| finding.level == Level::Warning) {
                finding.level = Level::Error;
                policy.outcome = Outcome::Failed;
            }
        }
        self
    }

    /// The exit status: 1 if a policy would not load, otherwise 2 if that is not known of some policy, otherwise 0.
    pub(super) fn status(&self) -> u8 {
        match self.policies.iter().map(|policy| policy.outcome).max() {
            Some(Outcome::Failed) => 1,
            Some(Outcome::Unknown) => 2,
            Some(Outcome::Passed) | None => 0,
        }
    }

    /// The report in a form, which ends with a line feed.
    pub(super) fn in_form(&self, form: CheckForm) -> String {
        match form {
            CheckForm::Text => self.text(),
            CheckForm::Json => format!("{:#}\n", self.json()),
            CheckForm::Sarif => format!("{:#}\n", self.sarif()),
            CheckForm::Junit => self.junit(),
        }
    }

    fn count(&self, outcome: Outcome) -> usize {
        self.policies.iter().filter(|policy| policy.outcome == outcome).count()
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for Checked { file, line, policy, outcome, findings } in &self.policies {
            let file = safe(file);
            let place = format!("{file}:{line}: {}", policy.as_ref().map(|id| format!("{id}: ")).unwrap_or_default());
            if findings.iter().all(|one| one.level == Level::Note) && *outcome == Outcome::Passed {
                let _ = writeln!(text, "{place}ok");
            }
            for Finding { level, reason, message } in findings {
                let _ = writeln!(text, "{place}{} {reason}: {message}", level.as_str());
            }
        }
        let counts = [Outcome::Passed, Outcome::Failed, Outcome::Unknown].map(|outcome| self.count(outcome));
        let [passed, failed, unknown] = counts;
        let _ = writeln!(text, "\n{passed} passed, {failed} failed, {unknown} not known");
        text
    }

    fn json(&self) -> Value {
        json!({
            "policies": self.policies,
            "passed": self.count(Outcome::Passed),
            "failed": self.count(Outcome::Failed),
            "unknown": self.count(Outcome::Unknown),
        })
    }

    /// SARIF 2.1.0 (OASIS), which code hosts show beside the lines.
    fn sarif(&self) -> Value {
        let results: Vec<_> = self
            .policies
            .iter()
            .flat_map(|policy| policy.findings.iter().map(move |finding| (policy, finding)))
            .map(|(policy, finding)| {
                let level = match finding.level {
                    Level::Note => "note",
                    Level::Warning => "warning",
                    Level::Unknown | Level::Error => "error",
                };
                let subject = policy.policy.as_ref().map(|id| format!("{id}: ")).unwrap_or_default();
                json!({
                    "ruleId": finding.reason, "level": level,
                    "message": {"text": format!("{subject}{}", finding.message)},
                    "locations": [{"physicalLocation": {
                        "artifactLocation": {"uri": uri(&policy.file)}, "region": {"startLine": policy.line},
                    }}],
                })
            })
            .collect();
        let mut rules: Vec<_> =
            self.policies.iter().flat_map(|policy| &policy.findings).map(|one| &one.reason).collect();
        rules.sort();
        rules.dedup();
        let rules: Vec<_> = rules.into_iter().map(|reason| json!({"id": reason})).collect();
        json!({
            "$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0",
            "runs": [{
                "tool": {"driver": {"name": "portcullis", "version": portcullis_process::VERSION, "rules": rules}},
                "results": results,
            }],
        })
    }

    /// JUnit's XML, with a test case for each policy.
    fn junit(&self) -> String {
        let cases = self.policies.iter().map(|policy| {
            let of = |level| policy.findings.iter().filter(move |one| one.level == level).collect::<Vec<_>>();
            let problems: Vec<_> = policy.findings.iter().filter(|one| one.level > Level::Warning).collect();
            let told = |findings: &[&Finding]| {
                let lines: Vec<_> = findings.iter().map(|one| format!("{}: {}", one.reason, one.message)).collect();
                lines.join("; ")
            };
            let beside = [Level::Warning, Level::Note].map(|level| (level, of(level)));
            let beside = beside.iter().filter(|(_, findings)| !findings.is_empty());
            let beside: Vec<_> =
                beside.map(|(level, findings)| format!("{} {}", level.as_str(), told(findings))).collect();
            let problem = problems.first().map(|first| junit::Problem {
                is_failure: policy.outcome == Outcome::Failed,
                kind: first.reason.clone(),
                message: told(&problems),
            });
            junit::Case {
                class: policy.file.clone(),
                name: policy.policy.clone().unwrap_or_else(|| format!("line {}", policy.line)),
                problem,
                output: (!beside.is_empty()).then(|| beside.join("; ")),
            }
        });
        junit::xml("portcullis check", &cases.collect::<Vec<_>>())
    }
}

/// A path as a relative reference (RFC 3986), with all but the allowed characters escaped. Code hosts match it with the files of a checkout;
/// the working directory should be that.
fn uri(path: &str) -> String {
    if path == "-" {
        return "stdin".to_owned();
    }
    let here = std::env::current_dir().ok();
    let below = here.as_ref().and_then(|here| Path::new(path).strip_prefix(here).ok()?.to_str());
    let path = below.unwrap_or(path);
    let path = path.strip_prefix("./").unwrap_or(path);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    path.bytes()
        .map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn report(levels: &[Level]) -> Report {
        let mut report = Report::default();
        report.policy("a b.yaml", 3, Some("cluster/good".to_owned()), Vec::new());
        for level in levels {
            let finding = Finding::new(*level, "Reason", "5 < 6 & \"x\"\u{1}".to_owned());
            report.policy("dir/b.yaml", 7, Some("cluster/other".to_owned()), vec![finding]);
        }
        report
    }

    #[test]
    fn the_worst_outcome_decides_the_exit_status() {
        for (levels, status, strict) in [
            (&[][..], 0, 0),
            (&[Level::Note], 0, 0),
            (&[Level::Warning], 0, 1),
            (&[Level::Unknown], 2, 2),
            (&[Level::Warning, Level::Unknown], 2, 1),
            (&[Level::Unknown, Level::Error], 1, 1),
        ] {
            let report = report(levels);
            assert_eq!((report.status(), report.strict().status()), (status, strict), "{levels:?}");
        }
    }

    #[test]
    fn later_findings_count_too() {
        let mut report = report(&[Level::Warning]);
        report.add(1, vec![Finding::invalid("no".to_owned())]);
        report.add(1, vec![Finding::new(Level::Warning, "Reason", String::new())]);
        assert_eq!((report.status(), report.policies[1].findings.len()), (1, 3));
    }

    #[test]
    fn failures_that_may_pass_are_not_known() {
        let level = |reason| Finding::of_failure(&Failure::new(1, reason, "x", Timestamp::UNIX_EPOCH)).level;
        assert_eq!(
            (level(Reason::SettingsInvalid), level(Reason::RegistryUnreachable)),
            (Level::Error, Level::Unknown)
        );
    }

    #[test]
    fn each_form_names_file_line_policy_and_reason() {
        let report = report(&[Level::Error, Level::Warning]);
        let text = report.in_form(CheckForm::Text);
        assert!(
            text.starts_with("a b.yaml:3: cluster/good: ok\ndir/b.yaml:7: cluster/other: error Reason: 5 < 6"),
            "{text}"
        );
        assert!(text.ends_with("\n\n2 passed, 1 failed, 0 not known\n"), "{text}");
        let json: Value = serde_json::from_str(&report.in_form(CheckForm::Json)).expect("JSON");
        assert_eq!((&json["failed"], &json["policies"][1]["outcome"]), (&json!(1), &json!("failed")));
        let sarif: Value = serde_json::from_str(&report.in_form(CheckForm::Sarif)).expect("JSON");
        let result = &sarif["runs"][0]["results"][0];
        assert_eq!((&result["level"], &result["ruleId"]), (&json!("error"), &json!("Reason")));
        let place = &result["locations"][0]["physicalLocation"];
        assert_eq!(
            (&place["artifactLocation"]["uri"], &place["region"]["startLine"]),
            (&json!("dir/b.yaml"), &json!(7))
        );
        let junit = report.in_form(CheckForm::Junit);
        assert!(junit.contains("tests=\"3\" failures=\"1\" errors=\"0\""), "{junit}");
        assert!(
            junit.contains("<failure type=\"Reason\" message=\"Reason: 5 &lt; 6 &amp; &quot;x&quot;\"/>"),
            "{junit}"
        );
        let strict = report.strict().in_form(CheckForm::Junit);
        assert!(strict.contains("failures=\"2\"") && strict.matches("<failure").count() == 2, "{strict}");
    }

    #[test]
    fn notes_stand_beside_what_passes() {
        let report = report(&[Level::Note]);
        let text = report.in_form(CheckForm::Text);
        let place = "dir/b.yaml:7: cluster/other: ";
        assert!(text.contains(&format!("{place}ok\n{place}note Reason: 5 < 6")), "{text}");
        let sarif: Value = serde_json::from_str(&report.in_form(CheckForm::Sarif)).expect("JSON");
        assert_eq!(sarif["runs"][0]["results"][0]["level"], "note");
        let junit = report.in_form(CheckForm::Junit);
        assert!(junit.contains("failures=\"0\"") && junit.contains("note Reason: 5 &lt; 6"), "{junit}");
    }

    #[test]
    fn paths_are_references() {
        assert_eq!([uri("a b/ü.yaml"), uri("./a.yaml"), uri("-")], ["a%20b/%C3%BC.yaml", "a.yaml", "stdin"]);
        let here = std::env::current_dir().expect("a folder").join("a.yaml");
        assert_eq!(uri(here.to_str().expect("UTF-8")), "a.yaml");
    }
}
