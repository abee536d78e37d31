//! What the audit found, for people and for programs. Pure.

use std::fmt::Write as _;

use jiff::Timestamp;
use portcullis_api::column::{age, align};
use portcullis_contract::PolicyId;
use serde::Serialize;
use serde_json::{Value, json};

use crate::item::{AuditView, Item, text as safe};

/// Longest message of an object that is kept, in bytes.
const LONGEST: usize = 1000;

/// Whether all policies that were asked for could be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// All policies could be read.
    All,
    /// Some policies could not be read.
    Part,
}

/// An object that a policy rejects, or could not be asked about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    kind: String,
    /// The namespace; empty for cluster-scoped objects.
    namespace: String,
    name: String,
    /// The result in the words of reports: `fail`, `warn` if the mode of the policy is not `protect`, or `error` if it could not be evaluated.
    result: String,
    message: String,
}

/// What reports say about one policy.
#[derive(Debug)]
pub(super) struct Findings {
    policy: PolicyId,
    /// The first findings.
    objects: Vec<Finding>,
    /// Most objects that are kept, and how many more there are.
    most: usize,
    more: usize,
    /// The time of the newest result, in seconds since 1970; 0 without any.
    newest: i64,
    notes: Vec<String>,
}

impl Findings {
    pub(super) fn new(policy: &PolicyId, most: usize) -> Self {
        Self { policy: policy.clone(), objects: Vec::new(), most, more: 0, newest: 0, notes: Vec::new() }
    }

    /// None yet, about the same policy, for reports of another kind.
    pub(super) fn of_other_reports(&self) -> Self {
        Self::new(&self.policy, self.most)
    }

    /// Takes the objects of other reports in place of these, if their results are newer or there are none yet.
    pub(super) fn take_newer(&mut self, other: Self) {
        if self.is_empty() || (!other.is_empty() && other.newest > self.newest) {
            *self = other;
        }
    }

    /// Whether no report mentions the policy.
    pub(super) fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.more == 0
    }

    /// Adds a note, which is shown beside the figures.
    pub(super) fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    /// Adds what the report on one object says about the policy.
    pub(super) fn add(&mut self, report: &Value) {
        let results = report["results"].as_array().map_or(&[][..], Vec::as_slice);
        for result in results.iter().filter(|result| result["policy"] == self.policy.as_str()) {
            let word = result["result"].as_str().unwrap_or_default();
            if !matches!(word, "fail" | "warn" | "error") {
                continue;
            }
            self.newest = self.newest.max(result["timestamp"]["seconds"].as_i64().unwrap_or(0));
            if self.objects.len() >= self.most {
                self.more += 1;
                continue;
            }
            let subject = subject(report);
            let field = |name: &str| safe(&subject[name]).unwrap_or_default();
            let namespace = safe(&subject["namespace"]).or_else(|| safe(&report["metadata"]["namespace"]));
            // The two kinds of reports have different names for the message.
            let message = ["message", "description"].into_iter().find_map(|field| safe(&result[field]));
            self.objects.push(Finding {
                kind: field("kind"),
                namespace: namespace.unwrap_or_default(),
                name: field("name"),
                result: word.to_owned(),
                message: portcullis_contract::truncate(&message.unwrap_or_default(), LONGEST),
            });
        }
    }

    /// For people.
    pub(super) fn text(&self, item: &Item, audit: &AuditView, now: Timestamp) -> String {
        let mut text = format!("{}: {}\n", self.policy, audit.in_words(now));
        if !self.objects.is_empty() {
            let titles = ["KIND", "NAMESPACE", "NAME", "MESSAGE"].map(str::to_owned);
            let rows: Vec<[String; 4]> = std::iter::once(titles).chain(self.objects.iter().map(row)).collect();
            text.push('\n');
            for line in align(&rows) {
                let _ = writeln!(text, "{line}");
            }
        } else if !audit.examples.is_empty() {
            let _ = writeln!(text, "\nSome of them: {}", audit.examples.join(", "));
        }
        if self.more > 0 {
            let _ = writeln!(text, "and {} more; --show {} shows all", self.more, self.objects.len() + self.more);
        }
        let is_old = audit.generation > 0 && audit.generation != item.generation();
        let newer = is_old
            .then(|| format!("the scan asked generation {}, and {} is newer", audit.generation, item.generation()));
        let notes: Vec<String> = self.notes.iter().cloned().chain(audit.gaps()).chain(newer).collect();
        if !notes.is_empty() {
            text.push('\n');
        }
        for note in notes {
            let _ = writeln!(text, "Note: {note}");
        }
        text
    }

    /// For programs.
    pub(super) fn json(&self, item: &Item) -> Value {
        let mut value = summary(item);
        value["objects"] = json!(self.objects);
        value["more"] = json!(self.more);
        value["notes"] = json!(self.notes);
        value
    }
}

/// The object that a report is about: its scope, or else its owner.
fn subject(report: &Value) -> &Value {
    let scope = &report["scope"];
    if scope["name"].is_string() { scope } else { &report["metadata"]["ownerReferences"][0] }
}

fn row(finding: &Finding) -> [String; 4] {
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let message = match finding.result.as_str() {
        "error" => format!("could not be evaluated: {}", finding.message),
        _ => finding.message.clone(),
    };
    [or_dash(&finding.kind), or_dash(&finding.namespace), or_dash(&finding.name), or_dash(&message)]
}

/// A row for each policy; `-` where it has not been audited.
pub(super) fn table(items: &[Item], now: Timestamp) -> String {
    if items.is_empty() {
        return String::new();
    }
    let row = |item: &Item| {
        let cells = item.audit().map(|audit| {
            let scanned = audit.scanned_at.map_or_else(|| "-".to_owned(), |at| age(at, now));
            [audit.checked.to_string(), audit.violations.to_string(), audit.errors.to_string(), scanned]
        });
        let [checked, violations, errors, scanned] = cells.unwrap_or_else(|| std::array::from_fn(|_| "-".to_owned()));
        [item.id.to_string(), checked, violations, errors, scanned]
    };
    let titles = ["NAME", "CHECKED", "VIOLATIONS", "ERRORS", "SCANNED"].map(str::to_owned);
    let rows: Vec<[String; 5]> = std::iter::once(titles).chain(items.iter().map(row)).collect();
    align(&rows).join("\n") + "\n"
}

/// The same for programs.
pub(super) fn list(items: &[Item]) -> Value {
    json!({"policies": items.iter().map(summary).collect::<Vec<_>>()})
}

fn summary(item: &Item) -> Value {
    let audit = item.object.pointer("/status/audit").cloned().unwrap_or_default();
    json!({"policy": item.id, "audit": audit})
}

/// The exit status: 1 if any object is rejected, otherwise 2 if anything is not known, otherwise 0. Suspended policies are not asked, nor
/// those that are not to be audited.
pub(super) fn status<'i>(items: impl Iterator<Item = &'i Item>, known: Known) -> u8 {
    let mut status = if known == Known::All { 0 } else { 2 };
    for item in items {
        match item.audit() {
            Some(audit) if audit.violations > 0 => return 1,
            Some(audit) if audit.errors == 0 && audit.gaps().is_empty() => {}
            _ if item.object.pointer("/spec/suspend") == Some(&Value::Bool(true)) => {}
            _ if item.object.pointer("/spec/backgroundAudit") == Some(&Value::Bool(false)) => {}
            _ => status = 2,
        }
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-01-01T00:05:00Z".parse().expect("a time")
    }

    fn item(audit: Value) -> Item {
        let object = json!({
            "kind": "ClusterPolicy", "metadata": {"name": "labels", "generation": 2}, "spec": {},
            "status": {"audit": audit},
        });
        Item::of_object(object).expect("a policy")
    }

    fn audited(violations: i64, errors: i64) -> Item {
        item(json!({"scannedAt": "2026-01-01T00:00:00Z", "generation": 2, "checked": 12, "violations": violations,
                    "errors": errors, "examples": ["Pod team-a/web-1"]}))
    }

    fn report(namespace: &str, name: &str, result: &str, message: &str) -> Value {
        json!({
            "metadata": {"namespace": namespace},
            "scope": {"kind": "Pod", "namespace": namespace, "name": name},
            "results": [
                {"policy": "cluster/other", "result": "fail", "message": "of another policy"},
                {"policy": "cluster/labels", "result": result, "message": message},
            ],
        })
    }

    #[test]
    fn objects_are_told_with_what_the_policy_says() {
        let item = audited(3, 1);
        let mut findings = Findings::new(&item.id, 2);
        for report in [
            report("team-a", "web-1", "fail", "no\u{1b}[31m label"),
            report("team-b", "db", "error", "too slow"),
            report("team-b", "fine", "pass", ""),
            report("team-b", "web-2", "warn", "no label"),
        ] {
            findings.add(&report);
        }
        assert_eq!(
            findings.text(&item, &item.audit().expect("an audit"), now()),
            "\
cluster/labels: 3 of 12 objects are rejected, 1 could not be evaluated; scanned 2026-01-01T00:00:00Z (5m ago)

KIND   NAMESPACE   NAME    MESSAGE
Pod    team-a      web-1   no [31m label
Pod    team-b      db      could not be evaluated: too slow
and 1 more; --show 3 shows all
"
        );
        assert_eq!(findings.json(&item)["objects"][1]["result"], "error");
    }

    #[test]
    fn of_two_kinds_of_reports_the_newer_results_count() {
        let item = audited(1, 0);
        let of = |name: &str, seconds: i64| {
            let mut report = report("team-a", name, "fail", "no");
            report["results"][1]["timestamp"] = json!({"seconds": seconds, "nanos": 0});
            let mut findings = Findings::new(&item.id, 2);
            findings.add(&report);
            findings
        };
        let name = |first: Findings, second: Findings| {
            let mut findings = Findings::new(&item.id, 2);
            findings.take_newer(first);
            findings.take_newer(second);
            findings.json(&item)["objects"][0]["name"].clone()
        };
        assert_eq!(name(of("repaired", 10), of("web", 20)), "web");
        assert_eq!(name(of("web", 20), of("repaired", 10)), "web");
        assert_eq!(name(of("web", 20), Findings::new(&item.id, 2)), "web");
    }

    #[test]
    fn without_reports_there_are_examples_and_the_reason() {
        let mut item = audited(1, 0);
        item.object["metadata"]["generation"] = json!(3);
        item.object["status"]["audit"]["unreadable"] = json!(["services"]);
        let mut findings = Findings::new(&item.id, 2);
        findings.note("no report tells which objects they are".to_owned());
        assert_eq!(
            findings.text(&item, &item.audit().expect("an audit"), now()),
            "\
cluster/labels: 1 of 12 objects is rejected; scanned 2026-01-01T00:00:00Z (5m ago)

Some of them: Pod team-a/web-1

Note: no report tells which objects they are
Note: could not be listed: services (chart: rbac.auditReads)
Note: the scan asked generation 2, and 3 is newer
"
        );
    }

    #[test]
    fn an_object_without_scope_is_its_owner() {
        let report = json!({
            "metadata": {"ownerReferences": [{"kind": "Node", "name": "one"}]},
            "results": [{"policy": "cluster/labels", "result": "fail", "description": "no label"}],
        });
        let mut findings = Findings::new(&audited(1, 0).id, 2);
        findings.add(&report);
        assert_eq!(row(&findings.objects[0]), ["Node", "-", "one", "no label"]);
    }

    #[test]
    fn a_table_of_all_policies() {
        let items = [audited(3, 1), item(Value::Null)];
        assert_eq!(
            table(&items, now()),
            "\
NAME             CHECKED   VIOLATIONS   ERRORS   SCANNED
cluster/labels   12        3            1        5m
cluster/labels   -         -            -        -
"
        );
        assert_eq!(list(&items)["policies"][0]["audit"]["violations"], 3);
    }

    #[test]
    fn the_status_says_whether_anything_is_rejected_or_not_known() {
        let mut suspended = item(Value::Null);
        suspended.object["spec"]["suspend"] = json!(true);
        let mut partly = audited(0, 0);
        partly.object["status"]["audit"]["message"] = json!("the quota of team-a has no room");
        let status = |items: &[Item], known| super::status(items.iter(), known);
        let mut unaudited = item(Value::Null);
        unaudited.object["spec"]["backgroundAudit"] = json!(false);
        assert_eq!(status(&[audited(0, 0), suspended, unaudited], Known::All), 0);
        assert_eq!(status(&[audited(0, 0), item(Value::Null), audited(1, 0)], Known::Part), 1);
        assert_eq!(status(&[audited(0, 0), item(Value::Null)], Known::All), 2);
        for other in [audited(0, 1), partly] {
            assert_eq!(status(&[other], Known::All), 2);
        }
        assert_eq!(status(&[audited(0, 0)], Known::Part), 2);
    }
}
