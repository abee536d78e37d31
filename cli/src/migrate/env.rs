//! The environment of a PolicyServer as Helm values. Pure.

use serde_json::Value;

use super::{Fields, Outcome, put};

/// The levels of Kubewarden's logs, which are levels of ours too.
const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// Puts what the variables set into the values, and says what became of each.
pub(super) fn take(env: &Value, values: &mut Value, fields: &mut Fields<'_>) {
    let variables: Vec<&Value> = env.as_array().into_iter().flatten().collect();
    let is_set = |name: &str| variables.iter().any(|variable| variable["name"] == name);
    for variable in &variables {
        let name = variable["name"].as_str().unwrap_or_default();
        let field = format!("spec.env.{}", portcullis_contract::clean(name, 100));
        let upper = name.to_ascii_uppercase();
        let outcome = match setting(name) {
            // Programs look at the upper case first.
            Some(_) if upper != name && is_set(&upper) => Outcome::Dropped(format!("{upper} takes precedence")),
            Some(to) => match literal(variable).map(|value| translated(to, value)) {
                Some(Some(value)) => {
                    put(values, to, value.into());
                    Outcome::Renamed(to.to_owned())
                }
                Some(None) => Outcome::Dropped(format!("{to} takes no such value")),
                None => {
                    let elsewhere = format!("its value is not in the manifest: write it into {to}");
                    fields.note(field.clone(), Outcome::Noted(elsewhere.clone()));
                    Outcome::Dropped(elsewhere)
                }
            },
            None => Outcome::Dropped(
                "it is a setting of another program; logs.level and the settings of evaluator and loader are ours"
                    .to_owned(),
            ),
        };
        fields.note(field.clone(), outcome);
        if let Some(note) = note(name, literal(variable)) {
            fields.note(field, Outcome::Noted(note));
        }
    }
}

/// The setting of the chart that means the same.
fn setting(variable: &str) -> Option<&'static str> {
    Some(match variable {
        "KUBEWARDEN_POLICY_TIMEOUT" => "evaluator.policyTimeout",
        "KUBEWARDEN_LOG_LEVEL" => "logs.level",
        "HTTP_PROXY" | "http_proxy" => "modules.sources.proxies.http_proxy",
        "HTTPS_PROXY" | "https_proxy" => "modules.sources.proxies.https_proxy",
        "NO_PROXY" | "no_proxy" => "modules.sources.proxies.no_proxy",
        _ => return None,
    })
}

/// The value of a variable; `None` if a Secret, a ConfigMap or another variable has it.
fn literal(variable: &Value) -> Option<&str> {
    variable["value"].as_str().filter(|value| !value.contains("$("))
}

/// The value of a setting; `None` if the chart or the loader would refuse it.
fn translated(setting: &str, value: &str) -> Option<String> {
    let value = value.trim();
    match setting {
        "evaluator.policyTimeout" => {
            value.parse::<u32>().ok().filter(|seconds| *seconds > 0).map(|seconds| format!("{seconds}s"))
        }
        "logs.level" => Some(value.to_ascii_lowercase()).filter(|level| LEVELS.contains(&level.as_str())),
        "modules.sources.proxies.no_proxy" => Some(value.to_owned()),
        _ => {
            let scheme = value.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
            scheme.is_none_or(|scheme| scheme == "http" || scheme == "https").then(|| value.to_owned())
        }
    }
}

/// What means something else here, and decides verdicts.
fn note(variable: &str, value: Option<&str>) -> Option<String> {
    match variable {
        "KUBEWARDEN_DISABLE_TIMEOUT_PROTECTION" => Some(
            "Kubewarden interrupts no evaluation then; here each one has a limit (evaluator.policyTimeout, or timeoutEvalSeconds of the \
             policy): raise it where policies take longer"
                .to_owned(),
        ),
        "KUBEWARDEN_ALWAYS_ACCEPT_ADMISSION_REVIEWS_ON_NAMESPACE" => {
            let namespace = value.map_or_else(|| "that namespace".to_owned(), |name| portcullis_contract::clean(name, 63));
            Some(format!(
                "Kubewarden admits everything in {namespace}, whatever policies say; here, only the installation's own namespace is left \
                 out of all policies: leave another one out by namespaceSelector of each ClusterPolicy"
            ))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::migrate::Field;

    /// The values of an environment, and what became of its variables.
    fn taken(env: &Value) -> (Value, Vec<Field>) {
        let (mut values, mut list) = (json!({}), Vec::new());
        take(env, &mut values, &mut Fields { object: "PolicyServer/a".to_owned(), fields: &mut list });
        (values, list)
    }

    #[test]
    fn variables_that_decide_verdicts_are_settings() {
        let (values, list) = taken(&json!([
            {"name": "KUBEWARDEN_POLICY_TIMEOUT", "value": "5"},
            {"name": "KUBEWARDEN_LOG_LEVEL", "value": "Debug"},
            {"name": "HTTP_PROXY", "value": "proxy:3128"},
            {"name": "https_proxy", "value": "http://user:secret@proxy:3128"},
            {"name": "NO_PROXY", "value": ".internal,10.0.0.0/8"},
            {"name": "no_proxy", "value": "other"},
        ]));
        assert_eq!(
            values,
            json!({
                "evaluator": {"policyTimeout": "5s"}, "logs": {"level": "debug"},
                "modules": {"sources": {"proxies": {
                    "http_proxy": "proxy:3128", "https_proxy": "http://user:secret@proxy:3128",
                    "no_proxy": ".internal,10.0.0.0/8",
                }}},
            })
        );
        let of = |number: usize| (list[number].field.as_str(), &list[number].outcome);
        assert_eq!(of(0), ("spec.env.KUBEWARDEN_POLICY_TIMEOUT", &Outcome::Renamed("evaluator.policyTimeout".into())));
        assert_eq!(of(5), ("spec.env.no_proxy", &Outcome::Dropped("NO_PROXY takes precedence".into())));
        assert!(!format!("{list:?}").contains("secret"), "no login is printed: {list:?}");
    }

    #[test]
    fn what_cannot_be_a_setting_is_told() {
        let (values, list) = taken(&json!([
            {"name": "KUBEWARDEN_POLICY_TIMEOUT", "value": "0"},
            {"name": "KUBEWARDEN_LOG_LEVEL", "value": "loud"},
            {"name": "HTTPS_PROXY", "value": "socks5://proxy:1080"},
            {"name": "OTHER", "value": "x"},
        ]));
        assert_eq!(values, json!({}));
        assert!(list.len() == 4 && list.iter().all(|one| matches!(one.outcome, Outcome::Dropped(_))), "{list:?}");
        let noted = |env: Value| {
            let (values, list) = taken(&json!([env]));
            assert_eq!(values, json!({}));
            list.into_iter().filter(|one| matches!(one.outcome, Outcome::Noted(_))).count()
        };
        for env in [
            json!({"name": "HTTPS_PROXY", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}),
            json!({"name": "KUBEWARDEN_POLICY_TIMEOUT", "value": "$(OTHER)"}),
            json!({"name": "KUBEWARDEN_DISABLE_TIMEOUT_PROTECTION", "value": "1"}),
            json!({"name": "KUBEWARDEN_ALWAYS_ACCEPT_ADMISSION_REVIEWS_ON_NAMESPACE", "value": "kubewarden"}),
        ] {
            assert_eq!(noted(env.clone()), 1, "{env}");
        }
    }
}
