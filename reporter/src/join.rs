//! Joins the states of this pod's loader and evaluator into the pod's report (docs/design/status-api.md, section 2.2). Pure.
//!
//! The loader knows the policies, the newest generation of each, and how far it has come with it. The evaluator knows which
//! generation answers. A failure of the loader takes precedence over one of the evaluator: a generation that was not published
//! cannot have been loaded.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use portcullis_api::{PolicyKey, ReplicaReportSpec, ReportDeviation, ReportFailing, Versions};
use portcullis_contract::{
    Digest, EvaluatorState, Failing, Failure, LoaderPolicy, LoaderState, MANIFEST_FORMAT, Phase, PolicyId, Reason,
    ReplicaState, Stage,
};

use crate::turns::in_turns;
use crate::{context, impact, mismatch};

mod shorten;

/// This pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// Whether the evaluator answers.
#[derive(Debug, Clone, Copy)]
pub enum Evaluator<'a> {
    /// It answers; its last state.
    Answers(&'a EvaluatorState),
    /// It does not answer; why, and since when.
    Silent(&'a str, Timestamp),
}

/// The evaluator's state of one policy.
struct Claim<'a> {
    uid: &'a str,
    /// The newest generation that it knows.
    newest: i64,
    /// The generation that answers; 0 if none.
    serving: i64,
    digest: Option<Digest>,
    /// The members of a policy group.
    members: Option<&'a BTreeMap<String, Digest>>,
    failure: Option<&'a Failure>,
    since: Timestamp,
}

/// The pod's report.
pub fn join(pod: &Pod, loader: &LoaderState, evaluator: Evaluator<'_>, now: Timestamp) -> ReplicaReportSpec {
    let state = match evaluator {
        Evaluator::Answers(state) => Some(state),
        Evaluator::Silent(..) => None,
    };
    let mut report = ReplicaReportSpec {
        pod_uid: pod.uid.clone(),
        versions: Versions {
            loader: loader.program.version.clone(),
            evaluator: state.map(|state| state.program.version.clone()).unwrap_or_default(),
            reporter: portcullis_process::VERSION.to_owned(),
            engine: state.map(|state| state.program.engine.clone()).unwrap_or_default(),
            manifest_format: MANIFEST_FORMAT,
        },
        manifest_number: state.map_or(0, |state| state.manifest_number),
        path_keys: state.map(path_keys).unwrap_or_default(),
        heartbeat: now,
        ..ReplicaReportSpec::default()
    };
    let claims = state.map(claims).unwrap_or_default();
    for policy in &loader.policies {
        if let Evaluator::Silent(why, since) = evaluator {
            report.deviations.push(silent(policy, why, since));
            continue;
        }
        // If the uid is different, the evaluator's state is that of an earlier policy of this name.
        let claim = claims.get(&policy.id).filter(|claim| claim.uid == policy.uid);
        match claim {
            Some(claim) if claim.newest > policy.generation || claim.serving > policy.generation => {
                let claimed = claim.newest.max(claim.serving);
                let why =
                    format!("it tells of generation {claimed}, but the loader knows none after {}", policy.generation);
                report.deviations.push(silent(policy, &why, claim.since));
            }
            // A generation whose revision became unreadable after it was loaded still answers, but does not count as current.
            Some(claim) if claim.serving == policy.generation && is_readable(policy) => {
                let key = PolicyKey::of(&policy.uid);
                report.digests.extend(claim.digest.map(|digest| (key.clone(), digest)));
                report.members.extend(claim.members.map(|members| (key.clone(), members.clone())));
                report.current.insert(key, claim.serving);
            }
            _ => report.deviations.push(deviation(loader, state, policy, claim)),
        }
    }
    report.failing = state.map(|state| failing(loader, state)).unwrap_or_default();
    report.mismatches = mismatch::reported(loader);
    report.context = context::reported(loader);
    report.impacts = impact::reported(loader);
    shorten::shorten(&mut report, loader);
    report
}

/// The keys of webhook paths that the evaluator accepts.
fn path_keys(state: &EvaluatorState) -> Vec<String> {
    state.path_keys.iter().take(ReplicaReportSpec::MAX_PATH_KEYS).cloned().collect()
}

/// Whether the loader can read the newest generation.
fn is_readable(policy: &LoaderPolicy) -> bool {
    policy.failure.as_ref().is_none_or(|failure| failure.stage() != Stage::Spec)
}

/// Whether the evaluator reports a generation that the loader has not reported yet. For a moment that is due to the order in which
/// their states were read; if it lasts, something is wrong.
pub fn is_ahead(loader: &LoaderState, evaluator: &EvaluatorState) -> bool {
    let claims = claims(evaluator);
    loader.policies.iter().any(|policy| {
        claims
            .get(&policy.id)
            .is_some_and(|claim| claim.uid == policy.uid && claim.newest.max(claim.serving) > policy.generation)
    })
}

fn claims(state: &EvaluatorState) -> HashMap<&PolicyId, Claim<'_>> {
    let current = state.current.iter().map(|(id, current)| {
        let claim = Claim {
            uid: &current.uid,
            newest: current.generation,
            serving: current.generation,
            digest: Some(current.digest),
            members: Some(&current.members).filter(|members| !members.is_empty()),
            failure: None,
            since: current.since,
        };
        (id, claim)
    });
    let deviations = state.deviations.iter().map(|deviation| {
        let claim = Claim {
            uid: &deviation.uid,
            newest: deviation.generation,
            serving: deviation.serving,
            digest: deviation.digest,
            members: Some(&deviation.members).filter(|members| !members.is_empty()),
            failure: deviation.failure.as_ref(),
            since: deviation.since,
        };
        (&deviation.id, claim)
    });
    current.chain(deviations).collect()
}

/// The policies of which too many evaluations fail.
fn failing(loader: &LoaderState, evaluator: &EvaluatorState) -> Vec<ReportFailing> {
    let known =
        |failing: &&Failing| loader.policies.iter().any(|policy| policy.id == failing.id && policy.uid == failing.uid);
    let entry = |failing: &Failing| ReportFailing {
        policy_uid: failing.uid.clone(),
        reason: failing.reason.to_string(),
        since: failing.since,
    };
    let failing = in_turns(evaluator.failing.iter().filter(known), |failing| ((), failing.id.namespace()));
    failing.into_iter().take(ReplicaReportSpec::MAX_FAILING).map(entry).collect()
}

fn silent(policy: &LoaderPolicy, why: &str, since: Timestamp) -> ReportDeviation {
    let reason = Reason::EvaluatorUnreachable;
    ReportDeviation {
        policy_uid: policy.uid.clone(),
        generation: policy.generation,
        serving: 0,
        state: ReplicaState::Unknown,
        reason: Some(reason.to_string()),
        retryable: Some(reason.class().is_retryable()),
        next_retry_time: None,
        since,
        message: Some(portcullis_contract::clean(why, Failure::MAX_MESSAGE).into()),
        // It is unknown what an evaluator does while it does not answer.
        passed_over: false,
    }
}

fn deviation(
    loader: &LoaderState,
    evaluator: Option<&EvaluatorState>,
    policy: &LoaderPolicy,
    claim: Option<&Claim<'_>>,
) -> ReportDeviation {
    let failure = failure(loader, evaluator, policy, claim);
    let serving = claim.map_or(0, |claim| claim.serving);
    let state = match (serving, failure) {
        (1.., _) => ReplicaState::Previous,
        (_, Some(_)) => ReplicaState::Failed,
        (_, None) => ReplicaState::Pending,
    };
    let doing = match policy.phase {
        Phase::Queued => "waiting for its turn",
        Phase::Fetching => "fetching the module",
        Phase::Compiling => "compiling the module",
        Phase::Published => "the evaluator is loading it",
        Phase::Failed => "trying again",
    };
    let since = failure.map(|failure| failure.since).or(claim.map(|claim| claim.since));
    ReportDeviation {
        policy_uid: policy.uid.clone(),
        generation: policy.generation,
        serving,
        state,
        reason: failure.map(|failure| failure.reason.to_string()),
        retryable: failure.map(|failure| failure.class().is_retryable()),
        next_retry_time: failure.and_then(|failure| failure.next_retry_time),
        since: since.unwrap_or(policy.created),
        message: Some(failure.map_or(doing, |failure| failure.message.as_str()).into()),
        // The loader decides this for its evaluator, from the marks of revisions or from its own memory. No other program knows
        // better, and a policy's status can be late, edited or lost.
        passed_over: serving == 0 && !policy.enforced,
    }
}

/// Why the newest generation does not serve here: the loader's failure, else the evaluator's, else a failure to write or to read the
/// manifest on the volume.
fn failure<'a>(
    loader: &'a LoaderState,
    evaluator: Option<&'a EvaluatorState>,
    policy: &'a LoaderPolicy,
    claim: Option<&Claim<'a>>,
) -> Option<&'a Failure> {
    let newest = |failure: &&Failure| matches!(failure.generation, 0) || failure.generation == policy.generation;
    let handed_over = matches!(policy.phase, Phase::Published | Phase::Failed);
    let volume = || loader.volume_failure.as_ref().filter(|_| handed_over);
    let manifest = || evaluator?.manifest_failure.as_ref().filter(|_| handed_over);
    let refused = || claim.filter(|claim| claim.newest == policy.generation)?.failure.filter(newest);
    policy.failure.as_ref().filter(newest).or_else(refused).or_else(volume).or_else(manifest)
}

#[cfg(test)]
mod tests;
