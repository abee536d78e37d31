//! The metrics of all programs in a cluster are those that `docs/metrics.md` describes.

use std::collections::{BTreeMap, BTreeSet};

use portcullis_e2e::{Program, eventually};
use serde_json::json;

use crate::{assert_denied, installation};

const PAGE: &str = include_str!("../../../docs/metrics.md");

/// The type and the labels of each metric on the page.
fn documented() -> BTreeMap<&'static str, (&'static str, BTreeSet<&'static str>)> {
    let rows = PAGE.lines().filter(|line| line.starts_with("| `portcullis_"));
    rows.map(|row| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let labels = cells[3].split(',').map(|label| label.trim().trim_matches('`')).filter(|label| !label.is_empty());
        (cells[1].trim_matches('`'), (cells[2], labels.collect()))
    })
    .collect()
}

/// The names of the labels of a series.
fn labels(series: &str) -> BTreeSet<&str> {
    let labels = series.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}')).map_or("", |(labels, _)| labels);
    let names = labels.split("\",").filter_map(|label| Some(label.split_once('=')?.0));
    names.filter(|name| *name != "le").collect()
}

#[test]
#[ignore = "starts a cluster"]
fn programs_in_a_cluster_show_the_metrics_of_the_page() {
    let installation = installation("metrics", 1);
    let shop = installation.make_namespace("shop");
    let policy = installation.cluster_policy("metrics").denying("counted");
    installation.apply_ready(std::slice::from_ref(&policy));
    assert_denied(&installation.create_pod(&shop, "one", &json!({})), "counted");
    let broken = installation.cluster_policy("metrics-broken").module_of("no module");
    installation.apply(&broken).expect("the policy");
    installation.wait_for(&broken, "Stalled", "True");

    let replica = installation.replicas().remove(0);
    let named = format!(
        r#"portcullis_reporter_troubled_policies{{enforced="False",policy="cluster/{}",status="Error"}} 1"#,
        broken.name()
    );
    eventually("the policy in trouble is named", || {
        let (_, text) = replica.probe(Program::Reporter, "/metrics")?;
        text.lines().any(|line| line == named).then_some(())
    });

    let documented = documented();
    let mut shown = BTreeSet::new();
    let controller = installation.pods().into_iter().find(|pod| pod.name() != replica.name()).unwrap();
    let programs = [
        (&replica, Program::Evaluator),
        (&replica, Program::Loader),
        (&replica, Program::Reporter),
        (&controller, Program::Controller),
    ];
    for (pod, program) in programs {
        let (code, text) = eventually("metrics", || pod.probe(program, "/metrics"));
        assert_eq!(code, 200, "{program}");
        let mut name = "";
        for line in text.lines() {
            if let Some(family) = line.strip_prefix("# TYPE ") {
                let (found, kind) = family.split_once(' ').unwrap();
                assert_eq!(documented.get(found).map(|metric| metric.0), Some(kind), "{found} of the {program}");
                name = found;
                shown.insert(found.to_owned());
            } else if !line.starts_with('#') {
                assert_eq!(labels(line), documented[name].1, "{line} of the {program}");
            }
        }
    }
    for name in ["portcullis_reporter_led_policies", "portcullis_controller_certificate_expiry_seconds"] {
        assert!(shown.contains(name), "{name} is not among {shown:?}");
    }
}
