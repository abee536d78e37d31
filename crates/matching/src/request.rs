//! The request for which an object is judged, and whether a rule matches it.

use portcullis_contract::RuleWithOperations;
use serde_json::{Value, json};

use crate::resource::Resource;

/// The uid of a request that this crate makes.
pub(crate) const UID: &str = "00000000-0000-4000-8000-000000000000";

/// The part of a request that rules look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The API group; empty for the core group.
    pub group: String,
    /// The version.
    pub version: String,
    /// The plural name of the resource.
    pub resource: String,
    /// The subresource; empty for the object itself.
    pub subresource: String,
    /// `CREATE`, `UPDATE`, `DELETE` or `CONNECT`.
    pub operation: String,
    /// The namespace; empty for cluster-scoped objects.
    pub namespace: String,
}

impl Asked {
    /// A request about an object of a resource. `namespace` is empty for cluster-scoped objects.
    pub fn of(resource: &Resource, operation: &str, namespace: &str) -> Self {
        Self {
            group: resource.group.clone(),
            version: resource.version.clone(),
            resource: resource.name.clone(),
            subresource: String::new(),
            operation: operation.to_owned(),
            namespace: namespace.to_owned(),
        }
    }

    /// Reads the request of an AdmissionReview; `None` if a field that API servers always send is missing.
    pub(crate) fn read(request: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let resource = &request["resource"];
        Some(Self {
            group: text(&resource["group"])?,
            version: text(&resource["version"])?,
            resource: text(&resource["resource"])?,
            subresource: text(&request["subResource"]).unwrap_or_default(),
            operation: text(&request["operation"])?,
            namespace: text(&request["namespace"]).unwrap_or_default(),
        })
    }

    /// Whether it is about a Namespace.
    pub fn is_namespace(&self) -> bool {
        self.group.is_empty() && self.resource == "namespaces"
    }

    /// Whether the request replaces an object.
    pub(crate) fn is_update(&self) -> bool {
        self.operation == "UPDATE"
    }

    /// The request as in an AdmissionReview, without its objects.
    pub(crate) fn request(&self, user: &str, kind: &str, name: &str) -> Value {
        let Self { group, version, resource, operation, namespace, .. } = self;
        let options = if self.is_update() { "UpdateOptions" } else { "CreateOptions" };
        let kind = json!({"group": group, "version": version, "kind": kind});
        let resource = json!({"group": group, "version": version, "resource": resource});
        let mut request = json!({
            "uid": UID,
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "operation": operation,
            "userInfo": {"username": user, "groups": ["system:authenticated"]},
            "dryRun": false,
            "options": {"apiVersion": "meta.k8s.io/v1", "kind": options},
        });
        // As in API servers: a request about a Namespace has its name as namespace, too, and neither field is sent empty.
        let namespace = if namespace.is_empty() && self.is_namespace() { name } else { namespace };
        for (field, text) in [("name", name), ("namespace", namespace)] {
            if !text.is_empty() {
                request[field] = text.into();
            }
        }
        request
    }
}

/// The JSON of an AdmissionReview by a user, about an object. `raw` is the object's JSON, which is inserted unchanged, with every digit of
/// its numbers. In an update, the old object is the same.
pub fn about(user: &str, asked: &Asked, kind: &str, name: &str, raw: &str) -> Vec<u8> {
    let old = if asked.is_update() { raw } else { "null" };
    let request = asked.request(user, kind, name).to_string();
    let request = request.strip_suffix('}').unwrap_or_default();
    format!(
        r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{request},"oldObject":{old},"object":{raw}}}}}"#
    )
    .into()
}

/// Whether a rule of a policy matches a request, as rules of webhooks do. The rule's `scope` is not considered
/// ([`crate::rules::matches`] considers it).
pub fn matches_rule(rule: &RuleWithOperations, asked: &Asked) -> bool {
    let any = |list: &[String], value: &str| list.iter().any(|entry| entry == "*" || entry == value);
    let resource = |pattern: &String| match pattern.split_once('/') {
        None => asked.subresource.is_empty() && (pattern == "*" || *pattern == asked.resource),
        Some((resource, subresource)) => {
            (resource == "*" || resource == asked.resource) && (subresource == "*" || subresource == asked.subresource)
        }
    };
    any(&rule.api_groups, &asked.group)
        && any(&rule.api_versions, &asked.version)
        && any(&rule.operations, &asked.operation)
        && rule.resources.iter().any(resource)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A request about a resource of the core group, in a namespace.
    pub(crate) fn asked(resource: &str, subresource: &str, operation: &str) -> Asked {
        Asked {
            group: String::new(),
            version: "v1".into(),
            resource: resource.into(),
            subresource: subresource.into(),
            operation: operation.into(),
            namespace: "team".into(),
        }
    }

    #[test]
    fn rules_match_as_those_of_webhooks_do() {
        let rule = |resources: &[&str]| RuleWithOperations {
            api_groups: vec![String::new()],
            api_versions: vec!["*".into()],
            resources: resources.iter().map(|&name| name.to_owned()).collect(),
            operations: vec!["CREATE".into()],
            scope: None,
        };
        assert!(matches_rule(&rule(&["pods"]), &asked("pods", "", "CREATE")));
        assert!(!matches_rule(&rule(&["pods"]), &asked("pods", "", "UPDATE")));
        assert!(!matches_rule(&rule(&["pods", "*"]), &asked("pods", "status", "CREATE")));
        assert!(matches_rule(&rule(&["pods/*"]), &asked("pods", "status", "CREATE")));
        assert!(matches_rule(&rule(&["*/*"]), &asked("services", "", "CREATE")));
    }

    #[test]
    fn a_review_has_the_object_as_it_is_written() {
        let raw = r#"{"n":1.000000000000000000001}"#;
        let text = String::from_utf8(about("me", &asked("pods", "", "UPDATE"), "Pod", "a", raw)).expect("text");
        let review: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(text.matches(raw).count(), 2, "the old object and the new one");
        assert_eq!(review["request"]["userInfo"]["username"], "me");
        assert_eq!((&review["request"]["namespace"], &review["request"]["name"]), (&json!("team"), &json!("a")));
        assert_eq!(review["request"]["options"]["kind"], "UpdateOptions");
        let text = String::from_utf8(about("me", &asked("pods", "", "CREATE"), "Pod", "a", raw)).expect("text");
        assert!(text.contains(r#""oldObject":null"#), "{text}");
    }

    #[test]
    fn name_and_namespace_are_those_that_an_api_server_sends() {
        let of = |resource: &str, namespace: &str, name: &str| {
            let asked = Asked { namespace: namespace.into(), ..asked(resource, "", "CREATE") };
            let request = asked.request("me", "Any", name);
            [request.get("name").cloned(), request.get("namespace").cloned()]
        };
        let text = |text: &str| Some(json!(text));
        assert_eq!(of("pods", "team", "a"), [text("a"), text("team")]);
        assert_eq!(of("namespaces", "", "team"), [text("team"), text("team")]);
        assert_eq!(of("nodes", "", "a"), [text("a"), None]);
        assert_eq!(of("pods", "team", ""), [None, text("team")], "its name is generated later");
        assert_eq!(of("namespaces", "", ""), [None, None]);
    }
}
