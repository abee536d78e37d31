//! Reads the manifest of a policy as a person, or a program for one, wrote it.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{Policy, schema};

/// An object, or a part of it, that this release cannot read. Usually a newer release, which knows more values, accepted it, or its author
/// has made a slip.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{problem}", if path == "." { String::new() } else { format!("{path}: ") })]
pub struct DecodeError {
    /// The path of the field, for instance `spec.mode`; `.` for the whole.
    pub path: String,
    /// What is wrong there.
    pub problem: String,
}

/// Removes the nulls of optional fields, as an API server does: templates leave `settings:` and the like without a value. Free-form parts
/// keep theirs.
pub fn without_nulls(manifest: &mut Value) {
    if let Some(metadata) = manifest.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|_, value| !value.is_null());
    }
    if let Some(spec) = manifest.get_mut("spec") {
        schema::prune_nulls(&schema::SPEC, spec);
    }
}

/// Decodes a manifest. No error text quotes settings.
///
/// # Errors
/// When a field has another type than it should have, or is not known.
pub fn decode_manifest(mut manifest: Value) -> Result<Policy, DecodeError> {
    let spec = manifest.get_mut("spec").and_then(Value::as_object_mut);
    let settings = match spec.and_then(|spec| spec.shift_remove("settings")) {
        Some(Value::Object(settings)) => settings,
        None | Some(Value::Null) => serde_json::Map::new(),
        Some(_) => return Err(DecodeError { path: "spec.settings".to_owned(), problem: "want an object".to_owned() }),
    };
    let mut policy: Policy = decode_value(manifest)?;
    policy.spec.settings = settings;
    Ok(policy)
}

/// Decodes a value that a user wrote. The error names the field.
///
/// # Errors
/// When a field has another type than it should have, or is not known.
pub fn decode_value<T: DeserializeOwned>(value: Value) -> Result<T, DecodeError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        DecodeError { path, problem: error.into_inner().to_string() }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn manifest(change: impl FnOnce(&mut Value)) -> Value {
        let mut manifest = json!({
            "apiVersion": crate::API_VERSION, "kind": "ClusterPolicy", "metadata": {"name": "a"},
            "spec": {"module": "m", "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]},
            ], "settings": {"password": "hunter2", "empty": null}},
        });
        change(&mut manifest);
        manifest
    }

    #[test]
    fn fields_are_named_and_settings_are_not_quoted() {
        let told = |change: fn(&mut Value)| decode_manifest(manifest(change)).expect_err("refused").to_string();
        for (change, words) in [
            ((|it| it["spec"]["mutating"] = json!("true")) as fn(&mut Value), "spec.mutating: invalid type: "),
            (|it| it["spec"]["rules"][0]["resources"] = json!("pods"), "spec.rules[0].resources: invalid type: "),
            (|it| it["spec"]["modul"] = json!(1), "unknown field `modul`"),
            (|it| it["spec"]["settings"] = json!("hunter2"), "spec.settings: want an object"),
        ] {
            let told = told(change);
            assert!(told.contains(words) && !told.contains("hunter2"), "{words:?} in {told}");
        }
        let policy = decode_manifest(manifest(|_| {})).expect("reads");
        assert_eq!(policy.spec.settings["password"], "hunter2");
    }

    #[test]
    fn nulls_of_optional_fields_count_as_absent() {
        let mut written = manifest(|it| {
            it["metadata"]["labels"] = Value::Null;
            for field in ["hostCapabilities", "matchConditions", "timeoutSeconds", "suspend"] {
                it["spec"][field] = Value::Null;
            }
            it["spec"]["rules"][0]["scope"] = Value::Null;
            it["spec"]["policies"] =
                json!({"x": {"module": "m", "settings": {"inner": null}, "hostCapabilities": null}});
        });
        without_nulls(&mut written);
        let member = json!({"module": "m", "settings": {"inner": null}});
        assert_eq!(written, manifest(|it| it["spec"]["policies"] = json!({"x": member})));
        let mut none = manifest(|it| it["spec"]["settings"] = Value::Null);
        without_nulls(&mut none);
        assert!(none["spec"].get("settings").is_none());
        let mut slip = manifest(|it| it["spec"]["modul"] = Value::Null);
        without_nulls(&mut slip);
        assert!(decode_manifest(slip).is_err(), "a name that no field has is still a slip");
    }
}
