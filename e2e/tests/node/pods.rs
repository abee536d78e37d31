//! Pods run, and can be reached by services, names and addresses.

use std::process::Command;
use std::sync::LazyLock;

use portcullis_e2e::{Cache, Cluster, Options, POD_IMAGE, Running, eventually};
use serde_json::json;

use crate::scene::Scene;

/// The cluster of the tests here, which ends with the process.
static SHARED: LazyLock<Cluster> =
    LazyLock::new(|| Cluster::start(&Options { node: true, ..Options::default() }).unwrap());

#[test]
#[ignore = "starts a cluster"]
fn a_pod_of_a_local_image_becomes_ready_by_its_probe() {
    let scene = Scene::new(&SHARED, "probe");
    scene.make_pod("one");
    let pod = scene.pod("one");
    assert_eq!(pod["spec"]["nodeName"], "node-1");
    let logs = scene.kubectl(&["logs", "one"]);
    assert!(logs.expect("its log").contains("asked for /ready"), "{logs:?}");
}

#[test]
#[ignore = "starts a cluster"]
fn services_have_names_and_reach_pods() {
    let scene = Scene::new(&SHARED, "service");
    scene.make_services();
    for pod in ["one", "two"] {
        scene.make_pod(pod);
    }
    // Names and addresses take a moment to reach the whole cluster.
    let lookup = |name: &str| {
        eventually(&format!("the name {name}"), || {
            let found = scene.exec("one", &["lookup", name]);
            found.is_ok().then(|| found.stdout.trim().to_owned())
        })
    };
    let address = |args: &[&str]| scene.kubectl(args).expect("an address").to_owned();
    let service = address(&["get", "service", "web", "--output=jsonpath={.spec.clusterIP}"]);
    for name in ["web", "web.service", "web.service.svc.cluster.local"] {
        assert_eq!(lookup(name), service, "{name}");
    }
    let mut pods: Vec<_> =
        ["one", "two"].map(|pod| address(&["get", "pod", pod, "--output=jsonpath={.status.podIP}"])).into();
    pods.sort();
    eventually("the addresses of both pods", || (lookup("web-pods") == pods.join("\n")).then_some(()));
    assert_eq!(lookup(&format!("{}.web-pods", pods[0].replace('.', "-"))), pods[0]);
    assert!(!scene.exec("one", &["lookup", "nobody.service"]).is_ok());

    // Both pods answer, also the one that sends the request.
    for name in ["one", "two"] {
        eventually(&format!("an answer of {name}"), || {
            (scene.get("one", "http://web") == format!("this is {name}")).then_some(())
        });
    }
}

#[test]
#[ignore = "starts a cluster"]
fn a_name_with_more_addresses_than_a_datagram_holds_is_answered_whole() {
    let scene = Scene::new(&SHARED, "many");
    scene.make_pod("one");
    let meta =
        |name: &str| json!({ "name": name, "namespace": "many", "labels": { "kubernetes.io/service-name": "many" } });
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": meta("many"),
        "spec": { "clusterIP": "None", "ports": [{ "port": 80 }] },
    });
    let endpoints: Vec<_> = (1..=200).map(|number| json!({ "addresses": [format!("203.0.113.{number}")] })).collect();
    let slices = endpoints.chunks(100).enumerate().map(|(number, endpoints)| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta(&format!("many-{number}")),
            "addressType": "IPv4", "ports": [{ "port": 80 }], "endpoints": endpoints,
        })
    });
    let items: Vec<_> = [service].into_iter().chain(slices).collect();
    SHARED.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string()).expect("a service");
    eventually("all addresses", || {
        (scene.exec("one", &["lookup", "many"]).stdout.lines().count() == 200).then_some(())
    });
}

#[test]
#[ignore = "starts a cluster"]
fn pods_reach_the_api_server_and_nothing_beyond_the_cluster() {
    let scene = Scene::new(&SHARED, "ways");
    scene.make_pod("one");
    // The client does not trust the API server's certificate, but an error about it proves that the API server answers.
    eventually("a refusal by the API server", || {
        let asked = scene.exec("one", &["get", "https://kubernetes.default.svc/readyz"]);
        asked.stderr.contains("certificate").then_some(())
    });
    let outside = scene.exec("one", &["get", "http://192.0.2.1"]);
    assert!(!outside.is_ok(), "{outside:?}");
}

#[test]
#[ignore = "starts a cluster"]
fn a_killed_container_is_started_again() {
    let scene = Scene::new(&SHARED, "killed");
    scene.make_pod("one");
    let first = SHARED.container_id("killed", "one", "web");
    SHARED.kill_container("killed", "one", "web");
    eventually("a restart", || (scene.restarts("one") == 1).then_some(()));
    scene.wait_ready("one");
    assert_ne!(SHARED.container_id("killed", "one", "web"), first);
}

#[test]
#[ignore = "starts a cluster"]
fn images_are_put_on_a_node_from_archives() {
    let ctr = |words: &[&'static str]| {
        SHARED.run_on_node(["ctr", "--namespace", "k8s.io", "images"].iter().chain(words).copied())
    };
    ctr(&["tag", POD_IMAGE, "localhost/other:1"]).expect("another name");
    // This is the path of the cluster's folder on the node.
    ctr(&["export", "/run/cluster/other.tar", "localhost/other:1"]).expect("an archive");
    let has_it = || SHARED.images().iter().any(|image| image == "localhost/other:1");
    let remove = || ctr(&["rm", "localhost/other:1"]).expect("the end of an image").to_owned();
    remove();
    assert!(!has_it());
    let archive = SHARED.folder().join("other.tar");
    SHARED.import_image(&archive);
    assert!(has_it());

    // The same with the command.
    remove();
    let all = Running::list(&Cache::from_env().unwrap()).unwrap();
    let own = all.iter().find(|one| one.kubeconfig == SHARED.kubeconfig()).unwrap();
    let import = Command::new(env!("CARGO_BIN_EXE_portcullis-e2e"))
        .args(["import", "--name", &own.name])
        .arg(archive)
        .output()
        .unwrap();
    assert!(import.status.success() && has_it(), "{import:?}");
}

#[test]
#[ignore = "starts a cluster"]
fn evidence_has_objects_events_and_logs_and_no_secrets() {
    let scene = Scene::new(&SHARED, "evidence");
    scene.make_pod("one");
    scene.kubectl(&["create", "secret", "generic", "key", "--from-literal=key=do-not-show"]).expect("a secret");
    let folder = tempfile::tempdir().unwrap();
    SHARED.keep_evidence(folder.path()).unwrap();
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(read("objects.yaml").contains("namespace: evidence"));
    assert!(!read("objects.yaml").contains("kind: Secret\n"));
    assert!(read("events.txt").contains("default-scheduler"), "{}", read("events.txt"));
    assert!(read("components/kubelet.log").contains("Successfully registered node"));
    let pods = std::fs::read_dir(folder.path().join("pods")).unwrap();
    let pod = pods.flatten().find(|pod| pod.file_name().to_string_lossy().starts_with("evidence_one_")).unwrap();
    assert!(std::fs::read_to_string(pod.path().join("web/0.log")).unwrap().contains("serving"));
}
