//! Judges the objects of a page: uses what is remembered, asks about the rest, counts, and writes reports.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Instant;

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource as _;
use portcullis_api::kubernetes::BoundedValue;
use portcullis_contract::{AuditVerdict, PolicyId, Reason};
use portcullis_kubernetes::ObjectText;
use portcullis_matching::{Asked, Decision, about};
use portcullis_util::lock;
use serde_json::value::RawValue;

use super::ask::Evaluator;
use super::budget::{Budgets, Round};
use super::finding::{Finding, Problem};
use super::known::ObjectKey;
use super::memory::{ListKey, Memory, Open, Remembered, fingerprint, generations, key};
use super::metrics::AuditMetrics;
use super::plan::{Asking, KnownNamespaces, List, Matching, Plan, USER};
use super::report::{AuditFormat, Judgement, Target, report};
use super::rest::Reading;
use super::subject::Subject;
use super::tally::Tally;
use super::writer::Writer;

/// How many objects the evaluator is asked about at the same time.
const AT_ONCE: usize = 2;
/// Most objects of a list that are noted as judged in this scan. If there are more and the list is begun again, some are counted twice.
const MAX_JUDGED: usize = 1_000_000;

/// Judges objects.
pub(super) struct Worker {
    pub(super) evaluator: Evaluator,
    pub(super) budgets: Mutex<Budgets>,
    pub(super) memory: Memory,
    pub(super) reading: Reading,
    pub(super) writer: Writer,
    pub(super) metrics: AuditMetrics,
    pub(super) policy_server: String,
    pub(super) format: AuditFormat,
}

/// A list of a plan, and what was found so far.
pub(super) struct Current<'p> {
    pub(super) plan: &'p Plan,
    pub(super) list: &'p List,
    pub(super) namespaces: &'p KnownNamespaces,
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
    /// What is remembered of earlier scans; empty if the object was not judged as it is now.
    remembered: Remembered,
    /// [`Remembered::generations`] of this scan.
    generations: u64,
    questions: Vec<Asking>,
    /// The object as JSON; none if there are no questions.
    raw: Option<Box<RawValue>>,
}

/// The outcome of a question about an object.
enum Answer {
    Verdict(AuditVerdict),
    /// The evaluator cannot be asked.
    Unasked,
    /// The policy has used up its budget.
    LeftOut,
}

impl Worker {
    /// Judges the objects of one page. Each object counts once, even if it comes twice because the list was begun again.
    pub(super) async fn page(&mut self, current: &mut Current<'_>, objects: Vec<ObjectText>) {
        let mut work = Vec::new();
        for object in objects {
            work.extend(self.prepare(current, object));
            // Match conditions can take a while, and other tasks must not wait so long.
            tokio::task::yield_now().await;
        }
        self.reading.stop(Instant::now());
        let (plan, list) = (current.plan, current.list);
        let questions: Vec<_> = work.into_iter().map(|work| self.judge(plan, list, work)).collect();
        let judged: Vec<_> = stream::iter(questions).buffer_unordered(AT_ONCE).collect().await;
        for (work, answers) in judged {
            self.conclude(current, &work, &answers).await;
        }
        self.reading.begin(Instant::now());
    }

    /// The questions about an object; none if it was judged already in this scan.
    fn prepare(&mut self, current: &mut Current<'_>, object: ObjectText) -> Option<Work> {
        let (plan, list) = (current.plan, current.list);
        let target = target(list, object.meta())?;
        let key = key(&target.uid, &list.resource);
        if current.judged.contains(&key) {
            return None;
        }
        if current.judged.len() < MAX_JUDGED {
            current.judged.insert(key);
        }
        let version = object.meta().resource_version.clone().unwrap_or_default();
        let text = object.whole(&list.resource.api_version(), &list.resource.kind).ok()?;
        let matching = match BoundedValue::read(&text) {
            Some(object) => {
                plan.matching(list, &object, current.namespaces, |subject, decide| self.evaluated(subject, decide))
            }
            None => Plan::too_large(list),
        };
        let stable =
            || matching.asking.iter().map(move |one| &plan.subjects[one.subject]).filter(|one| !one.depends_on_others);
        let labels = target.namespace.as_ref().and_then(|namespace| current.namespaces.labels.get(namespace));
        let fingerprint = fingerprint(&version, labels);
        // If all policies that match an object are asked each time, there is nothing to remember of it.
        let generations = if stable().next().is_none() { 0 } else { generations(stable()) };
        let remembered = self.memory.recall(key, fingerprint).unwrap_or_default();
        let budgets = lock(&self.budgets);
        let is_asked = |one: &&Asking| {
            let subject = &plan.subjects[one.subject];
            if subject.depends_on_others {
                return !budgets.resumed_round(subject).is_some_and(|round| remembered.rounds.contains(&round));
            }
            let is_open = |open: Open| !open.is_late || budgets.asks_late(subject);
            remembered.generations != generations || remembered.open(subject).is_some_and(is_open)
        };
        let questions: Vec<Asking> = matching.asking.iter().filter(is_asked).copied().collect();
        let raw = (!questions.is_empty()).then_some(text);
        Some(Work { target, key, fingerprint, matching, remembered, generations, questions, raw })
    }

    /// What the match conditions of a policy say, at the expense of its budget; none if that is used up.
    fn evaluated(&self, subject: &Subject, decide: &dyn Fn() -> Decision) -> Option<Decision> {
        if subject.conditions.is_empty() {
            return Some(decide());
        }
        if !lock(&self.budgets).may_match(subject) {
            return None;
        }
        let begin = Instant::now();
        let decision = decide();
        if lock(&self.budgets).matched(subject, begin.elapsed()) {
            tracing::warn!(
                policy = %subject.id,
                "the audit leaves out further objects of a policy whose match conditions take too long"
            );
        }
        Some(decision)
    }

    /// Asks the policies about an object, one after the other. Each answer comes with the index of its subject.
    async fn judge(&self, plan: &Plan, list: &List, work: Work) -> (Work, Vec<(usize, Answer)>) {
        let mut answers = Vec::new();
        for asking in &work.questions {
            let subject = &plan.subjects[asking.subject];
            if !lock(&self.budgets).may_ask(subject) {
                answers.push((asking.subject, Answer::LeftOut));
                continue;
            }
            let namespace = work.target.namespace.as_deref().unwrap_or_default();
            let asked = Asked::of(&list.resource, asking.operation, namespace);
            let raw = work.raw.as_ref().map_or("null", |raw| raw.get());
            let review = about(USER, &asked, &list.resource.kind, &work.target.name, raw);
            let asked = self.evaluator.ask(&subject.id, subject.generation, &review).await;
            if lock(&self.budgets).took(subject, asked.time) {
                tracing::warn!(policy = %subject.id, "the audit leaves out further objects of a policy that takes too long");
            }
            answers.push((asking.subject, asked.verdict.map_or(Answer::Unasked, Answer::Verdict)));
        }
        (work, answers)
    }

    /// The round in which a verdict of a policy holds after it was given, if the policy depends on others and is slow.
    fn round(&self, subject: &Subject) -> Option<Round> {
        if !subject.depends_on_others {
            return None;
        }
        lock(&self.budgets).kept_round(subject)
    }

    /// Takes in the answers of policies about an object, and writes its report.
    async fn conclude(&mut self, current: &mut Current<'_>, work: &Work, answers: &[(usize, Answer)]) {
        let plan = current.plan;
        let subjects = &plan.subjects;
        let title = work.target.title();
        let mut findings: Vec<(usize, Finding)> = Vec::new();
        let mut passed = 0;
        // The findings of policies that are not asked again, and the policies that are.
        let mut remembered = Remembered { generations: work.generations, ..Remembered::default() };
        let mut unasked = work.matching.unasked.clone();
        for number in &work.matching.unasked {
            current.tallies[*number].unasked();
        }
        for number in &work.matching.left_out {
            current.tallies[*number].left_out(&title);
            unasked.push(*number);
        }
        for asking in &work.matching.asking {
            let subject = &subjects[asking.subject];
            let tally = &mut current.tallies[asking.subject];
            let round = self.round(subject);
            let held = round.filter(|round| work.remembered.rounds.contains(round));
            let old = || work.remembered.findings.iter().find(|finding| finding.policy == subject.id).cloned();
            let answer = match answers.iter().find(|(number, _)| *number == asking.subject) {
                // Its budget was used up while it was asked again. What it has said in this round holds.
                Some((_, Answer::LeftOut)) if held.is_some() => None,
                answer => answer.map(|(_, answer)| answer),
            };
            let (finding, open) = match answer {
                Some(Answer::Verdict(verdict)) => {
                    self.metrics.object(verdict.outcome.as_str());
                    let finding = Finding::of(&subject.id, verdict);
                    // An evaluation that failed may succeed in the next scan.
                    let failed = finding.as_ref().filter(|finding| finding.problem == Problem::Error);
                    let open =
                        failed.map(|failed| Open::new(subject, failed.reason == Some(Reason::EvaluationTimedOut)));
                    (finding, open)
                }
                Some(answer) => {
                    unasked.push(asking.subject);
                    match answer {
                        Answer::LeftOut => tally.left_out(&title),
                        _ => tally.unasked(),
                    }
                    // In the next scan it may have used up its budget.
                    remembered.rounds.extend(held);
                    remembered.findings.extend(held.and_then(|_| old()));
                    remembered.open.extend((!subject.depends_on_others).then(|| Open::new(subject, false)));
                    continue;
                }
                None => {
                    self.metrics.object("remembered");
                    (old(), work.remembered.open(subject))
                }
            };
            tally.judged(finding.as_ref(), &title);
            let mut holds = open.is_none_or(|open| open.is_late);
            if subject.depends_on_others {
                let round = round.filter(|_| holds);
                holds = round.is_some();
                remembered.rounds.extend(round);
            } else {
                remembered.open.extend(open);
            }
            remembered.findings.extend(finding.clone().filter(|_| holds));
            match finding {
                Some(finding) => findings.push((asking.subject, finding)),
                None => passed += 1,
            }
        }
        unasked.iter().for_each(|_| self.metrics.object("unasked"));
        for number in &work.matching.unknown {
            self.metrics.object("unknown");
            current.tallies[*number].unknown();
        }
        for number in &work.matching.too_large {
            self.metrics.object("too_large");
            current.tallies[*number].too_large(&title);
        }
        if work.remembered != remembered {
            self.memory.put(work.key, ListKey::of(&current.list.resource), work.fingerprint, remembered);
        }
        let of_report = || findings.iter().map(|(number, _)| *number).chain(unasked.iter().copied());
        let findings_of = findings.iter().map(|(number, finding)| (&subjects[*number], finding)).collect();
        let unasked_ids = unasked.iter().map(|number| &subjects[*number].id).chain(&plan.kept);
        let unasked_ids: Vec<&str> = unasked_ids.map(PolicyId::as_str).collect();
        if let Err(problem) = self.report(&work.target, findings_of, passed, &unasked_ids).await {
            // Only those whose results are missing hear of it: it may quote the quota of a namespace.
            of_report().for_each(|number| current.tallies[number].no_report(&problem));
        }
    }

    /// Writes the report on an object. Of the policies that could not be asked, it keeps what the last report says.
    ///
    /// # Errors
    /// When the report is missing or old, with the reason.
    async fn report(
        &mut self,
        target: &Target,
        findings: Vec<(&Subject, &Finding)>,
        passed: usize,
        unasked: &[&str],
    ) -> Result<(), String> {
        let name = target.report_name(&self.policy_server);
        let key = ObjectKey { namespace: target.namespace.clone(), name };
        let kept = match unasked {
            [] => Vec::new(),
            unasked => self.writer.results(&key, |policy| unasked.contains(&policy)).await?,
        };
        let judgement = Judgement { findings, kept, passed };
        let wanted = report(self.format, &self.policy_server, target, &judgement, Timestamp::now());
        self.writer.put(&key, wanted).await
    }
}

/// The object of a list that a report would be about.
fn target(list: &List, metadata: &ObjectMeta) -> Option<Target> {
    Some(Target {
        api_version: list.resource.api_version(),
        kind: list.resource.kind.clone(),
        namespace: metadata.namespace.clone(),
        name: metadata.name.clone()?,
        uid: metadata.uid.clone()?,
        version: list.is_repeated.then(|| list.resource.version.clone()),
    })
}
