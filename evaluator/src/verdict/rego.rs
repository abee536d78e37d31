//! From the result of a Rego policy to a verdict (docs/design/policy-abi.md, section 7).

use std::fmt::Display;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis_contract::{ExecutionMode, Reason};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::apply::apply_patch;
use super::bounded;
use super::reply::{cleaned, decode_any};
use super::{EvaluationError, Verdict};

/// Most violations whose texts are in the answer.
const MAX_VIOLATIONS: usize = 64;

/// The result of one entrypoint.
#[derive(Deserialize)]
struct Entry<T> {
    result: T,
}

#[derive(Deserialize)]
struct OpaResult {
    response: OpaResponse,
}

/// The response of an AdmissionReview, as OPA policies for Kubernetes make it. Its uid does not matter.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OpaResponse {
    allowed: bool,
    #[serde(default)]
    status: Option<Status>,
    #[serde(default)]
    patch: Option<String>,
    #[serde(default)]
    patch_type: Option<String>,
    #[serde(default, deserialize_with = "bounded::texts")]
    warnings: Option<Vec<String>>,
    #[serde(default, deserialize_with = "bounded::annotations")]
    audit_annotations: Option<std::collections::BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
struct Status {
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    code: Option<u16>,
}

#[derive(Deserialize)]
struct Violation {
    #[serde(default)]
    msg: Option<String>,
}

/// The parts of the request that a patch needs.
#[derive(Deserialize)]
struct Subject {
    #[serde(default)]
    object: Value,
}

/// The verdict that a result means. A result that cannot be read rejects; upstream allows if it is one of a Gatekeeper policy.
///
/// # Errors
/// When the result does not have the form of this execution mode.
pub(crate) fn verdict(result: &[u8], mode: ExecutionMode, request: &[u8]) -> Result<Verdict, EvaluationError> {
    match mode {
        ExecutionMode::Gatekeeper => gatekeeper(result),
        _ => opa(result, request),
    }
}

fn opa(result: &[u8], request: &[u8]) -> Result<Verdict, EvaluationError> {
    let entries: Vec<Entry<OpaResult>> =
        decode_any(result).map_err(|cause| refused("cannot interpret OPA policy result", cause))?;
    let Some(Entry { result: OpaResult { response } }) = entries.into_iter().next() else {
        return Err(refused("cannot interpret OPA policy result", "the rule is undefined"));
    };
    let mutated_object = match (response.patch, response.patch_type.as_deref()) {
        (None, _) => None,
        (Some(patch), None | Some("JSONPatch")) => Some(patched(&patch, request)?),
        (Some(_), Some(_)) => {
            return Err(refused("cannot interpret OPA policy result", "its patchType is not JSONPatch"));
        }
    };
    let status = response.status.unwrap_or_default();
    Ok(cleaned(Verdict {
        accepted: response.allowed,
        message: status.message.or(status.reason),
        code: status.code,
        mutated_object,
        audit_annotations: response.audit_annotations,
        warnings: response.warnings,
        members: Vec::new(),
    }))
}

fn patched(patch: &str, request: &[u8]) -> Result<Box<RawValue>, EvaluationError> {
    let odd = |cause: &dyn Display| refused("cannot apply the patch of the OPA policy", cause);
    let patch = STANDARD.decode(patch).map_err(|_| odd(&"it is not base64"))?;
    let patch: Value = decode_any(&patch).map_err(|cause| odd(&cause))?;
    let subject: Subject = serde_json::from_slice(request).map_err(|_| odd(&"the request has no object"))?;
    let object = apply_patch(subject.object, patch.as_array().map(Vec::as_slice).unwrap_or_default());
    serde_json::value::to_raw_value(&object.map_err(|cause| odd(&cause))?).map_err(|_| odd(&"the object is not JSON"))
}

fn gatekeeper(result: &[u8]) -> Result<Verdict, EvaluationError> {
    let entries: Vec<Entry<Vec<Violation>>> =
        decode_any(result).map_err(|cause| refused("cannot interpret Gatekeeper policy result", cause))?;
    let Some(Entry { result: violations }) = entries.into_iter().next() else {
        return Err(refused("cannot interpret Gatekeeper policy result", "the rule is undefined"));
    };
    let accepted = violations.is_empty();
    let texts: Vec<String> =
        violations.into_iter().filter_map(|violation| violation.msg).take(MAX_VIOLATIONS).collect();
    let message = (!accepted).then(|| texts.join(", ")).filter(|text| !text.is_empty());
    Ok(cleaned(Verdict { message, ..Verdict::plain(accepted) }))
}

fn refused(what: &str, cause: impl Display) -> EvaluationError {
    EvaluationError::new(Reason::ResponseInvalid, format!("internal server error: {what}: {cause}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(mode: ExecutionMode, result: &Value) -> Result<Verdict, EvaluationError> {
        let request = json!({"uid": "u", "object": {"metadata": {"name": "a"}}}).to_string();
        verdict(result.to_string().as_bytes(), mode, request.as_bytes())
    }

    fn opa(response: &Value) -> Result<Verdict, EvaluationError> {
        of(ExecutionMode::Opa, &json!([{"result": {"response": response}}]))
    }

    #[test]
    fn an_admission_response() {
        let verdict = opa(&json!({"uid": "other", "allowed": true, "warnings": ["w"], "auditAnnotations": {"a": "b"}}));
        let verdict = verdict.expect("a verdict");
        assert!(verdict.accepted && verdict.mutated_object.is_none());
        assert_eq!(verdict.warnings.as_deref(), Some(&["w".to_owned()][..]));
        let verdict = opa(&json!({"allowed": false, "status": {"message": "no", "code": 418}})).expect("a verdict");
        assert_eq!((verdict.accepted, verdict.message.as_deref(), verdict.code), (false, Some("no"), Some(418)));
        let verdict = opa(&json!({"allowed": false, "status": {"reason": "why"}})).expect("a verdict");
        assert_eq!(verdict.message.as_deref(), Some("why"));
    }

    #[test]
    fn a_patch_is_applied_to_the_object() {
        let patch = json!([{"op": "add", "path": "/metadata/labels", "value": {"x": "y"}}]).to_string();
        let response = json!({"allowed": true, "patchType": "JSONPatch", "patch": STANDARD.encode(&patch)});
        let object = opa(&response).expect("a verdict").mutated_object.expect("an object");
        assert_eq!(object.get(), r#"{"metadata":{"name":"a","labels":{"x":"y"}}}"#);
        for (patch, patch_type) in [("!", "JSONPatch"), ("bm8=", "JSONPatch"), ("W10=", "Merge")] {
            let error = opa(&json!({"allowed": true, "patchType": patch_type, "patch": patch})).expect_err("refused");
            assert_eq!(error.reason, Reason::ResponseInvalid);
        }
        let missing = STANDARD.encode(json!([{"op": "remove", "path": "/spec"}]).to_string());
        assert!(opa(&json!({"allowed": true, "patch": missing})).expect_err("refused").text.contains("does not fit"));
    }

    #[test]
    fn violations() {
        let of = |list| of(ExecutionMode::Gatekeeper, &json!([{"result": list}])).expect("a verdict");
        assert!(of(json!([])).accepted);
        let verdict = of(json!([{"msg": "a", "details": {}}, {"details": {}}, {"msg": "b"}]));
        assert_eq!((verdict.accepted, verdict.message.as_deref()), (false, Some("a, b")));
        let silent = of(json!([{}]));
        assert_eq!((silent.accepted, silent.message), (false, None));
    }

    /// Upstream allows for some of these results.
    #[test]
    fn what_cannot_be_read_rejects() {
        let odd = [
            json!([]),
            json!({}),
            json!([{}]),
            json!([{"result": "x"}]),
            json!([{"result": {"response": {}}}]),
            json!(null),
        ];
        for mode in [ExecutionMode::Opa, ExecutionMode::Gatekeeper] {
            for result in &odd {
                let error = of(mode, result).expect_err("refused");
                assert_eq!(error.reason, Reason::ResponseInvalid, "{result}");
                assert!(error.text.starts_with("internal server error: cannot interpret "), "{}", error.text);
            }
        }
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(verdict(deep.as_bytes(), ExecutionMode::Opa, b"{}").is_err());
    }
}
