//! The resources that a cluster has, and their objects page by page.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Action, Cluster, ClusterError};

/// A resource whose objects can be listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// Its API group; empty for the core group.
    pub group: String,
    /// The version in which its objects are read.
    pub version: String,
    /// Its plural name.
    pub name: String,
    /// The kind of its objects.
    pub kind: String,
    /// Whether its objects are in namespaces.
    pub namespaced: bool,
}

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

impl Resource {
    /// `group/version`, or the version for the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Its name for people: `pods`, `deployments.apps`.
    pub fn title(&self) -> String {
        if self.group.is_empty() { self.name.clone() } else { format!("{}.{}", self.name, self.group) }
    }
}

impl Cluster {
    /// The resources of those groups and versions that are wanted.
    ///
    /// # Errors
    /// When the API server does not say which groups it has.
    pub async fn resources(&self, is_wanted: impl Fn(&str, &str) -> bool) -> Result<Discovered, ClusterError> {
        let failed = |error: kube::Error| ClusterError::other(&self.server, &error);
        let mut versions = Vec::new();
        for version in self.client.list_core_api_versions().await.map_err(failed)?.versions {
            versions.push((String::new(), version));
        }
        for group in self.client.list_api_groups().await.map_err(failed)?.groups {
            let preferred = group.preferred_version.map(|preferred| preferred.version);
            let mut all: Vec<String> = group.versions.into_iter().map(|one| one.version).collect();
            all.sort_by_key(|version| Some(version) != preferred.as_ref());
            versions.extend(all.into_iter().map(|version| (group.name.clone(), version)));
        }
        let mut discovered = Discovered::default();
        for (group, version) in versions.into_iter().filter(|(group, version)| is_wanted(group, version)) {
            let listed = if group.is_empty() {
                self.client.list_core_api_resources(&version).await
            } else {
                self.client.list_api_group_resources(&format!("{group}/{version}")).await
            };
            let listed = match listed {
                Ok(listed) => listed,
                Err(error) => {
                    discovered.hidden.push(failed(error));
                    continue;
                }
            };
            let can_be_listed = listed.resources.into_iter().filter(|one| {
                // What has a slash is a subresource.
                !one.name.contains('/') && one.verbs.iter().any(|verb| verb == "list")
            });
            discovered.resources.extend(can_be_listed.map(|one| Resource {
                group: group.clone(),
                version: version.clone(),
                name: one.name,
                kind: one.kind,
                namespaced: one.namespaced,
            }));
        }
        Ok(discovered)
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
