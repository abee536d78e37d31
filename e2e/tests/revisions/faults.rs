//! Rows about deletion, moved tags, settings, and unreachable sources.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use portcullis_e2e::{Installation, InstallationOptions, Pod, PodSetup, Program, eventually, large_module, never};
use portcullis_testkit::Bound;
use serde_json::{Value, json};

use crate::pinned::{WASM_LAYER, put};
use crate::{Policy, cluster, digest, installation, replica, replica_with, two_modules};

/// How long a download takes, at least.
const SLOW: Duration = Duration::from_secs(25);
/// Its rate, in bytes per second: far above the lowest that the loader accepts.
const RATE: usize = 10 << 10;

#[test]
#[ignore = "starts a cluster"]
fn fault_k09_deleted_while_loading() {
    let installation = installation("k09");
    let policy = Policy::of(&installation, "a");
    let module = large_module("never", RATE * SLOW.as_secs() as usize);
    installation.source().trickle("/slow.wasm", module, RATE as u64);
    policy.revise(1, &installation.source().url("/slow.wasm"), &json!({}), &[]);
    // However long the download takes, only the deletion ends it.
    let pod = replica_with(&installation, PodSetup::default().flag(Program::Loader, "--fetch-timeout", "10m"));
    let downloads = || installation.source().requests("/slow.wasm").len();
    eventually("the download", || (downloads() > 0).then_some(()));
    eventually("the first bytes on the volume", || {
        kept(&pod).iter().any(|file| file.metadata().is_ok_and(|file| file.len() > 0)).then_some(())
    });
    policy.mark(1, &[("deleted", "true")]);
    eventually("the loader to forget it", || policy.loading(&pod).is_null().then_some(()));
    let asked = downloads();
    // A source whose whole answer was taken would never see this.
    eventually("the end of the download", || (installation.source().cut("/slow.wasm") > 0).then_some(()));
    eventually("a volume without a part of it", || kept(&pod).is_empty().then_some(()));
    never(SLOW, "a module on the volume", || kept(&pod).into_iter().next());
    assert_eq!(downloads(), asked, "it is asked for no more");
    assert!(policy.serving(&pod).is_none());
}

/// The files on a pod's volume that belong to modules, whole or not.
fn kept(pod: &Pod) -> Vec<PathBuf> {
    let folder = |folder: &str| std::fs::read_dir(pod.folder().join("volume").join(folder)).ok();
    let folders = ["modules", "artifacts", "manifests", "tmp"].into_iter().filter_map(folder);
    folders.flatten().flatten().map(|file| file.path()).collect()
}

#[test]
#[ignore = "starts a cluster"]
fn fault_l11_tag_moves_while_replicas_fetch() {
    let installation = installation("l11");
    let policy = Policy::of(&installation, "a");
    let (first, second) = two_modules();
    let address = policy.module("/tag.wasm", &first);
    policy.revise(1, &address, &json!({}), &[]);
    let early = replica(&installation);
    assert_eq!(policy.wait_serving(&early, 1), digest(&first));
    policy.module("/tag.wasm", &second);
    let late = replica(&installation);
    // Until a digest is recorded, both replicas report the digest that they have, so the reporter can see the difference.
    assert_eq!(policy.wait_serving(&late, 1), digest(&second));
    assert_eq!(policy.loading(&late)["digest"], digest(&second));

    policy.mark(1, &[("pinned-digest", &digest(&first))]);
    let told = policy.wait_failure(&late, "DigestMismatch");
    assert!(told.contains(&digest(&first)) && told.contains(&digest(&second)), "{told}");
    assert_eq!(policy.loading(&late)["failure"]["generation"], 1);
    assert_eq!(policy.serving(&early), Some((1, digest(&first))));
    assert!(policy.loading(&early)["failure"].is_null());
    // As long as the address leads to other bytes, there is nothing else that the replica could serve.
    assert_eq!(policy.serving(&late), Some((1, digest(&second))));

    // The source serves the recorded bytes at this address again.
    policy.module("/tag.wasm", &first);
    eventually("both replicas to serve what was recorded first", || {
        (policy.serving(&late) == Some((1, digest(&first)))).then_some(())
    });
}

/// The same with a registry, which has the recorded bytes by their digest also after the tag has moved.
#[test]
#[ignore = "starts a cluster"]
fn fault_l11_a_replica_that_fetched_a_moved_tag_serves_what_was_recorded() {
    let installation = installation("l11-registry");
    let policy = Policy::of(&installation, "a");
    let (first, second) = two_modules();
    let tag = |module: &[u8]| put(&installation, "moved", "v1", module, &json!({ "mediaType": WASM_LAYER }));
    tag(&first);
    policy.revise(1, &format!("registry://{}/moved:v1", installation.source().host()), &json!({}), &[]);
    let early = replica(&installation);
    assert_eq!(policy.wait_serving(&early, 1), digest(&first));
    tag(&second);
    let late = replica(&installation);
    assert_eq!(policy.wait_serving(&late, 1), digest(&second));

    // The tag stays where it is.
    policy.mark(1, &[("pinned-digest", &digest(&first))]);
    eventually("both replicas to serve what was recorded", || {
        (policy.serving(&late) == Some((1, digest(&first)))).then_some(())
    });
    never(Duration::from_secs(5), "other bytes for this generation", || {
        [&early, &late].map(|pod| policy.serving(pod)).into_iter().find(|found| *found != Some((1, digest(&first))))
    });
    assert!(policy.loading(&late)["failure"].is_null());
}

#[test]
#[ignore = "starts a cluster"]
fn fault_s03_large_or_deep_settings() {
    let installation = installation("s03");
    let (large, deep) = (Policy::of(&installation, "large"), Policy::of(&installation, "deep"));
    let (too_large, too_deep) = (Policy::of(&installation, "too-large"), Policy::of(&installation, "too-deep"));
    let (largest, deepest) = (Policy::of(&installation, "largest"), Policy::of(&installation, "deepest"));
    let neighbour = Policy::of(&installation, "neighbour");
    let address = neighbour.module("/good.wasm", &two_modules().0);
    neighbour.revise(1, &address, &json!({}), &[]);
    large.revise(1, &address, &json!({ "settings": { "text": "x".repeat(1 << 20) } }), &[]);
    deep.revise(1, &address, &json!({ "settings": nested(1000) }), &[]);
    // One byte, and one level, above the limits; and exactly at them.
    too_large.revise(1, &address, &json!({ "settings": of_size(MOST_BYTES + 1) }), &[]);
    too_deep.revise(1, &address, &json!({ "settings": nested(MOST_LEVELS + 1) }), &[]);
    largest.revise(1, &address, &json!({ "settings": of_size(MOST_BYTES) }), &[]);
    deepest.revise(1, &address, &json!({ "settings": nested(MOST_LEVELS) }), &[]);
    let pod = replica(&installation);
    neighbour.wait_serving(&pod, 1);
    for (policy, limit) in [(&large, "524288"), (&deep, "100"), (&too_large, "524288"), (&too_deep, "100")] {
        let text = policy.wait_failure(&pod, "SettingsInvalid");
        assert!(!text.contains("xxxx"), "{text}");
        assert!(text.contains(limit), "no {limit} in {text}");
        assert_eq!(policy.serving(&pod).map_or(0, |(generation, _)| generation), 0, "{}", policy.id());
    }
    for policy in [&largest, &deepest] {
        policy.wait_serving(&pod, 1);
    }
    // The loader can still list the revisions, which include both: the next generation is served as usual.
    neighbour.revise(2, &address, &json!({ "settings": { "a": 1 } }), &[]);
    neighbour.wait_serving(&pod, 2);
}

/// The largest settings, in bytes of JSON.
const MOST_BYTES: usize = 512 << 10;
/// The deepest settings, in levels.
const MOST_LEVELS: usize = 100;

/// Settings of this many bytes of JSON.
fn of_size(bytes: usize) -> Value {
    let settings = |length: usize| json!({ "text": "x".repeat(length) });
    settings(bytes - settings(0).to_string().len())
}

/// Settings that are nested this many levels deep.
fn nested(levels: usize) -> Value {
    (0..levels).fold(json!(1), |inner, _| json!({ "a": inner }))
}

/// The same with policies in the whole product.
#[test]
#[ignore = "starts a cluster"]
fn fault_s03_large_or_deep_settings_are_told_in_the_status() {
    let installation = Installation::start(cluster(), InstallationOptions::named("s03-applied")).with(1);
    let canary = installation.own_canary();
    let neighbour = installation.cluster_policy("s03-neighbour");
    installation.apply_ready(std::slice::from_ref(&neighbour));
    let named = |name: &str, settings: Value| installation.cluster_policy(name).field("settings", settings);
    let refused = [
        named("s03-large", json!({ "text": "x".repeat(600 << 10) })),
        named("s03-deep", nested(1000)),
        named("s03-too-large", of_size(MOST_BYTES + 1)),
        named("s03-too-deep", nested(MOST_LEVELS + 1)),
    ];
    let accepted = [named("s03-largest", of_size(MOST_BYTES)), named("s03-deepest", nested(MOST_LEVELS))];
    for policy in refused.iter().chain(&accepted) {
        // `kubectl apply` cannot be used, because it stores the whole manifest in an annotation, which has a limit of its own.
        let path = "/apis/policies.portcullis.dev/v1alpha1/clusterpolicies";
        let created = installation.api().create(path, &policy.manifest(installation.source()));
        created.unwrap().expect("the policy");
    }
    let wanted = [(&refused[..], "Accepted", "SettingsInvalid"), (&accepted[..], "Ready", "Active")];
    for (policies, kind, reason) in wanted {
        for policy in policies {
            // The test reads only the reason, because it could not parse an object that is nested so deep.
            let path = format!("--output=jsonpath={{.status.conditions[?(@.type==\"{kind}\")].reason}}");
            let reference = policy.reference();
            eventually(&format!("{reason} of {}", policy.name()), || {
                let told = cluster().kubectl(["get", &reference, &path]);
                (told.is_ok() && told.expect("a reason").trim() == reason).then_some(())
            });
        }
    }
    installation.apply_ready(&[neighbour.field("message", "still here")]);
    canary.end();
}

#[test]
#[ignore = "starts a cluster"]
fn fault_k05_every_pod_restarts_while_the_source_is_down() {
    let installation = installation("k05");
    let (policy, other) = (Policy::of(&installation, "a"), Policy::of(&installation, "b"));
    let (module, second) = two_modules();
    // The policies are marked as enforced, because a start gate does not wait for other policies.
    policy.revise(1, &policy.module("/good.wasm", &module), &json!({}), &[("served", "true")]);
    other.revise(1, &other.module("/other.wasm", &second), &json!({}), &[("served", "true")]);
    let pods = [replica(&installation), replica(&installation)];
    for pod in &pods {
        policy.wait_serving(pod, 1);
        other.wait_serving(pod, 1);
    }
    installation.source().close();
    for pod in &pods {
        pod.kill(Program::Loader);
        pod.kill(Program::Evaluator);
    }
    for pod in &pods {
        eventually("a restart", || (pod.restarts(Program::Evaluator) > 0).then_some(()));
        policy.wait_serving(pod, 1);
        pod.wait_ready();
    }
    // A replica with an empty volume becomes ready only after its start gate, and reports what is missing.
    let fresh = ready_after_the_start_gate(&installation, &policy, "RegistryUnreachable");
    assert_eq!(policy.serving(&fresh).map(|(generation, _)| generation), Some(0));
    installation.source().open();
    policy.wait_serving(&fresh, 1);
    // Modules that can be fetched are served from the start.
    installation.source().answer("/good.wasm", 503, "", Duration::ZERO);
    let fresh = ready_after_the_start_gate(&installation, &policy, "RegistryServerError");
    assert_eq!(policy.serving(&fresh).map(|(generation, _)| generation), Some(0));
    assert_eq!(other.serving(&fresh), Some((1, digest(&second))));
    policy.module("/good.wasm", &module);
    policy.wait_serving(&fresh, 1);
}

/// Starts a replica that cannot fetch the module of `missing` for this reason, which may pass. Asserts that it becomes ready only after its
/// start gate.
fn ready_after_the_start_gate(installation: &Installation<'_>, missing: &Policy<'_>, reason: &str) -> Arc<Pod> {
    // Modules that can be fetched must be loaded within this time, also on a busy machine.
    const GATE: Duration = Duration::from_secs(40);
    let start = installation.moment();
    let gate = format!("{}s", GATE.as_secs());
    let fresh = replica_with(installation, PodSetup::default().flag(Program::Evaluator, "--start-gate", gate));
    missing.wait_failure(&fresh, reason);
    fresh.wait_ready();
    assert!(start.age() >= GATE, "ready after {:?}", start.age());
    let bound = Bound { limit: GATE + Duration::from_secs(10), reason: "row K05's own start gate, and the next probe" };
    bound.assert("a replica without its module", &start, &installation.moment());
    fresh
}
