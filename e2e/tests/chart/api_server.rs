//! A real API server accepts the whole chart, and Helm installs, upgrades and removes it.

use std::fs;

use portcullis_e2e::{Cluster, Helm, Options, Output, eventually};
use serde_json::{Value, json};

use crate::{cluster, everything, helm, render};

/// Creates a namespace with the strictest pod security.
fn make_namespace(cluster: &Cluster, name: &str) {
    let labels =
        json!({ "pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted" });
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels } });
    cluster.apply(&namespace.to_string()).expect("a namespace");
}

/// Runs a Helm command with the chart and these values.
fn at_cluster(cluster: &Cluster, command: &[&str], values: &Value) -> Output {
    let chart = Helm::chart().display().to_string();
    let args = command.iter().copied().chain([chart.as_str(), "--values", "-"]);
    helm().run(Some(&cluster.kubeconfig()), args, &values.to_string())
}

/// Objects as one List, for kubectl.
fn list(objects: &[Value]) -> String {
    json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string()
}

/// Values that switch off everything that is on by default, with sizes at their limits and a name that looks like a number.
fn bare() -> Value {
    json!({
        "policyServer": "1e3",
        "server": { "replicas": 0, "priorityClassName": "system-node-critical" },
        "evaluator": { "resources": { "requests": { "cpu": 0.1, "memory": 1 }, "limits": { "cpu": 96, "memory": "1Ti" } } },
        "reporter": { "resources": { "requests": null, "limits": null } },
        "controller": { "replicas": 0 },
        "volume": { "persistence": { "enabled": true } },
        "disruptionBudget": { "enabled": false },
        "networkPolicy": { "enabled": false },
        "siblings": { "enabled": true },
        "crds": { "keep": false },
        "fences": { "enabled": false },
        "rbac": { "aggregateToView": false },
        "uninstall": { "hook": false },
        "service": { "ipFamilyPolicy": "SingleStack" },
    })
}

#[test]
#[ignore = "starts a cluster"]
fn every_object_passes_the_checks_of_a_real_api_server() {
    make_namespace(cluster(), crate::NAMESPACE);
    let dry_run = ["apply", "--server-side", "--force-conflicts", "--dry-run=server", "--filename=-"];
    for (values, templates_with_pods) in [(json!({}), 3), (everything(), 3), (bare(), 2)] {
        let (accounts, others): (Vec<_>, Vec<_>) =
            render(&values).into_iter().partition(|object| object["kind"] == "ServiceAccount");
        // Pods are refused if their service account does not exist.
        cluster().apply(&list(&accounts)).expect("the accounts");
        let said = cluster().kubectl_as(&cluster().kubeconfig(), dry_run, &list(&others));
        assert!(said.is_ok(), "{}", said.stderr);
        assert_eq!(said.stderr, "", "the API server warns");
        // Pod security applies to pods, so each template is tried as a pod. The Pod of `helm test` was tried above.
        let templates = others.iter().filter(|object| !object["spec"]["template"]["spec"].is_null());
        let made = templates.map(|object| {
            let template = &object["spec"]["template"];
            let metadata = json!({ "name": object["metadata"]["name"], "namespace": crate::NAMESPACE, "labels": template["metadata"]["labels"] });
            let mut spec = template["spec"].clone();
            // The StatefulSet would create a claim for this volume.
            if let Some(volumes) = spec["volumes"].as_array_mut() {
                volumes.retain(|volume| volume["name"] != "volume");
                volumes.push(json!({ "name": "volume", "emptyDir": {} }));
            }
            json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec })
        });
        let made: Vec<_> = made.collect();
        assert_eq!(made.len(), templates_with_pods, "policy server, controller, and the Job that uninstalls");
        let said = cluster().kubectl_as(&cluster().kubeconfig(), dry_run, &list(&made));
        assert!(said.is_ok(), "{}", said.stderr);
        assert_eq!(said.stderr, "", "the strictest pod security warns");
    }
}

#[test]
#[ignore = "starts a cluster"]
fn a_switch_of_the_volume_keeps_the_number_of_pods_and_what_is_marked_to_be_kept() {
    const NAME: &str = "switched";
    make_namespace(cluster(), NAME);
    let values = |persistence: bool| {
        json!({
            "policyServer": NAME, "crds": { "install": false }, "fences": { "enabled": false },
            "autoscaling": { "enabled": true }, "volume": { "persistence": { "enabled": persistence } },
        })
    };
    let helm_at = |command: &str, persistence| {
        let done = at_cluster(cluster(), &[command, NAME, "--namespace", NAME], &values(persistence));
        assert!(done.is_ok(), "{}", done.stderr);
    };
    let at_server = |words: &[&str], kind: &str, more: &[&str]| {
        let args = words.iter().copied().chain([kind, "portcullis-policy-server", "--namespace", NAME]);
        cluster().kubectl(args.chain(more.iter().copied())).expect("the policy server").to_owned()
    };
    let keep = |kind| at_server(&["annotate"], kind, &["helm.sh/resource-policy=keep"]);
    let pods = |kind| at_server(&["get"], kind, &["--output=jsonpath={.spec.replicas}"]);

    helm_at("install", false);
    // As an autoscaler does under load; without metrics that of the chart leaves a number that is within its limits.
    at_server(&["scale"], "deployment", &["--replicas=5"]);
    for (persistence, old, new) in [(true, "deployment", "statefulset"), (false, "statefulset", "deployment")] {
        keep(old);
        helm_at("upgrade", persistence);
        assert_eq!(pods(new), "5", "{new}");
        assert_eq!(pods(old), "5", "the {old} stays until it is deleted");
        at_server(&["delete"], old, &[]);
    }
    // `helm rollback` renders nothing, so the chart cannot refuse it. What it heeds is the annotation of the object in the cluster.
    keep("deployment");
    let back = helm().run(Some(&cluster().kubeconfig()), ["rollback", NAME, "2", "--namespace", NAME], "");
    assert!(back.is_ok(), "{}", back.stderr);
    for kind in ["statefulset", "deployment"] {
        assert_eq!(pods(kind), "5", "{kind}");
    }

    at_server(&["delete"], "deployment", &[]);
    let gone = helm().run(Some(&cluster().kubeconfig()), ["uninstall", NAME, "--namespace", NAME, "--no-hooks"], "");
    assert!(gone.is_ok(), "{}", gone.stderr);
}

#[test]
#[ignore = "starts a cluster"]
fn fault_x08_helm_installs_into_a_strict_namespace_and_upgrades_to_everything() {
    // It needs a cluster of its own, because Helm does not take over definitions that others have applied.
    let cluster = &Cluster::start(&Options::default()).unwrap();
    make_namespace(cluster, "strict");
    let values = json!({ "policyServer": "strict", "server": { "replicas": 2 } });
    let installed = at_cluster(cluster, &["install", "strict", "--namespace", "strict"], &values);
    assert!(installed.is_ok(), "{}", installed.stderr);
    for words in ["rollout status deployment/portcullis-policy-server", "`policyServer: strict`", "kubectl describe"] {
        assert!(installed.stdout.contains(words), "{words}: {}", installed.stdout);
    }
    // The controllers of Kubernetes create the pods, which pod security admits.
    eventually("two policy servers and two controllers", || {
        let pods = cluster.kubectl(["get", "pods", "--namespace", "strict", "--output=name"]);
        (pods.stdout.lines().count() == 4).then_some(())
    });
    let policy = fs::read_to_string(Helm::chart().join("../examples/no-privileged.yaml")).unwrap();
    let policy = policy.replace("modules/", "https://example.com/modules/");
    cluster.apply(&policy).expect("a policy");

    let mut all = everything();
    all["policyServer"] = json!("strict");
    // An upgrade must not change the kind of a policy server that is running.
    all["volume"]["persistence"]["enabled"] = json!(false);
    let upgraded = at_cluster(cluster, &["upgrade", "strict", "--namespace", "strict"], &all);
    assert!(upgraded.is_ok(), "{}", upgraded.stderr);
    let get =
        ["get", "deployment", "portcullis-controller", "--namespace", "strict", "--output=jsonpath={.spec.replicas}"];
    assert_eq!(cluster.kubectl(get).expect("the controller"), "3");
    // Handing the number of pods over to an autoscaler keeps the pods that serve.
    let get = [
        "get",
        "deployment",
        "portcullis-policy-server",
        "--namespace",
        "strict",
        "--output=jsonpath={.spec.replicas}",
    ];
    assert_ne!(cluster.kubectl(get).expect("the policy server"), "1");

    // With another name, the Service would select no pod before the API server refuses the rest.
    let renamed =
        at_cluster(cluster, &["upgrade", "strict", "--namespace", "strict"], &json!({ "policyServer": "other" }));
    let words = "policyServer is other, but the installation in the namespace strict is called strict";
    assert!(!renamed.is_ok() && renamed.stderr.contains(words), "{}", renamed.stderr);
    let get =
        ["get", "service", "portcullis-policy-server", "--namespace", "strict", "--output=jsonpath={.spec.selector}"];
    let service = cluster.kubectl(get);
    let selector = service.expect("the Service");
    assert!(selector.contains(r#""policies.portcullis.dev/policy-server":"strict""#), "{selector}");

    // Another release of the same policy server is refused.
    make_namespace(cluster, "second");
    let second = json!({ "policyServer": "strict", "crds": { "install": false } });
    let refused = at_cluster(cluster, &["install", "second", "--namespace", "second"], &second);
    assert!(!refused.is_ok() && refused.stderr.contains("portcullis-strict-"), "{}", refused.stderr);
    // A release of another policy server is accepted, but must not install the definitions again.
    let beside = json!({ "policyServer": "beside", "crds": { "install": false } });
    let installed = at_cluster(cluster, &["install", "second", "--namespace", "second"], &beside);
    assert!(installed.is_ok(), "{}", installed.stderr);

    for name in ["strict", "second"] {
        let gone = helm().run(Some(&cluster.kubeconfig()), ["uninstall", name, "--namespace", name, "--no-hooks"], "");
        assert!(gone.is_ok(), "{}", gone.stderr);
    }
    // Policies outlive the release.
    cluster.kubectl(["get", "clusterpolicies"]).expect("the definitions");
    // The definitions belong to the release that installed them, until another one takes them over explicitly.
    let take = |more: &[&str]| {
        at_cluster(cluster, &[&["install", "third", "--namespace", "second"], more].concat(), &json!({}))
    };
    let refused = take(&[]);
    assert!(!refused.is_ok() && refused.stderr.contains("policies.policies.portcullis.dev"), "{}", refused.stderr);
    let taken = take(&["--take-ownership"]);
    assert!(taken.is_ok(), "{}", taken.stderr);
    let gone =
        helm().run(Some(&cluster.kubeconfig()), ["uninstall", "third", "--namespace", "second", "--no-hooks"], "");
    assert!(gone.is_ok(), "{}", gone.stderr);
    cluster.kubectl(["get", "clusterpolicies"]).expect("the definitions");
    let kinds = "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings";
    let left = cluster.kubectl(["get", kinds, "--output=name"]);
    let ours: Vec<_> = left.expect("a list").lines().filter(|name| name.contains("portcullis-")).collect();
    // The rule about Leases stays for the next installation, and nothing else.
    let kept = ["validatingadmissionpolicy", "validatingadmissionpolicybinding"].into_iter().flat_map(|kind| {
        ["beside", "default", "strict"]
            .map(|server| format!("{kind}.admissionregistration.k8s.io/portcullis-{server}-leader"))
    });
    assert_eq!(ours, kept.collect::<Vec<_>>(), "{}", left.stdout);
}
