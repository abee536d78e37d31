//! The API server is unreachable or refuses requests for a while.

use std::thread;
use std::time::Duration;

use portcullis_e2e::{
    NEW_TOKEN, POLICY_SERVER_ACCOUNT, PodSetup, Policy, Program, Proxy, Request, Rule, eventually_within,
    one_round_in_time,
};
use serde_json::{Value, json};

use crate::cluster;
use crate::stage::{Replica, SOON, Stage, status_and_reason};
use crate::states::{Says, unreachable};

/// A stage with a replica whose reporter calls through a proxy, and a policy that is Active, with its object.
fn active_behind_proxy(name: &str) -> (Stage<'static>, Proxy, Replica, Policy, Value) {
    let stage = Stage::new(cluster(), name);
    let proxy = Proxy::start(cluster());
    let replica = stage.replica_with(PodSetup::default().through(Program::Reporter, proxy.address()));
    stage.wait_ready();
    let (policy, object) = stage.policy("labels");
    replica.says(&object, Says::Current);
    stage.word(&policy, "Active");
    (stage, proxy, replica, policy, object)
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r01_status_is_right_within_seconds_of_the_api_server_s_return() {
    let (stage, proxy, replica, policy, object) = active_behind_proxy("away");
    one_round_in_time(|round| {
        let (says, word, degraded) = match round % 2 {
            0 => (unreachable(), "Error", "True/RegistryUnreachable"),
            _ => (Says::Current, "Active", "False/AsExpected"),
        };
        proxy.close();
        thread::sleep(Duration::from_secs(1));
        replica.says(&object, says);
        // Longer than the Lease, so that a leader must be found again.
        thread::sleep(Duration::from_secs(18));
        // Readiness does not depend on the API server.
        replica.wait_ready();
        let warnings = replica.logs("WARN");
        assert_eq!(warnings.len(), warnings.iter().collect::<std::collections::BTreeSet<_>>().len());
        let back = stage.installation.moment();
        proxy.open();
        let in_time = stage.installation.recovers_since(&back, "a status that is right", || {
            stage.installation.object(&policy).filter(|found| status_and_reason(found, "Ready").ends_with(word))
        });
        assert_eq!(status_and_reason(&stage.word(&policy, word), "Degraded"), degraded);
        in_time.map(drop)
    });
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r08_withdrawn_rights_make_the_status_stale_and_given_back_right() {
    let stage = Stage::new(cluster(), "withdrawn");
    let quick = || {
        let setup = PodSetup::default().flag(Program::Reporter, "--heartbeat", "1s");
        setup.flag(Program::Reporter, "--report-lifetime", "4s")
    };
    let replica = stage.replica_with(quick());
    stage.wait_ready();
    let (policy, object) = stage.policy("labels");
    replica.says(&object, Says::Current);
    stage.word(&policy, "Active");
    let namespace = stage.installation.namespace().to_owned();
    let path = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings");
    let api = stage.installation.api();
    let mut binding = api.find(&format!("{path}/portcullis-reporter")).unwrap();
    api.delete(&format!("{path}/portcullis-reporter"), None).unwrap().expect("rights withdrawn");
    let found = stage.word(&policy, "Degraded");
    assert_eq!(status_and_reason(&found, "Degraded"), "True/ReportStale");
    replica.wait_ready();
    eventually_within(SOON, "one log line", || (replica.warnings("write the report").len() == 1).then_some(()));
    binding["metadata"] = json!({ "name": "portcullis-reporter", "namespace": namespace });
    let back = stage.installation.moment();
    api.create(&path, &binding).unwrap().expect("rights given back");
    let found = stage.word_in_time(&back, &policy, "Active");
    assert_eq!(status_and_reason(&found, "Degraded"), "False/AsExpected");
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r09_r10_a_refused_token_is_read_again_and_a_new_one_is_used() {
    let stage = Stage::new(cluster(), "token");
    let replica = stage.replica();
    stage.wait_ready();
    let (policy, object) = stage.policy("labels");
    replica.says(&object, Says::Current);
    stage.word(&policy, "Active");
    let good = stage.installation.token(POLICY_SERVER_ACCOUNT, &replica.pod);
    replica.pod.put_token("worth nothing");
    // A running reporter uses its token for up to a minute; one that starts has only the bad one.
    replica.pod.kill(Program::Reporter);
    replica.says(&object, unreachable());
    let refused = "portcullis_reporter_api_failures_total{call=\"write the report\",code=\"401\"}";
    eventually_within(SOON, "a refusal", || {
        let (_, text) = replica.pod.probe(Program::Reporter, "/metrics")?;
        text.contains(refused).then_some(())
    });
    let restarts = replica.pod.restarts(Program::Reporter);
    replica.pod.put_token(&good);
    stage.word(&policy, "Error");
    assert_eq!(replica.pod.restarts(Program::Reporter), restarts, "no restart was needed");
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r09_a_running_reporter_uses_a_new_token_within_a_minute() {
    let (stage, proxy, replica, policy, object) = active_behind_proxy("rotated");
    let before = replica.pod.process(Program::Reporter);
    // The renewals of the Lease are calls enough.
    let used = stage.installation.assert_new_token_is_used(POLICY_SERVER_ACCOUNT, &replica.pod, &proxy, |_| true);
    assert!(matches!(used.status, Some(200..300)), "{used:?}");
    replica.says(&object, unreachable());
    stage.word(&policy, "Error");
    assert_eq!(replica.pod.process(Program::Reporter), before, "no restart was needed");
}

/// How long the API server refuses the reporter, counted from the first refusal.
const REFUSED: Duration = Duration::from_secs(20);
/// The most writes of the report in that time: the pauses double from an eighth of a second at least to 7.5 seconds at least.
const MOST_WRITES: usize = 8;
/// The most calls for the Lease in that time: their pauses double from an eighth of a second at least to one second at least.
const MOST_LEASE_CALLS: usize = 23;

#[test]
#[ignore = "starts a cluster"]
fn fault_r10_a_refused_token_is_read_again_at_once_and_then_calls_become_rare() {
    let (stage, proxy, replica, policy, object) = active_behind_proxy("refused");
    let before = replica.pod.process(Program::Reporter);
    let writes = || proxy.requests_of("PATCH", "/replicareports/");
    let refusals = |calls: Vec<Request>| calls.into_iter().filter(|call| call.status == Some(401)).collect::<Vec<_>>();

    // One refusal is enough for the reporter to read the file: the same call is made again with the token that is there now.
    one_round_in_time(|round| {
        // It reads the file at most once in five seconds.
        thread::sleep(Duration::from_secs(6));
        let before = writes().len();
        let token = stage.installation.token(POLICY_SERVER_ACCOUNT, &replica.pod);
        proxy.rule(Rule::on("PATCH", "/replicareports/").times(1).answer(401, "Unauthorized"));
        replica.pod.put_token(&token);
        replica.says(&object, if round % 2 == 0 { unreachable() } else { Says::Current });
        let tries = eventually_within(SOON, "a write after the one that is refused", || {
            let tries = writes().split_off(before);
            tries.get(1).is_some_and(|second| second.status == Some(200)).then_some(tries)
        });
        let have_it: Vec<_> = tries.iter().map(|write| (write.status, write.bearer == token)).collect();
        let is_read = have_it.starts_with(&[(Some(401), false), (Some(200), true)]);
        if is_read { Ok(()) } else { Err(format!("which tries had the new token: {have_it:?}")) }
    });

    // The token ends with the account that it is bound to. No other is there, so reading the file again does not help.
    let api = stage.installation.api();
    let accounts = format!("/api/v1/namespaces/{}/serviceaccounts", stage.installation.namespace());
    let account = format!("{accounts}/{POLICY_SERVER_ACCOUNT}");
    let refused_before = refusals(writes()).len();
    api.delete(&account, None).unwrap().expect("the end of the account");
    // Each of the changes is to be written. An API server remembers for ten seconds that a token is valid.
    let mut changes = 0;
    let first = eventually_within(SOON, "a write that is refused", || {
        changes += 1;
        replica.says(&object, if changes % 2 == 0 { unreachable() } else { Says::Current });
        thread::sleep(Duration::from_millis(500));
        refusals(writes()).get(refused_before).cloned()
    });
    replica.says(&object, Says::Failed(0, "NotFound", "gone".to_owned(), false));
    let within = |calls: Vec<Request>| {
        calls.into_iter().filter(|call| call.at >= first.at && call.at < first.at + REFUSED).collect::<Vec<_>>()
    };
    eventually_within(SOON, "the end of the time", || (first.at.elapsed() >= REFUSED).then_some(()));
    let tries = within(writes());
    let answers: Vec<_> = tries.iter().map(|write| write.status).collect();
    assert!(tries.len() >= 2 && tries.len() <= MOST_WRITES, "{answers:?} in {REFUSED:?}");
    assert!(answers.iter().all(|status| matches!(status, Some(401) | None)), "{answers:?}");
    let lease_calls = within(refusals(proxy.requests())).iter().filter(|call| call.path.contains("/leases/")).count();
    assert!(lease_calls <= MOST_LEASE_CALLS, "{lease_calls} calls for the Lease in {REFUSED:?}");
    // The writes become rarer with each refusal, up to one in eight seconds at least.
    let longest = || {
        let refused: Vec<_> = refusals(writes()).into_iter().filter(|write| write.at >= first.at).collect();
        refused.windows(2).map(|pair| pair[1].at - pair[0].at).max().filter(|pause| *pause >= Duration::from_secs(7))
    };
    eventually_within(SOON, "a long pause", longest);
    // Each try is counted.
    eventually_within(SOON, "the metric", || {
        let counted = replica.metric("portcullis_reporter_api_failures_total{call=\"write the report\",code=\"401\"}");
        (counted == refusals(writes()).len() as f64).then_some(())
    });
    assert_eq!(replica.warnings("failed to write the report").len(), 1, "one log line");

    let again = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": POLICY_SERVER_ACCOUNT } });
    api.create(&accounts, &again).unwrap().expect("the account");
    let third = stage.installation.token(POLICY_SERVER_ACCOUNT, &replica.pod);
    let replaced = stage.installation.moment();
    replica.pod.put_token(&third);
    eventually_within(SOON, "the newest state", || {
        (status_and_reason(&stage.installation.object(&policy)?, "Degraded") == "True/NotFound").then_some(())
    });
    NEW_TOKEN.assert("the new token", &replaced, &stage.installation.moment());
    let last = writes().pop().expect("writes");
    assert!(last.bearer == third && last.body.contains("NotFound"), "{:?} {}", last.status, last.body);
    assert_eq!(replica.pod.process(Program::Reporter), before, "no restart was needed");
}
