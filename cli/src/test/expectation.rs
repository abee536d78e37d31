//! What a case expects, and where an answer differs from it. Pure.

use anyhow::ensure;
use serde::Deserialize;
use serde_json::Value;

use crate::eval::verdict::{Outcome, Verdict};
use crate::matching::Match;

/// The status code of an API server's denial, if the policy names none.
const FORBIDDEN: u64 = 403;

/// What a policy is expected to answer. What is absent may be anything.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Expectation {
    /// Whether an API server asks the policy about the request at all: its rules, selectors and match conditions.
    matched: Option<bool>,
    allowed: Option<bool>,
    /// A part of the message of a denial.
    message: Option<String>,
    /// The status code of a denial.
    code: Option<u64>,
    /// Parts of warnings: each is in one of them.
    #[serde(default)]
    warnings: Vec<String>,
    /// Whether the object is changed.
    mutated: Option<bool>,
    /// A part of the object after the policy's changes: its fields have these values, and lists are as long as these.
    object: Option<Value>,
}

/// What is known of a case before the policy is asked.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Judged {
    /// The expectation is not met, for this reason.
    Differs(String),
    /// It is met without an answer of the policy. The note says what a reader should know beside that.
    Met(Option<String>),
    /// The policy has to be asked, with such a note.
    Ask(Option<String>),
}

impl Expectation {
    /// Whether it can be met at all.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let of_denial = self.message.is_some() || self.code.is_some();
        let of_admission = self.mutated.is_some() || self.object.is_some();
        if self.matched == Some(false) {
            let is_alone = self.allowed.is_none() && !of_denial && !of_admission && self.warnings.is_empty();
            ensure!(is_alone, "expect: a policy that is not asked answers nothing; want matched: false alone");
            return Ok(());
        }
        ensure!(self.allowed.is_some(), "expect: want allowed, true or false, or matched: false");
        ensure!(self.allowed == Some(false) || !of_denial, "expect: message and code are those of a denial");
        ensure!(self.allowed == Some(true) || !of_admission, "expect: mutated and object are about admitted objects");
        ensure!(self.mutated != Some(false) || self.object.is_none(), "expect: want either mutated: false or object");
        Ok(())
    }

    /// What it means for the case whether an API server asks the policy about its request.
    pub(super) fn judge(&self, found: &Match) -> Judged {
        let (wants_answer, note) = (self.matched != Some(false), found.note());
        match (wants_answer, found) {
            (true, Match::Yes | Match::Unknown(_)) => Judged::Ask(note),
            (true, Match::No(_)) => Judged::Differs(note.unwrap_or_default()),
            // This denial has neither the words nor the warnings of the policy. API servers deny with 403.
            (true, Match::Denied(_)) if self.is_denial_of_any() => Judged::Met(note),
            (true, Match::Denied(why)) => Judged::Differs(why.clone()),
            (false, Match::No(_)) => Judged::Met(None),
            (false, Match::Yes) => Judged::Differs("matched: want false, got true".to_owned()),
            (false, Match::Unknown(what)) => {
                Judged::Differs(format!("matched: want false, and only an API server can judge that: {what}"))
            }
            (false, Match::Denied(why)) => {
                Judged::Differs(format!("matched: want false, and the request is denied: {why}"))
            }
        }
    }

    /// Whether it is met by each denial with the usual status code, by the policy or another program.
    fn is_denial_of_any(&self) -> bool {
        let is_usual = self.code.is_none_or(|code| code == FORBIDDEN);
        self.allowed == Some(false) && is_usual && self.message.is_none() && self.warnings.is_empty()
    }

    /// Where it differs from a verdict. `object` is the object after the policy's changes.
    pub(super) fn of_verdict(&self, verdict: &Verdict, object: Option<&Value>) -> Vec<String> {
        let allowed = verdict.outcome == Outcome::Admitted;
        let message = verdict.message.as_deref().unwrap_or_default();
        if let Some(wanted) = self.allowed.filter(|wanted| *wanted != allowed) {
            let why = if allowed { String::new() } else { format!(": {message}") };
            return vec![format!("allowed: want {wanted}, got {allowed}{why}")];
        }
        let mut differences = Vec::new();
        if let Some(wanted) = self.message.as_ref().filter(|wanted| !message.contains(wanted.as_str())) {
            differences.push(format!("message: want one with {wanted:?}, got {message:?}"));
        }
        let code = verdict.code.unwrap_or(FORBIDDEN);
        if let Some(wanted) = self.code.filter(|wanted| *wanted != code) {
            differences.push(format!("code: want {wanted}, got {code}"));
        }
        for wanted in &self.warnings {
            if !verdict.warnings.iter().any(|warning| warning.contains(wanted.as_str())) {
                differences.push(format!("warnings: want one with {wanted:?}, got {:?}", verdict.warnings));
            }
        }
        let is_mutated = verdict.patch.as_ref().and_then(Value::as_array).is_some_and(|patch| !patch.is_empty());
        if let Some(wanted) = self.mutated.filter(|wanted| *wanted != is_mutated) {
            let patch = verdict.patch.as_ref().map(|patch| format!(": {patch}")).unwrap_or_default();
            differences.push(format!("mutated: want {wanted}, got {is_mutated}{patch}"));
        }
        if let Some(wanted) = &self.object {
            match object {
                Some(object) => missing("object", wanted, object, &mut differences),
                None => differences.push("object: the request has none".to_owned()),
            }
        }
        differences
    }
}

/// Where `found` does not have the parts of `wanted`. Fields that are not wanted may be there; lists must be equally long.
fn missing(path: &str, wanted: &Value, found: &Value, differences: &mut Vec<String>) {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => {
            for (name, wanted) in wanted {
                let path = format!("{path}.{name}");
                match found.get(name) {
                    Some(found) => missing(&path, wanted, found, differences),
                    None => differences.push(format!("{path}: want {wanted}, got nothing")),
                }
            }
        }
        (Value::Array(wanted), Value::Array(found)) if wanted.len() == found.len() => {
            for (number, (wanted, found)) in wanted.iter().zip(found).enumerate() {
                missing(&format!("{path}[{number}]"), wanted, found, differences);
            }
        }
        _ if wanted == found => {}
        _ => differences.push(format!("{path}: want {wanted}, got {found}")),
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use serde_json::json;

    use super::*;

    fn expectation(value: Value) -> Expectation {
        serde_json::from_value(value).expect("an expectation")
    }

    fn differences(expected: Value, response: &Value, object: Option<Value>) -> Vec<String> {
        let expected = expectation(expected);
        expected.check().expect("it can be met");
        let id = "cluster/a".parse().expect("an id");
        let body = json!({"response": response}).to_string();
        let verdict = Verdict::of(&id, body.as_bytes(), None, Vec::new()).expect("a verdict");
        expected.of_verdict(&verdict, object.as_ref())
    }

    #[test]
    fn a_denial_has_the_wanted_parts() {
        let denial =
            json!({"allowed": false, "status": {"message": "no privileged pods", "code": 403}, "warnings": ["old"]});
        let met = |expected| differences(expected, &denial, None);
        assert!(met(json!({"allowed": false})).is_empty());
        assert!(
            met(json!({"allowed": false, "message": "privileged", "code": 403, "warnings": ["ol"], "matched": true}))
                .is_empty()
        );
        let plain = json!({"allowed": false, "status": {"message": "no"}});
        assert!(differences(json!({"allowed": false, "code": 403}), &plain, None).is_empty(), "the API server's own");
        assert_eq!(met(json!({"allowed": true})), ["allowed: want true, got false: no privileged pods"]);
        assert_eq!(
            met(json!({"allowed": false, "message": "labels", "code": 400, "warnings": ["new"]})),
            [
                "message: want one with \"labels\", got \"no privileged pods\"",
                "code: want 400, got 403",
                "warnings: want one with \"new\", got [\"old\"]"
            ]
        );
    }

    #[test]
    fn an_admitted_object_has_the_wanted_fields() {
        let patch = base64::engine::general_purpose::STANDARD.encode(r#"[{"op":"add","path":"/a","value":1}]"#);
        let (changed, same) = (json!({"allowed": true, "patch": patch}), json!({"allowed": true}));
        let object = json!({"a": 1, "list": [{"x": 1, "y": 2}]});
        let met = |expected, response| differences(expected, response, Some(object.clone()));
        assert!(met(json!({"allowed": true, "mutated": true, "object": {"list": [{"y": 2}]}}), &changed).is_empty());
        assert!(met(json!({"allowed": true, "mutated": false}), &same).is_empty());
        assert_eq!(met(json!({"allowed": false}), &same), ["allowed: want false, got true"]);
        assert_eq!(met(json!({"allowed": true, "mutated": true}), &same), ["mutated: want true, got false"]);
        assert_eq!(
            met(json!({"allowed": true, "object": {"a": 2, "b": 3, "list": [{"x": 9}]}}), &changed),
            ["object.a: want 2, got 1", "object.b: want 3, got nothing", "object.list[0].x: want 9, got 1"]
        );
        assert_eq!(
            met(json!({"allowed": true, "object": {"list": []}}), &changed),
            ["object.list: want [], got [{\"x\":1,\"y\":2}]"]
        );
        assert_eq!(differences(json!({"allowed": true, "object": {}}), &same, None), ["object: the request has none"]);
    }

    #[test]
    fn a_request_that_does_not_match_is_not_admitted_by_the_policy() {
        let judged = |expected, found| expectation(expected).judge(&found);
        let no = || Match::No("its rules do not match".to_owned());
        let unknown = || Match::Unknown("match condition \"a\"".to_owned());
        assert_eq!(judged(json!({"matched": false}), no()), Judged::Met(None));
        assert_eq!(judged(json!({"allowed": true}), Match::Yes), Judged::Ask(None));
        assert_eq!(judged(json!({"allowed": true}), unknown()), Judged::Ask(unknown().note()));
        let told = |expected, found| match judged(expected, found) {
            Judged::Differs(difference) => difference,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            told(json!({"allowed": true}), no()),
            "an API server would not ask the policy: its rules do not match"
        );
        assert_eq!(told(json!({"matched": false}), Match::Yes), "matched: want false, got true");
        assert!(told(json!({"matched": false}), unknown()).contains("match condition \"a\""));
    }

    #[test]
    fn a_request_that_the_api_server_itself_denies_is_denied_and_no_more() {
        let why = "the condition `x` fails";
        let judged = |expected| expectation(expected).judge(&Match::Denied(why.to_owned()));
        assert_eq!(judged(json!({"allowed": false})), Judged::Met(Some(why.to_owned())));
        assert_eq!(judged(json!({"allowed": false, "code": 403})), Judged::Met(Some(why.to_owned())));
        for other in [
            json!({"allowed": true}),
            json!({"allowed": false, "message": "no"}),
            json!({"allowed": false, "code": 400}),
            json!({"allowed": false, "warnings": ["old"]}),
        ] {
            assert_eq!(judged(other.clone()), Judged::Differs(why.to_owned()), "{other}");
        }
        let left_out = format!("matched: want false, and the request is denied: {why}");
        assert_eq!(judged(json!({"matched": false})), Judged::Differs(left_out));
    }

    #[test]
    fn what_cannot_be_met_is_refused() {
        for wrong in [
            json!({}),
            json!({"matched": true}),
            json!({"matched": false, "allowed": true}),
            json!({"allowed": true, "message": "x"}),
            json!({"allowed": false, "mutated": true}),
            json!({"allowed": true, "mutated": false, "object": {}}),
        ] {
            assert!(expectation(wrong.clone()).check().is_err(), "{wrong}");
        }
    }
}
