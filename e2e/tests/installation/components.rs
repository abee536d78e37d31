//! Components that are stopped and started again.

use portcullis_e2e::{Cluster, Component, Options, eventually};

#[test]
#[ignore = "starts a cluster"]
fn an_api_server_ends_and_comes_back_and_the_controllers_go_on() {
    let cluster = Cluster::start(&Options { api_servers: 2, ..Options::default() }).unwrap();
    let at = |number: u8| ["get", "namespaces", "--context", if number == 1 { "api-server-1" } else { "api-server-2" }];

    cluster.stop(Component::ApiServer(1));
    assert!(!cluster.kubectl(at(1)).is_ok());
    cluster.kubectl(at(2)).expect("the other one");
    // The service account of a namespace is created by a controller.
    cluster.kubectl(["create", "namespace", "later", "--context=api-server-2"]).expect("a namespace");
    eventually("an account", || cluster.api().get("/api/v1/namespaces/later/serviceaccounts/default"));

    cluster.start_again(Component::ApiServer(1));
    cluster.kubectl(at(1)).expect("the first one again");
    cluster.kill(Component::Etcd);
    cluster.start_again(Component::Etcd);
    eventually("a namespace", || cluster.kubectl(["create", "namespace", "last"]).is_ok().then_some(()));
}

#[test]
#[ignore = "starts a cluster"]
fn tests_run_in_a_network_of_their_own() {
    // Otherwise the machine's own loopback device would have extra routes for a while.
    if std::env::var_os("PORTCULLIS_BIN_DIR").is_some() {
        Cluster::require_own_network();
    }
}
