//! Single calls to the API server that are refused, slow, or cut.

use std::time::Duration;

use portcullis_e2e::{PodSetup, Program, Proxy, Rule, eventually_within, never, never_lasting};
use portcullis_testkit::Bound;
use serde_json::json;

use crate::cluster;
use crate::stage::{HELD, SOON, Stage, status_and_reason};
use crate::states::{Says, unreachable};

/// Makes a stage with one replica, whose reporter uses a proxy, and an Active policy.
macro_rules! stage {
    ($name:literal, $proxy:ident, $stage:ident, $replica:ident, $policy:ident, $object:ident, $setup:expr) => {
        let $proxy = Proxy::start(cluster());
        let $stage = Stage::new(cluster(), $name);
        let setup: PodSetup = $setup;
        let $replica = $stage.replica_with(setup.through(Program::Reporter, $proxy.address()));
        $stage.wait_ready();
        let ($policy, $object) = $stage.policy("labels");
        $replica.says(&$object, Says::Current);
        $stage.word(&$policy, "Active");
    };
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r02_a_busy_api_server_is_left_alone_as_long_as_it_asks_and_the_last_state_wins() {
    stage!("busy", proxy, stage, replica, policy, object, PodSetup::default());
    proxy.rule(
        Rule::on("PATCH", "/replicareports/").times(1).answer(429, "too many requests").header("retry-after", "20"),
    );
    // The leader writes statuses and events in ways of their own. Their first pause would be a quarter of a second.
    let others = [("PATCH", "/status?"), ("POST", "/events")];
    for (method, part) in others {
        proxy.rule(Rule::on(method, part).times(1).answer(429, "too many requests").header("retry-after", "8"));
    }
    let writes = || proxy.requests_of("PATCH", "/replicareports/");
    replica.says(&object, unreachable());
    let refused = eventually_within(SOON, "the write that is refused", || {
        writes().iter().position(|write| write.status == Some(429))
    });
    replica.says(&object, Says::Failed(0, "NotFound", "gone".to_owned(), false));
    let found = stage.word(&policy, "Error");
    assert_eq!(status_and_reason(&found, "Degraded"), "True/NotFound");
    let writes = writes().split_off(refused);
    assert!(writes[1].at - writes[0].at >= Duration::from_secs(20), "{writes:?}");
    assert!(!writes[0].body.contains("NotFound") && writes[1].body.contains("NotFound"), "{writes:?}");
    for (method, part) in others {
        let calls = eventually_within(SOON, &format!("a call of {part} after the one that is refused"), || {
            let calls = proxy.requests_of(method, part);
            let refused = calls.iter().position(|call| call.status == Some(429))?;
            calls.get(refused..refused + 2).map(<[_]>::to_vec)
        });
        assert!(calls[1].at - calls[0].at >= Duration::from_secs(8), "{calls:?}");
    }
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r03_a_write_that_conflicts_is_made_again_from_the_object_as_it_is_now() {
    stage!("conflict", proxy, stage, replica, policy, object, PodSetup::default());
    stage.settled(&policy, "Active");
    let writes = || proxy.requests_of("PATCH", "/status?");
    let before = writes().len();
    // The write is held until the object is another version, so the API server itself refuses it.
    proxy.rule(Rule::on("PATCH", "/status?").times(1).after(HELD));
    replica.says(&object, unreachable());
    eventually_within(SOON, "the write that is held", || (writes().len() > before).then_some(()));
    let patch = json!({ "metadata": { "annotations": { "theirs": "stays" } } });
    stage.installation.api().patch(&policy.path(), &patch).unwrap().expect("an annotation");
    assert_eq!(writes()[before].status, None, "the object has changed during the write");
    let found = stage.word(&policy, "Error");
    assert_eq!(found["metadata"]["annotations"]["theirs"], "stays");
    assert_eq!(writes()[before].status, Some(409), "the held write meets the newer object");
    assert!(replica.metric("portcullis_reporter_policy_status_conflicts_total") >= 1.0);
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r04_a_failed_or_cut_answer_is_tried_again_and_no_event_is_doubled() {
    stage!("cut", proxy, stage, replica, policy, object, PodSetup::default());
    let active = |events: &[(String, i64)]| events.iter().any(|(reason, count)| reason == "Active" && *count == 1);
    eventually_within(SOON, "the first events", || active(&stage.events(&object)).then_some(()));
    let posts = || proxy.requests_of("POST", "/events").len();
    let before = posts();
    for part in ["/replicareports/", "/status?", "/events"] {
        let method = if part == "/events" { "POST" } else { "PATCH" };
        proxy.rule(Rule::on(method, part).times(1).answer(500, "broken"));
        proxy.rule(Rule::on(method, part).times(1).answer(503, "not now"));
        proxy.rule(Rule::on(method, part).times(1).cut_answer());
    }
    replica.says(&object, unreachable());
    stage.word(&policy, "Error");
    let count = || {
        let events = stage.events(&object);
        events.iter().filter(|(reason, _)| reason == "RegistryUnreachable").map(|(_, count)| *count).collect::<Vec<_>>()
    };
    eventually_within(SOON, "the event", || (!count().is_empty()).then_some(()));
    eventually_within(SOON, "all tries", || (posts() >= before + 4).then_some(()));
    never_lasting(Duration::from_secs(1), "a second event", || (count() != [1]).then(count));
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r05_a_slow_api_server_makes_no_queue() {
    stage!("slow", proxy, stage, replica, policy, object, PodSetup::default());
    // Writes of the Lease are not delayed, so that the leader stays the leader.
    proxy.rule(Rule::on("PATCH", "/replicareports/").after(Duration::from_secs(30)));
    let before = proxy.requests_of("PATCH", "/replicareports/").len();
    for round in 0..100 {
        replica.says(&object, if round % 2 == 0 { unreachable() } else { Says::Current });
        std::thread::sleep(Duration::from_millis(50));
    }
    replica.says(&object, Says::Failed(0, "NotFound", "gone".to_owned(), false));
    let writes = || proxy.requests_of("PATCH", "/replicareports/").len() - before;
    eventually_within(SOON, "the first write", || (writes() > 0).then_some(()));
    // One write is under way, and only the newest of the others waits.
    never(Duration::from_secs(2), "a second write", || (writes() != 1).then(writes));
    eventually_within(SOON, "the slow one's end", || (writes() == 2).then_some(()));
    let last = proxy.requests_of("PATCH", "/replicareports/").pop().unwrap();
    assert!(last.body.contains("NotFound"), "the last state wins");
    drop(policy);
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r06_a_watch_that_is_cut_or_too_old_loses_nothing_and_flaps_nothing() {
    stage!("gone", proxy, stage, replica, policy, object, PodSetup::default());
    let version = || stage.installation.object(&policy).unwrap()["metadata"]["resourceVersion"].clone();
    let before = stage.settled(&policy, "Active")["metadata"]["resourceVersion"].clone();
    let error = json!({ "type": "ERROR", "object": {
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old",
    } });
    for watched in ["/policies?", "/clusterpolicies?", "/replicareports?", "/endpointslices?"] {
        let count = || proxy.requests_of("GET", watched).iter().filter(|list| list.path.contains("&limit=")).count();
        let lists = count();
        eventually_within(SOON, "a watch", || (proxy.inject(watched, &error) > 0).then_some(()));
        eventually_within(SOON, "a list", || (count() > lists).then_some(()));
        eventually_within(SOON, "a watch", || (proxy.watches(watched) > 0).then_some(()));
        let watches = || proxy.requests_of("GET", watched).iter().filter(|get| get.path.contains("&watch=")).count();
        let begun = watches();
        assert!(proxy.cut(watched) > 0);
        eventually_within(SOON, "a watch after the cut", || (watches() > begun).then_some(()));
    }
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(version(), before, "no flap");
    replica.says(&object, unreachable());
    stage.word(&policy, "Error");
    // Each of the watches brings what comes later.
    let (later, object) = stage.policy("later");
    replica.says(&object, Says::Current);
    stage.word(&later, "Active");
    let cluster_wide = stage.installation.cluster_policy("gone-later");
    stage.installation.apply(&cluster_wide).expect("the policy");
    let object = stage.confirm(&cluster_wide);
    replica.says(&object, Says::Current);
    stage.word(&cluster_wide, "Active");
    let second = stage.replica();
    stage.wait_ready();
    second.says(&object, unreachable());
    stage.word(&cluster_wide, "Degraded");
}

/// How long a watch may be silent in [`fault_r07_a_silent_watch_is_noticed_by_its_own_time_limit`].
const LIMIT: Duration = Duration::from_secs(25);

#[test]
#[ignore = "starts a cluster"]
fn fault_r07_a_silent_watch_is_noticed_by_its_own_time_limit() {
    stage!(
        "mute",
        proxy,
        stage,
        replica,
        policy,
        object,
        PodSetup::default().flag(Program::Reporter, "--watch-limit", humantime::format_duration(LIMIT))
    );
    // Waits for a new watch, which lasts for its whole time limit.
    let watches = || proxy.requests_of("GET", "/replicareports?&watch").len();
    let before = watches();
    eventually_within(SOON, "a new watch", || {
        (watches() > before && proxy.watches("/replicareports?") > 0).then_some(())
    });
    let held = stage.installation.moment();
    for part in ["/replicareports?", "/policies?"] {
        proxy.hold(part);
    }
    // Only the watches that are open now are held, and not those that follow.
    std::thread::sleep(Duration::from_millis(500));
    replica.says(&object, unreachable());
    never(Duration::from_secs(1), "a status", || {
        (status_and_reason(&stage.installation.object(&policy)?, "Ready") == "False/Error").then_some(())
    });
    let before = watches();
    eventually_within(SOON, "another watch", || (watches() > before).then_some(()));
    let bound = Bound { limit: LIMIT + Duration::from_secs(5), reason: "row R07's own time limit, and the next call" };
    bound.assert("another watch", &held, &stage.installation.moment());
    proxy.clear();
    stage.word(&policy, "Error");
}

#[test]
#[ignore = "starts a cluster"]
fn a_watch_of_reports_that_is_dead_makes_no_replica_silent() {
    let lifetime = Duration::from_secs(20);
    let setup = PodSetup::default().flag(Program::Reporter, "--heartbeat", "2s");
    let setup = setup.flag(Program::Reporter, "--report-lifetime", humantime::format_duration(lifetime));
    stage!("dead-watch", proxy, stage, replica, policy, object, setup);
    // A new watch lasts for its whole time limit.
    let watches = || proxy.requests_of("GET", "/replicareports?&watch").len();
    let before = watches();
    eventually_within(SOON, "a new watch", || {
        (watches() > before && proxy.watches("/replicareports?") > 0).then_some(())
    });
    proxy.hold("/replicareports?");
    let before = watches();
    never(lifetime + Duration::from_secs(5), "a replica that is taken to be silent", || {
        if watches() > before {
            // Only the first watch is dead, and not the next one.
            proxy.clear();
        }
        let found = stage.installation.object(&policy)?;
        (status_and_reason(&found, "Degraded") != "False/AsExpected").then_some(found)
    });
    assert!(watches() > before, "the next watch");
    replica.says(&object, unreachable());
    stage.word(&policy, "Error");
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r30_an_older_object_from_a_cache_takes_no_generation_back() {
    stage!("stale", proxy, stage, replica, policy, object, PodSetup::default());
    let older = stage.installation.object(&policy).unwrap();
    let newer = stage.edit(&policy, "monitor");
    replica.says(&newer, Says::Current);
    stage.word(&policy, "Active");
    let event = json!({ "type": "MODIFIED", "object": older });
    eventually_within(SOON, "a watch", || (proxy.inject("/v1alpha1/policies?", &event) > 0).then_some(()));
    never(Duration::from_secs(2), "a step back", || {
        let found = stage.installation.object(&policy)?;
        (found["status"]["observedGeneration"] != 2 || status_and_reason(&found, "Ready") != "True/Active")
            .then_some(found)
    });
    drop(object);
}
