//! Answers of the server.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use serde_json::Value;

/// An HTTP answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// Header names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body, as text.
    pub body: String,
    /// The time from the first byte sent to the last byte received.
    pub elapsed: Duration,
}

/// The `response` of an AdmissionReview.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The uid, which is that of the request.
    pub uid: String,
    /// Whether the request is admitted.
    pub allowed: bool,
    /// `status.code`; 0 if absent.
    pub code: u64,
    /// `status.message`; empty if absent.
    pub message: String,
    /// `status.details`; null if absent.
    pub details: Value,
    /// `warnings`.
    pub warnings: Vec<String>,
    /// `auditAnnotations`.
    pub annotations: BTreeMap<String, String>,
    /// `patch`, decoded.
    pub patch: Option<Value>,
    /// The whole `response`.
    pub raw: Value,
}

impl Answer {
    /// The body as JSON; null if it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }

    /// The verdict of an answer with HTTP status 200.
    ///
    /// # Panics
    /// When the body is not an AdmissionReview.
    pub fn verdict(&self) -> Verdict {
        assert_eq!(self.status, 200, "{self:?}");
        let review = self.json();
        assert_eq!(review["kind"], "AdmissionReview", "{self:?}");
        assert_eq!(review["apiVersion"], "admission.k8s.io/v1", "{self:?}");
        Verdict::of(&review["response"]).unwrap_or_else(|| panic!("no response in {self:?}"))
    }
}

impl Verdict {
    /// Reads a `response` object; `None` if it lacks a field that every response has.
    pub fn of(response: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let status = &response["status"];
        let patch = response["patch"].as_str().map(|patch| {
            let bytes = base64::engine::general_purpose::STANDARD.decode(patch).expect("the patch is base64");
            serde_json::from_slice(&bytes).expect("the patch is JSON")
        });
        Some(Self {
            uid: response["uid"].as_str()?.to_owned(),
            allowed: response["allowed"].as_bool()?,
            code: status["code"].as_u64().unwrap_or(0),
            message: text(&status["message"]),
            details: status["details"].clone(),
            warnings: response["warnings"].as_array().into_iter().flatten().map(text).collect(),
            annotations: response["auditAnnotations"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(key, value)| (key.clone(), text(value)))
                .collect(),
            patch,
            raw: response.clone(),
        })
    }

    /// `object` with the patch applied.
    ///
    /// # Panics
    /// When there is no patch, or it does not apply.
    pub fn patched(&self, object: &Value) -> Value {
        let patch = self.patch.clone().unwrap_or_else(|| panic!("no patch in {}", self.raw));
        let patch: json_patch::Patch = serde_json::from_value(patch).expect("the patch is a JSON Patch");
        let mut object = object.clone();
        json_patch::patch(&mut object, &patch).expect("the patch applies");
        object
    }
}
