//! The metadata section of a module (docs/design/policy-abi.md, section 2): the parts that decide about loading or are compared with the policy.

use portcullis_contract::{ExecutionMode, KUBEWARDEN_LEVEL, Reason};
use serde::Deserialize;
use serde_json::Value;

use super::CompileFailure;
use crate::declared::{Declared, MAX_ENTRIES, Unbounded, resources};

/// Name of the custom section.
pub(super) const SECTION: &str = "io.kubewarden.metadata";
/// Largest section that is read, in bytes.
const MAX_BYTES: usize = 4 << 20;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    protocol_version: Option<Value>,
    #[serde(default)]
    execution_mode: Option<Value>,
    #[serde(default)]
    minimum_kubewarden_version: Option<Value>,
    #[serde(default)]
    rules: Value,
    #[serde(default)]
    mutating: Value,
    #[serde(default)]
    policy_type: Value,
    #[serde(default)]
    host_capabilities: Value,
    #[serde(default)]
    context_aware_resources: Value,
}

/// A rule of the metadata: the fields that are compared.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    api_groups: Vec<String>,
    resources: Vec<String>,
}

/// What the section declares. Loading does not depend on it, so a field of another form counts as absent.
pub(super) fn declared(section: Option<&[u8]>) -> Declared {
    let Some(metadata) = section.and_then(|section| decode(section).ok()) else { return Declared::default() };
    let rules: Vec<Rule> = serde_json::from_value(metadata.rules).unwrap_or_default();
    let pairs = rules.iter().flat_map(|rule| resources(&rule.api_groups, &rule.resources));
    Declared::from(Unbounded {
        has_section: true,
        mutating: metadata.mutating.as_bool(),
        raw: metadata.policy_type.as_str() == Some("raw"),
        resources: pairs.take(MAX_ENTRIES + 1).collect(),
        host_capabilities: serde_json::from_value(metadata.host_capabilities).unwrap_or_default(),
        context_aware_resources: serde_json::from_value(metadata.context_aware_resources).unwrap_or_default(),
    })
}

/// Checks the section's content and gives the guest ABI. The order and the texts are those of docs/design/policy-abi.md, section 3.
/// A module without the section is taken for waPC, as `kwctl run` takes it; the evaluator refuses it if it is not.
pub(super) fn execution_mode(section: Option<&[u8]>) -> Result<ExecutionMode, CompileFailure> {
    let unsupported = |text: String| CompileFailure::new(Reason::ModuleUnsupported, text);
    let Some(section) = section else { return Ok(ExecutionMode::KubewardenWapc) };
    let metadata = decode(section)?;
    if let Some(version) = &metadata.minimum_kubewarden_version {
        let (major, minor) = version.as_str().and_then(major_minor).ok_or_else(|| {
            let text = "the metadata's minimumKubewardenVersion is not a version: want for instance 1.36.0";
            CompileFailure::new(Reason::ModuleInvalid, text)
        })?;
        if (major, minor) > KUBEWARDEN_LEVEL {
            let (own_major, own_minor) = KUBEWARDEN_LEVEL;
            return Err(unsupported(format!(
                "Policy required Kubewarden version {major}.{minor}.0 but is running on {own_major}.{own_minor}.0"
            )));
        }
    }
    let mode = match &metadata.execution_mode {
        None => ExecutionMode::default(),
        Some(mode) => serde_json::from_value(mode.clone()).map_err(|_| {
            let shown = portcullis_contract::clean(&mode.to_string(), 100);
            unsupported(format!(
                "the metadata's executionMode {shown} is not one of kubewarden-wapc, wasi, opa, gatekeeper"
            ))
        })?,
    };
    if mode == ExecutionMode::KubewardenWapc {
        match metadata.protocol_version.as_ref().map(Value::as_str) {
            Some(Some("v1" | "V1")) => {}
            None => {
                return Err(unsupported(
                    "Policy is missing protocol version, which is required for KubewardenWapc execution mode"
                        .to_owned(),
                ));
            }
            Some(other) => {
                let shown = portcullis_contract::clean(other.unwrap_or("Unknown"), 100);
                return Err(unsupported(format!("Policy uses protocol version {shown} but only V1 is supported")));
            }
        }
    }
    Ok(mode)
}

fn decode(bytes: &[u8]) -> Result<Metadata, CompileFailure> {
    let invalid =
        |text: String| CompileFailure::new(Reason::ModuleInvalid, format!("the metadata section {SECTION} {text}"));
    if bytes.len() > MAX_BYTES {
        return Err(invalid(format!("has {} bytes, the limit is {MAX_BYTES}", bytes.len())));
    }
    serde_json::from_slice(bytes).map_err(|error| invalid(format!("cannot be read: {error}")))
}

/// Major and minor of a semantic version; the rest does not matter.
fn major_minor(version: &str) -> Option<(u64, u64)> {
    let mut parts = version.trim().trim_start_matches('v').splitn(3, '.');
    let number = |part: Option<&str>| part?.parse().ok();
    let (major, minor) = (number(parts.next())?, number(parts.next())?);
    let patch = parts.next()?;
    patch.starts_with(|c: char| c.is_ascii_digit()).then_some((major, minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(json: &str) -> Result<ExecutionMode, (Reason, String)> {
        execution_mode(Some(json.as_bytes())).map_err(|failure| (failure.reason, failure.message))
    }

    #[test]
    fn modes() {
        assert_eq!(mode(r#"{"protocolVersion":"v1"}"#), Ok(ExecutionMode::KubewardenWapc));
        assert_eq!(mode(r#"{"executionMode":"wasi"}"#), Ok(ExecutionMode::Wasi));
        assert_eq!(mode(r#"{"executionMode":"gatekeeper","rules":[]}"#), Ok(ExecutionMode::Gatekeeper));
        assert_eq!(mode(r#"{"executionMode":"lua"}"#).map_err(|e| e.0), Err(Reason::ModuleUnsupported));
    }

    #[test]
    fn texts_of_the_protocol_version() {
        let missing = "Policy is missing protocol version, which is required for KubewardenWapc execution mode";
        let expected = Err((Reason::ModuleUnsupported, missing.to_owned()));
        assert_eq!(mode("{}"), expected);
        let unknown = "Policy uses protocol version Unknown but only V1 is supported";
        assert_eq!(mode(r#"{"protocolVersion":"Unknown"}"#), Err((Reason::ModuleUnsupported, unknown.to_owned())));
    }

    #[test]
    fn without_metadata_it_is_wapc() {
        assert_eq!(execution_mode(None).ok(), Some(ExecutionMode::KubewardenWapc));
    }

    #[test]
    fn the_minimum_version_counts_on_major_and_minor() {
        let with =
            |version: &str| mode(&format!(r#"{{"protocolVersion":"v1","minimumKubewardenVersion":"{version}"}}"#));
        for fits in ["1.36.0", "1.36.9-rc1+build", "1.2.3", "0.99.0"] {
            assert!(with(fits).is_ok(), "{fits}");
        }
        let text = "Policy required Kubewarden version 1.37.0 but is running on 1.36.0";
        assert_eq!(with("1.37.4-rc2"), Err((Reason::ModuleUnsupported, text.to_owned())));
        assert_eq!(with("soon").map_err(|e| e.0), Err(Reason::ModuleInvalid));
    }

    #[test]
    fn what_is_declared_is_read_field_by_field() {
        let all = br#"{"protocolVersion":"v1","mutating":true,"policyType":"raw","hostCapabilities":["oci/v1/verify"],
            "contextAwareResources":[{"apiVersion":"v1","kind":"Namespace"}],
            "rules":[{"apiGroups":["","apps"],"apiVersions":["v1"],"resources":["pods"],"operations":["CREATE"]}]}"#;
        let found = declared(Some(all));
        assert_eq!((found.has_section, found.mutating, found.raw), (true, Some(true), true));
        assert_eq!(found.resources, ["/pods", "apps/pods"]);
        assert_eq!((found.host_capabilities.len(), found.context_aware_resources.len()), (1, 1));
        let odd = br#"{"mutating":"yes","rules":7,"hostCapabilities":{"a":1},"contextAwareResources":["Pod"]}"#;
        assert_eq!(declared(Some(odd)), Declared { has_section: true, ..Declared::default() });
        assert_eq!(declared(None), Declared::default());
    }

    #[test]
    fn what_a_hostile_module_declares_is_bounded_also_where_the_compile_child_says_it() {
        let many = |text: &str| vec![format!("{text}\u{1b}[31m{}", "x".repeat(1 << 10)); 200];
        let rule = serde_json::json!({"apiGroups": many("g"), "resources": many("r")});
        let kinds: Vec<Value> =
            many("k").iter().map(|kind| serde_json::json!({"apiVersion": kind, "kind": kind})).collect();
        let hostile = serde_json::json!({
            "rules": [rule], "hostCapabilities": many("c"), "contextAwareResources": kinds, "resources": many("r"), "hasSection": true,
        });
        let bytes = serde_json::to_vec(&hostile).expect("JSON");
        let from_child: Declared = serde_json::from_slice(&bytes).expect("decodes");
        for found in [declared(Some(&bytes)), from_child] {
            assert!(found.has_section && found.resources.is_empty(), "{found:?}");
            assert_eq!(
                (found.host_capabilities.len(), found.context_aware_resources.len()),
                (MAX_ENTRIES, MAX_ENTRIES)
            );
            let text = serde_json::to_string(&found).expect("JSON");
            assert!(text.len() < 16 << 10 && !text.contains("u001b"), "{} bytes", text.len());
        }
    }

    #[test]
    fn a_section_that_is_no_json_is_named() {
        let (reason, text) = mode("<html>").expect_err("refused");
        assert!(reason == Reason::ModuleInvalid && text.contains(SECTION), "{text}");
    }
}
