//! Which objects of a cluster a policy would be asked about, before its match conditions.

use std::collections::{BTreeMap, BTreeSet};

use portcullis_contract::{PolicyId, RuleWithOperations};
use serde_json::Value;

use crate::request::{Asked, matches_rule};
use crate::resource::Resource;
use crate::selector::{Labels, Selector, SelectorError, labels};

/// Namespaces about which no ClusterPolicy is asked, besides that of the installation.
pub const SYSTEM: [&str; 2] = ["kube-node-lease", "kube-system"];
/// API groups about which no policy is asked.
pub const LEFT_OUT: [&str; 3] = ["authentication.k8s.io", "authorization.k8s.io", "policies.portcullis.dev"];
/// The API group of definitions of resources, and how the names of Portcullis' own end.
const OWN_DEFINITIONS: (&str, &str) = ("apiextensions.k8s.io", ".policies.portcullis.dev");
/// The operations for which an existing object can be judged, the preferred one first.
const OPERATIONS: [&str; 2] = ["CREATE", "UPDATE"];

/// The namespaces of a cluster with their labels, by name.
pub type Namespaces = BTreeMap<String, Labels>;

/// The parts of a policy, and the other facts that decide about objects.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    /// The policy.
    pub id: &'a PolicyId,
    /// Its rules.
    pub rules: &'a [RuleWithOperations],
    /// Its selector of objects.
    pub object_selector: Option<&'a Value>,
    /// Its selector of namespaces.
    pub namespace_selector: Option<&'a Value>,
    /// The namespace of the installation, about which no policy is asked.
    pub installation: &'a str,
    /// The only namespace of interest; absent for all.
    pub namespace: Option<&'a str>,
}

/// Why a policy has no scope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScopeError {
    /// A selector is not valid.
    #[error("spec.{field}: {problem}")]
    Selector {
        /// `objectSelector` or `namespaceSelector`.
        field: &'static str,
        /// What is wrong with it.
        problem: SelectorError,
    },
    /// The namespace of interest is not that of the Policy.
    #[error("the policy is asked about objects of its own namespace {own:?} only")]
    OtherNamespace {
        /// The namespace of the Policy.
        own: String,
    },
}

/// The objects that a policy's rules and selectors select.
#[derive(Debug, Clone)]
pub struct Scope {
    rules: Vec<RuleWithOperations>,
    objects: Selector,
    /// The namespace selector; absent if it selects all.
    namespaces: Option<Selector>,
    /// The only namespace of interest; absent for all.
    namespace: Option<String>,
    /// Whether it is a Policy, which is asked only about objects of its own namespace.
    is_namespaced: bool,
    /// The namespaces about which the policy is not asked.
    left_out: Vec<String>,
}

/// Whether an object of this API group and name is the definition of one of Portcullis' own resources. No policy is asked about these, so that
/// none can keep Portcullis from being upgraded.
pub fn is_own_definition(group: &str, name: &str) -> bool {
    group == OWN_DEFINITIONS.0 && name.ends_with(OWN_DEFINITIONS.1)
}

impl Scope {
    /// The scope of a policy, in one namespace if one is named.
    ///
    /// # Errors
    /// When a selector is not a label selector, and when a Policy is not of the named namespace.
    pub fn of(parts: &Parts<'_>) -> Result<Self, ScopeError> {
        let selector = |field: &'static str, value: Option<&Value>| {
            value
                .map(|value| Selector::parse(value).map_err(|problem| ScopeError::Selector { field, problem }))
                .transpose()
        };
        let own = parts.id.namespace();
        if let (Some(own), Some(wanted)) = (own, parts.namespace)
            && own != wanted
        {
            return Err(ScopeError::OtherNamespace { own: own.to_owned() });
        }
        let mut left_out = vec![parts.installation.to_owned()];
        // A Policy in a system namespace is there on purpose.
        if own.is_none() {
            left_out.extend(SYSTEM.map(str::to_owned));
        }
        Ok(Self {
            rules: parts.rules.to_vec(),
            objects: selector("objectSelector", parts.object_selector)?.unwrap_or_default(),
            namespaces: selector("namespaceSelector", parts.namespace_selector)?
                .filter(|selector| !selector.is_empty()),
            namespace: own.or(parts.namespace).map(str::to_owned),
            is_namespaced: own.is_some(),
            left_out,
        })
    }

    /// The object selector.
    pub fn objects(&self) -> &Selector {
        &self.objects
    }

    /// The namespace selector; absent if it selects all.
    pub fn namespaces(&self) -> Option<&Selector> {
        self.namespaces.as_ref()
    }

    /// The only namespace of interest; `None` for all.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Whether a rule names an operation other than creating or updating an object.
    pub fn has_other_operations(&self) -> bool {
        let is_other = |operation: &String| ["DELETE", "CONNECT", "*"].contains(&operation.as_str());
        self.rules.iter().flat_map(|rule| &rule.operations).any(is_other)
    }

    /// Whether a rule names this group and version.
    pub fn is_of(&self, group: &str, version: &str) -> bool {
        let has = |list: &[String], value: &str| list.iter().any(|entry| entry == "*" || entry == value);
        !LEFT_OUT.contains(&group)
            && self.rules.iter().any(|rule| has(&rule.api_groups, group) && has(&rule.api_versions, version))
    }

    /// The resources that the rules name, each once even if two groups have its objects, in the first of its known versions that they name; and the operation to
    /// ask about.
    pub fn resources(&self, known: &[Resource]) -> Vec<(Resource, &'static str)> {
        let mut seen = BTreeSet::new();
        let mut wanted = Vec::new();
        for resource in known {
            // A namespace has no cluster-scoped objects.
            if LEFT_OUT.contains(&resource.group.as_str()) || (self.namespace.is_some() && !resource.namespaced) {
                continue;
            }
            let operation = OPERATIONS.into_iter().find(|operation| self.names(resource, operation));
            if let Some(operation) = operation
                && seen.insert(identity(resource))
            {
                wanted.push((resource.clone(), operation));
            }
        }
        wanted
    }

    /// The operations that the rules name for a resource, among those for which an existing object can be judged.
    pub fn operations(&self, resource: &Resource) -> Vec<&'static str> {
        OPERATIONS.into_iter().filter(|operation| self.names(resource, operation)).collect()
    }

    fn names(&self, resource: &Resource, operation: &str) -> bool {
        let asked = Asked::of(resource, operation, "");
        self.rules.iter().any(|rule| {
            let is_of_scope = match rule.scope.as_deref() {
                Some("Namespaced") => resource.namespaced,
                Some("Cluster") => !resource.namespaced,
                _ => resource.namespaced || !self.is_namespaced,
            };
            is_of_scope && matches_rule(rule, &asked)
        })
    }

    /// Whether the policy is asked about an object of a resource; `selected` are the namespaces that its selector selects, or `None` for
    /// all. The object must be one that an API server listed with the object selector, in the only namespace of interest.
    pub fn covers(&self, resource: &Resource, object: &Value, selected: Option<&BTreeSet<String>>) -> bool {
        if is_own(resource, object) {
            return false;
        }
        let Some(namespace) = namespace(resource, object) else { return true };
        !self.leaves_out(namespace) && selected.is_none_or(|names| names.contains(namespace))
    }

    /// Whether the policy is asked about an object that was listed for all policies, so that its selectors are applied here. A policy
    /// with a namespace selector is not asked about an object in an unknown namespace.
    pub fn selects(&self, resource: &Resource, object: &Value, namespaces: &Namespaces) -> bool {
        let metadata = &object["metadata"];
        if is_own(resource, object) || !self.objects.is_empty() && !self.objects.selects(&labels(metadata)) {
            return false;
        }
        let Some(name) = namespace(resource, object) else { return self.namespace.is_none() };
        if self.leaves_out(name) || self.namespace.as_ref().is_some_and(|only| only != name) {
            return false;
        }
        let Some(selector) = &self.namespaces else { return true };
        if is_namespace(resource) {
            return selector.selects(&labels(metadata));
        }
        namespaces.get(name).is_some_and(|labels| selector.selects(labels))
    }

    /// Whether the policy is not asked about objects in this namespace, whatever it selects: one of the system, or that of the installation.
    pub fn leaves_out(&self, namespace: &str) -> bool {
        self.left_out.iter().any(|name| name == namespace)
    }
}

fn is_own(resource: &Resource, object: &Value) -> bool {
    is_own_definition(&resource.group, object["metadata"]["name"].as_str().unwrap_or_default())
}

fn is_namespace(resource: &Resource) -> bool {
    resource.group.is_empty() && resource.name == "namespaces"
}

/// The namespace that decides about an object: a namespace selector looks at the labels of a Namespace itself, and lets all other
/// cluster-scoped objects through.
fn namespace<'o>(resource: &Resource, object: &'o Value) -> Option<&'o str> {
    let metadata = &object["metadata"];
    if is_namespace(resource) { metadata["name"].as_str() } else { metadata["namespace"].as_str() }
}

/// Group and name, the same for all groups that have the same objects: Events are in the core group and in one of their own.
fn identity(resource: &Resource) -> (&str, &str) {
    match (resource.group.as_str(), resource.name.as_str()) {
        ("events.k8s.io", "events") => ("", "events"),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn scope(kind: &str, spec: &Value, namespace: Option<&str>) -> Result<Scope, String> {
        // A Policy may not have a rule for namespaces.
        let core = if kind == "Policy" { json!(["pods"]) } else { json!(["pods", "namespaces"]) };
        let rules = json!([
            {"apiGroups": [""], "apiVersions": ["v1"], "resources": core, "operations": ["UPDATE", "DELETE"]},
            {"apiGroups": ["apps"], "apiVersions": ["*"], "resources": ["*"], "operations": ["*"]},
        ]);
        let rules = spec.get("rules").cloned().unwrap_or(rules);
        let rules: Vec<RuleWithOperations> = serde_json::from_value(rules).expect("rules");
        let id = if kind == "Policy" { PolicyId::namespaced("team", "a") } else { PolicyId::cluster("a") };
        let parts = Parts {
            id: &id.expect("an id"),
            rules: &rules,
            object_selector: spec.get("objectSelector"),
            namespace_selector: spec.get("namespaceSelector"),
            installation: "portcullis",
            namespace,
        };
        Scope::of(&parts).map_err(|error| error.to_string())
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
        let resources = scope.resources(&known());
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
        assert_eq!(all.operations(&known()[0]), ["UPDATE"]);
        assert_eq!(all.operations(&known()[3]), ["CREATE", "UPDATE"]);
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
        let left_out = [resource("policies.portcullis.dev", "v1alpha1", "clusterpolicies", false)];
        assert!(cluster.resources(&left_out).is_empty());
    }

    #[test]
    fn events_which_two_groups_have_are_asked_about_once() {
        let rules =
            json!({"rules": [{"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "operations": ["*"]}]});
        let all = scope("ClusterPolicy", &rules, None).expect("a scope");
        let events = [resource("", "v1", "events", true), resource("events.k8s.io", "v1", "events", true)];
        assert_eq!(all.resources(&events).len(), 1);
        assert_eq!(all.resources(&events[1..]).len(), 1);
        assert_eq!(all.resources(&[events[0].clone(), resource("shop.example", "v1", "events", true)]).len(), 2);
    }

    #[test]
    fn the_definitions_of_our_own_resources_are_left_out() {
        let rules =
            json!({"rules": [{"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "operations": ["*"]}]});
        let scope = scope("ClusterPolicy", &rules, None).expect("a scope");
        let definitions = resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", false);
        let has = |resource: &Resource, name: &str| {
            let object = json!({"metadata": {"name": name}});
            let (covered, selected) =
                (scope.covers(resource, &object, None), scope.selects(resource, &object, &Namespaces::new()));
            assert_eq!(covered, selected, "{name}");
            covered
        };
        assert!(!has(&definitions, "clusterpolicies.policies.portcullis.dev"));
        assert!(has(&definitions, "widgets.example.com"));
        assert!(has(&known()[2], "a.policies.portcullis.dev"), "it is a Node");
    }

    #[test]
    fn namespaces_of_the_system_and_those_that_no_selector_wants_are_left_out() {
        let scope = scope("ClusterPolicy", &json!({"namespaceSelector": {"matchLabels": {"a": "b"}}}), None);
        let scope = scope.expect("a scope");
        assert_eq!(scope.namespaces().map(Selector::query).as_deref(), Some("a=b"));
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
    fn objects_that_were_listed_for_all_are_selected_here() {
        let spec =
            json!({"namespaceSelector": {"matchLabels": {"a": "b"}}, "objectSelector": {"matchLabels": {"x": "y"}}});
        let cluster = scope("ClusterPolicy", &spec, None).expect("a scope");
        let label = || Labels::from([("a".to_owned(), "b".to_owned())]);
        let known_namespaces = Namespaces::from([
            ("team".to_owned(), label()),
            ("kube-system".to_owned(), label()),
            ("other".to_owned(), Labels::new()),
        ]);
        let selects = |scope: &Scope, index: usize, metadata: Value| {
            scope.selects(&known()[index], &json!({"metadata": metadata}), &known_namespaces)
        };
        let pod = |namespace: &str| json!({"name": "p", "namespace": namespace, "labels": {"x": "y"}});
        assert!(selects(&cluster, 0, pod("team")));
        for namespace in ["other", "unknown", "kube-system", "portcullis"] {
            assert!(!selects(&cluster, 0, pod(namespace)), "{namespace}");
        }
        assert!(!selects(&cluster, 0, json!({"name": "p", "namespace": "team"})), "its labels are not wanted");
        assert!(selects(&cluster, 1, json!({"name": "new", "labels": {"a": "b", "x": "y"}})), "by its own labels");
        assert!(!selects(&cluster, 1, json!({"name": "team", "labels": {"x": "y"}})));
        assert!(selects(&cluster, 2, json!({"name": "n", "labels": {"x": "y"}})), "it is in no namespace");
        let own = scope("Policy", &json!({}), None).expect("a scope");
        assert!(selects(&own, 0, pod("team")) && !selects(&own, 0, pod("other")) && !selects(&own, 2, json!({})));
    }
}
