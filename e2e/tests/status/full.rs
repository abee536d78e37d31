//! The database of the cluster, etcd, is full.

use std::thread;
use std::time::Duration;

use portcullis_e2e::{Cluster, Options, Program, SMALL_DATABASE, eventually_within, never_lasting};

use crate::stage::{SOON, Stage, status_and_reason};
use crate::states::{Says, unreachable};

#[test]
#[ignore = "starts a cluster"]
fn fault_r32_a_full_etcd_delays_status_and_events_until_the_alarm_is_disarmed() {
    // The test needs a cluster of its own, because nothing can be written to it for a while.
    let options = Options { etcd_quota: Some(SMALL_DATABASE), ..Options::default() };
    let cluster = &Cluster::start(&options).unwrap();
    let (stage, replicas) = Stage::with(cluster, "full", 1);
    let replica = &replicas[0];
    let (policy, object) = stage.policy("labels");
    replica.says(&object, Says::Current);
    stage.word(&policy, "Active");
    let restarts = replica.pod.restarts(Program::Reporter);
    let fillers = cluster.fill_etcd(&stage.namespace);

    let failed = r#"portcullis_reporter_api_failures_total{call="write the report""#;
    let before = replica.metric(failed);
    replica.says(&object, unreachable());
    eventually_within(SOON, "a report that is refused", || (replica.metric(failed) > before).then_some(()));
    // Longer than the Lease, so that a leader must be found again.
    thread::sleep(Duration::from_secs(20));
    // Readiness does not depend on the database.
    replica.wait_ready();
    assert_eq!(
        status_and_reason(&stage.installation.object(&policy).unwrap(), "Ready"),
        "True/Active",
        "nothing was written"
    );

    cluster.empty_etcd(&fillers);
    let found = stage.word_in_time(&stage.installation.moment(), &policy, "Error");
    assert_eq!(status_and_reason(&found, "Degraded"), "True/RegistryUnreachable");
    let count = || {
        let events = stage.events(&object);
        events.iter().filter(|(reason, _)| reason == "RegistryUnreachable").map(|(_, count)| *count).collect::<Vec<_>>()
    };
    eventually_within(SOON, "the event", || (!count().is_empty()).then_some(()));
    never_lasting(Duration::from_secs(1), "a second event", || (count() != [1]).then(count));
    replica.says(&object, Says::Current);
    stage.word(&policy, "Active");
    assert_eq!(replica.pod.restarts(Program::Reporter), restarts, "no restart was needed");
}
