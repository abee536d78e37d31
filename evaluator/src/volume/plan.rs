//! What to do about a policy, given the manifest and what has happened here so far. Pure: the time comes as an argument.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use portcullis_contract::{
    Candidate, Class, Digest, Failure, PolicyEntry, PolicyId, Reason, Refused, ReplicaState, Stage,
};

/// Identifies a candidate: two with the same key load and judge alike, so what is known about one holds for the other. Fields that count
/// only in the newest generation (mode, failure policy, suspension) are not part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    generation: i64,
    /// The digest of everything else. A new generation often has the content of the one before and differs, for instance, only in its mode.
    content: Digest,
}

impl Key {
    /// The key of a candidate of the object `uid`.
    pub(crate) fn of(uid: &str, candidate: &Candidate) -> Self {
        let content = Candidate { generation: 0, ..candidate.clone() };
        let content = serde_json::to_vec(&content).expect("a candidate was JSON before");
        let content = Digest::of(&[uid.as_bytes(), b"\0", &content].concat());
        Self { generation: candidate.generation, content }
    }

    /// The candidate's generation.
    pub(crate) fn generation(self) -> i64 {
        self.generation
    }
}

/// A candidate that was refused here.
#[derive(Debug, Clone)]
pub(crate) struct RefusedCandidate {
    /// The refusal as the loader reads it in the state.
    pub(crate) refused: Refused,
    /// When it is tried again; none where trying again cannot help.
    pub(crate) retry_at: Option<Instant>,
    /// How many of its tries had too little processor time.
    pub(crate) starved: u32,
}

/// What is known about a policy's candidates.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    /// The candidate that serves; none if none does.
    pub(crate) in_service: Option<Key>,
    /// The candidates that were refused.
    pub(crate) refused: HashMap<Key, RefusedCandidate>,
}

/// The next step for a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Do nothing: what serves goes on, or nothing can serve yet. At the given time, if any, a candidate may be tried again.
    Rest(Option<Instant>),
    /// Load this candidate.
    Load(usize),
    /// Renumber this candidate: it serves already, as an earlier generation.
    Renumber(usize),
}

/// The next step: the first candidate that may serve is loaded. A refused one is skipped until its time comes, and none that is older than
/// the one that serves is loaded, so a newest generation that fails does not change what serves. While nothing serves, the
/// candidate `on_its_way` is not given up for another try of a newer one, which may wait and fail again.
pub(crate) fn next(entry: &PolicyEntry, keys: &[Key], known: &Known, on_its_way: Option<Key>, now: Instant) -> Next {
    let on_its_way = on_its_way.filter(|_| known.in_service.is_none());
    let mut again: Option<Instant> = None;
    for (i, key) in keys.iter().enumerate() {
        if let Some(serving) = known.in_service {
            // Generations count from one again after the volume was emptied; then none is older than another.
            let is_comparable = serving.generation <= entry.generation;
            if serving == *key || is_comparable && key.generation < serving.generation {
                break;
            }
            if serving.content == key.content {
                return Next::Renumber(i);
            }
        }
        match known.refused.get(key).map(|refusal| refusal.retry_at) {
            Some(None) => {}
            // The end of that load asks for the next step again.
            Some(Some(_)) if on_its_way.is_some_and(|older| keys[i + 1..].contains(&older)) => {}
            Some(Some(at)) if at > now => again = Some(again.map_or(at, |earlier| earlier.min(at))),
            Some(Some(_)) | None => return Next::Load(i),
        }
    }
    Next::Rest(again)
}

/// Why the newest generation does not serve: this program's own refusal, or else the loader's failure; none if neither failed.
pub(crate) fn failure(entry: &PolicyEntry, keys: &[Key], known: &Known) -> Option<Failure> {
    let own = entry.candidates.iter().zip(keys).find(|(candidate, _)| candidate.generation == entry.generation);
    own.and_then(|(_, key)| known.refused.get(key))
        .map(|refusal| &refusal.refused.failure)
        .or_else(|| entry.failures.iter().find(|failure| failure.generation == entry.generation))
        .cloned()
}

/// Why nothing serves: the failure of the newest generation, or else that of the newest older one that failed; none if none failed.
pub(crate) fn unserved(entry: &PolicyEntry, keys: &[Key], known: &Known) -> Option<Failure> {
    failure(entry, keys, known).or_else(|| {
        let own = keys.iter().filter_map(|key| known.refused.get(key)).map(|refusal| &refusal.refused.failure);
        own.chain(&entry.failures).max_by_key(|failure| failure.generation).cloned()
    })
}

/// Whether the generation that serves is the newest. One that can no longer be read (a damaged revision) goes on serving, but does not count
/// as current, since it is unknown what the newest spec says. The number of the generation is trusted: in a folder, generations can count
/// from one again after the volume was emptied, and then what serves may have the newest number and an older spec until the newest is loaded.
pub(crate) fn is_current(serving: i64, newest: i64, failure: Option<&Failure>) -> bool {
    serving == newest && failure.is_none_or(|failure| failure.stage() != Stage::Spec)
}

/// The state of the policy on this replica.
pub(crate) fn state(entry: &PolicyEntry, known: &Known, failure: Option<&Failure>) -> ReplicaState {
    match known.in_service {
        Some(serving) if is_current(serving.generation, entry.generation, failure) => ReplicaState::Current,
        Some(_) => ReplicaState::Previous,
        None if failure.is_some() => ReplicaState::Failed,
        None => ReplicaState::Pending,
    }
}

/// The policies of the first manifest that the start gate waits for: those that were enforced. Match groups pass over the others, so no
/// answer depends on them, and hundreds of new policies with slow modules do not keep a pod from serving. If no policy is marked as
/// enforced, as in a folder whose volume was emptied, the gate waits for all; policies of a `policies.yml` are always marked, and do not
/// count for that. Policies that are only checked are never waited for.
pub(crate) fn awaited(policies: &[PolicyEntry]) -> HashSet<PolicyId> {
    let policies = || policies.iter().filter(|policy| !policy.id.is_check());
    let is_told = policies().any(|policy| policy.enforced && !policy.id.is_bare());
    policies().filter(|policy| policy.enforced || !is_told).map(|policy| policy.id.clone()).collect()
}

/// How long the start gate waits for an older generation after the newest was refused.
const FALLBACK_TIME: Duration = Duration::from_secs(5);

/// Whether the start gate need not wait for the policy: a generation serves, or waiting cannot help. The gate also has a time limit.
///
/// `older_may_come`: if some generation was enforced before, the loader brings an older one once this program has refused the newest,
/// which takes a moment. A pod that became ready before that would reject requests that the other pods decide.
pub(crate) fn is_settled(
    known: &Known,
    failure: Option<&Failure>,
    is_loading: bool,
    older_may_come: bool,
    now: Timestamp,
) -> bool {
    let is_over = |failure: &Failure| {
        let age = now.duration_since(failure.since).unsigned_abs();
        failure.class() != Class::Retry && (!older_may_come || age >= FALLBACK_TIME)
    };
    known.in_service.is_some() || !is_loading && failure.is_some_and(is_over)
}

/// Whether the text of a failure may quote the guest, and with it settings or requests: such a text goes into the policy's status and
/// never into a log. A host capability that failed may name what the guest asked it for.
pub(crate) fn quotes_guest(reason: Reason) -> bool {
    matches!(reason, Reason::SettingsInvalid | Reason::SettingsCheckFailed | Reason::CapabilityUnavailable)
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use portcullis_contract::{Artifact, CandidateContent, CandidateModule, ExecutionMode, FailurePolicy, Mode};
    use serde_json::value::RawValue;

    use super::*;

    /// A candidate whose settings are different in each generation.
    pub(in crate::volume) fn candidate(generation: i64) -> Candidate {
        Candidate {
            generation,
            digest: Digest::of(b"module"),
            mutating: false,
            message: None,
            timeout_eval_seconds: None,
            content: with_settings(&format!("{{\"of\":{generation}}}")),
        }
    }

    fn with_settings(settings: &str) -> CandidateContent {
        CandidateContent::Module(CandidateModule {
            artifact: Artifact { file: "a".into(), sha256: Digest::of(b"artifact"), size: 1 },
            execution_mode: ExecutionMode::KubewardenWapc,
            settings: RawValue::from_string(settings.to_owned()).expect("JSON"),
            host_capabilities: Vec::new(),
            context_aware_resources: Vec::new(),
        })
    }

    struct Case {
        entry: PolicyEntry,
        keys: Vec<Key>,
        known: Known,
        on_its_way: Option<Key>,
        now: Instant,
    }

    impl Case {
        fn newest(generation: i64) -> Self {
            let entry = PolicyEntry {
                id: "cluster/a".parse().expect("an id"),
                uid: "u".into(),
                generation,
                mode: Mode::Protect,
                failure_policy: FailurePolicy::Fail,
                suspend: false,
                enforced: true,
                candidates: Vec::new(),
                failures: Vec::new(),
                last_good: None,
                source: None,
            };
            Self { entry, keys: Vec::new(), known: Known::default(), on_its_way: None, now: Instant::now() }
        }

        fn candidate(mut self, generation: i64) -> Self {
            self.entry.candidates.push(candidate(generation));
            self.keys.push(Key::of("u", &candidate(generation)));
            self
        }

        fn serves(mut self, generation: i64) -> Self {
            self.known.in_service = Some(Key::of("u", &candidate(generation)));
            self
        }

        fn loads(mut self, generation: i64) -> Self {
            self.on_its_way = Some(Key::of("u", &candidate(generation)));
            self
        }

        fn refused(mut self, generation: i64, reason: Reason, retry_in: Option<Duration>) -> Self {
            let failure = Failure::new(generation, reason, "refused here", Timestamp::UNIX_EPOCH);
            let refused =
                Refused { digest: Digest::of(b"module"), module: None, artifact: Digest::of(b"artifact"), failure };
            let retry_at = retry_in.map(|time| self.now + time);
            self.known
                .refused
                .insert(Key::of("u", &candidate(generation)), RefusedCandidate { refused, retry_at, starved: 0 });
            self
        }

        fn loader_failed(mut self, generation: i64, reason: Reason) -> Self {
            self.entry.failures.push(Failure::new(generation, reason, "failed there", Timestamp::UNIX_EPOCH));
            self
        }

        fn next(&self) -> Next {
            next(&self.entry, &self.keys, &self.known, self.on_its_way, self.now)
        }

        fn states(&self) -> (ReplicaState, Option<Reason>, Option<Reason>) {
            let failure = failure(&self.entry, &self.keys, &self.known);
            let unserved = unserved(&self.entry, &self.keys, &self.known);
            let state = state(&self.entry, &self.known, failure.as_ref());
            (state, failure.map(|f| f.reason), unserved.map(|f| f.reason))
        }
    }

    #[test]
    fn z09_the_gate_waits_for_what_was_enforced_and_for_all_where_that_is_not_known() {
        let entry =
            |id: &str, enforced| PolicyEntry { id: id.parse().expect("an id"), enforced, ..Case::newest(1).entry };
        let waits = |policies: &[PolicyEntry]| {
            let mut ids: Vec<_> = awaited(policies).iter().map(ToString::to_string).collect();
            ids.sort();
            ids
        };
        let (old, new) = (entry("cluster/old", true), entry("namespaced/a/new", false));
        assert_eq!(waits(&[old, new.clone(), entry("bare", true)]), ["bare", "cluster/old"]);
        assert_eq!(waits(&[new.clone(), entry("bare", true)]), ["bare", "namespaced/a/new"]);
        for is_enforced in [false, true] {
            assert_eq!(
                waits(&[new.clone(), entry("check/a/7", is_enforced)]),
                ["namespaced/a/new"],
                "one is only tried"
            );
        }
    }

    #[test]
    fn a_new_candidate_is_loaded() {
        let case = Case::newest(1).candidate(1);
        assert_eq!(case.next(), Next::Load(0));
        assert_eq!(case.states(), (ReplicaState::Pending, None, None));
    }

    #[test]
    fn what_serves_is_not_loaded_again() {
        let case = Case::newest(2).candidate(2).candidate(1).serves(2);
        assert_eq!(case.next(), Next::Rest(None));
        assert_eq!(case.states(), (ReplicaState::Current, None, None));
    }

    #[test]
    fn what_was_loaded_before_it_became_unreadable_is_not_current() {
        let case = Case::newest(2).candidate(2).serves(2).loader_failed(2, Reason::SpecInvalid);
        assert_eq!(case.next(), Next::Rest(None));
        assert_eq!(case.states().0, ReplicaState::Previous);
        // A module that serves and only cannot be fetched again is the one that the spec asks for.
        let case = Case::newest(2).serves(2).loader_failed(2, Reason::RegistryTimeout);
        assert_eq!(case.states().0, ReplicaState::Current);
    }

    #[test]
    fn what_was_refused_for_good_is_not_tried_again() {
        let case = Case::newest(2).candidate(2).refused(2, Reason::SettingsInvalid, None);
        assert_eq!(case.next(), Next::Rest(None));
        assert_eq!(case.states().0, ReplicaState::Failed);
    }

    #[test]
    fn a_failing_target_falls_back_to_the_last_good_one() {
        let case = Case::newest(2).candidate(2).candidate(1).refused(2, Reason::SettingsInvalid, None);
        assert_eq!(case.next(), Next::Load(1));
    }

    #[test]
    fn an_older_one_serves_while_the_newest_lacks_a_capability_and_is_tried_again() {
        let refused = |time| {
            let case = Case::newest(2).candidate(2).candidate(1);
            case.refused(2, Reason::CapabilityUnavailable, Some(time))
        };
        assert_eq!(refused(Duration::from_secs(1)).next(), Next::Load(1));
        let later = refused(Duration::from_secs(1)).serves(1);
        assert_eq!(later.next(), Next::Rest(Some(later.now + Duration::from_secs(1))));
        assert_eq!(refused(Duration::ZERO).serves(1).next(), Next::Load(0));
    }

    #[test]
    fn a_failing_target_leaves_what_serves_untouched() {
        let case = Case::newest(3).candidate(3).candidate(1).serves(2).refused(3, Reason::SettingsInvalid, None);
        assert_eq!(case.next(), Next::Rest(None));
        let reason = Some(Reason::SettingsInvalid);
        assert_eq!(case.states(), (ReplicaState::Previous, reason, reason));
    }

    #[test]
    fn a_target_that_is_not_there_yet_leaves_what_serves_untouched() {
        let case = Case::newest(2).serves(1);
        assert_eq!((case.next(), case.states().0), (Next::Rest(None), ReplicaState::Previous));
        let case = case.loader_failed(2, Reason::RegistryTimeout);
        assert_eq!(case.states().1, Some(Reason::RegistryTimeout));
    }

    #[test]
    fn a_passing_refusal_is_tried_again_when_its_time_comes() {
        let refused = |time| Case::newest(1).candidate(1).refused(1, Reason::ArtifactMissing, Some(time));
        let case = refused(Duration::from_secs(1));
        assert_eq!(case.next(), Next::Rest(Some(case.now + Duration::from_secs(1))));
        assert_eq!(refused(Duration::ZERO).next(), Next::Load(0));
    }

    #[test]
    fn while_nothing_serves_a_load_is_not_given_up_for_another_try_of_a_newer_generation() {
        let refused = |time| {
            let case = Case::newest(3).candidate(3).candidate(2);
            case.refused(3, Reason::ProcessorUnavailable, Some(time))
        };
        let due = || refused(Duration::ZERO);
        assert_eq!(due().loads(2).next(), Next::Load(1), "it goes on");
        assert_eq!(refused(Duration::from_secs(1)).loads(2).next(), Next::Load(1));
        // A try of its own has come before; the newest one's turn comes when it has ended.
        let time = Some(Duration::ZERO);
        let both = || due().refused(2, Reason::ProcessorUnavailable, time);
        assert_eq!(both().loads(2).next(), Next::Load(1));
        assert_eq!((both().next(), both().loads(3).next()), (Next::Load(0), Next::Load(0)));
        let failed = due().refused(2, Reason::StartTimedOut, None);
        assert_eq!(failed.next(), Next::Load(0), "the older one has failed");
        assert_eq!(due().serves(2).next(), Next::Load(0), "the older one serves");
        let later = refused(Duration::from_secs(1)).serves(2);
        assert_eq!(later.next(), Next::Rest(Some(later.now + Duration::from_secs(1))));
    }

    #[test]
    fn a_load_is_given_up_for_a_generation_that_was_not_tried_and_for_one_that_is_not_wanted() {
        assert_eq!(Case::newest(3).candidate(3).candidate(2).loads(2).next(), Next::Load(0));
        let again = Case::newest(3).candidate(3).refused(3, Reason::ProcessorUnavailable, Some(Duration::ZERO));
        assert_eq!(again.loads(2).next(), Next::Load(0), "the manifest no longer names it");
        let case = Case::newest(3).candidate(3).candidate(2).serves(1).loads(2);
        assert_eq!(case.refused(3, Reason::ProcessorUnavailable, Some(Duration::ZERO)).next(), Next::Load(0));
    }

    #[test]
    fn nothing_is_tried_again_that_is_not_wanted() {
        let time = Some(Duration::ZERO);
        let case = Case::newest(2).candidate(2).candidate(1).serves(2).refused(1, Reason::ArtifactMissing, time);
        assert_eq!(case.next(), Next::Rest(None));
    }

    #[test]
    fn the_same_content_in_a_new_generation_is_not_loaded_again() {
        let mut case = Case::newest(2).serves(1);
        let same = Candidate { generation: 2, ..candidate(1) };
        case.keys.push(Key::of("u", &same));
        case.entry.candidates.push(same);
        assert_eq!(case.next(), Next::Renumber(0));
    }

    #[test]
    fn generations_that_count_from_one_again_replace_what_serves() {
        assert_eq!(Case::newest(1).candidate(1).serves(7).next(), Next::Load(0));
    }

    #[test]
    fn the_own_refusal_is_told_before_the_loaders_failure() {
        let case = Case::newest(1).candidate(1).loader_failed(1, Reason::RegistryTimeout);
        assert_eq!(case.states().1, Some(Reason::RegistryTimeout));
        let case = case.refused(1, Reason::ArtifactCorrupt, Some(Duration::from_secs(1)));
        assert_eq!(case.states().1, Some(Reason::ArtifactCorrupt));
    }

    #[test]
    fn an_older_generations_failure_explains_why_nothing_serves() {
        let case = Case::newest(3).candidate(2).refused(2, Reason::MemoryLimit, None);
        assert_eq!(case.states(), (ReplicaState::Pending, None, Some(Reason::MemoryLimit)));
    }

    #[test]
    fn the_start_gate_waits_for_what_may_pass() {
        let now = Timestamp::UNIX_EPOCH;
        let failure = |reason| Some(Failure::new(1, reason, "", now));
        let nothing = Known::default();
        let is_settled = |known: &Known, failure: Option<Failure>, is_loading| {
            super::is_settled(known, failure.as_ref(), is_loading, false, now)
        };
        assert!(!is_settled(&nothing, None, false));
        assert!(!is_settled(&nothing, failure(Reason::RegistryTimeout), false));
        assert!(is_settled(&nothing, failure(Reason::Unauthorized), false));
        assert!(!is_settled(&nothing, failure(Reason::SettingsInvalid), true));
        assert!(is_settled(&Case::newest(2).serves(1).known, failure(Reason::RegistryTimeout), true));
    }

    /// Row K12: a pod that starts while the newest generation cannot serve.
    #[test]
    fn after_a_failure_the_start_gate_waits_for_an_older_generation_that_was_enforced() {
        let failure = Failure::new(3, Reason::InstantiationFailed, "a trap", Timestamp::UNIX_EPOCH);
        let is_settled = |known: &Known, older_may_come, seconds: i64| {
            let now = failure.since + jiff::SignedDuration::from_secs(seconds);
            super::is_settled(known, Some(&failure), false, older_may_come, now)
        };
        let nothing = Case::newest(3).known;
        assert!(!is_settled(&nothing, true, 0) && !is_settled(&nothing, true, 4));
        assert!(is_settled(&nothing, true, 5), "perhaps there is none");
        assert!(is_settled(&nothing, false, 0), "there is none");
        assert!(is_settled(&Case::newest(3).serves(2).known, true, 0));
    }

    #[test]
    fn keys_tell_candidates_apart() {
        let first = Key::of("u", &candidate(1));
        assert_eq!(first, Key::of("u", &candidate(1)));
        assert_ne!(first, Key::of("v", &candidate(1)));
        assert_ne!(first, Key::of("u", &Candidate { content: with_settings("{ }"), ..candidate(1) }));
    }
}
