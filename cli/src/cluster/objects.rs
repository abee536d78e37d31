//! The resources that a cluster has, and their objects page by page.

use std::collections::BTreeSet;

use portcullis_kubernetes::discover;
use portcullis_matching::Resource;
use serde_json::Value;

use super::{Action, Cluster, ClusterError};

/// The resources of a cluster.
#[derive(Debug, Default)]
pub struct Discovered {
    /// Those that can be listed. Of each group, the version that the API server prefers comes first.
    pub resources: Vec<Resource>,
    /// Why the resources of some groups are not known, for instance because an aggregated API server is down.
    pub hidden: Vec<ClusterError>,
}

/// Some objects of a resource.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// The namespace; `None` for all.
    pub namespace: Option<String>,
    /// A label selector as in a query; empty for all.
    pub labels: String,
}

/// A page of a list.
#[derive(Debug, Default)]
pub struct Page {
    /// Its objects, each with its kind.
    pub objects: Vec<Value>,
    /// Where the next page begins; empty after the last.
    pub next: String,
    /// How many objects there are after this page; `None` if the API server does not say, as for lists with a selector.
    pub remaining: Option<u64>,
}

impl Page {
    /// Reads the answer of an API server. Objects in a list lack their kind, so it is given.
    pub(super) fn of(mut list: Value, kind: &str) -> Self {
        let api_version = list["apiVersion"].clone();
        let items = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
        let objects = items.into_iter().map(|mut item| {
            item["apiVersion"] = api_version.clone();
            item["kind"] = kind.into();
            item
        });
        let (objects, metadata) = (objects.collect(), &list["metadata"]);
        let next = metadata["continue"].as_str().unwrap_or_default().to_owned();
        let remaining = if next.is_empty() { Some(0) } else { metadata["remainingItemCount"].as_u64() };
        Self { objects, next, remaining }
    }
}

impl Cluster {
    /// The resources of the groups and versions for which `is_wanted` is true.
    ///
    /// # Errors
    /// When the API server does not say which groups it has.
    pub async fn resources(&self, is_wanted: impl Fn(&str, &str) -> bool) -> Result<Discovered, ClusterError> {
        let failed = |error: kube::Error| ClusterError::other(&self.server, &error);
        let found = discover(&self.client, is_wanted).await.map_err(failed)?;
        let resources = found.resources.into_iter().map(|(group, version, found)| Resource {
            group,
            version,
            name: found.name,
            kind: found.kind,
            namespaced: found.namespaced,
        });
        Ok(Discovered {
            resources: resources.collect(),
            hidden: found.hidden.into_iter().map(|(_, error)| failed(error)).collect(),
        })
    }

    /// One page of the objects of a resource. `next` is empty for the first.
    ///
    /// # Errors
    /// When the user may not list them, or the cluster does not answer, or the list is too old to go on ([`ClusterError::is_expired`]).
    pub async fn objects(&self, resource: &Resource, selection: &Selection, next: &str) -> Result<Page, ClusterError> {
        let action = Action {
            verb: "list",
            version: resource.api_version(),
            resource: resource.name.clone().into(),
            namespace: selection.namespace.clone().filter(|_| resource.namespaced),
            name: None,
        };
        let selector = [("labelSelector", selection.labels.as_str())];
        let query = if selection.labels.is_empty() { &[][..] } else { &selector };
        self.page(&action, &resource.kind, query, next).await
    }

    /// The names of the namespaces that a label selector (as in a query) selects.
    ///
    /// # Errors
    /// When the user may not list them, or the cluster does not answer.
    pub async fn namespaces(&self, labels: &str) -> Result<BTreeSet<String>, ClusterError> {
        let action = Action {
            verb: "list",
            version: "v1".to_owned(),
            resource: "namespaces".into(),
            namespace: None,
            name: None,
        };
        let objects = self.list(&action, "Namespace", &[("labelSelector", labels)]).await?;
        Ok(objects.iter().filter_map(|object| object["metadata"]["name"].as_str()).map(str::to_owned).collect())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_page_says_where_the_list_goes_on_and_how_much_is_left() {
        let page = |metadata: Value| {
            Page::of(json!({"apiVersion": "v1", "metadata": metadata, "items": [{"metadata": {"name": "a"}}]}), "Pod")
        };
        let first = page(json!({"continue": "token", "remainingItemCount": 7}));
        assert_eq!(first.objects, [json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}})]);
        assert_eq!((first.next.as_str(), first.remaining), ("token", Some(7)));
        assert_eq!(page(json!({"continue": "token"})).remaining, None);
        let last = page(json!({"resourceVersion": "1"}));
        assert_eq!((last.next.as_str(), last.remaining), ("", Some(0)));
    }
}
