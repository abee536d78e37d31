//! Whether an API server would ask a policy about a request: its namespace, rules, selectors and match conditions. Pure.

use std::collections::BTreeMap;

use portcullis_api::PolicySpec;
use portcullis_contract::PolicyId;
use portcullis_matching::{Asked, Conditions, Decision, Labels, Selector, labels, rules};
use serde_json::Value;

/// The label with the namespace's name, which API servers set (Kubernetes 1.22).
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Whether the policy is asked.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Match {
    Yes,
    /// It is not, for this reason.
    No(String),
    /// Only an API server can judge this part of it.
    Unknown(String),
}

/// Whether the policy is asked about the request of an AdmissionReview in a namespace with these labels.
pub(super) fn matching(
    id: &PolicyId,
    spec: &PolicySpec,
    asked: &Asked,
    request: &Value,
    namespace_labels: &BTreeMap<String, String>,
) -> Match {
    if let Some(own) = id.namespace().filter(|own| *own != asked.namespace) {
        return Match::No(format!(
            "it applies to its own namespace {own:?} only, and the request is for {:?}",
            asked.namespace
        ));
    }
    if !rules::matches(&spec.rules, asked) {
        let Asked { group, version, resource, subresource, operation, .. } = asked;
        let slash = |part: &str| if part.is_empty() { String::new() } else { format!("/{part}") };
        let group = if group.is_empty() { String::new() } else { format!("{group}/") };
        return Match::No(format!("no rule matches {operation} of {group}{version}/{resource}{}", slash(subresource)));
    }
    let objects = [&request["object"], &request["oldObject"]];
    match spec.object_selector.as_ref().map(Selector::parse).transpose() {
        Err(problem) => return Match::Unknown(format!("spec.objectSelector ({problem})")),
        Ok(Some(selector)) if !selector.is_empty() => {
            let mut with_metadata = objects.iter().map(|object| &object["metadata"]).filter(|it| it.is_object());
            if !with_metadata.any(|metadata| selector.selects(&labels(metadata))) {
                return Match::No("spec.objectSelector does not select the object".to_owned());
            }
        }
        Ok(_) => {}
    }
    match spec.namespace_selector.as_ref().map(Selector::parse).transpose() {
        Err(problem) => return Match::Unknown(format!("spec.namespaceSelector ({problem})")),
        Ok(Some(selector)) => {
            let of_namespace = namespace(asked, request, namespace_labels);
            if of_namespace.is_some_and(|labels| !selector.selects(&labels)) {
                return Match::No(
                    "spec.namespaceSelector does not select the namespace (see namespaceLabels)".to_owned(),
                );
            }
        }
        Ok(None) => {}
    }
    match Conditions::of(&spec.match_conditions).decide_request(request) {
        Decision::Matches => Match::Yes,
        Decision::Excluded => Match::No("a match condition is false".to_owned()),
        Decision::Unknown(name) => Match::Unknown(format!("match condition {name:?}")),
    }
}

/// The labels that a namespace selector looks at: those of the request's namespace, or of the Namespace itself if it is about one. `None` for
/// other cluster-scoped objects, which all namespace selectors let through.
fn namespace(asked: &Asked, request: &Value, given: &BTreeMap<String, String>) -> Option<Labels> {
    let is_namespace = asked.group.is_empty() && asked.resource == "namespaces";
    let (name, mut of_namespace) = if is_namespace {
        (request["name"].as_str().unwrap_or_default(), labels(&request["object"]["metadata"]))
    } else {
        (asked.namespace.as_str(), Labels::new())
    };
    if name.is_empty() {
        return None;
    }
    of_namespace.insert(NAME_LABEL.to_owned(), name.to_owned());
    of_namespace.extend(given.clone());
    Some(of_namespace)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(id: &str, spec: &Value, request: &Value, namespace_labels: &[(&str, &str)]) -> Match {
        let mut whole = json!({"module": "a.wasm", "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods", "namespaces"], "operations": ["CREATE"]},
        ]});
        whole.as_object_mut().expect("a mapping").extend(spec.as_object().expect("a mapping").clone());
        let spec: PolicySpec = serde_json::from_value(whole).expect("a spec");
        let text = |field: &str| request["resource"][field].as_str().unwrap_or_default().to_owned();
        let asked = Asked {
            group: text("group"),
            version: text("version"),
            resource: text("resource"),
            subresource: String::new(),
            operation: request["operation"].as_str().unwrap_or_default().to_owned(),
            namespace: request["namespace"].as_str().unwrap_or_default().to_owned(),
        };
        let labels = namespace_labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        matching(&id.parse().expect("an id"), &spec, &asked, request, &labels)
    }

    fn pod(operation: &str) -> Value {
        json!({
            "uid": "1", "operation": operation, "namespace": "shop", "name": "web",
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "userInfo": {"username": "ada", "groups": []},
            "object": {"metadata": {"name": "web", "labels": {"app": "web"}}, "spec": {"hostNetwork": true}},
        })
    }

    #[test]
    fn each_part_of_a_policy_can_leave_a_request_out() {
        let of = |id: &str, spec: Value, labels: &[(&str, &str)]| found(id, &spec, &pod("CREATE"), labels);
        let app = |value: &str| json!({"objectSelector": {"matchLabels": {"app": value}}});
        let team = json!({"namespaceSelector": {"matchLabels": {"team": "a"}}});
        let named = json!({"namespaceSelector": {"matchLabels": {NAME_LABEL: "shop"}}});
        let condition = |text: &str| json!({"matchConditions": [{"name": "c", "expression": text}]});
        for (id, spec, labels) in [
            ("cluster/a", json!({}), &[][..]),
            ("namespaced/shop/a", json!({}), &[]),
            ("cluster/a", app("web"), &[]),
            ("cluster/a", team.clone(), &[("team", "a")]),
            ("cluster/a", named, &[]),
            ("cluster/a", condition("object.spec.hostNetwork && request.userInfo.username == 'ada'"), &[]),
        ] {
            assert_eq!(of(id, spec.clone(), labels), Match::Yes, "{id} {spec}");
        }
        for (id, spec, word) in [
            ("namespaced/other/a", json!({}), "its own namespace \"other\" only"),
            ("cluster/a", json!({"rules": []}), "no rule matches CREATE of v1/pods"),
            ("cluster/a", app("db"), "objectSelector"),
            ("cluster/a", team, "namespaceSelector"),
            ("cluster/a", condition("request.userInfo.username != 'ada'"), "match condition"),
        ] {
            let Match::No(why) = of(id, spec.clone(), &[]) else { panic!("{id} {spec}") };
            assert!(why.contains(word), "{word:?} in {why}");
        }
        assert!(matches!(found("cluster/a", &json!({}), &pod("DELETE"), &[]), Match::No(_)));
        let only_there = condition("authorizer.group('').resource('pods').check('get').allowed()");
        assert_eq!(of("cluster/a", only_there, &[]), Match::Unknown("match condition \"c\"".to_owned()));
    }

    #[test]
    fn a_namespace_is_selected_by_its_own_labels_and_other_cluster_scoped_objects_always_are() {
        let spec = json!({"namespaceSelector": {"matchLabels": {"team": "a"}}, "rules": [
            {"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "operations": ["*"]},
        ]});
        let request = |resource: &str, team: &str| {
            json!({
                "operation": "CREATE", "name": "x", "resource": {"group": "", "version": "v1", "resource": resource},
                "object": {"metadata": {"name": "x", "labels": {"team": team}}},
            })
        };
        assert_eq!(found("cluster/a", &spec, &request("namespaces", "a"), &[]), Match::Yes);
        assert!(matches!(found("cluster/a", &spec, &request("namespaces", "b"), &[]), Match::No(_)));
        assert_eq!(found("cluster/a", &spec, &request("nodes", "b"), &[]), Match::Yes);
    }
}
