//! Judges the objects of a page: uses what is remembered, asks about the rest, counts, and writes reports.

use std::collections::HashSet;

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use portcullis_contract::AuditVerdict;
use portcullis_matching::{Asked, Namespaces, about};
use serde_json::Value;

use super::ask::Evaluator;
use super::finding::{Finding, Problem};
use super::known::ObjectKey;
use super::memory::{Memory, fingerprint, key};
use super::metrics::AuditMetrics;
use super::plan::{Asking, List, Matching, Plan, USER};
use super::report::{AuditFormat, Judgement, Target, report};
use super::tally::Tally;
use super::writer::Writer;

/// How many objects the evaluator is asked about at the same time.
const AT_ONCE: usize = 2;
/// Most objects of a list that are noted as judged in this scan. If there are more and the list is begun again, some are counted twice.
const MAX_JUDGED: usize = 1_000_000;

/// Judges objects.
pub(super) struct Worker {
    pub(super) evaluator: Evaluator,
    pub(super) memory: Memory,
    pub(super) writer: Writer,
    pub(super) metrics: AuditMetrics,
    pub(super) policy_server: String,
    pub(super) format: AuditFormat,
}

/// A list of a plan, and what was found so far.
pub(super) struct Current<'p> {
    pub(super) plan: &'p Plan,
    pub(super) list: &'p List,
    pub(super) namespaces: &'p Namespaces,
    /// The numbers of each subject of the plan.
    pub(super) tallies: &'p mut [Tally],
    /// The keys of the objects that were judged.
    pub(super) judged: HashSet<u64>,
}

/// An object, and the questions about it.
struct Work {
    target: Target,
    key: u64,
    fingerprint: u64,
    matching: Matching,
    /// The findings of an earlier scan, if they still hold.
    remembered: Option<Vec<Finding>>,
    questions: Vec<Asking>,
    /// The object as JSON; empty if there are no questions.
    raw: String,
}

impl Worker {
    /// Judges the objects of one page. Each object counts once, even if it comes twice because the list was begun again.
    pub(super) async fn page(&mut self, current: &mut Current<'_>, objects: Vec<Value>) {
        let mut work = Vec::new();
        for object in objects {
            work.extend(self.prepare(current, &object));
            // Match conditions can take a while, and other tasks must not wait so long.
            tokio::task::yield_now().await;
        }
        let (plan, list, evaluator) = (current.plan, current.list, &self.evaluator);
        let questions: Vec<_> = work.into_iter().map(|work| judge(evaluator, plan, list, work)).collect();
        let judged: Vec<_> = stream::iter(questions).buffer_unordered(AT_ONCE).collect().await;
        for (work, verdicts) in judged {
            self.conclude(current, &work, &verdicts).await;
        }
    }

    /// The questions about an object; none if it was judged already in this scan.
    fn prepare(&mut self, current: &mut Current<'_>, object: &Value) -> Option<Work> {
        let (plan, list) = (current.plan, current.list);
        let target = target(list, object)?;
        let key = key(&target.uid, &list.resource);
        if current.judged.contains(&key) {
            return None;
        }
        if current.judged.len() < MAX_JUDGED {
            current.judged.insert(key);
        }
        let matching = plan.matching(list, object, current.namespaces);
        let stable =
            || matching.asking.iter().map(move |one| &plan.subjects[one.subject]).filter(|one| !one.reads_context);
        let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        let labels = target.namespace.as_ref().and_then(|namespace| current.namespaces.get(namespace));
        let fingerprint = fingerprint(version, labels, stable());
        let remembered =
            if stable().next().is_none() { Some(Vec::new()) } else { self.memory.recall(key, fingerprint) };
        let is_asked = |one: &&Asking| remembered.is_none() || plan.subjects[one.subject].reads_context;
        let questions: Vec<Asking> = matching.asking.iter().filter(is_asked).copied().collect();
        let raw = if questions.is_empty() { String::new() } else { object.to_string() };
        Some(Work { target, key, fingerprint, matching, remembered, questions, raw })
    }

    /// Takes in the verdicts of policies on an object, and writes its report.
    async fn conclude(&mut self, current: &mut Current<'_>, work: &Work, verdicts: &[(usize, Option<AuditVerdict>)]) {
        let plan = current.plan;
        let subjects = &plan.subjects;
        let title = work.target.title();
        let mut findings: Vec<(usize, Finding)> = Vec::new();
        let (mut passed, mut is_final) = (0, true);
        let mut unasked = work.matching.unserved.clone();
        for asking in &work.matching.asking {
            let subject = &subjects[asking.subject];
            let finding = match verdicts.iter().find(|(number, _)| *number == asking.subject) {
                Some((_, Some(verdict))) => {
                    self.metrics.object(verdict.outcome.as_str());
                    Finding::of(&subject.id, verdict)
                }
                Some((_, None)) => {
                    unasked.push(asking.subject);
                    current.tallies[asking.subject].unasked();
                    is_final &= subject.reads_context;
                    continue;
                }
                None => {
                    self.metrics.object("remembered");
                    work.remembered.iter().flatten().find(|finding| finding.policy == subject.id).cloned()
                }
            };
            current.tallies[asking.subject].judged(finding.as_ref(), &title);
            match finding {
                Some(finding) => {
                    // An evaluation that failed may succeed in the next scan.
                    is_final &= subject.reads_context || finding.problem == Problem::Violation;
                    findings.push((asking.subject, finding));
                }
                None => passed += 1,
            }
        }
        unasked.iter().for_each(|_| self.metrics.object("unasked"));
        for number in &work.matching.unknown {
            self.metrics.object("unknown");
            current.tallies[*number].unknown();
        }
        if work.remembered.is_none() && is_final {
            let stable = findings.iter().filter(|(number, _)| !subjects[*number].reads_context);
            let stable = stable.map(|(_, finding)| finding.clone()).collect();
            self.memory.put(work.key, work.fingerprint, stable);
        } else if work.remembered.is_none() {
            self.memory.forget(work.key);
        }
        let name = work.target.report_name(&self.policy_server);
        let report_key = ObjectKey { namespace: work.target.namespace.clone(), name };
        let kept = if unasked.is_empty() {
            Vec::new()
        } else {
            let is_unasked = |policy: &str| unasked.iter().any(|number| subjects[*number].id.as_str() == policy);
            self.writer.results(&report_key, is_unasked).await
        };
        let findings = findings.iter().map(|(number, finding)| (&subjects[*number], finding)).collect();
        let judgement = Judgement { findings, kept, passed };
        let wanted = report(self.format, &self.policy_server, &work.target, &judgement, Timestamp::now());
        self.writer.put(&report_key, wanted).await;
    }
}

/// Asks the policies about an object, one after the other. Each verdict comes with the index of its subject.
async fn judge(
    evaluator: &Evaluator,
    plan: &Plan,
    list: &List,
    work: Work,
) -> (Work, Vec<(usize, Option<AuditVerdict>)>) {
    let mut verdicts = Vec::new();
    for asking in &work.questions {
        let subject = &plan.subjects[asking.subject];
        let namespace = work.target.namespace.as_deref().unwrap_or_default();
        let asked = Asked::of(&list.resource, asking.operation, namespace);
        let review = about(USER, &asked, &list.resource.kind, &work.target.name, &work.raw);
        verdicts.push((asking.subject, evaluator.ask(&subject.id, subject.generation, &review).await));
    }
    (work, verdicts)
}

/// The object of a list that a report would be about.
fn target(list: &List, object: &Value) -> Option<Target> {
    let metadata = &object["metadata"];
    let text = |field: &str| metadata[field].as_str().map(str::to_owned);
    Some(Target {
        api_version: list.resource.api_version(),
        kind: list.resource.kind.clone(),
        namespace: text("namespace"),
        name: text("name")?,
        uid: text("uid")?,
        version: list.is_repeated.then(|| list.resource.version.clone()),
    })
}
