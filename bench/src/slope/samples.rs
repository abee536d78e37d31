//! Pods on which all variants must agree. Pure.

use serde_json::{Map, Value, json};

use crate::review;

/// A pod, and whether the rules admit it.
pub(super) struct Sample {
    /// What is special about it.
    pub(super) what: &'static str,
    pub(super) pod: Value,
    pub(super) is_denied: bool,
}

/// Pods that differ in the fields that the rule looks at.
pub(super) fn samples() -> Vec<Sample> {
    let container = |context: Value| json!({"name": "main", "image": "none", "securityContext": context});
    let plain = || json!({"name": "plain", "image": "none"});
    let (yes, no) = (json!({"privileged": true}), json!({"privileged": false}));
    let spec = |containers: Value| json!({"containers": containers});
    let with_init = |init: Value| json!({"containers": [plain()], "initContainers": [init]});
    let sample = |what, spec: Value, is_denied| Sample { what, pod: pod(&spec, &Map::new()), is_denied };
    vec![
        Sample { what: "the pod that is measured", pod: measured(), is_denied: false },
        sample("a pod without security contexts", spec(json!([plain()])), false),
        sample("a pod with an empty security context", spec(json!([container(json!({}))])), false),
        sample("a pod that says that it is not privileged", spec(json!([container(no.clone())])), false),
        sample("a pod with a privileged container", spec(json!([container(yes.clone()), plain()])), true),
        sample("a pod whose last container is privileged", spec(json!([plain(), container(yes.clone())])), true),
        sample("a pod with an ordinary init container", with_init(container(no)), false),
        sample("a pod with a privileged init container", with_init(container(yes)), true),
    ]
}

/// The pod that is created again and again.
pub(super) fn measured() -> Value {
    review::to_create("slope")
}

/// A privileged pod with these labels.
pub(super) fn privileged(labels: &Map<String, Value>) -> Value {
    let container = json!({"name": "main", "image": "none", "securityContext": {"privileged": true}});
    pod(&json!({"containers": [container]}), labels)
}

fn pod(spec: &Value, labels: &Map<String, Value>) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "slope", "labels": labels}, "spec": spec})
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rule, written once more in Rust.
    fn is_privileged(pod: &Value) -> bool {
        let sorts = ["containers", "initContainers", "ephemeralContainers"];
        let mut containers = sorts.iter().flat_map(|sort| pod["spec"][sort].as_array().into_iter().flatten());
        containers.any(|container| container["securityContext"]["privileged"] == true)
    }

    #[test]
    fn samples_are_on_both_sides_of_the_rule() {
        let samples = samples();
        for sample in &samples {
            assert_eq!(is_privileged(&sample.pod), sample.is_denied, "{}", sample.what);
        }
        assert_eq!(samples.iter().filter(|sample| sample.is_denied).count(), 3);
        assert!(is_privileged(&privileged(&Map::new())));
    }

    #[test]
    fn the_pod_that_is_measured_has_no_label_of_a_match_part() {
        let labels = measured()["metadata"]["labels"].as_object().cloned().unwrap_or_default();
        assert!(labels.keys().all(|key| !key.starts_with("slope-part-")));
    }
}
