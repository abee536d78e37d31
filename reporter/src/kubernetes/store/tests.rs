use std::sync::Arc;

use serde_json::json;

use super::*;

mod clocks;

const UID: &str = "9b2c41d2-a1f0-4e17-8000-000000000001";
const LIFETIME: Duration = Duration::from_secs(150);

fn policy(uid: &str, version: u64, generation: i64) -> Value {
    json!({
        "metadata": {"name": "a", "uid": uid, "resourceVersion": version.to_string(), "generation": generation},
        "spec": {"policyServer": "default"},
    })
}

fn report(version: u64, heartbeat: &str, serving: i64) -> Value {
    json!({
        "metadata": {"name": "pod-a", "uid": "report-a", "resourceVersion": version.to_string()},
        "spec": {
            "podUID": "uid-a",
            "versions": {"loader": "", "evaluator": "", "reporter": "", "engine": "", "manifestFormat": 1},
            "manifestNumber": 1,
            "current": {PolicyKey::of(UID).to_string(): serving},
            "deviations": [],
            "deviationsOmitted": 0,
            "heartbeat": heartbeat,
        },
    })
}

fn slice(pods: &[(&str, &str, bool)]) -> Value {
    let endpoints: Vec<Value> = pods
        .iter()
        .map(|(pod, uid, ready)| {
            json!({"conditions": {"ready": ready, "serving": ready}, "targetRef": {"kind": "Pod", "name": pod, "uid": uid}})
        })
        .collect();
    json!({"metadata": {"name": "slice", "uid": "uid-of-slice"}, "endpoints": endpoints})
}

/// Has a list with these objects read.
fn list(store: &mut Store, collection: Collection, objects: Vec<Value>, now: Instant, clock: Timestamp) {
    let uids = objects.iter().filter_map(|object| object["metadata"]["uid"].as_str()).map(str::to_owned).collect();
    for object in objects {
        store.apply(collection, Change::Read(object), now, clock);
    }
    store.apply(collection, Change::Listed(uids), now, clock);
}

/// The time of the first heartbeat.
fn clock() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().expect("a time")
}

fn listed(now: Instant) -> Store {
    let mut store = Store::new("default", LIFETIME, None);
    list(&mut store, Collection::ClusterPolicies, vec![policy(UID, 5, 2)], now, clock());
    list(&mut store, Collection::Policies, vec![], now, clock());
    list(&mut store, Collection::Endpoints, vec![slice(&[("pod-a", "uid-a", true)])], now, clock());
    assert!(store.take_dirty().is_empty(), "not while a collection is not listed");
    list(&mut store, Collection::Reports, vec![report(5, "2026-01-01T00:00:00Z", 2)], now, clock());
    assert_eq!(store.take_dirty().len(), 1);
    store
}

fn id() -> PolicyId {
    "cluster/a".parse().expect("an id")
}

#[test]
fn a_heartbeat_concerns_nobody_and_a_change_only_whom_it_is_about() {
    let now = Instant::now();
    let mut store = listed(now);
    let mut other = policy("0d4a77c1-b2e0-4e17-8000-000000000002", 5, 1);
    other["metadata"]["name"] = "b".into();
    store.apply(Collection::ClusterPolicies, Change::Put(other), now, clock());
    assert_eq!(store.take_dirty(), BTreeSet::from(["cluster/b".parse().expect("an id")]), "the other policy");
    store.apply(Collection::Reports, Change::Put(report(6, "2026-01-01T00:01:00Z", 2)), now, clock());
    assert!(store.take_dirty().is_empty());
    store.apply(Collection::Reports, Change::Put(report(7, "2026-01-01T00:02:00Z", 1)), now, clock());
    assert_eq!(store.take_dirty(), BTreeSet::from([id()]));
    let mut failing = report(8, "2026-01-01T00:03:00Z", 1);
    let entry = json!({"policyUID": UID, "reason": "EvaluationTrapped", "since": "2026-01-01T00:00:00Z"});
    failing["spec"]["failing"] = json!([entry]);
    store.apply(Collection::Reports, Change::Put(failing), now, clock());
    assert_eq!(store.take_dirty(), BTreeSet::from([id()]));
    let mut counted = report(9, "2026-01-01T00:04:00Z", 1);
    counted["spec"]["failing"] = json!([entry]);
    counted["spec"]["impacts"] = json!([{ "policyUID": UID, "impact": {
        "generation": 2, "checkedAt": "2026-01-01T00:00:00Z", "evaluated": 5, "denied": 1, "changed": 0, "failed": 0,
        "namespaces": 1, "sample": false, "complete": true,
    } }]);
    store.apply(Collection::Reports, Change::Put(counted), now, clock());
    assert_eq!(store.take_dirty(), BTreeSet::from([id()]));
    let heard = store.replicas()[0].report.map(|heard| heard.report.impacts.len());
    assert_eq!(heard, Some(1), "the report was read");
}

#[test]
fn reports_with_the_same_text_share_it() {
    let now = Instant::now();
    let mut store = listed(now);
    let of_pod = |pod: &str| {
        let mut report = report(6, "2026-01-01T00:01:00Z", 2);
        report["metadata"]["name"] = pod.into();
        let entry =
            json!({"policyUID": "another", "generation": 1, "reason": "ContextForbidden", "message": "no right"});
        report["spec"]["context"] = json!([entry]);
        report
    };
    for pod in ["pod-a", "pod-b", "pod-c"] {
        store.apply(Collection::Reports, Change::Put(of_pod(pod)), now, clock());
    }
    let texts: Vec<_> = store.reports.values().map(|report| &report.object.spec.context[0].message).collect();
    assert!(texts.len() == 3 && texts.iter().all(|text| Arc::ptr_eq(text, texts[0])));
}

#[test]
fn where_a_report_gets_room_each_policy_that_it_left_out_is_decided_again() {
    let now = Instant::now();
    let mut store = listed(now);
    let entry = json!({"policyUID": "another", "generation": 1, "reason": "ContextForbidden", "message": ""});
    let mut version = 6;
    for field in ["context", "mismatches"] {
        for (entries, is_concerned) in [(499, false), (500, true), (500, false), (499, true)] {
            let mut report = report(version, "2026-01-01T00:01:00Z", 2);
            report["spec"][field] = json!(vec![&entry; entries]);
            store.apply(Collection::Reports, Change::Put(report), now, clock());
            assert_eq!(!store.take_dirty().is_empty(), is_concerned, "{field} {entries}");
            version += 1;
        }
    }
}

#[test]
fn without_a_heartbeat_a_report_becomes_stale_by_the_clock_of_who_reads_it() {
    let now = Instant::now();
    let mut store = listed(now);
    store.turn(now + LIFETIME);
    assert!(store.take_dirty().is_empty());
    store.turn(now + LIFETIME + Duration::from_secs(1));
    assert_eq!(store.take_dirty().len(), 1);
    assert!(store.replicas()[0].report.is_some_and(|heard| heard.is_stale));
    assert!(store.dead_reports(now + LIFETIME * 2).is_empty(), "the pod is there");
    // A report that was only listed again, or has a new version for another reason, does not count as a heartbeat.
    let later = now + LIFETIME + Duration::from_secs(2);
    store.apply(Collection::Reports, Change::Put(report(8, "2026-01-01T00:00:00Z", 2)), later, clock());
    assert!(store.replicas()[0].report.is_some_and(|heard| heard.is_stale));
    store.apply(Collection::Reports, Change::Put(report(9, "2026-01-01T00:09:00Z", 2)), later, clock());
    assert!(store.replicas()[0].report.is_some_and(|heard| !heard.is_stale));
}

#[test]
fn a_report_is_dead_when_its_pod_is_gone_and_its_heartbeat_has_stopped() {
    let now = Instant::now();
    let mut store = listed(now);
    store.apply(Collection::Endpoints, Change::Put(slice(&[("pod-a", "uid-later", true)])), now, clock());
    assert!(store.dead_reports(now + LIFETIME).is_empty(), "a pod may be without an endpoint for a while");
    let later = now + LIFETIME + Duration::from_secs(1);
    assert_eq!(store.dead_reports(later).iter().map(|meta| meta.uid.as_str()).collect::<Vec<_>>(), ["report-a"]);
    let mut held = report(6, "2026-01-01T00:00:00Z", 2);
    held["metadata"]["deletionTimestamp"] = "2026-01-01T00:05:00Z".into();
    store.apply(Collection::Reports, Change::Put(held), later, clock());
    assert!(store.dead_reports(later).is_empty(), "it is being deleted, and a finalizer holds it");
}

#[test]
fn a_new_leader_does_not_count_a_report_whose_heartbeat_stopped_long_ago() {
    let (now, limit) = (Instant::now(), LIFETIME + CLOCKS);
    let second = Duration::from_secs(1);
    let seen = |age: Duration| {
        let mut store = Store::new("default", LIFETIME, None);
        let slice = slice(&[("pod-a", "uid-a", true)]);
        list(&mut store, Collection::Endpoints, vec![slice], now, clock());
        let report = report(5, "2026-01-01T00:00:00Z", 2);
        list(&mut store, Collection::Reports, vec![report], now, clock() + age);
        store
    };
    let is_stale = |store: &Store| store.replicas()[0].report.is_some_and(|heard| heard.is_stale);
    assert_eq!([Duration::ZERO, limit, limit + second].map(|age| is_stale(&seen(age))), [false, false, true]);

    // It stays so while nothing but its version changes, and however often it is listed.
    let (mut store, clock) = (seen(limit * 10), clock() + limit * 10);
    list(&mut store, Collection::Reports, vec![report(6, "2026-01-01T00:00:00Z", 2)], now, clock);
    assert!(is_stale(&store));
    // The clock of the pod is merely slow: it goes on.
    store.apply(Collection::Reports, Change::Put(report(7, "2026-01-01T00:01:00Z", 2)), now, clock);
    assert!(!is_stale(&store));
    store.turn(now + LIFETIME + second);
    assert!(is_stale(&store));
}

#[test]
fn a_new_leader_waits_a_moment_for_pods_that_were_silent_as_no_api_server_was_there() {
    let (now, late) = (Instant::now(), clock() + (LIFETIME + CLOCKS) * 2);
    let mut store = Store::new("default", LIFETIME, None);
    for (collection, objects) in [
        (Collection::Policies, vec![]),
        (Collection::ClusterPolicies, vec![policy(UID, 5, 2)]),
        (Collection::Endpoints, vec![slice(&[("pod-a", "uid-a", true)])]),
        (Collection::Reports, vec![report(5, "2026-01-01T00:00:00Z", 2)]),
    ] {
        list(&mut store, collection, objects, now, late);
    }
    assert!(store.take_dirty().is_empty());
    store.turn(now + RETURN - Duration::from_secs(1));
    assert!(store.take_dirty().is_empty());
    store.turn(now + RETURN);
    assert_eq!(store.take_dirty().len(), 1, "it goes on without the pod");
    // Later, nobody waits for a pod whose clock is wrong.
    let mut slow = report(5, "2026-01-01T00:00:00Z", 2);
    slow["metadata"]["name"] = "pod-b".into();
    store.apply(Collection::Reports, Change::Put(slow), now + RETURN, late);
    assert_eq!(store.take_dirty().len(), 1);

    let mut store = Store::new("default", LIFETIME, None);
    store.missing.clear();
    list(&mut store, Collection::Reports, vec![report(5, "2026-01-01T00:00:00Z", 2)], now, late);
    assert!(store.is_complete(), "nobody waits for a pod that is gone");
    list(&mut store, Collection::Endpoints, vec![slice(&[("pod-a", "uid-a", true)])], now, late);
    assert!(!store.is_complete());
    store.apply(Collection::Reports, Change::Put(report(6, "2026-01-01T00:25:00Z", 2)), now, late);
    assert!(store.is_complete(), "the pod goes on");
}

#[test]
fn the_time_in_a_report_is_no_reason_to_remove_it() {
    let now = Instant::now();
    let mut store = listed(now);
    let mut other = report(5, "2025-01-01T00:00:00Z", 2);
    other["metadata"]["name"] = "pod-b".into();
    store.apply(Collection::Reports, Change::Put(other), now, clock());
    assert!(store.dead_reports(now).is_empty());
    let later = now + LIFETIME + Duration::from_secs(1);
    store.turn(later);
    let dead = store.dead_reports(later);
    assert_eq!(dead.iter().map(|meta| meta.name.as_str()).collect::<Vec<_>>(), ["pod-b"]);
}

#[test]
fn a_stale_version_of_a_policy_is_overlooked() {
    let now = Instant::now();
    let mut store = listed(now);
    store.apply(Collection::ClusterPolicies, Change::Put(policy(UID, 4, 1)), now, clock());
    list(&mut store, Collection::ClusterPolicies, vec![policy(UID, 9, 1)], now, clock());
    assert!(store.take_dirty().is_empty());
    assert_eq!(store.policy(&id()).map(|tracked| tracked.object.meta.generation), Some(2));
}

#[test]
fn a_namesake_made_later_starts_clean() {
    let now = Instant::now();
    let mut store = listed(now);
    store.policy_mut(&id()).expect("is there").last = Some(PolicyStatus::default());
    store.apply(Collection::ClusterPolicies, Change::Put(policy("another", 9, 1)), now, clock());
    let tracked = store.policy(&id()).expect("is there");
    assert_eq!((tracked.object.meta.uid.as_str(), &tracked.last), ("another", &None));
    store.apply(Collection::ClusterPolicies, Change::Gone(policy(UID, 10, 2)), now, clock());
    assert!(store.policy(&id()).is_some(), "the end of the earlier one is not that of the later one");
}

#[test]
fn a_policy_that_goes_is_marked_however_it_goes() {
    let now = Instant::now();
    let mut moved = policy(UID, 9, 3);
    moved["spec"]["policyServer"] = "other".into();
    let forgotten = PolicyObject::of(Kind::ClusterPolicy, &policy(UID, 5, 2)).expect("a policy");
    let changes = [Change::Gone(policy(UID, 9, 2)), Change::Listed(BTreeSet::new()), Change::Put(moved)];
    for change in changes.into_iter().map(Some).chain([None]) {
        let mut store = listed(now);
        match change {
            Some(change) => store.apply(Collection::ClusterPolicies, change, now, clock()),
            None => store.forget(&forgotten),
        }
        assert_eq!((store.policies().count(), store.take_dirty()), (0, BTreeSet::from([id()])));
        store.apply(Collection::ClusterPolicies, Change::Gone(policy(UID, 9, 2)), now, clock());
        assert!(store.take_dirty().is_empty(), "it was gone already");
    }
}

#[test]
fn a_list_counts_one_by_one_and_at_its_end_what_is_not_in_it_is_gone() {
    let now = Instant::now();
    let mut store = listed(now);
    let other = "0d4a77c1-b2e0-4e17-8000-000000000002";
    let mut second = policy(other, 5, 1);
    second["metadata"]["name"] = "b".into();
    let second_id: PolicyId = "cluster/b".parse().expect("an id");
    store.apply(Collection::ClusterPolicies, Change::Read(second), now, clock());
    assert_eq!((store.policies().count(), store.take_dirty()), (2, BTreeSet::from([second_id])));
    store.apply(Collection::Policies, Change::Listed(BTreeSet::new()), now, clock());
    assert_eq!(store.policies().count(), 2, "the list of the other kind");
    store.apply(Collection::ClusterPolicies, Change::Listed(BTreeSet::from([other.to_owned()])), now, clock());
    assert_eq!((store.policies().count(), store.take_dirty()), (1, BTreeSet::from([id()])));
    store.apply(Collection::Reports, Change::Listed(BTreeSet::new()), now, clock());
    assert_eq!((store.replicas()[0].report.is_some(), store.take_dirty().len()), (false, 1));
}

#[test]
fn the_pods_of_a_list_count_when_it_was_read_to_its_end() {
    let now = Instant::now();
    let mut store = listed(now);
    let named = |name: &str, pod: &str| {
        let mut slice = slice(&[(pod, pod, true)]);
        (slice["metadata"]["name"], slice["metadata"]["uid"]) = (name.into(), name.into());
        slice
    };
    // The list began again, and one of its slices is gone since.
    for slice in [named("a", "pod-b"), named("b", "pod-c"), named("b", "pod-d")] {
        store.apply(Collection::Endpoints, Change::Read(slice), now, clock());
        assert_eq!(store.replicas().iter().map(|replica| replica.pod).collect::<Vec<_>>(), ["pod-a"]);
    }
    assert!(store.take_dirty().is_empty());
    store.apply(Collection::Endpoints, Change::Listed(BTreeSet::from(["b".to_owned()])), now, clock());
    assert_eq!(store.replicas().iter().map(|replica| replica.pod).collect::<Vec<_>>(), ["pod-d"]);
    assert_eq!(store.take_dirty().len(), 1);
}

#[test]
fn of_a_policy_nothing_is_kept_but_what_is_decided_from_and_that_once() {
    let condition = |r#type: &str| {
        json!({"type": r#type, "status": "False", "reason": "QuotaExceeded", "message": format!("message of {type} ").repeat(40),
            "observedGeneration": 2, "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    let types = ["Ready", "Enforced", "Degraded", "WebhookConfigured"];
    let mut object = policy(UID, 5, 2);
    object["spec"]["settings"] = json!({"foreign": "x".repeat(1000)});
    object["status"] = json!({
        "conditions": types.into_iter().chain(["foreign"]).map(condition).collect::<Vec<_>>(),
        "foreign": "x".repeat(1000),
        "observedGeneration": 2,
    });
    let mut store = Store::new("default", LIFETIME, None);
    list(&mut store, Collection::ClusterPolicies, vec![object.clone()], Instant::now(), clock());
    store.apply(Collection::ClusterPolicies, Change::Put(object), Instant::now(), clock());
    let kept = format!("{:?}", store.policy(&id()).expect("is there"));
    for r#type in types {
        assert_eq!(kept.matches(&format!("message of {type} ")).count(), 40, "{type}");
    }
    assert!(!kept.contains("foreign"), "{kept}");
    assert!(size_of::<TrackedPolicy>() < 1200, "{} bytes before any text", size_of::<TrackedPolicy>());
}

#[test]
fn a_status_from_the_future_is_not_believed() {
    let mut store = Store::new("default", LIFETIME, None);
    let mut object = policy(UID, 5, 2);
    let condition = json!({"type": "Ready", "status": "True", "reason": "Active", "message": "",
        "observedGeneration": 99, "lastTransitionTime": "2026-01-01T00:00:00Z"});
    object["status"] = json!({"observedGeneration": 99, "conditions": [condition]});
    list(&mut store, Collection::ClusterPolicies, vec![object], Instant::now(), clock());
    assert_eq!(store.policy(&id()).map(|tracked| tracked.last.is_none()), Some(true));
}

#[test]
fn policies_of_another_installation_are_not_ours() {
    let mut object = policy(UID, 5, 2);
    object["spec"]["policyServer"] = "other".into();
    let mut store = Store::new("default", LIFETIME, None);
    list(&mut store, Collection::ClusterPolicies, vec![object], Instant::now(), clock());
    assert_eq!(store.policies().count(), 0);
}

#[test]
fn a_name_that_two_pods_have_is_there_once_and_the_ready_one_counts() {
    let now = Instant::now();
    let mut store = listed(now);
    let both = slice(&[("pod-a", "uid-a", false), ("pod-a", "uid-b", true), ("pod-c", "uid-c", false)]);
    store.apply(Collection::Endpoints, Change::Put(both), now, clock());
    let replicas: Vec<_> = store.replicas().iter().map(|r| (r.pod_uid.to_owned(), r.expected)).collect();
    assert_eq!(replicas, [("uid-b".to_owned(), true), ("uid-c".to_owned(), false)]);
}

fn summary(seconds: i64, checked: i64) -> AuditSummary {
    AuditSummary {
        scanned_at: jiff::Timestamp::from_second(seconds).expect("a time"),
        generation: 2,
        checked,
        violations: 0,
        errors: 0,
        examples: Vec::new(),
        unreadable: Vec::new(),
        message: String::new(),
        handled_request: String::new(),
    }
}

fn found(uid: &str, seconds: i64, checked: i64) -> Found {
    let summary = summary(seconds, checked);
    Found { policy: id(), uid: uid.to_owned(), news: News::Summary(summary) }
}

#[test]
fn a_summary_of_the_audit_is_written_when_it_says_something_new_or_an_interval_has_passed() {
    let mut store = Store { audit: Some(Duration::from_secs(100)), ..listed(Instant::now()) };
    let mut is_written = |found: Found| {
        store.audited(found);
        !store.take_dirty().is_empty()
    };
    assert!(is_written(found(UID, 0, 7)));
    assert!(!is_written(found(UID, 50, 7)), "only the time is another");
    assert!(is_written(found(UID, 51, 8)));
    assert!(is_written(found(UID, 151, 8)));
    assert!(!is_written(found("another", 999, 9)), "of an earlier policy of the same name");
    let requested = |seconds, by: &str| {
        let summary = AuditSummary { handled_request: by.to_owned(), ..summary(seconds, 8) };
        Found { news: News::Summary(summary), ..found(UID, seconds, 8) }
    };
    assert!(is_written(requested(152, "first")), "somebody waits for it");
    assert!(!is_written(requested(153, "first")));
    assert!(is_written(requested(154, "second")));
}

#[test]
fn a_request_for_a_scan_of_a_policy_that_is_not_served_is_handled_with_what_is_known() {
    let mut store = Store { audit: Some(Duration::from_secs(100)), ..listed(Instant::now()) };
    let unserved = |request: &str| {
        let at = jiff::Timestamp::from_second(500).expect("a time");
        Found { news: News::Unserved { request: request.to_owned(), at }, ..found(UID, 0, 0) }
    };
    store.audited(found(UID, 0, 7));
    store.take_dirty();
    store.audited(unserved(""));
    assert!(store.take_dirty().is_empty(), "nobody waits for it, and the findings stay");
    store.audited(unserved("now"));
    assert!(!store.take_dirty().is_empty());
    let told = store.policy(&id()).and_then(|policy| policy.audit.clone()).expect("a summary");
    assert_eq!((told.checked, told.scanned_at, told.handled_request.as_str()), (7, summary(0, 7).scanned_at, "now"));
    assert!(told.message.contains("does not serve the policy"), "{}", told.message);
    store.audited(unserved("now"));
    assert!(store.take_dirty().is_empty(), "it was told");
    store.audited(Found { news: News::Summary(told.clone()), uid: "another".to_owned(), ..unserved("later") });
    assert_eq!(store.policy(&id()).and_then(|policy| policy.audit.clone()), Some(told), "of an earlier policy");
}

#[test]
fn without_an_audit_its_summary_is_not_carried_on() {
    let now = Instant::now();
    let mut object = policy(UID, 5, 2);
    let condition = json!({"type": "Ready", "status": "True", "reason": "Active", "message": "", "observedGeneration": 2,
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    object["status"] = json!({"conditions": [condition], "audit": summary(0, 7)});
    let last = |audit| {
        let mut store = Store::new("default", LIFETIME, audit);
        list(&mut store, Collection::ClusterPolicies, vec![object.clone()], now, clock());
        store.policy(&id()).and_then(|tracked| tracked.last.clone()).expect("a status").audit
    };
    assert_eq!((last(None), last(Some(LIFETIME)).is_some()), (None, true));
}

#[test]
fn edits_and_requests_change_the_digest_of_the_policies() {
    let now = Instant::now();
    let mut store = listed(now);
    let first = store.policies_digest();
    assert!(first.is_some());
    store.apply(Collection::ClusterPolicies, Change::Put(policy(UID, 6, 2)), now, clock());
    assert_eq!(store.policies_digest(), first, "a status, for instance");
    let mut asked = policy(UID, 7, 2);
    asked["metadata"]["annotations"] = json!({"policies.portcullis.dev/audit-requested-at": "2026-01-01"});
    store.apply(Collection::ClusterPolicies, Change::Put(asked), now, clock());
    let second = store.policies_digest();
    assert_ne!(second, first);
    store.apply(Collection::ClusterPolicies, Change::Put(policy(UID, 8, 3)), now, clock());
    assert_ne!(store.policies_digest(), second);
    assert_eq!(Store::new("default", LIFETIME, None).policies_digest(), None, "nothing was listed yet");
}
