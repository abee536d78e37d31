//! Requires labels on objects, and checks their values.
//!
//! Settings: `labels`, the names that every object must carry; `patterns`, from label name
//! to a regular expression that the whole value must match where the label is set. A label
//! that is in `patterns` only may be absent.
//!
//! An object that is being deleted is accepted as it is: a refused update would keep its
//! finalizers, and so the object, for ever.

use std::collections::BTreeMap;

use guest_kit::Verdict;
use kubewarden_policy_sdk::settings::Validatable;
use kubewarden_policy_sdk::wapc_guest::CallResult;
use regex_lite::Regex;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// Called by the host after it has made an instance.
#[unsafe(no_mangle)]
pub extern "C" fn wapc_init() {
    guest_kit::register::<Settings>(validate);
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    labels: Vec<String>,
    #[serde(default)]
    patterns: BTreeMap<String, String>,
}

impl Validatable for Settings {
    fn validate(&self) -> Result<(), String> {
        if self.labels.is_empty() {
            return Err("labels is empty: name at least one label, as in labels: [team]".to_owned());
        }
        for (index, label) in self.labels.iter().enumerate() {
            check_label_name(label)?;
            if self.labels[..index].contains(label) {
                return Err(format!("labels names {label} twice"));
            }
        }
        for (label, pattern) in &self.patterns {
            check_label_name(label)?;
            compile(pattern)
                .map_err(|error| format!("the pattern of {label} is not a regular expression: {error}: {pattern}"))?;
        }
        Ok(())
    }
}

fn validate(payload: &[u8]) -> CallResult {
    let Payload { request, settings } = serde_json::from_slice(payload)?;
    decide(&settings, request.object.as_ref())?.into_reply()
}

/// Reports everything that is wrong in one message, so that the user can fix it in one go.
fn decide(settings: &Settings, object: Option<&Object>) -> Result<Verdict, regex_lite::Error> {
    // A DELETE carries no object.
    let Some(object) = object else {
        return Ok(Verdict::Accept);
    };
    let metadata = &object.metadata;
    if metadata.deletion_timestamp.is_some() {
        return Ok(Verdict::Accept);
    }
    let mut faults = Vec::new();

    let missing: Vec<&str> =
        settings.labels.iter().map(String::as_str).filter(|name| metadata.label(name).is_none()).collect();
    if !missing.is_empty() {
        faults.push(format!("missing labels: {}", missing.join(", ")));
    }
    for (name, pattern) in &settings.patterns {
        if let Some(value) = metadata.label(name)
            && !compile(pattern)?.is_match(value)
        {
            faults.push(format!("label {name} is {value:?} and does not match {pattern}"));
        }
    }

    Ok(if faults.is_empty() { Verdict::Accept } else { Verdict::Deny(faults.join("; ")) })
}

/// Compiles a pattern so that it has to match the whole value.
fn compile(pattern: &str) -> Result<Regex, regex_lite::Error> {
    // First without the group: `a)|(b` is not a valid expression, but would become one inside it.
    Regex::new(pattern)?;
    Regex::new(&format!("^(?:{pattern})$"))
}

/// Checks the key of a label by the rules of Kubernetes: `[prefix/]name`.
fn check_label_name(label: &str) -> Result<(), String> {
    let (prefix, name) = match label.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, label),
    };
    if !is_name(name) {
        return Err(format!(
            "{label:?} is not a label name: the name has 1 to 63 letters, digits, '-', '_' or '.', \
             and starts and ends with a letter or digit"
        ));
    }
    if prefix.is_some_and(|prefix| !is_subdomain(prefix)) {
        return Err(format!("{label:?} is not a label name: what stands before the '/' must be a lower-case DNS name"));
    }
    Ok(())
}

fn is_name(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let bytes = name.as_bytes();
    name.len() <= 63
        && bytes.iter().copied().all(inner)
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
}

fn is_subdomain(prefix: &str) -> bool {
    let is_lower = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    prefix.len() <= 253
        && prefix.split('.').all(|part| {
            let bytes = part.as_bytes();
            bytes.iter().all(|&byte| is_lower(byte) || byte == b'-')
                && bytes.first().is_some_and(|&byte| is_lower(byte))
                && bytes.last().is_some_and(|&byte| is_lower(byte))
        })
}

#[derive(Deserialize)]
struct Payload {
    request: Request,
    settings: Settings,
}

#[derive(Deserialize)]
struct Request {
    object: Option<Object>,
}

#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    labels: Option<BTreeMap<String, String>>,
    deletion_timestamp: Option<IgnoredAny>,
}

impl Metadata {
    fn label(&self, name: &str) -> Option<&str> {
        self.labels.as_ref()?.get(name).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use guest_kit::check_settings;
    use serde_json::{Value, json};

    use super::*;

    fn judge(settings: Value, object: Value) -> Verdict {
        let settings: Settings = serde_json::from_value(settings).unwrap();
        let object: Option<Object> = serde_json::from_value(object).unwrap();
        decide(&settings, object.as_ref()).unwrap()
    }

    fn refusal(settings: Value) -> String {
        check_settings::<Settings>(settings.to_string().as_bytes()).unwrap_err()
    }

    #[test]
    fn accepts_an_object_with_all_labels() {
        let settings = json!({"labels": ["team", "example.com/owner"], "patterns": {"team": "[a-z]+"}});
        let object = json!({"metadata": {"labels": {"team": "web", "example.com/owner": "me", "x": ""}}});
        assert_eq!(judge(settings, object), Verdict::Accept);
    }

    #[test]
    fn names_all_missing_labels_in_the_order_of_the_settings() {
        let settings = json!({"labels": ["team", "env", "cost"]});
        for object in [json!({"metadata": {"labels": {"env": "prod"}}}), json!({"metadata": {"labels": {"env": ""}}})] {
            assert_eq!(judge(settings.clone(), object), Verdict::Deny("missing labels: team, cost".to_owned()),);
        }
    }

    #[test]
    fn misses_all_labels_where_there_are_none() {
        let settings = json!({"labels": ["team"]});
        for object in [json!({}), json!({"metadata": {}}), json!({"metadata": {"labels": null}})] {
            assert_eq!(judge(settings.clone(), object), Verdict::Deny("missing labels: team".to_owned()),);
        }
    }

    #[test]
    fn a_pattern_holds_for_the_whole_value() {
        let settings = json!({"labels": ["team"], "patterns": {"env": "prod|stage", "team": "[a-z]+"}});
        let object = json!({"metadata": {"labels": {"env": "prod-2", "team": "Web"}}});
        assert_eq!(
            judge(settings, object),
            Verdict::Deny(
                "label env is \"prod-2\" and does not match prod|stage; label team is \"Web\" and does not match [a-z]+"
                    .to_owned()
            ),
        );
    }

    #[test]
    fn a_label_with_a_pattern_only_may_be_absent() {
        let settings = json!({"labels": ["team"], "patterns": {"env": "prod|stage"}});
        let object = json!({"metadata": {"labels": {"team": "web"}}});
        assert_eq!(judge(settings, object), Verdict::Accept);
    }

    #[test]
    fn accepts_a_delete_and_what_is_being_deleted() {
        let settings = json!({"labels": ["team"]});
        assert_eq!(judge(settings.clone(), Value::Null), Verdict::Accept);
        let object = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        assert_eq!(judge(settings, object), Verdict::Accept);
    }

    #[test]
    fn reads_the_payload_of_the_protocol() {
        let payload = json!({
            "request": {"uid": "1", "object": {"metadata": {"labels": {}}}},
            "settings": {"labels": ["team"]},
        });
        let reply: Value = serde_json::from_slice(&validate(payload.to_string().as_bytes()).unwrap()).unwrap();
        assert_eq!(reply["accepted"], false);
        assert_eq!(reply["message"], "missing labels: team");
    }

    #[test]
    fn refuses_settings_with_a_reason() {
        assert_eq!(refusal(json!({})), "missing field `labels`");
        assert_eq!(refusal(json!({"labels": []})), "labels is empty: name at least one label, as in labels: [team]",);
        assert_eq!(
            refusal(json!({"labels": ["team"], "label": 1})),
            "unknown field `label`, expected `labels` or `patterns`",
        );
        assert_eq!(refusal(json!({"labels": ["a", "b", "a"]})), "labels names a twice");
        assert!(refusal(json!({"labels": ["-team"]})).starts_with("\"-team\" is not a label name: the name has"));
        assert!(refusal(json!({"labels": ["Example.com/team"]})).contains("lower-case DNS name"));
        assert!(refusal(json!({"labels": ["a/b/c"]})).starts_with("\"a/b/c\" is not a label name"));
        for pattern in ["(", "a)|(b", "[z-a]"] {
            let refusal = refusal(json!({"labels": ["team"], "patterns": {"team": pattern}}));
            assert!(refusal.starts_with("the pattern of team is not a regular expression: "), "{refusal}");
            assert!(refusal.ends_with(pattern), "{refusal}");
        }
    }

    #[test]
    fn knows_label_names() {
        for name in ["a", "app.kubernetes.io/name", "A_b-c.9", &"x".repeat(63)] {
            assert_eq!(check_label_name(name), Ok(()), "{name}");
        }
        for name in ["", "/a", "a/", "a b", "ä", ".a", "a-", "-x.io/a", "x..io/a", &"x".repeat(64)] {
            assert!(check_label_name(name).is_err(), "{name}");
        }
    }
}
