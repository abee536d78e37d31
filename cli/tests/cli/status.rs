//! `get` and `describe` on a status folder that a reporter has left: exact output.

use std::fs::{self, File};
use std::path::Path;

use crate::portcullis;

const ACTIVE: &str = r#"
apiVersion: policies.portcullis.dev/v1alpha1
kind: ClusterPolicy
metadata: {name: no-privileged, uid: u-1, generation: 1, creationTimestamp: 2020-01-01T00:00:00Z}
spec: {module: modules/no-privileged.wasm, mode: protect, failurePolicy: Fail, suspend: false}
status:
  observedGeneration: 1
  conditions:
  - {type: Ready, status: "True", reason: Active, message: generation 1 answers, observedGeneration: 1, lastTransitionTime: 2020-01-01T00:00:01Z}
  - {type: Degraded, status: "False", reason: AsExpected, message: "", observedGeneration: 1, lastTransitionTime: 2020-01-01T00:00:01Z}
  lastServed: {digest: "sha256:abababababababababababababababababababababababababababababababab", generation: 1}
  replicaCounts: {expected: 1, current: 1, previous: 0, pending: 0, failed: 0, unknown: 0}
  summary: 1/1
  replicas:
  - {pod: host, podUID: host, state: Current, generation: 1}
  replicasOmitted: 0
"#;

const KEPT: &str = r#"
apiVersion: policies.portcullis.dev/v1alpha1
kind: Policy
metadata: {name: required-labels, namespace: team-a, uid: u-2, generation: 2, creationTimestamp: 2020-01-01T00:00:00Z}
spec: {module: modules/required-labels.wasm, mode: warn, failurePolicy: Ignore, suspend: false}
status:
  observedGeneration: 2
  conditions:
  - {type: Ready, status: "False", reason: ServingPrevious, message: "generation 1 answers; generation 2: SettingsInvalid: no labels", observedGeneration: 2, lastTransitionTime: 2020-01-01T00:00:02Z}
  - {type: Degraded, status: "True", reason: SettingsInvalid, message: "SettingsInvalid: no labels", observedGeneration: 2, lastTransitionTime: 2020-01-01T00:00:02Z}
  lastServed: {digest: "sha256:abababababababababababababababababababababababababababababababab", generation: 1}
  replicaCounts: {expected: 1, current: 0, previous: 1, pending: 0, failed: 0, unknown: 0}
  summary: 0/1
  replicas:
  - {pod: host, podUID: host, state: Previous, generation: 1, reason: SettingsInvalid, retryable: false, since: 2020-01-01T00:00:02Z, message: no labels}
  replicasOmitted: 0
"#;

const EVENT: &str = r#"{"policy":"namespaced/team-a/required-labels","type":"Warning","reason":"SettingsInvalid","note":"0 of 1 replicas serve generation 2","count":1,"firstTime":"2020-01-01T00:00:02Z","lastTime":"2020-01-01T00:00:02Z"}
noise
"#;

/// A folder with two policies of different kinds.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    write_status(folder.path());
    folder
}

/// Writes the status of two policies of different kinds.
pub(crate) fn write_status(folder: &Path) {
    let status = folder.join(".portcullis/status");
    let write = |path: &str, text: &str| {
        let path = status.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("makes");
        fs::write(path, text).expect("writes");
    };
    write("cluster/no-privileged.yaml", ACTIVE);
    write("namespaced/team-a/required-labels.yaml", KEPT);
    write("events.jsonl", EVENT);
    write("noise.yaml", "{{{");
}

fn running(folder: &Path) -> File {
    let lock = File::create(folder.join(".portcullis/lock")).expect("creates");
    lock.try_lock().expect("locks");
    lock
}

/// Standard output, with ages in years replaced by `Ny`, as they change.
fn get(arguments: &[&str]) -> String {
    let folder = folder();
    let _lock = running(folder.path());
    let printed = portcullis(folder.path(), arguments);
    assert_eq!((printed.code, printed.err.as_str()), (Some(0), ""), "{arguments:?}");
    let aged = |line: &str| {
        line.split_inclusive(' ')
            .map(|word| match word.trim_end().trim_start_matches('(').strip_suffix('y') {
                Some(years) if years.parse::<u32>().is_ok() => word.replace(years, "N"),
                _ => word.to_owned(),
            })
            .collect::<String>()
    };
    printed.out.lines().map(|line| aged(line) + "\n").collect()
}

#[test]
fn a_table() {
    assert_eq!(
        get(&["get"]),
        "\
NAME                                READY   STATUS            MODE      AGE
cluster/no-privileged               1/1     Active            protect   Ny
namespaced/team-a/required-labels   0/1     ServingPrevious   warn      Ny
"
    );
    assert_eq!(
        get(&["get", "required-labels", "-o", "wide"]),
        "\
NAME                                READY   STATUS            MODE   GENERATION   REASON            AGE
namespaced/team-a/required-labels   0/1     ServingPrevious   warn   1            SettingsInvalid   Ny
"
    );
    assert_eq!(get(&["get", "-o", "name"]), "cluster/no-privileged\nnamespaced/team-a/required-labels\n");
}

#[test]
fn objects() {
    let list: serde_json::Value = serde_json::from_str(&get(&["get", "-o", "json"])).expect("JSON");
    assert_eq!((&list["kind"], list["items"].as_array().map(Vec::len)), (&"List".into(), Some(2)));
    let one: serde_json::Value =
        portcullis_yaml::read(get(&["get", "cluster/no-privileged", "-o", "yaml"])).expect("YAML");
    assert_eq!(one["status"]["summary"].as_str(), Some("1/1"));
}

#[test]
fn the_layout_of_kubectl_describe() {
    assert_eq!(
        get(&["describe", "namespaced/team-a/required-labels"]),
        "\
Name:         required-labels
Namespace:    team-a
Labels:       <none>
Annotations:  <none>
API Version:  policies.portcullis.dev/v1alpha1
Kind:         Policy
Metadata:
  Creation Timestamp:  2020-01-01T00:00:00Z
  Generation:          2
  UID:                 u-2
Spec:
  Failure Policy:  Ignore
  Mode:            warn
  Module:          modules/required-labels.wasm
  Suspend:         false
Status:
  Ready:                0/1 ServingPrevious
  Last Served:          generation 1, sha256:abababababababababababababababababababababababababababababababab
  Observed Generation:  2
  Replicas:             1 expected: 1 previous
Conditions:
  Type       Status   Reason            Generation   Since                           Message
  ----       ------   ------            ----------   -----                           -------
  Ready      False    ServingPrevious   2            2020-01-01T00:00:02Z (Ny ago)   generation 1 answers; generation 2: SettingsInvalid: no labels
  Degraded   True     SettingsInvalid   2            2020-01-01T00:00:02Z (Ny ago)   SettingsInvalid: no labels
Replicas:
  Pod    State      Generation   Reason            Since                           Next Try         Message
  ---    -----      ----------   ------            -----                           --------         -------
  host   Previous   1            SettingsInvalid   2020-01-01T00:00:02Z (Ny ago)   needs a change   no labels
History:  <none>
Events:
  Type      Reason            Age    From                  Message
  ----      ------            ----   ----                  -------
  Warning   SettingsInvalid   Ny     portcullis-reporter   0 of 1 replicas serve generation 2
"
    );
}

#[test]
fn what_a_folder_cannot_do_is_said() {
    let folder = folder();
    let _lock = running(folder.path());
    let history = portcullis(folder.path(), &["history", "required-labels"]);
    assert_eq!((history.out.as_str(), history.code), ("", Some(0)));
    assert_eq!(history.err, "namespaced/team-a/required-labels has no history yet.\n");
    let audit = portcullis(folder.path(), &["audit"]);
    assert_eq!(audit.code, Some(2));
    assert!(audit.err.starts_with("error: . is a folder of policies, which has no objects"), "{}", audit.err);
    let all = portcullis(folder.path(), &["audit", "-A"]);
    assert!(all.err.starts_with("error: there is no kubeconfig"), "only a cluster has objects: {}", all.err);
    for command in ["rollback", "diff"] {
        let refused = portcullis(folder.path(), &[command, "required-labels"]);
        assert_eq!(refused.code, Some(1));
        assert!(
            refused.err.starts_with("error: . is a folder, and a folder keeps no earlier generations:"),
            "{}",
            refused.err
        );
    }
}

#[test]
fn a_name_in_each_of_its_forms() {
    for name in ["policy/required-labels", "namespaced/team-a/required-labels", "required-labels"] {
        assert_eq!(get(&["get", name, "-o", "name"]), "namespaced/team-a/required-labels\n");
    }
    assert_eq!(get(&["get", "clusterpolicy/no-privileged", "-o", "name"]), "cluster/no-privileged\n");
    assert_eq!(get(&["get", "--dir", ".", "-n", "team-a", "-o", "name"]), "namespaced/team-a/required-labels\n");
    let all = "cluster/no-privileged\nnamespaced/team-a/required-labels\n";
    assert_eq!(get(&["get", "-A", "-o", "name"]), all, "`-A` does not choose the cluster");
}

#[test]
fn a_pod_that_is_not_running_is_told_beside_the_output() {
    let folder = folder();
    drop(running(folder.path()));
    let printed = portcullis(folder.path(), &["get", "-o", "name"]);
    assert_eq!(printed.code, Some(0));
    assert!(printed.out.starts_with("cluster/no-privileged\n"));
    assert!(
        printed.err.starts_with("This is as of 20") && printed.err.contains("`portcullis run` is not running"),
        "{}",
        printed.err
    );
}

#[test]
fn a_name_that_no_policy_or_several_have() {
    let folder = folder();
    let status = folder.path().join(".portcullis/status");
    let missing = portcullis(folder.path(), &["get", "labels"]);
    assert_eq!(
        missing.err,
        "error: no policy \"labels\" in .; there are cluster/no-privileged, namespaced/team-a/required-labels\n"
    );
    fs::create_dir_all(status.join("namespaced/team-b")).expect("makes");
    let other = KEPT.replace("team-a", "team-b");
    fs::write(status.join("namespaced/team-b/required-labels.yaml"), other).expect("writes");
    let several = portcullis(folder.path(), &["describe", "required-labels"]);
    assert_eq!(
        (several.code, several.err.as_str()),
        (
            Some(1),
            "error: \"required-labels\" is the name of several policies: namespaced/team-a/required-labels, \
             namespaced/team-b/required-labels; name one in full\n"
        )
    );
}
