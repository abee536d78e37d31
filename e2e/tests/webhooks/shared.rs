//! Policies that differ in rules, object selector and match conditions share a webhook, and are asked about the same requests as before.

use std::collections::BTreeSet;

use portcullis_e2e::{Output, Policy, Program, condition, eventually};
use serde_json::{Value, json};

use crate::cluster;
use crate::scene::{Scene, quick};

/// A condition that is always true, and which an API server alone can judge: a policy that has it keeps a webhook of its own.
const OWN: &str = "'a'.matches('a')";

/// Rules, object selectors and match conditions of all sorts.
fn parts() -> Vec<Value> {
    let selector = |selector: Value| json!({ "objectSelector": selector });
    let when = |expressions: &[&str]| {
        let numbered = expressions.iter().enumerate();
        let conditions = numbered.map(|(n, text)| json!({ "name": format!("c{n}"), "expression": text }));
        json!({ "matchConditions": conditions.collect::<Vec<_>>() })
    };
    let expression = |key: &str, operator: &str, values: Value| {
        selector(json!({ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] }))
    };
    let rule = |resources: Value, operations: Value, scope: &str| json!({ "apiGroups": [""], "apiVersions": ["v1"], "resources": resources, "operations": operations, "scope": scope });
    let rules = |rules: Value| json!({ "rules": rules });
    let mut labelled = rules(json!([rule(json!(["pods"]), json!(["UPDATE"]), "*")]));
    labelled["objectSelector"] = json!({ "matchLabels": { "app": "bank" } });
    let mut both = selector(json!({ "matchLabels": { "app": "shop" } }));
    both["matchConditions"] = when(&["request.operation != 'DELETE'"])["matchConditions"].clone();
    vec![
        selector(json!({ "matchLabels": { "app": "shop" } })),
        expression("app", "In", json!(["shop", "bank"])),
        expression("app", "NotIn", json!(["shop"])),
        expression("app", "DoesNotExist", json!([])),
        when(&["object == null || has(object.metadata.labels)"]),
        when(&["has(object.metadata.ownerReferences) || object.metadata.name.endsWith('1')"]),
        when(&["request.operation in ['UPDATE', 'DELETE']"]),
        when(&["request.userInfo.username == 'nobody'"]),
        when(&["request.name.startsWith('a')", "request.namespace.contains('team')"]),
        when(&["has(oldObject.metadata.labels) && 'app' in oldObject.metadata.labels"]),
        when(&["object.metadata.labels['app'] == 'bank'"]),
        when(&["object.metadata.labels['app'] == 'bank'", "request.operation == 'UPDATE'"]),
        when(&["!has(request.subResource) && request.resource.resource == 'configmaps'"]),
        when(&["size(object.metadata.name) > 2 && request.dryRun == false && oldObject != null"]),
        both,
        rules(json!([rule(json!(["configmaps"]), json!(["*"]), "*")])),
        rules(json!([rule(json!(["*"]), json!(["DELETE"]), "Namespaced")])),
        rules(json!([rule(json!(["*/*"]), json!(["UPDATE", "CREATE"]), "*")])),
        rules(json!([rule(json!(["pods/*"]), json!(["CREATE"]), "*")])),
        rules(json!([
            rule(json!(["pods"]), json!(["CREATE"]), "Namespaced"),
            rule(json!(["configmaps", "pods"]), json!(["DELETE"]), "*"),
        ])),
        labelled,
        // This test makes no cluster-scoped objects.
        rules(json!([rule(json!(["*"]), json!(["*"]), "Cluster")])),
    ]
}

/// Policies that warn about every request, in pairs with the same match part: `s0` shares a webhook, `p0` has one of its own, and so on.
fn policies(scene: &Scene) -> Vec<Policy> {
    let rules = json!([{ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods", "configmaps"],
                         "operations": ["CREATE", "UPDATE", "DELETE"] }]);
    let policy = |name: String, part: &Value| {
        let base = scene.installation.cluster_policy(&name).denying("no").field("mode", "warn");
        base.field("failurePolicy", "Ignore").field("rules", rules.clone()).with(&json!({ "spec": part }))
    };
    let pair = |(number, part): (usize, Value)| {
        let mut own = part.clone();
        let own_conditions = own["matchConditions"].as_array().cloned().unwrap_or_default();
        let always = json!({ "name": "always", "expression": OWN });
        own["matchConditions"] = own_conditions.into_iter().chain([always]).collect();
        [policy(format!("s{number}"), &part), policy(format!("p{number}"), &own)]
    };
    parts().into_iter().enumerate().flat_map(pair).collect()
}

/// The policies that warned.
fn asked(output: &Output) -> BTreeSet<String> {
    let names = output.warnings().into_iter().filter_map(|line| {
        let (_, rest) = line.split_once("cluster/")?;
        Some(rest.chars().take_while(char::is_ascii_alphanumeric).collect())
    });
    names.collect()
}

#[test]
#[ignore = "starts a cluster"]
fn policies_that_share_a_webhook_are_asked_about_the_same_requests_as_with_one_of_their_own() {
    let scene = Scene::with("shared", 1, quick().env(Program::Controller, "PORTCULLIS_SHARED_WEBHOOKS", "true"));
    let policies = policies(&scene);
    scene.installation.apply_ready(&policies);
    let count = parts().len();
    scene.webhooks(count + 1);
    let object = scene.installation.object(&policies[0]).expect("it is there");
    let message = condition(&object, "WebhookConfigured").expect("a condition")["message"].to_string();
    assert!(message.contains("it is shared, and the policy server applies rules, objectSelector"), "{message}");

    let namespace = scene.namespace.as_str();
    let mut outputs = Vec::new();
    for (name, labels) in
        [("a", json!({ "app": "shop" })), ("b", json!({ "app": "bank" })), ("c", json!({ "tier": "x" }))]
    {
        for host in [false, true] {
            let name = format!("{name}{}", u8::from(host));
            let extra = json!({ "metadata": { "labels": labels }, "spec": { "hostNetwork": host } });
            outputs.push((format!("create pod {name}"), scene.installation.create_pod(namespace, &name, &extra)));
        }
    }
    outputs.push(("create pod bare".to_owned(), scene.installation.create_pod(namespace, "abare", &json!({}))));
    outputs.push(("create map".to_owned(), scene.installation.create_config_map(namespace, "amap")));
    let kubectl = |words: &[&str]| {
        let args = words.iter().copied().chain(["--namespace", namespace]);
        (words.join(" "), cluster().kubectl(args.collect::<Vec<_>>()))
    };
    outputs.push(kubectl(&["label", "pod", "abare", "app=bank"]));
    outputs.push(kubectl(&["label", "pod", "a0", "app-"]));
    outputs.push(kubectl(&["label", "pod", "b0", "more=yes"]));
    outputs.push(kubectl(&["patch", "configmap", "amap", "--patch", r#"{"data":{"second":"x"}}"#]));
    outputs.push(kubectl(&["delete", "pod", "a1", "--now"]));
    outputs.push(kubectl(&["delete", "pod", "c0", "--now"]));
    outputs.push(kubectl(&["delete", "configmap", "amap"]));

    let mut seen = BTreeSet::new();
    for (what, output) in &outputs {
        output.expect(what);
        let asked = asked(output);
        let of = |first: char| -> BTreeSet<&str> { asked.iter().filter_map(|name| name.strip_prefix(first)).collect() };
        assert_eq!(of('s'), of('p'), "{what}:\n{}", output.stderr);
        seen.extend(asked);
    }
    // Each part matched something but the one that wants another user and the one that wants another scope.
    assert_eq!(seen.len(), 2 * (count - 2), "{seen:?}");
}

#[test]
#[ignore = "starts a cluster"]
fn an_edit_of_a_selector_changes_no_shared_webhook_and_acts_at_once() {
    let scene = Scene::with("shared-edit", 2, quick().env(Program::Controller, "PORTCULLIS_SHARED_WEBHOOKS", "true"));
    let on = |policy: Policy, app: &str| policy.field("objectSelector", json!({ "matchLabels": { "app": app } }));
    let first = scene.installation.cluster_policy("shared-edit-a").denying("the first");
    let second = scene.installation.cluster_policy("shared-edit-b").denying("the second");
    scene.installation.apply_ready(&[on(first.clone(), "shop"), on(second, "bank")]);
    let [before] = scene.webhooks(1).try_into().expect("one");
    let create = |name: &str, app: &str| {
        let extra = json!({ "metadata": { "labels": { "app": app } } });
        scene.installation.create_pod(&scene.namespace, name, &extra).stderr
    };
    let refused = create("one", "shop");
    assert!(refused.contains("the first") && !refused.contains("the second"), "{refused}");
    assert!(create("two", "bank").contains("the second"));
    assert_eq!(create("three", "mill"), "");
    scene.installation.apply_ready(&[on(first, "mill")]);
    eventually("the end of the old selector", || create("four", "shop").is_empty().then_some(()));
    assert!(create("five", "mill").contains("the first"));
    let [after] = scene.webhooks(1).try_into().expect("one");
    assert_eq!(before["metadata"]["resourceVersion"], after["metadata"]["resourceVersion"]);
}

#[test]
#[ignore = "starts a cluster"]
fn an_edit_of_rules_changes_a_shared_webhook_and_a_ready_policy_is_called() {
    let scene = Scene::with("shared-rules", 2, quick().env(Program::Controller, "PORTCULLIS_SHARED_WEBHOOKS", "true"));
    let on = |policy: Policy, resources: &[&str]| {
        let rule =
            json!({ "apiGroups": [""], "apiVersions": ["v1"], "resources": resources, "operations": ["CREATE"] });
        policy.field("rules", json!([rule]))
    };
    let first = scene.installation.cluster_policy("shared-rules-a").denying("the first");
    let second = scene.installation.cluster_policy("shared-rules-b").denying("the second");
    scene.installation.apply_ready(&[on(first, &["pods"]), on(second.clone(), &["configmaps"])]);
    scene.webhooks(1);
    let pod = |name: &str| scene.installation.create_pod(&scene.namespace, name, &json!({})).stderr;
    let map = |name: &str| scene.installation.create_config_map(&scene.namespace, name).stderr;
    assert!(pod("one").contains("the first") && !pod("one").contains("the second"));
    assert!(map("one").contains("the second") && !map("one").contains("the first"));
    // Each time the policy is Ready, every API server calls it for its new rules.
    for (round, resources) in
        [["configmaps", "pods"], ["configmaps", "services"], ["pods", "configmaps"]].iter().enumerate()
    {
        scene.installation.apply_ready(&[on(second.clone(), resources)]);
        let refused = pod(&format!("edited-{round}"));
        assert!(refused.contains("the first"), "{refused}");
        if resources.contains(&"pods") {
            assert!(refused.contains("the second"), "{refused}");
        } else {
            // The old rules end a moment later, and never before the new ones count.
            eventually("the end of the old rules", || (!pod("again").contains("the second")).then_some(()));
        }
        assert!(map(&format!("edited-{round}")).contains("the second"), "both generations match it");
    }
    scene.installation.apply_ready(&[on(second, &["services"])]);
    eventually("the end of the old rules", || map("last").is_empty().then_some(()));
    scene.webhooks(1);
}

#[test]
#[ignore = "starts a cluster"]
fn a_condition_that_fails_in_a_shared_webhook_counts_as_in_an_api_server() {
    let scene = Scene::with("shared-fail", 1, quick().env(Program::Controller, "PORTCULLIS_SHARED_WEBHOOKS", "true"));
    let fails = json!([{ "name": "labelled", "expression": "object.metadata.labels['app'] == 'shop'" }]);
    let policy = |name: &str| scene.installation.cluster_policy(name).field("matchConditions", fails.clone());
    let strict = policy("shared-fail-strict").denying("strict");
    let lax = policy("shared-fail-lax").denying("lax").field("failurePolicy", "Ignore");
    scene.installation.apply_ready(&[strict.clone(), lax]);
    scene.webhooks(2);
    let create = |name: &str, labels: Value| {
        let extra = json!({ "metadata": { "labels": labels } });
        scene.installation.create_pod(&scene.namespace, name, &extra).stderr
    };
    let refused = create("one", json!({ "tier": "x" }));
    assert!(refused.contains("policy cluster/shared-fail-strict: MatchConditionFailed: "), "{refused}");
    assert!(refused.contains("labelled failed") && !refused.contains("lax"), "{refused}");
    assert_eq!(create("two", json!({ "app": "bank" })), "", "it holds for neither");
    let refused = create("three", json!({ "app": "shop" }));
    assert!(refused.contains("strict") || refused.contains("lax"), "{refused}");
    scene.installation.apply_ready(&[strict.field("mode", "monitor")]);
    let mut tries = 0;
    let warned = eventually("a policy in monitor mode that denies nothing", || {
        tries += 1;
        Some(create(&format!("monitored-{tries}"), json!({ "tier": "x" }))).filter(|told| !told.contains("denied"))
    });
    assert!(warned.starts_with("Warning: ") && warned.contains("MatchConditionFailed"), "{warned}");
}
