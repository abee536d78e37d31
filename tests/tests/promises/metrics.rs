//! The page of metrics is complete, alerts and dashboard use only metrics and labels that exist, and each alert has a runbook.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use portcullis_contract::Reason;
use portcullis_tests::{Folder, Pod, Policy, Program, Review, eventually};
use serde_json::Value;

/// A metric as `docs/metrics.md` describes it.
#[derive(Debug, PartialEq)]
struct Metric {
    /// The type: counter, gauge or histogram.
    kind: String,
    labels: BTreeSet<String>,
}

/// Labels that are not on the page: those of the pod, and the bound of a bucket.
const TARGET_LABELS: [&str; 4] = ["namespace", "pod", "container", "le"];
/// A metric of Prometheus itself: whether it could read a target.
const OF_PROMETHEUS: &str = "up";
/// The prefixes of the names of metrics. The metrics of Kubewarden are optional.
const PREFIXES: [&str; 2] = ["portcullis_", "kubewarden_"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn is_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

/// The metrics on the page.
fn documented() -> BTreeMap<String, Metric> {
    let page = read("docs/metrics.md");
    let words =
        |cell: &str| cell.split(',').map(|word| word.trim().replace('`', "")).filter(|word| !word.is_empty()).collect();
    let is_row = |line: &&str| PREFIXES.iter().any(|prefix| line.starts_with(&format!("| `{prefix}")));
    let rows = page.lines().filter(is_row).map(|line| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let metric = Metric { kind: cells[2].to_owned(), labels: words(cells[3]) };
        (cells[1].replace('`', ""), metric)
    });
    rows.collect()
}

/// Adds the texts of all source files below a folder.
fn sources(folder: &Path, texts: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())).flatten() {
        if entry.path().is_dir() {
            sources(&entry.path(), texts);
        } else if entry.path().extension().is_some_and(|extension| extension == "rs") {
            texts.push(fs::read_to_string(entry.path()).expect("source code is text"));
        }
    }
}

/// The names of metrics in the code.
fn registered() -> BTreeSet<String> {
    let mut texts = Vec::new();
    for folder in
        ["loader", "evaluator", "reporter", "controller", "crates/broker", "crates/process", "crates/kubernetes"]
    {
        sources(&root().join(folder).join("src"), &mut texts);
    }
    let literals =
        texts.iter().filter(|text| text.contains("use prometheus")).flat_map(|text| text.split('"').skip(1).step_by(2));
    let is_metric = |text: &&str| PREFIXES.iter().any(|prefix| text.starts_with(prefix)) && text.chars().all(is_name);
    literals.filter(is_metric).map(str::to_owned).collect()
}

/// The expressions and texts of the alerts, with a namespace in place of Helm's template, and those of the dashboard.
fn expressions() -> Vec<String> {
    fn texts(value: Value, found: &mut Vec<String>) {
        match value {
            Value::String(text) => found.push(text),
            Value::Array(values) => values.into_iter().for_each(|value| texts(value, found)),
            Value::Object(fields) => fields.into_iter().for_each(|(_, value)| texts(value, found)),
            _ => {}
        }
    }
    let rules =
        read("helm/templates/monitoring/prometheusrule.yaml").replace(" {{- $in }}", "namespace=\"portcullis\"");
    let mut found = vec![rules];
    texts(serde_json::from_str(&read("helm/dashboards/portcullis.json")).expect("it is JSON"), &mut found);
    found
}

/// Each metric that a text uses, with the labels of its selector.
fn asked(text: &str) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(is_name) {
        rest = &rest[start..];
        let end = rest.find(|character| !is_name(character)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        rest = after;
        let selector = after.strip_prefix('{').filter(|selector| !selector.starts_with('{'));
        if let Some((selector, after)) = selector.and_then(|selector| selector.split_once('}')) {
            let label = |one: &str| one.split(['=', '!']).next().unwrap_or_default().trim().to_owned();
            found.push((name.to_owned(), selector.split(',').map(label).filter(|label| !label.is_empty()).collect()));
            rest = after;
        } else if name.starts_with("portcullis_") {
            found.push((name.to_owned(), Vec::new()));
        }
    }
    found
}

/// The metric that a series belongs to. A histogram has series with three names.
fn family<'m>(metrics: &'m BTreeMap<String, Metric>, series: &str) -> Option<&'m Metric> {
    metrics.get(series).filter(|metric| metric.kind != "histogram").or_else(|| {
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| series.strip_suffix(end))?;
        metrics.get(base).filter(|metric| metric.kind == "histogram")
    })
}

#[test]
fn promise_every_metric_of_the_code_is_on_the_page() {
    let (registered, documented) = (registered(), documented());
    assert!(registered.len() > 50, "{registered:?}");
    let missing: Vec<_> = registered.iter().filter(|name| !documented.contains_key(*name)).collect();
    let unknown: Vec<_> = documented.keys().filter(|name| !registered.contains(*name)).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "not on the page: {missing:?}; not in the code: {unknown:?}");
}

#[test]
fn promise_alerts_and_dashboard_ask_for_metrics_that_there_are() {
    let metrics = documented();
    let mut count = 0;
    for text in expressions() {
        let asked = asked(&text);
        let mut allowed: BTreeSet<&str> = TARGET_LABELS.into();
        for (name, labels) in &asked {
            count += 1;
            let mut known: BTreeSet<&str> = TARGET_LABELS.into();
            match family(&metrics, name) {
                Some(metric) => known.extend(metric.labels.iter().map(String::as_str)),
                None => assert_eq!(name, OF_PROMETHEUS, "there is no such metric, in {text}"),
            }
            for label in labels {
                assert!(known.contains(label.as_str()), "{name} has no label {label}, in {text}");
            }
            allowed.extend(known);
        }
        for (_, rest) in text.match_indices(" by (").map(|(at, found)| text.split_at(at + found.len())) {
            let labels = rest.split(')').next().unwrap_or_default();
            for label in labels.split(',').map(str::trim) {
                assert!(allowed.contains(label), "no metric has the label {label}, in {text}");
            }
        }
    }
    assert!(count > 60, "{count} uses of metrics");
}

#[test]
fn promise_each_alert_has_its_runbook() {
    let (rules, page) = (read("helm/templates/monitoring/prometheusrule.yaml"), read("docs/operations.md"));
    let after = |text: &str, words: &str| -> Vec<String> {
        text.lines().filter_map(|line| Some(line.trim().strip_prefix(words)?.to_owned())).collect()
    };
    let alerts = after(&rules, "- alert: ");
    assert!(alerts.len() > 15, "{alerts:?}");
    let runbooks: BTreeSet<_> =
        after(&page, "### Portcullis").into_iter().map(|rest| format!("Portcullis{rest}")).collect();
    assert_eq!(runbooks, alerts.iter().cloned().collect(), "runbooks, and alerts");
    // A heading's anchor is the heading in lower case.
    let links = after(&rules, "runbook_url: {{ .Values.monitoring.prometheusRule.runbookURL }}#");
    assert_eq!(links, alerts.iter().map(|alert| alert.to_lowercase()).collect::<Vec<_>>(), "links, and alerts");
}

#[test]
fn promise_programs_show_the_metrics_of_the_page() {
    let metrics = documented();
    let folder = Folder::empty();
    folder.put(&Policy::cluster("denies").guest("always_deny"));
    folder.put(&Policy::cluster("broken").bytes(b"no module"));
    let pod = Pod::on(&folder).with(Program::Evaluator, &["--kubewarden-metrics"]).start();
    pod.assert_recovered("cluster/denies", 1);
    pod.wait_failure("cluster/broken", Reason::ModuleInvalid);
    assert!(!pod.ask("cluster/denies", &Review::pod()).verdict().allowed);
    assert!(!pod.ask("cluster/broken", &Review::pod()).verdict().allowed);
    for program in [Program::Evaluator, Program::Loader, Program::Reporter] {
        let text = pod.metrics(program);
        for line in text.lines() {
            if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').expect("name and type");
                assert_eq!(metrics.get(name).map(|metric| metric.kind.as_str()), Some(kind), "{name} of the {program}");
            } else if !line.starts_with('#') {
                let series = line.split(['{', ' ']).next().expect("a name");
                let labels =
                    line.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}')).map_or("", |(labels, _)| labels);
                let labels =
                    labels.split("\",").filter_map(|label| label.split_once('=')).map(|(name, _)| name.to_owned());
                let labels: BTreeSet<_> = labels.filter(|label| label != "le").collect();
                assert_eq!(
                    family(&metrics, series).map(|metric| &metric.labels),
                    Some(&labels),
                    "{line} of the {program}"
                );
            }
        }
        assert!(text.contains("\nportcullis_ready 1\n"), "{program}: {text}");
    }
}

#[test]
fn promise_the_metrics_of_kubewarden_are_there_for_those_who_ask() {
    let folder = Folder::empty();
    folder.put(&Policy::cluster("denies").answering("answer", r#"{"accepted": false, "message": "no", "code": 403}"#));
    folder.put(&Policy::namespaced("team-a", "mutates").guest("mutates_label").mutating());
    folder.put(&Policy::cluster("watches").guest("always_deny").mode("monitor"));
    folder.put(&Policy::cluster("broken").bytes(b"no module"));
    let pods = |extra: &[&str]| {
        let pod = Pod::on(&folder).evaluator("--audit", "on").evaluator("--validate-raw", "on");
        let pod = pod.with(Program::Evaluator, extra).start();
        pod.wait_current("cluster/watches", 1);
        pod
    };
    let pod = pods(&["--kubewarden-metrics"]);
    for id in ["cluster/denies", "namespaced/team-a/mutates"] {
        pod.wait_current(id, 1);
    }
    pod.wait_failure("cluster/broken", Reason::ModuleInvalid);
    let audit = |path: &str| pod.client().post(path, Review::pod().with("/operation", "UPDATE").bytes());
    for _ in 0..3 {
        assert!(!pod.ask("cluster/denies", &Review::pod()).verdict().allowed);
    }
    assert!(pod.ask("namespaced/team-a/mutates", &Review::small_pod()).verdict().allowed);
    assert!(pod.ask("cluster/watches", &Review::pod().with("/namespace", "x\"} 9\n")).verdict().allowed);
    assert!(!audit("/audit/cluster/watches").expect("answers").verdict().allowed);
    assert_eq!(
        pod.client().post("/validate_raw/cluster/denies", r#"{"request": {"uid": "1"}}"#).expect("answers").status,
        200
    );
    pod.ask("cluster/broken", &Review::pod());

    // The labels of each series, without empty ones, and its value.
    let of = |name: &str| -> BTreeMap<String, f64> {
        let text = pod.metrics(Program::Evaluator);
        let series = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once("} "));
        let shown = |all: &str| {
            let labels = all.split(',').map(|label| label.replace('"', ""));
            labels.filter(|label| !label.ends_with('=')).collect::<Vec<_>>().join(" ")
        };
        series.map(|(all, value)| (shown(all), value.parse().expect("a number"))).collect()
    };
    let pod_in = |namespace: &str, operation: &str| {
        format!("resource_kind=Pod resource_namespace={namespace} resource_request_operation={operation}")
    };
    let counted = of("kubewarden_policy_evaluations_total");
    let expected = [
        (
            format!(
                "accepted=false error_code=403 mutated=false policy_mode=protect policy_name=clusterwide-denies \
                 request_origin=validate {}",
                pod_in("default", "CREATE")
            ),
            3.0,
        ),
        (
            "accepted=false error_code=403 mutated=false policy_mode=protect policy_name=clusterwide-denies".to_owned(),
            1.0,
        ),
        (
            format!(
                "accepted=true mutated=true policy_mode=protect policy_name=namespaced-team-a-mutates \
                 request_origin=validate {}",
                pod_in("default", "CREATE")
            ),
            1.0,
        ),
        (
            format!(
                "accepted=false mutated=false policy_mode=monitor policy_name=clusterwide-watches \
                 request_origin=validate {}",
                pod_in("other", "CREATE")
            ),
            1.0,
        ),
        (
            format!(
                "accepted=false mutated=false policy_mode=monitor policy_name=clusterwide-watches \
                 request_origin=audit {}",
                pod_in("default", "UPDATE")
            ),
            1.0,
        ),
    ];
    for (labels, count) in expected {
        assert_eq!(counted.get(&labels), Some(&count), "{labels} in {counted:#?}");
    }
    let broken = counted.keys().find(|labels| labels.contains("clusterwide-broken")).expect("it is counted");
    assert!(broken.starts_with("initialization_error="), "{broken}");
    let latency = of("kubewarden_policy_evaluation_latency_milliseconds_count");
    assert_eq!(latency.len(), 5, "{latency:#?}");

    // The series disappear with their policy, and without the flag there are none.
    folder.remove(&Policy::cluster("denies"));
    eventually("the series to be gone", || {
        let text = pod.metrics(Program::Evaluator);
        (text.contains("clusterwide-watches") && !text.contains("clusterwide-denies")).then_some(())
    });
    drop(pod);
    let pod = pods(&[]);
    pod.ask("cluster/watches", &Review::pod());
    assert!(!pod.metrics(Program::Evaluator).contains("kubewarden"));
}

#[test]
fn what_asks_for_a_metric_is_found() {
    let some = asked(
        "sum by (x) (rate(portcullis_a_total{namespace=\"n\",reason!=\"b\"}[5m])) / up{pod=~\"c|d\"} > portcullis_e",
    );
    let some: Vec<_> = some.iter().map(|(name, labels)| format!("{name} {}", labels.join(" "))).collect();
    assert_eq!(some, ["portcullis_a_total namespace reason", "up pod", "portcullis_e "]);
}
