//! The API server is unreachable or refuses requests for a while.

use std::thread;
use std::time::Duration;

use portcullis_e2e::{POLICY_SERVER_ACCOUNT, PodSetup, Program, Proxy, eventually_within, one_round_in_time};
use serde_json::json;

use crate::cluster;
use crate::stage::{SOON, Stage, told};
use crate::states::{Says, unreachable};

#[test]
#[ignore = "starts a cluster"]
fn fault_r01_status_is_right_within_seconds_of_the_api_server_s_return() {
    let stage = Stage::new(cluster(), "away");
    let proxy = Proxy::start(cluster());
    let replica = stage.replica_with(PodSetup::default().through(Program::Reporter, proxy.address()));
    stage.wait_ready();
    let (policy, object) = stage.policy("labels");
    replica.says(&object, Says::Current);
    stage.word(&policy, "Active");
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
            stage.installation.object(&policy).filter(|found| told(found, "Ready").ends_with(word))
        });
        assert_eq!(told(&stage.word(&policy, word), "Degraded"), degraded);
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
    assert_eq!(told(&found, "Degraded"), "True/ReportStale");
    replica.wait_ready();
    eventually_within(SOON, "one log line", || (replica.warnings("write the report").len() == 1).then_some(()));
    binding["metadata"] = json!({ "name": "portcullis-reporter", "namespace": namespace });
    api.create(&path, &binding).unwrap().expect("rights given back");
    stage.word(&policy, "Active");
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
