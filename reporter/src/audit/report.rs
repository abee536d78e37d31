//! The report about one object, as JSON in one of the two formats. Pure.

use clap::ValueEnum;
use jiff::Timestamp;
use portcullis_api::revision::POLICY_SERVER_LABEL;
use portcullis_contract::Mode;
use portcullis_kubernetes::MANAGED_BY_LABEL;
use serde_json::{Map, Value, json};

use super::finding::{Finding, Problem};
use super::hash::hash;
use super::subject::Subject;

/// The value of the label for the program that made a report, and the source of its results.
pub(super) const SOURCE: &str = "portcullis";
/// Most results of a report. Its summary counts all.
const MAX_RESULTS: usize = 100;

/// The format of reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum AuditFormat {
    /// Report and ClusterReport of openreports.io/v1alpha1.
    #[default]
    Openreports,
    /// PolicyReport and ClusterPolicyReport of wgpolicyk8s.io/v1alpha2.
    Wgpolicy,
}

impl AuditFormat {
    /// The API group.
    pub(super) fn group(self) -> &'static str {
        match self {
            Self::Openreports => "openreports.io",
            Self::Wgpolicy => "wgpolicyk8s.io",
        }
    }

    /// The version in the group.
    pub(super) fn version(self) -> &'static str {
        match self {
            Self::Openreports => "v1alpha1",
            Self::Wgpolicy => "v1alpha2",
        }
    }

    /// The kind of reports about objects in a namespace, or about those in none.
    pub(super) fn kind(self, is_namespaced: bool) -> &'static str {
        match (self, is_namespaced) {
            (Self::Openreports, true) => "Report",
            (Self::Openreports, false) => "ClusterReport",
            (Self::Wgpolicy, true) => "PolicyReport",
            (Self::Wgpolicy, false) => "ClusterPolicyReport",
        }
    }

    /// The plural name of that kind, in lower case.
    pub(super) fn plural(self, is_namespaced: bool) -> String {
        format!("{}s", self.kind(is_namespaced).to_lowercase())
    }

    /// `group/version`.
    pub(super) fn api_version(self) -> String {
        format!("{}/{}", self.group(), self.version())
    }
}

/// The object that a report is about.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Target {
    pub(super) api_version: String,
    pub(super) kind: String,
    /// None for objects without one.
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    pub(super) uid: String,
    /// The API version; set only where another report is about the same object in another version.
    pub(super) version: Option<String>,
}

impl Target {
    /// The object for users: `Pod team-a/web-1`.
    pub(super) fn title(&self) -> String {
        let namespace = self.namespace.as_ref().map(|namespace| format!("{namespace}/")).unwrap_or_default();
        format!("{} {namespace}{}", self.kind, self.name)
    }

    /// The name of its report.
    pub(super) fn report_name(&self, policy_server: &str) -> String {
        let version = self.version.as_ref().map(|version| format!("-{version}")).unwrap_or_default();
        format!("portcullis-{policy_server}-{}{version}", self.uid)
    }
}

/// Everything that a report says about an object.
#[derive(Debug, Default)]
pub(super) struct Judgement<'a> {
    /// The findings, each with its policy.
    pub(super) findings: Vec<(&'a Subject, &'a Finding)>,
    /// Results that are kept from the existing report, since their policies could not be asked now.
    pub(super) kept: Vec<Value>,
    /// The number of policies that admit the object.
    pub(super) passed: usize,
}

/// The report; none if there is no result to report.
pub(super) fn report(
    format: AuditFormat,
    policy_server: &str,
    target: &Target,
    judgement: &Judgement<'_>,
    now: Timestamp,
) -> Option<Value> {
    let made = judgement.findings.iter().map(|(subject, finding)| result(subject, finding, now));
    let mut results: Vec<Value> = made.chain(judgement.kept.iter().cloned()).collect();
    if results.is_empty() {
        return None;
    }
    results.sort_by(|a, b| a["policy"].as_str().cmp(&b["policy"].as_str()));
    let count = |word: &str| results.iter().filter(|result| result["result"] == word).count();
    let summary = json!({
        "pass": judgement.passed, "fail": count("fail"), "warn": count("warn"), "error": count("error"), "skip": 0,
    });
    results.truncate(MAX_RESULTS);
    let mut scope = json!({
        "apiVersion": target.api_version, "kind": target.kind, "name": target.name, "uid": target.uid,
    });
    let owner = scope.clone();
    let mut metadata = json!({
        "name": target.report_name(policy_server),
        "labels": {MANAGED_BY_LABEL: SOURCE, POLICY_SERVER_LABEL: policy_server},
        "ownerReferences": [owner],
    });
    if let Some(namespace) = &target.namespace {
        scope["namespace"] = json!(namespace);
        metadata["namespace"] = json!(namespace);
    }
    let mut report = json!({
        "apiVersion": format.api_version(),
        "kind": format.kind(target.namespace.is_some()),
        "metadata": metadata,
        "scope": scope,
        "results": results,
        "summary": summary,
    });
    if format == AuditFormat::Openreports {
        report["source"] = json!(SOURCE);
    }
    Some(report)
}

fn result(subject: &Subject, finding: &Finding, now: Timestamp) -> Value {
    let word = match (finding.problem, subject.mode) {
        (Problem::Error, _) => "error",
        (Problem::Violation, Mode::Protect) => "fail",
        (Problem::Violation, Mode::Warn | Mode::Monitor) => "warn",
    };
    let mut properties = Map::new();
    properties.insert("generation".to_owned(), json!(finding.generation.to_string()));
    if let Some(reason) = finding.reason {
        properties.insert("reason".to_owned(), json!(reason.as_str()));
    }
    let mut result = json!({
        "source": SOURCE,
        "policy": subject.id.as_str(),
        "result": word,
        "message": finding.message,
        "scored": word == "fail",
        "timestamp": {"seconds": now.as_second(), "nanos": 0},
        "properties": properties,
    });
    if let Some(severity) = subject.severity {
        result["severity"] = json!(severity);
    }
    if let Some(category) = &subject.category {
        result["category"] = json!(category);
    }
    result
}

/// A hash of everything of ours in a report except the times of results. Reports with the same hash count as equal.
pub(super) fn content(report: &Value) -> u64 {
    let mut results = report["results"].clone();
    for result in results.as_array_mut().into_iter().flatten() {
        if let Some(fields) = result.as_object_mut() {
            fields.remove("timestamp");
        }
    }
    let metadata = &report["metadata"];
    let labels = [MANAGED_BY_LABEL, POLICY_SERVER_LABEL].map(|label| &metadata["labels"][label]);
    let parts =
        json!([labels, metadata["ownerReferences"], report["source"], report["scope"], results, report["summary"]]);
    hash(&sorted(&parts).to_string())
}

/// A value with the fields of all objects in the order of their keys.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Array(entries) => entries.iter().map(sorted).collect(),
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().map(|(key, value)| (key.clone(), sorted(value))).collect();
            fields.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(fields.into_iter().collect())
        }
        _ => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use portcullis_api::Kind;

    use super::*;
    use crate::audit::finding::tests::finding;
    use crate::audit::in_force::Content;
    use crate::audit::subject::{Read, Served, Site, read};

    fn subject(name: &str, mode: &str) -> Subject {
        let site = Site { policy_server: "default".into(), namespace: "portcullis".into() };
        let annotations = json!({"io.kubewarden.policy.severity": "high", "io.kubewarden.policy.category": "PSP"});
        let object = json!({
            "metadata": {"name": name, "uid": name, "annotations": annotations}, "spec": {"rules": [], "mode": mode},
        });
        match read(Kind::ClusterPolicy, &object, &Content::Own, &site, &Served::new()) {
            Some(Read::Subject(subject)) => *subject,
            other => panic!("{other:?}"),
        }
    }

    fn pod() -> Target {
        Target {
            api_version: "v1".into(),
            kind: "Pod".into(),
            namespace: Some("team-a".into()),
            name: "web".into(),
            uid: "u-1".into(),
            version: None,
        }
    }

    fn made(format: AuditFormat, target: &Target, judgement: &Judgement<'_>) -> Option<Value> {
        report(format, "default", target, judgement, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn an_object_that_is_fine_has_no_report() {
        assert_eq!(made(AuditFormat::Openreports, &pod(), &Judgement { passed: 7, ..Judgement::default() }), None);
    }

    #[test]
    fn a_report_has_the_findings_and_belongs_to_its_object() {
        let (strict, soft) = (subject("strict", "protect"), subject("soft", "monitor"));
        let (denied, warned) = (finding("strict", Problem::Violation, "no"), finding("soft", Problem::Violation, "hm"));
        let judgement =
            Judgement { findings: vec![(&strict, &denied), (&soft, &warned)], passed: 2, ..Judgement::default() };
        let result = |policy: &str, word: &str, message: &str| {
            json!({
                "source": "portcullis", "policy": policy, "result": word, "message": message, "scored": word == "fail",
                "timestamp": {"seconds": 0, "nanos": 0}, "properties": {"generation": "3"}, "severity": "high",
                "category": "PSP",
            })
        };
        let expected = json!({
            "apiVersion": "openreports.io/v1alpha1",
            "kind": "Report",
            "metadata": {
                "name": "portcullis-default-u-1",
                "labels": {
                    "app.kubernetes.io/managed-by": "portcullis", "policies.portcullis.dev/policy-server": "default",
                },
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "u-1"}],
                "namespace": "team-a",
            },
            "scope": {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "u-1", "namespace": "team-a"},
            "results": [result("cluster/soft", "warn", "hm"), result("cluster/strict", "fail", "no")],
            "summary": {"pass": 2, "fail": 1, "warn": 1, "error": 0, "skip": 0},
            "source": "portcullis",
        });
        assert_eq!(made(AuditFormat::Openreports, &pod(), &judgement), Some(expected));
    }

    #[test]
    fn both_formats_have_reports_for_objects_in_no_namespace() {
        let strict = subject("strict", "protect");
        let failed = Finding {
            reason: Some(portcullis_contract::Reason::EvaluationTimedOut),
            ..finding("strict", Problem::Error, "late")
        };
        let judgement = Judgement { findings: vec![(&strict, &failed)], ..Judgement::default() };
        let namespace = Target { kind: "Namespace".into(), namespace: None, version: Some("v2".into()), ..pod() };
        let report = made(AuditFormat::Wgpolicy, &namespace, &judgement).expect("a report");
        assert_eq!((&report["kind"], &report["source"]), (&json!("ClusterPolicyReport"), &Value::Null));
        assert_eq!(report["metadata"]["name"], "portcullis-default-u-1-v2");
        assert_eq!(report["metadata"].get("namespace"), None);
        assert_eq!(report["results"][0]["result"], "error");
        assert_eq!(report["results"][0]["properties"], json!({"generation": "3", "reason": "EvaluationTimedOut"}));
        let kinds = [AuditFormat::Openreports, AuditFormat::Wgpolicy].map(|format| format.plural(false));
        assert_eq!(kinds, ["clusterreports", "clusterpolicyreports"]);
        assert_eq!(namespace.title(), "Namespace web");
    }

    #[test]
    fn a_report_is_bounded_and_its_summary_counts_all() {
        let policies: Vec<Subject> = (0..150).map(|number| subject(&format!("p{number}"), "protect")).collect();
        let denied = finding("p", Problem::Violation, "no");
        let findings = policies.iter().map(|policy| (policy, &denied)).collect();
        let report =
            made(AuditFormat::Openreports, &pod(), &Judgement { findings, ..Judgement::default() }).expect("a report");
        assert_eq!(report["results"].as_array().map(Vec::len), Some(MAX_RESULTS));
        assert_eq!(report["summary"]["fail"], 150);
    }

    #[test]
    fn reports_are_the_same_whatever_the_order_of_fields_and_the_time() {
        let strict = subject("strict", "protect");
        let denied = finding("strict", Problem::Violation, "no");
        let judgement = || Judgement { findings: vec![(&strict, &denied)], ..Judgement::default() };
        let first = made(AuditFormat::Openreports, &pod(), &judgement()).expect("a report");
        let later = Timestamp::from_second(99).expect("a time");
        let second = report(AuditFormat::Openreports, "default", &pod(), &judgement(), later).expect("a report");
        let mut stored = sorted(&second);
        stored["metadata"]["resourceVersion"] = json!("7");
        assert_eq!(content(&first), content(&stored));
        let kept = vec![json!({"policy": "cluster/older", "result": "fail"})];
        let more = made(AuditFormat::Openreports, &pod(), &Judgement { kept, ..judgement() }).expect("a report");
        assert_ne!(content(&first), content(&more));
        stored["metadata"]["ownerReferences"] = json!([]);
        assert_ne!(content(&first), content(&stored));
    }
}
