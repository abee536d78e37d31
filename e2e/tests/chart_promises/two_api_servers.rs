//! An installation in a cluster with two API servers.

use std::time::Duration;

use portcullis_e2e::{Component, Release, Site, eventually_within};
use serde_json::json;

use crate::stage::{own_cluster, turn};

#[test]
#[ignore = "starts a cluster"]
fn fault_w09_what_helm_installs_is_ready_when_both_api_servers_call_and_goes_on_with_one() {
    let _turn = turn();
    if own_cluster("fault_w09").is_none() {
        return;
    }
    // It needs a cluster of its own, because that of the other tests has one API server.
    let site = Site::with_api_servers(2);
    let cluster = site.own_cluster().expect("it is our own");
    let release = Release::new(&site, "two");
    release.without_canary("it asks each API server by itself, and stops one of them");
    let small = json!({ "server": { "replicas": 1 }, "controller": { "replicas": 1 } });
    release.install(&small).expect("an installation");
    let shop = release.make_namespace("shop");
    let is_denied = |server, text: &str| release.api().at(server).denies_configmap(&shop, text);
    let configmaps = release.cluster_policy("first").on(&["configmaps"]).denying("no configmaps");
    for server in [1, 2] {
        assert_eq!(is_denied(server, "no configmaps"), Some(false), "there is no policy yet");
    }
    release.apply_ready(std::slice::from_ref(&configmaps));
    for server in [1, 2] {
        assert_eq!(
            is_denied(server, "no configmaps"),
            Some(true),
            "Ready was said, and API server {server} does not call"
        );
    }

    // The pods go on with the API server that is left, and do not wait for the other.
    cluster.stop(Component::ApiServer(2));
    let edited = configmaps.denying("none at all");
    let secrets = release.cluster_policy("second").on(&["secrets"]).denying("no secrets");
    release.apply_ready(&[edited, secrets]);
    assert_eq!(is_denied(1, "none at all"), Some(true));

    cluster.start_again(Component::ApiServer(2));
    eventually_within(Duration::from_secs(180), "a denial by the one that came back", || {
        is_denied(2, "none at all").filter(|denied| *denied)
    });
}
