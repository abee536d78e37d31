//! Adds default resource requests to the containers of pods that have none.
//!
//! Settings: the quantities `cpu` and `memory`, at least one of them. Containers and init
//! containers of a Pod get what they lack when the pod is created; later its resources can
//! no longer be changed this way. The policy leaves alone
//! - a resource that the container limits: Kubernetes takes the limit as the request,
//! - a resource that the pod as a whole requests or limits, since the sum of its containers
//!   must not exceed that.

use std::fmt::{self, Display, Formatter};

use guest_kit::{Kind, Verdict};
use kubewarden_policy_sdk::settings::Validatable;
use kubewarden_policy_sdk::wapc_guest::CallResult;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Called by the host after it has made an instance.
#[unsafe(no_mangle)]
pub extern "C" fn wapc_init() {
    guest_kit::register::<Settings>(validate);
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    cpu: Option<Quantity>,
    memory: Option<Quantity>,
}

impl Settings {
    /// The defaults that are set, by the name of the resource.
    fn defaults(&self) -> impl Iterator<Item = (&'static str, &Quantity)> {
        [("cpu", &self.cpu), ("memory", &self.memory)]
            .into_iter()
            .filter_map(|(name, quantity)| Some((name, quantity.as_ref()?)))
    }
}

impl Validatable for Settings {
    fn validate(&self) -> Result<(), String> {
        if self.defaults().next().is_none() {
            return Err("set cpu, memory or both, as in cpu: 100m, memory: 64Mi".to_owned());
        }
        for (name, quantity) in self.defaults() {
            check_quantity(&quantity.to_string()).map_err(|fault| format!("{name}: {quantity} {fault}"))?;
        }
        if let Some(memory) = &self.memory
            && memory.to_string().ends_with(['m', 'u', 'n'])
        {
            return Err(format!("memory: {memory} is less than a byte; 64Mi is 64 mebibytes"));
        }
        Ok(())
    }
}

/// A quantity as its author wrote it: `cpu: 1` is a number in YAML, `cpu: 100m` is text.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a quantity is text or a number, like 100m or 1")]
enum Quantity {
    Text(String),
    Number(serde_json::Number),
}

impl Display for Quantity {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

/// Checks that a text is a quantity by the grammar of Kubernetes, and above zero.
fn check_quantity(text: &str) -> Result<(), &'static str> {
    const NOT_A_QUANTITY: &str = "is not a quantity: write a number and a unit, like 100m, 0.5, 64Mi or 1e6";
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    if !number.contains(|c: char| c.is_ascii_digit()) || number.matches('.').count() > 1 {
        return Err(NOT_A_QUANTITY);
    }
    let is_exponent = |unit: &str| {
        unit.strip_prefix(['e', 'E']).is_some_and(|exponent| {
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            !digits.is_empty() && digits.len() <= 2 && digits.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    let is_unit = matches!(
        unit,
        "" | "n" | "u" | "m" | "k" | "M" | "G" | "T" | "P" | "E" | "Ki" | "Mi" | "Gi" | "Ti" | "Pi" | "Ei"
    );
    if !is_unit && !is_exponent(unit) {
        return Err(NOT_A_QUANTITY);
    }
    if number.bytes().all(|byte| matches!(byte, b'0' | b'.')) {
        return Err("is zero: a request of nothing changes nothing");
    }
    Ok(())
}

fn validate(payload: &[u8]) -> CallResult {
    judge(payload)?.into_reply()
}

fn judge(payload: &[u8]) -> serde_json::Result<Verdict> {
    let Payload { request, settings } = serde_json::from_slice(payload)?;
    let is_new_pod = request.operation == "CREATE" && request.kind.group.is_empty() && request.kind.kind == "Pod";
    match request.object {
        Some(object) if is_new_pod => Ok(decide(&settings, serde_json::from_str(object.get())?)),
        _ => Ok(Verdict::Accept),
    }
}

/// Adds what is missing. The object is returned only if something was.
fn decide(settings: &Settings, mut pod: Value) -> Verdict {
    let Some(Value::Object(spec)) = pod.get_mut("spec") else {
        return Verdict::Accept;
    };
    let defaults: Vec<(&str, String)> = settings
        .defaults()
        .filter(|(name, _)| !is_set(spec, name))
        .map(|(name, quantity)| (name, quantity.to_string()))
        .collect();

    let mut changed = false;
    for list in ["containers", "initContainers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten().filter_map(Value::as_object_mut) {
            for (name, quantity) in &defaults {
                if !is_set(container, name) {
                    changed |= set_request(container, name, quantity);
                }
            }
        }
    }
    if changed { Verdict::Mutate(pod) } else { Verdict::Accept }
}

/// Whether the `resources` of a container or of a pod spec request or limit this resource.
fn is_set(holder: &Map<String, Value>, resource: &str) -> bool {
    let resources = holder.get("resources");
    ["requests", "limits"].into_iter().any(|list| {
        resources.and_then(|resources| resources.get(list)?.get(resource)).is_some_and(|quantity| !quantity.is_null())
    })
}

/// Sets one request, and creates the objects around it. Returns false if something other than an object is there.
fn set_request(container: &mut Map<String, Value>, resource: &str, quantity: &str) -> bool {
    let requests = object_at(container, "resources").and_then(|resources| object_at(resources, "requests"));
    let Some(requests) = requests else {
        return false;
    };
    requests.insert(resource.to_owned(), quantity.into());
    true
}

/// The object under this key, which is created if it is absent or null.
fn object_at<'a>(holder: &'a mut Map<String, Value>, key: &str) -> Option<&'a mut Map<String, Value>> {
    let value = holder.entry(key).or_insert(Value::Null);
    if value.is_null() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut()
}

#[derive(Deserialize)]
struct Payload<'a> {
    #[serde(borrow)]
    request: Request<'a>,
    settings: Settings,
}

#[derive(Deserialize)]
struct Request<'a> {
    kind: Kind,
    operation: String,
    /// The object as text, as most requests do not need it parsed.
    #[serde(borrow)]
    object: Option<&'a RawValue>,
}

#[cfg(test)]
mod tests {
    use guest_kit::check_settings;
    use serde_json::json;

    use super::*;

    fn judge_spec(settings: Value, spec: Value) -> Verdict {
        decide(&serde_json::from_value(settings).unwrap(), json!({"spec": spec}))
    }

    fn both() -> Value {
        json!({"cpu": "100m", "memory": "64Mi"})
    }

    fn refusal(settings: Value) -> String {
        check_settings::<Settings>(settings.to_string().as_bytes()).unwrap_err()
    }

    #[test]
    fn adds_what_containers_and_init_containers_lack() {
        let spec = json!({
            "containers": [
                {"name": "bare"},
                {"name": "empty", "resources": {}},
                {"name": "null", "resources": {"requests": null}},
                {"name": "half", "resources": {"requests": {"cpu": "1"}, "limits": {"example.com/gpu": "1"}}},
            ],
            "initContainers": [{"name": "setup", "resources": {}}],
            "ephemeralContainers": [{"name": "debug"}],
        });
        assert_eq!(
            judge_spec(both(), spec),
            Verdict::Mutate(json!({"spec": {
                "containers": [
                    {"name": "bare", "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}},
                    {"name": "empty", "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}},
                    {"name": "null", "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}},
                    {"name": "half", "resources": {"requests": {"cpu": "1", "memory": "64Mi"},
                                                   "limits": {"example.com/gpu": "1"}}},
                ],
                "initContainers": [{"name": "setup", "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}],
                "ephemeralContainers": [{"name": "debug"}],
            }})),
        );
    }

    #[test]
    fn adds_only_what_the_settings_name() {
        assert_eq!(
            judge_spec(json!({"cpu": 1}), json!({"containers": [{"name": "app"}]})),
            Verdict::Mutate(
                json!({"spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "1"}}}]}})
            ),
        );
    }

    #[test]
    fn returns_no_object_when_nothing_is_missing() {
        for spec in [
            json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]}),
            json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}}]}),
            json!({"resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}, "containers": [{"name": "a"}]}),
            json!({"containers": [{"name": "a", "resources": "odd"}]}),
            json!({"containers": null}),
            json!(null),
        ] {
            assert_eq!(judge_spec(both(), spec.clone()), Verdict::Accept, "{spec}");
        }
    }

    #[test]
    fn judges_new_pods_only() {
        let judge_request = |operation: &str, group: &str, kind: &str| {
            let payload = json!({
                "request": {"uid": "1", "operation": operation, "kind": {"group": group, "version": "v1", "kind": kind},
                            "object": {"spec": {"containers": [{"name": "a"}]}}},
                "settings": {"cpu": "100m"},
            });
            judge(payload.to_string().as_bytes()).unwrap()
        };
        assert!(matches!(judge_request("CREATE", "", "Pod"), Verdict::Mutate(_)));
        assert_eq!(judge_request("UPDATE", "", "Pod"), Verdict::Accept);
        assert_eq!(judge_request("CREATE", "example.com", "Pod"), Verdict::Accept);
        assert_eq!(judge_request("CREATE", "apps", "Deployment"), Verdict::Accept);
        let delete = br#"{"request":{"kind":{"kind":"Pod"},"operation":"DELETE"},"settings":{"cpu":"1"}}"#;
        assert_eq!(judge(delete).unwrap(), Verdict::Accept);
    }

    #[test]
    fn keeps_the_rest_of_the_object() {
        let pod = json!({
            "metadata": {"name": "web", "annotations": {"big": "9007199254740993"}, "generation": 9_007_199_254_740_993_u64},
            "spec": {"containers": [{"name": "a", "args": ["ä\n"], "x": null, "y": 1.0}]},
        });
        let settings = serde_json::from_value(json!({"cpu": "1"})).unwrap();
        let Verdict::Mutate(mut mutated) = decide(&settings, pod.clone()) else {
            panic!("nothing was added");
        };
        mutated["spec"]["containers"][0].as_object_mut().unwrap().remove("resources");
        assert_eq!(mutated, pod);
    }

    #[test]
    fn refuses_settings_with_a_reason() {
        assert_eq!(refusal(json!({})), "set cpu, memory or both, as in cpu: 100m, memory: 64Mi");
        assert_eq!(refusal(json!({"gpu": "1"})), "unknown field `gpu`, expected `cpu` or `memory`");
        assert_eq!(refusal(json!({"cpu": [1]})), "a quantity is text or a number, like 100m or 1");
        assert_eq!(
            refusal(json!({"cpu": "100 m"})),
            "cpu: 100 m is not a quantity: write a number and a unit, like 100m, 0.5, 64Mi or 1e6",
        );
        assert_eq!(refusal(json!({"memory": "0Mi"})), "memory: 0Mi is zero: a request of nothing changes nothing",);
        assert_eq!(refusal(json!({"memory": "64m"})), "memory: 64m is less than a byte; 64Mi is 64 mebibytes",);
    }

    #[test]
    fn knows_quantities() {
        for text in ["1", "100m", "0.5", ".5", "5.", "64Mi", "1e6", "1E+6", "12E", "1Ki", "250u"] {
            assert_eq!(check_quantity(text), Ok(()), "{text}");
        }
        for text in ["", "m", "-1", "+1", "1.2.3", "1 Mi", "1mi", "1MB", "64mib", "1e", "1e+", "0", "0.0m", "."] {
            assert!(check_quantity(text).is_err(), "{text}");
        }
    }
}
