//! The tool shows the findings of the audit. The test writes them in place of the reporter, so that they are the same each time.

use std::time::Duration;

use portcullis_e2e::{Installation, Policy, eventually};
use serde_json::{Value, json};

use crate::scene::kubeconfig_of;
use crate::{cluster, install, portcullis};

/// A policy in a namespace of its own, which has not been audited yet.
fn policy(installation: &Installation<'_>) -> (String, Policy) {
    let namespace = installation.make_namespace("a");
    let policy = installation.policy(&namespace, "labels").at("registry://example.com/labels:v1");
    installation.apply(&policy).expect("the policy");
    (namespace, policy)
}

/// Writes the figures of a scan.
fn put_audit(installation: &Installation<'_>, policy: &Policy, scanned_at: &str, violations: u32) {
    put_audit_for(installation, policy, scanned_at, violations, None);
}

/// Writes the figures of a scan that handled a request.
fn put_audit_for(
    installation: &Installation<'_>,
    policy: &Policy,
    scanned_at: &str,
    violations: u32,
    request: Option<&str>,
) {
    let audit = json!({
        "handledRequest": request,
        "scannedAt": scanned_at, "generation": 1, "checked": 12, "violations": violations, "errors": 0,
        "examples": if violations > 0 { json!(["Pod a/web-1"]) } else { Value::Null },
    });
    let status = json!({ "status": { "audit": audit } });
    let patched = installation.api().patch(&format!("{}/status", policy.path()), &status);
    patched.expect("an API server answers").expect("a status");
}

/// Writes the report about one object.
fn put_report(installation: &Installation<'_>, namespace: &str, name: &str, server: &str) {
    let report = json!({
        "apiVersion": "openreports.io/v1alpha1", "kind": "Report",
        "metadata": {
            "name": format!("portcullis-{server}-{name}"),
            "labels": { "app.kubernetes.io/managed-by": "portcullis", "policies.portcullis.dev/policy-server": server },
        },
        "scope": { "apiVersion": "v1", "kind": "Pod", "name": name, "namespace": namespace },
        "results": [
            { "policy": format!("namespaced/{namespace}/labels"), "result": "fail", "message": "missing labels: team" },
            { "policy": "cluster/other", "result": "fail", "message": "something else" },
        ],
        "summary": { "fail": 2 },
    });
    let path = format!("/apis/openreports.io/v1alpha1/namespaces/{namespace}/reports");
    installation.api().create(&path, &report).expect("an API server answers").expect("a report");
}

#[test]
#[ignore = "starts a cluster"]
fn objects_that_policies_reject_are_counted_and_named() {
    cluster().install_open_reports();
    let installation = install("audit");
    let (namespace, policy) = policy(&installation);
    let admin = cluster().kubeconfig();
    let tell = |words: &[&str]| portcullis(&admin, &[&["audit"][..], words, &["-n", namespace.as_str()]].concat());

    let nothing = tell(&["labels"]);
    assert_eq!(nothing.code, Some(2), "{nothing:?}");
    assert!(nothing.stderr.contains("there is no audit of") && nothing.stderr.contains("audit.enabled"), "{nothing:?}");
    assert_eq!(tell(&[]).code, Some(2));

    put_audit(&installation, &policy, "2026-01-01T00:00:00Z", 2);
    for name in ["web-1", "web-2"] {
        put_report(&installation, &namespace, name, installation.policy_server());
    }
    // This report is from another installation.
    put_report(&installation, &namespace, "web-3", "another");
    let id = format!("namespaced/{namespace}/labels");
    let all = tell(&[]);
    assert_eq!(all.code, Some(1), "{all:?}");
    let mut lines = all.stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(lines.next().unwrap(), ["NAME", "CHECKED", "VIOLATIONS", "ERRORS", "SCANNED"]);
    assert_eq!(lines.next().unwrap()[..4], [id.as_str(), "12", "2", "0"]);

    let one = tell(&["labels"]);
    assert_eq!(one.code, Some(1), "{one:?}");
    assert!(one.stdout.starts_with(&format!("{id}: 2 of 12 objects are rejected; scanned 2026-01-01")), "{one:?}");
    let rows: Vec<_> = one.stdout.lines().filter(|line| line.starts_with("Pod ")).collect();
    assert_eq!(rows.len(), 2, "{one:?}");
    assert!(rows[0].contains("web-1") && rows[0].ends_with("missing labels: team"), "{rows:?}");
    let json: Value = serde_json::from_str(&tell(&["labels", "-o", "json"]).stdout).unwrap();
    assert_eq!((&json["audit"]["violations"], &json["objects"][1]["name"]), (&json!(2), &json!("web-2")));
    let described = portcullis(&admin, &["describe", "labels", "-n", &namespace]);
    assert!(described.stdout.contains("2 of 12 objects are rejected"), "{described:?}");

    put_audit(&installation, &policy, "2026-01-01T00:00:00Z", 0);
    assert_eq!(tell(&["labels"]).code, Some(0));
    assert_eq!(tell(&[]).code, Some(0));
}

#[test]
#[ignore = "starts a cluster"]
fn who_may_not_read_reports_or_ask_for_a_scan_is_told_which_right_is_missing() {
    cluster().install_open_reports();
    let installation = install("audit-rights");
    let (namespace, policy) = policy(&installation);
    put_audit(&installation, &policy, "2026-01-01T00:00:00Z", 1);
    let rules = json!([{ "apiGroups": ["policies.portcullis.dev"], "resources": ["policies"], "verbs": ["get"] }]);
    let user = kubeconfig_of(&namespace, "reader", &rules);
    eventually("the rights to count", || {
        portcullis(&user, &["get", "policy/labels", "-n", &namespace]).is_ok().then_some(())
    });
    let told = portcullis(&user, &["audit", "policy/labels", "-n", &namespace]);
    assert_eq!(told.code, Some(1), "{told:?}");
    assert!(told.stdout.contains("Some of them: Pod a/web-1"), "{told:?}");
    assert!(told.stdout.contains("this needs the right to list reports.openreports.io"), "{told:?}");
    let asked = portcullis(&user, &["audit", "policy/labels", "-n", &namespace, "--now"]);
    assert_eq!(asked.code, Some(2), "{asked:?}");
    assert!(asked.stderr.contains("this needs the right to patch policies.policies.portcullis.dev"), "{asked:?}");
}

#[test]
#[ignore = "starts a cluster"]
fn a_scan_is_asked_for_by_an_annotation_and_waited_for() {
    let installation = install("audit-now");
    let (namespace, policy) = policy(&installation);
    let admin = cluster().kubeconfig();
    put_audit(&installation, &policy, "2026-01-01T00:00:00Z", 1);
    let annotation = || {
        let object = installation.object(&policy).expect("the policy");
        object["metadata"]["annotations"]["policies.portcullis.dev/audit-requested-at"].as_str().map(str::to_owned)
    };
    let asked = portcullis(&admin, &["audit", "labels", "-n", &namespace, "--now"]);
    assert_eq!(asked.code, Some(0), "{asked:?}");
    let first = annotation().expect("an annotation");

    // There is no reporter that scans.
    let late = portcullis(&admin, &["audit", "labels", "-n", &namespace, "--now", "--wait", "--timeout", "2s"]);
    assert_eq!(late.code, Some(2), "{late:?}");
    assert!(late.stderr.contains("has not been scanned after 2s; the last scan was at 2026-01-01"), "{late:?}");
    let second = annotation().expect("an annotation");
    assert_ne!(first, second);

    let words = ["audit", "labels", "-n", &namespace, "--now", "--wait"];
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| portcullis(&admin, &words));
        let request = eventually("the annotation", || annotation().filter(|now| *now != second));
        // A scan that had begun before, and ends after the request.
        put_audit_for(&installation, &policy, "2100-01-01T00:00:00Z", 1, Some(&second));
        // It looks once a second.
        std::thread::sleep(Duration::from_secs(3));
        assert!(!waiting.is_finished(), "the scan began before the request");
        put_audit_for(&installation, &policy, "2100-01-01T00:00:01Z", 0, Some(&request));
        let found = waiting.join().expect("it ends");
        assert_eq!(found.code, Some(0), "{found:?}");
        assert!(found.stdout.contains("0 of 12 objects are rejected"), "{found:?}");
    });
    let refused = portcullis(&admin, &["audit", "--now"]);
    assert_eq!(refused.code, Some(64), "{refused:?}");
}
