//! Policies of a cluster: finding, listing, setting `rollbackTo`, and asking for a scan of the audit.

use http::Method;
use jiff::Timestamp;
use portcullis_api::API_VERSION;
use portcullis_api::kubernetes::AUDIT_REQUESTED_ANNOTATION;
use portcullis_contract::PolicyId;
use serde_json::{Value, json};

use super::{Action, Cluster, ClusterError};
use crate::item::Item;
use crate::name::Wanted;

/// The field manager of these writes.
const FIELD_MANAGER: &str = "portcullis-cli";

/// Policies, and why some that may be there are not among them.
#[derive(Debug, Default)]
pub struct Found {
    /// The policies, by id.
    pub items: Vec<Item>,
    /// What could not be read.
    pub hidden: Vec<ClusterError>,
}

impl Cluster {
    /// The ClusterPolicies if `cluster_wide`, and the Policies of the namespace or of all namespaces. A kind that the user may not list is left
    /// out and named in [`Found::hidden`], unless there is nothing that the user may list.
    ///
    /// # Errors
    /// When the cluster does not answer, or nothing may be listed.
    pub async fn policies(&self, all_namespaces: bool, cluster_wide: bool) -> Result<Found, ClusterError> {
        let namespace = (!all_namespaces).then(|| self.namespace.clone());
        let mut found = Found::default();
        let mut kinds = vec![("Policy", namespace)];
        if cluster_wide {
            kinds.insert(0, ("ClusterPolicy", None));
        }
        let asked = kinds.len();
        for (kind, namespace) in kinds {
            match self.list(&action("list", kind, namespace, None), kind, &[]).await {
                Ok(objects) => found.items.extend(objects.into_iter().filter_map(Item::of_object)),
                Err(error) if error.is_forbidden() => found.hidden.push(error),
                Err(error) => return Err(error),
            }
        }
        if found.hidden.len() == asked
            && let Some(error) = found.hidden.pop()
        {
            return Err(error);
        }
        found.items.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(found)
    }

    /// The policy that the user means.
    ///
    /// # Errors
    /// When there is no such policy, or several, or the cluster does not answer.
    pub async fn find(&self, wanted: &Wanted) -> anyhow::Result<Item> {
        let mut found = Vec::new();
        let mut forbidden = None;
        let candidates = wanted.candidates(&self.namespace)?;
        for id in &candidates {
            match self.policy(id).await {
                Ok(item) => found.push(item),
                Err(ClusterError::Absent { .. }) => {}
                // If the user may read only one of the two kinds, that one is meant.
                Err(error) if error.is_forbidden() => forbidden = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        match (found.len(), forbidden) {
            (1, _) => Ok(found.remove(0)),
            (0, Some(error)) => Err(error.into()),
            (0, None) => {
                let looked = candidates.iter().map(PolicyId::as_str).collect::<Vec<_>>().join(" nor ");
                let neither = if candidates.len() > 1 { "is neither" } else { "is no" };
                let known = format!("{neither} {looked}; `portcullis get -A` lists all");
                Err(wanted.not_found("the cluster", &known).into())
            }
            _ => Err(wanted.ambiguous(found.iter().map(|item| &item.id)).into()),
        }
    }

    /// One policy.
    ///
    /// # Errors
    /// When there is no such policy, or the cluster does not answer.
    pub async fn policy(&self, id: &PolicyId) -> Result<Item, ClusterError> {
        let action = of(id, "get");
        let object = self.get(&action, &[]).await?;
        Item::of_object(object).ok_or(ClusterError::Absent { action })
    }

    /// Sets or removes `spec.rollbackTo`, unless the policy has another generation by now. Returns the changed policy.
    ///
    /// # Errors
    /// When the API server refuses it; also with code 422 if the generation has changed.
    pub async fn set_rollback(&self, item: &Item, to: Option<i64>, dry_run: bool) -> Result<Item, ClusterError> {
        let action = of(&item.id, "patch");
        let mut query = vec![("fieldManager", FIELD_MANAGER)];
        if dry_run {
            query.push(("dryRun", "All"));
        }
        let body = ("application/json-patch+json", patch(item, to).to_string().into_bytes());
        let object = self.ask(&action, Method::PATCH, &query, Some(body)).await?;
        Item::of_object(object).ok_or(ClusterError::Absent { action })
    }

    /// Asks for a scan of the audit, and returns the request: the time by this machine's clock.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn request_audit(&self, id: &PolicyId) -> Result<Timestamp, ClusterError> {
        let now = Timestamp::now();
        let patch = json!({"metadata": {"annotations": {AUDIT_REQUESTED_ANNOTATION: now}}});
        let body = ("application/merge-patch+json", patch.to_string().into_bytes());
        self.ask(&of(id, "patch"), Method::PATCH, &[("fieldManager", FIELD_MANAGER)], Some(body)).await?;
        Ok(now)
    }
}

/// The patch tests the uid and the generation, but not the resource version, which changes with every write to the status.
fn patch(item: &Item, to: Option<i64>) -> Value {
    let change = match to {
        Some(to) => json!({"op": "add", "path": "/spec/rollbackTo", "value": to}),
        None => json!({"op": "remove", "path": "/spec/rollbackTo"}),
    };
    json!([
        {"op": "test", "path": "/metadata/uid", "value": item.uid()},
        {"op": "test", "path": "/metadata/generation", "value": item.generation()},
        change,
    ])
}

fn of(id: &PolicyId, verb: &'static str) -> Action {
    let namespace = id.namespace().map(str::to_owned);
    let kind = if namespace.is_some() { "Policy" } else { "ClusterPolicy" };
    action(verb, kind, namespace, Some(id.name().to_owned()))
}

fn action(verb: &'static str, kind: &str, namespace: Option<String>, name: Option<String>) -> Action {
    let resource = if kind == "Policy" { "policies" } else { "clusterpolicies" };
    Action { verb, version: API_VERSION.to_owned(), resource: resource.into(), namespace, name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollback_is_one_field_and_only_of_the_generation_that_was_seen() {
        let item = crate::item::tests::failing();
        assert_eq!(
            patch(&item, Some(3)),
            json!([
                {"op": "test", "path": "/metadata/uid", "value": "9b2c41d2-a1f0-4e17-8000-0123456789ab"},
                {"op": "test", "path": "/metadata/generation", "value": 4},
                {"op": "add", "path": "/spec/rollbackTo", "value": 3},
            ])
        );
        assert_eq!(patch(&item, None)[2], json!({"op": "remove", "path": "/spec/rollbackTo"}));
    }
}
