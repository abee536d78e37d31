//! The connections that the chart's NetworkPolicies allow, enforced by the node's packet filter.

use std::net::{IpAddr, SocketAddr};

use portcullis_e2e::{Cache, Container, Helm, POD_IMAGE, PodProgram, Reach, Release, eventually, objects_of};
use serde_json::{Value, json};

use crate::stage::{REPLICAS, Stage, assert_denied, own_cluster};

/// The port of the API server, behind its service.
const API_SERVER: u16 = 6443;
/// The port of the source of modules.
const SOURCE: u16 = 8446;
/// The port on which the test's own pods serve.
const SHOP: u16 = 8080;
/// The port of the cluster's DNS.
const DNS: u16 = 53;

/// A pod that is a client or a server in this test.
struct Pod {
    container: Container,
    address: IpAddr,
}

impl Pod {
    fn of(pod: &Value, container: &str) -> Option<Self> {
        let address = pod["status"]["podIP"].as_str()?.parse().ok()?;
        Some(Self { container: Container::of(pod, container)?, address })
    }

    /// Starts a pod that serves, with its name as a label.
    fn start(release: &Release<'_>, namespace: &str, name: &str) -> Self {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": namespace, "labels": { "app": name } },
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [{ "name": "main", "image": POD_IMAGE, "args": ["serve"] }],
            },
        });
        release.site().kubectl_with(["create", "--filename=-"], &pod.to_string()).expect("a pod");
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        eventually("a pod that runs", || Self::of(&release.api().get(&path)?, "main"))
    }

    fn at(&self, port: u16) -> SocketAddr {
        (self.address, port).into()
    }
}

/// A description, the client, the server, and how far the connection gets.
type Flow<'a> = (&'static str, &'a Pod, SocketAddr, Reach);

fn check(program: &PodProgram, flows: &[Flow<'_>]) {
    let wrong: Vec<_> = flows
        .iter()
        .filter_map(|(sentence, from, to, expected)| {
            // The program or its answer may be late, so allowed connections are tried several times. A forbidden connection must never succeed.
            let tries = if *expected == Reach::Forbidden { 1 } else { 5 };
            let mut found = from.container.reach(program, *to);
            for _ in 1..tries {
                if found == *expected {
                    break;
                }
                found = from.container.reach(program, *to);
            }
            (found != *expected).then(|| format!("not so: {sentence}: {found:?}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The chart's NetworkPolicies with values that allow as little as possible.
fn narrow(release: &Release<'_>, shop: &str) -> Vec<Value> {
    let namespace = release.namespace();
    let prometheus = json!({
        "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": shop } },
        "podSelector": { "matchLabels": { "app": "prometheus" } },
    });
    let values = json!({
        "policyServer": namespace, "siblings": { "enabled": true },
        "networkPolicy": { "metricsFrom": [prometheus], "egressPorts": [API_SERVER, SOURCE] },
    });
    let chart = Helm::chart().display().to_string();
    let args = ["template", namespace, &chart, "--namespace", namespace, "--values", "-"];
    let rendered = release.site().helm(args, &values.to_string());
    let objects = objects_of(rendered.expect("the chart's objects"));
    objects.into_iter().filter(|object| object["kind"] == "NetworkPolicy").collect()
}

#[test]
#[ignore = "starts a cluster"]
fn network_policies_let_through_what_the_installation_needs_and_what_they_are_told_to() {
    let stage = Stage::new("network");
    let Some(cluster) = own_cluster("network") else { return };
    let (release, shop) = (stage.release(), stage.namespace());
    let program = PodProgram::build(&Cache::from_env().unwrap(), &|line| eprintln!("{line}")).unwrap();
    let [prometheus, stranger] = ["prometheus", "stranger"].map(|name| Pod::start(release, &shop, name));
    let pods = release.pods();
    let [server, other] = [0, 1].map(|number: usize| Pod::of(&pods[number], "loader").unwrap());
    let controller = Pod::of(&release.controllers()[0], "controller").unwrap();

    let kubernetes = release.api().get("/api/v1/namespaces/default/services/kubernetes").unwrap();
    let kubernetes: IpAddr = kubernetes["spec"]["clusterIP"].as_str().unwrap().parse().unwrap();
    let service = SocketAddr::from((kubernetes, 443));
    let api_server = cluster.api_servers()[0];
    let source = SocketAddr::from((release.source().ip(), SOURCE));
    let (answered, nobody, forbidden) = (Reach::Answered, Reach::NobodyListens, Reach::Forbidden);

    let rules = release.enforce(cluster, &release.network_policies());
    check(
        &program,
        &[
            ("everybody may ask for admission, as an API server may be anywhere", &stranger, server.at(8443), answered),
            ("nobody may read an evaluator's metrics who is not named", &prometheus, server.at(8081), forbidden),
            ("nobody may read a loader's metrics who is not named", &prometheus, server.at(8082), forbidden),
            ("nobody may read a reporter's metrics who is not named", &prometheus, server.at(8083), forbidden),
            ("nobody may read a controller's metrics who is not named", &prometheus, controller.at(8084), forbidden),
            ("without siblings nobody may ask for modules", &other, server.at(8444), forbidden),
            ("a port that serves nothing is closed", &stranger, server.at(22), forbidden),
            ("a controller has no port for admission", &stranger, controller.at(8443), forbidden),
            ("a policy server may ask the API server by its service", &server, service, answered),
            ("a controller may ask the API server by its service", &controller, service, answered),
            ("a loader may fetch modules", &server, source, answered),
            ("modules may be anywhere", &server, stranger.at(SHOP), answered),
        ],
    );

    let lookup = |port: u16| server.container.reach_dns(&program, (cluster.dns_address(), port).into());
    eventually("an answer to a lookup", || (lookup(DNS) == answered).then_some(()));
    assert_eq!(lookup(DNS + 1), forbidden, "nothing else is sent over UDP");

    drop(rules);
    let _rules = release.enforce(cluster, &narrow(release, &shop));
    check(
        &program,
        &[
            ("everybody may still ask for admission", &stranger, server.at(8443), answered),
            ("who is named may read metrics of a policy server", &prometheus, server.at(8081), answered),
            ("who is named may read metrics of a controller", &prometheus, controller.at(8084), answered),
            ("others may not, of an evaluator", &stranger, server.at(8081), forbidden),
            ("others may not, of a loader", &stranger, server.at(8082), forbidden),
            ("others may not, of a reporter", &stranger, server.at(8083), forbidden),
            ("others may not, of a controller", &stranger, controller.at(8084), forbidden),
            ("siblings may ask each other for modules", &other, server.at(8444), nobody),
            ("others may not ask siblings", &stranger, server.at(8444), forbidden),
            ("a controller is no sibling", &controller, server.at(8444), forbidden),
            ("a policy server may ask the API server by its service", &server, service, answered),
            ("a policy server may ask the API server by its address", &server, api_server, answered),
            ("a controller may ask the API server by its service", &controller, service, answered),
            ("a loader may fetch modules from the port that is named", &server, source, answered),
            ("a policy server may not connect to other ports", &server, stranger.at(SHOP), forbidden),
            ("a controller may not connect to other ports", &controller, stranger.at(SHOP), forbidden),
            ("who has no policy is not kept from anything", &stranger, prometheus.at(SHOP), answered),
        ],
    );

    eventually("an answer to a lookup", || (lookup(DNS) == answered).then_some(()));

    // The installation works with these rules. The containers are restarted so that their connections are not older than the rules.
    let before = ["loader", "reporter"].map(|name| (name, Container::of(&pods[0], name).unwrap()));
    before.iter().for_each(|(_, container)| container.kill());
    for (name, old) in before {
        eventually("a container that was started again", || {
            let pods_now = release.pods();
            let pod = pods_now.iter().find(|pod| pod["metadata"]["uid"] == pods[0]["metadata"]["uid"])?;
            Container::of(pod, name).filter(|new| *new != old)
        });
    }
    release.wait_for_replicas(REPLICAS);
    release.apply_ready(&[release.cluster_policy("network").denying("kept in")]);
    assert_denied(&release.create_pod(&shop, "one", &json!({})), "kept in");
    let delete = ["delete", "pods", "prometheus", "stranger", "--namespace", &shop, "--wait=false"];
    release.site().kubectl(delete).expect("the end of the test's own pods");
}
