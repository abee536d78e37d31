//! A namespace floods the volumes of the pods with large modules: row Z08.

use std::thread;
use std::time::{Duration, Instant};

use portcullis_e2e::{Container, bytes_below, condition, eventually_within, large_module};
use serde_json::{Value, json};

use crate::stage::{Stage, assert_all, names, own_cluster};

const FLOOD: usize = 40;
/// The bytes of each module. Artifacts are as large, so together they take 160 MiB.
const MODULE: usize = 2 << 20;
/// The time limit to compile the modules that there is room for.
const LONGEST: Duration = Duration::from_secs(600);
/// A time within which the kubelet checks the disk again.
const LOOKS: Duration = Duration::from_secs(90);
/// The size limit of the volume. The kubelet evicts a pod that exceeds it.
const VOLUME: u64 = 64 << 20;
/// The size limit of the folder of private copies.
const PRIVATE: u64 = 48 << 20;

fn assert_below_limits(pods: &[Value]) {
    for pod in pods {
        for (container, folder, most) in [("loader", "/volume", VOLUME), ("evaluator", "/private", PRIVATE)] {
            let Some(container) = Container::of(pod, container) else { continue };
            let bytes = bytes_below(&container.path(folder));
            assert!(bytes < most, "{folder} of {} has {bytes} bytes", pod["metadata"]["name"]);
        }
    }
}

#[test]
#[ignore = "starts a cluster"]
fn fault_z08_large_modules_evict_no_pod() {
    let Some(_) = own_cluster("fault_z08") else { return };
    let mib = |bytes: u64| format!("{}Mi", bytes >> 20);
    let values = json!({ "volume": { "sizeLimit": mib(VOLUME) }, "evaluator": { "privateSizeLimit": mib(PRIVATE) } });
    let stage = Stage::with("room", &values);
    let (release, shop) = (stage.release(), stage.namespace());
    // Each pod compiles the modules for its own volume, and with three pods that would take the whole machine.
    release.scale(1);
    release.wait_for_replicas(1);
    let flood = release.make_namespace("flood");
    let guard = |text: &str| release.cluster_policy("guard").module_of(large_module(text, MODULE));
    release.apply_ready(&[guard("guard 0")]);
    let load = release.load(&shop, 20);
    let before = names(&release.pods());

    let in_flood = json!({
        "kind": "Policy", "metadata": { "namespace": flood }, "spec": { "namespaceSelector": null },
    });
    let large: Vec<_> = (0..FLOOD)
        .map(|n| {
            let policy = release.cluster_policy(&format!("large-{n:02}")).with(&in_flood);
            policy.module_of(large_module(&format!("large {n:02}"), MODULE))
        })
        .collect();
    for policy in &large {
        release.apply(policy).expect("a policy");
    }
    let full = |object: &Value| condition(object, "Degraded").is_some_and(|one| one["reason"] == "VolumeFull");
    eventually_within(LONGEST, "each policy of the flood to serve or to say that there is no room", || {
        assert_below_limits(&release.pods());
        let objects: Vec<Value> = large.iter().filter_map(|policy| release.api().get(&policy.path())).collect();
        let served =
            objects.iter().filter(|object| condition(object, "Ready").is_some_and(|one| one["status"] == "True"));
        let (served, full) = (served.count(), objects.iter().filter(|object| full(object)).count());
        (full > FLOOD / 2 && served + full == FLOOD).then_some(())
    });

    // Edits of other policies arrive, while the kubelet checks the disk again.
    let start = Instant::now();
    for generation in 1.. {
        release.apply_ready(&[guard(&format!("guard {}", generation % 10))]);
        assert_below_limits(&release.pods());
        if start.elapsed() > LOOKS {
            break;
        }
        thread::sleep(Duration::from_secs(10));
    }
    assert_all(&load.end(), 403);
    let pods = release.pods();
    assert_eq!(names(&pods), before, "no pod was evicted and replaced");
    for pod in &pods {
        assert_eq!(pod["status"]["phase"], "Running", "{}", pod["status"]);
    }
}
