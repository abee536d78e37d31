//! A PolicyServer as Helm values. Pure.

use serde_json::{Map, Value, json};

use super::{Fields, Outcome, env, put};

/// The least memory limit that the chart accepts with its defaults, in bytes: that of `portcullis.refuseTooLittleMemory` in
/// `helm/templates/_refuse.tpl`.
const LEAST_MEMORY: f64 = 858_993_460.0;

/// What the chart's evaluator requests, and its limit if it has one, by default: the resources whose requests and limits depend on each
/// other.
const RESOURCES: [(&str, &str, Option<&str>); 2] = [("cpu", "200m", None), ("memory", "256Mi", Some("1Gi"))];

/// The Helm values for a PolicyServer.
pub(super) fn values(object: &Value, fields: &mut Fields<'_>) -> Value {
    let mut values = json!({"policyServer": object["metadata"]["name"]});
    for (name, value) in object["spec"].as_object().into_iter().flatten() {
        if name == "env" {
            env::take(value, &mut values, fields);
            continue;
        }
        let field = format!("spec.{}", portcullis_contract::clean(name, 100));
        let outcome = match renamed(name) {
            Some(to) => {
                put(&mut values, to, translated(name, value));
                Outcome::Renamed(to.to_owned())
            }
            None => Outcome::Dropped(why(name, value)),
        };
        fields.note(field, outcome);
    }
    for AboveLimit { resource, request, limit, set } in above_limits(&object["spec"]) {
        let (field, note) = set.note(resource, &request, &limit);
        match set {
            Set::Request => put(&mut values, &format!("evaluator.resources.requests.{resource}"), limit),
            Set::Limit => put(&mut values, &format!("evaluator.resources.limits.{resource}"), request),
            Set::Neither => {}
        }
        fields.note(field, Outcome::Noted(note));
    }
    for (field, note) in notes(&object["spec"]) {
        fields.note(field, Outcome::Noted(note));
    }
    values
}

/// What the installation may need beside these values.
fn notes(spec: &Value) -> Vec<(&'static str, String)> {
    let mut notes = Vec::new();
    let memory = &spec["limits"]["memory"];
    if quantity(memory).is_some_and(|bytes| bytes < LEAST_MEMORY) {
        let little = format!(
            "the chart refuses {}, as it wants 820Mi at least with its defaults: raise evaluator.resources.limits.memory in the \
             values, or set fewer or smaller instances (evaluator.instances, evaluator.memoryLimit)",
            shown(memory)
        );
        notes.push(("spec.limits.memory", little));
    }
    if spec["sourceAuthorities"].as_object().is_some_and(|hosts| !hosts.is_empty()) {
        let alone = "Kubewarden adds them to the authorities of the system, for the whole connection; here they replace these, and count \
                     for this host alone, not for those that it sends clients to, for tokens or blobs: list all of these hosts, or \
                     put the authorities into modules.authorities, which adds them for every host that is not listed";
        notes.push(("spec.sourceAuthorities", alone.to_owned()));
    }
    if spec["sigstoreTrustConfig"].as_str().unwrap_or_default().is_empty() {
        let keyless = "where it is absent, Kubewarden fetches the trust root of the public Sigstore by itself, and Portcullis never does: \
                       if policies or modules.verification check signatures without keys, put a trusted_root.json into modules.trustRoot";
        notes.push(("spec.sigstoreTrustConfig", keyless.to_owned()));
    }
    if spec["namespacedPoliciesCapabilities"].is_null() {
        let granted = "without it, Kubewarden grants policies of namespaces every host capability, and Portcullis grants none: list \
                       those that they need in capabilities.namespaced, and in `hostCapabilities` of each policy";
        notes.push(("spec.namespacedPoliciesCapabilities", granted.to_owned()));
    }
    let private = "those on private addresses are refused until modules.allowedPrivate names them, for instance [10.0.0.0/8] or \
                   [registry.internal]";
    notes.push(("registries", private.to_owned()));
    notes
}

/// A request above its limit, which the chart refuses, as the API server would refuse the pods.
#[derive(Debug, PartialEq)]
struct AboveLimit {
    resource: &'static str,
    request: Value,
    limit: Value,
    /// Which of them the values set to the other one.
    set: Set,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Set {
    /// The PolicyServer has the limit alone, which Kubernetes requests then.
    Request,
    /// The PolicyServer has the request alone, and no limit.
    Limit,
    /// It has both, and no pod of it can have started.
    Neither,
}

impl Set {
    /// What a reader should know, and of which field.
    fn note(self, resource: &str, request: &Value, limit: &Value) -> (String, String) {
        let (request, limit) = (shown(request), shown(limit));
        match self {
            Self::Request => (
                format!("spec.limits.{resource}"),
                format!(
                    "without a request, Kubernetes requests as much as the limit, {limit}; the chart requests {request} by default, which \
                     is more than the limit, so evaluator.resources.requests.{resource} is {limit}"
                ),
            ),
            Self::Limit => (
                format!("spec.requests.{resource}"),
                format!(
                    "the PolicyServer has no limit, and that of the chart is {limit} by default, which is less than the request, so \
                     evaluator.resources.limits.{resource} is {request}: raise it if policies may use more"
                ),
            ),
            Self::Neither => (
                format!("spec.requests.{resource}"),
                format!(
                    "{request} is more than the limit, {limit}, and the chart refuses that, as API servers do: lower \
                     evaluator.resources.requests.{resource} or raise evaluator.resources.limits.{resource}"
                ),
            ),
        }
    }
}

/// The requests that are above their limits, where the chart's defaults count for what the PolicyServer does not have.
fn above_limits(spec: &Value) -> Vec<AboveLimit> {
    // In values, null removes a default.
    let given = |side: &str, resource: &str| match spec.get(side) {
        Some(Value::Null) => Some(&Value::Null),
        side => side.and_then(|side| side.get(resource)),
    };
    let above = RESOURCES.into_iter().filter_map(|(resource, request, limit)| {
        let (own_request, own_limit) = (given("requests", resource), given("limits", resource));
        let set = match (own_request, own_limit) {
            (None, _) => Set::Request,
            (Some(_), None) => Set::Limit,
            (Some(_), Some(_)) => Set::Neither,
        };
        let request = own_request.cloned().unwrap_or_else(|| json!(request));
        let limit = own_limit.cloned().unwrap_or_else(|| json!(limit));
        (quantity(&request)? > quantity(&limit)?).then_some(AboveLimit { resource, request, limit, set })
    });
    above.collect()
}

/// A value of a manifest, for a text.
fn shown(value: &Value) -> String {
    portcullis_contract::clean(&value.as_str().map_or_else(|| value.to_string(), str::to_owned), 100)
}

/// A quantity of Kubernetes, in bytes or processors; `None` if the text is not one. `portcullis.quantity` in
/// `helm/templates/_helpers.tpl` reads the same.
fn quantity(quantity: &Value) -> Option<f64> {
    let text = quantity.as_str().map_or_else(|| quantity.to_string(), str::to_owned);
    let text = text.strip_prefix('+').unwrap_or(&text);
    let end = text.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    // The nearest number to the decimal one, however it is written, so that 100m is 0.1.
    let decimal = |exponent: &str| format!("{number}e{exponent}").parse().ok();
    let binary = |power: i32| Some(number.parse::<f64>().ok()? * 1024_f64.powi(power));
    match unit {
        "" => decimal("0"),
        "n" => decimal("-9"),
        "u" => decimal("-6"),
        "m" => decimal("-3"),
        "k" => decimal("3"),
        "M" => decimal("6"),
        "G" => decimal("9"),
        "T" => decimal("12"),
        "P" => decimal("15"),
        "E" => decimal("18"),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => decimal(unit.strip_prefix(['e', 'E'])?),
    }
}

/// The setting of the chart that means the same; `None` if the chart has no such setting.
fn renamed(field: &str) -> Option<&'static str> {
    Some(match field {
        "replicas" => "server.replicas",
        "maxUnavailable" => "disruptionBudget.maxUnavailable",
        "annotations" => "server.podAnnotations",
        "labels" => "server.podLabels",
        "affinity" => "server.affinity",
        "tolerations" => "server.tolerations",
        "priorityClassName" => "server.priorityClassName",
        "limits" => "evaluator.resources.limits",
        "requests" => "evaluator.resources.requests",
        "imagePullSecret" => "modules.pullSecret",
        "namespacedPoliciesCapabilities" => "capabilities.namespaced",
        "insecureSources" => "modules.sources.insecure_sources",
        "sourceAuthorities" => "modules.sources.source_authorities",
        _ => return None,
    })
}

fn translated(field: &str, value: &Value) -> Value {
    if field != "sourceAuthorities" {
        return value.clone();
    }
    let authority = |pem: &Value| json!({"type": "Data", "data": pem});
    let list = |list: &Value| list.as_array().into_iter().flatten().map(authority).collect::<Vec<_>>();
    let hosts = value.as_object().into_iter().flatten();
    Value::Object(hosts.map(|(host, authorities)| (host.clone(), list(authorities).into())).collect::<Map<_, _>>())
}

fn why(field: &str, value: &Value) -> String {
    let name = portcullis_contract::clean(value.as_str().unwrap_or_default(), 253);
    match field {
        "image" => "the chart has images of its own; image.registry says where they are".to_owned(),
        "minAvailable" => "the chart sets disruptionBudget.maxUnavailable instead, 1 by default".to_owned(),
        "serviceAccountName" => {
            "the chart makes accounts; rbac.contextAwareReads says what policies may read".to_owned()
        }
        "verificationConfig" => {
            format!("put the content of ConfigMap {name}, key verification-config, into modules.verification")
        }
        "sigstoreTrustConfig" => {
            format!("put the content of ConfigMap {name}, key sigstore-trust-config, into modules.trustRoot")
        }
        "securityContexts" => {
            "the chart's pods are confined already, and each container needs a user of its own".to_owned()
        }
        "webhookPort" | "readinessProbePort" | "metricsPort" => {
            "ports are fixed: 8443 for API servers, 8081 to 8083 for probes and metrics".to_owned()
        }
        _ => "there is no such setting".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_memory_is_that_of_the_chart() {
        let chart = portcullis_yaml::read_documents(include_str!("../../../helm/values.yaml")).expect("YAML");
        let (memory, instances) = (&chart[0]["evaluator"]["memoryLimit"], &chart[0]["evaluator"]["instances"]);
        assert_eq!((memory, instances), (&json!("128MiB"), &json!(128)), "the least memory depends on them");
        assert_eq!(LEAST_MEMORY, f64::ceil(1.6 * 4.0 * f64::from(128 << 20)));
        assert!(quantity(&json!("820Mi")).is_some_and(|bytes| bytes >= LEAST_MEMORY));
        assert!(quantity(&json!("819Mi")).is_some_and(|bytes| bytes < LEAST_MEMORY));
        let resources = &chart[0]["evaluator"]["resources"];
        let names: Vec<&str> = RESOURCES.iter().map(|(name, ..)| *name).collect();
        for side in ["requests", "limits"] {
            let has: Vec<&String> = resources[side].as_object().expect("a mapping").keys().collect();
            assert!(has.iter().all(|name| names.contains(&name.as_str())), "{has:?}");
        }
        for (name, request, limit) in RESOURCES {
            let limited = resources["limits"].get(name).and_then(Value::as_str);
            assert_eq!((&resources["requests"][name], limited), (&json!(request), limit), "{name}");
        }
    }

    #[test]
    fn quantities_are_read_as_the_chart_reads_them() {
        for (text, number) in [
            (json!(1000), 1000.0),
            (json!(0.5), 0.5),
            (json!("0.5Gi"), f64::from(1 << 29)),
            (json!(".5Gi"), f64::from(1 << 29)),
            (json!("500M"), 5e8),
            (json!("500m"), 0.5),
            (json!("100m"), 0.1),
            (json!("5e8"), 5e8),
            (json!("+5.E-1"), 0.5),
            (json!("800000000000m"), 8e8),
            (json!("2E"), 2e18),
            (json!("1Pi"), f64::from(1 << 25) * f64::from(1 << 25)),
        ] {
            assert_eq!(quantity(&text), Some(number), "{text}");
        }
        for other in [json!("1GB"), json!("1K"), json!("1e"), json!("-1"), json!("a lot"), json!(null), json!({})] {
            assert_eq!(quantity(&other), None, "{other}");
        }
    }

    /// The values for a spec, and the notes on its requests and limits.
    fn resources(spec: &Value) -> (Value, Vec<String>) {
        let mut noted = Vec::new();
        let mut fields = Fields { object: "PolicyServer/a".to_owned(), fields: &mut noted };
        let values = values(&json!({"metadata": {"name": "a"}, "spec": spec}), &mut fields);
        let noted = noted.into_iter().filter_map(|field| match field.outcome {
            Outcome::Noted(note) if field.field.starts_with("spec.requests") => Some(note),
            Outcome::Noted(note) if field.field.starts_with("spec.limits") => Some(note),
            _ => None,
        });
        (values["evaluator"]["resources"].clone(), noted.collect())
    }

    #[test]
    fn what_a_server_does_not_have_is_set_where_the_default_would_not_fit() {
        let (values, notes) = resources(&json!({"limits": {"cpu": "100m"}, "requests": {"memory": "2Gi"}}));
        let fitting = json!({"limits": {"cpu": "100m", "memory": "2Gi"}, "requests": {"cpu": "100m", "memory": "2Gi"}});
        assert_eq!(values, fitting);
        assert!(notes[0].contains("so evaluator.resources.requests.cpu is 100m"), "{notes:?}");
        assert!(notes[1].contains("so evaluator.resources.limits.memory is 2Gi"), "{notes:?}");
        assert_eq!(notes.len(), 2, "{notes:?}");
        // Little memory is a matter of its own.
        let (values, notes) = resources(&json!({"limits": {"memory": "200Mi"}}));
        assert_eq!(values, json!({"limits": {"memory": "200Mi"}, "requests": {"memory": "200Mi"}}));
        assert!(notes[1].starts_with("the chart refuses 200Mi"), "{notes:?}");
    }

    #[test]
    fn requests_and_limits_that_fit_are_as_they_were() {
        for spec in [
            json!({"limits": {"cpu": 0.2, "memory": "1Gi"}}),
            json!({"requests": {"cpu": "64", "memory": "1024Mi"}}),
            json!({"limits": {"memory": null}, "requests": {"memory": "2Gi"}}),
            json!({"limits": null, "requests": {"memory": "2Gi"}}),
            json!({"limits": {"cpu": "1m"}, "requests": {"cpu": "1m", "memory": "1Gi"}}),
        ] {
            assert_eq!(resources(&spec), (spec.clone(), Vec::new()), "{spec}");
        }
        let both = json!({"limits": {"memory": "1Gi"}, "requests": {"memory": "2Gi"}});
        let (values, notes) = resources(&both);
        assert_eq!(values, both);
        assert!(notes[0].starts_with("2Gi is more than the limit, 1Gi, and the chart refuses that"), "{notes:?}");
    }

    #[test]
    fn what_an_installation_may_need_is_noted() {
        let fields = |spec: Value| notes(&spec).into_iter().map(|(field, _)| field).collect::<Vec<_>>();
        let (trust, capabilities) = ("spec.sigstoreTrustConfig", "spec.namespacedPoliciesCapabilities");
        assert_eq!(fields(json!({})), [trust, capabilities, "registries"]);
        assert_eq!(fields(json!({"limits": {"memory": "1Gi"}})), [trust, capabilities, "registries"]);
        let authorities = json!({"sourceAuthorities": {"registry.internal": ["PEM"]}});
        assert_eq!(fields(authorities), ["spec.sourceAuthorities", trust, capabilities, "registries"]);
        let little =
            json!({"limits": {"memory": "500Mi"}, "sigstoreTrustConfig": "ours", "namespacedPoliciesCapabilities": []});
        assert_eq!(fields(little.clone()), ["spec.limits.memory", "registries"]);
        assert!(
            notes(&little)[0].1.starts_with("the chart refuses 500Mi, as it wants 820Mi at least"),
            "{:?}",
            notes(&little)
        );
    }
}
