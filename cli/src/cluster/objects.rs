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
    /// What could not be asked for its resources, as a server behind the API server is away.
    pub hidden: Vec<ClusterError>,
}

/// Some objects of a resource.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// The namespace; absent for all.
    pub namespace: Option<String>,
    /// A label selector in the form of queries; empty for all.
    pub labels: String,
}

impl Cluster {
    /// The resources of those groups and versions that are wanted.
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

    /// One page of the objects of a resource, and where the next one begins; that is empty after the last. `next` is empty for the first.
    ///
    /// # Errors
    /// When the user may not list them, or the cluster does not answer. With code 410 the list is too old to go on.
    pub async fn objects(
        &self,
        resource: &Resource,
        selection: &Selection,
        next: &str,
    ) -> Result<(Vec<Value>, String), ClusterError> {
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

    /// The names of the namespaces that a label selector in the form of queries selects.
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
