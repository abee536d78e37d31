//! A Kubewarden `policies.yml` (docs/design/policy-abi.md, section 12).

use std::collections::BTreeMap;
use std::path::Path;

use portcullis_contract::{ContextAwareResource, Digest, FailurePolicy, Mode, PolicyId, Reason};
use portcullis_yaml::Document;
use serde::Deserialize;
use serde_json::Value;

use super::decode::decode;
use super::manifest::Entry;
use super::policy_group::policy_group;
use super::settings::settings;
use crate::content::{Body, DesiredPolicy, Head, hash};
use crate::problem::Problem;
use crate::source::Reference;

/// An entry, without its settings. Unknown fields are allowed: the upstream controller adds some.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PolicyFields {
    module: Option<String>,
    policy_mode: Option<Mode>,
    allowed_to_mutate: Option<bool>,
    context_aware_resources: Option<Vec<ContextAwareResource>>,
    host_capabilities: Option<Vec<String>>,
    message: Option<String>,
    timeout_eval_seconds: Option<u32>,
    policies: Option<BTreeMap<String, Value>>,
    expression: Option<String>,
}

/// The entries of the file `file` in `folder`.
pub(crate) fn entries(document: Document, file: &str, folder: &Path) -> Vec<Entry> {
    let Value::Object(map) = document.value else {
        return vec![Entry::Problem("want a map of policy ids to policies".to_owned())];
    };
    let too_deep = document.too_deep.unwrap_or_default();
    let entries = map.into_iter().map(|(name, value)| {
        let id = match name.parse::<PolicyId>() {
            Ok(id) if id.is_bare() => id,
            _ => {
                let shown = portcullis_contract::clean(&name, 100);
                return Entry::Problem(format!(
                    "the id {shown:?} cannot be used: want at most 200 characters without slash, white space, quotes and %"
                ));
            }
        };
        let too_deep = if too_deep.first() == Some(&name) { &too_deep[1..] } else { &[] };
        let raw_hash = Digest::of(value.to_string().as_bytes());
        let (head, body) = content(value, too_deep, folder);
        let hash = match (&head, &body) {
            (Some(head), Ok(body)) => hash(head, body),
            _ => raw_hash,
        };
        Entry::Policy(Box::new(DesiredPolicy { id, file: file.to_owned(), created: None, hash, head, body, object: None }))
    });
    entries.collect()
}

fn content(mut value: Value, too_deep: &[String], folder: &Path) -> (Option<Head>, Result<Body, Problem>) {
    let invalid = |message: String| Problem::new(Reason::SpecInvalid, message);
    let taken = value.as_object_mut().and_then(|entry| entry.shift_remove("settings"));
    let fields: PolicyFields = match decode(value) {
        Ok(fields) => fields,
        Err(problem) => return (None, Err(problem)),
    };
    let head = Head {
        mode: fields.policy_mode.unwrap_or_default(),
        failure_policy: FailurePolicy::Fail,
        suspend: false,
        group: None,
    };
    let body = (|| {
        if fields.timeout_eval_seconds == Some(0) {
            return Err(invalid("timeoutEvalSeconds: want at least 1".to_owned()));
        }
        if let Some(members) = fields.policies {
            if !too_deep.is_empty() {
                return Err(invalid(format!("{} is nested too deep", too_deep.join("."))));
            }
            let expression = fields.expression.unwrap_or_default();
            let body = policy_group(members, expression, |module| Reference::parse(module, folder))?;
            let Some(message) = fields.message else {
                return Err(invalid("message: is missing: a group needs the text that a denial shows".to_owned()));
            };
            return Ok(Body { message: Some(message), timeout_eval_seconds: fields.timeout_eval_seconds, ..body });
        }
        let Some(module) = fields.module.filter(|module| !module.is_empty() && module.len() <= 2048) else {
            return Err(invalid("module: want an address of 1 to 2048 characters".to_owned()));
        };
        let host_capabilities = fields.host_capabilities.unwrap_or_default();
        portcullis_contract::Capability::check_patterns(&host_capabilities)
            .map_err(|error| invalid(error.to_string()))?;
        let is_settings = too_deep.first().is_some_and(|key| key == "settings");
        if !too_deep.is_empty() && !is_settings {
            return Err(invalid(format!("{} is nested too deep", too_deep.join("."))));
        }
        let settings = settings(taken, is_settings)?;
        let reference = Reference::parse(&module, folder)?;
        Ok(Body {
            mutating: fields.allowed_to_mutate.unwrap_or(false),
            message: fields.message,
            timeout_eval_seconds: fields.timeout_eval_seconds,
            host_capabilities,
            context_aware_resources: fields.context_aware_resources.unwrap_or_default(),
            ..Body::module(module, Some(reference), settings)
        })
    })();
    (Some(head), body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Entry> {
        entries(portcullis_yaml::documents(text).expect("reads").remove(0), "policies.yml", Path::new("/policies"))
    }

    fn problem(text: &str) -> Problem {
        match read(text).remove(0) {
            Entry::Policy(policy) => policy.body.expect_err("a problem"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_policy_with_its_defaults() {
        let mut entries = read(
            "clusterwide-a:\n  namespacedName: {Namespace: '', Name: a}\n  module: file:///policies/a.wasm\n  settings: null\n",
        );
        let Entry::Policy(policy) = entries.remove(0) else { panic!() };
        assert_eq!(policy.id.as_str(), "clusterwide-a");
        let head = policy.head.expect("a head");
        assert_eq!((head.mode, head.group), (Mode::Protect, None));
        let body = policy.body.expect("a body");
        assert_eq!((body.settings.get(), body.mutating, body.timeout_eval_seconds), ("{}", false, None));
    }

    #[test]
    fn every_field_is_taken() {
        let mut entries = read(
            "a:\n  module: a.wasm\n  policyMode: monitor\n  allowedToMutate: true\n  settings: {b: 1}\n  message: no\n  \
             timeoutEvalSeconds: 5\n  hostCapabilities: [oci/*]\n  contextAwareResources: [{apiVersion: v1, kind: Pod}]\n",
        );
        let Entry::Policy(policy) = entries.remove(0) else { panic!() };
        assert_eq!(policy.head.map(|head| head.mode), Some(Mode::Monitor));
        let body = policy.body.expect("a body");
        assert_eq!((body.settings.get(), body.mutating), (r#"{"b":1}"#, true));
        assert_eq!((body.message.as_deref(), body.timeout_eval_seconds), (Some("no"), Some(5)));
        assert_eq!((body.host_capabilities.len(), body.context_aware_resources.len()), (1, 1));
    }

    #[test]
    fn an_id_with_a_slash_is_refused_and_the_others_stay() {
        let entries = read("a/b: {module: a.wasm}\nc: {module: a.wasm}\n");
        assert!(matches!(entries[0], Entry::Problem(_)));
        assert!(matches!(entries[1], Entry::Policy(_)));
    }

    #[test]
    fn an_id_that_is_there_twice_never_overwrites() {
        assert!(portcullis_yaml::documents("a: {module: a.wasm}\na: {module: b.wasm}\n").is_err());
    }

    #[test]
    fn groups_are_read_and_bad_ones_and_bad_patterns_refused() {
        let group = |rest: &str| format!("a: {{policies: {{b: {{module: m.wasm}}}}, {rest}}}");
        let Entry::Policy(good) = read(&group("expression: b(), message: no")).remove(0) else { panic!("a policy") };
        assert_eq!(good.body.expect("good").members.len(), 1);
        assert!(problem(&group("expression: c(), message: no")).message.contains("`c()`"));
        assert!(problem(&group("expression: b()")).message.contains("message: is missing"));
        for (text, field) in [
            (group("expression: b(), message: no, timeoutEvalSeconds: 0"), "timeoutEvalSeconds: "),
            (
                group("expression: b(), message: no").replace("m.wasm", "m.wasm, timeoutEvalSeconds: 0"),
                "policies.b.timeoutEvalSeconds: ",
            ),
            ("a: {module: a.wasm, timeoutEvalSeconds: 0}".to_owned(), "timeoutEvalSeconds: "),
        ] {
            let problem = problem(&text);
            assert_eq!((problem.reason, &*problem.message), (Reason::SpecInvalid, &*format!("{field}want at least 1")));
        }
        assert!(problem("a: {module: a.wasm, hostCapabilities: [oci/v1]}").message.contains("oci/v1"));
        assert!(problem("a: {}").message.contains("module"));
        assert!(problem("a: {module: a.wasm, policyMode: loud}").message.contains("policyMode"));
    }
}
