//! The aggregation table of docs/design/status-api.md, section 4.1, case by case: objects in, exact output out.

mod behind;
mod context;
mod impact;
mod mismatch;
mod not_ready;
mod refused;
mod resolution;
mod resumed;
mod webhook;

use portcullis_api::{HistoryEntry, PolicyKey, ReplicaCounts, ReplicaReportSpec, ReportDeviation};
use portcullis_contract::Digest;

use super::*;
use crate::facts::{LastReport, Unconfirmed};

const UID: &str = "9b2c41d2-a1f0-4e17-8000-000000000001";
const PODS: [&str; 3] = ["pod-a", "pod-b", "pod-c"];

/// What one pod reports about the policy. Its newest generation is 7.
#[derive(Clone, Copy)]
enum Says {
    Current,
    Older,
    OlderBecause(Reason),
    Loading,
    Failed(Reason),
    /// Never enforced before, and loading, or failed for this reason.
    PassedOver(Option<Reason>),
    Nothing,
}
use Says::{Current, Failed, Loading, Nothing, Older, OlderBecause, PassedOver};

fn facts() -> Facts<'static> {
    Facts {
        uid: UID,
        generation: 7,
        suspend: false,
        digest: Some(Digest::of(b"seven")),
        members: None,
        rollback_to: None,
        refusal: None,
    }
}

fn now() -> Timestamp {
    "2026-01-01T00:00:00.7Z".parse().expect("a time")
}

fn later() -> Timestamp {
    "2026-01-01T00:01:00Z".parse().expect("a time")
}

fn report(pod: &str, says: Says) -> ReplicaReportSpec {
    let deviation = |serving, state, reason: Option<Reason>| ReportDeviation {
        policy_uid: UID.into(),
        generation: 7,
        serving,
        state,
        reason: reason.map(|reason| reason.to_string()),
        retryable: reason.map(|reason| reason.class().is_retryable()),
        next_retry_time: None,
        since: Timestamp::UNIX_EPOCH,
        message: reason.map(|_| "in words".into()),
        passed_over: false,
    };
    let mut report = ReplicaReportSpec { pod_uid: pod.into(), ..ReplicaReportSpec::default() };
    match says {
        Current => drop(report.current.insert(PolicyKey::of(UID), 7)),
        Older => report.deviations.push(deviation(6, ReplicaState::Previous, None)),
        OlderBecause(reason) => report.deviations.push(deviation(6, ReplicaState::Previous, Some(reason))),
        Loading => report.deviations.push(deviation(0, ReplicaState::Pending, None)),
        Failed(reason) => report.deviations.push(deviation(0, ReplicaState::Failed, Some(reason))),
        PassedOver(reason) => {
            let state = if reason.is_some() { ReplicaState::Failed } else { ReplicaState::Pending };
            report.deviations.push(ReportDeviation { passed_over: true, ..deviation(0, state, reason) });
        }
        Nothing => {}
    }
    report
}

fn decided_with(
    facts: &Facts<'_>,
    says: &[Says],
    webhook: Webhook<'_>,
    previous: Option<&PolicyStatus>,
    now: Timestamp,
) -> PolicyStatus {
    let reports: Vec<_> = PODS.iter().zip(says).map(|(pod, says)| (*pod, *says, report(pod, *says))).collect();
    let replicas: Vec<_> = reports
        .iter()
        .map(|(pod, says, report)| {
            let heard = LastReport { report, is_stale: false };
            Replica { pod, pod_uid: pod, expected: true, report: (!matches!(says, Nothing)).then_some(heard) }
        })
        .collect();
    decide(facts, &replicas, webhook, previous, now)
}

fn decided(says: &[Says]) -> PolicyStatus {
    decided_with(&facts(), says, Webhook::Confirmed, None, now())
}

/// `Ready Enforced Degraded Reconciling Stalled`, each as `status/reason`.
fn row(status: &PolicyStatus) -> String {
    let words = |r#type| {
        let condition = status.condition(r#type).expect("each type is there");
        format!("{}/{}", condition.status.as_str(), condition.reason)
    };
    use ConditionType::{Degraded, Enforced, Ready, Reconciling, Stalled};
    [Ready, Enforced, Degraded, Reconciling, Stalled].map(words).join(" ")
}

fn sentence(status: &PolicyStatus) -> &str {
    &status.condition(ConditionType::Ready).expect("it is there").message
}

#[test]
fn no_replicas() {
    let status = decided(&[]);
    assert_eq!(row(&status), "Unknown/NoReplicas False/NoReplicas False/AsExpected False/Idle False/AsExpected");
    assert_eq!((status.summary.as_str(), sentence(&status)), ("0/0", "no replica is ready to be asked"));
}

#[test]
fn all_failed() {
    let status = decided(&[Failed(Reason::NotFound), Failed(Reason::NotFound)]);
    assert_eq!(row(&status), "False/Error False/AllReplicasFailed True/NotFound False/Idle True/NotFound");
    assert_eq!(sentence(&status), "0 of 2 replicas serve generation 7; NotFound on 2 (pod-a, pod-b)");
}

#[test]
fn some_failed() {
    let status = decided(&[Current, Current, Failed(Reason::RegistryTimeout)]);
    assert_eq!(row(&status), "False/Degraded False/ReplicaFailed True/RegistryTimeout True/Retrying False/Retrying");
    assert_eq!(sentence(&status), "2 of 3 replicas serve generation 7; pod-c: RegistryTimeout");
    let counts = ReplicaCounts { expected: 3, current: 2, failed: 1, ..ReplicaCounts::default() };
    assert_eq!((status.replica_counts, status.summary.as_str()), (counts, "2/3"));
}

#[test]
fn some_unknown() {
    let status = decided(&[Current, Nothing]);
    assert_eq!(row(&status), "False/Degraded Unknown/ReplicaFailed True/ReportStale True/Retrying False/Retrying");
    let alone = decided(&[Nothing]);
    assert_eq!(row(&alone), row(&status));
    assert_eq!(sentence(&alone), "nothing is known of the replica: ReportStale: the pod has not reported yet");
}

#[test]
fn failed_counts_before_unknown_and_previous() {
    let status = decided(&[Failed(Reason::NotFound), Nothing, OlderBecause(Reason::NotFound)]);
    assert_eq!(row(&status), "False/Degraded False/ReplicaFailed True/NotFound True/Retrying False/Retrying");
}

#[test]
fn previous_because_of_a_failure() {
    let status = decided(&[Current, OlderBecause(Reason::SettingsInvalid)]);
    assert_eq!(
        row(&status),
        "False/ServingPrevious True/ServingPrevious True/SettingsInvalid False/Idle True/SettingsInvalid"
    );
    let words = "1 of 2 replicas serve generation 7; 1 answers with generation 6; pod-b: SettingsInvalid";
    assert_eq!(sentence(&status), words);
    let alone = decided(&[OlderBecause(Reason::SettingsInvalid)]);
    assert_eq!(row(&alone), row(&status));
    assert_eq!(sentence(&alone), "generation 6 answers; generation 7: SettingsInvalid: in words");
}

#[test]
fn previous_because_of_a_failure_beside_a_replica_that_has_nothing() {
    let status = decided(&[Loading, OlderBecause(Reason::NotFound)]);
    assert_eq!(row(&status), "False/ServingPrevious False/NotLoaded True/NotFound True/Loading False/Retrying");
}

#[test]
fn loading_with_nothing_to_answer() {
    let status = decided(&[Current, Loading]);
    assert_eq!(row(&status), "False/Progressing False/NotLoaded False/AsExpected True/RollingOut False/AsExpected");
    assert_eq!(sentence(&status), "1 of 2 replicas serve generation 7; 1 still loading it");
    let alone = decided(&[Loading]);
    assert_eq!(row(&alone), "False/Progressing False/NotLoaded False/AsExpected True/Loading False/AsExpected");
    assert_eq!(sentence(&alone), "generation 7 is being loaded");
}

#[test]
fn loading_while_the_older_one_answers() {
    let status = decided(&[Older]);
    assert_eq!(row(&status), "False/Progressing True/ServingPrevious False/AsExpected True/Loading False/AsExpected");
    assert_eq!(sentence(&status), "generation 7 is being loaded; meanwhile generation 6 answers");
    let words = "0 of 2 replicas serve generation 7; 2 still loading it; meanwhile 2 answer with generation 6";
    assert_eq!(enforced_words(&[Older, Older]), ("True/ServingPrevious".to_owned(), words.to_owned()));
}

/// Status, reason and words of `Enforced`.
fn enforced_words(says: &[Says]) -> (String, String) {
    let status = decided(says);
    let enforced = status.condition(ConditionType::Enforced).expect("it is there");
    (format!("{}/{}", enforced.status.as_str(), enforced.reason), enforced.message.clone())
}

#[test]
fn w04_a_policy_that_was_never_enforced_is_not_yet_where_it_is_not_loaded() {
    let not_yet = "False/NotYetEnforced".to_owned();
    let alone = decided(&[PassedOver(None)]);
    assert_eq!(row(&alone), "False/Progressing False/NotYetEnforced False/AsExpected True/Loading False/AsExpected");
    assert_eq!(
        enforced_words(&[PassedOver(Some(Reason::NotFound))]),
        (
            not_yet.clone(),
            "it was never enforced, so requests pass without it until it is fixed and loaded; nothing answers; generation 7: \
             NotFound: in words"
                .to_owned()
        )
    );
    let failed = PassedOver(Some(Reason::RegistryTimeout));
    assert_eq!(
        enforced_words(&[Current, failed, failed]),
        (
            not_yet.clone(),
            "it was never enforced on all replicas, so requests pass without it on 2 of 3 until it is loaded there; \
             1 of 3 replicas serve generation 7; RegistryTimeout on 2 (pod-b, pod-c)"
                .to_owned()
        )
    );
    // One replica is enough to know that some requests pass, whatever the others do.
    for says in [[Current, PassedOver(None)], [PassedOver(None), Nothing], [failed, Older], [failed, Loading]] {
        assert_eq!(enforced_words(&says).0, not_yet);
    }
    assert_eq!(decided(&[failed]).word(), "Error");
}

#[test]
fn w04_an_older_generation_that_came_to_serve_everywhere_is_known_as_served() {
    let six = Facts { generation: 6, digest: Some(Digest::of(b"six")), ..facts() };
    let first = decided_with(&six, &[PassedOver(None), PassedOver(None)], Webhook::Pending("soon".into()), None, now());
    let kept = OlderBecause(Reason::NotFound);
    let decided = |says: &[Says], webhook| decided_with(&facts(), says, webhook, Some(&first), later());
    assert_eq!(decided(&[kept, kept], Webhook::Pending("soon".into())).last_served, None, "nobody calls it");
    assert_eq!(decided(&[kept, Failed(Reason::NotFound)], Webhook::Confirmed).last_served, None);
    assert_eq!(decided(&[kept, Current], Webhook::Confirmed).last_served, None, "each on another generation");
    let older = |confirmed| Webhook::Older(Unconfirmed { confirmed, ..Unconfirmed::from("soon") });
    for confirmed in [None, Some(5)] {
        assert_eq!(decided(&[kept, kept], older(confirmed)).last_served, None, "called by other match rules");
    }
    let status = decided(&[kept, kept], older(Some(6)));
    assert_eq!(status.last_served, Some(Resolved::module(6, Digest::of(b"six"))));
    let told: Vec<_> = status.history.iter().flatten().map(|one| (one.generation, one.served)).collect();
    assert_eq!(told, [(7, false), (6, true)]);
    // A generation that served later is not replaced by it.
    let seven = decided_with(&facts(), &[Current], Webhook::Confirmed, Some(&status), later());
    let eight = Facts { generation: 8, digest: None, ..facts() };
    let back = decided_with(&eight, &[kept, kept], Webhook::Confirmed, Some(&seven), later());
    assert_eq!(back.last_served, Some(Resolved::module(7, Digest::of(b"seven"))));
}

#[test]
fn suspended() {
    let suspended = Facts { suspend: true, ..facts() };
    let status = decided_with(&suspended, &[Current], Webhook::Pending("not yet".into()), None, now());
    assert_eq!(row(&status), "True/Suspended False/Suspended False/AsExpected False/Idle False/AsExpected");
    let older = decided_with(&suspended, &[Older], Webhook::Confirmed, None, now());
    assert_eq!(row(&older), "False/Progressing False/Suspended False/AsExpected True/Loading False/AsExpected");
}

#[test]
fn a_rollback_is_told() {
    let back = Facts { rollback_to: Some(5), ..facts() };
    let status = decided_with(&back, &[Current], Webhook::Confirmed, None, now());
    let accepted = status.condition(ConditionType::Accepted).expect("it is always there");
    assert_eq!(accepted.message, "rollbackTo: it serves the content of generation 5");
}

#[test]
fn the_webhook_is_not_confirmed() {
    let status = decided_with(&facts(), &[Current], Webhook::Pending("WaitingForReplicas".into()), None, now());
    assert_eq!(row(&status), "False/WebhookPending False/WebhookPending False/AsExpected False/Idle False/AsExpected");
    assert_eq!(sentence(&status), "generation 7 is loaded and not called yet: WaitingForReplicas");
}

#[test]
fn the_webhook_is_confirmed_for_an_older_generation() {
    let status = decided_with(&facts(), &[Current], Webhook::Older("soon".into()), None, now());
    assert_eq!(row(&status), "False/WebhookPending True/ServingPrevious False/AsExpected False/Idle False/AsExpected");
    let older = decided_with(&facts(), &[OlderBecause(Reason::NotFound)], Webhook::Older("soon".into()), None, now());
    assert_eq!(row(&older).split(' ').nth(1), Some("True/ServingPrevious"));
}

#[test]
fn the_history_tells_of_ten_generations_and_that_one_was_served_stays_so() {
    let mut status = None;
    for generation in 1..=12 {
        let facts = Facts { generation, digest: None, ..facts() };
        status = Some(decided_with(&facts, &[Older], Webhook::Confirmed, status.as_ref(), now()));
    }
    let served = Facts { generation: 12, ..facts() };
    let mut says = [report("pod-a", Current)];
    says[0].current.insert(PolicyKey::of(UID), 12);
    let heard = LastReport { report: &says[0], is_stale: false };
    let replica = Replica { pod: "pod-a", pod_uid: "pod-a", expected: true, report: Some(heard) };
    let active = decide(&served, &[replica], Webhook::Confirmed, status.as_ref(), later());
    let gone = decide(&served, &[], Webhook::Confirmed, Some(&active), later());
    let history = gone.history.expect("a history");
    assert_eq!(history.iter().map(|entry| entry.generation).collect::<Vec<_>>(), [12, 11, 10, 9, 8, 7, 6, 5, 4, 3]);
    assert_eq!((history[0].served, history[0].time, history[0].digest), (true, later(), Some(Digest::of(b"seven"))));
    let older = (history[1].served, history[1].reason.as_deref(), history[1].time.as_second());
    assert_eq!(older, (false, Some("Progressing"), now().as_second()));
}

#[test]
fn all_current() {
    let status = decided(&[Current, Current, Current]);
    assert_eq!(row(&status), "True/Active True/Active False/AsExpected False/Idle False/AsExpected");
    assert_eq!(sentence(&status), "generation 7 answers on all 3 replicas");
    assert_eq!(sentence(&decided(&[Current])), "generation 7 answers");
}

#[test]
fn the_whole_status_of_one_failing_replica() {
    let status = decided(&[OlderBecause(Reason::SettingsInvalid)]);
    let words = "SettingsInvalid: in words";
    let condition = |r#type, status, reason: &str, message: &str| Condition {
        r#type,
        status,
        reason: reason.into(),
        message: message.into(),
        observed_generation: 7,
        last_transition_time: "2026-01-01T00:00:00Z".parse().expect("a time"),
    };
    let kept = format!("generation 6 answers; generation 7: {words}");
    let expected = PolicyStatus {
        observed_generation: 7,
        conditions: vec![
            condition(ConditionType::Accepted, Truth::False, "SettingsInvalid", words),
            condition(ConditionType::Ready, Truth::False, "ServingPrevious", &kept),
            condition(ConditionType::Enforced, Truth::True, "ServingPrevious", &kept),
            condition(ConditionType::Degraded, Truth::True, "SettingsInvalid", words),
            condition(ConditionType::Reconciling, Truth::False, "Idle", ""),
            condition(ConditionType::Stalled, Truth::True, "SettingsInvalid", words),
            condition(
                ConditionType::MetadataMatched,
                Truth::Unknown,
                "Progressing",
                "no replica has compared it with the policy yet",
            ),
            condition(
                ConditionType::ContextSynced,
                Truth::Unknown,
                "Progressing",
                "no replica has loaded the policy yet",
            ),
        ],
        resolved: Some(Resolved::module(7, Digest::of(b"seven"))),
        last_served: None,
        replica_counts: ReplicaCounts { expected: 1, previous: 1, ..ReplicaCounts::default() },
        summary: "0/1".into(),
        replicas: vec![ReplicaStatus {
            pod: "pod-a".into(),
            pod_uid: "pod-a".into(),
            state: ReplicaState::Previous,
            generation: 6,
            reason: Some("SettingsInvalid".into()),
            retryable: Some(false),
            next_retry_time: None,
            since: Some(Timestamp::UNIX_EPOCH),
            message: Some("in words".into()),
        }],
        replicas_omitted: 0,
        history: Some(vec![HistoryEntry {
            generation: 7,
            digest: Some(Digest::of(b"seven")),
            time: "2026-01-01T00:00:00Z".parse().expect("a time"),
            served: false,
            reason: Some("SettingsInvalid".into()),
        }]),
        audit: None,
        impact: None,
    };
    assert_eq!(status, expected);
}

#[test]
fn a_transition_has_a_time_and_the_same_status_keeps_it() {
    let first = decided(&[Current]);
    let same = decided_with(&facts(), &[Current], Webhook::Confirmed, Some(&first), later());
    assert_eq!(same, first, "and no further update");
    let failed = decided_with(&facts(), &[Failed(Reason::NotFound)], Webhook::Confirmed, Some(&first), later());
    let times: Vec<_> =
        failed.conditions.iter().map(|c| (c.r#type.as_str(), c.last_transition_time == later())).collect();
    assert_eq!(
        times,
        [
            ("Accepted", false),
            ("Ready", true),
            ("Enforced", true),
            ("Degraded", true),
            ("Reconciling", false),
            ("Stalled", true),
            ("MetadataMatched", false),
            ("ContextSynced", false),
        ]
    );
}

#[test]
fn a_failing_pod_that_disappears_takes_its_failure_along() {
    let before = decided(&[Current, Failed(Reason::NotFound)]);
    let after = decided_with(&facts(), &[Current], Webhook::Confirmed, Some(&before), later());
    assert_eq!(row(&after), "True/Active True/Active False/AsExpected False/Idle False/AsExpected");
    assert_eq!(after.replicas.len(), 1);
}

#[test]
fn the_generation_served_last_is_remembered() {
    let six = decided_with(&Facts { generation: 6, ..facts() }, &[Older], Webhook::Confirmed, None, now());
    assert_eq!(six.last_served, None, "a pod that serves another generation is not Ready");
    let served = decided(&[Current]);
    let eight = Facts { generation: 8, digest: None, ..facts() };
    let next = decided_with(&eight, &[Current], Webhook::Confirmed, Some(&served), later());
    assert_eq!(next.last_served.map(|served| served.generation), Some(7));
    assert_eq!((next.observed_generation, next.resolved), (8, None));
}

#[test]
fn the_generation_never_goes_backwards() {
    let newest = decided(&[Current]);
    let stale = Facts { generation: 6, ..facts() };
    assert_eq!(decided_with(&stale, &[Older], Webhook::Confirmed, Some(&newest), later()), newest);
}

#[test]
fn accepted_stands_until_the_new_generation_is_judged() {
    let accepted = |status: &PolicyStatus| {
        let condition = status.condition(ConditionType::Accepted).expect("it is there");
        (condition.status, condition.reason.clone(), condition.observed_generation)
    };
    let first = decided(&[Loading]);
    assert_eq!(accepted(&first), (Truth::Unknown, "Progressing".into(), 7));
    let refused = decided(&[OlderBecause(Reason::SettingsInvalid)]);
    let eight = Facts { generation: 8, ..facts() };
    let judging = decided_with(&eight, &[Older], Webhook::Confirmed, Some(&refused), later());
    assert_eq!(accepted(&judging), (Truth::False, "SettingsInvalid".into(), 7));
    assert_eq!(accepted(&decided(&[Failed(Reason::RegistryTimeout)])), (Truth::True, "Accepted".into(), 7));
}

#[test]
fn a_policy_that_is_not_taken_says_so_and_waits_for_nobody() {
    let refused = Facts { refusal: Some("too many"), ..facts() };
    let decided = |says: &[Says]| decided_with(&refused, says, Webhook::Pending("w".into()), None, now());
    let said = |status: &PolicyStatus, condition: ConditionType| {
        let condition = status.condition(condition).expect("it is there");
        (condition.status, condition.reason.clone())
    };
    let quota = "QuotaExceeded".to_owned();
    let new = decided(&[Loading, Loading]);
    assert_eq!(new.word(), "Error");
    let accepted = new.condition(ConditionType::Accepted).expect("it is there");
    assert_eq!((accepted.status, &accepted.reason, accepted.message.as_str()), (Truth::False, &quota, "too many"));
    assert_eq!(said(&new, ConditionType::Stalled), (Truth::True, quota.clone()));
    assert_eq!(said(&new, ConditionType::Reconciling), (Truth::False, "Idle".into()));
    assert_eq!(said(&new, ConditionType::Enforced), (Truth::False, "NotYetEnforced".into()));
    // The refusal is also shown without replicas, but not if a replica serves the generation.
    assert_eq!(said(&decided(&[]), ConditionType::Accepted), (Truth::False, quota.clone()));
    assert_eq!(said(&decided(&[Older]), ConditionType::Accepted), (Truth::False, quota));
    assert_eq!(said(&decided(&[Current]), ConditionType::Accepted), (Truth::True, "Accepted".into()));
}

#[test]
fn fault_r13_two_thousand_failing_replicas_fit() {
    let long = "x".repeat(5000);
    let names: Vec<String> = (0..2000).map(|n| format!("pod-{n:04}")).collect();
    let mut failing = report("", Failed(Reason::NotFound));
    failing.deviations[0].message = Some(long.into());
    let heard = LastReport { report: &failing, is_stale: false };
    let mut replicas: Vec<_> =
        names.iter().map(|pod| Replica { pod, pod_uid: "", expected: true, report: Some(heard) }).collect();
    let fine = report("a-first", Current);
    let heard = LastReport { report: &fine, is_stale: false };
    replicas.push(Replica { pod: "a-first", pod_uid: "a-first", expected: true, report: Some(heard) });
    let status = decide(&facts(), &replicas, Webhook::Confirmed, None, now());
    assert_eq!((status.replicas.len(), status.replicas_omitted), (16, 1985));
    assert_eq!(status.replicas[0].pod, "pod-0000", "failing first, then by name");
    assert!(serde_json::to_string(&status).expect("encodes").len() < 64 << 10);
    assert_eq!(
        sentence(&status),
        "1 of 2001 replicas serve generation 7; NotFound on 2000 (pod-0000, pod-0001, pod-0002, …)"
    );
}
