//! Leaders whose clock differs from those of other pods.

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

/// A leader that has listed these pods, all of them ready, and reports with these heartbeats, by this clock.
fn leader(pods: &[(&str, &str)], now: Instant, clock: Timestamp) -> Store {
    let mut store = Store::new("default", LIFETIME, None);
    let uids: Vec<_> = pods.iter().map(|(pod, _)| format!("uid-of-{pod}")).collect();
    let ready: Vec<_> = pods.iter().zip(&uids).map(|((pod, _), uid)| (*pod, uid.as_str(), true)).collect();
    let reports = pods.iter().map(|(pod, heartbeat)| report_of(pod, 5, heartbeat)).collect();
    for (collection, objects) in [
        (Collection::Policies, vec![]),
        (Collection::ClusterPolicies, vec![policy(UID, 5, 2)]),
        (Collection::Reports, reports),
        (Collection::Endpoints, vec![slice(&ready)]),
    ] {
        list(&mut store, collection, objects, now, clock);
    }
    store
}

fn report_of(pod: &str, version: u64, heartbeat: &str) -> Value {
    let mut report = report(version, heartbeat, 2);
    report["metadata"]["name"] = pod.into();
    report["metadata"]["uid"] = format!("report-of-{pod}").into();
    report["spec"]["podUID"] = format!("uid-of-{pod}").into();
    report
}

/// The pods whose reports do not count.
fn stale(store: &Store) -> Vec<&str> {
    let is_stale = |replica: &&Replica<'_>| replica.report.is_none_or(|heard| heard.is_stale);
    store.replicas().iter().filter(is_stale).map(|replica| replica.pod).collect()
}

#[test]
fn a_leader_whose_clock_is_ahead_takes_no_pod_for_silent() {
    let (now, ahead) = (Instant::now(), clock() + HOUR);
    let (second, later) = (Duration::from_secs(1), now + RETURN);
    let mut store = leader(&[("a", "2026-01-01T00:00:00Z"), ("b", "2026-01-01T00:00:05Z")], now, ahead);
    store.turn(later);
    assert!(store.is_complete());
    assert_eq!(stale(&store), [""; 0]);
    // They still have to go on.
    store.turn(now + LIFETIME + second);
    assert_eq!(stale(&store), ["a", "b"]);

    // Its own report has its own time.
    let pods = [("a", "2026-01-01T00:00:00Z"), ("b", "2026-01-01T00:00:05Z"), ("own", "2026-01-01T01:00:00Z")];
    let mut store = leader(&pods, now, ahead);
    store.turn(later);
    assert_eq!(stale(&store), [""; 0]);
    store.apply(Collection::Reports, Change::Put(report_of("b", 6, "2026-01-01T00:01:05Z")), later, ahead);
    assert_eq!(stale(&store), [""; 0], "one goes on before the other");
}

#[test]
fn a_report_that_is_older_than_those_of_most_pods_does_not_count() {
    let now = Instant::now();
    let pods = [("a", "2026-01-01T00:00:00Z"), ("b", "2026-01-01T01:00:00Z"), ("c", "2026-01-01T01:00:05Z")];
    for clock in [clock() + HOUR, clock() + HOUR * 2] {
        let mut store = leader(&pods, now, clock);
        store.turn(now + RETURN);
        assert_eq!(stale(&store), ["a"], "{clock}");
    }
    // A single one tells nothing about the clock.
    let mut store = leader(&pods[..1], now, clock() + HOUR);
    store.turn(now + RETURN);
    assert_eq!(stale(&store), ["a"]);
}
