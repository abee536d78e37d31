//! So many failing policies that the reporter may not write all events at once.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, SystemTime};

use portcullis_e2e::{PodSetup, Program, eventually_within};
use serde_json::Value;

use crate::alone::CLUSTER;
use crate::stage::Stage;
use crate::states::{Says, unreachable};

/// The number of policies, as in the row.
const POLICIES: usize = 1000;
/// The number of threads that create policies.
const WRITERS: usize = 8;
/// How many events the reporter may write in a minute.
const EVENTS: usize = 50;
/// How many statuses the reporter may write in a second.
const STATUSES: usize = 40;
/// The time limit until all statuses are written, which takes half a minute at best.
const LONG: Duration = Duration::from_secs(600);

/// The span in which events are counted: less than a minute, because a machine under load delays some calls.
const MINUTE: Duration = Duration::from_secs(50);
/// The span in which statuses are counted, and of how many seconds it may contain the writes on a machine under load, which delays some calls.
const MOMENT: (Duration, usize) = (Duration::from_secs(10), 15);

/// Creates the policies, and returns them as the API server stores them.
fn make_policies(stage: &Stage) -> Vec<Value> {
    let api = stage.installation.api();
    let path = format!("/apis/policies.portcullis.dev/v1alpha1/namespaces/{}/policies", stage.namespace);
    let make = |number: usize| {
        let policy = stage.installation.policy(&stage.namespace, &format!("storm-{number:04}"));
        let policy = policy.at("https://nowhere.invalid/none.wasm");
        api.create(&path, &policy.manifest(stage.installation.source())).unwrap().expect("a policy")
    };
    thread::scope(|scope| {
        let writers = (0..WRITERS)
            .map(|writer| scope.spawn(move || (writer..POLICIES).step_by(WRITERS).map(make).collect::<Vec<_>>()));
        let writers: Vec<_> = writers.collect();
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    })
}

/// Waits until the condition `Degraded` of every policy has this status.
fn wait_for_statuses(stage: &Stage, degraded: &str) {
    let path = format!("/apis/policies.portcullis.dev/v1alpha1/namespaces/{}/policies", stage.namespace);
    let api = stage.installation.api();
    let is = |policy: &&Value| {
        portcullis_e2e::condition(policy, "Degraded").is_some_and(|condition| condition["status"] == degraded)
    };
    eventually_within(LONG, &format!("Degraded={degraded} everywhere"), || {
        thread::sleep(Duration::from_secs(1));
        (api.list(&path).iter().filter(is).count() == POLICIES).then_some(())
    });
}

/// The times at which reporters wrote to this resource and subresource, by the audit log of the API server, in order.
fn writes(stage: &Stage, resource: &str, subresource: Option<&str>) -> Vec<SystemTime> {
    let user = format!("system:serviceaccount:{}:portcullis-policy-server", stage.installation.namespace());
    let is_one = |event: &&Value| {
        let target = &event["objectRef"];
        event["user"]["username"] == *user
            && matches!(event["verb"].as_str(), Some("create" | "patch" | "update"))
            && target["resource"] == resource
            && target["subresource"].as_str() == subresource
    };
    let time = |event: &Value| humantime::parse_rfc3339(event["requestReceivedTimestamp"].as_str()?).ok();
    let events = stage.installation.cluster().audit_events(&user);
    let mut times: Vec<_> = events.iter().filter(is_one).map(|event| time(event).unwrap()).collect();
    times.sort_unstable();
    times
}

/// The largest number of these times within a span.
fn most_within(time: Duration, times: &[SystemTime]) -> usize {
    let from = |first: usize| times[first..].iter().take_while(|one| **one < times[first] + time).count();
    (0..times.len()).map(from).max().unwrap_or(0)
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r29_a_thousand_failing_policies_make_series_of_events_and_no_more_writes_than_may_be() {
    // In the cluster of most tests, so many policies would make others late.
    let cluster = CLUSTER.lock();
    let stage = Stage::new(&cluster, "storm");
    let policies = make_policies(&stage);
    let replica = stage.replica_with(PodSetup::default().flag(Program::Reporter, "--status-writes", STATUSES));
    let all_say = |says: &Says| policies.iter().for_each(|policy| replica.says(policy, says.clone()));
    // The policies fail, recover, and fail again in the same way.
    all_say(&unreachable());
    stage.wait_ready();
    wait_for_statuses(&stage, "True");
    all_say(&Says::Current);
    wait_for_statuses(&stage, "False");
    all_say(&unreachable());
    wait_for_statuses(&stage, "True");

    let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", stage.namespace);
    let told = || stage.installation.api().list(&path);
    let is_series = |event: &Value| {
        let is_failure = event["reason"] == "RegistryUnreachable" || event["reason"] == "ReportStale";
        is_failure && event["series"]["count"].as_i64().is_some_and(|count| count >= 2)
    };
    let events = || writes(&stage, "events", None);
    eventually_within(LONG, "a series, and the events of a third minute", || {
        thread::sleep(Duration::from_secs(2));
        (told().iter().any(is_series) && events().len() > 2 * EVENTS).then_some(())
    });
    let (events, statuses) = (events(), writes(&stage, "policies", Some("status")));
    println!("{} writes of events, {} of statuses", events.len(), statuses.len());
    let most = most_within(MINUTE, &events);
    assert!(most <= EVENTS, "{most} writes of events in {MINUTE:?}");
    assert!(statuses.len() >= 3 * POLICIES, "{} writes of statuses", statuses.len());
    let (moment, seconds) = MOMENT;
    let most = most_within(moment, &statuses);
    assert!(most <= STATUSES * seconds, "{most} writes of statuses in {moment:?}");

    // An event that happens twice is one object with a count.
    let told = told();
    let what = |event: &Value| format!("{} {} {}", event["regarding"]["uid"], event["reason"], event["note"]);
    let different: BTreeSet<_> = told.iter().map(what).collect();
    assert_eq!(different.len(), told.len(), "an event is there twice");
    assert!(replica.pod.is_ready());
}
