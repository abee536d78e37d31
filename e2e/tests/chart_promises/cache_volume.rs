//! Volumes that outlive pods, siblings, and how to switch a running installation to either.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use portcullis_e2e::{Container, Helm, Release, condition, eventually};
use serde_json::{Value, json};

use crate::stage::{Evidence, assert_all, second_release, site, turn};
use crate::strangers;

const SERVER: &str = "portcullis-policy-server";
const REPLICAS: usize = 2;

#[test]
#[ignore = "starts a cluster"]
fn fault_k05_h18_with_a_volume_or_a_sibling_pods_start_without_the_source_and_switching_fails_no_call() {
    let _turn = turn();
    let release = second_release("kept");
    let _evidence = Evidence { release: &release, test: "cache-volume" };
    let without = json!({
        "server": { "replicas": REPLICAS }, "controller": { "replicas": 1 }, "siblings": { "enabled": true },
        "crds": { "install": false },
        // With this start gate, pods do not become ready just because they have waited: a ready pod serves every policy.
        "evaluator": { "startGate": "30m", "resources": { "requests": { "cpu": "50m" } } },
    });
    let with = {
        // An existing cluster uses its default storage class.
        let class = site().own_cluster().map_or("", |cluster| {
            cluster.make_volumes(release.namespace(), REPLICAS);
            release.namespace()
        });
        let mut values = without.clone();
        values["volume"] = json!({ "persistence": { "enabled": true, "storageClassName": class } });
        values
    };
    release.install(&without).expect("an installation without volumes");
    let shop = release.make_namespace("shop");
    let policy = release.cluster_policy("kept").denying("judged");
    release.apply_ready(std::slice::from_ref(&policy));

    switch(&release, "Deployment", &with, &shop);
    let claims = release.kubectl(["get", "persistentvolumeclaims", "--output=jsonpath={.items[*].status.phase}"]);
    assert_eq!(claims.expect("the claims"), "Bound Bound");

    // All pods are deleted, and only the volumes have the module.
    let before = artifacts(&release);
    release.source().close();
    release.kubectl(["delete", "pods", "--selector", &format!("app.kubernetes.io/name={SERVER}")]).expect("deletions");
    release.wait_for_replicas(REPLICAS);
    eventually("a denial, as soon as API servers have heard of the new addresses", || {
        release.create_pod(&shop, "one", &json!({})).stderr.contains("judged").then_some(())
    });
    policy.wait_until(&release.api(), "Active everywhere", |object| {
        condition(object, "Ready").is_some_and(|ready| ready["reason"] == "Active")
            && object["status"]["replicaCounts"]["current"] == REPLICAS
    });
    assert_eq!(artifacts(&release), before, "the files are those from before");

    // New pods with empty disks can get the module only from the old ones.
    switch(&release, "StatefulSet", &without, &shop);
    release.source().open();
    eventually("claims that go with the StatefulSet", || {
        let claims = release.kubectl(["get", "persistentvolumeclaims", "--output=name"]);
        claims.expect("the claims").is_empty().then_some(())
    });
    strangers::are_refused(&release);

    release.uninstall().expect("the end of the installation");
    release.delete_policies();
    release.site().kubectl(["delete", "namespace", release.namespace(), &shop, "--timeout=240s"]).expect("the end");
    if let Some(cluster) = site().own_cluster() {
        cluster.remove_volumes(release.namespace());
    }
}

/// Replaces the policy server of kind `old` by the other kind under load, in the way that the chart's README describes.
fn switch(release: &Release<'_>, old: &str, values: &Value, namespace: &str) {
    let chart = Helm::chart().display().to_string();
    let refused = release.upgrade(&chart, values);
    let next = format!("annotate {} {SERVER} helm.sh/resource-policy=keep", old.to_lowercase());
    assert!(!refused.is_ok() && refused.stderr.contains(&next), "{refused:?}");

    let load = release.load(namespace, 20);
    let old = old.to_lowercase();
    release.kubectl(["annotate", &old, SERVER, "helm.sh/resource-policy=keep"]).expect("an annotation");
    release.upgrade(&chart, values).expect("the other kind beside it");
    release.kubectl(["delete", &old, SERVER]).expect("the end of the old kind");
    release.wait_for_replicas(REPLICAS);
    assert_all(&load.end(), 403);
}

/// The artifacts on the volume of each pod, by name, with their inode numbers, which differ for a copy. Empty if the node is not this
/// machine.
fn artifacts(release: &Release<'_>) -> BTreeMap<String, BTreeMap<String, u64>> {
    if site().own_cluster().is_none() {
        return BTreeMap::new();
    }
    let of = |pod: &Value| {
        let folder = Container::of(pod, "loader").expect("a loader that runs").path("/volume/artifacts");
        let entries = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap());
        let named = entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry));
        // Temporary files have other names.
        let modules = named.filter(|(name, _)| name.ends_with(".cwasm"));
        let files: BTreeMap<_, _> = modules.map(|(name, entry)| (name, entry.metadata().unwrap().ino())).collect();
        assert!(!files.is_empty(), "{}", folder.display());
        (pod["metadata"]["name"].as_str().unwrap().to_owned(), files)
    };
    release.pods().iter().map(of).collect()
}
