//! An API server that takes half a minute for each call.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use portcullis_e2e::{PodSetup, Program, Proxy, Request, Rule, eventually_within};
use portcullis_testkit::Bound;
use serde_json::Value;

use crate::cluster;
use crate::stage::{Replica, SOON, Stage, status_and_reason};
use crate::states::{Says, unreachable};

/// How long the API server takes for each call, as in the row.
const DELAY: Duration = Duration::from_secs(30);
/// The number of policies: more than the statuses that may be under way.
const POLICIES: usize = 20;
/// The least number of changes of each policy.
const CHANGES: u32 = 100;
/// After this time, a call for the Lease has failed.
const LEASE_CALL: Duration = Duration::from_secs(8);

/// The kinds of delayed calls, by a part of their paths, and how many of each may be under way at a time.
const STATUSES: (&str, usize) = ("/status?", 16);
const EVENTS: (&str, usize) = ("/events", 1);
const REPORTS: (&str, usize) = ("/replicareports/", 1);

/// The calls of a kind since a moment.
fn calls(proxy: &Proxy, kind: &str, since: Instant) -> Vec<Request> {
    proxy.requests().into_iter().filter(|call| call.at >= since && call.path.contains(kind)).collect()
}

/// Asserts that each object has at most one call of this kind under way, and that all calls of this kind fit into its slots. Returns how
/// many are under way.
fn assert_bounded(proxy: &Proxy, (kind, slots): (&str, usize), since: Instant) -> usize {
    let all = calls(proxy, kind, since);
    let mut under_way = BTreeMap::new();
    for call in all.iter().filter(|call| call.status.is_none()) {
        let object = call.path.split('?').next().unwrap_or_default();
        *under_way.entry(object).or_insert(0) += 1;
    }
    assert!(under_way.values().all(|count| *count == 1), "several calls about one object: {under_way:?}");
    assert!(under_way.len() <= slots, "{under_way:?}");
    // A call takes the whole delay, and its slot is free again only after that.
    let turns = 1 + since.elapsed().as_secs() / DELAY.as_secs();
    assert!(all.len() as u64 <= slots as u64 * turns, "{} calls {kind} in {:?}", all.len(), since.elapsed());
    under_way.len()
}

/// Changes the states of all policies again and again, until all slots of these kinds have been seen full. No queue may build up meanwhile.
fn change_until_full(replica: &Replica, objects: &[Value], proxy: &Proxy, kinds: &[((&str, usize), Instant)]) {
    let (mut round, mut most) = (0, vec![0; kinds.len()]);
    eventually_within(SOON, "calls in all slots", || {
        let says = || if round % 2 == 0 { unreachable() } else { Says::Current };
        objects.iter().for_each(|object| replica.says(object, says()));
        round += 1;
        for (most, (kind, since)) in most.iter_mut().zip(kinds) {
            *most = assert_bounded(proxy, *kind, *since).max(*most);
        }
        let are_full = most.iter().zip(kinds).all(|(most, ((_, slots), _))| most == slots);
        (are_full && round >= CHANGES).then_some(())
    });
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r05_with_each_call_delayed_each_object_has_one_slot() {
    let proxy = Proxy::start(cluster());
    let stage = Stage::new(cluster(), "delayed");
    let replica = stage.replica_with(PodSetup::default().through(Program::Reporter, proxy.address()));
    stage.wait_ready();
    let (policies, objects): (Vec<_>, Vec<_>) =
        (0..POLICIES).map(|number| stage.policy(&format!("policy-{number:02}"))).unzip();
    objects.iter().for_each(|object| replica.says(object, Says::Current));
    policies.iter().for_each(|policy| drop(stage.word(policy, "Active")));
    let delay = |rules: &[(&str, &str)]| {
        rules.iter().for_each(|(method, part)| proxy.rule(Rule::on(method, part).after(DELAY)));
        Instant::now()
    };

    // The leader learns of changes from the report, so only statuses and events are delayed at first.
    let since = delay(&[("PATCH", STATUSES.0), ("POST", EVENTS.0), ("PATCH", EVENTS.0)]);
    change_until_full(&replica, &objects, &proxy, &[(STATUSES, since)]);
    let reports_since = delay(&[("PATCH", REPORTS.0)]);
    let kinds = [(STATUSES, since), (EVENTS, since), (REPORTS, reports_since)];
    change_until_full(&replica, &objects, &proxy, &kinds);

    let assert_all = || {
        for (kind, since) in kinds {
            assert_bounded(&proxy, kind, since);
        }
    };

    // With the calls for the Lease delayed as well, the reporter stops leading, and goes on to report.
    let all_since = delay(&[("", "")]);
    let last = || Says::Failed(0, "NotFound", "gone".to_owned(), false);
    objects.iter().for_each(|object| replica.says(object, last()));
    eventually_within(SOON, "the end of its leadership", || {
        assert_all();
        let for_the_lease = calls(&proxy, "/leases/", all_since).len() as u64;
        // One call that had begun, and one each time that a call has failed.
        let most = 2 + all_since.elapsed().as_secs() / LEASE_CALL.as_secs();
        assert!(for_the_lease <= most, "{for_the_lease} calls for the Lease in {:?}", all_since.elapsed());
        let is_over = replica.metric("portcullis_reporter_leader") == 0.0;
        (is_over && all_since.elapsed() > 2 * LEASE_CALL).then_some(())
    });
    replica.wait_ready();
    thread::sleep(Duration::from_secs(1));
    assert_all();

    // Calls that are under way end first. Then the last state of each policy is written.
    let back = stage.installation.moment();
    proxy.clear();
    for policy in &policies {
        eventually_within(SOON, "the last state", || {
            (status_and_reason(&stage.installation.object(policy)?, "Degraded") == "True/NotFound").then_some(())
        });
    }
    let bound = Bound { limit: DELAY + Duration::from_secs(12), reason: "calls under way, and then the usual time" };
    bound.assert("the last states", &back, &stage.installation.moment());
    assert_eq!(replica.pod.restarts(Program::Reporter), 0);
}
