//! The evaluator's answer, for people and for programs. Pure.

use std::fmt::Write as _;

use anyhow::Context as _;
use base64::Engine as _;
use portcullis_contract::{Failure, PolicyId};
use serde_json::{Value, json};

/// The annotation of an answer that follows from `failurePolicy` and not from the policy.
const NOT_EVALUATED: &str = "policy-not-evaluated";

/// The verdict.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) outcome: Outcome,
    policy: String,
    /// The reason, if there is one.
    pub(crate) message: Option<String>,
    pub(crate) code: Option<u64>,
    pub(crate) warnings: Vec<String>,
    /// A decoded JSON Patch.
    pub(crate) patch: Option<Value>,
    /// The evaluator's response; `None` if the policy did not load.
    response: Option<Value>,
    notes: Vec<String>,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Admitted,
    Rejected,
    NotEvaluated,
}

impl Outcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Rejected => "rejected",
            Self::NotEvaluated => "could not be evaluated",
        }
    }
}

impl Verdict {
    /// The verdict of a policy that does not load.
    pub(super) fn unserved(id: &PolicyId, failure: &Failure, notes: Vec<String>) -> Self {
        Self {
            outcome: Outcome::NotEvaluated,
            policy: id.to_string(),
            message: Some(failure.to_string()),
            code: None,
            warnings: Vec::new(),
            patch: None,
            response: None,
            notes,
        }
    }

    /// The verdict in an AdmissionReview's response. `alone` is the response without regard to the policy's mode.
    pub(crate) fn of(id: &PolicyId, body: &[u8], alone: Option<&[u8]>, mut notes: Vec<String>) -> anyhow::Result<Self> {
        let response = response(body)?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let warnings = response["warnings"].as_array().into_iter().flatten().filter_map(&text).collect::<Vec<_>>();
        let annotations = response["auditAnnotations"].as_object();
        let not_evaluated = annotations.is_some_and(|all| all.keys().any(|key| key.starts_with(NOT_EVALUATED)));
        let outcome = match (not_evaluated, response["allowed"].as_bool()) {
            (true, _) => Outcome::NotEvaluated,
            (false, Some(true)) => Outcome::Admitted,
            (false, _) => Outcome::Rejected,
        };
        let message = match outcome {
            Outcome::NotEvaluated => warnings.first().cloned(),
            Outcome::Admitted | Outcome::Rejected => text(&response["status"]["message"]),
        };
        let patch = response["patch"].as_str().map(|patch| -> anyhow::Result<Value> {
            let bytes = base64::engine::general_purpose::STANDARD.decode(patch)?;
            Ok(serde_json::from_slice(&bytes)?)
        });
        let patch = patch.transpose().context("failed to decode the patch")?;
        if let Some(alone) = alone.map(self::response).transpose()?
            && alone["allowed"] == false
            && outcome == Outcome::Admitted
        {
            let words = alone["status"]["message"].as_str().unwrap_or("it gives no reason");
            notes.push(format!("in mode protect this would be rejected: {words}"));
        }
        let code = response["status"]["code"].as_u64().filter(|_| outcome == Outcome::Rejected);
        let warnings = if outcome == Outcome::NotEvaluated { Vec::new() } else { warnings };
        Ok(Self { outcome, policy: id.to_string(), message, code, warnings, patch, response: Some(response), notes })
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{}: {}\n", self.policy, self.outcome.as_str());
        let mut line = |label: &str, words: &str| {
            // Patches and notes may quote the request.
            let _ = writeln!(text, "  {label:<9}{}", portcullis_contract::clean(words, usize::MAX));
        };
        if let Some(message) = &self.message {
            line("message:", message);
        }
        if let Some(code) = self.code {
            line("code:", &code.to_string());
        }
        // The causes name the members of a policy group that denied, and have the text that a custom message replaces.
        for cause in
            self.response.iter().flat_map(|response| response["status"]["details"]["causes"].as_array()).flatten()
        {
            let message = cause["message"].as_str().unwrap_or_default();
            line("cause:", &cause["field"].as_str().map_or(message.to_owned(), |field| format!("{field}: {message}")));
        }
        for warning in &self.warnings {
            line("warning:", warning);
        }
        for operation in self.patch.iter().flat_map(|patch| patch.as_array()).flatten() {
            line("patch:", &operation.to_string());
        }
        for note in &self.notes {
            line("note:", note);
        }
        text
    }

    /// For programs.
    pub(super) fn json(&self) -> String {
        let outcome = match self.outcome {
            Outcome::NotEvaluated => "notEvaluated",
            other => other.as_str(),
        };
        let object = json!({
            "policy": self.policy,
            "outcome": outcome,
            "message": self.message,
            "code": self.code,
            "warnings": self.warnings,
            "patch": self.patch,
            "notes": self.notes,
            "response": self.response,
        });
        format!("{object:#}\n")
    }
}

fn response(body: &[u8]) -> anyhow::Result<Value> {
    let mut review: Value = serde_json::from_slice(body).context("failed to decode the evaluator's answer")?;
    Ok(review["response"].take())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(response: &Value, alone: Option<Value>) -> Verdict {
        let id = "cluster/a".parse().expect("an id");
        let body = json!({"response": response}).to_string();
        let alone = alone.map(|alone| json!({"response": alone}).to_string());
        Verdict::of(&id, body.as_bytes(), alone.as_ref().map(String::as_bytes), Vec::new()).expect("decodes")
    }

    #[test]
    fn causes_name_the_members_of_a_policy_group() {
        let body = json!({"response": {"uid": "u", "allowed": false, "status": {"message": "no", "details": {"causes": [
            {"message": "missing labels: owner", "field": "spec.policies.owned"}, {"message": "its own words"},
        ]}}}});
        let id = "cluster/a".parse().expect("an id");
        let verdict = Verdict::of(&id, body.to_string().as_bytes(), None, Vec::new()).expect("a verdict");
        assert_eq!(
            verdict.text(),
            "cluster/a: rejected\n  message: no\n  cause:   spec.policies.owned: missing labels: owner\n  cause:   its own words\n"
        );
    }

    #[test]
    fn a_denial() {
        let response =
            json!({"uid": "1", "allowed": false, "status": {"message": "no", "code": 403}, "warnings": ["w"]});
        let verdict = verdict(&response, None);
        assert_eq!(verdict.outcome, Outcome::Rejected);
        assert_eq!(verdict.text(), "cluster/a: rejected\n  message: no\n  code:    403\n  warning: w\n");
        let json: Value = serde_json::from_str(&verdict.json()).expect("JSON");
        assert_eq!((&json["outcome"], &json["response"]), (&json!("rejected"), &response));
    }

    #[test]
    fn a_patch_is_readable() {
        let patch = base64::engine::general_purpose::STANDARD.encode(r#"[{"op":"add","path":"/a","value":1}]"#);
        let verdict = verdict(&json!({"allowed": true, "patchType": "JSONPatch", "patch": patch}), None);
        assert_eq!(verdict.text(), "cluster/a: admitted\n  patch:   {\"op\":\"add\",\"path\":\"/a\",\"value\":1}\n");
    }

    #[test]
    fn an_answer_by_failure_policy_is_no_verdict() {
        let response = json!({
            "allowed": true,
            "warnings": ["policy cluster/a was not evaluated: EvaluationTimedOut: too long"],
            "auditAnnotations": {"policy-not-evaluated": "cluster/a/EvaluationTimedOut"},
        });
        let verdict = verdict(&response, None);
        assert_eq!(verdict.outcome, Outcome::NotEvaluated);
        assert_eq!(
            verdict.text(),
            "cluster/a: could not be evaluated\n  message: policy cluster/a was not evaluated: EvaluationTimedOut: too long\n"
        );
    }

    #[test]
    fn a_mode_that_admits_tells_what_would_have_been() {
        let alone = json!({"allowed": false, "status": {"message": "no"}});
        let verdict = verdict(&json!({"allowed": true}), Some(alone));
        assert_eq!(verdict.text(), "cluster/a: admitted\n  note:    in mode protect this would be rejected: no\n");
    }
}
