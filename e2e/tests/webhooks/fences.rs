//! What a stolen token of the controller can do, and what it cannot.

use portcullis_e2e::{CONTROLLER_ACCOUNT, Output, eventually};
use serde_json::{Value, json};

use crate::cluster;
use crate::scene::Scene;

const VALIDATING: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

/// A webhook configuration that matches nothing, with this `clientConfig`.
fn webhook(name: &str, client: &Value) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": name },
        "webhooks": [{
            "name": "stolen.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "failurePolicy": "Ignore", "clientConfig": client,
            "rules": [{ "apiGroups": ["none.example.com"], "apiVersions": ["v1"], "resources": ["none"], "operations": ["CREATE"] }],
        }],
    })
}

fn secret(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name } })
}

#[test]
#[ignore = "starts a cluster"]
fn fault_x03_the_controller_writes_nothing_but_its_own() {
    let scene = Scene::new("stolen", 1);
    let installation = &scene.installation;
    let canary = installation.own_canary();
    let policy = installation.cluster_policy("stolen-deny").denying("no");
    installation.apply_ready(std::slice::from_ref(&policy));
    let name = policy.name().to_owned();
    // Somebody else's finalizer and webhook configuration.
    let change = |metadata: Value, spec: Value| {
        let mut object = json!({
            "apiVersion": "policies.portcullis.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": metadata, "spec": spec,
        });
        object["metadata"]["name"] = json!(name);
        object
    };
    let finalizers = |names: &[&str]| change(json!({ "finalizers": names }), json!({}));
    let held = finalizers(&["example.com/held"]);
    installation.api().apply(&policy.path(), "somebody", &held).expect("an answer").expect("a finalizer");
    let [own] = scene.webhooks(1).try_into().expect("one");
    let service = own["webhooks"][0]["clientConfig"].clone();
    let others = format!("somebody-{}", installation.policy_server());
    installation.api().create(VALIDATING, &webhook(&others, &service)).expect("an answer").expect("it is made");

    let kubeconfig = cluster().kubeconfig_for(&installation.token(CONTROLLER_ACCOUNT, &scene.controller));
    let home = format!("--namespace={}", installation.namespace());
    let run = |args: &[&str], input: &Value| -> Output {
        let args = [args, &[home.as_str(), "--dry-run=server"]].concat();
        cluster().kubectl_as(&kubeconfig, args.iter().copied(), &input.to_string())
    };
    let apply = |manager: &str, change: &Value| {
        let manager = format!("--field-manager={manager}");
        run(&["apply", "--server-side", "--force-conflicts", &manager, "--filename=-"], change)
    };
    let create = |object: &Value| run(&["create", "--filename=-"], object);
    let is_fenced = |tried: &Output, words: &str| !tried.is_ok() && tried.stderr.contains(words);

    let gone = json!({ "apiVersion": "v1", "kind": "Namespace", "name": "gone", "uid": "c5c5a7f5-0000-4000-8000-000000000000" });
    let edits = [
        change(json!({}), json!({ "mode": "monitor" })),
        change(json!({ "labels": { "team": "other" } }), json!({})),
        change(json!({ "annotations": { "note": "other" } }), json!({})),
        // With an owner that does not exist, the garbage collector would delete the policy.
        change(json!({ "ownerReferences": [gone] }), json!({})),
    ];
    // It takes an API server a moment to notice a new rule.
    eventually("the rules to count", || is_fenced(&apply("thief", &edits[0]), "nothing of a policy").then_some(()));
    eventually("the rules to count", || is_fenced(&create(&secret("any")), "keeps no Secret any").then_some(()));
    let another = webhook(&others.replace("somebody", "another"), &service);
    let no_such_name = "no webhook configuration of that name";
    eventually("the rules to count", || is_fenced(&create(&another), no_such_name).then_some(()));
    for edit in &edits {
        let tried = apply("thief", edit);
        assert!(is_fenced(&tried, "changes nothing of a policy but its finalizer"), "{tried:?}");
    }
    for names in [&[][..], &["example.com/held", "example.com/other"]] {
        let tried = apply("somebody", &finalizers(names));
        assert!(is_fenced(&tried, "no finalizer of others"), "{tried:?}");
    }
    apply("portcullis-controller", &finalizers(&[])).expect("its own finalizer");

    // Under the controller's own names, writes are allowed, but webhooks must call the policy server.
    let prefix = format!("portcullis-{}-", installation.policy_server());
    let again = create(&secret(&format!("{prefix}ca")));
    assert!(again.is_ok() || again.stderr.contains("already exists"), "{again:?}");
    let group = format!("{prefix}0123456789abcdef");
    let tried = create(&webhook(&group, &json!({ "url": "https://example.com/" })));
    assert!(is_fenced(&tried, "lead to the policy server and nowhere else"), "{tried:?}");
    let mut elsewhere = service.clone();
    elsewhere["service"]["namespace"] = json!("default");
    let tried = create(&webhook(&group, &elsewhere));
    assert!(is_fenced(&tried, "lead to the policy server and nowhere else"), "{tried:?}");
    create(&webhook(&group, &service)).expect("one of its own");
    create(&webhook(&format!("{prefix}check"), &service)).expect("one of its own");
    // A policy server whose name is longer by `-b` has webhooks whose names begin like these.
    let neighbours = format!("{prefix}b-0123456789abcdef");
    for name in [&neighbours, &format!("{prefix}b-check"), &format!("{prefix}stolen"), &format!("{group}0")] {
        let tried = create(&webhook(name, &service));
        assert!(is_fenced(&tried, no_such_name), "{name}: {tried:?}");
    }
    installation.api().create(VALIDATING, &webhook(&neighbours, &service)).expect("an answer").expect("it is made");
    for name in [&others, &neighbours] {
        let path = format!("{VALIDATING}/{name}");
        let tried = cluster().kubectl_as(&kubeconfig, ["delete", "--raw", &format!("{path}?dryRun=All")], "");
        assert!(is_fenced(&tried, no_such_name), "{name}: {tried:?}");
        installation.api().delete(&path, None).expect("an answer").expect("it goes");
    }
    installation.api().apply(&policy.path(), "somebody", &finalizers(&[])).expect("an answer").expect("it is free");
    canary.end();
}
