//! What a policy would do to objects that exist, at `kubectl apply`: row C14.
//!
//! Audits have less claim to the processor than requests, so this test has the machine to itself.

use std::collections::BTreeSet;
use std::time::Duration;

use portcullis_e2e::{
    FLOODED, Installation, InstallationOptions, LIMIT, Output, PodSetup, Policy, Program, eventually, eventually_seen,
};
use serde_json::{Value, json};

use crate::check_advice::warnings;
use crate::checks::{await_checks, kubectl_dry_run, labels};
use crate::cluster;

/// The number of ConfigMaps in each of two namespaces.
const OBJECTS: usize = 250;
/// How many of them lack the label `team`.
const UNLABELLED: usize = 6;
/// A word in the objects, which must not be shown.
const SECRET: &str = "hunter2";

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
    // Objects for which it is not known do not count as evaluated, and the figures are not complete.
    let (_, last) = applied_with_figures(&installation, &trusted, not_known);
    let counts = ["evaluated", "total", "denied", "failed"].map(|name| last[name].as_i64());
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
    let counts = ["evaluated", "total", "denied", "changed", "failed", "namespaces"].map(|name| impact[name].as_i64());
    assert_eq!(counts, [500, 500, 12, 0, 0, 2].map(Some), "{impact}");
    assert_eq!((&impact["sample"], &impact["complete"]), (&json!(false), &json!(true)), "{impact}");
    let examples: BTreeSet<&str> =
        impact["examples"].as_array().expect("names").iter().filter_map(Value::as_str).collect();
    let is_unlabelled =
        |name: &&str| namespaces.iter().any(|namespace| name.starts_with(&format!("{namespace}/one-24")));
    assert!(examples.len() == 5 && examples.iter().all(is_unlabelled), "{impact}");
    assert!(!impact.to_string().contains(SECRET), "{impact}");
}
