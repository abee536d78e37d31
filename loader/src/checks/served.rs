//! The resources that a cluster has, as its API server lists them by aggregated discovery. Pure.

use std::collections::{BTreeMap, BTreeSet};

use kube::core::discovery::v2::{APIGroupDiscoveryList, APIResourceDiscovery, APIVersionDiscovery};
use portcullis_matching::Resource;

/// The resources of a cluster, by API group; the core group is the empty one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Served(BTreeMap<String, Vec<ServedVersion>>);

/// A version of an API group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServedVersion {
    /// Its name.
    pub(super) name: String,
    /// Whether resources may be missing because an aggregated API server did not answer.
    pub(super) is_stale: bool,
    /// Its resources, by their plural names.
    pub(super) resources: BTreeMap<String, ServedResource>,
}

/// A resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ServedResource {
    /// The kind of its objects.
    pub(super) kind: String,
    /// Whether its objects are in namespaces.
    pub(super) is_namespaced: bool,
    /// Whether its objects can be listed.
    pub(super) is_listable: bool,
    /// Other names that people use for it, in lower case: kind, singular and short names.
    pub(super) other_names: BTreeSet<String>,
    /// Its subresources.
    pub(super) subresources: BTreeSet<String>,
}

impl Served {
    /// Reads what an API server lists below `/api` and `/apis`. `None` if either list is empty, as it is from an API server without aggregated
    /// discovery.
    pub(super) fn of(core: APIGroupDiscoveryList, others: APIGroupDiscoveryList) -> Option<Self> {
        if core.items.is_empty() || others.items.is_empty() {
            return None;
        }
        let groups = core.items.into_iter().chain(others.items).map(|group| {
            let name = group.metadata.and_then(|metadata| metadata.name).unwrap_or_default();
            (name, group.versions.into_iter().filter_map(version).collect())
        });
        Some(Self(groups.collect()))
    }

    /// The groups that a rule names, with their versions; those that the API server prefers come first.
    pub(super) fn groups(&self, named: &[String]) -> Vec<(&str, &[ServedVersion])> {
        let is_named = |group: &str| named.iter().any(|name| name == "*" || name == group);
        self.all().filter(|(group, _)| is_named(group)).collect()
    }

    /// All groups, with their versions.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, &[ServedVersion])> {
        self.0.iter().map(|(group, versions)| (group.as_str(), versions.as_slice()))
    }

    /// The resources whose objects can be listed. Of each group, the version that the API server prefers comes first.
    pub(super) fn listable(&self) -> Vec<Resource> {
        let mut found = Vec::new();
        for (group, version) in self.all().flat_map(|(group, versions)| versions.iter().map(move |one| (group, one))) {
            let resources = version.resources.iter().filter(|(_, resource)| resource.is_listable);
            found.extend(resources.map(|(name, resource)| Resource {
                group: group.to_owned(),
                version: version.name.clone(),
                name: name.clone(),
                kind: resource.kind.clone(),
                namespaced: resource.is_namespaced,
            }));
        }
        found
    }
}

fn version(found: APIVersionDiscovery) -> Option<ServedVersion> {
    Some(ServedVersion {
        name: found.version?,
        is_stale: found.freshness.as_deref() == Some("Stale"),
        resources: found.resources.into_iter().filter_map(resource).collect(),
    })
}

fn resource(found: APIResourceDiscovery) -> Option<(String, ServedResource)> {
    let kind = found.response_kind.and_then(|kind| kind.kind).unwrap_or_default();
    let names = found.short_names.into_iter().chain(found.singular_resource).chain([kind.clone()]);
    let names = names.map(|name| name.to_lowercase()).filter(|name| !name.is_empty());
    let resource = ServedResource {
        is_namespaced: found.scope.as_deref() == Some("Namespaced"),
        is_listable: found.verbs.iter().any(|verb| verb == "list"),
        other_names: names.collect(),
        subresources: found.subresources.into_iter().filter_map(|one| one.subresource).collect(),
        kind,
    };
    Some((found.resource?, resource))
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn one(resource: &str, kind: &str, scope: &str, subresources: &[&str]) -> Value {
        let subresources: Vec<_> = subresources.iter().map(|name| json!({"subresource": name, "verbs": []})).collect();
        json!({
            "resource": resource, "responseKind": {"group": "", "version": "", "kind": kind}, "scope": scope,
            "singularResource": kind.to_lowercase(), "verbs": ["create", "get", "list"], "shortNames": [&kind[..2]],
            "subresources": subresources,
        })
    }

    /// A small cluster. `freshness` is that of its metrics server, an aggregated API server.
    pub(in crate::checks) fn served(freshness: &str) -> Served {
        let list = |groups: Value| serde_json::from_value::<APIGroupDiscoveryList>(json!({"items": groups}));
        let core = json!([{"metadata": {"creationTimestamp": null}, "versions": [{"version": "v1", "freshness": "Current", "resources": [
            one("pods", "Pod", "Namespaced", &["exec", "log", "status"]),
            one("configmaps", "ConfigMap", "Namespaced", &[]),
            one("namespaces", "Namespace", "Cluster", &["finalize"]),
            {"resource": "bindings", "responseKind": {"kind": "Binding"}, "scope": "Namespaced", "verbs": ["create"]},
        ]}]}]);
        let others = json!([
            {"metadata": {"name": "apps"}, "versions": [
                {"version": "v1", "resources": [one("deployments", "Deployment", "Namespaced", &["scale"])]},
            ]},
            {"metadata": {"name": "autoscaling"}, "versions": [
                {"version": "v2", "resources": [one("horizontalpodautoscalers", "HorizontalPodAutoscaler", "Namespaced", &[])]},
                {"version": "v1", "resources": [one("horizontalpodautoscalers", "HorizontalPodAutoscaler", "Namespaced", &[])]},
            ]},
            {"metadata": {"name": "metrics.k8s.io"}, "versions": [
                {"version": "v1beta1", "freshness": freshness, "resources": []},
            ]},
        ]);
        Served::of(list(core).expect("a list"), list(others).expect("a list")).expect("resources")
    }

    #[test]
    fn what_can_be_listed_comes_in_the_order_of_preference() {
        let listable = served("Current").listable();
        let names: Vec<_> = listable.iter().map(|one| format!("{}/{}", one.title(), one.version)).collect();
        assert_eq!(
            names,
            [
                "configmaps/v1",
                "namespaces/v1",
                "pods/v1",
                "deployments.apps/v1",
                "horizontalpodautoscalers.autoscaling/v2",
                "horizontalpodautoscalers.autoscaling/v1",
            ]
        );
        assert_eq!((listable[2].kind.as_str(), listable[2].namespaced, listable[1].namespaced), ("Pod", true, false));
    }

    #[test]
    fn an_answer_without_groups_says_nothing() {
        let empty = APIGroupDiscoveryList::default;
        assert_eq!(Served::of(empty(), empty()), None);
    }
}
