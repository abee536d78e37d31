//! A reporter that crashes again and again.

use std::thread;

use portcullis_e2e::{Release, condition, eventually};
use serde_json::{Value, json};

use crate::stage::{REPLICAS, Stage, assert_all, names};

/// A pod whose reporter crashes as soon as it is started. If the test fails, the pod is deleted, so that the next test gets a new one.
struct Crashing {
    release: &'static Release<'static>,
    pod: String,
    image: String,
}

impl Crashing {
    /// Gives the reporter the image of another program, which refuses the reporter's settings. Only the image can be changed in a
    /// running pod.
    fn start(release: &'static Release<'static>, pod: &Value) -> Self {
        let containers = pod["spec"]["containers"].as_array().unwrap();
        let reporter = containers.iter().find(|container| container["name"] == "reporter").unwrap();
        let image = reporter["image"].as_str().unwrap().to_owned();
        let other = image.replace("/reporter:", "/evaluator:");
        assert_ne!(image, other, "the image has a tag");
        let crashing = Self { release, pod: pod["metadata"]["name"].as_str().unwrap().to_owned(), image };
        crashing.set_image(&other);
        crashing
    }

    fn set_image(&self, image: &str) {
        let (pod, image) = (format!("pod/{}", self.pod), format!("reporter={image}"));
        self.release.kubectl(["set", "image", &pod, &image]).expect("another image");
    }

    fn mend(&self) {
        self.set_image(&self.image);
    }

    fn object(&self) -> Option<Value> {
        self.release.pods().into_iter().find(|pod| pod["metadata"]["name"] == self.pod)
    }

    /// The status of one of its containers.
    fn container(&self, name: &str) -> Option<Value> {
        let statuses = self.object()?["status"]["containerStatuses"].as_array()?.clone();
        statuses.into_iter().find(|status| status["name"] == name)
    }
}

impl Drop for Crashing {
    fn drop(&mut self) {
        if thread::panicking() {
            let path = format!("/api/v1/namespaces/{}/pods/{}", self.release.namespace(), self.pod);
            let _ = self.release.api().delete(&path, Some(0));
        }
    }
}

/// A pod whose reporter does not lead.
fn follower(release: &Release<'_>) -> Value {
    let pods = release.pods();
    let leader =
        eventually("a leader", || release.lease_holder("reporter").filter(|holder| names(&pods).contains(holder)));
    pods.into_iter().find(|pod| pod["metadata"]["name"] != leader).unwrap()
}

/// Whether the policy is Active, and this is the number of all replicas that are counted.
fn is_active(object: &Value, replicas: usize) -> bool {
    object["status"]["summary"] == format!("{replicas}/{replicas}")
        && condition(object, "Ready").is_some_and(|ready| ready["reason"] == "Active")
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r27_a_reporter_that_crashes_again_and_again_is_told_and_policies_answer() {
    // With these flags, reports are stale after seconds.
    let quick = json!({ "reporter": { "extraArgs": ["--heartbeat=1s", "--report-lifetime=6s"] } });
    let stage = Stage::with("crash-loop", &quick);
    let (release, shop) = (stage.release(), stage.namespace());
    let policy = release.cluster_policy("crash-loop").denying("judged");
    release.apply_ready(std::slice::from_ref(&policy));
    policy.wait_until(&release.api(), "Active everywhere", |object| is_active(object, REPLICAS));

    let load = release.load(&shop, 20);
    let crashing = Crashing::start(release, &follower(release));
    eventually("a container that crashes again and again", || {
        let reporter = crashing.container("reporter")?;
        let restarts = reporter["restartCount"].as_u64()?;
        (restarts >= 3 && reporter["state"]["waiting"]["reason"] == "CrashLoopBackOff").then_some(())
    });
    // The pod is not ready, so the service does not include it and it is not counted. Its entry in the status gives the reason.
    let entry = |object: &Value| {
        let replicas = object["status"]["replicas"].as_array().cloned().unwrap_or_default();
        replicas.into_iter().find(|entry| entry["pod"] == crashing.pod)
    };
    let object = policy.wait_until(&release.api(), "an unknown replica that is not counted", |object| {
        let is_told =
            entry(object).is_some_and(|entry| entry["state"] == "Unknown" && entry["reason"] == "ReportStale");
        is_told && is_active(object, REPLICAS - 1)
    });
    let message = entry(&object).unwrap()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("reports have stopped") && message.contains("not counted"), "{message}");
    let shown = release.kubectl(["describe", "clusterpolicies.policies.portcullis.dev", policy.name()]);
    let shown = shown.expect("a description");
    assert!(shown.contains("ReportStale") && shown.contains(&crashing.pod), "{shown}");
    // The evaluator in the same pod still serves.
    let path = format!("/api/v1/namespaces/{}/pods/{}:8081/proxy/readyz", release.namespace(), crashing.pod);
    release.kubectl(["get", "--raw", &path]).expect("an evaluator that is ready");
    assert_eq!(crashing.container("evaluator").unwrap()["restartCount"], 0);
    assert_all(&load.end(), 403);

    crashing.mend();
    release.wait_for_replicas(REPLICAS);
    let object = policy.wait_until(&release.api(), "Active everywhere again", |object| is_active(object, REPLICAS));
    assert_eq!(entry(&object).unwrap()["state"], "Current", "the same pod: {object:#}");
}
