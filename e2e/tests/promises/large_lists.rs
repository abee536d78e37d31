//! Rows B05 and Z23: lists of objects that are larger than a guest may get, or that take much memory when they are decoded.

use std::time::Duration;

use portcullis_e2e::{
    FLOODED, Installation, LIMIT, Program, Usage, eventually, eventually_seen, eventually_within, note,
};
use portcullis_testkit::wat;
use serde_json::json;

use crate::installation;
use crate::reads::{KIND, answers, asks, count, grant, limit_range, list_of, listed, raw, try_config_map, unavailable};

const GROUP: &str = "large.example.com";
/// How many objects of a mebibyte there are. All of them take more than the 64 MiB that a collection may have.
const ALL: usize = 66;
/// How many of them have a label. They take more than the 8 MiB that a list may have, and less than a collection may.
const LABELLED: usize = 9;
/// The longest wait for the first list of them: a debug build reads all of them.
const LONGEST: Duration = Duration::from_secs(300);
/// What the loader keeps of the objects is less than a collection that is refused, in bytes.
const REFUSED: u64 = 64 << 20;
/// How much memory the loader may take while it reads them, in bytes: what is kept of a collection, and pages of 16 MiB of two collections, each
/// as text and as objects.
const READ: u64 = (64 + 2 * 2 * 16) << 20;
/// How many objects of a mebibyte of nested lists there are. Decoded, each of them takes a hundred mebibytes, and the API server decodes them, too.
const NESTED: usize = 6;

/// Lists all objects, and traps when the call fails.
const FAILS_WITH_ITS_LIST: &str = r#"(module
  (import "wapc" "__host_call" (func $call (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "wapc" "__guest_response" (func $respond (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "{\"valid\":true}")
  (data (i32.const 32) "kubewarden")
  (data (i32.const 48) "kubernetes")
  (data (i32.const 64) "list_resources_all")
  (data (i32.const 96) "{\"api_version\":\"large.example.com/v1\",\"kind\":\"Crate\"}")
  (data (i32.const 160) "{\"accepted\":true}")
  (func (export "__guest_call") (param $operation i32) (param i32) (result i32)
    ;; validate_settings
    (if (i32.eq (local.get $operation) (i32.const 17))
      (then
        (call $respond (i32.const 0) (i32.const 14))
        (return (i32.const 1))))
    (if (i32.eqz (call $call
      (i32.const 32) (i32.const 10)
      (i32.const 48) (i32.const 10)
      (i32.const 64) (i32.const 18)
      (i32.const 96) (i32.const 53)))
      (then unreachable))
    (call $respond (i32.const 160) (i32.const 17))
    (i32.const 1)))"#;

/// Installs a kind in this group that policies, audits and checks may read. Returns the path of its objects in the namespace.
pub(crate) fn define_crates(installation: &Installation<'_>, group: &str, namespace: &str) -> String {
    let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("crates.{group}") },
        "spec": {
            "group": group, "scope": "Namespaced", "names": { "plural": "crates", "kind": "Crate" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } }],
        },
    });
    // Two tests make the same one.
    installation.cluster().apply_server_side(&definition.to_string()).expect("a definition");
    grant(installation, group, "crates");
    let path = format!("/apis/{group}/v1/namespaces/{namespace}/crates");
    eventually("the kind to be served", || installation.api().get(&path));
    path
}

/// Makes objects of a kind, each with a mebibyte of nested lists.
pub(crate) fn make_nested_crates(installation: &Installation<'_>, group: &str, path: &str, count: usize) {
    let lists = vec!["[0]"; (1 << 20) / 4].join(",");
    for number in 0..count {
        let object = format!(
            r#"{{"apiVersion":"{group}/v1","kind":"Crate","metadata":{{"name":"crate-{number}"}},"size":{number},"content":[{lists}]}}"#
        );
        installation.api().create_bytes(path, object.as_bytes()).unwrap().expect("a crate");
    }
}

/// Makes large objects of a kind that policies may read. Returns the path of their collection.
fn make_crates(installation: &Installation<'_>, namespace: &str) -> String {
    let path = define_crates(installation, GROUP, namespace);
    for number in 0..ALL {
        let labels = if number < LABELLED { json!({ "few": "yes" }) } else { json!({}) };
        let object = json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": "Crate",
            "metadata": { "name": format!("crate-{number}"), "labels": labels }, "content": "x".repeat(1 << 20),
        });
        installation.api().create(&path, &object).unwrap().expect("a crate");
    }
    path
}

/// Deletes these objects. Other tests use the same API server, whose memory they fill as well.
pub(crate) fn delete_crates(installation: &Installation<'_>, path: &str) {
    installation.api().delete_collection(path);
}

#[test]
#[ignore = "starts a cluster"]
fn fault_b05_a_list_that_is_larger_than_may_be() {
    let installation = installation("large-lists", 1);
    let canary = installation.own_canary_within(FLOODED, "the loader and the API server read 66 MiB of objects");
    let [shop, mail, store] = ["shop", "mail", "store"].map(|name| installation.make_namespace(name));
    limit_range(&installation, &shop, "first", &shop);
    let replica = installation.replicas().remove(0);
    let usage = |program| Usage::of(replica.program(program).pid().expect("it runs"));
    let before = [Program::Loader, Program::Evaluator].map(usage);
    let path = make_crates(&installation, &store);

    let list = |api_version: &str, kind: &str, selector: Option<&str>, masks: &[&str]| {
        let query =
            json!({ "api_version": api_version, "kind": kind, "label_selector": selector, "field_masks": masks });
        raw("kubernetes/list_resources_all", &query)
    };
    let crates = format!("{GROUP}/v1");
    let of_shop = format!("for={shop}");
    let calls = json!([
        list("v1", KIND, Some(&of_shop), &["metadata.name"]),
        list(&crates, "Crate", None, &[]),
        list(&crates, "Crate", Some("few=yes"), &[]),
        list("v1", KIND, Some(&of_shop), &["metadata.name"]),
    ]);
    let reads = json!([{ "apiVersion": "v1", "kind": KIND }, { "apiVersion": crates, "kind": "Crate" }]);
    let asking = asks(&installation, &shop, "large-asks", &calls).field("contextAwareResources", reads.clone());
    let failing = asks(&installation, &mail, "large-fails", &json!([])).field("contextAwareResources", reads);
    let failing = failing.field("settings", json!({})).module_of(wat(FAILS_WITH_ITS_LIST));
    installation.apply_ready(&[asking, failing]);

    // Each text has the kind and the cause, and the other kind is listed before and after them.
    let advice = "select fewer objects by labels, or fewer fields by field_masks";
    let failed = format!("failed to list {crates}/Crate: ");
    let first = format!("/api/v1/namespaces/{shop}/limitranges/first");
    let small = list_of(&[listed(&installation, &first, &json!({}))]);
    let told = eventually_within(LONGEST, "an answer to each call", || {
        let told = answers(&installation, &shop, "large-asks");
        let has = |limit: &&str| told.iter().any(|answer| answer.contains(limit));
        ["67108864", "8388608"].iter().all(has).then_some(told)
    });
    for words in [
        format!("{failed}its objects take more than 67108864 bytes; {advice}"),
        format!("{failed}the list has 9"),
        format!(" bytes, the limit is 8388608; {advice}"),
    ] {
        assert!(told.iter().any(|answer| answer.contains(&words)), "no {words:?} in {told:?}");
    }
    assert_eq!(count(&told, &small), 2, "{told:?}");

    // The policy's own denial does not have to mention it: the audit log does.
    let told = eventually("the annotation", || unavailable(&installation, "large-asks").pop());
    assert!(told.starts_with("kubernetes/list_resources_all: ") && told.contains(&failed), "{told}");
    // A guest that fails with its call is not judged: class R.
    let (code, message) = try_config_map(&installation, &mail, "a");
    assert!(code == 503 && message.contains("policy cluster/large-fails: CapabilityUnavailable: "), "{code} {message}");

    // Call after call, what was refused is neither read again nor kept.
    for _ in 0..5 {
        assert!(try_config_map(&installation, &shop, "a").1.contains("67108864"));
    }
    let [loader, evaluator] = eventually_seen(LIMIT, "memory that is free again", || {
        let now = [Program::Loader, Program::Evaluator].map(usage);
        let is_free = now.iter().zip(&before).all(|(now, before)| now.resident < before.resident + REFUSED);
        if is_free {
            Ok(now)
        } else {
            Err(format!("loader: {}, then {}; evaluator: {}, then {}", before[0], now[0], before[1], now[1]))
        }
    });
    note(&format!("loader: {}, then {loader}; evaluator: {}, then {evaluator}", before[0], before[1]));
    assert!(loader.peak < before[0].peak + READ, "{} became {loader}", before[0]);
    assert!(evaluator.peak < before[1].peak + REFUSED, "{} became {evaluator}", before[1]);
    delete_crates(&installation, &path);
    canary.end();
}

#[test]
#[ignore = "starts a cluster"]
fn fault_z23_a_list_of_objects_that_take_much_memory_when_they_are_decoded() {
    let installation = installation("nested-lists", 1);
    let canary = installation.own_canary_within(FLOODED, "the loader and the API server read 6 MiB of nested lists");
    let [shop, store] = ["shop", "store"].map(|name| installation.make_namespace(name));
    let replica = installation.replicas().remove(0);
    let loader = || Usage::of(replica.program(Program::Loader).pid().expect("it runs"));
    let before = loader();
    let path = define_crates(&installation, GROUP, &store);
    make_nested_crates(&installation, GROUP, &path, NESTED);
    let list = |masks: &[&str]| {
        let query = json!({
            "api_version": format!("{GROUP}/v1"), "kind": "Crate", "namespace": store, "field_masks": masks,
        });
        raw("kubernetes/list_resources_by_namespace", &query)
    };
    let calls = json!([list(&["size"]), list(&["metadata.name"])]);
    let reads = json!([{ "apiVersion": format!("{GROUP}/v1"), "kind": "Crate" }]);
    let asking = asks(&installation, &shop, "nested-asks", &calls).field("contextAwareResources", reads);
    installation.apply_ready(&[asking]);
    let (sizes, names): (Vec<_>, Vec<_>) = (0..NESTED)
        .map(|number| {
            let object = |more: &_| listed(&installation, &format!("{path}/crate-{number}"), more);
            (object(&json!({"size": number})), object(&json!({})))
        })
        .unzip();
    // The fields that are asked for are there for all objects.
    eventually_seen(LONGEST, "the fields of all objects", || {
        let told = answers(&installation, &shop, "nested-asks");
        let is_whole = [&sizes, &names].iter().all(|items| count(&told, &list_of(items)) > 0);
        if is_whole { Ok(()) } else { Err(format!("{told:?}")) }
    });
    let after = loader();
    note(&format!("nested lists: loader: {before}, then {after}"));
    assert!(after.peak < before.peak + READ, "{before} became {after}");
    delete_crates(&installation, &path);
    canary.end();
}
