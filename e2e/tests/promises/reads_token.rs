//! Policies that read objects of the cluster while the token of the policy server is replaced.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use portcullis_e2e::{POLICY_SERVER_ACCOUNT, PodSetup, Program, Proxy, Request, StopOnDrop};
use serde_json::json;

use crate::installation;
use crate::reads::{KIND, asks, limit_range, raw, try_config_map, wait_for_refusal};

#[test]
#[ignore = "starts a cluster"]
fn fault_r09_objects_are_read_with_a_new_token_within_a_minute() {
    let installation = installation("new-token", 0);
    let proxy = Proxy::start(installation.cluster());
    let pod = installation.add_replica_with(PodSetup::default().through(Program::Loader, proxy.address()));
    pod.wait_ready();
    let canary = installation.own_canary();
    let shop = installation.make_namespace("shop");
    limit_range(&installation, &shop, "first", &shop);
    let get = json!({"api_version": "v1", "kind": KIND, "name": "first", "namespace": shop, "disable_cache": true});
    installation.apply_ready(&[asks(
        &installation,
        &shop,
        "new-token",
        &json!([raw("kubernetes/get_resource", &get)]),
    )]);
    let found = r#""limits":[{"#;
    wait_for_refusal(&installation, &shop, "asked", found);
    let process = pod.process(Program::Loader);

    let path = format!("/api/v1/namespaces/{shop}/limitranges/first");
    let is_read = |call: &Request| call.method == "GET" && call.path == path;
    let is_done = AtomicBool::new(false);
    let used = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::SeqCst) {
                try_config_map(&installation, &shop, "asked");
                thread::sleep(Duration::from_millis(200));
            }
        });
        let _stop = StopOnDrop(&is_done);
        installation.assert_new_token_is_used(POLICY_SERVER_ACCOUNT, &pod, &proxy, is_read)
    });
    assert_eq!(used.status, Some(200));
    wait_for_refusal(&installation, &shop, "asked", found);
    assert_eq!(pod.process(Program::Loader), process, "no restart was needed");
    canary.end();
}
