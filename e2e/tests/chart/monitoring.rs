//! The objects for Prometheus and Grafana. The black-box tests check that the metrics of alerts and dashboard exist.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use portcullis_e2e::skip;
use serde_json::{Value, json};

use crate::notes::notes_in;
use crate::{NAMESPACE, containers, everything, find, has, pods, refusal, render};

fn watched() -> Value {
    json!({ "monitoring": {
        "labels": { "release": "prometheus" },
        "podMonitor": { "enabled": true },
        "prometheusRule": { "enabled": true, "labels": { "team": "platform" }, "runbookURL": "https://wiki.example.com/gate" },
        "dashboard": { "enabled": true, "annotations": { "grafana_folder": "Gate" } },
    } })
}

fn rules(objects: &[Value]) -> &[Value] {
    let groups = find(objects, "PrometheusRule", "portcullis")["spec"]["groups"].as_array().unwrap();
    assert_eq!(groups.len(), 1);
    groups[0]["rules"].as_array().unwrap()
}

#[test]
fn nothing_of_monitoring_is_there_unless_it_is_asked_for() {
    let objects = render(&json!({}));
    assert!(!objects.iter().any(|object| object["apiVersion"] == "monitoring.coreos.com/v1"));
    assert!(!has(&objects, "ConfigMap", "portcullis-default-dashboard"));
}

#[test]
fn every_port_with_metrics_is_read_and_no_other_pod_is() {
    let mut values = watched();
    values.as_object_mut().unwrap().extend(everything().as_object().unwrap().clone());
    for values in [watched(), values] {
        let objects = render(&values);
        let monitor = find(&objects, "PodMonitor", "portcullis");
        assert_eq!(monitor["metadata"]["labels"]["release"], "prometheus");
        let spec = &monitor["spec"];
        let read: BTreeSet<_> = spec["podMetricsEndpoints"]
            .as_array()
            .unwrap()
            .iter()
            .map(|endpoint| endpoint["port"].as_str().unwrap())
            .collect();
        // Every container has the same name as its port for probes and metrics.
        let there: BTreeSet<_> = pods(&objects)
            .iter()
            .flat_map(|(_, pod)| containers(pod))
            .filter(|container| !container["readinessProbe"].is_null())
            .map(|container| container["name"].as_str().unwrap())
            .collect();
        assert_eq!(read, there);
        for object in objects.iter().filter(|object| !object["spec"]["template"]["spec"]["containers"].is_null()) {
            let labels = &object["spec"]["template"]["metadata"]["labels"];
            let wanted = spec["selector"]["matchLabels"].as_object().unwrap();
            let names = spec["selector"]["matchExpressions"][0]["values"].as_array().unwrap();
            let is_found = wanted.iter().all(|(label, value)| labels[label] == *value)
                && names.contains(&labels["app.kubernetes.io/name"]);
            assert_eq!(is_found, object["kind"] != "Job", "{}", object["metadata"]["name"]);
        }
    }
}

#[test]
fn who_has_service_monitors_only_reads_the_same_ports_of_the_same_pods() {
    let objects = render(
        &json!({ "monitoring": { "labels": { "release": "prometheus" }, "serviceMonitor": { "enabled": true } } }),
    );
    let monitor = find(&objects, "ServiceMonitor", "portcullis");
    assert_eq!(monitor["metadata"]["labels"]["release"], "prometheus");
    let wanted = monitor["spec"]["selector"]["matchLabels"].as_object().unwrap();
    let is_chosen =
        |service: &&Value| wanted.iter().all(|(label, value)| service["metadata"]["labels"][label] == *value);
    let services: Vec<_> = objects.iter().filter(|object| object["kind"] == "Service").filter(is_chosen).collect();
    let endpoints = monitor["spec"]["endpoints"].as_array().unwrap();
    let mut read = BTreeSet::new();
    for service in services {
        let spec = &service["spec"];
        // The Service is headless, and includes pods that are not ready.
        assert_eq!((&spec["clusterIP"], &spec["publishNotReadyAddresses"]), (&json!("None"), &json!(true)));
        let chosen = objects.iter().find(|object| {
            object["kind"] == "Deployment" && object["spec"]["selector"]["matchLabels"] == spec["selector"]
        });
        let pod = &chosen.unwrap()["spec"]["template"]["spec"];
        for port in spec["ports"].as_array().unwrap() {
            let is_there = |one: &Value| one["name"] == port["targetPort"] && one["containerPort"] == port["port"];
            assert!(containers(pod).iter().any(|one| one["ports"].as_array().unwrap().iter().any(is_there)), "{port}");
            assert!(endpoints.iter().any(|endpoint| endpoint["port"] == port["name"]), "{port}");
            read.insert(port["name"].as_str().unwrap());
        }
    }
    assert_eq!(read, BTreeSet::from(["evaluator", "loader", "reporter", "controller"]));
    let both = json!({ "monitoring": { "podMonitor": { "enabled": true }, "serviceMonitor": { "enabled": true } } });
    assert!(refusal(&both).contains("counted twice"));
}

#[test]
fn alerts_are_those_of_this_installation() {
    let objects = render(&watched());
    for rule in rules(&objects) {
        let (name, expression) = (rule["alert"].as_str().unwrap(), rule["expr"].as_str().unwrap());
        // Each selector of a series names the namespace.
        assert_eq!(
            expression.matches('{').count(),
            expression.matches(&format!("{{namespace=\"{NAMESPACE}\"")).count(),
            "{name}: {expression}"
        );
        assert!(["critical", "warning"].contains(&rule["labels"]["severity"].as_str().unwrap()), "{name}");
        assert_eq!(
            (&rule["labels"]["team"], &rule["labels"]["policy_server"]),
            (&json!("platform"), &json!("default"))
        );
        let anchor = format!("https://wiki.example.com/gate#{}", name.to_lowercase());
        assert_eq!(rule["annotations"]["runbook_url"], anchor);
        assert!(rule["annotations"]["summary"].is_string(), "{name}");
    }
}

/// The block of YAML on the page of operations that begins with this line.
fn configuration(begins: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
    let page = fs::read_to_string(page).unwrap();
    let block = page.split("```yaml\n").skip(1).find(|block| block.starts_with(begins));
    block.unwrap_or_else(|| panic!("no block begins with {begins}")).split("```").next().unwrap().to_owned()
}

#[test]
fn prometheus_without_its_operator_reads_the_same_ports_of_pods_that_run() {
    let text = configuration("scrape_configs:");
    let page: Value = portcullis_yaml::read(&text).unwrap();
    let rules = page["scrape_configs"][0]["relabel_configs"].as_array().unwrap();
    let of = |action: &str| rules.iter().filter(|rule| rule["action"] == action).collect::<Vec<_>>();
    let monitor = find(&render(&watched()), "PodMonitor", "portcullis")["spec"]["podMetricsEndpoints"].clone();
    let ports: Vec<_> = monitor.as_array().unwrap().iter().map(|one| one["port"].as_str().unwrap()).collect();
    let read: BTreeSet<_> = of("keep")[0]["regex"].as_str().unwrap().split('|').collect();
    assert_eq!(read, ports.into_iter().collect());
    // The operator leaves these out too. Pods that are over keep their addresses: each would be a target that does not answer, and an alert.
    let over = json!({
        "source_labels": ["__meta_kubernetes_pod_phase"], "regex": "Succeeded|Failed", "action": "drop",
    });
    assert_eq!(of("drop"), [&over]);
    let labels: BTreeSet<_> = rules.iter().filter_map(|rule| rule["target_label"].as_str()).collect();
    assert_eq!(labels, BTreeSet::from(["namespace", "pod", "container"]), "those that alerts need");
}

/// What Helm says after an installation with these values.
fn notes(values: &Value) -> String {
    notes_in(NAMESPACE, values)
}

#[test]
fn the_notes_say_where_alerts_have_no_metrics() {
    let (no_monitor, no_access) =
        ("monitoring.podMonitor.enabled or monitoring.serviceMonitor.enabled", "Until then the alerts");
    let metrics_from = json!([{ "namespaceSelector": {} }]);
    for (values, unread, unreachable) in [
        (json!({}), false, false),
        (json!({ "monitoring": { "prometheusRule": { "enabled": true } } }), true, true),
        (watched(), false, true),
        (
            json!({
                "monitoring": { "prometheusRule": { "enabled": true }, "serviceMonitor": { "enabled": true } },
                "networkPolicy": { "metricsFrom": metrics_from },
            }),
            false,
            false,
        ),
        (
            json!({
                "monitoring": { "prometheusRule": { "enabled": true } }, "networkPolicy": { "enabled": false },
            }),
            true,
            false,
        ),
    ] {
        let notes = notes(&values);
        assert_eq!((notes.contains(no_monitor), notes.contains(no_access)), (unread, unreachable), "{values}: {notes}");
    }
}

#[test]
fn the_notes_name_the_alerts_that_fire_without_metrics() {
    let fire = |values: &Value| -> BTreeSet<String> {
        let notes = notes(values);
        let words = notes.split(|letter: char| !letter.is_ascii_alphanumeric());
        words.filter(|word| word.starts_with("Portcullis") && *word != "Portcullis").map(str::to_owned).collect()
    };
    let named = |alerts: &[&str]| -> BTreeSet<String> { alerts.iter().map(|alert| (*alert).to_owned()).collect() };
    // Those that fire at once where no metrics are read, as a scene of `alerts.yaml` shows.
    let all = [
        "PortcullisNoReplicas",
        "PortcullisReporterNoLeader",
        "PortcullisControllerNoLeader",
        "PortcullisMetricsMissing",
    ];
    let unread = json!({
        "monitoring": { "prometheusRule": { "enabled": true } }, "networkPolicy": { "enabled": false },
    });
    assert_eq!(fire(&unread), named(&all));
    // Targets that do not answer fire one more.
    let mut values = watched();
    assert_eq!(fire(&values), named(&[&all[..], &["PortcullisReplicaNotReady"]].concat()));
    // NetworkPolicies do not apply to the policy server on the node's network, only to the controller.
    values["server"] = json!({ "hostNetwork": true });
    assert_eq!(fire(&values), named(&["PortcullisControllerNoLeader"]));
    assert!(notes(&values).contains("no pod can read metrics of the controller."));
}

/// Asks promtool whether the alerts of these values are right in the scenes of a file beside this one.
fn assert_alerts(values: &Value, scenes: &str) {
    let folder = tempfile::tempdir().unwrap();
    let objects = render(values);
    let groups = portcullis_yaml::write(&find(&objects, "PrometheusRule", "portcullis")["spec"]).unwrap();
    fs::write(folder.path().join("rules.yaml"), groups).unwrap();
    let scenes = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chart").join(scenes);
    fs::copy(scenes, folder.path().join("alerts.yaml")).unwrap();
    let told = Command::new("promtool").args(["test", "rules", "alerts.yaml"]).current_dir(folder.path()).output();
    match told {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            skip("the alerts were not tried, as there is no promtool; on Debian it is in the package prometheus");
        }
        told => {
            let told = told.unwrap();
            let words = [told.stdout, told.stderr].concat();
            assert!(told.status.success(), "{}", String::from_utf8_lossy(&words));
        }
    }
}

#[test]
fn alerts_can_be_read_by_prometheus_and_tell_good_from_bad() {
    assert_alerts(&watched(), "alerts.yaml");
}

#[test]
fn no_certificate_is_late_because_its_lifetime_is_short() {
    let mut values = watched();
    values["certificates"] = json!({ "servingLifetime": "5d", "caLifetime": "40d" });
    assert_alerts(&values, "short_lives.yaml");
    // How long certificates of others live is not known.
    values["certificates"]["mode"] = json!("external");
    let objects = render(&values);
    let expression = |alert: &str| {
        let rule = rules(&objects).iter().find(|rule| rule["alert"] == alert).unwrap();
        rule["expr"].as_str().unwrap().to_owned()
    };
    let fortnight = 14 * 24 * 60 * 60;
    let expiring = expression("PortcullisCertificateExpiring");
    for (certificate, seconds) in
        [("serving", fortnight), ("ca", fortnight), ("siblings", 108_000), ("siblings-ca", 864_000)]
    {
        assert!(
            expiring.contains(&format!("certificate=\"{certificate}\"}}) < {seconds}")),
            "{certificate}: {expiring}"
        );
    }
    assert!(expression("PortcullisCertificateEnds").ends_with(&format!(" < {}", fortnight / 7)));
}

#[test]
fn grafana_finds_the_dashboard_as_it_is_in_the_repository() {
    let objects = render(&watched());
    let map = find(&objects, "ConfigMap", "portcullis-default-dashboard");
    assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
    assert_eq!(map["metadata"]["annotations"]["grafana_folder"], "Gate");
    let shown: Value = serde_json::from_str(map["data"]["portcullis.json"].as_str().unwrap()).unwrap();
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../helm/dashboards/portcullis.json");
    let kept: Value = serde_json::from_str(&fs::read_to_string(kept).unwrap()).unwrap();
    assert_eq!(shown, kept);
    let ids: BTreeSet<_> = kept["panels"].as_array().unwrap().iter().map(|panel| panel["id"].as_i64()).collect();
    assert_eq!(ids.len(), kept["panels"].as_array().unwrap().len());
}
