//! The environment of a PolicyServer as Helm values. Pure.

use serde_json::Value;

use super::{Fields, Outcome, put};

/// The levels of Kubewarden's logs, which are levels of ours too.
const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// The settings of the chart for proxies.
const HTTP_PROXY: &str = "modules.sources.proxies.http_proxy";
const HTTPS_PROXY: &str = "modules.sources.proxies.https_proxy";
const NO_PROXY: &str = "modules.sources.proxies.no_proxy";

/// Puts what the variables set into the values, and says what became of each.
pub(super) fn take(env: &Value, values: &mut Value, fields: &mut Fields<'_>) {
    let variables: Vec<&Value> = env.as_array().into_iter().flatten().collect();
    for variable in &variables {
        let name = variable["name"].as_str().unwrap_or_default();
        let field = format!("spec.env.{}", portcullis_contract::clean(name, 100));
        let outcome = match (targets(name, &variables), literal(variable)) {
            (Err(why), _) => Outcome::Dropped(why),
            (Ok(_), Some("")) => Outcome::Dropped("it is empty".to_owned()),
            (Ok(all), Some(value)) => match translated(all[0], value) {
                Some(value) => {
                    all.iter().for_each(|to| put(values, to, value.as_str().into()));
                    Outcome::Renamed(all.join(" and "))
                }
                None => Outcome::Dropped(format!("{} takes no such value", all.join(" and "))),
            },
            (Ok(all), None) => {
                let elsewhere = format!("its value is not in the manifest: write it into {}", all.join(" and "));
                fields.note(field.clone(), Outcome::Noted(elsewhere.clone()));
                Outcome::Dropped(elsewhere)
            }
        };
        fields.note(field.clone(), outcome);
        if let Some(note) = note(name, literal(variable)) {
            fields.note(field, Outcome::Noted(note));
        }
    }
}

/// The settings that a variable is for, one at least, in an environment with these variables; or why it is for none.
fn targets(name: &str, variables: &[&Value]) -> Result<Vec<&'static str>, String> {
    let of_name = |name: &str| variables.iter().find(|variable| variable["name"] == name);
    let mut all = settings(name).to_vec();
    if all.is_empty() {
        return Err(of_another_program(name));
    }
    // Programs look at the upper case first.
    let upper = name.to_ascii_uppercase();
    if upper != name && of_name(&upper).is_some() {
        return Err(format!("{upper} takes precedence"));
    }
    if upper == "ALL_PROXY" {
        // It counts where there is no proxy for the scheme. An empty variable counts as no proxy, and hides the one in lower case.
        all.retain(|to| {
            let names = if *to == HTTP_PROXY { ["HTTP_PROXY", "http_proxy"] } else { ["HTTPS_PROXY", "https_proxy"] };
            names.into_iter().find_map(of_name).is_none_or(|own| literal(own) == Some(""))
        });
    }
    if all.is_empty() {
        return Err("HTTP_PROXY and HTTPS_PROXY take precedence".to_owned());
    }
    Ok(all)
}

/// The settings of the chart that mean the same; they take the same values.
fn settings(variable: &str) -> &'static [&'static str] {
    match variable {
        "KUBEWARDEN_POLICY_TIMEOUT" => &["evaluator.policyTimeout"],
        "KUBEWARDEN_LOG_LEVEL" => &["logs.level"],
        "HTTP_PROXY" | "http_proxy" => &[HTTP_PROXY],
        "HTTPS_PROXY" | "https_proxy" => &[HTTPS_PROXY],
        "ALL_PROXY" | "all_proxy" => &[HTTP_PROXY, HTTPS_PROXY],
        "NO_PROXY" | "no_proxy" => &[NO_PROXY],
        _ => &[],
    }
}

/// Why a variable without such a setting is dropped.
fn of_another_program(variable: &str) -> String {
    if variable.starts_with("OTEL_") {
        return "evaluator.extraEnv and loader.extraEnv take it; telemetry.otlp.endpoint is the collector's URL"
            .to_owned();
    }
    "it is a setting of another program; logs.level and the settings of evaluator and loader are ours".to_owned()
}

/// The value of a variable; `None` if a Secret, a ConfigMap or another variable has it.
fn literal(variable: &Value) -> Option<&str> {
    match &variable["value"] {
        Value::String(value) => Some(value.as_str()).filter(|value| !value.contains("$(")),
        // For Kubernetes, a variable without a value is empty.
        Value::Null if variable["valueFrom"].is_null() => Some(""),
        _ => None,
    }
}

/// The value of a setting; `None` if the chart or the loader would refuse it.
fn translated(setting: &str, value: &str) -> Option<String> {
    let value = value.trim();
    match setting {
        "evaluator.policyTimeout" => {
            value.parse::<u32>().ok().filter(|seconds| *seconds > 0).map(|seconds| format!("{seconds}s"))
        }
        "logs.level" => Some(value.to_ascii_lowercase()).filter(|level| LEVELS.contains(&level.as_str())),
        NO_PROXY => Some(value.to_owned()),
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
            let named = value.filter(|name| !name.is_empty());
            let namespace = portcullis_contract::clean(named.unwrap_or("that namespace"), 63);
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
    fn a_proxy_for_all_schemes_counts_where_a_scheme_has_none_of_its_own() {
        let of = |env: Value| {
            let (values, list) = taken(&env);
            let all = list.into_iter().find(|one| one.field.eq_ignore_ascii_case("spec.env.all_proxy"));
            (values["modules"]["sources"]["proxies"].clone(), all.expect("it is named").outcome)
        };
        let variable = |name: &str, value: &str| json!({"name": name, "value": value});
        let (all, both) = (variable("ALL_PROXY", "all:1"), format!("{HTTP_PROXY} and {HTTPS_PROXY}"));
        let (none, secret) = (json!({"name": "https_proxy"}), json!({"name": "https_proxy", "valueFrom": {}}));
        let (http, https) = (variable("http_proxy", "http:1"), variable("HTTPS_PROXY", "https:1"));
        let everywhere = json!({"http_proxy": "all:1", "https_proxy": "all:1"});
        for (env, proxies, outcome) in [
            (json!([all]), everywhere.clone(), Outcome::Renamed(both.clone())),
            (json!([variable("all_proxy", "all:1"), none]), everywhere, Outcome::Renamed(both.clone())),
            (
                json!([all, http]),
                json!({"http_proxy": "http:1", "https_proxy": "all:1"}),
                Outcome::Renamed(HTTPS_PROXY.into()),
            ),
            (json!([secret, all]), json!({"http_proxy": "all:1"}), Outcome::Renamed(HTTP_PROXY.into())),
            (
                json!([https, all, http]),
                json!({"http_proxy": "http:1", "https_proxy": "https:1"}),
                Outcome::Dropped("HTTP_PROXY and HTTPS_PROXY take precedence".into()),
            ),
            (
                json!([variable("ALL_PROXY", "socks5://all:1")]),
                Value::Null,
                Outcome::Dropped(format!("{both} takes no such value")),
            ),
        ] {
            assert_eq!(of(env.clone()), (proxies, outcome), "{env}");
        }
    }

    #[test]
    fn what_cannot_be_a_setting_is_told() {
        let (values, list) = taken(&json!([
            {"name": "KUBEWARDEN_POLICY_TIMEOUT", "value": "0"},
            {"name": "KUBEWARDEN_LOG_LEVEL", "value": "loud"},
            {"name": "HTTPS_PROXY", "value": "socks5://proxy:1080"},
            {"name": "OTHER", "value": "x"},
            {"name": "HTTP_PROXY"},
            {"name": "OTEL_TRACES_SAMPLER", "value": "always_on"},
        ]));
        assert_eq!(values, json!({}));
        assert!(list.len() == 6 && list.iter().all(|one| matches!(one.outcome, Outcome::Dropped(_))), "{list:?}");
        assert_eq!(list[4].outcome, Outcome::Dropped("it is empty".into()));
        let collector =
            "evaluator.extraEnv and loader.extraEnv take it; telemetry.otlp.endpoint is the collector's URL";
        assert_eq!(list[5].outcome, Outcome::Dropped(collector.into()));
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
