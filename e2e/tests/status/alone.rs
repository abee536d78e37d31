//! Tests that would disturb the others, in a cluster of their own.

use std::time::{Duration, Instant, SystemTime};

use portcullis_e2e::{
    Cluster, Component, ExclusiveCluster, Options, PodSetup, Program, eventually_within, never_lasting,
};
use serde_json::{Value, json};

use crate::stage::{SOON, Stage, status_and_reason};
use crate::states::Says;

const CRD: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/policies.policies.portcullis.dev";

/// Their cluster. They have it one after the other, because they would disturb each other too.
pub(crate) static CLUSTER: ExclusiveCluster = ExclusiveCluster::new(Options::default);

/// The definition without the fields that the API server adds, so that it can be applied again.
fn definition(found: &Value) -> Value {
    let name = found["metadata"]["name"].clone();
    json!({ "apiVersion": found["apiVersion"], "kind": found["kind"], "metadata": { "name": name }, "spec": found["spec"] })
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r11_fields_that_an_older_definition_drops_are_told_once() {
    let cluster = CLUSTER.lock();
    let stage = Stage::new(&cluster, "older");
    let api = stage.installation.api();
    let newer = definition(&api.find(CRD).unwrap());
    let (probe, _) = stage.policy("probe");
    // How often the published schemas mention the field.
    let mentions = || {
        let (_, schemas) =
            api.text("/openapi/v3/apis/policies.portcullis.dev/v1alpha1").ok().filter(|(code, _)| *code == 200)?;
        Some(schemas.matches("replicasOmitted").count()).filter(|count| *count > 0)
    };
    let before = eventually_within(SOON, "the newer definition", mentions);
    let mut older = newer.clone();
    let status = &mut older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"];
    status.as_object_mut().unwrap().remove("replicasOmitted");
    status.as_object_mut().unwrap().remove("history");
    replace(&cluster, &older);
    eventually_within(SOON, "the older definition", || mentions().filter(|now| *now < before));
    eventually_within(SOON, "an API server that drops the field", || {
        let path = format!("{}/status?dryRun=All", probe.path());
        let tried = api.patch(&path, &json!({ "status": { "replicasOmitted": 7 } })).ok()?;
        (tried.is_ok() && tried.body["status"]["replicasOmitted"].is_null()).then_some(())
    });
    api.delete(&probe.path(), None).unwrap().expect("its end");
    eventually_within(SOON, "its end", || stage.installation.object(&probe).is_none().then_some(()));

    let replica = stage.replica();
    stage.wait_ready();
    let (policy, object) = stage.policy("labels");
    replica.says(&object, Says::Current);
    stage.word(&policy, "Active");
    let (_, second) = stage.policy("second");
    replica.says(&second, Says::Current);
    eventually_within(SOON, "an event", || {
        let told = [&object, &second].map(|object| stage.events(object)).concat();
        (told.iter().filter(|(reason, _)| reason == "StatusSchemaOutdated").count() == 1).then_some(())
    });
    let is_told = || (replica.metric("portcullis_reporter_status_schema_outdated") == 1.0).then_some(());
    eventually_within(SOON, "the metric", is_told);
    let writes = || replica.metric("portcullis_reporter_policy_status_writes_total");
    let mut last = (writes(), Instant::now());
    eventually_within(SOON, "an end of the writes", || {
        let now = writes();
        if now != last.0 {
            last = (now, Instant::now());
        }
        (last.1.elapsed() > Duration::from_secs(3)).then_some(())
    });
    never_lasting(Duration::from_secs(3), "a write loop", || Some(writes()).filter(|now| *now != last.0));
    // A write that changes nothing is seen in the audit log only. The longest pause between retries is four seconds.
    let quiet = SystemTime::now();
    never_lasting(Duration::from_secs(8), "a write loop", || Some(writes()).filter(|now| *now != last.0));
    let written = stage.status_writes(replica.name(), quiet);
    assert_eq!(written.len(), 0, "{written:#?}");
    // Each policy whose status lacks the fields is written, and is not reported again.
    let (third, object_of_third) = stage.policy("third");
    replica.says(&object_of_third, Says::Current);
    let found = stage.settled(&third, "Active");
    assert!(found["status"]["history"].is_null(), "{:#}", found["status"]);
    assert!(!stage.status_writes(replica.name(), quiet).is_empty(), "the audit log has the writes");
    let outdated: Vec<_> = [&object, &second, &object_of_third].map(|object| stage.events(object)).concat();
    let outdated: Vec<_> = outdated.into_iter().filter(|(reason, _)| reason == "StatusSchemaOutdated").collect();
    assert_eq!(outdated, [("StatusSchemaOutdated".to_owned(), 1)]);
    assert_eq!(replica.metric("portcullis_reporter_status_schema_outdated"), 1.0);
    let warnings = replica.warnings("CustomResourceDefinition is older");
    assert_eq!(warnings.len(), 1, "{warnings:?}");

    replace(&cluster, &newer);
}

/// Replaces the definition. Tries again on conflicts, because the API server writes to its status.
fn replace(cluster: &Cluster, definition: &Value) {
    let kubeconfig = cluster.kubeconfig();
    let mut definition = definition.clone();
    eventually_within(SOON, "a definition", || {
        definition["metadata"]["resourceVersion"] = cluster.api().find(CRD)?["metadata"]["resourceVersion"].clone();
        let replaced = cluster.kubectl_as(&kubeconfig, ["replace", "--filename=-"], &definition.to_string());
        replaced.is_ok().then_some(())
    });
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r12_the_definition_is_removed_and_installed_again() {
    let cluster = CLUSTER.lock();
    let (stage, replicas) = Stage::with(&cluster, "absent", 1);
    let (policy, object) = stage.policy("labels");
    replicas[0].says(&object, Says::Current);
    stage.word(&policy, "Active");
    let api = stage.installation.api();
    let found = definition(&api.find(CRD).unwrap());
    api.delete(CRD, None).unwrap().expect("the end of the definition");
    eventually_within(SOON, "the end of the definition", || api.find(CRD).is_none().then_some(()));
    // A reporter that starts without the definition waits for it.
    let pod = &replicas[0].pod;
    pod.kill(Program::Reporter);
    eventually_within(SOON, "a restart", || (pod.restarts(Program::Reporter) > 0).then_some(()));
    std::thread::sleep(Duration::from_secs(3));
    replicas[0].wait_ready();
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let back = stage.installation.moment();
    api.create(path, &found).unwrap().expect("the definition");
    let object = eventually_within(SOON, "a policy", || {
        stage.installation.apply(&policy).is_ok().then(|| stage.installation.object(&policy)).flatten()
    });
    stage.confirm(&policy);
    replicas[0].says(&object, Says::Current);
    let found = stage.word_in_time(&back, &policy, "Active");
    assert_eq!(status_and_reason(&found, "Degraded"), "False/AsExpected");
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r24_reports_of_dead_pods_are_removed_without_the_garbage_collector() {
    let cluster = CLUSTER.lock();
    let stage = Stage::new(&cluster, "garbage");
    let quick = || {
        let setup = PodSetup::default().flag(Program::Reporter, "--heartbeat", "1s");
        setup.flag(Program::Reporter, "--report-lifetime", "4s")
    };
    let replicas = [stage.replica_with(quick()), stage.replica_with(quick())];
    stage.wait_ready();
    let (policy, object) = stage.policy("labels");
    replicas.iter().for_each(|replica| replica.says(&object, Says::Current));
    stage.word(&policy, "Active");
    let (_, dead) = stage.leader_and_follower(&replicas);
    let owners = stage.report(dead.name()).unwrap()["metadata"]["ownerReferences"].clone();
    assert_eq!(owners[0]["uid"], dead.pod.uid(), "a garbage collector would remove the report");
    cluster.stop(Component::ControllerManager);
    dead.pod.lose_node();
    dead.pod.delete_object();
    // The pod is no longer an endpoint either, which another of the stopped controllers would see to.
    let slices = format!("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices", stage.installation.namespace());
    for slice in stage.installation.api().list(&slices) {
        let mut endpoints = slice["endpoints"].as_array().cloned().unwrap_or_default();
        endpoints.retain(|endpoint| endpoint["targetRef"]["name"] != dead.name());
        let path = format!("{slices}/{}", slice["metadata"]["name"].as_str().unwrap());
        stage.installation.api().patch(&path, &json!({ "endpoints": endpoints })).unwrap().expect("the endpoints");
    }
    eventually_within(SOON, "the end of the report", || stage.report(dead.name()).is_none().then_some(()));
    // For the next test.
    cluster.start_again(Component::ControllerManager);
}
