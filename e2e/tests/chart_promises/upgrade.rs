//! `helm upgrade`.

use std::path::Path;

use portcullis_e2e::{Helm, condition};
use serde_json::json;

use crate::stage::{assert_all, assert_denied, second_release, site, turn};

/// A package of this repository's chart with a lower version. It has the current programs, so this does not prove a row of the fault
/// catalogue; the upgrade from an earlier release is in `earlier_release.rs`.
fn previous_chart(folder: &Path) -> String {
    let site = site();
    let (chart, folder) = (Helm::chart().display().to_string(), folder.display().to_string());
    let current = env!("CARGO_PKG_VERSION");
    let package = ["package", &chart, "--version", "0.0.1", "--app-version", current, "--destination", &folder];
    site.helm(package, "").expect("a package of the chart");
    format!("{folder}/portcullis-0.0.1.tgz")
}

#[test]
#[ignore = "starts a cluster"]
fn an_upgrade_of_the_chart_and_the_way_back_keep_policies_and_what_they_say_and_fail_no_call() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let previous = previous_chart(folder.path());
    let release = second_release("upgraded");
    let small = json!({
        "server": { "replicas": 2 }, "controller": { "replicas": 1 }, "crds": { "install": false },
    });
    release.install_chart(&previous, &small).expect("the version before");
    let shop = release.make_namespace("shop");
    let policy = release.cluster_policy("upgraded").denying("not here");
    release.apply_ready(std::slice::from_ref(&policy));
    let uid = release.api().get(&policy.path()).unwrap()["metadata"]["uid"].clone();

    let load = release.load(&shop, 20);
    let mut values = small;
    // With another log level, every pod is replaced.
    values["logs"] = json!({ "level": "debug" });
    release.upgrade(&Helm::chart().display().to_string(), &values).expect("the upgrade");
    release.wait_for_replicas(2);
    assert_all(&load.end(), 403);

    let object = policy.wait_until(&release.api(), "Active", |object| {
        condition(object, "Ready").is_some_and(|ready| ready["reason"] == "Active")
            && object["status"]["replicaCounts"]["current"] == 2
    });
    assert_eq!((&object["metadata"]["uid"], &object["metadata"]["generation"]), (&uid, &json!(1)));
    assert_denied(&release.create_pod(&shop, "one", &json!({})), "not here");

    // A rollback does not fail a call either.
    let load = release.load(&shop, 20);
    let back = release.site().helm(
        ["rollback", release.namespace(), "1", "--namespace", release.namespace(), "--wait", "--timeout", "4m"],
        "",
    );
    back.expect("the way back");
    release.wait_for_replicas(2);
    assert_all(&load.end(), 403);

    release.uninstall().expect("the end of the installation");
    release.delete_policies();
    release.site().kubectl(["delete", "namespace", release.namespace(), &shop, "--timeout=240s"]).expect("the end");
}
