//! Revisions of a policy: what its generations were, kept in the installation's namespace.

use portcullis_api::{Kind, PolicyReference};
use serde_json::Value;

use super::{Action, Cluster, ClusterError};
use crate::item::Item;

impl Cluster {
    /// The spec that a generation of a policy served, or was to serve; `None` if it has no revision.
    ///
    /// # Errors
    /// When the user may not read it, or the cluster does not answer.
    pub async fn revision_spec(
        &self,
        item: &Item,
        generation: i64,
        namespace: &str,
    ) -> Result<Option<Value>, ClusterError> {
        let action = Action {
            verb: "get",
            version: "apps/v1".to_owned(),
            resource: "controllerrevisions".into(),
            namespace: Some(namespace.to_owned()),
            name: Some(reference(item).revision_name(generation)),
        };
        match self.get(&action, &[]).await {
            Ok(object) => Ok(Some(object["data"]["spec"].clone())),
            Err(ClusterError::Absent { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether a generation certainly has no revision any longer. False if that is not known: the user may not look, or the namespace does not
    /// even have the newest revision, so it is not that of the installation.
    ///
    /// # Errors
    /// When the cluster does not answer.
    pub async fn is_gone(&self, item: &Item, generation: i64, namespace: &str) -> Result<bool, ClusterError> {
        for (generation, is_there) in [(item.generation(), true), (generation, false)] {
            match self.revision_spec(item, generation, namespace).await {
                Ok(spec) if spec.is_some() == is_there => {}
                Ok(_) | Err(ClusterError::Forbidden { .. }) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// The policy as revisions name it.
fn reference(item: &Item) -> PolicyReference {
    PolicyReference {
        kind: if item.id.namespace().is_some() { Kind::Policy } else { Kind::ClusterPolicy },
        namespace: item.id.namespace().map(str::to_owned),
        name: item.id.name().to_owned(),
        uid: item.uid().to_owned(),
    }
}
