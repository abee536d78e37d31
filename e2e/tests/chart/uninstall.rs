//! Uninstalling does not leave anything that blocks a cluster.

use std::process::Command;

use portcullis_e2e::{Helm, Program, eventually, objects_of};
use serde_json::{Value, json};

use crate::{args, cluster, container, find, has, helm, render};

/// The resources that an account has deleted or patched, in the order of the calls.
fn writes_of(account: &str) -> Vec<String> {
    let mut events = cluster().audit_events(account);
    events.retain(|event| {
        let is_write = ["delete", "patch"].iter().any(|verb| event["verb"] == *verb);
        is_write && event["user"]["username"] == account && event["stage"] == "ResponseComplete"
    });
    let resource = |event: &Value| event["objectRef"]["resource"].as_str().unwrap_or_default().to_owned();
    events.iter().map(resource).collect()
}

#[test]
fn a_job_with_an_account_of_its_own_runs_before_anything_is_deleted() {
    let objects = render(&json!({}));
    for (kind, name) in [
        ("Job", "portcullis-uninstall"),
        ("ServiceAccount", "portcullis-uninstall"),
        ("Role", "portcullis-uninstall"),
        ("RoleBinding", "portcullis-uninstall"),
    ] {
        let annotations = &find(&objects, kind, name)["metadata"]["annotations"];
        assert_eq!(annotations["helm.sh/hook"], "pre-delete", "{kind}");
        assert_eq!(annotations["helm.sh/hook-delete-policy"], "before-hook-creation,hook-succeeded", "{kind}");
        let weight: i32 = annotations["helm.sh/hook-weight"].as_str().unwrap().parse().unwrap();
        assert_eq!(weight < 0, kind != "Job", "{kind}: rights are there before the Job is");
    }
    let job = find(&objects, "Job", "portcullis-uninstall");
    assert_eq!(job["spec"]["template"]["spec"]["serviceAccountName"], "portcullis-uninstall");
    assert_eq!(job["spec"]["activeDeadlineSeconds"], 180);
    assert!(args(container(&objects, "uninstall")).contains(&"--uninstall=portcullis-controller"));
    assert!(!has(&render(&json!({ "uninstall": { "hook": false } })), "Job", "portcullis-uninstall"));
}

#[test]
fn whoever_applies_what_helm_prints_can_leave_out_what_uninstalls() {
    let chart = Helm::chart().display().to_string();
    let rendered = helm().run(None, ["template", "portcullis", &chart, "--no-hooks"], "");
    assert!(rendered.is_ok(), "{}", rendered.stderr);
    let objects = objects_of(&rendered.stdout);
    assert!(has(&objects, "Deployment", "portcullis-controller"));
    for object in &objects {
        assert!(!["Job", "Pod"].map(Value::from).contains(&object["kind"]), "{}", object["metadata"]["name"]);
    }
}

#[test]
fn what_the_account_may_do_in_the_whole_cluster_is_there_before_it_is_needed() {
    // While a webhook has no server, the API server may refuse all cluster-scoped objects, so these cannot be hooks.
    let objects = render(&json!({}));
    for kind in ["ClusterRole", "ClusterRoleBinding"] {
        let role = find(&objects, kind, "portcullis-default-uninstall");
        assert!(role["metadata"]["annotations"]["helm.sh/hook"].is_null(), "{kind}");
    }
    for object in objects.iter().filter(|object| !object["metadata"]["annotations"]["helm.sh/hook"].is_null()) {
        assert_eq!(object["metadata"]["namespace"], crate::NAMESPACE, "{} is a hook", object["metadata"]["name"]);
    }
}

#[test]
#[ignore = "starts a cluster"]
fn fault_k10_the_controllers_end_then_the_webhooks_go_then_the_finalizers() {
    /// Webhooks as controllers name them: this policy server's, and another one's.
    const ONE: &str = "portcullis-leaving-0123456789abcdef";
    const OTHER: &str = "portcullis-others-0123456789abcdef";
    let namespace = "leaving";
    let apply = |objects: &[Value]| {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        cluster().apply_server_side(&list.to_string()).expect("objects");
    };
    apply(&[json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } })]);
    let rendered = crate::helm().template("leaving", namespace, &json!({ "policyServer": "leaving" }));
    let mut objects = portcullis_e2e::objects_of(&rendered.stdout);
    // The Job's pod would wait for a node.
    objects.retain(|object| object["kind"] != "Job");
    apply(&objects);
    let definitions = portcullis_e2e::Helm::chart().join("definitions").display().to_string();
    let wait = ["wait", "--for=condition=Established", "--timeout=180s", "--filename", &definitions];
    cluster().kubectl(wait).expect("definitions that are served");

    let webhook = |kind: &str, name: &str, server: &str| {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
            "metadata": { "name": name, "labels": {
                "app.kubernetes.io/managed-by": "portcullis-controller", "policies.portcullis.dev/policy-server": server,
            } },
            "webhooks": [],
        })
    };
    let policy = |name: &str, server: &str| {
        json!({
            "apiVersion": "policies.portcullis.dev/v1alpha1", "kind": "ClusterPolicy",
            "metadata": { "name": name, "finalizers": ["policies.portcullis.dev/webhooks", "example.com/stays"] },
            "spec": {
                "policyServer": server, "module": "https://example.com/m.wasm",
                "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"] }],
            },
        })
    };
    let kinds = ["ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"];
    for kind in kinds {
        apply(&[webhook(kind, ONE, "leaving"), webhook(kind, OTHER, "others")]);
    }
    let mut namespaced = policy("leaving-own", "leaving");
    namespaced["kind"] = "Policy".into();
    namespaced["metadata"]["namespace"] = namespace.into();
    apply(&[policy("leaving-one", "leaving"), policy("leaving-other", "others"), namespaced]);
    let lease = |name: &str| {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": name, "namespace": namespace }, "spec": { "holderIdentity": "gone" },
        })
    };
    apply(&[lease("portcullis-leaving-reporter"), lease("portcullis-others-reporter")]);

    let token = cluster().token_for_pod(namespace, "portcullis-uninstall", "uninstall");
    let run = || {
        let output = Command::new(Program::Controller.path())
            .args(["--uninstall=portcullis-controller", "--namespace", namespace, "--policy-server", "leaving"])
            .args(["--service", "portcullis-policy-server"])
            .env("KUBECONFIG", cluster().kubeconfig_for(&token))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    run();

    let get =
        |what: &[&str]| cluster().kubectl(what.iter().copied().chain(["--ignore-not-found", "--output=name"])).stdout;
    assert_eq!(get(&["get", "deployment", "portcullis-controller", "--namespace", namespace]), "");
    for kind in kinds {
        assert_eq!(get(&["get", kind, ONE]), "");
        assert_ne!(get(&["get", kind, OTHER]), "");
    }
    let finalizers = |what: &[&str]| {
        let finalizers = "--output=jsonpath={.metadata.finalizers}";
        cluster().kubectl(["get", "--namespace", namespace, finalizers].iter().chain(what).copied()).stdout
    };
    assert_eq!(finalizers(&["clusterpolicy", "leaving-one"]), r#"["example.com/stays"]"#);
    assert_eq!(finalizers(&["policies.policies.portcullis.dev", "leaving-own"]), r#"["example.com/stays"]"#);
    assert_eq!(
        finalizers(&["clusterpolicy", "leaving-other"]),
        r#"["policies.portcullis.dev/webhooks","example.com/stays"]"#
    );
    let account = format!("system:serviceaccount:{namespace}:portcullis-uninstall");
    let order = eventually("the audit log", || {
        let writes = writes_of(&account);
        (writes.len() == 7).then_some(writes)
    });
    // Which kind of webhook is first, and which kind of policy, makes no difference.
    let mut order = order.into_iter();
    let mut next = |count| {
        let mut next: Vec<_> = order.by_ref().take(count).collect();
        next.sort();
        next
    };
    assert_eq!(next(1), ["deployments"]);
    assert_eq!(next(2), ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"]);
    assert_eq!(next(2), ["clusterpolicies", "policies"]);
    // Reporters still run, and would make another Lease if they could.
    assert_eq!((next(1), next(1)), (vec!["rolebindings".to_owned()], vec!["leases".to_owned()]));
    let left = get(&["get", "leases", "--namespace", namespace]);
    assert_eq!(left.trim(), "lease.coordination.k8s.io/portcullis-others-reporter");

    // A second run finds nothing to do.
    run();
    assert_eq!(writes_of(&account).len(), 7);
}
