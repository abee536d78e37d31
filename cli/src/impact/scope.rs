//! Which objects of a cluster a policy would be asked about. Pure.

use std::collections::BTreeSet;

use anyhow::{Context as _, bail, ensure};
use portcullis_contract::RuleWithOperations;
use serde_json::Value;

use crate::cluster::Resource;
use crate::eval::manifest::{Chosen, matches_rule};
use crate::eval::request::Asked;

/// Namespaces about which no ClusterPolicy is asked, beside that of the installation.
const SYSTEM: [&str; 2] = ["kube-node-lease", "kube-system"];
/// Groups about which no policy is asked.
const LEFT_OUT: [&str; 3] = ["authentication.k8s.io", "authorization.k8s.io", "policies.portcullis.dev"];

/// What a policy's rules and selectors say.
#[derive(Debug)]
pub(super) struct Scope {
    rules: Vec<RuleWithOperations>,
    /// The selector of objects, in the form of queries.
    labels: String,
    /// The selector of namespaces, in the form of queries; absent for all.
    namespaces: Option<String>,
    /// The only namespace that counts.
    namespace: Option<String>,
    /// Whether it is a Policy, which is asked about objects of its own namespace only.
    is_namespaced: bool,
    /// The namespaces about which it is not asked.
    left_out: Vec<String>,
}

impl Scope {
    /// The scope of a policy, in one namespace if one is named.
    ///
    /// # Errors
    /// When a selector cannot be written as a query, and when a Policy is not of the named namespace.
    pub(super) fn of(chosen: &Chosen, namespace: Option<&str>, installation: &str) -> anyhow::Result<Self> {
        let spec = &chosen.spec;
        let selector = |field: &str, selector: Option<&Value>| {
            selector.map(|selector| query(selector).with_context(|| format!("spec.{field}"))).transpose()
        };
        let own = chosen.id.namespace();
        if let (Some(own), Some(wanted)) = (own, namespace) {
            ensure!(own == wanted, "--namespace: the policy is asked about objects of its own namespace {own:?} only");
        }
        let mut left_out = vec![installation.to_owned()];
        // A Policy in a namespace of the system is there on purpose.
        if own.is_none() {
            left_out.extend(SYSTEM.map(str::to_owned));
        }
        Ok(Self {
            rules: spec.rules.clone(),
            labels: selector("objectSelector", spec.object_selector.as_ref())?.unwrap_or_default(),
            namespaces: selector("namespaceSelector", spec.namespace_selector.as_ref())?
                .filter(|query| !query.is_empty()),
            namespace: own.or(namespace).map(str::to_owned),
            is_namespaced: own.is_some(),
            left_out,
        })
    }

    /// The selector of objects, in the form of queries.
    pub(super) fn labels(&self) -> &str {
        &self.labels
    }

    /// The selector of namespaces, in the form of queries; absent for all.
    pub(super) fn namespaces(&self) -> Option<&str> {
        self.namespaces.as_deref()
    }

    /// The only namespace that counts.
    pub(super) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Whether a rule names an operation that does not leave an object as it is.
    pub(super) fn has_other_operations(&self) -> bool {
        let is_other = |operation: &String| ["DELETE", "CONNECT", "*"].contains(&operation.as_str());
        self.rules.iter().flat_map(|rule| &rule.operations).any(is_other)
    }

    /// Whether a rule names a group and a version.
    pub(super) fn is_of(&self, group: &str, version: &str) -> bool {
        let has = |list: &[String], value: &str| list.iter().any(|entry| entry == "*" || entry == value);
        !LEFT_OUT.contains(&group)
            && self.rules.iter().any(|rule| has(&rule.api_groups, group) && has(&rule.api_versions, version))
    }

    /// The resources that rules name, each once, in the first of its versions that they name; and the operation to ask about.
    pub(super) fn resources(&self, known: Vec<Resource>) -> Vec<(Resource, &'static str)> {
        let mut seen = BTreeSet::new();
        let mut wanted = Vec::new();
        for resource in known {
            // Objects of one namespace do not include those in none.
            if self.namespace.is_some() && !resource.namespaced {
                continue;
            }
            let operation = ["CREATE", "UPDATE"].into_iter().find(|operation| self.names(&resource, operation));
            if let Some(operation) = operation
                && seen.insert((resource.group.clone(), resource.name.clone()))
            {
                wanted.push((resource, operation));
            }
        }
        wanted
    }

    fn names(&self, resource: &Resource, operation: &str) -> bool {
        let asked = Asked {
            group: resource.group.clone(),
            version: resource.version.clone(),
            resource: resource.name.clone(),
            subresource: String::new(),
            operation: operation.to_owned(),
            namespace: String::new(),
        };
        self.rules.iter().any(|rule| {
            let is_of_scope = match rule.scope.as_deref() {
                Some("Namespaced") => resource.namespaced,
                Some("Cluster") => !resource.namespaced,
                _ => resource.namespaced || !self.is_namespaced,
            };
            is_of_scope && matches_rule(rule, &asked)
        })
    }

    /// Whether the policy is asked about an object of a resource, where `selected` are the namespaces of its selector.
    pub(super) fn covers(&self, resource: &Resource, object: &Value, selected: Option<&BTreeSet<String>>) -> bool {
        let metadata = &object["metadata"];
        let is_namespace = resource.group.is_empty() && resource.name == "namespaces";
        // A selector of namespaces looks at the labels of a Namespace itself, and lets all other objects in no namespace through.
        let namespace = if is_namespace { &metadata["name"] } else { &metadata["namespace"] };
        let Some(namespace) = namespace.as_str() else { return true };
        !self.left_out.iter().any(|name| name == namespace) && selected.is_none_or(|names| names.contains(namespace))
    }
}

/// A label selector in the form of queries, for instance `app=shop,tier in (a,b),!legacy`.
///
/// # Errors
/// When it is not a label selector, or has characters that would mean something else in a query.
fn query(selector: &Value) -> anyhow::Result<String> {
    let word = |value: &Value| -> anyhow::Result<String> {
        let text = value.as_str().context("want a string")?;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
        ensure!(text.bytes().all(is_plain), "{text:?} is not the key or value of a label");
        Ok(text.to_owned())
    };
    let mut parts = Vec::new();
    for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
        parts.push(format!("{}={}", word(&Value::from(key.as_str()))?, word(value)?));
    }
    for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = word(&expression["key"]).context("key")?;
        let values = expression["values"].as_array().into_iter().flatten();
        let values =
            || -> anyhow::Result<String> { Ok(values.map(word).collect::<anyhow::Result<Vec<_>>>()?.join(",")) };
        parts.push(match expression["operator"].as_str().unwrap_or_default() {
            "In" => format!("{key} in ({})", values()?),
            "NotIn" => format!("{key} notin ({})", values()?),
            "Exists" => key,
            "DoesNotExist" => format!("!{key}"),
            other => bail!("{other:?} is not an operator of label selectors"),
        });
    }
    Ok(parts.join(","))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::eval::manifest::Given;

    fn scope(kind: &str, spec: &Value, namespace: Option<&str>) -> Result<Scope, String> {
        // A Policy with a rule for namespaces does not exist.
        let core = if kind == "Policy" { json!(["pods"]) } else { json!(["pods", "namespaces"]) };
        let mut document = json!({
            "apiVersion": portcullis_api::API_VERSION, "kind": kind, "metadata": {"name": "a"},
            "spec": {"module": "/a.wasm", "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "resources": core, "operations": ["UPDATE", "DELETE"]},
                {"apiGroups": ["apps"], "apiVersions": ["*"], "resources": ["*"], "operations": ["*"]},
            ]},
        });
        if kind == "Policy" {
            document["metadata"]["namespace"] = "team".into();
        }
        for (name, value) in spec.as_object().expect("fields") {
            document["spec"][name] = value.clone();
        }
        let chosen = Chosen::of(document, std::path::Path::new("/"), Given::default()).expect("a policy");
        Scope::of(&chosen, namespace, "portcullis").map_err(|error| format!("{error:#}"))
    }

    fn resource(group: &str, version: &str, name: &str, namespaced: bool) -> Resource {
        Resource { group: group.into(), version: version.into(), name: name.into(), kind: "Any".into(), namespaced }
    }

    fn known() -> Vec<Resource> {
        vec![
            resource("", "v1", "pods", true),
            resource("", "v1", "namespaces", false),
            resource("", "v1", "nodes", false),
            resource("apps", "v1", "deployments", true),
            resource("apps", "v1beta1", "deployments", true),
        ]
    }

    fn wanted(scope: &Scope) -> Vec<String> {
        let resources = scope.resources(known());
        resources
            .iter()
            .map(|(resource, operation)| format!("{operation} {}/{}", resource.name, resource.version))
            .collect()
    }

    #[test]
    fn each_resource_of_the_rules_is_asked_about_once_with_the_operation_that_they_name() {
        let all = scope("ClusterPolicy", &json!({}), None).expect("a scope");
        assert_eq!(wanted(&all), ["UPDATE pods/v1", "UPDATE namespaces/v1", "CREATE deployments/v1"]);
        assert!(all.has_other_operations() && all.is_of("apps", "v2") && !all.is_of("", "v2"));
        let one = scope("ClusterPolicy", &json!({}), Some("team")).expect("a scope");
        assert_eq!((wanted(&one).len(), one.namespace()), (2, Some("team")));
        let own = scope("Policy", &json!({}), None).expect("a scope");
        assert_eq!((wanted(&own).len(), own.namespace()), (2, Some("team")));
        assert!(
            scope("Policy", &json!({}), Some("other")).expect_err("another").contains("its own namespace \"team\"")
        );
    }

    #[test]
    fn rules_count_for_their_scope_only() {
        let rules = json!({"rules": [{"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["*"],
                                      "scope": "Cluster"}]});
        let cluster = scope("ClusterPolicy", &rules, None).expect("a scope");
        assert_eq!(wanted(&cluster), ["CREATE namespaces/v1", "CREATE nodes/v1"]);
        assert!(!cluster.is_of("policies.portcullis.dev", "v1alpha1") && !cluster.is_of("authorization.k8s.io", "v1"));
    }

    #[test]
    fn namespaces_of_the_system_and_those_that_no_selector_wants_are_left_out() {
        let scope = scope("ClusterPolicy", &json!({"namespaceSelector": {"matchLabels": {"a": "b"}}}), None);
        let scope = scope.expect("a scope");
        assert_eq!(scope.namespaces(), Some("a=b"));
        let (pods, namespaces, nodes) = (&known()[0], &known()[1], &known()[2]);
        let selected = BTreeSet::from(["team".to_owned(), "kube-system".to_owned()]);
        let covers =
            |resource, metadata: Value| scope.covers(resource, &json!({"metadata": metadata}), Some(&selected));
        assert!(covers(pods, json!({"name": "a", "namespace": "team"})));
        assert!(!covers(pods, json!({"name": "a", "namespace": "other"})));
        assert!(!covers(pods, json!({"name": "a", "namespace": "kube-system"})));
        assert!(covers(namespaces, json!({"name": "team"})) && !covers(namespaces, json!({"name": "portcullis"})));
        assert!(covers(nodes, json!({"name": "other"})));
    }

    #[test]
    fn selectors_become_queries() {
        let selector = json!({
            "matchLabels": {"app.example.com/name": "shop"},
            "matchExpressions": [
                {"key": "a", "operator": "In", "values": ["x", "y"]}, {"key": "b", "operator": "NotIn", "values": ["z"]},
                {"key": "c", "operator": "Exists"}, {"key": "d", "operator": "DoesNotExist"},
            ],
        });
        assert_eq!(query(&selector).expect("a query"), "app.example.com/name=shop,a in (x,y),b notin (z),c,!d");
        assert_eq!(query(&json!({})).expect("a query"), "");
        assert!(query(&json!({"matchLabels": {"a": "b,c=d"}})).is_err());
        assert!(query(&json!({"matchExpressions": [{"key": "a", "operator": "Like"}]})).is_err());
    }
}
