//! What a scan has found for each policy, in numbers, and the summary for its status. Pure.

use std::collections::BTreeSet;

use jiff::Timestamp;
use portcullis_api::AuditSummary;
use portcullis_contract::{clean, truncate};

use super::finding::{Finding, Problem};

/// The numbers of one policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tally {
    checked: i64,
    violations: i64,
    errors: i64,
    examples: Vec<String>,
    /// Resources that could not be listed, or not to the end.
    unreadable: BTreeSet<String>,
    /// The number of objects for which it cannot be found out whether API servers would ask the policy about them.
    unknown: i64,
    /// The number of objects about which the evaluator could not be asked.
    unasked: i64,
}

impl Tally {
    /// Counts an object that the policy has judged.
    pub(super) fn judged(&mut self, finding: Option<&Finding>, object: &str) {
        self.checked += 1;
        match finding.map(|finding| finding.problem) {
            None => {}
            Some(Problem::Error) => self.errors += 1,
            Some(Problem::Violation) => {
                self.violations += 1;
                if self.examples.len() < AuditSummary::MAX_EXAMPLES {
                    self.examples.push(clean(object, AuditSummary::MAX_EXAMPLE));
                }
            }
        }
    }

    /// Counts an object for which it cannot be found out whether API servers would ask the policy about it.
    pub(super) fn unknown(&mut self) {
        self.unknown += 1;
    }

    /// Counts an object about which the evaluator could not be asked.
    pub(super) fn unasked(&mut self) {
        self.unasked += 1;
    }

    /// Notes a resource that could not be listed.
    pub(super) fn unreadable(&mut self, resource: &str) {
        self.unreadable.insert(clean(resource, AuditSummary::MAX_RESOURCE));
    }

    /// The number of objects that the policy rejects.
    pub(super) fn violations(&self) -> i64 {
        self.violations
    }

    /// The summary. `lists` is the number of resources that the policy's rules name; `reports` says why reports are missing, none if none are.
    pub(super) fn summary(&self, generation: i64, lists: usize, reports: Option<&str>, now: Timestamp) -> AuditSummary {
        let mut sentences = Vec::new();
        if lists == 0 && self.unreadable.is_empty() {
            sentences.push("the rules name no resource of the cluster for CREATE or UPDATE".to_owned());
        }
        if !self.unreadable.is_empty() {
            let count = i64::try_from(self.unreadable.len()).unwrap_or(i64::MAX);
            sentences.push(format!("{} could not be listed, or not to the end", counted(count, "resource")));
        }
        if self.unknown > 0 {
            sentences.push(format!(
                "whether {} would reach the policy is unknown, as only an API server can evaluate its match conditions",
                counted(self.unknown, "object")
            ));
        }
        if self.unasked > 0 {
            sentences.push(format!("the evaluator could not be asked about {}", counted(self.unasked, "object")));
        }
        sentences.extend(reports.map(str::to_owned));
        AuditSummary {
            scanned_at: now,
            generation,
            checked: self.checked,
            violations: self.violations,
            errors: self.errors,
            examples: self.examples.clone(),
            unreadable: self.unreadable.iter().take(AuditSummary::MAX_UNREADABLE).cloned().collect(),
            message: truncate(&sentences.join("; "), AuditSummary::MAX_MESSAGE),
        }
    }
}

/// The summary of a policy that is not asked.
pub(super) fn left(why: &str, now: Timestamp) -> AuditSummary {
    AuditSummary {
        scanned_at: now,
        generation: 0,
        checked: 0,
        violations: 0,
        errors: 0,
        examples: Vec::new(),
        unreadable: Vec::new(),
        message: clean(why, AuditSummary::MAX_MESSAGE),
    }
}

fn counted(number: i64, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::finding::tests::finding;

    #[test]
    fn verdicts_become_numbers_and_a_few_examples() {
        let mut tally = Tally::default();
        tally.judged(None, "Pod team-a/web-0");
        for number in 1..=7 {
            tally.judged(Some(&finding("a", Problem::Violation, "no")), &format!("Pod team-a/web-{number}"));
        }
        tally.judged(Some(&finding("a", Problem::Error, "late")), "Pod team-a/slow");
        let summary = tally.summary(3, 1, None, Timestamp::UNIX_EPOCH);
        assert_eq!((summary.checked, summary.violations, summary.errors, summary.generation), (9, 7, 1, 3));
        assert_eq!(summary.examples.len(), AuditSummary::MAX_EXAMPLES);
        assert_eq!((summary.examples[0].as_str(), summary.message.as_str()), ("Pod team-a/web-1", ""));
    }

    #[test]
    fn what_is_missing_is_named() {
        let mut tally = Tally::default();
        (0..12).for_each(|number| tally.unreadable(&format!("r{number}")));
        tally.unknown();
        tally.unasked();
        tally.unasked();
        let summary = tally.summary(1, 2, Some("reports are not written: x"), Timestamp::UNIX_EPOCH);
        assert_eq!(summary.unreadable.len(), AuditSummary::MAX_UNREADABLE);
        assert_eq!(
            summary.message,
            "12 resources could not be listed, or not to the end; whether 1 object would reach the policy is unknown, as only an API \
             server can evaluate its match conditions; the evaluator could not be asked about 2 objects; reports are not written: x"
        );
        let none = Tally::default().summary(1, 0, None, Timestamp::UNIX_EPOCH);
        assert_eq!(none.message, "the rules name no resource of the cluster for CREATE or UPDATE");
        assert_eq!(left("the policy is suspended", Timestamp::UNIX_EPOCH).message, "the policy is suspended");
    }
}
