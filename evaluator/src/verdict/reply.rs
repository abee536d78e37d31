//! Decodes what a guest replied, within limits.

use std::ops::RangeInclusive;

use portcullis_contract::{ExecutionMode, Reason, clean};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::review::json::{self, Object};
use crate::verdict::decision::ANNOTATION;
use crate::verdict::{EvaluationError, Verdict};

/// Deepest nesting of a reply.
pub(super) const MAX_DEPTH: usize = 128;
/// The HTTP codes that a denial may have.
const DENIALS: RangeInclusive<u16> = 400..=599;
/// Longest denial text or warning, in bytes.
const MAX_TEXT: usize = 1024;
/// Longest values of all audit annotations together, in bytes.
const MAX_ANNOTATIONS: usize = 64 << 10;

/// Why a reply cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DecodeError {
    /// It is nested too deep.
    #[error("it is nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// It is not JSON, or not of the form that is wanted.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// A guest's answer about its settings (docs/design/policy-abi.md, section 4).
#[derive(Debug, Deserialize)]
pub(crate) struct SettingsResponse {
    /// Whether they are valid.
    pub(crate) valid: bool,
    /// Why they are not; none if the guest does not say.
    #[serde(default)]
    pub(crate) message: Option<String>,
}

/// Decodes the reply to `validate`. Texts for users are cleaned and cut; a denial counts whatever its text is.
///
/// # Errors
/// When the reply is not a validation response.
pub(crate) fn verdict(reply: &[u8], mode: ExecutionMode) -> Result<Verdict, EvaluationError> {
    let verdict: Verdict = decode(reply).map_err(|cause| {
        let action = match mode {
            ExecutionMode::Wasi => "Cannot deserialize policy validation response",
            _ => "invalid response from policy",
        };
        EvaluationError::new(Reason::ResponseInvalid, format!("internal server error: {action}: {cause}"))
    })?;
    Ok(cleaned(verdict))
}

/// The verdict with texts that can be shown, and a code that an API server can answer with: HTTP libraries refuse some others, Go's with
/// a panic, and a denial must not look like a success.
pub(super) fn cleaned(mut verdict: Verdict) -> Verdict {
    verdict.code = verdict.code.filter(|code| verdict.accepted || DENIALS.contains(code));
    verdict.message = verdict.message.map(|text| clean(&text, MAX_TEXT));
    if let Some(warnings) = &mut verdict.warnings {
        warnings.iter_mut().for_each(|text| *text = clean(text, MAX_TEXT));
    }
    if let Some(annotations) = verdict.audit_annotations.take() {
        let mut left = MAX_ANNOTATIONS;
        let shown = annotations.into_iter().map(|(key, text)| {
            let text = clean(&text, ANNOTATION.min(left));
            left = left.saturating_sub(text.len());
            (clean(&key, 256), text)
        });
        verdict.audit_annotations = Some(shown.collect());
    }
    verdict
}

/// Decodes the reply to `validate_settings`.
pub(crate) fn settings(reply: &[u8]) -> Result<SettingsResponse, DecodeError> {
    decode(reply)
}

fn decode<T: DeserializeOwned>(reply: &[u8]) -> Result<T, DecodeError> {
    decode_any::<Object<T>>(reply).map(|Object(response)| response)
}

/// Decodes a reply that need not be an object.
pub(crate) fn decode_any<T: DeserializeOwned>(reply: &[u8]) -> Result<T, DecodeError> {
    if json::is_deeper(reply, MAX_DEPTH) {
        return Err(DecodeError::TooDeep);
    }
    Ok(serde_json::from_slice(reply)?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn refused(reply: &[u8]) -> EvaluationError {
        verdict(reply, ExecutionMode::KubewardenWapc).expect_err("refused")
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for reply in
            [&b"not json"[..], b"", b"[true]", b"{}", b"{\"accepted\":1}", b"{\"accepted\":true,\"code\":70000}"]
        {
            assert_eq!(refused(reply).reason, Reason::ResponseInvalid);
        }
        assert!(refused(b"{\"accepted\":false,\"message\":\"\xff\"}").text.contains("invalid response from policy"));
        let error = verdict(b"", ExecutionMode::Wasi).expect_err("refused");
        assert!(error.text.starts_with("internal server error: Cannot deserialize policy validation response: "));
    }

    #[test]
    fn deep_nesting_costs_no_stack() {
        let mut reply = b"{\"accepted\":true,\"mutated_object\":".to_vec();
        reply.resize(reply.len() + 100_000, b'[');
        reply.resize(reply.len() + 100_000, b']');
        reply.push(b'}');
        assert!(refused(&reply).text.contains("nested deeper than 128"));
    }

    #[test]
    fn a_long_annotation_is_kept_and_many_long_ones_are_cut() {
        let annotations = |texts: Vec<String>| {
            let all: BTreeMap<String, String> = (10..).map(|key: u8| key.to_string()).zip(texts).collect();
            let reply = serde_json::json!({"accepted": true, "audit_annotations": all}).to_string();
            let verdict = verdict(reply.as_bytes(), ExecutionMode::KubewardenWapc).expect("a verdict");
            verdict.audit_annotations.expect("annotations").into_values().collect::<Vec<_>>()
        };
        let whole = vec!["x".repeat(8 << 10)];
        assert_eq!(annotations(whole.clone()), whole);
        let cut = annotations(vec!["x".repeat(1 << 20), "a\n\u{1b}b".to_owned()]);
        assert_eq!((cut[0].len(), cut[1].as_str()), (8 << 10, "a b"));
        let many = annotations(vec!["x".repeat(8 << 10); 64]);
        assert_eq!(many.len(), 64);
        assert!(many.iter().map(String::len).sum::<usize>() <= (64 << 10) + 64 * "…".len());
    }

    #[test]
    fn a_denial_has_the_code_of_an_error_or_none() {
        for (code, kept) in [
            (0, None),
            (1, None),
            (200, None),
            (302, None),
            (399, None),
            (400, Some(400)),
            (418, Some(418)),
            (599, Some(599)),
            (600, None),
            (999, None),
            (1000, None),
            (65535, None),
        ] {
            let of = |accepted| {
                let reply = serde_json::json!({"accepted": accepted, "code": code}).to_string();
                verdict(reply.as_bytes(), ExecutionMode::KubewardenWapc).expect("a verdict").code
            };
            assert_eq!(of(false), kept, "{code}");
            assert_eq!(of(true), Some(code), "it does not count");
        }
    }

    #[test]
    fn a_long_denial_stands_with_a_cut_text() {
        let reply = format!("{{\"accepted\":false,\"message\":\"a\\u001b[31m{}\"}}", "x".repeat(1 << 20));
        let verdict = verdict(reply.as_bytes(), ExecutionMode::KubewardenWapc).expect("a verdict");
        let message = verdict.message.expect("a text");
        assert!(!verdict.accepted && message.starts_with("a [31mxxx") && message.len() <= 1024);
    }
}
