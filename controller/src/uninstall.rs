//! Removes what would block a cluster after the installation is gone: first the controllers, then the webhooks, then the finalizers of
//! policies, and then the Lease of the reporters. Last, the status of each policy that they called says that nothing does.
//!
//! The order matters: controllers would restore what is removed, and a webhook that is not answered blocks more than a policy that
//! cannot be deleted. Policies, revisions and Secrets stay.

mod status;
mod tell;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client, Resource};
use portcullis_api::kubernetes::Outline;
use portcullis_api::{Kind, PolicyReference};
use portcullis_kubernetes::CONTROLLER_MANAGER;
use portcullis_util::Backoff;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::certificates::own_webhooks::few;
use crate::execute::{kept, release};
use crate::watch::resource;
use crate::world::{Collection, PolicyView, WebhookView};

/// How long to wait for the end of the controllers. Those on a lost node never report it.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often to ask the API server whether they have ended.
const PACE: Duration = Duration::from_millis(500);
/// The number of rounds before giving up.
const ROUNDS: u32 = 20;
/// The number of objects in one answer of the API server. An object can have 1.5 MB.
const PAGE: u32 = 20;
/// The wait after a round that found something or failed.
const BACKOFF: Backoff = Backoff { shortest: Duration::from_millis(500), longest: Duration::from_secs(5) };

/// The chart's RoleBinding by which reporters may write their Lease.
const LEADERS_RIGHTS: &str = "portcullis-reporter-leader";
/// How often to look for the Lease before leaving it.
const LEASE_ROUNDS: u32 = 4;
/// How long reporters may still make a Lease after they have lost the right to: until every API server has noticed.
const LEASE_PAUSE: Duration = Duration::from_secs(3);

/// What is to be uninstalled.
pub(crate) struct Uninstall {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) policy_server: String,
    /// The name of the controllers' Deployment.
    pub(crate) deployment: String,
}

impl Uninstall {
    /// Removes everything, until a round finds nothing more.
    ///
    /// # Errors
    /// When there is still something after many rounds; it names the last failure.
    pub(crate) async fn run(&self) -> Result<()> {
        let mut last = None;
        for round in 1..=ROUNDS {
            match self.round().await {
                Ok(0) => {
                    tracing::info!("no webhook and no finalizer of this policy server is left");
                    let had_leader = self.remove_lease().await;
                    self.tell(had_leader).await;
                    return Ok(());
                }
                Ok(removed) => tracing::info!(removed, "removed; looking for more"),
                Err(error) => {
                    tracing::warn!(error = format!("{error:#}"), "trying again");
                    last = Some(error);
                }
            }
            tokio::time::sleep(BACKOFF.wait(round, fastrand::f64())).await;
        }
        match last {
            Some(error) => Err(error.context("gave up")),
            None => {
                bail!("gave up: what is removed comes back; is a controller of another installation running?")
            }
        }
    }

    /// Removes what it finds, and returns how many objects that were. It fails at the end if finalizers keep webhooks, and names them.
    async fn round(&self) -> Result<usize> {
        self.end_controllers().await?;
        let (mut removed, mut left) = (0, Vec::new());
        for collection in Collection::ALL {
            if let Collection::Webhooks(kind) = collection {
                let name = |object: Outline| {
                    let view = WebhookView::read(kind, &object);
                    view.filter(|webhook| webhook.concerns(&self.policy_server)).map(|webhook| webhook.name)
                };
                for webhook in self.list(collection, name).await? {
                    match self.delete_webhook(collection, &webhook).await? {
                        None => removed += 1,
                        Some(problem) => left.push(format!("webhook configuration {webhook}: {problem}")),
                    }
                }
            }
        }
        for collection in Collection::ALL {
            if let Collection::Policies(kind) = collection {
                removed += self.release_all(collection, kind).await?;
            }
        }
        if !left.is_empty() {
            bail!("{}", few(&left.iter().map(String::as_str).collect::<Vec<_>>()));
        }
        Ok(removed)
    }

    async fn end_controllers(&self) -> Result<()> {
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), &self.namespace);
        let what = || format!("Deployment {}", self.deployment);
        let start = Instant::now();
        let mut is_told = false;
        loop {
            match deployments.get_metadata(&self.deployment).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
                found => drop(found.with_context(what)?),
            }
            if !is_told {
                // It is deleted after its pods, whose end is waited for.
                match deployments.delete(&self.deployment, &DeleteParams::foreground()).await {
                    Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
                    deleted => drop(deleted.with_context(what)?),
                }
                tracing::info!(deployment = self.deployment, "deleting the controllers");
                is_told = true;
            }
            if start.elapsed() > PATIENCE {
                tracing::warn!(
                    deployment = self.deployment,
                    "continuing, although some controllers have not ended yet"
                );
                return Ok(());
            }
            tokio::time::sleep(PACE).await;
        }
    }

    /// Removes the Lease of the reporters. The chart's rule that compares writers of a status with its holder stays in the cluster, and the
    /// policy server that is installed next in this namespace has the same account, whatever its name is: it could write no status while
    /// there is a Lease with the name of a pod that is gone.
    ///
    /// A failure is only logged, since the Lease blocks nothing else and can be deleted by hand. Returns whether a reporter may still lead.
    async fn remove_lease(&self) -> bool {
        let lease = format!("portcullis-{}-reporter", self.policy_server);
        let mut had_leader = false;
        for _ in 0..LEASE_ROUNDS {
            match self.lease_round(&lease).await {
                Ok(false) => return had_leader,
                Ok(true) => had_leader = true,
                Err(error) => tracing::warn!(error = format!("{error:#}"), "trying again"),
            }
            tokio::time::sleep(LEASE_PAUSE).await;
        }
        tracing::warn!(lease, "it may be left: delete it before another policy server is installed in this namespace");
        true
    }

    /// Removes the Lease, and before it the right to make another one, which Helm removes only after this. Returns whether there was either.
    async fn lease_round(&self, lease: &str) -> Result<bool> {
        let had_rights = self.remove::<RoleBinding>(LEADERS_RIGHTS).await?;
        let had_lease = self.remove::<Lease>(lease).await?;
        Ok(had_rights || had_lease)
    }

    /// Removes an object of the installation's namespace, and returns whether it was there.
    async fn remove<K>(&self, name: &str) -> Result<bool>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), &self.namespace);
        let what = || format!("{} {name}", K::kind(&()));
        match api.get_metadata(name).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(false),
            found => drop(found.with_context(what)?),
        }
        match api.delete(name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(false),
            deleted => drop(deleted.with_context(what)?),
        }
        tracing::info!("removed the {}", what());
        Ok(true)
    }

    /// Deletes a webhook, and returns why it is still there, if it is.
    async fn delete_webhook(&self, collection: Collection, name: &str) -> Result<Option<String>> {
        let deleted = self.api(collection).delete(name, &DeleteParams::default()).await;
        let answer = match deleted {
            Err(kube::Error::Api(status)) if status.is_not_found() => None,
            deleted => deleted.with_context(|| format!("webhook configuration {name}"))?.left(),
        };
        let problem = answer.as_ref().and_then(kept);
        if problem.is_none() {
            tracing::info!(webhook = name, "removed");
        }
        Ok(problem)
    }

    /// Removes our finalizer from the policies of a kind, and returns from how many. Users decide how many other finalizers there are, so only
    /// those of one page are in memory.
    async fn release_all(&self, collection: Collection, kind: Kind) -> Result<usize> {
        let (mut removed, mut next) = (0, Some(String::new()));
        while let Some(token) = next {
            let (objects, after) = self.page(collection, &token).await?;
            next = after;
            for object in objects {
                let policy = PolicyView::read(kind, &object).filter(|policy| is_held(policy, &self.policy_server));
                let Some(policy) = policy.map(|policy| policy.reference) else { continue };
                if let Some((patch, _)) = release(&policy, &object) {
                    self.release(collection, &policy, &patch).await?;
                    removed += 1;
                }
            }
        }
        Ok(removed)
    }

    async fn release(&self, collection: Collection, policy: &PolicyReference, patch: &Value) -> Result<()> {
        let patched = self.policies(collection, policy).patch(&policy.name, &manager(), &Patch::Merge(patch)).await;
        match patched {
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            patched => drop(patched.with_context(|| format!("policy {}", policy.name))?),
        }
        tracing::info!(policy = policy.name, namespace = policy.namespace, "removed the finalizer");
        Ok(())
    }

    /// What `view` makes of the objects of a collection, which are not kept.
    async fn list<T>(&self, collection: Collection, view: impl Fn(Outline) -> Option<T>) -> Result<Vec<T>> {
        let (mut found, mut next) = (Vec::new(), Some(String::new()));
        while let Some(token) = next {
            let (objects, after) = self.page(collection, &token).await?;
            found.extend(objects.into_iter().filter_map(&view));
            next = after;
        }
        Ok(found)
    }

    /// The objects of a page of a collection, and the token of the next page, if there is one; no objects if the API server does not know its
    /// kind. The token of the first page is empty.
    async fn page(&self, collection: Collection, token: &str) -> Result<(Vec<Outline>, Option<String>)> {
        let token = Some(token.to_owned()).filter(|token| !token.is_empty());
        let params = ListParams { continue_token: token, ..ListParams::default() };
        let page = match self.api(collection).list(&params.limit(PAGE)).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => return Ok((Vec::new(), None)),
            page => page.with_context(|| format!("the list of {}", resource(collection).plural))?,
        };
        Ok((page.items, page.metadata.continue_.filter(|token| !token.is_empty())))
    }

    fn api(&self, collection: Collection) -> Api<Outline> {
        Api::all_with(self.client.clone(), &resource(collection))
    }

    /// The policies of the namespace of this one, or those of the cluster.
    fn policies(&self, collection: Collection, policy: &PolicyReference) -> Api<Outline> {
        match &policy.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource(collection)),
            None => self.api(collection),
        }
    }
}

fn manager() -> PatchParams {
    PatchParams { field_manager: Some(CONTROLLER_MANAGER.to_owned()), ..PatchParams::default() }
}

/// Whether a policy is one of this policy server and has our finalizer. One that has so many finalizers that not all are known keeps them.
fn is_held(policy: &PolicyView, policy_server: &str) -> bool {
    policy.policy_server == policy_server && policy.is_held && !policy.is_cut
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::http::{Method, StatusCode, Uri};
    use portcullis_api::kubernetes::FINALIZER;
    use serde_json::json;

    use super::*;

    fn is_ours(spec: Value, finalizers: &[&str]) -> bool {
        let object = json!({
            "apiVersion": "policies.portcullis.dev/v1alpha1", "kind": "ClusterPolicy",
            "metadata": { "name": "a", "uid": "u", "resourceVersion": "7", "finalizers": finalizers },
            "spec": spec,
        });
        let object = serde_json::from_value(object).expect("an object");
        is_held(&PolicyView::read(Kind::ClusterPolicy, &object).expect("a policy"), "default")
    }

    #[test]
    fn policies_of_others_and_free_ones_are_left_alone() {
        assert!(is_ours(json!({}), &["example.com/other", FINALIZER]));
        assert!(!is_ours(json!({"policyServer": "two"}), &[FINALIZER]));
        assert!(!is_ours(json!({}), &["example.com/other"]));
    }

    #[tokio::test]
    async fn the_finalizers_that_keep_a_webhook_are_named_and_the_others_are_removed() {
        let deleted = Arc::new(Mutex::new(Vec::new()));
        let paths = Arc::clone(&deleted);
        let names = ["0", "1"].map(|last| format!("portcullis-default-000000000000000{last}"));
        let webhook = |name: &str| {
            let metadata = json!({
                "name": name, "uid": name, "finalizers": ["example.com/hold"], "deletionTimestamp": "2026-01-01T00:00:00Z",
            });
            json!({"metadata": metadata, "webhooks": []})
        };
        let (kept, items) = (webhook(&names[0]).to_string(), names.each_ref().map(|name| webhook(name)));
        let answer = move |method: Method, uri: Uri| async move {
            let path = uri.path();
            if method == Method::DELETE {
                paths.lock().expect("a lock").push(path.rsplit('/').next().unwrap_or_default().to_owned());
                let success = json!({"kind": "Status", "status": "Success"}).to_string();
                return (StatusCode::OK, if path.ends_with('0') { kept } else { success });
            }
            if path.contains("/deployments/") {
                let absent = json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404});
                return (StatusCode::NOT_FOUND, absent.to_string());
            }
            let items = if path.ends_with("/validatingwebhookconfigurations") { &items[..] } else { &[] };
            (StatusCode::OK, json!({"metadata": {}, "items": items}).to_string())
        };
        let client = Client::new(axum::Router::new().fallback(answer), "default");
        let [namespace, policy_server, deployment] = ["portcullis", "default", "controller"].map(str::to_owned);
        let uninstall = Uninstall { client, namespace, policy_server, deployment };
        let error = uninstall.round().await.expect_err("one is still there");
        let problem = "it is being deleted, and these finalizers keep it: example.com/hold; remove them";
        assert_eq!(error.to_string(), format!("webhook configuration {}: {problem}", names[0]));
        assert_eq!(*deleted.lock().expect("a lock"), names);
    }
}
