//! Which resources an API server has.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIResource, APIResourceList};
use kube::Client;

use crate::{CallError, Retry};

/// How often the resources of a group and version are asked for.
const TRIES: u32 = 3;

/// The resources of an API server.
#[derive(Debug, Default)]
pub struct Discovery {
    /// The resources whose objects can be listed, each with its group (empty for the core group) and version. For each group, the
    /// version that the API server prefers comes first.
    pub resources: Vec<(String, String, APIResource)>,
    /// The groups and versions whose resources are unknown because a server behind the API server is unavailable, and
    /// the errors.
    pub hidden: Vec<(String, kube::Error)>,
}

/// Asks for the resources of the groups and versions for which `is_wanted` is true. The group is empty for the core
/// group.
///
/// # Errors
/// When the API server does not say which groups it has.
pub async fn discover(client: &Client, is_wanted: impl Fn(&str, &str) -> bool) -> kube::Result<Discovery> {
    let mut versions = Vec::new();
    for version in client.list_core_api_versions().await?.versions {
        versions.push((String::new(), version));
    }
    for group in client.list_api_groups().await?.groups {
        let preferred = group.preferred_version.map(|preferred| preferred.version);
        let mut all: Vec<String> = group.versions.into_iter().map(|one| one.version).collect();
        all.sort_by_key(|version| Some(version) != preferred.as_ref());
        versions.extend(all.into_iter().map(|version| (group.name.clone(), version)));
    }
    versions.retain(|(group, version)| is_wanted(group, version));
    let mut discovery = Discovery::default();
    for (group, version) in versions {
        let name = if group.is_empty() { version.clone() } else { format!("{group}/{version}") };
        match resources(client, &group, &version, &name).await {
            Ok(listed) => {
                let listable = listed.resources.into_iter().filter(can_be_listed);
                discovery.resources.extend(listable.map(|resource| (group.clone(), version.clone(), resource)));
            }
            Err(error) => discovery.hidden.push((name, error)),
        }
    }
    Ok(discovery)
}

/// The resources of a group and version. A call that failed is repeated, unless the API server refused it for good: what is unknown here stays
/// hidden until the next discovery, which may be minutes away.
async fn resources(client: &Client, group: &str, version: &str, name: &str) -> kube::Result<APIResourceList> {
    let mut retry = Retry::default();
    for _ in 1..TRIES {
        match listed(client, group, version, name).await {
            Err(error) if !is_refused(&error) => {
                let error = CallError::from(error);
                tracing::debug!(version = name, %error, "failed to ask for resources, trying again");
                tokio::time::sleep(retry.pause(&error, fastrand::f64())).await;
            }
            result => return result,
        }
    }
    listed(client, group, version, name).await
}

async fn listed(client: &Client, group: &str, version: &str, name: &str) -> kube::Result<APIResourceList> {
    if group.is_empty() {
        client.list_core_api_resources(version).await
    } else {
        client.list_api_group_resources(name).await
    }
}

/// Whether the API server says that there is no such version, or that this program may not see it.
fn is_refused(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 401 | 403 | 404))
}

/// Whether it is not a subresource, whose name has a slash, and its objects can be listed.
fn can_be_listed(resource: &APIResource) -> bool {
    !resource.name.contains('/') && resource.verbs.iter().any(|verb| verb == "list")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_objects_that_can_be_listed_count() {
        let resource = |name: &str, verbs: &[&str]| APIResource {
            name: name.to_owned(),
            verbs: verbs.iter().map(|&verb| verb.to_owned()).collect(),
            ..APIResource::default()
        };
        assert!(can_be_listed(&resource("pods", &["get", "list"])));
        assert!(!can_be_listed(&resource("pods/status", &["get", "list"])));
        assert!(!can_be_listed(&resource("tokenreviews", &["create"])));
    }
}
