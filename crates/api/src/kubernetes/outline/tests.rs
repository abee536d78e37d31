use kube_core::{ObjectList, WatchEvent};
use serde_json::json;

use super::*;

/// The most text that an API server takes of an object, in bytes, with some for what is not free-form.
const TEXT: usize = 1_400_000;

/// A list of lists, a hundred levels deep, that fills an object: two bytes of text for each of them.
fn nested() -> String {
    let one = format!("{}0{}", "[".repeat(100), "]".repeat(100));
    format!("[{}]", vec![one.as_str(); TEXT / (one.len() + 1)].join(","))
}

/// Bytes that a value takes with all that it points to.
fn taken(value: &Value) -> usize {
    let field = size_of::<u64>() + size_of::<String>() + size_of::<Value>();
    let below = match value {
        Value::String(text) => text.capacity(),
        Value::Array(list) => {
            let spare = (list.capacity() - list.len()) * size_of::<Value>();
            spare + list.iter().map(taken).sum::<usize>()
        }
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| field + name.capacity() + taken(value) - size_of::<Value>())
            .sum::<usize>(),
        _ => 0,
    };
    size_of::<Value>() + below
}

fn whole_size(part: impl Into<Value>) -> usize {
    taken(&part.into())
}

fn read<const HEAD: bool>(text: &str) -> Part<HEAD> {
    serde_json::from_str(text).expect("an object")
}

fn policy(free: &str) -> String {
    format!(
        r#"{{"apiVersion":"a/v1","kind":"Policy","metadata":{{"annotations":{{"other":"x",
        "policies.portcullis.dev/audit-requested-at":"now"}},"generation":3,"labels":{{"a":"b"}},
        "managedFields":[{{"fieldsV1":{free}}}],"name":"c","resourceVersion":"7","uid":"u"}},
        "spec":{{"matchConditions":[{{"name":"n","expression":"true"}}],
        "policies":{{"m":{{"contextAwareResources":[1],"settings":{{"a":{free}}}}}}},"policyServer":"one","rollbackTo":2,
        "settings":{{"a":{free}}},"signatures":{free},"suspend":true}},"status":{{"observedGeneration":2}}}}"#
    )
}

#[test]
fn z10_the_largest_settings_take_no_memory() {
    let nested = nested();
    // As a whole it takes more than the container of any program that watches policies.
    let whole: BoundedObject = serde_json::from_str(&format!(r#"{{"spec":{{"settings":{nested}}}}}"#)).expect("reads");
    assert!(taken(&whole.0.data) > 100 << 20);
    let text = policy(&nested);
    let (outline, head) = (read::<false>(&text), read::<true>(&text));
    assert!(!outline.is_cut() && !head.is_cut());
    assert!(outline.spec_bytes() > 3 * nested.len() && outline.spec_bytes() < text.len());
    assert!(whole_size(outline) < 8 << 10);
    assert!(whole_size(head) < 8 << 10);
}

#[test]
fn what_decides_where_a_policy_is_called_is_there() {
    let outline = read::<false>(&policy("[[0]]"));
    assert_eq!(
        outline.data["spec"],
        json!({
            "matchConditions": [{"name": "n", "expression": "true"}],
            "policies": {"m": {"contextAwareResources": [1], "settings": {}}},
            "policyServer": "one", "rollbackTo": 2, "settings": {}, "signatures": [], "suspend": true,
        })
    );
    assert_eq!((outline.metadata.labels.clone(), outline.metadata.generation), (Some([].into()), Some(3)));
    assert_eq!(outline.metadata.annotations.as_ref().map(std::collections::BTreeMap::len), Some(1));
    let revision =
        r#"{"metadata":{"name":"r"},"revision":4,"data":{"generation":4,"spec":{"settings":{"a":1},"mode":"warn"}}}"#;
    let outline = read::<false>(revision);
    let data = json!({"revision": 4, "data": {"generation": 4, "spec": {"settings": {}, "mode": "warn"}}});
    assert_eq!((outline.spec_bytes(), &outline.data), (r#"{"settings":{"a":1},"mode":"warn"}"#.len(), &data));
}

#[test]
fn a_head_is_its_switches_and_its_status() {
    let head = Value::from(read::<true>(&policy("[[0]]")));
    assert_eq!(head["spec"], json!({"policyServer": "one", "rollbackTo": 2, "suspend": true}));
    assert_eq!(head["status"], json!({"observedGeneration": 2}));
    let metadata = json!({
        "annotations": {"policies.portcullis.dev/audit-requested-at": "now"},
        "generation": 3, "name": "c", "resourceVersion": "7", "uid": "u",
    });
    assert_eq!(head["metadata"], metadata);
    let long = policy("0").replace("now", &"ä".repeat(100));
    let annotations = read::<true>(&long).metadata.annotations.clone().expect("one");
    assert_eq!(annotations.values().map(String::len).collect::<Vec<_>>(), [MAX_AUDIT_REQUESTED]);
}

#[test]
fn s03_odd_and_deep_objects_fail_no_list_and_no_watch() {
    let deep = format!("{}1{}", "{\"a\":".repeat(1000), "}".repeat(1000));
    let odd = r#"{"metadata":{"name":"d"},"spec":"text","data":7,"status":[[]]}"#;
    let list = format!(r#"{{"metadata":{{"resourceVersion":"1"}},"items":[{},{odd},{{}}]}}"#, policy(&deep));
    let outlines: ObjectList<Outline> = serde_json::from_str(&list).expect("reads");
    let heads: ObjectList<PolicyHead> = serde_json::from_str(&list).expect("reads");
    assert_eq!((outlines.items.len(), heads.items.len()), (3, 3));
    assert_eq!(outlines.items[1].data, json!({"spec": "", "data": 7, "status": [[]]}));
    let event = format!(r#"{{"type":"ADDED","object":{}}}"#, policy(&deep));
    assert!(matches!(serde_json::from_str(&event), Ok(WatchEvent::<Outline>::Added(_))));
    assert!(matches!(serde_json::from_str(&event), Ok(WatchEvent::<PolicyHead>::Added(_))));
}

#[test]
fn what_takes_too_much_all_the_same_is_cut() {
    let known = (0..TEXT / 30).map(|number| format!("\"policies.portcullis.dev/{number}\":\"\""));
    let known = known.collect::<Vec<_>>().join(",");
    let labelled = read::<false>(&format!(r#"{{"metadata":{{"labels":{{{known}}},"name":"a"}}}}"#));
    assert!(labelled.is_cut() && labelled.metadata.name.is_some());
    assert!(whole_size(labelled) < SHARE_BYTES);
    let finalizers = vec!["\"a/b\""; TEXT / 6].join(",");
    let many = format!(r#"{{"metadata":{{"finalizers":[{finalizers}],"name":"a"}},"spec":{{"policyServer":"one"}}}}"#);
    let outline = read::<false>(&many);
    assert!(outline.is_cut());
    assert_eq!((outline.metadata.name.as_deref(), &outline.data["spec"]["policyServer"]), (Some("a"), &json!("one")));
    assert!(whole_size(outline) < SHARE_BYTES);
    // A head has no finalizers.
    assert!(!read::<true>(&many).is_cut());
    for field in ["spec", "status", "webhooks"] {
        let text = format!(r#"{{"metadata":{{}},"{field}":{{"rules":{}}}}}"#, nested());
        let outline = read::<false>(&text);
        assert!(outline.is_cut());
        assert!(whole_size(outline) < Outline::MAX_BYTES);
        let head = read::<true>(&text);
        assert_eq!(head.is_cut(), field == "status");
        assert!(whole_size(head) < PolicyHead::MAX_BYTES);
    }
}

#[test]
fn the_largest_policy_that_the_schema_accepts_is_read_whole() {
    let texts = |count: usize, length: usize| vec!["x".repeat(length); count];
    let selector = json!({
        "matchLabels": (0..32).map(|number| (format!("label-{number}"), json!("x"))).collect::<Map<_, _>>(),
        "matchExpressions": vec![json!({"key": "k", "operator": "In", "values": texts(64, 8)}); 32],
    });
    let grants = json!({
        "module": "m", "hostCapabilities": texts(64, 8),
        "contextAwareResources": vec![json!({"apiVersion": "v1", "kind": "Pod"}); 64],
    });
    let rule = json!({
        "apiGroups": texts(32, 32), "apiVersions": texts(16, 8), "resources": texts(32, 32),
        "operations": texts(5, 6), "scope": "*",
    });
    let mut spec = json!({
        "rules": vec![rule; 32], "matchConditions": vec![json!({"name": "n", "expression": "x".repeat(16 << 10)}); 60],
        "objectSelector": selector, "namespaceSelector": selector,
        "policies": (0..16).map(|number| (number.to_string(), grants.clone())).collect::<Map<_, _>>(),
    });
    spec.as_object_mut().expect("fields").extend(grants.as_object().expect("fields").clone());
    let text = json!({"metadata": {"name": "a"}, "spec": spec}).to_string();
    assert!(text.len() > 1 << 20, "{}", text.len());
    let outline = read::<false>(&text);
    assert_eq!(outline.data["spec"], spec);
    assert!(!outline.is_cut());
}

/// A list and an event with this object and a plain one, as an API server sends them.
fn arrives(object: &str) -> (Outline, PolicyHead) {
    let plain = r#"{"metadata":{"name":"plain"}}"#;
    let list = format!(r#"{{"metadata":{{"resourceVersion":"1"}},"items":[{object},{plain}]}}"#);
    let event = format!(r#"{{"type":"MODIFIED","object":{object}}}"#);
    let mut outlines: ObjectList<Outline> = serde_json::from_str(&list).expect("the list is readable");
    let mut heads: ObjectList<PolicyHead> = serde_json::from_str(&list).expect("the list is readable");
    assert_eq!((outlines.items.len(), heads.items.len()), (2, 2));
    assert!(matches!(serde_json::from_str(&event), Ok(WatchEvent::<Outline>::Modified(_))));
    assert!(matches!(serde_json::from_str(&event), Ok(WatchEvent::<PolicyHead>::Modified(_))));
    (outlines.items.remove(0), heads.items.remove(0))
}

/// An object with these annotations and finalizers.
fn annotated(annotations: &[(&str, usize)], finalizers: &[usize]) -> String {
    let annotations: Map<_, _> =
        annotations.iter().map(|(name, length)| ((*name).to_owned(), "x".repeat(*length).into())).collect();
    let finalizers: Vec<_> = finalizers.iter().map(|length| "x".repeat(*length)).collect();
    let metadata = json!({"annotations": annotations, "labels": annotations, "finalizers": finalizers, "name": "a"});
    json!({"metadata": metadata, "spec": {"policyServer": "one"}}).to_string()
}

#[test]
fn a_text_without_room_fails_no_list_and_no_watch() {
    let (outline, head) = arrives(&annotated(&[("policies.portcullis.dev/a", 262_000)], &[]));
    assert!(outline.is_cut() && !head.is_cut());
    assert_eq!(outline.metadata.annotations, Some([].into()));
    assert_eq!((outline.metadata.name.as_deref(), &outline.data["spec"]["policyServer"]), (Some("a"), &json!("one")));
    // What comes after a text without room is there if it fits.
    let mut finalizers = vec![317; 530];
    finalizers.extend([100, 317, 1]);
    let (outline, _) = arrives(&annotated(&[], &finalizers));
    let found = outline.metadata.finalizers.clone().unwrap_or_default();
    assert!(outline.is_cut() && found.len() < finalizers.len());
    assert!(found.iter().all(|finalizer| !finalizer.is_empty()));
    // An audit that was asked for is known, however long the text is.
    let (_, head) = arrives(&annotated(&[(AUDIT_REQUESTED_ANNOTATION, 262_000)], &[]));
    assert_eq!(head.metadata.annotations.clone().expect("one")[AUDIT_REQUESTED_ANNOTATION].len(), MAX_AUDIT_REQUESTED);
}

#[test]
fn whatever_the_sizes_near_the_limit_are_a_list_is_readable() {
    let names = ["policies.portcullis.dev/a", "policies.portcullis.dev/b", "policies.portcullis.dev/c"];
    let mut outcomes = std::collections::BTreeSet::new();
    for less in (0..1600).step_by(5) {
        let most = SHARE_BYTES - less;
        let object = annotated(&[(names[0], most - 60), (names[1], 40), (names[2], 7)], &[most, 317, 8]);
        let (outline, _) = arrives(&object);
        let annotations = outline.metadata.annotations.clone().unwrap_or_default();
        let finalizers = outline.metadata.finalizers.clone().unwrap_or_default();
        outcomes.insert((outline.is_cut(), annotations.len(), finalizers.len()));
    }
    // Those that fit, those that do not, and some in between.
    assert!(outcomes.iter().any(|outcome| !outcome.0) && outcomes.len() > 2, "{outcomes:?}");
    assert!(outcomes.iter().all(|(is_cut, annotations, finalizers)| *is_cut != (*annotations + *finalizers == 6)));
}

#[test]
fn what_kubewarden_says_of_a_policy_is_known() {
    let names = ["severity", "category", "description"].map(|name| format!("io.kubewarden.policy.{name}"));
    let annotations: Vec<_> = names.iter().map(|name| (name.as_str(), 4)).collect();
    let (outline, _) = arrives(&annotated(&annotations, &[]));
    let found = outline.metadata.annotations.clone().expect("some");
    assert_eq!(found.keys().collect::<Vec<_>>(), [&names[1], &names[0]]);
}

#[test]
fn what_is_no_text_is_not_among_texts() {
    let odd = r#"{"metadata":{"annotations":{"policies.portcullis.dev/a":null,"policies.portcullis.dev/b":"x"},
                 "labels":{"policies.portcullis.dev/a":[1]},"finalizers":["a",null,7],"name":"a"}}"#;
    let (outline, _) = arrives(odd);
    assert_eq!(outline.metadata.annotations.as_ref().map(std::collections::BTreeMap::len), Some(1));
    assert_eq!((&outline.metadata.labels, &outline.metadata.finalizers), (&Some([].into()), &Some(vec!["a".into()])));
}
