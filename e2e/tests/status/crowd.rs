//! More failing replicas than a status lists.

use std::thread;
use std::time::Duration;

use portcullis_e2e::{PodSetup, Program, Reply, SERVICE, eventually_within};
use serde_json::{Value, json};

use crate::cluster;
use crate::stage::{SOON, Stage, status_and_reason};
use crate::states::Says;

/// The number of failing replicas, as in the row.
const FAILING: usize = 2000;
/// The largest number of endpoints of an EndpointSlice.
const SLICE: usize = 1000;
/// The number of threads that write reports.
const WRITERS: usize = 8;
/// The time limit of a leader that reads two thousand reports of a kilobyte each.
const LONG: Duration = Duration::from_secs(480);

/// The name of a replica, which is long.
fn name(number: usize) -> String {
    format!("replica-{number:04}-{}", "x".repeat(200))
}

fn uid(number: usize) -> String {
    format!("00000000-0000-4000-8000-{number:012}")
}

/// The report of a replica that does not exist, about a policy that it cannot load.
fn report(real: &Value, object: &Value, number: usize) -> Value {
    let mut spec = real["spec"].clone();
    spec["podUID"] = uid(number).into();
    spec["current"] = json!({});
    spec["digests"] = json!({});
    spec["deviations"] = json!([{
        "policyUID": object["metadata"]["uid"], "generation": object["metadata"]["generation"], "serving": 0, "state": "Failed",
        "reason": "RegistryTimeout", "retryable": true, "since": "2026-01-01T00:00:00Z",
        "message": format!("replica {number}: {}", "a long error ".repeat(70)),
    }]);
    // It has no owner: there is no pod, and the garbage collector would remove a report whose owner is missing.
    let metadata = json!({ "name": name(number), "labels": real["metadata"]["labels"] });
    json!({ "apiVersion": real["apiVersion"], "kind": real["kind"], "metadata": metadata, "spec": spec })
}

/// An EndpointSlice with ready pods that do not exist.
fn slice(first: usize) -> Value {
    let endpoint = |number: usize| {
        json!({
            "addresses": [format!("10.{}.{}.{}", 1 + first / SLICE, number / 200, 1 + number % 200)],
            "conditions": { "ready": true, "serving": true, "terminating": false },
            "targetRef": { "kind": "Pod", "name": name(first + number), "uid": uid(first + number) },
        })
    };
    let labels = json!({ "kubernetes.io/service-name": SERVICE, "endpointslice.kubernetes.io/managed-by": "a-test" });
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": format!("crowd-{first}"), "labels": labels },
        "endpoints": (0..SLICE).map(endpoint).collect::<Vec<_>>(), "ports": [],
    })
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r13_the_status_of_two_thousand_failing_replicas_is_small_and_tells_all_that_counts() {
    let stage = Stage::new(cluster(), "crowd");
    // The reports of pods that do not exist are not renewed, so their lifetime is long.
    let replica = stage.replica_with(PodSetup::default().flag(Program::Reporter, "--report-lifetime", "1h"));
    stage.wait_ready();
    let (policy, object) = stage.policy("labels");
    replica.says(&object, Says::Current);
    stage.word(&policy, "Active");

    let (api, namespace) = (stage.installation.api(), stage.installation.namespace());
    let reports = format!("/apis/policies.portcullis.dev/v1alpha1/namespaces/{namespace}/replicareports");
    let slices = format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices");
    let real = stage.report(replica.name()).unwrap();
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (api, reports, real, object) = (api.clone(), &reports, &real, &object);
            scope.spawn(move || {
                for number in (writer..FAILING).step_by(WRITERS) {
                    api.create(reports, &report(real, object, number)).unwrap().expect("a report");
                }
            });
        }
    });
    for first in (0..FAILING).step_by(SLICE) {
        api.create(&slices, &slice(first)).unwrap().expect("endpoints");
    }
    let found = eventually_within(LONG, "a status about all of them", || {
        stage.installation.object(&policy).filter(|found| found["status"]["replicaCounts"]["failed"] == FAILING)
    });
    let status = &found["status"];
    assert_eq!(
        status["replicaCounts"],
        json!({
            "expected": FAILING + 1, "current": 1, "previous": 0, "pending": 0, "failed": FAILING, "unknown": 0,
        })
    );
    assert_eq!(status["summary"], format!("1/{}", FAILING + 1));
    assert_eq!(
        (status_and_reason(&found, "Ready").as_str(), status_and_reason(&found, "Degraded").as_str()),
        ("False/Degraded", "True/RegistryTimeout")
    );
    // The list is capped, and its messages are cut.
    let entries = status["replicas"].as_array().unwrap();
    assert_eq!((entries.len(), &status["replicasOmitted"]), (16, &json!(FAILING + 1 - 16)));
    for (number, entry) in entries.iter().enumerate() {
        assert_eq!(
            (&entry["pod"], &entry["state"]),
            (&json!(name(number)), &json!("Failed")),
            "failing first, by name"
        );
        let message = entry["message"].as_str().unwrap();
        assert!(message.len() <= 256 && message.starts_with(&format!("replica {number}: a long error")), "{message}");
    }
    let size = status.to_string().len();
    assert!(size < 64 << 10, "{size} bytes");
    assert!(stage.describe(&policy).contains(&format!("RegistryTimeout on {FAILING}")));
    println!("a status of {size} bytes about {} replicas", FAILING + 1);

    // When the pods are gone, no entry is left.
    for first in (0..FAILING).step_by(SLICE) {
        api.delete(&format!("{slices}/crowd-{first}"), None).unwrap().expect("the end of endpoints");
    }
    let found = stage.word_within(LONG, &policy, "Active");
    assert_eq!(found["status"]["summary"], "1/1");
    eventually_within(SOON, "the end of their entries", || {
        let status = stage.installation.object(&policy)?["status"].clone();
        (status["replicas"].as_array()?.len() == 1 && status["replicasOmitted"] == 0).then_some(())
    });
    // The API server ends a request after a minute. The next one deletes the rest.
    eventually_within(LONG, "the end of reports", || api.delete(&reports, None).ok().filter(Reply::is_ok));
}
