//! From the result of a Rego policy to a verdict (docs/design/policy-abi.md, section 7).

use std::fmt::Display;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis_contract::{ExecutionMode, Reason};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::apply::{PatchError, apply_patch};
use super::bounded::{self, First, Violations};
use super::draft::Subject;
use super::reply::{cleaned, decode_any};
use super::{EvaluationError, Verdict};
use crate::review::json::decoded;

/// The error of a request that has no object that can be decoded.
const NO_OBJECT: &str = "the request has no object";

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
    /// Not decoded before it is known that it matters.
    #[serde(default)]
    patch: Option<Box<RawValue>>,
    #[serde(default)]
    patch_type: Option<Box<RawValue>>,
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

/// A patch that changes the object of a request, or a raw request itself. It is applied once there is memory for it.
#[derive(Debug)]
pub(crate) struct Patch {
    subject: Subject,
    operations: Box<RawValue>,
    memory: u64,
}

/// The verdict that a result means, and the patch of the request's `subject` that belongs to it. Where there is nothing to be patched, the
/// verdict has an object that stands for the attempt, as that of other guests would. A result that cannot be read rejects; upstream allows if
/// it is one of a Gatekeeper policy.
///
/// # Errors
/// When the result does not have the form of this execution mode.
pub(crate) fn verdict(
    result: &[u8],
    mode: ExecutionMode,
    request: &[u8],
    subject: Subject,
) -> Result<(Verdict, Option<Patch>), EvaluationError> {
    match mode {
        ExecutionMode::Gatekeeper => Ok((gatekeeper(result)?, None)),
        _ => opa(result, request, subject),
    }
}

fn opa(result: &[u8], request: &[u8], subject: Subject) -> Result<(Verdict, Option<Patch>), EvaluationError> {
    let First(entry) = decode_any::<First<Entry<OpaResult>>>(result)
        .map_err(|cause| refused("cannot interpret OPA policy result", cause))?;
    let Some(Entry { result: OpaResult { response } }) = entry else {
        return Err(refused("cannot interpret OPA policy result", "the rule is undefined"));
    };
    // A denial changes nothing, and counts whatever is wrong with its patch.
    let operations = match response.patch.filter(|_| response.allowed) {
        None => None,
        Some(patch) => {
            if response.patch_type.is_some_and(|patch_type| patch_type.get() != r#""JSONPatch""#) {
                return Err(refused("cannot interpret OPA policy result", "its patchType is not JSONPatch"));
            }
            let patch: String = serde_json::from_str(patch.get()).map_err(no_patch)?;
            operations(&patch)?
        }
    };
    let (patch, attempt) = match operations {
        None => (None, None),
        Some(operations) => match subject.within(request).map_err(|_| no_patch(NO_OBJECT))? {
            Some(object) => (Some(Patch::new(operations, object, subject)), None),
            None => (None, Some(RawValue::TRUE.to_owned())),
        },
    };
    let status = response.status.unwrap_or_default();
    let verdict = cleaned(Verdict {
        message: status.message.or(status.reason),
        code: status.code,
        mutated_object: attempt,
        audit_annotations: response.audit_annotations,
        warnings: response.warnings,
        ..Verdict::plain(response.allowed)
    });
    Ok((verdict, patch))
}

/// The operations of a patch in base64; none if it changes nothing.
fn operations(base64: &str) -> Result<Option<Box<RawValue>>, EvaluationError> {
    let text = STANDARD.decode(base64).map_err(|_| no_patch("it is not base64"))?;
    let operations: Box<RawValue> = decode_any(&text).map_err(no_patch)?;
    let is_empty = |open, close| {
        let within = operations.get().strip_prefix(open).and_then(|rest| rest.strip_suffix(close));
        within.is_some_and(|within: &str| within.trim().is_empty())
    };
    if operations.get() == "null" || is_empty('[', ']') || is_empty('{', '}') {
        return Ok(None);
    }
    if operations.get().starts_with('[') {
        Ok(Some(operations))
    } else {
        Err(no_patch("it is not a list of operations"))
    }
}

impl Patch {
    fn new(operations: Box<RawValue>, object: &RawValue, subject: Subject) -> Self {
        let memory = decoded(object.get().as_bytes()).saturating_add(decoded(operations.get().as_bytes()));
        Self { subject, operations, memory }
    }

    /// The memory that it takes to apply the patch, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        self.memory
    }

    /// How many bytes it takes to apply the patch to `request`, which gives no thread back meanwhile.
    pub(crate) fn work(&self, request: &[u8]) -> usize {
        request.len() + self.operations.get().len()
    }

    /// The object of `request` after the patch, or the raw request itself.
    ///
    /// # Errors
    /// When the patch does not fit the object, is too large, or is not applied before `deadline`.
    pub(crate) fn apply(&self, request: &[u8], deadline: Instant) -> Result<Box<RawValue>, EvaluationError> {
        let object = self.subject.within(request).ok().flatten().ok_or_else(|| no_patch(NO_OBJECT))?;
        let object = serde_json::from_str(object.get()).map_err(|_| no_patch(NO_OBJECT))?;
        let operations: Vec<Value> = serde_json::from_str(self.operations.get()).map_err(no_patch)?;
        let count = |_| if Instant::now() < deadline { Ok(()) } else { Err(PatchError::TimedOut) };
        let object = apply_patch(object, &operations, count).map_err(|error| match error {
            PatchError::TimedOut => EvaluationError::timed_out(),
            error => no_patch(error),
        })?;
        serde_json::value::to_raw_value(&object).map_err(|_| no_patch("the object is not JSON"))
    }
}

fn no_patch(cause: impl Display) -> EvaluationError {
    refused("cannot apply the patch of the OPA policy", cause)
}

fn gatekeeper(result: &[u8]) -> Result<Verdict, EvaluationError> {
    let First(entry) = decode_any::<First<Entry<Violations>>>(result)
        .map_err(|cause| refused("cannot interpret Gatekeeper policy result", cause))?;
    let Some(Entry { result: Violations { is_empty: accepted, texts } }) = entry else {
        return Err(refused("cannot interpret Gatekeeper policy result", "the rule is undefined"));
    };
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

    fn far() -> Instant {
        Instant::now() + std::time::Duration::from_secs(3600)
    }

    fn of(mode: ExecutionMode, result: &Value) -> Result<Verdict, EvaluationError> {
        about(&json!({"uid": "u", "object": {"metadata": {"name": "a"}}}), Subject::Object, mode, result)
    }

    fn about(
        request: &Value,
        subject: Subject,
        mode: ExecutionMode,
        result: &Value,
    ) -> Result<Verdict, EvaluationError> {
        let request = request.to_string();
        let (mut verdict, patch) = verdict(result.to_string().as_bytes(), mode, request.as_bytes(), subject)?;
        if let Some(patch) = patch {
            verdict.mutated_object = Some(patch.apply(request.as_bytes(), far())?);
        }
        Ok(verdict)
    }

    fn opa(response: &Value) -> Result<Verdict, EvaluationError> {
        of(ExecutionMode::Opa, &json!([{"result": {"response": response}}]))
    }

    /// The object of an OPA policy's verdict that has this patch.
    fn patched(
        request: &Value,
        subject: Subject,
        operations: &Value,
    ) -> Result<Option<Box<RawValue>>, EvaluationError> {
        let response = json!({"allowed": true, "patch": STANDARD.encode(operations.to_string())});
        let result = json!([{"result": {"response": response}}]);
        about(request, subject, ExecutionMode::Opa, &result).map(|verdict| verdict.mutated_object)
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
    fn a_patch_of_a_raw_request_is_applied_to_the_whole_of_it() {
        let operations = json!([{"op": "add", "path": "/user", "value": "b"}]);
        for (request, expected) in [
            (json!({"user": "a"}), r#"{"user":"b"}"#),
            // This object has no meaning of its own.
            (json!({"user": "a", "object": {}}), r#"{"user":"b","object":{}}"#),
        ] {
            let object = patched(&request, Subject::Raw, &operations).expect("a verdict").expect("an object");
            let [object, expected] =
                [object.get(), expected].map(|text| serde_json::from_str::<Value>(text).expect("JSON"));
            assert_eq!(object, expected);
        }
        let list = patched(&json!([1]), Subject::Raw, &json!([{"op": "add", "path": "/-", "value": 2}]));
        assert_eq!(list.expect("a verdict").expect("a list").get(), "[1,2]");
    }

    #[test]
    fn a_patch_of_nothing_is_left_to_be_judged() {
        let operations = json!([{"op": "add", "path": "/metadata/labels", "value": {}}]);
        for request in [json!({"oldObject": {"metadata": {}}}), json!({"object": null})] {
            let object = patched(&request, Subject::Object, &operations).expect("a verdict");
            assert!(object.is_some_and(|object| object.get() != "null"));
            assert!(patched(&request, Subject::Object, &json!([])).expect("a verdict").is_none(), "no attempt");
        }
    }

    #[test]
    fn long_operations_are_work_however_small_the_request_is() {
        let operations = json!([{"op": "test", "path": "/kind", "value": "x".repeat(1 << 20)}]);
        let response = json!({"allowed": true, "patch": STANDARD.encode(operations.to_string())});
        let result = json!([{"result": {"response": response}}]).to_string();
        let request = br#"{"object":{}}"#;
        let (_, patch) = verdict(result.as_bytes(), ExecutionMode::Opa, request, Subject::Object).expect("a verdict");
        assert!(patch.expect("a patch").work(request) > 1 << 20);
    }

    #[test]
    fn only_a_list_of_operations_is_a_patch() {
        for patch in ["true", "1", r#""remove""#, r#"{"op": "remove", "path": "/metadata"}"#, r#"{"0": []}"#] {
            let error = opa(&json!({"allowed": true, "patch": STANDARD.encode(patch)})).expect_err(patch);
            assert_eq!(error.reason, Reason::ResponseInvalid);
            assert!(error.text.ends_with("it is not a list of operations"), "{}", error.text);
        }
    }

    #[test]
    fn a_denial_counts_whatever_is_wrong_with_its_patch() {
        let encoded = |patch: Value| json!(STANDARD.encode(patch.to_string()));
        let astray = encoded(json!([{"op": "remove", "path": "/spec"}]));
        for patch in [json!("!"), json!("bm8="), json!({"op": "remove"}), encoded(json!(1)), astray] {
            for patch_type in [json!("JSONPatch"), json!("Merge"), json!(7)] {
                let response = |allowed| json!({"allowed": allowed, "patchType": patch_type, "patch": patch});
                assert_eq!(opa(&response(true)).expect_err("refused").reason, Reason::ResponseInvalid);
                let denial = opa(&response(false)).expect("a verdict");
                assert!(!denial.accepted && denial.mutated_object.is_none());
            }
        }
    }

    #[test]
    fn a_patch_that_changes_nothing_decodes_nothing_and_another_one_says_what_it_takes() {
        let request = format!("{{\"object\":[{}0],\"oldObject\":[{}0]}}", "0,".repeat(10_000), "0,".repeat(10_000));
        let patch = |patch: &str| {
            let response = json!([{"result": {"response": {"allowed": true, "patch": STANDARD.encode(patch)}}}]);
            let (_, patch) =
                verdict(response.to_string().as_bytes(), ExecutionMode::Opa, request.as_bytes(), Subject::Object)
                    .expect("a verdict");
            patch
        };
        for nothing in ["[]", " [ ]\n", "null", "{}", "{ }"] {
            assert!(patch(nothing).is_none(), "{nothing}");
        }
        let patch = patch(r#"[{"op":"remove","path":"/0"}]"#).expect("a patch");
        let (least, most) = (10_000 * size_of::<Value>() as u64, 10_000 * 8 * size_of::<Value>() as u64);
        assert!((least..most).contains(&patch.memory()), "{}", patch.memory());
        assert_eq!(patch.apply(request.as_bytes(), far()).expect("an object").get().len(), 2 * 10_000 - 1 + 2);
        assert_eq!(patch.apply(request.as_bytes(), Instant::now()).expect_err("late"), EvaluationError::timed_out());
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
        assert!(verdict(deep.as_bytes(), ExecutionMode::Opa, b"{}", Subject::Object).is_err());
    }
}
