//! The decision: reports of replicas become the status of one policy (docs/design/status-api.md, section 4). Pure, and the same in a
//! folder and in a cluster: every reporter makes the same status of the same input.

use jiff::Timestamp;
use portcullis_api::{Condition, ConditionType, PolicyStatus, ReplicaStatus, Resolved, Truth};
use portcullis_contract::{ContextReason, Digest, Reason, ReplicaState, truncate};

mod aggregate;
mod history;

use self::aggregate::{Aggregate, Case};
use crate::facts::{Facts, Replica, Webhook, to_second};
use crate::replica::{Assessment, examine};
use crate::resolution::{self, Resolution};
use crate::{context, impact, message, mismatch};

/// One condition without the times that come from its history.
struct Finding {
    status: Truth,
    reason: String,
    message: String,
}

/// The status of a policy. `previous` is its status until now, if it is of the same object; it gives the times of the last
/// transitions, the generation served last, and the floor below which `observedGeneration` never goes.
///
/// `WebhookConfigured` is not here: the controller writes it.
pub fn decide(
    facts: &Facts<'_>,
    replicas: &[Replica<'_>],
    webhook: Webhook<'_>,
    previous: Option<&PolicyStatus>,
    now: Timestamp,
) -> PolicyStatus {
    if let Some(previous) = previous.filter(|previous| previous.observed_generation > facts.generation) {
        // The policy was read from a stale cache: the writer of `previous` knew a newer generation.
        return previous.clone();
    }
    let resolution = Resolution::of(facts, replicas, previous);
    let digest = resolution.digest();
    let resolved = digest.map(|digest| resolution::resolved(facts.generation, digest, facts, replicas, previous));
    let assessments: Vec<Assessment<'_>> = replicas.iter().map(|replica| examine(facts, resolution, replica)).collect();
    let aggregate = Aggregate::new(facts, webhook, &assessments);

    let enforced = enforced(&aggregate, previous);
    let of_older = |generation, digest| resolution::resolved(generation, digest, facts, replicas, previous);
    let served = served_everywhere(&aggregate, enforced.status, resolved.as_ref(), previous, of_older);
    let last_served = served.or_else(|| previous.and_then(|previous| previous.last_served.clone()));
    let mut conditions = Vec::with_capacity(8);
    conditions.push(accepted(&aggregate, previous, now));
    for (r#type, finding) in [
        (ConditionType::Ready, ready(&aggregate)),
        (ConditionType::Enforced, enforced),
        (ConditionType::Degraded, degraded(&aggregate)),
        (ConditionType::Reconciling, reconciling(&aggregate)),
        (ConditionType::Stalled, stalled(&aggregate)),
    ] {
        conditions.push(condition(r#type, finding, facts.generation, previous, now));
    }
    conditions.push(metadata_matched(&aggregate, replicas, previous, now));
    conditions.push(context_synced(&aggregate, previous, now));
    let (entries, omitted) = entries(&assessments);
    PolicyStatus {
        observed_generation: facts.generation,
        conditions,
        history: Some(history::of(&aggregate, previous, digest, last_served.as_ref(), now)),
        last_served,
        resolved,
        replica_counts: aggregate.counts,
        summary: format!("{}/{}", aggregate.counts.current, aggregate.counts.expected),
        replicas: entries,
        replicas_omitted: omitted,
        // Only the audit changes this part.
        audit: previous.and_then(|previous| previous.audit.clone()),
        impact: impact::newest(facts, replicas, previous),
    }
}

/// The generation that serves on every replica now, if there is one: the newest, or else an older one that answers everywhere while the
/// newest fails. The controller marks its revision. With the mark the policy counts as enforced for ever, and a fresh pod falls back to
/// this generation. Without the second case, a policy whose first generation was enforced only for a moment, before an edit that fails,
/// would be passed over by the next pod.
fn served_everywhere(
    aggregate: &Aggregate<'_>,
    enforced: Truth,
    resolved: Option<&Resolved>,
    previous: Option<&PolicyStatus>,
    of_older: impl Fn(i64, Digest) -> Resolved,
) -> Option<Resolved> {
    // Replicas load a suspended policy too, so that it can be resumed on each of them.
    if aggregate.is_served() {
        return resolved.cloned();
    }
    let (first, others) = aggregate.assessments.split_first()?;
    let serving = first.serving;
    let is_same = others.iter().all(|assessment| assessment.serving == serving);
    let is_known = previous?.last_served.as_ref().is_some_and(|known| known.generation >= serving);
    // The mark also says that its webhook was registered, and where an older one is called its own may never have been.
    let is_called = match aggregate.webhook {
        Webhook::Confirmed => true,
        Webhook::Older(why) => why.confirmed.is_some_and(|confirmed| serving <= confirmed),
        Webhook::Pending(_) => false,
    };
    let is_older = (1..aggregate.facts.generation).contains(&serving);
    if enforced != Truth::True || !is_called || !is_same || is_known || !is_older {
        return None;
    }
    let entry = previous?.history.iter().flatten().find(|entry| entry.generation == serving)?;
    Some(of_older(serving, entry.digest?))
}

fn finding(status: Truth, reason: impl Into<String>, message: impl Into<String>) -> Finding {
    Finding { status, reason: reason.into(), message: message.into() }
}

fn ready(aggregate: &Aggregate<'_>) -> Finding {
    let status = match aggregate.case {
        Case::NoReplicas => Truth::Unknown,
        Case::Suspended | Case::Active => Truth::True,
        _ => Truth::False,
    };
    finding(status, aggregate.reason(), aggregate.sentence())
}

/// The condition `Enforced`: true only if some generation answers on each replica and API servers call it. So a replica without an answer,
/// a suspended policy and an unconfirmed webhook count also where an older generation serves. A policy that was never enforced and is not
/// loaded on some replica has a reason of its own, as requests there pass without it instead of being rejected. A policy that was suspended
/// is not enforced before each replica knows that it is resumed.
fn enforced(aggregate: &Aggregate<'_>, previous: Option<&PolicyStatus>) -> Finding {
    let sentence = aggregate.sentence();
    let passing = aggregate.assessments.iter().filter(|assessment| assessment.passed_over).count();
    if passing > 0 {
        let words = message::passed_over(passing, aggregate.counts.expected, aggregate.is_stuck());
        return finding(Truth::False, "NotYetEnforced", format!("{words}; {sentence}"));
    }
    // Also where replicas fail or none is there, so that it is known when the policy is resumed.
    if aggregate.facts.suspend {
        return finding(Truth::False, "Suspended", sentence);
    }
    if aggregate.is_suspended_still(previous) {
        let generation = aggregate.facts.generation;
        let words = format!("the policy is suspended on replicas that do not know generation {generation} yet");
        return finding(Truth::False, "Suspended", format!("{words}; {sentence}"));
    }
    let older = || match aggregate.webhook {
        _ if aggregate.counts.pending > 0 => finding(Truth::False, "NotLoaded", sentence.clone()),
        Webhook::Pending(_) => finding(Truth::False, "WebhookPending", sentence.clone()),
        Webhook::Confirmed | Webhook::Older(_) => finding(Truth::True, "ServingPrevious", sentence.clone()),
    };
    match aggregate.case {
        Case::NoReplicas => finding(Truth::False, "NoReplicas", sentence),
        Case::Error => finding(Truth::False, "AllReplicasFailed", sentence),
        Case::Degraded if aggregate.counts.failed > 0 => finding(Truth::False, "ReplicaFailed", sentence),
        Case::Degraded => finding(Truth::Unknown, "ReplicaFailed", sentence),
        Case::ServingPrevious | Case::Progressing => older(),
        Case::Suspended => finding(Truth::False, "Suspended", sentence),
        Case::ContextNotSynced => finding(Truth::False, "ContextNotSynced", sentence),
        // API servers call by the match rules of the older generation, and every replica answers.
        Case::WebhookPending if matches!(aggregate.webhook, Webhook::Older(_)) => {
            finding(Truth::True, "ServingPrevious", sentence)
        }
        Case::WebhookPending => finding(Truth::False, "WebhookPending", sentence),
        Case::OlderMayAnswer | Case::Active => finding(Truth::True, "Active", sentence),
    }
}

fn degraded(aggregate: &Aggregate<'_>) -> Finding {
    if aggregate.bad.is_empty() {
        return finding(Truth::False, "AsExpected", "");
    }
    let words = message::failures_in_words(&aggregate.bad, aggregate.counts.expected);
    finding(Truth::True, message::joint_reason(&aggregate.bad), words)
}

fn reconciling(aggregate: &Aggregate<'_>) -> Finding {
    let counts = aggregate.counts;
    if aggregate.is_loading() {
        let reason = if counts.current > 0 { "RollingOut" } else { "Loading" };
        return finding(Truth::True, reason, message::loading(aggregate.facts, counts, &aggregate.assessments));
    }
    if aggregate.case == Case::OlderMayAnswer {
        return finding(Truth::True, "RollingOut", aggregate.sentence());
    }
    if aggregate.case == Case::ContextNotSynced && aggregate.context_needs_a_change().is_none() {
        return finding(Truth::True, "Loading", aggregate.sentence());
    }
    if aggregate.bad.is_empty() || aggregate.is_stuck() {
        return finding(Truth::False, "Idle", "");
    }
    finding(Truth::True, "Retrying", message::failures(&aggregate.bad, counts.expected))
}

fn stalled(aggregate: &Aggregate<'_>) -> Finding {
    if aggregate.is_stuck() {
        let words = message::failures_in_words(&aggregate.bad, aggregate.counts.expected);
        return finding(Truth::True, message::joint_reason(&aggregate.bad), words);
    }
    if let Some((reason, words)) = aggregate.context_needs_a_change() {
        return finding(Truth::True, reason.as_str(), words);
    }
    if let Some((reason, words)) = aggregate.webhook_needs_a_change() {
        return finding(Truth::True, reason, words);
    }
    finding(Truth::False, if aggregate.bad.is_empty() { "AsExpected" } else { "Retrying" }, "")
}

/// The condition `Accepted`: whether the spec is understood. While no replica has judged the newest generation, the last judgement
/// stays, with the generation that it is about, so that an edit does not make the condition flap. That the newest one is beyond a limit is none:
/// it ends with the controller's refusal.
fn accepted(aggregate: &Aggregate<'_>, previous: Option<&PolicyStatus>, now: Timestamp) -> Condition {
    let refusal = |assessment: &&&Assessment<'_>| {
        let refusals = [Reason::SpecInvalid, Reason::SourceNotAllowed, Reason::SettingsInvalid];
        assessment
            .problem
            .as_ref()
            .is_some_and(|problem| refusals.iter().any(|reason| reason.as_str() == problem.reason))
    };
    let made = |finding| condition(ConditionType::Accepted, finding, aggregate.facts.generation, previous, now);
    if let Some(words) = aggregate.facts.refusal
        && !aggregate.assessments.iter().any(|assessment| assessment.state == ReplicaState::Current)
    {
        return made(finding(Truth::False, Reason::QuotaExceeded.as_str(), words));
    }
    let refusing: Vec<_> = aggregate.bad.iter().filter(refusal).copied().collect();
    if !refusing.is_empty() {
        let words = message::failures_in_words(&refusing, aggregate.counts.expected);
        return made(finding(Truth::False, message::joint_reason(&refusing), words));
    }
    let judged = |assessment: &&&Assessment<'_>| {
        assessment.state == ReplicaState::Current
            || (assessment.problem.is_some() && assessment.state != ReplicaState::Unknown)
    };
    if aggregate.assessments.iter().any(|assessment| judged(&assessment)) {
        let words =
            aggregate.facts.rollback_to.map(|to| format!("rollbackTo: it serves the content of generation {to}"));
        return made(finding(Truth::True, "Accepted", words.unwrap_or_default()));
    }
    let last = previous.and_then(|previous| previous.condition(ConditionType::Accepted));
    let is_over = |last: &&Condition| {
        last.reason == Reason::QuotaExceeded.as_str() && last.observed_generation >= aggregate.facts.generation
    };
    match last.filter(|last| !is_over(last)) {
        Some(last) => last.clone(),
        None => made(finding(Truth::Unknown, "Progressing", "no replica has looked at the policy yet")),
    }
}

/// The condition `MetadataMatched`: whether the module's metadata agrees with the policy. Like the last judgement of the spec, the last
/// comparison stays while no replica has made another, or has no room for it in its report. That there was none yet does not stay.
fn metadata_matched(
    aggregate: &Aggregate<'_>,
    replicas: &[Replica<'_>],
    previous: Option<&PolicyStatus>,
    now: Timestamp,
) -> Condition {
    let r#type = ConditionType::MetadataMatched;
    let is_current = aggregate.assessments.iter().any(|assessment| assessment.state == ReplicaState::Current);
    let made = |finding| condition(r#type, finding, aggregate.facts.generation, previous, now);
    let last = previous.and_then(|previous| previous.condition(r#type));
    let last = last.filter(|last| !(is_current && last.reason == "Progressing"));
    match mismatch::found(aggregate.facts, replicas, is_current) {
        Some((status, reason, message)) => made(finding(status, reason, message)),
        None => last.cloned().unwrap_or_else(|| {
            let words = if is_current {
                "too many modules differ from their policies for the report of a pod to tell whether this one does"
            } else {
                "no replica has compared it with the policy yet"
            };
            made(finding(Truth::Unknown, "Progressing", words))
        }),
    }
}

/// The condition `ContextSynced`: whether the objects that the policy reads are known and up to date. Outdated objects show only here: the
/// policy goes on with them. The last finding stays while no replica serves the newest generation, or one that does has no room in its report
/// to tell. In the second case that objects are missing does not stay: the policy is Ready then, as most that have no entry lack nothing, and
/// otherwise many that lack objects would keep one that has read its own from being enforced.
fn context_synced(aggregate: &Aggregate<'_>, previous: Option<&PolicyStatus>, now: Timestamp) -> Condition {
    let r#type = ConditionType::ContextSynced;
    let made = |finding| condition(r#type, finding, aggregate.facts.generation, previous, now);
    if let Some((reason, words)) = aggregate.context() {
        return made(finding(Truth::False, reason.as_str(), words));
    }
    let is_current = aggregate.counts.current > 0;
    if is_current && !aggregate.assessments.iter().any(|assessment| assessment.is_context_left_out) {
        return made(finding(Truth::True, "AsExpected", ""));
    }
    let last = previous.and_then(|previous| previous.condition(r#type));
    let holds = |last: &&Condition| last.status == Truth::True || last.reason == ContextReason::ContextStale.as_str();
    last.filter(|last| !is_current || holds(last)).cloned().unwrap_or_else(|| {
        let words = if is_current { context::NO_ROOM } else { "no replica has loaded the policy yet" };
        made(finding(Truth::Unknown, "Progressing", words))
    })
}

fn condition(
    r#type: ConditionType,
    finding: Finding,
    generation: i64,
    previous: Option<&PolicyStatus>,
    now: Timestamp,
) -> Condition {
    debug_assert!(
        r#type.tells_failures() || r#type.reasons().contains(&finding.reason.as_str()),
        "{} is none of the reasons of {type:?} that portcullis_api::reason lists",
        finding.reason
    );
    let unchanged = previous.and_then(|status| status.condition(r#type)).filter(|last| last.status == finding.status);
    Condition {
        r#type,
        status: finding.status,
        reason: finding.reason,
        message: truncate(&finding.message, PolicyStatus::MAX_CONDITION_MESSAGE),
        observed_generation: generation,
        last_transition_time: unchanged.map_or_else(|| to_second(now), |last| last.last_transition_time),
    }
}

/// The list of replicas for `kubectl describe`; and how many are left out because of the limit. Of the replicas that count, failing ones come
/// first, then those that are behind; next are those pods of either kind that do not count, then those that lack objects, and the others,
/// each by name. So of each state that failing ones have, replicas that count come before the others, as `event` relies on. The controller
/// waits while it sees one that is behind, so where more fail than fit in, the first of these has the last place.
fn entries(assessments: &[Assessment<'_>]) -> (Vec<ReplicaStatus>, u32) {
    let mut sorted: Vec<&Assessment<'_>> = assessments.iter().collect();
    sorted.sort_by_key(|one| {
        let counts = (!(one.expected && one.is_bad()), !(one.expected && one.is_behind()));
        (counts, !one.is_bad(), !one.is_behind(), one.context.is_none(), one.pod)
    });
    let omitted = sorted.len().saturating_sub(PolicyStatus::MAX_REPLICAS);
    if let Some(behind) =
        sorted.iter().position(|one| one.is_behind()).filter(|behind| *behind >= PolicyStatus::MAX_REPLICAS)
    {
        sorted.swap(PolicyStatus::MAX_REPLICAS - 1, behind);
    }
    sorted.truncate(PolicyStatus::MAX_REPLICAS);
    (sorted.into_iter().map(entry).collect(), u32::try_from(omitted).unwrap_or(u32::MAX))
}

fn entry(assessment: &Assessment<'_>) -> ReplicaStatus {
    let problem = assessment.problem.as_ref();
    // To the controller, a failure of a replica that serves an older generation shows that it knows the newest one.
    let reason = problem.filter(|_| !assessment.is_left_out).map(|problem| problem.reason.clone());
    let context =
        assessment.context.as_ref().filter(|_| problem.is_none() && assessment.state == ReplicaState::Current);
    let message = problem.map(|problem| problem.message.as_str());
    let message = message.or(context.map(|context| context.message.as_str())).or(assessment.note.as_deref());
    ReplicaStatus {
        pod: assessment.pod.to_owned(),
        pod_uid: assessment.pod_uid.to_owned(),
        state: assessment.state,
        generation: assessment.serving,
        reason: reason.or(context.map(|context| context.reason.as_str().to_owned())),
        retryable: problem.map(|problem| problem.class.is_retryable()),
        next_retry_time: problem.and_then(|problem| problem.next_retry).map(to_second),
        since: assessment.since.map(to_second),
        message: message.filter(|text| !text.is_empty()).map(|text| truncate(text, PolicyStatus::MAX_REPLICA_MESSAGE)),
    }
}

#[cfg(test)]
mod tests;
