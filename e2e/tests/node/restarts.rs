//! Parts of a cluster with a node are stopped and started again, and stored objects remain.

use portcullis_e2e::{Component, ExclusiveCluster, Options, eventually};

use crate::scene::Scene;

/// A cluster with a node and two API servers.
static CLUSTER: ExclusiveCluster =
    ExclusiveCluster::new(|| Options { node: true, api_servers: 2, ..Options::default() });

#[test]
#[ignore = "starts a cluster"]
fn containers_go_on_while_kubelet_and_containerd_restart_and_start_anew_with_the_node() {
    let cluster = CLUSTER.lock();
    let scene = Scene::new(&cluster, "node");
    scene.make_pod("one");
    let first = cluster.container_id("node", "one", "web");

    cluster.restart_kubelet();
    scene.wait_ready("one");
    assert_eq!((scene.restarts("one"), cluster.container_id("node", "one", "web")), (0, first));
    // The condition of the pod may still be that from before; the new kubelet needs a while to find its pods.
    let looks_up = || scene.exec("one", &["lookup", "kubernetes.default"]).is_ok().then_some(());
    eventually("the kubelet to know its pod again", looks_up);

    cluster.power_off_node();
    cluster.start_node();
    eventually("a restart of the container", || (scene.restarts("one") > 0).then_some(()));
    scene.wait_ready("one");
    eventually("a name", looks_up);
}

#[test]
#[ignore = "starts a cluster"]
fn a_whole_cluster_comes_back_with_what_it_stored() {
    let cluster = CLUSTER.lock();
    let scene = Scene::new(&cluster, "whole");
    scene.make_services();
    scene.make_pod("one");
    cluster.cut_all();
    assert!(!scene.kubectl(&["get", "pods"]).is_ok());
    cluster.start_all();
    eventually("a restart of the container", || (scene.restarts("one") > 0).then_some(()));
    scene.wait_ready("one");
    eventually("an answer of one", || (scene.get("one", "http://web") == "this is one").then_some(()));
}

#[test]
#[ignore = "starts a cluster"]
fn with_two_api_servers_a_node_goes_on_without_the_first() {
    let cluster = CLUSTER.lock();
    let scene = Scene::new(&cluster, "two");
    scene.make_services();
    scene.make_pod("one");
    cluster.stop(Component::ApiServer(1));
    let kubeconfig = cluster.kubeconfig();
    let second = |args: &[&str]| {
        let context = ["--context", "api-server-2", "--namespace", "two"];
        cluster.kubectl_as(&kubeconfig, context.into_iter().chain(args.iter().copied()), "")
    };
    second(&["delete", "pod", "one", "--timeout=180s"]).expect("the end of a pod");
    cluster.start_again(Component::ApiServer(1));
    scene.make_pod("two");
    eventually("an answer of two", || (scene.get("two", "http://web") == "this is two").then_some(()));
}
