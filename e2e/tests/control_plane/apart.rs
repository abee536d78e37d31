//! A cluster works with the real kubectl, and does not share anything with another cluster.

use portcullis_e2e::{Cluster, Options, VERSION, eventually};

use crate::{all_running, cluster, fresh, is_routed};

#[test]
#[ignore = "starts a cluster"]
fn kubectl_makes_a_namespace() {
    let cluster = cluster();
    let version = cluster.kubectl(["version", "--output=json"]).json("the version");
    assert_eq!(
        (&version["serverVersion"]["gitVersion"], &version["clientVersion"]["gitVersion"]),
        (&VERSION.into(), &VERSION.into())
    );

    cluster.kubectl(["create", "namespace", "shop"]).expect("a namespace");
    let phase = cluster.kubectl(["get", "namespace", "shop", "--output=jsonpath={.status.phase}"]);
    assert_eq!(phase.expect("the namespace"), "Active");

    let twice = cluster.kubectl(["create", "namespace", "shop"]);
    assert!(!twice.is_ok() && twice.stderr.contains("already exists"), "{twice:?}");
}

#[test]
#[ignore = "starts a cluster"]
fn two_clusters_know_nothing_of_each_other() {
    let (one, two) = (fresh(), cluster());
    assert_ne!(one.api_servers(), two.api_servers());
    one.kubectl(["create", "namespace", "apart"]).expect("a namespace");
    assert!(!two.kubectl(["get", "namespace", "apart"]).is_ok());
    // Each has an authority of its own, so an administrator of one does not even trust the other.
    let stranger = two.kubectl_as(
        &one.kubeconfig(),
        ["get", "namespaces", "--server", &format!("https://{}", two.api_servers()[0])],
        "",
    );

    assert!(stranger.stderr.contains("certificate"), "{stranger:?}");

    let folder = one.folder().to_owned();
    let seen = all_running().into_iter().find(|seen| seen.kubeconfig == one.kubeconfig()).unwrap();
    drop(one);
    assert!(!folder.exists() || seen.has_successor().unwrap());
    two.kubectl(["get", "namespaces"]).expect("the other cluster goes on");
}

#[test]
#[ignore = "starts a cluster"]
fn two_api_servers_are_one_cluster() {
    if !is_routed(cluster()) {
        return;
    }
    let cluster = Cluster::start(&Options { api_servers: 2, ..Options::default() }).unwrap();
    cluster.kubectl(["create", "namespace", "shop", "--context=api-server-1"]).expect("a namespace");
    cluster
        .kubectl(["get", "namespace", "shop", "--context=api-server-2"])
        .expect("the namespace at the other API server");

    let get = ["get", "endpointslice", "kubernetes", "--output=json"];
    let slice = cluster.kubectl(get).json("the addresses of the API servers");
    let mut published: Vec<_> =
        slice["endpoints"].as_array().unwrap().iter().map(|one| one["addresses"][0].as_str().unwrap()).collect();
    published.sort_unstable();
    let servers = cluster.api_servers();
    assert_eq!(published, servers.iter().map(|server| server.ip().to_string()).collect::<Vec<_>>());
    assert_eq!(slice["ports"][0]["port"], servers[0].port());
}

#[test]
#[ignore = "starts a cluster"]
fn the_audit_log_tells_who_asked_for_what() {
    let cluster = cluster();
    cluster.kubectl(["create", "namespace", "audited"]).expect("a namespace");
    let is_ours = |event: &serde_json::Value| event["verb"] == "create" && event["objectRef"]["name"] == "audited";
    // The log is written after the answer.
    let event = eventually("the event", || cluster.audit_events("audited").into_iter().find(is_ours));
    assert_eq!(event["user"]["username"], "admin");
}
