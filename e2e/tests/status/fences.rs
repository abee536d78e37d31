//! What a reporter's token may and may not do.

use std::thread;
use std::time::{Duration, Instant};

use portcullis_e2e::{Output, POLICY_SERVER_ACCOUNT, Policy, eventually_within};
use serde_json::{Value, json};

use crate::cluster;
use crate::stage::{Replica, SOON, Stage};
use crate::states::Says;

/// How a report is written, without the right to read it. `kubectl patch` would read it first.
const APPLY: [&str; 5] =
    ["apply", "--server-side", "--force-conflicts", "--field-manager=portcullis-test", "--filename=-"];

/// An edit of the report of this pod.
fn edit(pod: &str, spec: Value) -> String {
    let metadata = json!({ "name": pod });
    json!({
        "apiVersion": "policies.portcullis.dev/v1alpha1", "kind": "ReplicaReport", "metadata": metadata, "spec": spec,
    })
    .to_string()
}

/// Waits until the API server enforces the rules of the chart. It needs a moment to learn of a new rule.
pub(crate) fn wait_until_fenced(stage: &Stage, replicas: &[Replica]) {
    let own = stage.installation.cluster();
    let home = format!("--namespace={}", stage.installation.namespace());
    let reports = "replicareports.policies.portcullis.dev";
    for verb in ["apply", "delete", "replace"] {
        eventually_within(SOON, &format!("a rule to count about {verb}"), || {
            // Finds the holder each time, because another replica may hold the Lease by now.
            let holder = stage.wait_for_holder();
            eventually_within(SOON, "the holder's report", || stage.report(&holder));
            let other = replicas.iter().find(|replica| replica.name() != holder).expect("two replicas");
            let kubeconfig = own.kubeconfig_for(&stage.installation.token(POLICY_SERVER_ACCOUNT, &other.pod));
            let mut forged = lease(stage);
            forged["spec"]["holderIdentity"] = json!("somebody-else");
            forged["metadata"].as_object_mut().expect("an object").remove("resourceVersion");
            let (mut args, input) = match verb {
                "apply" => (APPLY.to_vec(), edit(&holder, json!({ "manifestNumber": 0 }))),
                "delete" => (vec!["delete", reports, holder.as_str()], String::new()),
                _ => (vec!["replace", "--filename=-"], forged.to_string()),
            };
            args.extend(["--dry-run=server", &home]);
            let tried = own.kubectl_as(&kubeconfig, args, &input);
            tried.stderr.contains("ValidatingAdmissionPolicy").then_some(())
        });
    }
}

fn lease(stage: &Stage) -> Value {
    stage.installation.api().find(&stage.lease()).expect("a Lease")
}

/// The answers of the API server to calls with a replica's token.
struct Tried {
    status: Output,
    event: Output,
    /// An edit of the Lease with another holder.
    forged: Output,
    /// The deletion of the holder's report; `None` if the replica is the holder.
    deleted: Option<Output>,
}

/// Tries what only the holder may do, and what no replica may do. Created objects have the round in their names.
fn tries(stage: &Stage, replica: &Replica, policy: &Policy, holder: &str, round: usize) -> Tried {
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
    let event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": { "name": format!("by-{}-{round}", replica.name()), "namespace": stage.namespace },
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "test", "reportingInstance": "test",
        "action": "Test", "reason": "Test", "type": "Normal", "note": "",
        "regarding": { "kind": "Policy", "name": "labels", "namespace": stage.namespace },
    });
    let event = run(&["create", "--filename=-"], &event.to_string());
    let mut forged = lease(stage);
    forged["spec"]["holderIdentity"] = json!("somebody-else");
    let forged = run(&["replace", "--filename=-", &home], &forged.to_string());
    let delete = ["delete", "replicareports.policies.portcullis.dev", holder, &home];
    let deleted = (replica.name() != holder).then(|| run(&delete, ""));
    Tried { status, event, forged, deleted }
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
    let apply = |pod: &str, spec: Value| {
        cluster().kubectl_as(&kubeconfig, APPLY.into_iter().chain([namespace.as_str()]), &edit(pod, spec))
    };
    let own = apply(replicas[0].name(), json!({ "manifestNumber": 0 }));
    assert!(own.is_ok(), "its own: {}", own.stderr);
    let other = apply(replicas[1].name(), json!({ "manifestNumber": 0 }));
    assert!(!other.is_ok() && other.stderr.contains("is not that of the pod"), "{}", other.stderr);
    let uid = reports[1]["spec"]["podUID"].as_str().unwrap();
    let forged = apply(replicas[0].name(), json!({ "manifestNumber": 0, "podUID": uid }));
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
    let held = || {
        let spec = lease(&stage)["spec"].clone();
        Some((spec["holderIdentity"].as_str()?.to_owned(), spec["leaseTransitions"].clone()))
    };
    let mut round = 0;
    let (holder, all) = eventually_within(SOON, "a holder that stays the holder meanwhile", || {
        let before = held().filter(|(holder, _)| !holder.is_empty())?;
        round += 1;
        let all: Vec<_> = replicas.iter().map(|replica| tries(&stage, replica, &policy, &before.0, round)).collect();
        (held()? == before).then_some((before.0, all))
    });
    for (replica, tried) in replicas.iter().zip(all) {
        let leads = replica.name() == holder;
        assert_eq!(tried.status.stderr.contains("does not hold the Lease"), !leads, "{}", tried.status.stderr);
        assert_eq!(tried.event.is_ok(), leads, "{}", tried.event.stderr);
        assert!(!tried.forged.is_ok(), "the Lease was given to another");
        assert_eq!(tried.deleted.is_none(), leads);
        assert!(!tried.deleted.is_some_and(|deleted| deleted.is_ok()), "the holder's report was removed");
    }
}

/// Verb, resource, namespace (`-` for all, `home` for the installation's, `other` for another one), and whether it is allowed.
const MATRIX: &[(&str, &str, &str, bool)] = &[
    ("create", "replicareports.policies.portcullis.dev", "home", true),
    ("patch", "replicareports.policies.portcullis.dev", "home", true),
    ("get", "replicareports.policies.portcullis.dev", "home", false),
    ("list", "replicareports.policies.portcullis.dev", "home", true),
    ("delete", "replicareports.policies.portcullis.dev", "home", true),
    ("list", "replicareports.policies.portcullis.dev", "-", false),
    ("list", "policies.policies.portcullis.dev", "-", true),
    ("watch", "clusterpolicies.policies.portcullis.dev", "-", true),
    ("patch", "policies.policies.portcullis.dev/status", "-", true),
    ("patch", "clusterpolicies.policies.portcullis.dev/status", "-", true),
    ("create", "policies.policies.portcullis.dev", "-", false),
    ("patch", "policies.policies.portcullis.dev", "-", false),
    ("update", "policies.policies.portcullis.dev", "-", false),
    ("delete", "policies.policies.portcullis.dev", "-", false),
    ("update", "policies.policies.portcullis.dev/status", "-", false),
    ("create", "clusterpolicies.policies.portcullis.dev", "-", false),
    ("patch", "clusterpolicies.policies.portcullis.dev", "-", false),
    ("update", "clusterpolicies.policies.portcullis.dev", "-", false),
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
    ("create", "secrets", "home", false),
    ("update", "secrets", "home", false),
    ("patch", "secrets", "home", false),
    ("delete", "secrets", "home", false),
    ("list", "secrets", "-", false),
    ("create", "secrets", "-", false),
    ("get", "pods", "home", false),
    ("get", "secrets", "other", false),
    ("create", "secrets", "other", false),
    ("update", "secrets", "other", false),
    ("patch", "secrets", "other", false),
    ("delete", "secrets", "other", false),
    ("create", "configmaps", "other", false),
    ("update", "configmaps", "other", false),
    ("patch", "configmaps", "other", false),
    ("delete", "configmaps", "other", false),
    ("create", "replicareports.policies.portcullis.dev", "other", false),
    ("patch", "replicareports.policies.portcullis.dev", "other", false),
    ("delete", "replicareports.policies.portcullis.dev", "other", false),
    ("create", "leases.coordination.k8s.io", "other", false),
    ("update", "leases.coordination.k8s.io", "other", false),
    ("list", "controllerrevisions.apps", "other", false),
    ("create", "serviceaccounts/token", "other", false),
    // The account may list Namespaces, LimitRanges and PodTemplates here, by `rbac.contextAwareReads`.
    ("list", "nodes", "-", false),
    ("create", "pods", "home", false),
    ("create", "serviceaccounts/token", "home", false),
    ("list", "validatingwebhookconfigurations.admissionregistration.k8s.io", "-", false),
    ("create", "validatingwebhookconfigurations.admissionregistration.k8s.io", "-", false),
    ("patch", "validatingwebhookconfigurations.admissionregistration.k8s.io", "-", false),
    ("update", "validatingwebhookconfigurations.admissionregistration.k8s.io", "-", false),
    ("delete", "validatingwebhookconfigurations.admissionregistration.k8s.io", "-", false),
    ("create", "mutatingwebhookconfigurations.admissionregistration.k8s.io", "-", false),
    ("patch", "mutatingwebhookconfigurations.admissionregistration.k8s.io", "-", false),
    ("update", "mutatingwebhookconfigurations.admissionregistration.k8s.io", "-", false),
    ("delete", "mutatingwebhookconfigurations.admissionregistration.k8s.io", "-", false),
    ("patch", "clusterroles.rbac.authorization.k8s.io", "-", false),
];

#[test]
#[ignore = "starts a cluster"]
fn fault_x04_a_reporter_may_do_what_the_table_says_and_nothing_else() {
    let (stage, replicas) = Stage::with(cluster(), "matrix", 1);
    let home = stage.installation.namespace().to_owned();
    let user = format!("system:serviceaccount:{home}:{POLICY_SERVER_ACCOUNT}");
    // The groups that every account of the namespace is in.
    let groups = json!(["system:serviceaccounts", format!("system:serviceaccounts:{home}"), "system:authenticated"]);
    let is_wrong = |(verb, resource, namespace, allowed): &(&str, &str, &str, bool)| {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
        let namespace = match *namespace {
            "home" => home.as_str(),
            "other" => stage.namespace.as_str(),
            _ => "",
        };
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": { "user": user, "groups": groups, "resourceAttributes": {
                "verb": verb, "group": group, "resource": resource, "subresource": subresource, "namespace": namespace,
            } },
        });
        let api = stage.installation.api();
        let answer =
            api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review).unwrap().expect("a review");
        answer["status"]["allowed"] != *allowed
    };
    // An API server needs a moment to notice new rights.
    let start = Instant::now();
    loop {
        let wrong: Vec<_> = MATRIX.iter().filter(|row| is_wrong(row)).collect();
        if wrong.is_empty() {
            break;
        }
        assert!(start.elapsed() < SOON, "not as the table says: {wrong:?}");
        thread::sleep(Duration::from_millis(200));
    }
    let (policy, before) = stage.policy("labels");
    assert_edits_are_forbidden(&stage, &replicas[0], &policy);
    let after = stage.installation.object(&policy).expect("the policy is still there");
    assert_eq!(after["spec"], before["spec"]);
}

/// Makes edits with the token of a reporter. Each must be answered with 403.
fn assert_edits_are_forbidden(stage: &Stage, replica: &Replica, policy: &Policy) {
    let kubeconfig = cluster().kubeconfig_for(&stage.installation.token(POLICY_SERVER_ACCOUNT, &replica.pod));
    let (home, other) = (stage.installation.namespace(), stage.namespace.as_str());
    let named = |api: &str, kind: &str, namespace: &str, name: &str| {
        let metadata = json!({ "name": name, "namespace": namespace });
        json!({ "apiVersion": api, "kind": kind, "metadata": metadata })
    };
    let mut edited = policy.manifest(stage.installation.source());
    edited["spec"]["mode"] = json!("monitor");
    let mut webhook =
        named("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "", "edited-by-a-reporter");
    webhook["webhooks"] = json!([]);
    let mut secret = named("v1", "Secret", home, &format!("portcullis-{}-tls", stage.installation.policy_server()));
    secret["data"] = json!({ "tls.key": "" });
    let secret_path = format!("/api/v1/namespaces/{home}/secrets/{}", secret["metadata"]["name"].as_str().unwrap());
    let hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/edited-by-a-reporter";
    let config_map = named("v1", "ConfigMap", other, "made-by-a-reporter");
    let (post, path) = (["create", "--filename=-"], policy.path());
    let patch = ["apply", "--server-side", "--force-conflicts", "--validate=false", "--filename=-"];
    let put = |path| ["replace", "--raw", path, "--filename=-"];
    let delete = |path| ["delete", "--raw", path];
    let edits: [(&str, &str, &[&str], &Value); 10] = [
        ("patch", "policies", &patch, &edited),
        ("update", "policies", &put(&path), &edited),
        ("delete", "policies", &delete(&path), &Value::Null),
        ("create", "validatingwebhookconfigurations", &post, &webhook),
        ("patch", "validatingwebhookconfigurations", &patch, &webhook),
        ("delete", "validatingwebhookconfigurations", &delete(hooks), &Value::Null),
        ("patch", "secrets", &patch, &secret),
        ("update", "secrets", &put(&secret_path), &secret),
        ("delete", "secrets", &delete(&secret_path), &Value::Null),
        ("create", "configmaps", &post, &config_map),
    ];
    for (verb, resource, args, object) in edits {
        let tried = cluster().kubectl_as(&kubeconfig, args.iter().copied(), &object.to_string());
        let words = format!("cannot {verb} resource \"{resource}\"");
        assert!(
            !tried.is_ok() && tried.stderr.contains("(Forbidden)") && tried.stderr.contains(&words),
            "{words}: {tried:?}"
        );
    }
}
