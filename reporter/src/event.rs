//! Which events a change of status causes (docs/design/status-api.md, section 5), and how equal ones become a series. Pure.
//!
//! Notes hold reasons and counts. A guest's message about its settings may quote them, so it stays in the status.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use jiff::Timestamp;
use portcullis_api::{ConditionType, EventType, PolicyEvent, PolicyStatus, ReplicaStatus, Truth};
use portcullis_contract::{PolicyId, ReplicaState};

/// An equal event within this time raises a count.
const SERIES: Duration = Duration::from_secs(6 * 60);
/// The reason of `Degraded` where replicas fail for different ones.
pub(crate) const SEVERAL_REASONS: &str = "SeveralReasons";
/// Most events that are kept.
const KEPT: usize = 256;

/// The newest events of all policies, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventLog {
    events: VecDeque<PolicyEvent>,
    /// The policies that have failed since they were last well ([`events`]).
    failed: BTreeSet<PolicyId>,
}

impl EventLog {
    /// A log with the events that were kept before a restart.
    pub fn new(events: impl IntoIterator<Item = PolicyEvent>) -> Self {
        let mut events: VecDeque<_> = events.into_iter().collect();
        events.drain(..events.len().saturating_sub(KEPT));
        Self { events, failed: BTreeSet::new() }
    }

    /// Adds the events of one change of status. True if there are any.
    pub fn record(
        &mut self,
        policy: &PolicyId,
        previous: Option<&PolicyStatus>,
        next: &PolicyStatus,
        now: Timestamp,
    ) -> bool {
        let mut has_failed = self.failed.contains(policy);
        let drafts = events(previous, next, &mut has_failed);
        if has_failed {
            self.failed.insert(policy.clone());
        } else {
            self.failed.remove(policy);
        }
        let any = !drafts.is_empty();
        for (r#type, reason, note) in drafts {
            self.add(policy, r#type, reason, note, now);
        }
        any
    }

    /// Forgets a policy that is gone. Its events stay.
    pub(crate) fn forget(&mut self, policy: &PolicyId) {
        self.failed.remove(policy);
    }

    /// Adds an event, or raises the count of an equal one.
    pub(crate) fn add(&mut self, policy: &PolicyId, r#type: EventType, reason: String, note: String, now: Timestamp) {
        let now = crate::facts::to_second(now);
        let equal = |event: &&mut PolicyEvent| {
            event.policy == *policy
                && (event.r#type, &event.reason, &event.note) == (r#type, &reason, &note)
                && now.duration_since(event.last_time).unsigned_abs() <= SERIES
        };
        if let Some(event) = self.events.iter_mut().rev().find(equal) {
            event.count += 1;
            event.last_time = now;
            return;
        }
        if self.events.len() == KEPT {
            self.events.pop_front();
        }
        let policy = policy.clone();
        self.events.push_back(PolicyEvent { policy, r#type, reason, note, count: 1, first_time: now, last_time: now });
    }

    /// The events, oldest first.
    pub fn events(&self) -> impl Iterator<Item = &PolicyEvent> {
        self.events.iter()
    }
}

/// Type, reason and note of each event that the change from `previous` to `next` makes. `has_failed` is whether the generation of `previous`
/// has failed since it was last well, and becomes that of `next`: one that failed may load for a while before it is well, and no status tells
/// of both. After a restart only the last status is known.
pub(crate) fn events(
    previous: Option<&PolicyStatus>,
    next: &PolicyStatus,
    has_failed: &mut bool,
) -> Vec<(EventType, String, String)> {
    let generation = next.observed_generation;
    let is_new = previous.is_none_or(|previous| previous.observed_generation < generation);
    let degraded = next.condition(ConditionType::Degraded).filter(|_| next.is_true(ConditionType::Degraded));
    let was_degraded = previous.filter(|previous| previous.is_true(ConditionType::Degraded));
    *has_failed = degraded.is_some() || !is_new && (*has_failed || was_degraded.is_some());
    let before = |word: &str| !is_new && previous.is_some_and(|previous| previous.word() == word);

    let mut events = Vec::new();
    let mut event = |r#type, reason: &str, note: String| events.push((r#type, reason.to_owned(), note));
    if is_new && next.word() != "Active" {
        // Nothing may be loading it: there is no replica, or it is beyond a limit.
        event(EventType::Normal, "Progressing", format!("generation {generation} has been seen"));
    }
    if let Some(degraded) = degraded {
        let same = was_degraded.and_then(|previous| previous.condition(ConditionType::Degraded));
        if is_new || same.is_none_or(|same| same.reason != degraded.reason) {
            event(EventType::Warning, &degraded.reason, failed_on(next, &degraded.reason));
        }
    } else if *has_failed && is_well(next) {
        *has_failed = false;
        event(EventType::Normal, "Recovered", format!("generation {generation} has recovered"));
    }
    if next.word() == "ServingPrevious" && !before("ServingPrevious") {
        let note = format!("generation {generation} failed, an older one goes on answering");
        event(EventType::Warning, "ServingPrevious", note);
    }
    // Objects that are still being read cause no event.
    let lacks = |status: &PolicyStatus| {
        let condition = status.condition(ConditionType::ContextSynced)?;
        let is_lacking = condition.status == Truth::False && condition.reason != "ContextNotSynced";
        is_lacking.then(|| condition.reason.clone())
    };
    if let Some(reason) = lacks(next)
        && (is_new || previous.and_then(lacks).as_ref() != Some(&reason))
    {
        event(
            EventType::Warning,
            &reason,
            format!("generation {generation}: status.conditions says which objects, and what to do"),
        );
    }
    if next.word() == "Active" && !before("Active") {
        event(EventType::Normal, "Active", format!("generation {generation} answers"));
    }
    events
}

/// Whether there are replicas and none of them is loading. Otherwise a generation that does not fail may not work either.
fn is_well(status: &PolicyStatus) -> bool {
    status.replica_counts.expected > 0 && !status.is_true(ConditionType::Reconciling)
}

/// On how many replicas a generation fails. The note does not say how many serve it: others may still be loading, and an event stays as it is.
fn failed_on(status: &PolicyStatus, reason: &str) -> String {
    let is_joint = reason == SEVERAL_REASONS;
    let fails = |replica: &&&ReplicaStatus| match &replica.reason {
        Some(own) => is_joint || own == reason,
        None => false,
    };
    // The list may leave out all that fail for this reason, but there is one at least.
    let failing = counted(status).iter().filter(fails).count().max(1);
    let at_least = if status.replicas_omitted > 0 { "at least " } else { "" };
    let (generation, expected) = (status.observed_generation, status.replica_counts.expected);
    format!("generation {generation} fails on {at_least}{failing} of {expected} replicas")
}

/// The replicas that count among those that may fail. An entry does not say whether its pod counts, but of each state those that do come
/// first (`decide::entries`).
fn counted(status: &PolicyStatus) -> Vec<&ReplicaStatus> {
    let counts = status.replica_counts;
    let of = |state: ReplicaState, count: u32| {
        status.replicas.iter().filter(move |replica| replica.state == state).take(count as usize)
    };
    let failed = of(ReplicaState::Failed, counts.failed).chain(of(ReplicaState::Unknown, counts.unknown));
    failed.chain(of(ReplicaState::Previous, counts.previous)).collect()
}

#[cfg(test)]
mod tests {
    use portcullis_api::{Condition, ReplicaCounts};

    use super::*;

    fn status(generation: i64, word: &str, degraded: Option<&str>) -> PolicyStatus {
        let condition = |r#type, truth, reason: &str| Condition {
            r#type,
            status: truth,
            reason: reason.into(),
            message: "secret words of the guest".into(),
            observed_generation: generation,
            last_transition_time: Timestamp::UNIX_EPOCH,
        };
        let truth = if degraded.is_some() { Truth::True } else { Truth::False };
        PolicyStatus {
            observed_generation: generation,
            replica_counts: ReplicaCounts { expected: 1, ..ReplicaCounts::default() },
            conditions: vec![
                condition(ConditionType::Ready, Truth::False, word),
                condition(ConditionType::Degraded, truth, degraded.unwrap_or("AsExpected")),
            ],
            ..PolicyStatus::default()
        }
    }

    fn reasons(previous: Option<&PolicyStatus>, next: &PolicyStatus) -> Vec<String> {
        reasons_after(&mut false, previous, next)
    }

    fn reasons_after(has_failed: &mut bool, previous: Option<&PolicyStatus>, next: &PolicyStatus) -> Vec<String> {
        events(previous, next, has_failed).into_iter().map(|(_, reason, _)| reason).collect()
    }

    /// A generation that is being loaded.
    fn loading(generation: i64) -> PolicyStatus {
        let mut loading = status(generation, "Progressing", None);
        let reconciling =
            Condition { r#type: ConditionType::Reconciling, status: Truth::True, ..loading.conditions[0].clone() };
        loading.conditions.push(reconciling);
        loading
    }

    fn replica(pod: &str, reason: Option<&str>) -> ReplicaStatus {
        ReplicaStatus {
            pod: pod.into(),
            pod_uid: pod.into(),
            state: if reason.is_some() { ReplicaState::Failed } else { ReplicaState::Pending },
            generation: 0,
            reason: reason.map(str::to_owned),
            retryable: None,
            next_retry_time: None,
            since: None,
            message: None,
        }
    }

    #[test]
    fn a_failure_says_on_how_many_replicas_and_not_how_many_serve() {
        let mut failing = status(1, "Progressing", Some("TLSFailed"));
        failing.replica_counts = ReplicaCounts { expected: 3, pending: 2, failed: 1, ..ReplicaCounts::default() };
        failing.replicas = vec![replica("a", None), replica("b", Some("TLSFailed")), replica("c", None)];
        let note = |status: &PolicyStatus| events(None, status, &mut false).into_iter().nth(1).map(|(.., note)| note);
        assert_eq!(note(&failing).as_deref(), Some("generation 1 fails on 1 of 3 replicas"));
        failing.replica_counts.expected = 40;
        failing.replicas_omitted = 37;
        assert_eq!(note(&failing).as_deref(), Some("generation 1 fails on at least 1 of 40 replicas"));
    }

    #[test]
    fn different_reasons_count_together_and_pods_that_do_not_count_do_not() {
        let failing = |reason: &str, expected: u32, entries: Vec<ReplicaStatus>| {
            let mut status = status(1, "Degraded", Some(reason));
            status.replica_counts = ReplicaCounts { expected, failed: expected, ..ReplicaCounts::default() };
            status.replicas = entries;
            failed_on(&status, reason)
        };
        let two = vec![replica("a", Some("NotFound")), replica("b", Some("Unauthorized"))];
        assert_eq!(failing(SEVERAL_REASONS, 2, two), "generation 1 fails on 2 of 2 replicas");
        // The last one is not ready. Those that count come first.
        let four = ["b", "c", "d", "a"].map(|pod| replica(pod, Some("NotFound"))).to_vec();
        assert_eq!(failing("NotFound", 3, four), "generation 1 fails on 3 of 3 replicas");
        let hidden = vec![replica("a", Some("NotFound"))];
        assert_eq!(failing("TLSFailed", 1, hidden), "generation 1 fails on 1 of 1 replicas");
    }

    #[test]
    fn a_generation_has_recovered_when_it_failed_and_serves() {
        let failing = status(1, "Degraded", Some("NotFound"));
        let well = status(1, "WebhookPending", None);
        assert_eq!(reasons(Some(&failing), &well), ["Recovered"]);
        // Its last pod is not ready any longer, or is loading again.
        let nobody = PolicyStatus { replica_counts: ReplicaCounts::default(), ..status(1, "NoReplicas", None) };
        assert_eq!(reasons(Some(&failing), &nobody), Vec::<String>::new());
        assert_eq!(reasons(Some(&failing), &loading(1)), Vec::<String>::new());
        // An edit does not mend the generation before it.
        assert_eq!(reasons(Some(&failing), &status(2, "Progressing", None)), ["Progressing"]);
    }

    #[test]
    fn a_generation_that_loads_between_its_failure_and_its_recovery_has_recovered() {
        let steps = |steps: &[&PolicyStatus]| -> Vec<Vec<String>> {
            let mut has_failed = false;
            let pairs = steps.iter().enumerate().skip(1);
            pairs.map(|(at, next)| reasons_after(&mut has_failed, Some(steps[at - 1]), next)).collect()
        };
        let (failing, loading, well) = (status(1, "Error", Some("NotFound")), loading(1), status(1, "Active", None));
        let again = status(1, "WebhookPending", None);
        let told = steps(&[&well, &failing, &loading, &loading, &well, &loading, &again]);
        assert_eq!(told, [&["NotFound"][..], &[], &[], &["Recovered", "Active"], &[], &[]]);
        // An edit does not mend the generation before it, and what it failed with is no failure of the next one.
        let next = [self::loading(2), status(2, "Active", None)];
        let told = steps(&[&failing, &loading, &next[0], &next[1]]);
        assert_eq!(told, [&[][..], &["Progressing"], &["Active"]]);
        // After a restart the last status tells.
        assert_eq!(steps(&[&failing, &loading, &again]), [&[][..], &["Recovered"]]);
        // In a folder.
        let (policy, mut log) = ("cluster/a".parse().expect("an id"), EventLog::default());
        let now = Timestamp::UNIX_EPOCH;
        let mut reasons = || {
            for (before, after) in [(&well, &failing), (&failing, &loading), (&loading, &again)] {
                log.record(&policy, Some(before), after, now);
            }
            log.events().map(|event| (event.reason.clone(), event.count)).collect::<Vec<_>>()
        };
        assert_eq!(reasons(), [("NotFound".to_owned(), 1), ("Recovered".to_owned(), 1)]);
    }

    #[test]
    fn the_life_of_a_policy() {
        let loading = status(1, "Progressing", None);
        let active = status(1, "Active", None);
        let edited = status(2, "Progressing", None);
        let kept = status(2, "ServingPrevious", Some("SettingsInvalid"));
        let mended = status(3, "Active", None);
        assert_eq!(reasons(None, &loading), ["Progressing"]);
        assert_eq!(reasons(Some(&loading), &active), ["Active"]);
        assert_eq!(reasons(Some(&active), &edited), ["Progressing"]);
        assert_eq!(reasons(Some(&edited), &kept), ["SettingsInvalid", "ServingPrevious"]);
        assert_eq!(reasons(Some(&kept), &kept), Vec::<String>::new());
        assert_eq!(reasons(Some(&kept), &mended), ["Active"]);
    }

    #[test]
    fn the_event_of_a_new_generation_does_not_say_that_something_loads_it() {
        let nobody = PolicyStatus { replica_counts: ReplicaCounts::default(), ..status(1, "NoReplicas", None) };
        let told = events(None, &nobody, &mut false);
        assert_eq!(told, [(EventType::Normal, "Progressing".to_owned(), "generation 1 has been seen".to_owned())]);
    }

    #[test]
    fn missing_and_old_objects_are_events_when_somebody_may_have_to_act() {
        let with = |word: &str, reason: &str| {
            let mut status = status(1, word, None);
            let context = Condition {
                r#type: ConditionType::ContextSynced,
                status: if reason == "AsExpected" { Truth::True } else { Truth::False },
                reason: reason.into(),
                ..status.conditions[0].clone()
            };
            status.conditions.push(context);
            status
        };
        let reading = with("ContextNotSynced", "ContextNotSynced");
        let forbidden = with("ContextNotSynced", "ContextForbidden");
        let (active, stale) = (with("Active", "AsExpected"), with("Active", "ContextStale"));
        assert_eq!(reasons(None, &reading), ["Progressing"]);
        assert_eq!(reasons(Some(&reading), &forbidden), ["ContextForbidden"]);
        assert_eq!(reasons(Some(&forbidden), &forbidden), Vec::<String>::new());
        assert_eq!(reasons(Some(&forbidden), &active), ["Active"]);
        assert_eq!(reasons(Some(&active), &stale), ["ContextStale"]);
        assert_eq!(reasons(Some(&stale), &active), Vec::<String>::new());
    }

    #[test]
    fn equal_events_become_a_series_and_notes_hold_no_guest_s_words() {
        let policy = "cluster/a".parse().expect("an id");
        let mut log = EventLog::default();
        let (fine, failing) = (status(1, "Active", None), status(1, "Degraded", Some("RegistryTimeout")));
        for second in [0, 60, 120] {
            log.record(&policy, Some(&fine), &failing, Timestamp::from_second(second).expect("a time"));
        }
        log.record(&policy, Some(&fine), &failing, Timestamp::from_second(10_000).expect("a time"));
        let counts: Vec<_> = log.events().map(|event| (event.reason.as_str(), event.count)).collect();
        assert_eq!(counts, [("RegistryTimeout", 3), ("RegistryTimeout", 1)]);
        assert!(log.events().all(|event| !event.note.contains("secret")));
    }

    #[test]
    fn the_log_is_bounded() {
        let policy = "cluster/a".parse().expect("an id");
        let mut log = EventLog::default();
        for generation in 1..1000 {
            log.record(&policy, None, &status(generation, "Active", None), Timestamp::UNIX_EPOCH);
        }
        assert_eq!(log.events().count(), KEPT);
    }
}
