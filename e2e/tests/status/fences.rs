//! What a reporter's token may do, and what not.

use portcullis_e2e::{POLICY_SERVER_ACCOUNT, eventually_within};
use serde_json::json;

use crate::cluster;
use crate::stage::{Replica, SOON, Stage};
use crate::states::Says;

/// Waits until the API server keeps to the rules of the chart: of a new one it hears a moment after it was applied.
fn wait_until_fenced(stage: &Stage, replicas: &[Replica]) {
    let holder = stage.wait_for_holder();
    eventually_within(SOON, "the holder's report", || stage.report(&holder));
    let other = replicas.iter().find(|replica| replica.name() != holder).expect("two replicas");
    let kubeconfig = cluster().kubeconfig_for(&stage.installation.token(POLICY_SERVER_ACCOUNT, &other.pod));
    let home = format!("--namespace={}", stage.installation.namespace());
    let reports = "replicareports.policies.portcullis.dev";
    let mut forged = stage.installation.api().get(&stage.lease()).expect("a Lease");
    forged["spec"]["holderIdentity"] = json!("somebody-else");
    forged["metadata"].as_object_mut().expect("an object").remove("resourceVersion");
    let edit = json!({ "spec": { "manifestNumber": 0 } }).to_string();
    for (args, input) in [
        (&["patch", reports, &holder, "--type=merge", "--patch", &edit][..], String::new()),
        (&["delete", reports, &holder][..], String::new()),
        (&["replace", "--filename=-"][..], forged.to_string()),
    ] {
        let args = [args, &["--dry-run=server", &home]].concat();
        eventually_within(SOON, "a rule to count", || {
            let tried = cluster().kubectl_as(&kubeconfig, args.iter().copied(), &input);
            tried.stderr.contains("ValidatingAdmissionPolicy").then_some(())
        });
    }
}

#[test]
#[ignore = "starts a cluster"]
fn fault_x03_a_reporter_writes_the_report_of_no_other_pod() {
    let (stage, replicas) = Stage::with(cluster(), "fence", 2);
    let (_, object) = stage.policy("labels");
    replicas.iter().for_each(|replica| replica.says(&object, Says::Current));
    let reports: Vec<_> =
        replicas.iter().map(|replica| eventually_within(SOON, "a report", || stage.report(replica.name()))).collect();
    wait_until_fenced(&stage, &replicas);
    let token = stage.installation.token(POLICY_SERVER_ACCOUNT, &replicas[0].pod);
    let kubeconfig = cluster().kubeconfig_for(&token);
    let namespace = format!("--namespace={}", stage.installation.namespace());
    let edit = json!({ "spec": { "manifestNumber": 0 } }).to_string();
    let patch = |pod: &str, patch: &str| {
        let args =
            ["patch", "replicareports.policies.portcullis.dev", pod, &namespace, "--type=merge", "--patch", patch];
        cluster().kubectl_as(&kubeconfig, args, "")
    };
    assert!(patch(replicas[0].name(), &edit).is_ok(), "its own");
    let other = patch(replicas[1].name(), &edit);
    assert!(!other.is_ok() && other.stderr.contains("is not that of the pod"), "{}", other.stderr);
    let uid = reports[1]["spec"]["podUID"].as_str().unwrap();
    let forged = patch(replicas[0].name(), &json!({ "spec": { "podUID": uid } }).to_string());
    assert!(!forged.is_ok() && forged.stderr.contains("podUID"), "{}", forged.stderr);
}

#[test]
#[ignore = "starts a cluster"]
fn only_the_holder_of_the_lease_writes_status_and_events_and_removes_reports() {
    let (stage, replicas) = Stage::with(cluster(), "holder", 2);
    let (policy, object) = stage.policy("labels");
    replicas.iter().for_each(|replica| replica.says(&object, Says::Current));
    stage.word(&policy, "Active");
    wait_until_fenced(&stage, &replicas);
    let holder = stage.wait_for_holder();
    for replica in &replicas {
        let leads = replica.name() == holder;
        let kubeconfig = cluster().kubeconfig_for(&stage.installation.token(POLICY_SERVER_ACCOUNT, &replica.pod));
        let run = |args: &[&str], input: &str| cluster().kubectl_as(&kubeconfig, args.iter().copied(), input);
        let home = format!("--namespace={}", stage.installation.namespace());
        let generation = json!({
            "apiVersion": "policies.portcullis.dev/v1alpha1", "kind": "Policy",
            "metadata": { "name": policy.name(), "namespace": stage.namespace },
            "status": { "observedGeneration": 1 },
        });
        let apply = ["apply", "--server-side", "--force-conflicts", "--subresource=status", "--filename=-"];
        let status = run(&[&apply[..], &["--field-manager=portcullis-test"]].concat(), &generation.to_string());
        assert_eq!(status.stderr.contains("does not hold the Lease"), !leads, "{}", status.stderr);
        let event = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": { "name": format!("by-{}", replica.name()), "namespace": stage.namespace },
            "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "test", "reportingInstance": "test",
            "action": "Test", "reason": "Test", "type": "Normal", "note": "",
            "regarding": { "kind": "Policy", "name": "labels", "namespace": stage.namespace },
        });
        let event = run(&["create", "--filename=-"], &event.to_string());
        assert_eq!(event.is_ok(), leads, "{}", event.stderr);
        let name = stage.lease().rsplit('/').next().unwrap().to_owned();
        let lease = stage.installation.api().get(&stage.lease()).unwrap();
        let mut forged = lease.clone();
        forged["spec"]["holderIdentity"] = json!("somebody-else");
        let forged = run(&["replace", "--filename=-", &home], &forged.to_string());
        assert!(!forged.is_ok(), "{name} was given to another");
    }
    for replica in replicas.iter().filter(|replica| replica.name() != holder) {
        let kubeconfig = cluster().kubeconfig_for(&stage.installation.token(POLICY_SERVER_ACCOUNT, &replica.pod));
        let home = format!("--namespace={}", stage.installation.namespace());
        let delete = ["delete", "replicareports.policies.portcullis.dev", &holder, &home];
        assert!(!cluster().kubectl_as(&kubeconfig, delete, "").is_ok());
    }
}

/// Verb, resource, namespace (`-` for all, `home` for the installation's), and whether it is allowed.
const MATRIX: &[(&str, &str, &str, bool)] = &[
    ("create", "replicareports.policies.portcullis.dev", "home", true),
    ("patch", "replicareports.policies.portcullis.dev", "home", true),
    ("list", "replicareports.policies.portcullis.dev", "home", true),
    ("delete", "replicareports.policies.portcullis.dev", "home", true),
    ("list", "replicareports.policies.portcullis.dev", "-", false),
    ("list", "policies.policies.portcullis.dev", "-", true),
    ("watch", "clusterpolicies.policies.portcullis.dev", "-", true),
    ("patch", "policies.policies.portcullis.dev/status", "-", true),
    ("patch", "clusterpolicies.policies.portcullis.dev/status", "-", true),
    ("patch", "policies.policies.portcullis.dev", "-", false),
    ("update", "policies.policies.portcullis.dev", "-", false),
    ("update", "policies.policies.portcullis.dev/status", "-", false),
    ("create", "clusterpolicies.policies.portcullis.dev", "-", false),
    ("delete", "clusterpolicies.policies.portcullis.dev", "-", false),
    ("create", "events.events.k8s.io", "-", true),
    ("patch", "events.events.k8s.io", "-", true),
    ("delete", "events.events.k8s.io", "-", false),
    ("list", "endpointslices.discovery.k8s.io", "home", true),
    ("list", "endpointslices.discovery.k8s.io", "-", false),
    ("create", "leases.coordination.k8s.io", "home", true),
    ("delete", "leases.coordination.k8s.io", "home", false),
    ("list", "controllerrevisions.apps", "home", true),
    ("create", "controllerrevisions.apps", "home", false),
    ("patch", "controllerrevisions.apps", "home", false),
    ("get", "secrets", "home", false),
    ("list", "secrets", "-", false),
    ("get", "pods", "home", false),
    // Namespaces, limit ranges and pod templates are for policies here: `rbac.contextAwareReads`.
    ("list", "nodes", "-", false),
    ("create", "pods", "home", false),
    ("create", "serviceaccounts/token", "home", false),
    ("list", "validatingwebhookconfigurations.admissionregistration.k8s.io", "-", false),
    ("patch", "validatingwebhookconfigurations.admissionregistration.k8s.io", "-", false),
    ("create", "mutatingwebhookconfigurations.admissionregistration.k8s.io", "-", false),
    ("patch", "clusterroles.rbac.authorization.k8s.io", "-", false),
];

#[test]
#[ignore = "starts a cluster"]
fn fault_x04_a_reporter_may_do_what_the_table_says_and_nothing_else() {
    let stage = Stage::new(cluster(), "matrix");
    let home = stage.installation.namespace().to_owned();
    let user = format!("system:serviceaccount:{home}:{POLICY_SERVER_ACCOUNT}");
    let mut wrong = Vec::new();
    for (verb, resource, namespace, allowed) in MATRIX {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
        let namespace = if *namespace == "-" { "" } else { &home };
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": { "user": user, "resourceAttributes": {
                "verb": verb, "group": group, "resource": resource, "subresource": subresource, "namespace": namespace,
            } },
        });
        let api = stage.installation.api();
        let answer =
            api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review).unwrap().expect("a review");
        if answer["status"]["allowed"] != *allowed {
            wrong.push((verb, resource, group, subresource, namespace));
        }
    }
    assert!(wrong.is_empty(), "not as the table says: {wrong:?}");
}
