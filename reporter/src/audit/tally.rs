//! What a scan has found for each policy, in numbers, and the summary for its status. Pure.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use portcullis_api::AuditSummary;
use portcullis_contract::{clean, truncate};
use portcullis_process::Now;

use super::budget::Over;
use super::finding::{Finding, Problem};
use crate::facts::to_second;

/// Most objects that are named of those that were left out, as the message is short.
const MAX_LEFT_OUT: usize = 3;
/// Longest name of such an object, in bytes.
const MAX_NAME: usize = 160;

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
    /// The number of objects that take too much memory when they are decoded.
    too_large: i64,
    /// One of them.
    too_large_example: String,
    /// The number of objects about which the evaluator could not be asked.
    unasked: i64,
    /// The number of objects about which the policy was not asked because it had used up its budget.
    left_out: i64,
    /// Some of them.
    left_out_examples: Vec<String>,
    /// Why a report with results of the policy is missing or old: the first problem.
    report_problem: Option<String>,
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

    /// Counts an object that takes too much memory when it is decoded.
    pub(super) fn too_large(&mut self, object: &str) {
        self.too_large += 1;
        if self.too_large_example.is_empty() {
            self.too_large_example = clean(object, MAX_NAME);
        }
    }

    /// Counts an object about which the evaluator could not be asked.
    pub(super) fn unasked(&mut self) {
        self.unasked += 1;
    }

    /// Counts an object about which the policy was not asked because it had used up its budget.
    pub(super) fn left_out(&mut self, object: &str) {
        self.left_out += 1;
        if self.left_out_examples.len() < MAX_LEFT_OUT {
            self.left_out_examples.push(clean(object, MAX_NAME));
        }
    }

    /// Notes why a report with results of the policy is missing or old.
    pub(super) fn no_report(&mut self, problem: &str) {
        self.report_problem.get_or_insert_with(|| problem.to_owned());
    }

    /// Notes a resource that could not be listed.
    pub(super) fn unreadable(&mut self, resource: &str) {
        self.unreadable.insert(clean(resource, AuditSummary::MAX_RESOURCE));
    }

    /// The number of objects that the policy rejects.
    pub(super) fn violations(&self) -> i64 {
        self.violations
    }

    /// The summary, without the request. `lists` is the number of resources that the policy's rules name; `over` says why it was not asked about all objects, and
    /// `reports` why the reports of all policies are missing.
    pub(super) fn summary(
        &self,
        generation: i64,
        lists: usize,
        over: Option<&Over>,
        reports: Option<&str>,
        now: Now,
    ) -> AuditSummary {
        let mut sentences = Vec::new();
        if lists == 0 && self.unreadable.is_empty() {
            sentences.push("the rules name no resource of the cluster for CREATE or UPDATE".to_owned());
        }
        if let Some(over) = over.filter(|_| self.left_out > 0) {
            sentences.push(self.too_slow(over, now));
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
        if self.too_large > 0 {
            let (count, example) = (counted(self.too_large, "object"), &self.too_large_example);
            sentences.push(format!("{count} took too much memory to be judged, for instance {example}"));
        }
        if self.unasked > 0 {
            sentences.push(format!("the evaluator could not be asked about {}", counted(self.unasked, "object")));
        }
        sentences.extend(reports.or(self.report_problem.as_deref()).map(str::to_owned));
        AuditSummary {
            scanned_at: now.wall,
            generation,
            checked: self.checked,
            violations: self.violations,
            errors: self.errors,
            examples: self.examples.clone(),
            unreadable: self.unreadable.iter().take(AuditSummary::MAX_UNREADABLE).cloned().collect(),
            message: truncate(&sentences.join("; "), AuditSummary::MAX_MESSAGE),
            handled_request: String::new(),
        }
    }

    /// Which objects were left out, why, and when they are audited.
    fn too_slow(&self, over: &Over, now: Now) -> String {
        let named = self.left_out_examples.join(", ");
        let rest = self.left_out - i64::try_from(self.left_out_examples.len()).unwrap_or(i64::MAX);
        let rest = if rest > 0 { format!(" and {rest} more") } else { String::new() };
        let (who, mended) = if over.of_namespace {
            ("the policies of its namespace together", "")
        } else {
            ("the policy", ", or of another generation,")
        };
        let wait = SignedDuration::try_from(over.until.saturating_duration_since(now.instant)).unwrap_or_default();
        let until = now.wall.checked_add(wait).map_or(now.wall, to_second);
        let next = match (over.of_conditions, over.of_namespace) {
            // They are evaluated for every object in every scan, so the next budget is not enough either.
            (true, false) => "make its match conditions quicker".to_owned(),
            (true, true) => "make their match conditions quicker".to_owned(),
            (false, _) => format!("the first scan after {until}{mended} asks about them"),
        };
        format!(
            "{} not audited ({named}{rest}), as {who} took {} s for {}, which is too long for the audit of others; {next}",
            match self.left_out {
                1 => "1 object was".to_owned(),
                many => format!("{many} objects were"),
            },
            over.spent.as_secs(),
            if over.of_conditions {
                "match conditions".to_owned()
            } else {
                counted(i64::from(over.questions), "question")
            },
        )
    }
}

/// The summary of a policy that is not asked, without the request.
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
        handled_request: String::new(),
    }
}

/// The summary of a policy that the evaluator does not serve, if somebody has asked for this scan: what was known, with a sentence that says so.
/// None where nobody waits for it.
pub(crate) fn unserved(known: Option<&AuditSummary>, request: String, now: Timestamp) -> Option<AuditSummary> {
    if request.is_empty() || known.is_some_and(|known| known.handled_request == request) {
        return None;
    }
    // Without a generation, no object was ever evaluated.
    let earlier = known.filter(|known| known.generation > 0);
    let consequence =
        if earlier.is_some() { "these are the findings of an earlier scan" } else { "nothing is known yet" };
    let message = format!(
        "the evaluator beside the leading reporter does not serve the policy, so {consequence}; `portcullis describe` says why"
    );
    let summary = earlier.cloned().unwrap_or_else(|| left("", now));
    Some(AuditSummary { message, handled_request: request, ..summary })
}

fn counted(number: i64, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{plural}")
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::audit::finding::tests::finding;

    fn now() -> Now {
        Now { instant: Instant::now(), wall: Timestamp::UNIX_EPOCH }
    }

    #[test]
    fn verdicts_become_numbers_and_a_few_examples() {
        let mut tally = Tally::default();
        tally.judged(None, "Pod team-a/web-0");
        for number in 1..=7 {
            tally.judged(Some(&finding("a", Problem::Violation, "no")), &format!("Pod team-a/web-{number}"));
        }
        tally.judged(Some(&finding("a", Problem::Error, "late")), "Pod team-a/slow");
        let summary = tally.summary(3, 1, None, None, now());
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
        let summary = tally.summary(1, 2, None, Some("reports are not written: x"), now());
        assert_eq!(summary.unreadable.len(), AuditSummary::MAX_UNREADABLE);
        assert_eq!(
            summary.message,
            "12 resources could not be listed, or not to the end; whether 1 object would reach the policy is unknown, as only an API \
             server can evaluate its match conditions; the evaluator could not be asked about 2 objects; reports are not written: x"
        );
        let mut tally = Tally::default();
        ["ConfigMap a/one", "ConfigMap a/two"].iter().for_each(|object| tally.too_large(object));
        assert_eq!(
            tally.summary(1, 1, None, None, now()).message,
            "2 objects took too much memory to be judged, for instance ConfigMap a/one"
        );
        let none = Tally::default().summary(1, 0, None, None, now());
        assert_eq!(none.message, "the rules name no resource of the cluster for CREATE or UPDATE");
        assert_eq!(left("the policy is suspended", Timestamp::UNIX_EPOCH).message, "the policy is suspended");
    }

    #[test]
    fn who_asks_for_a_scan_of_a_policy_that_is_not_served_hears_so_with_what_is_known() {
        let (now, later) = (now(), Timestamp::from_second(60).expect("a time"));
        let mut tally = Tally::default();
        tally.judged(Some(&finding("a", Problem::Violation, "no")), "Pod a/one");
        let known = AuditSummary { handled_request: "first".to_owned(), ..tally.summary(3, 1, None, Some("cut"), now) };
        let told = unserved(Some(&known), "second".to_owned(), later).expect("a summary");
        assert_eq!(
            told.message,
            "the evaluator beside the leading reporter does not serve the policy, so these are the findings of an earlier scan; \
             `portcullis describe` says why"
        );
        let expected =
            AuditSummary { message: told.message.clone(), handled_request: "second".to_owned(), ..known.clone() };
        assert_eq!(told, expected, "the time is that of the findings");
        for request in ["", "first"] {
            assert_eq!(unserved(Some(&known), request.to_owned(), later), None, "nobody waits");
        }
        assert_eq!(unserved(None, String::new(), later), None);
        let suspended = left("the policy is suspended", now.wall);
        for known in [None, Some(&suspended)] {
            let told = unserved(known, "second".to_owned(), later).expect("a summary");
            assert_eq!((told.generation, told.scanned_at, told.handled_request.as_str()), (0, later, "second"));
            assert!(told.message.contains("does not serve the policy, so nothing is known yet"), "{}", told.message);
        }
    }

    #[test]
    fn what_a_slow_policy_was_not_asked_about_is_named_with_the_time_of_the_next_try() {
        let mut tally = Tally::default();
        tally.left_out("ConfigMap a/one");
        let now = now();
        let until = now.instant + Duration::from_secs(3600);
        let over = |of_namespace| Over {
            of_namespace,
            spent: Duration::from_millis(40_020),
            questions: 4,
            of_conditions: false,
            until,
        };
        assert_eq!(
            tally.summary(1, 1, Some(&over(false)), None, now).message,
            "1 object was not audited (ConfigMap a/one), as the policy took 40 s for 4 questions, which is too long for the audit of others; \
             the first scan after 1970-01-01T01:00:00Z, or of another generation, asks about them"
        );
        for name in ["two", "three", "four", "five"] {
            tally.left_out(&format!("ConfigMap a/{name}"));
        }
        assert_eq!(
            tally.summary(1, 1, Some(&over(true)), None, now).message,
            "5 objects were not audited (ConfigMap a/one, ConfigMap a/two, ConfigMap a/three and 2 more), as the policies of its namespace \
             together took 40 s for 4 questions, which is too long for the audit of others; the first scan after 1970-01-01T01:00:00Z asks \
             about them"
        );
        let conditions = |of_namespace| Over { of_conditions: true, ..over(of_namespace) };
        for (of_namespace, next) in [
            (
                false,
                "took 40 s for match conditions, which is too long for the audit of others; make its match conditions quicker",
            ),
            (
                true,
                "took 40 s for match conditions, which is too long for the audit of others; make their match conditions quicker",
            ),
        ] {
            let message = tally.summary(1, 1, Some(&conditions(of_namespace)), None, now).message;
            assert!(message.ends_with(next) && !message.contains("asks about them"), "{message}");
        }
        (0..1000).for_each(|_| tally.left_out(&"x".repeat(600)));
        assert!(tally.summary(1, 1, Some(&over(true)), None, now).message.len() <= AuditSummary::MAX_MESSAGE);
        let mut long = Tally::default();
        (0..1000).for_each(|_| long.left_out(&"x".repeat(600)));
        assert!(
            long.summary(1, 1, Some(&over(true)), None, now).message.ends_with("asks about them"),
            "names are cut first"
        );
        assert_eq!(Tally::default().summary(1, 1, Some(&over(false)), None, now).message, "", "nothing was left out");
    }
}
