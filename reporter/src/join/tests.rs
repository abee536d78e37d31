use std::collections::BTreeMap;

use portcullis_contract::{ContextProblem, ContextReason, Current, Deviation, Mismatch, MismatchReason};

use super::*;
use crate::fixtures::published;

const UID: &str = "9b2c41d2-a1f0-5e17-8000-000000000001";

fn id() -> PolicyId {
    "cluster/a".parse().expect("an id")
}

fn time(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a time")
}

fn failure(generation: i64, reason: Reason) -> Failure {
    Failure::new(generation, reason, "in words", time(20))
}

/// The policy `cluster/a`, whose newest generation is 2.
fn policy(phase: Phase, failure: Option<Failure>) -> LoaderPolicy {
    let created = time(10);
    LoaderPolicy {
        generation: 2,
        module: "modules/a.wasm".into(),
        phase,
        failure,
        created,
        ..published("cluster/a", UID)
    }
}

fn loader(policy: LoaderPolicy) -> LoaderState {
    LoaderState { complete: true, manifest_number: 5, policies: vec![policy], ..LoaderState::default() }
}

fn serving(generation: i64) -> EvaluatorState {
    let digest = Digest::of(b"module");
    let current = Current { uid: UID.into(), generation, digest, members: BTreeMap::new(), since: time(15) };
    EvaluatorState { manifest_number: 5, current: [(id(), current)].into(), ..EvaluatorState::default() }
}

fn deviating(serving: i64, failure: Option<Failure>) -> EvaluatorState {
    let deviation = Deviation {
        id: id(),
        uid: UID.into(),
        generation: 2,
        serving,
        digest: None,
        members: BTreeMap::new(),
        state: ReplicaState::Failed,
        failure,
        refused: Vec::new(),
        since: time(15),
    };
    EvaluatorState { manifest_number: 5, deviations: vec![deviation], ..EvaluatorState::default() }
}

/// State, serving generation, reason and message of the report's only deviation.
fn deviates(loader: &LoaderState, evaluator: Evaluator<'_>) -> (ReplicaState, i64, Option<String>, String) {
    let pod = Pod { name: "pod".into(), uid: "pod-uid".into() };
    let mut report = join(&pod, loader, evaluator, time(100));
    assert_eq!((report.current.len(), report.deviations.len()), (0, 1), "{report:?}");
    let deviation = report.deviations.remove(0);
    assert_eq!((deviation.policy_uid.as_str(), deviation.generation), (UID, 2));
    (deviation.state, deviation.serving, deviation.reason, deviation.message.unwrap_or_default().to_string())
}

fn fails(state: ReplicaState, serving: i64, reason: Reason) -> (ReplicaState, i64, Option<String>, String) {
    (state, serving, Some(reason.to_string()), "in words".into())
}

fn works(state: ReplicaState, serving: i64, words: &str) -> (ReplicaState, i64, Option<String>, String) {
    (state, serving, None, words.into())
}

#[test]
fn the_newest_generation_is_a_line_in_the_map() {
    let pod = Pod { name: "pod".into(), uid: "pod-uid".into() };
    let state = serving(2);
    let report = join(&pod, &loader(policy(Phase::Published, None)), Evaluator::Answers(&state), time(100));
    let key = PolicyKey::of(UID);
    assert_eq!(report.current, BTreeMap::from([(key.clone(), 2)]));
    assert_eq!(report.digests, BTreeMap::from([(key, Digest::of(b"module"))]));
    assert_eq!((report.deviations, report.manifest_number, report.pod_uid.as_str()), (vec![], 5, "pod-uid"));
}

#[test]
fn the_controller_is_told_which_keys_of_paths_the_evaluator_accepts() {
    let pod = Pod { name: "pod".into(), uid: "pod-uid".into() };
    let path_keys = |evaluator| join(&pod, &loader(policy(Phase::Published, None)), evaluator, time(100)).path_keys;
    let state = EvaluatorState { path_keys: vec!["0a1b2c3d".into(), "plain".into()], ..serving(2) };
    assert_eq!(path_keys(Evaluator::Answers(&state)), ["0a1b2c3d", "plain"]);
    assert_eq!(path_keys(Evaluator::Silent("no answer", time(1))), Vec::<String>::new(), "nobody knows");
}

#[test]
fn while_the_loader_works_a_policy_is_pending_or_goes_on_with_the_older_one() {
    let fetching = loader(policy(Phase::Fetching, None));
    let nothing = EvaluatorState::default();
    let pending = works(ReplicaState::Pending, 0, "fetching the module");
    assert_eq!(deviates(&fetching, Evaluator::Answers(&nothing)), pending);
    let compiling = loader(policy(Phase::Compiling, None));
    let older = works(ReplicaState::Previous, 1, "compiling the module");
    assert_eq!(deviates(&compiling, Evaluator::Answers(&serving(1))), older);
}

#[test]
fn w04_a_pod_says_whether_requests_pass_without_the_policy() {
    let pod = Pod { name: "pod".into(), uid: "pod-uid".into() };
    let passed_over = |enforced, evaluator: Evaluator<'_>| {
        let failed = LoaderPolicy { enforced, ..policy(Phase::Failed, Some(failure(2, Reason::NotFound))) };
        join(&pod, &loader(failed), evaluator, time(100)).deviations[0].passed_over
    };
    let nothing = EvaluatorState::default();
    assert!(passed_over(false, Evaluator::Answers(&nothing)));
    assert!(!passed_over(true, Evaluator::Answers(&nothing)));
    assert!(!passed_over(false, Evaluator::Answers(&deviating(1, None))), "an older generation is asked");
    assert!(!passed_over(false, Evaluator::Silent("refused", time(50))), "nobody knows");
}

#[test]
fn z18_what_was_loaded_before_its_revision_became_unreadable_is_not_current() {
    let unreadable = loader(policy(Phase::Failed, Some(failure(2, Reason::SpecInvalid))));
    let expected = fails(ReplicaState::Previous, 2, Reason::SpecInvalid);
    assert_eq!(deviates(&unreadable, Evaluator::Answers(&serving(2))), expected);
}

#[test]
fn a_failure_of_the_loader_counts_with_or_without_an_older_generation() {
    let failed = loader(policy(Phase::Failed, Some(failure(2, Reason::NotFound))));
    let nothing = EvaluatorState::default();
    assert_eq!(deviates(&failed, Evaluator::Answers(&nothing)), fails(ReplicaState::Failed, 0, Reason::NotFound));
    assert_eq!(deviates(&failed, Evaluator::Answers(&serving(1))), fails(ReplicaState::Previous, 1, Reason::NotFound));
}

#[test]
fn the_loader_s_failure_comes_before_the_evaluator_s() {
    let failed = loader(policy(Phase::Failed, Some(failure(2, Reason::NotFound))));
    let refused = deviating(0, Some(failure(2, Reason::SettingsInvalid)));
    assert_eq!(deviates(&failed, Evaluator::Answers(&refused)), fails(ReplicaState::Failed, 0, Reason::NotFound));
}

#[test]
fn what_the_evaluator_refuses_is_its_failure() {
    let published = loader(policy(Phase::Published, None));
    let refused = deviating(1, Some(failure(2, Reason::SettingsInvalid)));
    let expected = fails(ReplicaState::Previous, 1, Reason::SettingsInvalid);
    assert_eq!(deviates(&published, Evaluator::Answers(&refused)), expected);
}

#[test]
fn a_failure_of_an_older_generation_says_nothing_of_the_newest() {
    let published = loader(policy(Phase::Published, None));
    let old = EvaluatorState {
        deviations: vec![Deviation {
            generation: 1,
            ..deviating(0, Some(failure(1, Reason::SettingsInvalid))).deviations.remove(0)
        }],
        ..EvaluatorState::default()
    };
    let expected = works(ReplicaState::Pending, 0, "the evaluator is loading it");
    assert_eq!(deviates(&published, Evaluator::Answers(&old)), expected);
}

#[test]
fn a_volume_that_cannot_be_written_or_read_keeps_the_newest_generation_away() {
    let full =
        LoaderState { volume_failure: Some(failure(0, Reason::VolumeFull)), ..loader(policy(Phase::Published, None)) };
    let expected = fails(ReplicaState::Previous, 1, Reason::VolumeFull);
    assert_eq!(deviates(&full, Evaluator::Answers(&serving(1))), expected);
    let torn = EvaluatorState { manifest_failure: Some(failure(0, Reason::ManifestInvalid)), ..serving(1) };
    let expected = fails(ReplicaState::Previous, 1, Reason::ManifestInvalid);
    assert_eq!(deviates(&loader(policy(Phase::Published, None)), Evaluator::Answers(&torn)), expected);
}

#[test]
fn a_record_of_an_earlier_policy_of_the_same_name_does_not_count() {
    let mut state = serving(2);
    for current in state.current.values_mut() {
        current.uid = "another".into();
    }
    let published = loader(policy(Phase::Published, None));
    assert_eq!(deviates(&published, Evaluator::Answers(&state)).0, ReplicaState::Pending);
}

#[test]
fn a_deleted_policy_vanishes() {
    let pod = Pod { name: "pod".into(), uid: "pod-uid".into() };
    let none = LoaderState { complete: true, ..LoaderState::default() };
    let report = join(&pod, &none, Evaluator::Answers(&serving(2)), time(100));
    assert_eq!((report.current.len(), report.deviations.len()), (0, 0));
}

#[test]
fn of_a_silent_evaluator_nothing_is_known() {
    let published = loader(policy(Phase::Published, None));
    let expected = (ReplicaState::Unknown, 0, Some("EvaluatorUnreachable".to_owned()), "connection refused".to_owned());
    assert_eq!(deviates(&published, Evaluator::Silent("connection refused", time(50))), expected);
}

#[test]
fn an_evaluator_that_tells_of_a_generation_nobody_made_is_not_believed() {
    let (published, state) = (loader(policy(Phase::Published, None)), serving(99));
    assert!(is_ahead(&published, &state) && !is_ahead(&published, &serving(2)));
    let (replica, serving, reason, words) = deviates(&published, Evaluator::Answers(&state));
    assert_eq!((replica, serving, reason.as_deref()), (ReplicaState::Unknown, 0, Some("EvaluatorUnreachable")));
    assert_eq!(words, "it tells of generation 99, but the loader knows none after 2");
}

/// The report on these policies, which have a uid each. Of those with an odd number, generation 1 answers.
fn report_on(policies: impl IntoIterator<Item = LoaderPolicy>) -> ReplicaReportSpec {
    let mut state = EvaluatorState::default();
    let named = policies.into_iter().enumerate().map(|(number, policy)| {
        let (id, uid) = (format!("cluster/p{number}").parse::<PolicyId>().expect("an id"), uid(number));
        if number % 2 == 1 {
            let current = serving(1).current.remove(&self::id()).expect("a policy");
            state.current.insert(id.clone(), Current { uid: uid.clone(), ..current });
        }
        LoaderPolicy { id, uid, ..policy }
    });
    let loader = LoaderState { policies: named.collect(), ..LoaderState::default() };
    let pod = Pod { name: "pod".into(), uid: "pod-uid".into() };
    join(&pod, &loader, Evaluator::Answers(&state), time(100))
}

fn uid(number: usize) -> String {
    format!("{number:08}-a1f0-5e17-8000-000000000001")
}

#[test]
fn at_most_500_deviations_are_kept_and_failures_first() {
    let loading = (0..1200).map(|_| policy(Phase::Fetching, None));
    let report = report_on(loading.chain([policy(Phase::Failed, Some(failure(2, Reason::NotFound)))]));
    assert_eq!(report.deviations.len(), 500);
    assert_eq!(report.deviations[0].reason.as_deref(), Some("NotFound"));
    let failed = (0..600).map(|_| policy(Phase::Failed, Some(failure(2, Reason::NotFound))));
    let report = report_on(failed);
    assert_eq!((report.deviations.len(), report.deviations_omitted, report.current.len()), (500, 100, 100));
    // Those where nothing answers have their entries, and the others show as their older generation.
    assert_eq!(report.deviations.iter().filter(|deviation| deviation.serving == 0).count(), 300);
    assert!(report.current.values().all(|serving| *serving == 1));
}

#[test]
fn what_merely_loads_is_not_counted_where_it_does_not_fit_in() {
    let report = report_on((0..1200).map(|_| policy(Phase::Fetching, None)));
    assert_eq!((report.deviations.len(), report.deviations_omitted), (500, 0));
    // Where nothing answers the entry says more, so those are kept, and the others show as their older generation.
    assert!(report.deviations.iter().all(|deviation| deviation.serving == 0));
    assert_eq!((report.current.len(), report.current.get(&PolicyKey::of(&uid(1)))), (600, Some(&1)));
    let few = report_on((0..400).map(|_| policy(Phase::Fetching, None)));
    assert_eq!((few.deviations.len(), few.current.len()), (400, 0));
}

#[test]
fn a_policy_that_loads_reads_the_same_with_and_without_an_entry() {
    use crate::facts::{Facts, LastReport, Replica};
    use crate::replica::examine;
    use crate::resolution::Resolution;
    let report = report_on((0..1200).map(|_| policy(Phase::Fetching, None)));
    let read = |number| {
        let uid = uid(number);
        let facts = Facts {
            uid: &uid,
            generation: 2,
            suspend: false,
            digest: None,
            members: None,
            rollback_to: None,
            refusal: None,
        };
        let heard = LastReport { report: &report, is_stale: false };
        let replica = Replica { pod: "pod", pod_uid: "pod-uid", expected: true, report: Some(heard) };
        let found = examine(&facts, Resolution::Open, &replica);
        (found.state, found.serving, found.problem)
    };
    // The first has an entry and the last has none.
    assert_eq!(read(0), (ReplicaState::Pending, 0, None));
    assert_eq!(read(1198), read(0));
    assert_eq!(read(1199), (ReplicaState::Previous, 1, None));
}

#[test]
fn what_one_namespace_has_too_much_of_takes_no_place_from_others() {
    let policies = (0..501).map(|number| {
        let namespace = if number == 500 { "quiet" } else { "flood" };
        let policy = published(&format!("namespaced/{namespace}/p{number}"), &uid(number));
        let (mismatch, context) = match namespace {
            // It lacks objects as well: old ones, with which a policy stays Ready, come after all that are missing.
            "quiet" => (MismatchReason::NoMetadata, ContextReason::ContextNotSynced),
            _ => (MismatchReason::CapabilityNotGranted, ContextReason::ContextForbidden),
        };
        LoaderPolicy {
            mismatches: vec![Mismatch::new(mismatch, "in words")],
            context: vec![ContextProblem::new(context, "in words")],
            ..policy
        }
    });
    let loader = LoaderState { policies: policies.collect(), ..LoaderState::default() };
    let failing = loader.policies.iter().map(|policy| Failing {
        id: policy.id.clone(),
        uid: policy.uid.clone(),
        since: time(7),
        reason: Reason::EvaluationTrapped,
    });
    let state = EvaluatorState { failing: failing.collect(), ..EvaluatorState::default() };
    let pod = Pod { name: "pod".into(), uid: "pod-uid".into() };
    let report = join(&pod, &loader, Evaluator::Answers(&state), time(100));
    let uids: [Vec<&str>; 3] = [
        report.mismatches.iter().map(|one| one.policy_uid.as_str()).collect(),
        report.context.iter().map(|one| one.policy_uid.as_str()).collect(),
        report.failing.iter().map(|one| one.policy_uid.as_str()).collect(),
    ];
    for uids in uids {
        assert_eq!((uids.len(), uids.contains(&uid(500).as_str())), (500, true));
    }
}

#[test]
fn evaluations_that_fail_too_often_are_told_of_policies_that_there_are() {
    let pod = Pod { name: "pod".into(), uid: "pod-uid".into() };
    let failing = |uid: &str| Failing { id: id(), uid: uid.into(), since: time(7), reason: Reason::EvaluationTrapped };
    let state = EvaluatorState { failing: vec![failing("an earlier one"), failing(UID)], ..serving(2) };
    let report = join(&pod, &loader(policy(Phase::Published, None)), Evaluator::Answers(&state), time(100));
    let wanted = ReportFailing { policy_uid: UID.into(), reason: "EvaluationTrapped".into(), since: time(7) };
    assert_eq!(report.failing, [wanted]);
    assert!(report.deviations.is_empty());
}
