//! Policies that read objects of the cluster and ask what others may do, by a real API server.

use portcullis_e2e::{Installation, PodSetup, Policy, Program, Proxy, eventually};
use serde_json::{Value, json};

use crate::installation;

const KIND: &str = "LimitRange";

fn raw(capability: &str, payload: &Value) -> Value {
    let (namespace, operation) = capability.split_once('/').unwrap();
    json!({"raw": {"namespace": namespace, "operation": operation, "payload": payload}})
}

/// A policy that makes these calls and denies, in one namespace; it may read limit ranges and services.
fn asks(installation: &Installation<'_>, namespace: &str, name: &str, calls: &Value) -> Policy {
    let kinds = json!([
        {"apiVersion": "v1", "kind": KIND}, {"apiVersion": "v1", "kind": "Service"}, {"apiVersion": "v1", "kind": "Nothing"},
    ]);
    installation
        .cluster_policy(name)
        .example("host-capabilities")
        .field("hostCapabilities", json!(["kubernetes/*"]))
        .field("contextAwareResources", kinds)
        .field("timeoutEvalSeconds", 5)
        .field("settings", json!({ "calls": calls }))
        .field("namespaceSelector", json!({"matchLabels": {"kubernetes.io/metadata.name": namespace}}))
        .on(&["configmaps"])
}

/// What the policy answers, as kubectl shows it.
fn answer(installation: &Installation<'_>, namespace: &str) -> String {
    let denied = installation.create_config_map(namespace, "asked");
    assert!(!denied.is_ok(), "{denied:?}");
    denied.stderr
}

fn wait_for(installation: &Installation<'_>, namespace: &str, what: &str, texts: &[&str]) {
    let mut last = String::new();
    eventually(what, || {
        let answer = answer(installation, namespace);
        if answer != last {
            eprintln!("{answer}");
        }
        last = answer;
        texts.iter().all(|text| last.contains(text)).then_some(())
    });
}

fn limit_range(installation: &Installation<'_>, namespace: &str, name: &str, label: &str) {
    let object = json!({
        "apiVersion": "v1", "kind": KIND, "metadata": {"name": name, "labels": {"for": label}},
        "spec": {"limits": [{"type": "Pod", "max": {"cpu": "4"}}]},
    });
    let created = installation.api().create(&format!("/api/v1/namespaces/{namespace}/limitranges"), &object).unwrap();
    assert_eq!(created.code, 201, "{created:?}");
}

#[test]
#[ignore = "starts a cluster"]
fn a_policy_reads_objects_and_sees_what_changes() {
    let installation = installation("reads", 1);
    let shop = installation.make_namespace("shop");
    limit_range(&installation, &shop, "first", &shop);
    let list = json!({
        "api_version": "v1", "kind": KIND, "label_selector": format!("for={shop}"), "field_masks": ["metadata.name", "spec.limits.max"],
    });
    let in_shop = |more: &Value| {
        let mut payload = json!({"api_version": "v1", "kind": KIND, "namespace": shop});
        payload.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        payload
    };
    let calls = json!([
        raw("kubernetes/list_resources_all", &list),
        raw("kubernetes/list_resources_by_namespace", &in_shop(&json!({"field_masks": ["metadata.name"]}))),
        raw(
            "kubernetes/get_resource",
            &in_shop(&json!({"name": "first", "disable_cache": true, "field_masks": ["metadata.labels"]}))
        ),
        raw(
            "kubernetes/can_i",
            &json!({"disable_cache": true, "subject_access_review": {
                "user": "system:admin", "groups": ["system:masters"], "resource_attributes": {"resource": "secrets", "verb": "get"},
            }})
        ),
    ]);
    installation.apply_ready(&[asks(&installation, &shop, "reads", &calls)]);
    let first = r#"{"metadata":{"name":"first"},"spec":{"limits":[{"max":{"cpu":"4"}}]}}"#;
    wait_for(
        &installation,
        &shop,
        "all answers",
        &[
            &format!(r#"{{"apiVersion":"v1","kind":"LimitRangeList","metadata":{{}},"items":[{first}]}}"#),
            r#""items":[{"metadata":{"name":"first"}}]"#,
            &format!(r#"{{"metadata":{{"labels":{{"for":"{shop}"}}}}}}"#),
            r#"{"allowed":true"#,
        ],
    );
    limit_range(&installation, &shop, "second", &shop);
    limit_range(&installation, &shop, "third", "mail");
    wait_for(
        &installation,
        &shop,
        "what was made",
        &[
            r#"{"metadata":{"name":"second"},"spec":"#,
            r#""items":[{"metadata":{"name":"first"}},{"metadata":{"name":"second"}},{"metadata":{"name":"third"}}]"#,
        ],
    );
    assert!(!answer(&installation, &shop).contains(r#"{"metadata":{"name":"third"},"spec":"#), "a label selects");
    installation.api().delete(&format!("/api/v1/namespaces/{shop}/limitranges/first"), None).unwrap();
    wait_for(
        &installation,
        &shop,
        "what was deleted",
        &["Cannot find v1/LimitRange named 'first' inside of namespace"],
    );
}

#[test]
#[ignore = "starts a cluster"]
fn fault_b05_reads_that_the_api_server_refuses() {
    let installation = installation("refused", 1);
    let shop = installation.make_namespace("shop");
    limit_range(&installation, &shop, "first", &shop);
    let list = |kind: &str| {
        let (selector, masks) = (format!("for={shop}"), ["metadata.name"]);
        let query = json!({"api_version": "v1", "kind": kind, "field_masks": masks, "label_selector": selector});
        raw("kubernetes/list_resources_all", &query)
    };
    let calls = json!([list("Service"), list("Nothing"), list("Secret"), list(KIND)]);
    installation.apply_ready(&[asks(&installation, &shop, "refused", &calls)]);
    wait_for(
        &installation,
        &shop,
        "an answer to each",
        &[
            "failed to list v1/Service: the API server refused with 403",
            "Cannot find resource v1/Nothing",
            "Policy has not been granted access to Kubernetes v1/Secret resources",
            r#""items":[{"metadata":{"name":"first"}}]"#,
        ],
    );
}

#[test]
#[ignore = "starts a cluster"]
fn fault_b06_the_api_server_is_away() {
    let installation = installation("away", 0);
    let proxy = Proxy::start(installation.cluster());
    let setup = PodSetup::default().through(Program::Loader, proxy.address());
    installation.add_replica_with(setup).wait_ready();
    let shop = installation.make_namespace("shop");
    limit_range(&installation, &shop, "first", &shop);
    let kind = json!({
        "api_version": "v1", "kind": KIND, "field_masks": ["metadata.name"], "label_selector": format!("for={shop}"),
    });
    let get = json!({"api_version": "v1", "kind": KIND, "name": "first", "namespace": shop, "disable_cache": true});
    let calls = json!([raw("kubernetes/list_resources_all", &kind), raw("kubernetes/get_resource", &get)]);
    installation.apply_ready(&[asks(&installation, &shop, "away", &calls)]);
    let listed = r#""items":[{"metadata":{"name":"first"}}]"#;
    wait_for(&installation, &shop, "both answers", &[listed, r#""limits":[{"#]);
    proxy.close();
    wait_for(&installation, &shop, "the list from memory, and the cause", &[listed, "failed to reach the API server"]);
    limit_range(&installation, &shop, "second", &shop);
    proxy.open();
    wait_for(&installation, &shop, "what was made meanwhile", &[r#"{"metadata":{"name":"second"}}"#, r#""limits":[{"#]);
}
