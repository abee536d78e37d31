//! Row W09: two API servers, one of which is late.

use std::time::Duration;

use portcullis_e2e::{Cluster, Component, Options, never};
use serde_json::json;

use crate::{denying, hurried, installation};

#[test]
#[ignore = "starts a cluster"]
fn fault_w09_ready_means_that_both_api_servers_call() {
    Cluster::demand_own_network();
    let cluster = Cluster::start(&Options { api_servers: 2, ..Options::default() }).unwrap();
    let installation = installation(&cluster, "both", 1, hurried());
    let namespace = installation.make_namespace("shop");
    let (policy, text) = denying(&installation);
    let is_denied = |server: u8| {
        let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "generateName": "one-" } });
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        let reply = installation.api().at(server).create(&path, &object).unwrap();
        reply.body["message"].as_str().is_some_and(|said| said.contains(&text))
    };
    for server in [1, 2] {
        assert!(!is_denied(server), "there is no policy yet");
    }

    // While the second one stands still nobody knows whether it calls, whatever the first one does.
    cluster.pause(Component::ApiServer(2));
    installation.apply(&policy).expect("the policy");
    never(Duration::from_secs(8), "a Ready policy", || {
        let object = installation.api().at(1).get(&policy.path()).unwrap_or_default();
        let ready = portcullis_e2e::condition(&object, "Ready").cloned()?;
        (ready["status"] == "True").then_some(ready)
    });
    cluster.resume(Component::ApiServer(2));
    installation.wait_for(&policy, "Ready", "True");
    for server in [1, 2] {
        assert!(is_denied(server), "Ready was said, and API server {server} does not call");
    }
    drop(installation);
}
