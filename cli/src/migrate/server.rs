//! A PolicyServer as Helm values. Pure.

use serde_json::{Map, Value, json};

use super::{Fields, Outcome, put};

/// The Helm values for a PolicyServer.
pub(super) fn values(object: &Value, fields: &mut Fields<'_>) -> Value {
    let mut values = json!({"policyServer": object["metadata"]["name"]});
    for (name, value) in object["spec"].as_object().into_iter().flatten() {
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
    values
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
        "env" => "these are settings of another program; logs.level and the settings of evaluator and loader are ours"
            .to_owned(),
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
