//! Restarts of the node, or of kubelet and containerd.

use std::time::Duration;

use portcullis_e2e::{Container, Release, condition, eventually, eventually_within};
use serde_json::{Value, json};

use crate::stage::{REPLICAS, Stage, assert_all, assert_denied, names, own_cluster};

/// The running evaluators.
fn evaluators(release: &Release<'_>) -> Vec<Container> {
    release.pods().iter().filter_map(|pod| Container::of(pod, "evaluator")).collect()
}

#[test]
#[ignore = "starts a cluster"]
fn a_restart_of_kubelet_and_containerd_has_no_effect_on_admissions() {
    let stage = Stage::new("kubelet");
    let Some(cluster) = own_cluster("kubelet") else { return };
    let (release, shop) = (stage.release(), stage.namespace());
    release.apply_ready(&[release.cluster_policy("kubelet").denying("judged")]);
    let before = evaluators(release);
    assert_eq!(before.len(), REPLICAS);

    let load = release.load(&shop, 20);
    cluster.restart_kubelet();
    // The conditions of pods are still those from before; the new kubelet needs a while to find the pods.
    for pod in names(&release.pods()) {
        let logs = ["logs", &pod, "--container=evaluator", "--tail=1"];
        eventually("the kubelet to know its pod again", || release.kubectl(logs).is_ok().then_some(()));
    }
    release.wait_for_replicas(REPLICAS);
    assert_all(&load.end(), 403);
    assert_eq!(evaluators(release), before);
}

#[test]
#[ignore = "starts a cluster"]
fn a_node_that_lost_power_comes_back_without_the_source_and_serves_what_it_served_last() {
    let stage = Stage::new("node");
    let Some(cluster) = own_cluster("node") else { return };
    let (release, shop) = (stage.release(), stage.namespace());
    let policy = release.cluster_policy("node").denying("the good old answer");
    release.apply_ready(std::slice::from_ref(&policy));
    release.apply(&policy.clone().module_of("no module")).expect("a bad edit");
    let serves_previous = |object: &Value| {
        condition(object, "Ready").is_some_and(|ready| ready["reason"] == "ServingPrevious")
            && object["status"]["replicaCounts"]["previous"] == REPLICAS
    };
    policy.wait_until(&release.api(), "ServingPrevious", serves_previous);
    let before = evaluators(release);
    assert_eq!(before.len(), REPLICAS);

    release.source().close();
    let load = release.load(&shop, 20);
    cluster.power_off_node();
    cluster.start_node();
    eventually_within(Duration::from_secs(240), "containers that were started again", || {
        let now = evaluators(release);
        (now.len() == REPLICAS && now.iter().all(|container| !before.contains(container))).then_some(())
    });
    release.wait_for_replicas(REPLICAS);
    let answers = load.end();
    let count = |is: &dyn Fn(&portcullis_e2e::Answer) -> bool| answers.iter().filter(|answer| is(answer)).count();
    // While no replica answered, the policy's failurePolicy applied.
    assert_eq!(count(&|answer| answer.code == Some(201)), 0, "{} calls", answers.len());
    assert!(count(&|answer| answer.message.contains("failed calling webhook")) > 0, "{} calls", answers.len());

    assert_denied(&release.create_pod(&shop, "one", &json!({})), "the good old answer");
    policy.wait_until(&release.api(), "ServingPrevious after the restart", serves_previous);
    release.source().open();
    release.apply_ready(&[policy.denying("mended")]);
    assert_denied(&release.create_pod(&shop, "two", &json!({})), "mended");
}
