//! Warnings and errors at `kubectl apply` about policies that load: rows C11 to C14.

use std::collections::BTreeSet;
use std::time::Duration;

use portcullis_e2e::{
    FLOODED, Installation, InstallationOptions, LIMIT, Output, PodSetup, Policy, Program, eventually, eventually_seen,
};
use serde_json::{Value, json};

use crate::checks::{await_checks, checking, dry_run, kubectl_dry_run, labels};
use crate::cluster;

/// The number of ConfigMaps in each of two namespaces.
const OBJECTS: usize = 250;
/// How many of them lack the label `team`.
const UNLABELLED: usize = 6;
/// A word in the objects, which must not be shown.
const SECRET: &str = "hunter2";

/// A rule for CREATE requests of a resource.
fn rule(group: &str, version: &str, resource: &str) -> Value {
    json!({ "apiGroups": [group], "apiVersions": [version], "resources": [resource], "operations": ["CREATE"] })
}

/// What kubectl shows for a dry run of a policy, which must be admitted.
fn warnings(installation: &Installation<'_>, policy: &Policy) -> String {
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
    let told = warnings(&installation, &changes.field("settings", settings));
    assert!(told.contains("Warning: MutatingDiffers: the module changes requests"), "{told}");
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

/// Grants the account of the pods the right to list these resources of the core group.
fn let_list(installation: &Installation<'_>, resources: &[&str]) {
    let name = format!("{}-audit-reads", installation.namespace());
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": name },
        "rules": [{ "apiGroups": [""], "resources": resources, "verbs": ["list"] }],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
        "subjects": [{ "kind": "ServiceAccount", "name": "portcullis-policy-server", "namespace": installation.namespace() }],
    });
    for object in [role, binding] {
        installation.cluster().apply(&object.to_string()).expect("the right");
    }
}

/// Fills a namespace with ConfigMaps, the last of which have no label `team`.
fn fill(installation: &Installation<'_>, namespace: &str) {
    for number in 0..OBJECTS {
        let mut object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": { "word": SECRET },
            "metadata": { "name": format!("one-{number:03}"), "labels": { "counted": "yes", "team": "a" } },
        });
        if number >= OBJECTS - UNLABELLED {
            object["metadata"]["labels"] = json!({ "counted": "yes" });
        }
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        installation.api().create(&path, &object).expect("an API server answers").expect("a ConfigMap");
    }
}

#[test]
#[ignore = "starts a cluster"]
fn fault_c14_what_a_policy_would_deny_is_counted_before_it_is_stored() {
    // A longer time than usual, because half of it is for the objects, and other tests run beside this one.
    let options =
        InstallationOptions::named("advice-impact").checking_policies("deny").checking_within(Duration::from_secs(30));
    let installation = Installation::start(cluster(), options);
    installation.start_controller();
    let setup = PodSetup::default().flag(Program::Loader, "--check-impact", "on");
    installation.add_replica_with(setup.flag(Program::Evaluator, "--audit-share", 100));
    installation.wait_ready();
    await_checks(&installation, "advice-impact");
    let canary = installation.own_canary_within(FLOODED, "audits may take all the time that the evaluator gets");
    let [shop, bank] = ["shop", "bank"].map(|name| installation.make_namespace(name));
    [&shop, &bank].into_iter().for_each(|namespace| fill(&installation, namespace));
    let counted = json!({ "matchLabels": { "counted": "yes" } });
    let policy =
        labels(&installation, "advice-impact-labels", &json!(["team"])).field("objectSelector", counted.clone());

    // Without the right to list, the policy is admitted with a warning about what is missing.
    let services = installation.cluster_policy("advice-impact-services").example("required-labels").on(&["services"]);
    let told = warnings(&installation, &services.field("settings", json!({ "labels": ["team"] })));
    assert!(told.contains("what it would do to services is not known: the policy server may not list them"), "{told}");
    let_list(&installation, &["namespaces", "secrets"]);

    // Every object is counted, and the content of objects is not shown.
    let figures = |policy: &Policy, words: &str| -> Output {
        eventually_seen(LIMIT, &format!("the figures {words:?}"), || {
            let output = kubectl_dry_run(&installation, policy);
            if output.stderr.contains(words) { Ok(output) } else { Err(output.stderr) }
        })
    };
    let words = "12 of 500 configmaps in 2 namespaces would be denied, for instance advice-impact-";
    let output = figures(&policy, words);
    assert!(output.is_ok() && output.stderr.contains("/one-244: ") && output.stderr.contains("team"), "{output:?}");
    assert!(!output.stderr.contains(SECRET), "{output:?}");
    let warn = policy.clone().field("mode", "warn");
    figures(&warn, "12 of 500 configmaps in 2 namespaces would be denied under protect, for instance ");

    // A tenant gets figures of their own namespace.
    let own = installation.policy(&shop, "labels").example("required-labels").on(&["configmaps"]);
    let own = own.field("settings", json!({ "labels": ["team"] })).field("objectSelector", counted);
    let output =
        figures(&own, &format!("6 of 250 configmaps in 1 namespace would be denied, for instance {shop}/one-244: "));
    assert!(output.is_ok() && !output.stderr.contains(&bank), "{output:?}");

    // Objects that match conditions exclude are not counted. If that depends on the request, the figures say that it is not known.
    let with_condition = |name: &str, expression: &str| {
        policy.clone().field("matchConditions", json!([{ "name": name, "expression": expression }]))
    };
    let in_shop =
        with_condition("in-shop", &format!("object.metadata.namespace == '{shop}' || request.operation == 'DELETE'"));
    let of_shop = format!("6 of 250 configmaps in 1 namespace would be denied, for instance {shop}/one-244: ");
    assert!(!figures(&in_shop, &of_shop).stderr.contains("is not known"));
    let no_figures = |policy: &Policy| {
        let told = eventually_seen(LIMIT, "an answer about every object", || {
            let told = warnings(&installation, policy);
            if told.contains("there was no time for more") { Err(told) } else { Ok(told) }
        });
        assert!(!told.contains("would be denied") && !told.contains("is not known"), "{told}");
    };
    no_figures(&with_condition("deletions", "request.operation == 'DELETE'"));
    let trusted = with_condition("trusted", "request.userInfo.username != 'admin'");
    let not_known = "what it would do to 500 of 500 configmaps is not known: only an API server can decide whether match conditions leave \
                     them out: trusted";
    assert!(!figures(&trusted, not_known).stderr.contains("would be denied"));

    // There are no figures for a policy that admits every object, or for Secrets, which are never read.
    no_figures(&installation.cluster_policy("advice-impact-none").on(&["configmaps", "secrets"]));
    let denying = installation.cluster_policy("advice-impact-secrets").denying("not today").on(&["secrets"]);
    let told = warnings(&installation, &denying);
    assert!(!told.contains("would be denied"), "{told}");

    // The figures of a stored policy are in its status. A dry run does not change them.
    let (stored, first) = applied_with_figures(&installation, &policy, words);
    assert_figures(&first, [&shop, &bank]);
    let wants_more = stored.clone().field("settings", json!({ "labels": ["team", "owner"] }));
    figures(&wants_more, "500 of 500 configmaps in 2 namespaces would be denied, for instance ");
    assert_eq!(installation.object(&stored).expect("the policy")["status"]["impact"], first);
    // The figures of a stored edit replace them.
    let words = "12 of 500 configmaps in 2 namespaces would be denied under protect, for instance ";
    let (_, next) = applied_with_figures(&installation, &warn, words);
    assert_figures(&next, [&shop, &bank]);
    assert!(next["generation"].as_i64() > first["generation"].as_i64(), "{first} {next}");
    // Objects for which it is not known do not count as judged, and the figures are not complete.
    let (_, last) = applied_with_figures(&installation, &trusted, not_known);
    let counts = ["judged", "total", "denied", "failed"].map(|name| last[name].as_i64());
    assert_eq!((counts, &last["complete"]), ([0, 500, 0, 0].map(Some), &json!(false)), "{last}");
    canary.end();
}

/// Applies a policy until the answer has these figures. Returns the policy as it was stored, and `status.impact` of this generation.
fn applied_with_figures(installation: &Installation<'_>, policy: &Policy, words: &str) -> (Policy, Value) {
    let mut tries = 0;
    let stored = eventually(&format!("the figures {words:?} of what is stored"), || {
        tries += 1;
        // The spec is different each time, because a policy that has not changed is not checked.
        let policy = policy.clone().field("message", format!("attempt {tries}"));
        let output = installation.apply(&policy);
        assert!(output.is_ok(), "{output:?}");
        output.stderr.contains(words).then_some(policy)
    });
    let impact = eventually("figures of the newest generation in the status", || {
        let object = installation.object(&stored)?;
        let impact = &object["status"]["impact"];
        (impact["generation"] == object["metadata"]["generation"]).then(|| impact.clone())
    });
    (stored, impact)
}

/// Asserts that every object was counted, and that five of those that would be denied are named, without their content.
fn assert_figures(impact: &Value, namespaces: [&String; 2]) {
    let counts = ["judged", "total", "denied", "changed", "failed", "namespaces"].map(|name| impact[name].as_i64());
    assert_eq!(counts, [500, 500, 12, 0, 0, 2].map(Some), "{impact}");
    assert_eq!((&impact["sample"], &impact["complete"]), (&json!(false), &json!(true)), "{impact}");
    let examples: BTreeSet<&str> =
        impact["examples"].as_array().expect("names").iter().filter_map(Value::as_str).collect();
    let is_unlabelled =
        |name: &&str| namespaces.iter().any(|namespace| name.starts_with(&format!("{namespace}/one-24")));
    assert!(examples.len() == 5 && examples.iter().all(is_unlabelled), "{impact}");
    assert!(!impact.to_string().contains(SECRET), "{impact}");
}
