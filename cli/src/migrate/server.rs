//! A PolicyServer as Helm values. Pure.

use serde_json::{Map, Value, json};

use super::{Fields, Outcome, env, put};

/// The least memory limit that the chart accepts with its defaults, in bytes: that of `portcullis.refuseTooLittleMemory` in
/// `helm/templates/_helpers.tpl`.
const LEAST_MEMORY: f64 = 858_993_460.0;

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
    for (field, note) in notes(&object["spec"]) {
        fields.note(field, Outcome::Noted(note));
    }
    values
}

/// What the installation may need beside these values.
fn notes(spec: &Value) -> Vec<(&'static str, String)> {
    let mut notes = Vec::new();
    let memory = &spec["limits"]["memory"];
    if bytes(memory).is_some_and(|bytes| bytes < LEAST_MEMORY) {
        let shown = portcullis_contract::clean(&memory.as_str().map_or_else(|| memory.to_string(), str::to_owned), 100);
        let little = format!(
            "the chart refuses {shown}, as it wants 820Mi at least with its defaults: raise evaluator.resources.limits.memory in the \
             values, or set fewer or smaller instances (evaluator.instances, evaluator.memoryLimit)"
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

/// A quantity of Kubernetes in bytes, as the chart reads it; `None` for forms that it does not know.
fn bytes(quantity: &Value) -> Option<f64> {
    let text = quantity.as_str().map_or_else(|| quantity.to_string(), str::to_owned);
    let end = text.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let factor = match unit {
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "Ki" => 1024.0,
        "Mi" => f64::from(1 << 20),
        "Gi" => f64::from(1 << 30),
        "Ti" => f64::from(1 << 30) * 1024.0,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * factor)
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
        assert!(bytes(&json!("820Mi")).is_some_and(|bytes| bytes >= LEAST_MEMORY));
        assert!(bytes(&json!("819Mi")).is_some_and(|bytes| bytes < LEAST_MEMORY));
    }

    #[test]
    fn quantities_are_read_as_the_chart_reads_them() {
        let read = |quantity: Value| bytes(&quantity);
        assert_eq!(read(json!(1000)), Some(1000.0));
        assert_eq!(read(json!("0.5Gi")), Some(f64::from(1 << 29)));
        assert_eq!(read(json!("500M")), Some(5e8));
        for other in [json!("500m"), json!("5e8"), json!("a lot"), json!(null), json!({})] {
            assert_eq!(read(other.clone()), None, "{other}");
        }
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
