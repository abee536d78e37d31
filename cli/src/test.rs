//! `portcullis test`: whether policies answer what their tests expect. The real loader and evaluator answer.
//!
//! ```text
//!  FILE|DIR… ─► collect: tests, their policies and requests ─► the session of eval ─► expectation ─► report: text, JSON, JUnit
//! ```

mod collect;
mod expectation;
mod report;
mod suite;

use std::collections::HashMap;
use std::io::IsTerminal as _;
use std::process::ExitCode;

use portcullis_contract::PolicyId;
use portcullis_process::SettingError;
use serde_json::Value;

use crate::args::TestArgs;
use crate::child::Echo;
use crate::eval::session::{More, Session, until_signal};
use crate::eval::state::Settled;
use crate::eval::verdict::{Outcome as Answer, Verdict};
use crate::matching::{NamespaceLabels, matching};
use collect::{Prepared, Trial, collect};
use expectation::Judged;
use report::{Outcome, Report, Tried};

/// Tests and prints. Exit status: 0 all passed, 1 a case failed, 2 a case could not be evaluated, 64 for a bad argument.
pub(crate) fn test(args: &TestArgs) -> ExitCode {
    let printed = tested(args).and_then(|report| {
        crate::print(report.in_form(args.output).as_bytes())?;
        Ok(report.status())
    });
    match printed {
        Ok(status) => ExitCode::from(status),
        Err(error) => crate::refuse(&error),
    }
}

fn tested(args: &TestArgs) -> anyhow::Result<Report> {
    args.modules.loader.access.check()?;
    let (tests, wrong) = collect(&args.paths, args.run.as_deref())?;
    let batches = batches(&tests);
    if args.recording.record.is_some() && batches.len() > 1 {
        let problem = "these tests load a policy several times, with different manifests or settings, and each time would overwrite the \
                       recording; choose some by --run, with a file for each";
        return Err(SettingError::new("--record-host-capabilities-interactions", problem).into());
    }
    until_signal(async {
        let mut tried: Vec<Vec<Tried>> = tests.iter().map(|_| Vec::new()).collect();
        for batch in batches {
            for (number, results) in run(args, &tests, &batch).await? {
                tried[number] = results;
            }
        }
        let mut report = Report::default();
        tried.into_iter().flatten().chain(wrong).for_each(|one| report.add(one));
        Ok(report)
    })
}

/// Tests whose policies can be loaded together. Tests may give other settings to a policy of the same name.
fn batches(tests: &[Prepared]) -> Vec<Vec<usize>> {
    let mut batches: Vec<(HashMap<&PolicyId, &str>, Vec<usize>)> = Vec::new();
    for (number, test) in tests.iter().enumerate() {
        let (id, manifest) = (&test.policy.id, test.policy.manifest.as_str());
        let fits = |manifests: &HashMap<_, &str>| manifests.get(id).is_none_or(|other| *other == manifest);
        match batches.iter_mut().find(|(manifests, _)| fits(manifests)) {
            Some((manifests, batch)) => {
                manifests.insert(id, manifest);
                batch.push(number);
            }
            None => batches.push((HashMap::from([(id, manifest)]), vec![number])),
        }
    }
    batches.into_iter().map(|(_, batch)| batch).collect()
}

/// Loads the policies of some tests, and tries their cases.
async fn run(args: &TestArgs, tests: &[Prepared], batch: &[usize]) -> anyhow::Result<Vec<(usize, Vec<Tried>)>> {
    let mut policies: Vec<&Prepared> = Vec::new();
    for number in batch {
        if !policies.iter().any(|known| known.policy.id == tests[*number].policy.id) {
            policies.push(&tests[*number]);
        }
    }
    let manifests: Vec<_> = policies.iter().map(|test| test.policy.manifest.as_str()).collect();
    let ids: Vec<_> = policies.iter().map(|test| &test.policy.id).collect();
    let roots: Vec<_> = batch.iter().map(|number| tests[*number].folder.clone()).collect();
    let roots = [roots, args.modules.module_roots.clone()].concat();
    let mut loader = args.modules.for_loader();
    loader.extend(args.recording.for_loader());
    let more = More { evaluator: args.recording.for_evaluator(), loader, echo: Echo::Policies };
    let session = Session::start(&manifests, &roots, more, args.modules.limits.compile_time).await?;
    let tried = try_all(&session, &ids, tests, batch).await;
    session.stop(None).await;
    tried
}

async fn try_all(
    session: &Session,
    ids: &[&PolicyId],
    tests: &[Prepared],
    batch: &[usize],
) -> anyhow::Result<Vec<(usize, Vec<Tried>)>> {
    let mut loaded = HashMap::new();
    let shows = std::io::stderr().is_terminal();
    let settled = session.settle(ids, |number, settled| {
        loaded.insert(ids[number], settled);
        if shows {
            crate::note(&format!("{} of {} policies: {}", loaded.len(), ids.len(), ids[number]));
        }
    });
    // The results that are known still count.
    let missing =
        settled.await.err().map_or_else(|| "the policy has no state".to_owned(), |error| format!("{error:#}"));
    let mut all = Vec::new();
    for number in batch {
        let test = &tests[*number];
        let unserved = match loaded.get(&test.policy.id) {
            Some(Settled::Serves { .. }) => None,
            Some(Settled::Failed(failure)) => Some(format!("the policy does not load: {failure}")),
            Some(Settled::Refused(why)) => Some(why.clone()),
            None => Some(missing.clone()),
        };
        let mut tried = Vec::new();
        for trial in &test.trials {
            tried.push(one(session, test, trial, unserved.as_deref()).await?);
        }
        all.push((*number, tried));
    }
    Ok(all)
}

/// Tries one case. `unserved` says why the policy cannot answer.
async fn one(session: &Session, test: &Prepared, trial: &Trial, unserved: Option<&str>) -> anyhow::Result<Tried> {
    let policy = &test.policy;
    let labels = NamespaceLabels::All(&trial.namespace_labels);
    let found = matching(&policy.id, &policy.spec, &trial.asked, &trial.request, labels);
    let ((outcome, messages), note) = match trial.expect.judge(&found) {
        Judged::Differs(difference) => ((Outcome::Failed, vec![difference]), None),
        Judged::Met(note) => ((Outcome::Passed, Vec::new()), note),
        Judged::Ask(note) => (asked(session, &policy.id, trial, unserved).await?, note),
    };
    Ok(Tried {
        file: test.file.clone(),
        line: test.line,
        test: test.name.clone(),
        policy: policy.id.to_string(),
        case: trial.name.clone(),
        outcome,
        messages,
        notes: note.into_iter().chain(trial.notes.iter().cloned()).collect(),
    })
}

/// Asks the policy, if it can answer, and says what that means for a case.
async fn asked(
    session: &Session,
    id: &PolicyId,
    trial: &Trial,
    unserved: Option<&str>,
) -> anyhow::Result<(Outcome, Vec<String>)> {
    if let Some(why) = unserved {
        return Ok((Outcome::NotEvaluated, vec![why.to_owned()]));
    }
    match session.post("validate", id, trial.review.clone()).await {
        Err(error) => Ok((Outcome::NotEvaluated, vec![format!("{error:#}")])),
        Ok(Err(refusal)) => Ok((Outcome::NotEvaluated, vec![refusal.to_string()])),
        Ok(Ok(body)) => judged(id.clone(), trial, &body),
    }
}

/// What an answer means for a case.
fn judged(id: PolicyId, trial: &Trial, body: &[u8]) -> anyhow::Result<(Outcome, Vec<String>)> {
    let verdict = Verdict::of(&id, body, None, Vec::new())?;
    if verdict.outcome == Answer::NotEvaluated {
        return Ok((Outcome::NotEvaluated, vec![verdict.message.unwrap_or_else(|| "it was not evaluated".to_owned())]));
    }
    let object = match changed(trial.request.get("object"), verdict.patch.as_ref()) {
        Ok(object) => object,
        Err(error) => return Ok((Outcome::Failed, vec![format!("the patch does not fit the object: {error}")])),
    };
    let differences = trial.expect.of_verdict(&verdict, object.as_ref());
    let outcome = if differences.is_empty() { Outcome::Passed } else { Outcome::Failed };
    Ok((outcome, differences))
}

/// The object of a request after a JSON Patch (RFC 6902).
fn changed(object: Option<&Value>, patch: Option<&Value>) -> anyhow::Result<Option<Value>> {
    let Some(mut object) = object.filter(|object| !object.is_null()).cloned() else { return Ok(None) };
    if let Some(patch) = patch {
        let patch: json_patch::Patch = serde_json::from_value(patch.clone())?;
        json_patch::patch(&mut object, &patch)?;
    }
    Ok(Some(object))
}
