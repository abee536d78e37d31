//! Verdicts on objects change although the objects do not: the labels of their namespace change, or the objects that the policy reads.

use std::collections::{BTreeMap, BTreeSet};

use portcullis_e2e::{Installation, eventually, rego};
use serde_json::{Value, json};

use crate::audit::{
    COUNTED, NO_TEAM, ObjectKey, ReportKind, asked, counted, fill, install, items, labels, put_label, reported_by,
    scan, wait_exact_in,
};

/// The label by which the policy selects namespaces.
const STAGE: &str = "stage";

/// The ConfigMaps of a namespace, with their resource versions.
fn versions(installation: &Installation<'_>, namespace: &str) -> BTreeMap<ObjectKey, Value> {
    let objects = items(installation, &format!("/api/v1/namespaces/{namespace}/configmaps"));
    let version = |object: &Value| {
        let metadata = &object["metadata"];
        let name = metadata["name"].as_str().unwrap().to_owned();
        ((namespace.to_owned(), name), metadata["resourceVersion"].clone())
    };
    objects.iter().map(version).collect()
}

#[test]
#[ignore = "starts a cluster"]
fn promise_objects_gain_and_lose_reports_with_the_labels_of_their_namespace() {
    let installation = install("audits-stages", "openreports").with(1);
    let namespaces = ["a", "b"].map(|suffix| installation.make_namespace(suffix));
    for namespace in &namespaces {
        fill(&installation, namespace, 30, |number| number % 3 == 0);
    }
    let put = |namespace: &String, stage: Value| {
        put_label(&installation, &format!("/api/v1/namespaces/{namespace}"), STAGE, stage);
    };
    put(&namespaces[0], json!("live"));
    put(&namespaces[1], json!("test"));
    let before: Vec<_> = namespaces.iter().map(|namespace| versions(&installation, namespace)).collect();
    let selector = json!({
        "matchLabels": { "portcullis-test": installation.policy_server() },
        "matchExpressions": [{ "key": STAGE, "operator": "In", "values": ["live"] }],
    });
    let policy = labels(&installation, "audits-stages-labels").field("namespaceSelector", selector);
    installation.apply_ready(std::slice::from_ref(&policy));
    // Counts the objects in the namespaces that have the label now, and compares with the reports in both.
    let exact = || {
        let is_live = |namespace: &&String| {
            let object = installation.api().find(&format!("/api/v1/namespaces/{namespace}")).expect("the namespace");
            object["metadata"]["labels"][STAGE] == "live"
        };
        let live: Vec<String> = namespaces.iter().filter(is_live).cloned().collect();
        let counted = counted(&installation, &live);
        wait_exact_in(&installation, ReportKind::Report, &policy, NO_TEAM, &counted, &namespaces);
        (counted.0.len(), counted.1)
    };
    assert_eq!(exact(), (10, 30));

    // The objects of the second namespace are added, and the policy is asked only about them.
    let [pod] = installation.replicas().try_into().ok().expect("one replica");
    let questions = asked(&pod);
    put(&namespaces[1], json!("live"));
    scan(&installation, &policy);
    assert_eq!(exact(), (20, 60));
    assert_eq!(asked(&pod), questions + 30);
    // The objects of the first namespace are removed, and the policy is not asked.
    put(&namespaces[0], json!("test"));
    scan(&installation, &policy);
    assert_eq!(exact(), (10, 30));
    put(&namespaces[1], Value::Null);
    scan(&installation, &policy);
    assert_eq!(exact(), (0, 0));
    assert_eq!(asked(&pod), questions + 30);
    let after: Vec<_> = namespaces.iter().map(|namespace| versions(&installation, namespace)).collect();
    assert_eq!(before, after, "nobody has edited an object");
}

/// The ConfigMaps of a namespace that have the name of a LimitRange in another namespace, and the number of all ConfigMaps, by the test's
/// own count.
fn taken(installation: &Installation<'_>, namespace: &str) -> (BTreeMap<ObjectKey, ()>, usize) {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let ranges = items(installation, "/api/v1/limitranges");
    let elsewhere = ranges.iter().map(|range| &range["metadata"]).filter(|range| range["namespace"] != namespace);
    let names: BTreeSet<String> = elsewhere.map(|range| text(&range["name"])).collect();
    let objects =
        items(installation, &format!("/api/v1/namespaces/{namespace}/configmaps?labelSelector={COUNTED}%3Dyes"));
    let found = objects.iter().map(|object| text(&object["metadata"]["name"])).filter(|name| names.contains(name));
    (found.map(|name| ((namespace.to_owned(), name), ())).collect(), objects.len())
}

/// The ConfigMaps of a namespace that would be denied if they were created now, with the messages of the API server.
fn refused(installation: &Installation<'_>, namespace: &str) -> BTreeMap<ObjectKey, String> {
    let collection = format!("/api/v1/namespaces/{namespace}/configmaps");
    let mut refused = BTreeMap::new();
    for object in items(installation, &format!("{collection}?labelSelector={COUNTED}%3Dyes")) {
        let name = object["metadata"]["name"].as_str().unwrap();
        let again = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "labels": { COUNTED: "yes" } },
        });
        let reply = installation.api().create(&format!("{collection}?dryRun=All"), &again);
        let reply = reply.expect("an API server answers");
        let message = reply.body["message"].as_str().unwrap_or_default().to_owned();
        if message.contains("denied the request: ") {
            refused.insert((namespace.to_owned(), name.to_owned()), message);
        } else {
            // The API server calls policies before it checks whether the object exists.
            assert_eq!((reply.code, &reply.body["reason"]), (409, &json!("AlreadyExists")), "{message}");
        }
    }
    refused
}

#[test]
#[ignore = "starts a cluster"]
fn promise_a_policy_that_reads_objects_sees_in_the_audit_what_it_sees_at_admission() {
    let installation = install("audits-context", "openreports").with(1);
    let [shop, mail] = ["shop", "mail"].map(|suffix| installation.make_namespace(suffix));
    fill(&installation, &shop, 12, |_| true);
    let path = |namespace: &str| format!("/api/v1/namespaces/{namespace}/limitranges");
    let make = |namespace: &str, number: usize| {
        let object = json!({
            "apiVersion": "v1", "kind": "LimitRange", "metadata": { "name": format!("object-{number:03}") },
            "spec": { "limits": [{ "type": "Pod", "max": { "cpu": "4" } }] },
        });
        installation.api().create(&path(namespace), &object).expect("an API server answers").expect("a LimitRange");
    };
    [1, 4, 7].into_iter().for_each(|number| make(&mail, number));
    // A LimitRange in the same namespace does not count.
    make(&shop, 2);
    let policy = installation
        .cluster_policy("audits-context-names")
        .module_of(rego("unique-names"))
        .field("contextAwareResources", json!([{ "apiVersion": "v1", "kind": "LimitRange" }]))
        .field("objectSelector", json!({ "matchLabels": { COUNTED: "yes" } }))
        .field("timeoutEvalSeconds", 20)
        .on(&["configmaps"]);
    installation.apply_ready(std::slice::from_ref(&policy));
    let id = format!("cluster/{}", policy.name());
    let namespaces = [shop.clone(), mail.clone()];
    let [pod] = installation.replicas().try_into().ok().expect("one replica");
    let exact = || {
        let taken = taken(&installation, &shop);
        let refused = eventually("admission that sees all LimitRanges", || {
            let refused = refused(&installation, &shop);
            refused.keys().eq(taken.0.keys()).then_some(refused)
        });
        let before = asked(&pod);
        scan(&installation, &policy);
        wait_exact_in(&installation, ReportKind::Report, &policy, "has this name", &taken, &namespaces);
        // The verdicts depend on more than object and policy, so the policy is asked about each object again.
        eventually("a question about each object", || (asked(&pod) >= before + 12).then_some(()));
        for (key, message) in reported_by(&installation, ReportKind::Report, &id, &namespaces) {
            assert!(refused[&key].contains(&message), "{key:?}: {message}: {refused:?}");
        }
        (taken.0.len(), taken.1)
    };
    assert_eq!(exact(), (3, 12));

    // The objects that the policy reads change, but not those that it judges.
    let before = versions(&installation, &shop);
    for number in [5, 6, 8] {
        make(&mail, number);
    }
    let deleted = installation.api().delete(&format!("{}/object-001", path(&mail)), None);
    deleted.expect("an API server answers").expect("a deletion");
    assert_eq!(exact(), (5, 12));
    assert_eq!(before, versions(&installation, &shop), "nobody has edited an object");
}
