//! The database of the cluster, etcd, is full.

use std::thread;
use std::time::Duration;

use portcullis_e2e::{Api, Cluster, Options, Program, eventually_within, never};
use serde_json::json;

use crate::stage::{SOON, Stage, told};
use crate::states::{Says, unreachable};

/// The size limit of etcd. It is much more than the control plane and an installation use, and can be filled within seconds.
const QUOTA: u64 = 32 << 20;

/// Creates large objects until etcd is full. Returns their paths.
fn fill(api: &Api, namespace: &str) -> Vec<String> {
    let (path, data) = (format!("/api/v1/namespaces/{namespace}/configmaps"), "x".repeat(900 << 10));
    let mut made = Vec::new();
    for number in 0..100 {
        let name = format!("filler-{number}");
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": { "data": data },
        });
        let reply = api.create(&path, &object).unwrap();
        if !reply.is_ok() {
            let message = reply.body["message"].as_str().unwrap_or_default();
            assert!(message.contains("database space exceeded"), "{} {message}", reply.code);
            return made;
        }
        made.push(format!("{path}/{name}"));
    }
    panic!("{} objects of 900 KiB do not fill {QUOTA} bytes", made.len());
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r32_a_full_etcd_delays_status_and_events_until_the_alarm_is_disarmed() {
    // The test needs a cluster of its own, because nothing can be written to it for a while.
    let options = Options { etcd_quota: Some(QUOTA), ..Options::default() };
    let cluster: &'static Cluster = Box::leak(Box::new(Cluster::start(&options).unwrap()));
    let (stage, replicas) = Stage::with(cluster, "full", 1);
    let replica = &replicas[0];
    let (policy, object) = stage.policy("labels");
    replica.says(&object, Says::Current);
    stage.word(&policy, "Active");
    let restarts = replica.pod.restarts(Program::Reporter);
    let fillers = fill(&stage.installation.api(), &stage.namespace);
    eventually_within(SOON, "the alarm", || (cluster.etcd_alarms() == ["NOSPACE"]).then_some(()));

    let failed = r#"portcullis_reporter_api_failures_total{call="write the report""#;
    let before = replica.metric(failed);
    replica.says(&object, unreachable());
    eventually_within(SOON, "a report that is refused", || (replica.metric(failed) > before).then_some(()));
    // Longer than the Lease, so that a leader must be found again.
    thread::sleep(Duration::from_secs(20));
    // Readiness does not depend on the database.
    replica.wait_ready();
    assert_eq!(told(&stage.installation.object(&policy).unwrap(), "Ready"), "True/Active", "nothing was written");

    for filler in fillers {
        stage.installation.api().delete(&filler, None).unwrap().expect("a deletion takes no room");
    }
    eventually_within(SOON, "the end of the alarm", || {
        cluster.free_etcd();
        cluster.etcd_alarms().is_empty().then_some(())
    });
    let found = stage.word(&policy, "Error");
    assert_eq!(told(&found, "Degraded"), "True/RegistryUnreachable");
    let count = || {
        let events = stage.events(&object);
        events.iter().filter(|(reason, _)| reason == "RegistryUnreachable").map(|(_, count)| *count).collect::<Vec<_>>()
    };
    eventually_within(SOON, "the event", || (!count().is_empty()).then_some(()));
    never(Duration::from_secs(1), "a second event", || (count() != [1]).then(count));
    replica.says(&object, Says::Current);
    stage.word(&policy, "Active");
    assert_eq!(replica.pod.restarts(Program::Reporter), restarts, "no restart was needed");
}
