//! Names and labels of users that YAML or the chart could misread.

use serde_json::{Value, json};

use portcullis_e2e::objects_of;

use crate::{find, helm, pods, render};

/// Finds the values of all fields of this name in an object, at any depth. If a field is an object, the values in it are found instead.
fn below<'o>(object: &'o Value, key: &str, found: &mut Vec<&'o Value>) {
    match object {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::Object(map) if name == key => found.extend(map.values()),
                    value if name == key => found.push(value),
                    value => below(value, key, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| below(value, key, found)),
        _ => {}
    }
}

#[test]
fn names_that_look_like_numbers_and_truths_stay_names() {
    let values = json!({
        "policyServer": "1e3",
        "server": { "priorityClassName": "0x1f" },
        "controller": { "priorityClassName": "12" },
        "volume": { "persistence": { "enabled": true, "storageClassName": "0.5" } },
        "certificates": { "mode": "cert-manager" },
        "siblings": { "enabled": true },
        "modules": { "pullSecret": "123", "allowedPrivate": ["fe80::"] },
        "monitoring": { "podMonitor": { "enabled": true }, "prometheusRule": { "enabled": true }, "dashboard": { "enabled": true } },
    });
    let rendered = helm().template("true", "123", &values);
    assert!(rendered.is_ok(), "{}", rendered.stderr);
    let objects = objects_of(&rendered.stdout);
    for key in [
        "namespace",
        "labels",
        "matchLabels",
        "selector",
        "priorityClassName",
        "storageClassName",
        "secretName",
        "args",
    ] {
        let mut found = Vec::new();
        // In a schema, a field of this name is a description.
        let ours = objects.iter().filter(|object| object["kind"] != "CustomResourceDefinition");
        ours.for_each(|object| below(object, key, &mut found));
        assert!(!found.is_empty(), "nothing is called {key}");
        for value in found {
            let is_text = value.is_string() || value.as_array().is_some_and(|all| all.iter().all(Value::is_string));
            // A field may also be a selector, which contains objects.
            assert!(
                is_text || value.is_object() || value["key"].is_string() || value[0]["key"].is_string(),
                "{key}: {value}"
            );
        }
    }
}

#[test]
fn labels_of_users_are_on_every_object_and_take_the_place_of_none_of_the_charts() {
    let theirs = json!({ "team": "platform", "app.kubernetes.io/name": "mine", "policies.portcullis.dev/policy-server": "other" });
    let values = json!({
        "labels": theirs, "server": { "podLabels": theirs }, "controller": { "podLabels": theirs },
        "monitoring": {
            "labels": theirs,
            "podMonitor": { "enabled": true },
            "prometheusRule": { "enabled": true, "labels": { "severity": "none" } },
            "dashboard": { "enabled": true, "labels": theirs },
        },
    });
    let rendered = helm().template("portcullis", crate::NAMESPACE, &values);
    assert!(rendered.is_ok(), "{}", rendered.stderr);
    // This parser refuses duplicate keys.
    let objects = objects_of(&rendered.stdout);
    for object in &objects {
        let labels = &object["metadata"]["labels"];
        assert_eq!(labels["team"], "platform", "{} {}", object["kind"], object["metadata"]["name"]);
        assert_eq!(labels["policies.portcullis.dev/policy-server"], "default");
    }
    for name in ["portcullis-policy-server", "portcullis-controller"] {
        let spec = &find(&objects, "Deployment", name)["spec"];
        let labels = &spec["template"]["metadata"]["labels"];
        assert_eq!(labels["team"], "platform");
        for (label, value) in spec["selector"]["matchLabels"].as_object().unwrap() {
            assert_eq!(&labels[label], value, "{label}");
        }
    }
    assert_eq!(pods(&objects).len(), 4);
}

#[test]
fn labels_for_some_objects_come_before_labels_for_all_of_them() {
    let values = json!({
        "labels": { "team": "all" },
        "server": { "podLabels": { "team": "servers" } },
        // Having no value is not the same as not being there.
        "controller": { "podLabels": { "team": "" } },
        "monitoring": {
            "labels": { "team": "watchers" },
            "podMonitor": { "enabled": true },
            "prometheusRule": { "enabled": true },
            "dashboard": { "enabled": true, "labels": { "team": "drawers" } },
        },
    });
    let objects = render(&values);
    for object in &objects {
        let (kind, name) = (object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap());
        let team = match (kind, name) {
            ("PodMonitor" | "PrometheusRule", _) => "watchers",
            ("ConfigMap", "portcullis-default-dashboard") => "drawers",
            _ => "all",
        };
        assert_eq!(object["metadata"]["labels"]["team"], team, "{kind} {name}");
        let pod = match (kind, name) {
            ("Deployment", "portcullis-policy-server") => json!("servers"),
            ("Deployment", "portcullis-controller") => json!(""),
            ("Job", _) => json!("all"),
            _ => Value::Null,
        };
        assert_eq!(object["spec"]["template"]["metadata"]["labels"]["team"], pod, "{kind} {name}");
    }
    let values = json!({ "labels": { "team": "all" }, "monitoring": {
        "labels": { "team": "watchers" }, "serviceMonitor": { "enabled": true },
    } });
    assert_eq!(find(&render(&values), "ServiceMonitor", "portcullis")["metadata"]["labels"]["team"], "watchers");
}

#[test]
fn the_longest_names_that_there_may_be_fit() {
    let values = json!({ "policyServer": "p".repeat(40), "certificates": { "mode": "cert-manager" }, "siblings": { "enabled": true } });
    let rendered = helm().template(&"r".repeat(53), &"n".repeat(63), &values);
    assert!(rendered.is_ok(), "{}", rendered.stderr);
    for object in objects_of(&rendered.stdout) {
        let name = object["metadata"]["name"].as_str().unwrap();
        // These names become host names or labels.
        let is_short =
            ["Service", "Deployment", "StatefulSet", "Job", "Pod"].map(Value::from).contains(&object["kind"]);
        assert!(name.len() <= if is_short { 52 } else { 253 }, "{} {name}", object["kind"]);
        let mut labels = Vec::new();
        below(&object["metadata"], "labels", &mut labels);
        assert!(labels.iter().all(|label| label.as_str().unwrap().len() <= 63), "{name}: {labels:?}");
        // The common name of a certificate.
        assert!(object["spec"]["commonName"].as_str().is_none_or(|name| name.len() <= 64), "{name}");
    }
}
