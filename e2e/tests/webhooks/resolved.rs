//! The digest that a generation is pinned to, when a replica makes a false report.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use portcullis_e2e::{POLICY_SERVER_ACCOUNT, Pod, Policy, StopOnDrop, condition, eventually, never};
use serde_json::{Value, json};

use crate::cluster;
use crate::scene::Scene;

const PIN: &str = "policies.portcullis.dev/pinned-digest";

/// The digest that a revision of this generation is pinned to.
fn pin(scene: &Scene, generation: i64) -> Option<String> {
    let revisions = scene.installation.revisions();
    let revision = revisions.iter().find(|revision| revision["revision"] == generation)?;
    revision["metadata"]["annotations"][PIN].as_str().map(str::to_owned)
}

/// Uses a pod's token to write into its report that it serves this generation with this digest: again and again, as the pod's reporter goes
/// on to write the truth.
fn claim(scene: &Scene, pod: &Pod, policy: &Value, generation: i64, digest: &str, done: &AtomicBool) {
    let uid = policy["metadata"]["uid"].as_str().expect("an object has a uid");
    let key: String = uid.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    let claim = json!({
        "apiVersion": "policies.portcullis.dev/v1alpha1", "kind": "ReplicaReport", "metadata": {"name": pod.name()},
        "spec": {"current": {&key: generation}, "digests": {&key: digest}, "deviations": []},
    });
    let kubeconfig = cluster().kubeconfig_for(&scene.installation.token(POLICY_SERVER_ACCOUNT, pod));
    let namespace = format!("--namespace={}", scene.installation.namespace());
    let claim = claim.to_string();
    // Without the right to read the report, which `kubectl patch` would do first.
    let args = ["apply", "--server-side", "--force-conflicts", "--field-manager=thief", &namespace, "--filename=-"];
    while !done.load(Ordering::SeqCst) {
        // A try may fail because the pod's reporter writes at the same moment, or because no answer comes in time. The test waits for the effect.
        let tried = cluster().kubectl_as(&kubeconfig, args, &claim);
        assert!(!tried.stderr.contains("orbidden"), "{tried:?}");
    }
}

#[test]
#[ignore = "starts a cluster"]
fn fault_z16_one_replica_claims_other_bytes_and_nothing_is_pinned_by_it_alone() {
    let scene = Scene::new("resolved", 2);
    let installation = &scene.installation;
    let stolen = installation.add_replica();
    installation.wait_ready();
    let canary = installation.own_canary();
    let policy = |text: &str| -> Policy { installation.cluster_policy("resolved").denying(text) };
    installation.apply_ready(&[policy("the first")]);
    eventually("the pin of the first generation", || pin(&scene, 1));

    // No replica can load the second generation yet, but the pod whose token was stolen says that it serves it.
    installation.source().close();
    let second = policy("the second");
    installation.apply(&second).expect("the policy");
    let object = installation.object(&second).expect("it is there");
    let evil = format!("sha256:{}", "e".repeat(64));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| claim(&scene, &stolen, &object, 2, &evil, &done));
        let _stop = StopOnDrop(&done);
        let is_told = |object: &Value| object["status"]["replicaCounts"]["current"] == 1;
        installation.wait_for_object(&second, "the claim in the counts", is_told);
        never(Duration::from_secs(3), "a pin by one replica alone", || pin(&scene, 2));

        // The other replicas settle it.
        installation.source().open();
        let pinned = eventually("the pin of the second generation", || pin(&scene, 2));
        assert_ne!(pinned, evil);
        let of_stolen = |object: &Value| {
            let replicas = object["status"]["replicas"].as_array().cloned().unwrap_or_default();
            replicas.into_iter().find(|replica| replica["pod"] == stolen.name()).unwrap_or_default()
        };
        let is_differing = |object: &Value| {
            let degraded = condition(object, "Degraded").is_some_and(|one| one["status"] == "True");
            let stolen = of_stolen(object);
            let is_previous = stolen["reason"] == "ResolvedDifferently" && stolen["state"] == "Previous";
            degraded && is_previous && object["status"]["resolved"]["digest"] == pinned
        };
        installation.wait_for_object(&second, "ResolvedDifferently", is_differing);
        assert_eq!(pin(&scene, 2), Some(pinned));
    });
    eventually("an event about it", || installation.events(&second, "ResolvedDifferently").pop());
    installation.wait_for(&second, "Ready", "True");
    let refused = scene.create("one").expect_err("the others go on");
    assert!(refused.contains("the second"), "{refused}");
    canary.end();
}
