//! The members of a policy group (docs/design/policy-abi.md, section 10).

use std::collections::BTreeMap;

use portcullis_api::PolicyGroupMember;
use portcullis_contract::{Capability, Reason};
use portcullis_expression::Expression;
use serde_json::Value;

use super::decode::decode;
use super::settings::settings;
use crate::content::{Body, no_settings};
use crate::problem::Problem;
use crate::source::Reference;

/// The most members of a group.
const MAX_MEMBERS: usize = 16;

/// The body of a policy group with these members. The caller adds message, time limit and the like.
///
/// # Errors
/// When a member or the expression cannot be used. The texts begin with the field, `policies.<name>` or `expression`.
pub(super) fn policy_group(
    members: impl IntoIterator<Item = (String, Value)>,
    expression: String,
    reference: impl Fn(&str) -> Result<Reference, Problem>,
) -> Result<Body, Problem> {
    let mut parts = BTreeMap::new();
    for (name, value) in members {
        let part = member(value, &reference).map_err(|problem| problem.below(&format!("policies.{name}.")))?;
        parts.insert(name, part);
    }
    if !(1..=MAX_MEMBERS).contains(&parts.len()) {
        let text = format!("policies: it has {} members; want 1 to {MAX_MEMBERS}", parts.len());
        return Err(Problem::new(Reason::SpecInvalid, text));
    }
    let parsed = Expression::parse(&expression, parts.keys().map(String::as_str))
        .map_err(|error| Problem::new(Reason::SpecInvalid, format!("expression: {error}")))?;
    let called = parsed.calls();
    parts.iter_mut().for_each(|(name, part)| part.uncalled = !called.contains(name.as_str()));
    Ok(Body { members: parts, expression: Some(expression), ..Body::module(String::new(), None, no_settings()) })
}

fn member(mut value: Value, reference: impl Fn(&str) -> Result<Reference, Problem>) -> Result<Body, Problem> {
    // Settings are taken out first, so that no error text of the decoder can quote them.
    let taken = value.as_object_mut().and_then(|member| member.shift_remove("settings"));
    let invalid = |text: String| Problem::new(Reason::SpecInvalid, text);
    let member: PolicyGroupMember = decode(value)?;
    if member.timeout_eval_seconds == Some(0) {
        return Err(invalid("timeoutEvalSeconds: want at least 1".to_owned()));
    }
    Capability::check_patterns(&member.host_capabilities).map_err(|error| invalid(error.to_string()))?;
    let (settings, reference) = (settings(taken, false)?, reference(&member.module)?);
    Ok(Body {
        timeout_eval_seconds: member.timeout_eval_seconds,
        host_capabilities: member.host_capabilities,
        context_aware_resources: member.context_aware_resources,
        ..Body::module(member.module, Some(reference), settings)
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    fn read(members: Value, expression: &str) -> Result<Body, Problem> {
        let Value::Object(members) = members else { panic!("it is an object") };
        policy_group(members, expression.to_owned(), |module| Reference::parse(module, Path::new("/policies")))
    }

    #[test]
    fn members_have_modules_settings_and_grants_of_their_own() {
        let members = json!({
            "b": {"module": "b.wasm"},
            "a": {"module": "a.wasm", "settings": {"z": 1, "a": 2}, "timeoutEvalSeconds": 3, "hostCapabilities": ["net/*"]},
        });
        let body = read(members.clone(), "a() || b()").expect("good");
        assert!(body.members.values().all(|member| !member.uncalled));
        let names: Vec<_> = body.parts().into_iter().map(|(name, part)| (name, part.module.as_str())).collect();
        assert_eq!(names, [("a", "a.wasm"), ("b", "b.wasm")]);
        let a = &body.members["a"];
        assert_eq!((a.settings.get(), a.timeout_eval_seconds), (r#"{"z":1,"a":2}"#, Some(3)));
        assert_eq!(a.host_capabilities, ["net/*"]);
        let body = read(members, "a() || !a()").expect("good");
        assert_eq!(body.members.values().map(|member| member.uncalled).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn m32_what_cannot_be_used_is_named_and_no_settings_are_quoted() {
        let good = json!({"module": "a.wasm"});
        for (members, expression, words) in [
            (json!({}), "true", "policies: it has 0 members"),
            (json!({"a": good}), "b()", "expression: it calls `b()`, and the group has no such member"),
            (json!({"a": good}), "a() + 1", "expression: it uses the operator `+`"),
            (json!({"a": {}}), "a()", "policies.a.missing field `module`"),
            (json!({"a": {"module": "a.wasm", "settings": "hunter2"}}), "a()", "policies.a.settings: want an object"),
            (json!({"a": {"module": "a.wasm", "hostCapabilities": ["oci"]}}), "a()", "policies.a.hostCapabilities"),
            (json!({"a": {"module": "", "x": 1}}), "a()", "policies.a."),
        ] {
            let problem = read(members, expression).expect_err(words);
            assert!(problem.message.contains(words), "{words}: {}", problem.message);
            assert!(!problem.message.contains("hunter2"));
        }
        let many = (0..17).map(|n| (format!("m{n}"), good.clone())).collect::<serde_json::Map<_, _>>();
        assert!(read(many.into(), "m0()").expect_err("too many").message.contains("17 members"));
    }
}
