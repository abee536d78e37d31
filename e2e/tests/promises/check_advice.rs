//! Warnings and errors at `kubectl apply` about policies that load: rows C11 to C13.

use std::time::Duration;

use portcullis_e2e::{Cluster, Installation, InstallationOptions, Options, Policy, eventually, never};
use serde_json::{Value, json};

use crate::checks::{await_checks, checking, dry_run, kubectl_dry_run, labels};

/// A rule for CREATE requests of a resource.
fn rule(group: &str, version: &str, resource: &str) -> Value {
    json!({ "apiGroups": [group], "apiVersions": [version], "resources": [resource], "operations": ["CREATE"] })
}

/// What kubectl shows for a dry run of a policy, which must be admitted.
pub(crate) fn warnings(installation: &Installation<'_>, policy: &Policy) -> String {
    let output = kubectl_dry_run(installation, policy);
    assert!(output.is_ok(), "{output:?}");
    output.stderr
}

#[test]
#[ignore = "starts a cluster"]
fn fault_c11_rules_that_match_nothing_are_named_with_what_was_meant() {
    let installation = checking("advice-rules");
    let canary = installation.own_canary();
    let naming =
        |rule: Value| labels(&installation, "advice-rules-labels", &json!(["team"])).field("rules", json!([rule]));
    for (rule, text) in [
        (
            rule("", "v1", "configmap"),
            r#"this cluster has no resource "configmap" in group "" version v1; did you mean "configmaps"?"#,
        ),
        (rule("", "v1", "deployments"), r#""deployments" are in group "apps""#),
        (rule("app", "v1", "controllerrevisions"), r#"this cluster has no API group "app"; "#),
        (rule("apps", "v1beta1", "deployments"), "deployments are served in apps/v1, not apps/v1beta1"),
        (rule("", "v1", "pods/exce"), r#"did you mean "exec"?"#),
    ] {
        let warnings = warnings(&installation, &naming(rule));
        assert!(warnings.contains("Warning: RulesMatchNothing: spec.rules[0]: "), "{text}: {warnings}");
        assert!(warnings.contains(text), "{text}: {warnings}");
    }
    let mut scoped = rule("", "v1", "configmaps");
    scoped["scope"] = "Cluster".into();
    let told = warnings(&installation, &naming(scoped));
    assert!(told.contains("its scope is Cluster, and configmaps are in namespaces"), "{told}");
    for there in [rule("", "v1", "pods/exec"), rule("*", "*", "*/*"), rule("", "*", "configmaps")] {
        let told = warnings(&installation, &naming(there.clone()));
        assert!(!told.contains("RulesMatchNothing"), "{there}: {told}");
    }

    // A new resource is known at once.
    let widgets = rule("advice.example.com", "v1", "widgets");
    let told = warnings(&installation, &naming(widgets.clone()));
    assert!(told.contains(r#"no API group "advice.example.com""#), "{told}");
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "widgets.advice.example.com" },
        "spec": {
            "group": "advice.example.com", "scope": "Cluster", "names": { "plural": "widgets", "kind": "Widget" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": { "type": "object" } } }],
        },
    });
    installation.cluster().apply(&definition.to_string()).expect("a definition");
    eventually("no warning about a resource that is there", || {
        (!warnings(&installation, &naming(widgets.clone())).contains("RulesMatchNothing")).then_some(())
    });
    let shop = installation.make_namespace("shop");
    let own = installation.policy(&shop, "widgets").field("rules", json!([widgets]));
    let told = warnings(&installation, &own);
    assert!(told.contains("a Policy is asked about objects in its namespace only, and widgets are in none"), "{told}");

    // The module changes requests, but the policy may not.
    let settings = json!({ "cpu": "100m", "memory": "64Mi" });
    let changes = installation.cluster_policy("advice-rules-changes").example("default-resources");
    let changes = changes.field("settings", settings);
    // The module is new, and the first check may end before it is compiled.
    eventually("a warning about a module that changes requests", || {
        let told = warnings(&installation, &changes);
        told.contains("Warning: MutatingDiffers: the module changes requests").then_some(())
    });
    canary.end();
}

#[test]
#[ignore = "starts a cluster"]
fn fault_c11_no_rule_is_said_to_match_nothing_while_a_server_behind_the_api_server_is_away() {
    // In a cluster of its own, because every client of the cluster sees that a server is away.
    let cluster = Cluster::start(&Options::default()).unwrap();
    let options = InstallationOptions::named("advice-away").checking_policies("deny");
    let installation = Installation::start(&cluster, options).with(1);
    await_checks(&installation, "advice-away");
    let canary = installation.own_canary();
    let gauges = rule("gauges.example.com", "v1", "gauges");
    let policy = labels(&installation, "advice-away-labels", &json!(["team"])).field("rules", json!([gauges]));
    let is_named = || warnings(&installation, &policy).contains("RulesMatchNothing");
    assert!(is_named(), "nobody serves this group yet");

    // A service without endpoints, as of an extension server that is not running.
    let namespace = installation.namespace();
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "gauges", "namespace": namespace },
        "spec": { "ports": [{ "port": 443 }] },
    });
    let api_service = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": { "name": "v1.gauges.example.com" },
        "spec": {
            "group": "gauges.example.com", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100,
            "insecureSkipTLSVerify": true, "service": { "namespace": namespace, "name": "gauges" },
        },
    });
    for object in [&service, &api_service] {
        cluster.apply(&object.to_string()).expect("an extension server");
    }
    eventually("no warning while the server is away", || (!is_named()).then_some(()));
    never(Duration::from_secs(10), "a warning while the server is away", || is_named().then_some(()));
    let path = "/apis/apiregistration.k8s.io/v1/apiservices/v1.gauges.example.com";
    installation.api().delete(path, None).unwrap().expect("the deletion");
    eventually("a warning once nobody serves the group", || is_named().then_some(()));
    canary.end();
}

/// Whether the API server itself accepts match conditions in a webhook.
fn is_taken(installation: &Installation<'_>, conditions: &Value) -> bool {
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": "advice-conditions-oracle" },
        "webhooks": [{
            "name": "oracle.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": { "url": "https://127.0.0.1:1/" }, "rules": [rule("", "v1", "configmaps")],
            "matchConditions": conditions,
        }],
    });
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations?dryRun=All";
    let reply = installation.api().create(path, &webhook).expect("an API server answers");
    assert!(reply.is_ok() || reply.code == 422, "{reply:?}");
    reply.is_ok()
}

#[test]
#[ignore = "starts a cluster"]
fn fault_c12_match_conditions_that_no_webhook_could_have_are_refused() {
    let installation = checking("advice-conditions");
    let canary = installation.own_canary();
    let good = [
        "true",
        "!(request.kind.kind in ['Pod', 'Job'])",
        "request.userInfo.groups.exists(g, g == 'system:nodes') || oldObject == null",
        "object.spec.containers.all(c, !has(c.securityContext) || c.securityContext.privileged == false)",
        "authorizer.group('').resource('pods').check('get').allowed()",
        "object.metadata.?labels['a'].orValue('') == ''",
        r#"object.metadata.name.matches(r'^\d+$') ? size(object.spec) > 1 + 2 * 3 : {'a': [1.5, -1.0]}['a'][0] < 2.0"#,
        "has(request.dryRun) && request.dryRun",
        "request.dryRun",
        "!object.spec.suspend",
        "object.spec.suspend && request.namespace != 'a'",
        "object.metadata.labels.exists_one(key, key.startsWith('a'))",
        "object.spec.ports.map(p, p.port > 1, p.port).exists(p, p == 1)",
        "sets.contains([1], [1]) || quantity('1Gi').isLessThan(quantity('2Gi'))",
        "optional.of(1).optMap(v, v > 1).orValue(false)",
        "type(object.spec.port) == int && duration('1h') < duration('2h')",
        ".object.metadata.name == 'a' // a comment",
    ];
    let bad = [
        "object.name ==",
        "a b",
        "objekt.metadata.name == 'a'",
        "object.spec.containers.all(c, d.name == c.name)",
        "[1, {'a': nothing}] == object",
        "variables.a == 1",
        "params.spec.max > 1",
        "request.object.metadata.name == 'a'",
        "has(request.oldObject)",
        "'yes'",
        "1",
        "null",
        "[true]",
        "1 + 2",
        "-object.spec.replicas",
        "request.name",
        "!request.operation",
        "request.userInfo || true",
        "size(object.spec.containers)",
        "object.spec.containers.filter(c, c.name == 'a')",
        "request.operation == 'CREATE' && 'a'",
        "object.spec.open ? 'a' : 'b'",
        "authorizer.group('').resource('pods').check('get')",
        "object.spec.suspend",
        "object.metadata.labels['a']",
    ];
    let all = good.iter().map(|text| (text, true)).chain(bad.iter().map(|text| (text, false)));
    for (expression, is_good) in all {
        let conditions = json!([{ "name": "first", "expression": "true" }, { "name": "a", "expression": expression }]);
        assert_eq!(is_taken(&installation, &conditions), is_good, "the API server about {expression}");
        let policy = labels(&installation, "advice-conditions-labels", &json!(["team"]));
        let (code, message) = dry_run(&installation, &policy.field("matchConditions", conditions));
        if is_good {
            assert_eq!(code, 201, "{expression}: {message}");
        } else {
            let words = "SpecInvalid: spec.matchConditions[1].expression: it ";
            assert!(code == 422 && message.contains(words), "{expression}: {code} {message}");
        }
    }
    canary.end();
}

#[test]
#[ignore = "starts a cluster"]
fn fault_c13_a_webhook_that_one_word_would_save_is_named_and_no_policy_of_others() {
    let installation = checking("advice-webhook");
    let canary = installation.own_canary();
    let [shop, bank] = ["shop", "bank"].map(|name| installation.make_namespace(name));
    let on = |policy: Policy, operations: &[&str]| {
        let mut rule = rule("", "v1", "configmaps");
        rule["operations"] = json!(operations);
        policy.field("rules", json!([rule]))
    };
    let both = &["CREATE", "UPDATE"][..];
    let cluster_policy = |name: &str| installation.cluster_policy(&format!("advice-webhook-{name}"));
    installation.apply_ready(&[on(cluster_policy("one"), both), on(installation.policy(&shop, "one"), both)]);
    let words = |of: &str| {
        format!(
            "WebhookAdded: this policy gets a webhook of its own; with spec.rules[0].operations [CREATE, UPDATE] as in {of} it would \
             share that policy's"
        )
    };

    let told = warnings(&installation, &on(cluster_policy("two"), &["CREATE"]));
    assert!(told.contains(&words("cluster/advice-webhook-one")), "{told}");
    assert!(!warnings(&installation, &on(cluster_policy("two"), both)).contains("WebhookAdded"));
    // A tenant gets to know only policies of their own namespace.
    let told = warnings(&installation, &on(installation.policy(&shop, "two"), &["CREATE"]));
    assert!(told.contains(&words(&format!("namespaced/{shop}/one"))), "{told}");
    let told = warnings(&installation, &on(installation.policy(&bank, "two"), &["CREATE"]));
    assert!(!told.contains("WebhookAdded") && !told.contains("/one"), "{told}");
    canary.end();
}
