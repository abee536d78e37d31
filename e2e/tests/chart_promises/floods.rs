//! Another pod floods the ports of probes and metrics: row Z14.

use std::time::{Duration, Instant};

use portcullis_e2e::{POD_IMAGE, Release, condition, eventually, probe_ports};
use serde_json::{Value, json};

use crate::stage::{CONTROLLERS, REPLICAS, Stage, assert_all, own_cluster};

/// The number of connections to each port: more than it accepts.
const CONNECTIONS: &str = "200";

/// How long the flood lasts: `PORTCULLIS_TEST_FLOOD_SECONDS`, or a minute, in which enough probes would fail for a restart or an unready
/// pod.
fn flood_time() -> Duration {
    let seconds = std::env::var("PORTCULLIS_TEST_FLOOD_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(60))
}

/// The state of pods by their kubelet: since when each is ready, and how often its containers were restarted.
fn seen(pods: &[Value]) -> Vec<(String, Value, Vec<Value>)> {
    let of = |pod: &Value| {
        let ready = condition(pod, "Ready").expect("the kubelet has looked at it").clone();
        let containers = pod["status"]["containerStatuses"].as_array().unwrap();
        let restarts = containers.iter().map(|container| container["restartCount"].clone()).collect();
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        (name, json!([ready["status"], ready["lastTransitionTime"]]), restarts)
    };
    pods.iter().map(of).collect()
}

/// How many connections each program has closed to make room for others, by pod and port.
fn closed(release: &Release<'_>, pods: &[Value]) -> Vec<(String, u64)> {
    let of_port = |pod: &Value, port| {
        let program = format!("{}:{port}", pod["metadata"]["name"].as_str().unwrap());
        let count = eventually(&format!("the metrics of {program}"), || {
            let metrics = release.metrics(pod, port)?;
            let count =
                |line: &str| line.strip_prefix("portcullis_probe_connections_closed_total ")?.trim().parse().ok();
            metrics.lines().find_map(count)
        });
        (program, count)
    };
    pods.iter().flat_map(|pod| probe_ports(pod).into_iter().map(move |port| of_port(pod, port))).collect()
}

#[test]
#[ignore = "starts a cluster"]
fn fault_z14_another_pod_floods_the_probe_ports() {
    let stage = Stage::new("floods");
    let Some(_) = own_cluster("fault_z14") else { return };
    let (release, shop) = (stage.release(), stage.namespace());
    let policy = release.cluster_policy("floods").denying("generation 0");
    let pods = [release.pods(), release.controllers()].concat();
    let (before, closed_before) = (seen(&pods), closed(release, &pods));
    assert_eq!(closed_before.len(), 3 * REPLICAS + CONTROLLERS, "{closed_before:?}");

    let addresses = pods.iter().flat_map(|pod| {
        let address = pod["status"]["podIP"].as_str().unwrap();
        probe_ports(pod).into_iter().map(move |port| format!("{address}:{port}"))
    });
    let args: Vec<_> = ["flood", CONNECTIONS].map(str::to_owned).into_iter().chain(addresses).collect();
    let flood = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "flood", "namespace": shop },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{ "name": "main", "image": POD_IMAGE, "args": args }],
        },
    });
    release.site().kubectl_with(["create", "--filename=-"], &flood.to_string()).expect("a pod that floods");
    let path = format!("/api/v1/namespaces/{shop}/pods/flood");
    eventually("the flood", || {
        let pod = release.api().get(&path)?;
        (condition(&pod, "Ready")?["status"] == "True").then_some(())
    });

    // The policy is applied only now, so that it does not deny the pod that floods.
    release.apply_ready(std::slice::from_ref(&policy));
    let load = release.load(&shop, 20);
    let (start, mut generation) = (Instant::now(), 0);
    while start.elapsed() < flood_time() {
        // Reporting works, or the policy would never become Ready.
        generation += 1;
        release.apply_ready(&[policy.clone().denying(&format!("generation {generation}"))]);
    }
    assert_all(&load.end(), 403);
    assert_eq!(seen(&[release.pods(), release.controllers()].concat()), before, "after {generation} generations");
    // The flood has reached every port, each of which has had to close connections.
    for ((program, before), (_, now)) in closed_before.iter().zip(closed(release, &pods)) {
        assert!(now > *before, "{program} has closed {now} connections, and {before} before the flood");
    }
    let delete = ["delete", "pod", "flood", "--namespace", &shop, "--wait=false"];
    release.site().kubectl(delete).expect("the end of the flood");
}
