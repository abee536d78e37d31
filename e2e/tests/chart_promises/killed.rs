//! Containers that are killed under load.

use portcullis_e2e::{Container, eventually};
use serde_json::Value;

use crate::stage::{REPLICAS, Stage, assert_all, own_cluster};

/// The number of calls per second: few enough for debug builds on two cores beside everything else.
const CALLS: u32 = 20;

fn restarts(pod: &Value, container: &str) -> u64 {
    let statuses = pod["status"]["containerStatuses"].as_array().unwrap();
    statuses.iter().find(|status| status["name"] == container).unwrap()["restartCount"].as_u64().unwrap()
}

/// Kills a container of one replica under load, and waits until it is back.
fn admissions_go_on_without(container: &str, test: &'static str) {
    let stage = Stage::new(test);
    if own_cluster(test).is_none() {
        return;
    }
    let (release, shop) = (stage.release(), stage.namespace());
    release.apply_ready(&[release.cluster_policy(test)]);
    let pod = release.pods().remove(0);
    let before = restarts(&pod, container);

    let load = release.load(&shop, CALLS);
    Container::of(&pod, container).unwrap().kill();
    eventually("the container's next start", || {
        let pods = release.pods();
        let same = pods.iter().find(|other| other["metadata"]["uid"] == pod["metadata"]["uid"])?;
        (restarts(same, container) > before).then_some(())
    });
    release.wait_for_replicas(REPLICAS);
    assert_all(&load.end(), 201);
}

#[test]
#[ignore = "starts a cluster"]
fn a_killed_loader_has_no_effect_on_admissions() {
    admissions_go_on_without("loader", "killed-loader");
}

#[test]
#[ignore = "starts a cluster"]
fn a_killed_reporter_has_no_effect_on_admissions() {
    admissions_go_on_without("reporter", "killed-reporter");
}

#[test]
#[ignore = "starts a cluster"]
fn fault_e02_a_killed_evaluator_is_back_soon_and_only_its_share_of_requests_is_affected() {
    let test = "killed-evaluator";
    let stage = Stage::new(test);
    if own_cluster(test).is_none() {
        return;
    }
    let (release, shop) = (stage.release(), stage.namespace());
    release.apply_ready(&[release.cluster_policy(test).denying("not here")]);
    let pod = release.pods().remove(0);
    let before = restarts(&pod, "evaluator");
    let load = release.load(&shop, CALLS);
    Container::of(&pod, "evaluator").unwrap().kill();
    eventually("the evaluator's next start", || {
        let pods = release.pods();
        let same = pods.iter().find(|other| other["metadata"]["uid"] == pod["metadata"]["uid"])?;
        (restarts(same, "evaluator") > before).then_some(())
    });
    release.wait_for_replicas(REPLICAS);
    let answers = load.end();
    // Calls that it was answering fail, and so do those that are sent to it before its end is known. They are rejected by the policy's
    // failurePolicy; none is admitted.
    let admitted = answers.iter().filter(|answer| answer.code == Some(201)).count();
    let denied = answers.iter().filter(|answer| answer.message.contains("not here")).count();
    assert_eq!(admitted, 0, "{} calls", answers.len());
    // Even if the container is slow to come back, the other replicas answer two thirds.
    assert!(denied * 10 > answers.len() * 6, "{denied} of {} calls were judged", answers.len());
}
