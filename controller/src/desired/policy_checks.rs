//! The webhook with which API servers ask the evaluators about policies that users apply.
//!
//! Its failure policy is Ignore: a policy server that does not answer must not stop users from editing policies, least of all from repairing
//! one.

use portcullis_api::kubernetes::{GROUP, VERSION};
use portcullis_contract::WebhookKind;
use serde_json::{Value, json};

use super::{Desired, Installation, client_config, whole};
use crate::world::check_webhook_name;

/// The name of the entry.
const NAME: &str = "check.policies.portcullis.dev";

/// The webhook configuration for checks of policies. API servers wait so many seconds for an answer.
pub fn check_webhook(installation: &Installation, timeout_seconds: u32) -> Desired {
    let entry = json!({
        "name": NAME,
        "admissionReviewVersions": ["v1"],
        "clientConfig": client_config(installation, &installation.path_key.check_path()),
        "rules": [{"apiGroups": [GROUP], "apiVersions": [VERSION], "resources": ["clusterpolicies", "policies"],
                   "operations": ["CREATE", "UPDATE"], "scope": "*"}],
        "matchPolicy": "Equivalent",
        "namespaceSelector": {},
        "objectSelector": {},
        "matchConditions": conditions(&installation.policy_server),
        "failurePolicy": "Ignore",
        "sideEffects": "None",
        "timeoutSeconds": timeout_seconds,
    });
    let name = check_webhook_name(&installation.policy_server);
    whole(installation, WebhookKind::Validating, name, Value::from(vec![entry]))
}

/// The match conditions: a policy of this policy server, with a spec that is new. Finalizers are added and removed without a check, so that
/// a policy that is refused today can still be deleted.
fn conditions(policy_server: &str) -> Vec<Value> {
    // A JSON string is also a CEL string.
    let server = Value::from(policy_server);
    [
        (
            "policy-server",
            format!("(has(object.spec.policyServer) ? object.spec.policyServer : 'default') == {server}"),
        ),
        ("new-spec", "request.operation == 'CREATE' || object.spec != oldObject.spec".to_owned()),
    ]
    .map(|(name, expression)| json!({"name": name, "expression": expression}))
    .to_vec()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use portcullis_contract::PathKey;

    use super::super::tests::installation;
    use super::*;
    use crate::world::WebhookView;

    #[test]
    fn policies_are_checked_by_one_entry_that_may_fail() {
        let desired = check_webhook(&installation(), 10);
        assert_eq!((desired.kind, desired.name.as_str()), (WebhookKind::Validating, "portcullis-default-check"));
        let [entry] = desired.entries.as_array().expect("a list").as_slice() else { panic!("one entry") };
        assert_eq!(entry["name"], "check.policies.portcullis.dev");
        let client = &entry["clientConfig"];
        assert_eq!(
            client["service"],
            json!({"namespace": "portcullis", "name": "policy-server", "path": "/check/policies", "port": 443})
        );
        assert_eq!(client["caBundle"], "UEVN");
        let rule = json!({
            "apiGroups": ["policies.portcullis.dev"], "apiVersions": ["v1alpha1"],
            "resources": ["clusterpolicies", "policies"], "operations": ["CREATE", "UPDATE"], "scope": "*",
        });
        assert_eq!(entry["rules"], json!([rule]));
        for (field, value) in [
            ("failurePolicy", json!("Ignore")),
            ("sideEffects", json!("None")),
            ("matchPolicy", json!("Equivalent")),
            ("timeoutSeconds", json!(10)),
            ("admissionReviewVersions", json!(["v1"])),
        ] {
            assert_eq!(entry[field], value, "{field}");
        }
    }

    #[test]
    fn policies_of_another_policy_server_and_finalizers_are_not_checked() {
        let conditions = conditions("edge");
        assert_eq!(
            conditions[0]["expression"],
            "(has(object.spec.policyServer) ? object.spec.policyServer : 'default') == \"edge\""
        );
        assert_eq!(conditions[1]["expression"], "request.operation == 'CREATE' || object.spec != oldObject.spec");
    }

    #[test]
    fn the_path_has_a_code_and_nothing_else_of_the_object_tells_it() {
        let path_key = PathKey::Secret([7; 32]);
        let desired = check_webhook(&Installation { path_key, ..installation() }, 10);
        let path = desired.entries[0]["clientConfig"]["service"]["path"].as_str().expect("a path");
        assert!(path_key.opens_check(path));
        let code = path.rsplit('/').next().expect("a code");
        assert_eq!(desired.object().to_string().matches(code).count(), 1);
        assert!(!desired.object().to_string().contains("0707"));
    }

    #[test]
    fn what_an_api_server_gives_back_is_right_until_the_installation_changes() {
        let desired = check_webhook(&installation(), 10);
        let mut object = desired.object();
        object["metadata"]["uid"] = json!("u");
        let found = serde_json::from_value(object).expect("an object");
        let found = WebhookView::read(WebhookKind::Validating, &found).expect("a webhook");
        assert!(desired.is(&found, &installation()));
        let renewed = Installation { ca_bundle: Arc::new("another".into()), ..installation() };
        assert!(!check_webhook(&renewed, 10).is(&found, &renewed));
        let moved = Installation { path_key: PathKey::Secret([7; 32]), ..installation() };
        assert!(!check_webhook(&moved, 10).is(&found, &moved));
        assert!(!check_webhook(&installation(), 20).is(&found, &installation()));
        let unlabelled = WebhookView { labels: BTreeMap::new(), ..found };
        assert!(!desired.is(&unlabelled, &installation()));
    }
}
