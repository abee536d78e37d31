//! Removing what would block a cluster when the installation is gone: the controllers end, then the webhooks go, then the
//! finalizers of policies.
//!
//! In this order, as controllers would make again what is removed, and as a webhook that nobody answers blocks more than a policy that
//! cannot be deleted. Policies, revisions and Secrets stay.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client};
use portcullis_api::kubernetes::{BoundedObject, FINALIZER};
use portcullis_kubernetes::{Backoff, CONTROLLER_MANAGER, random};
use serde_json::{Value, json};

use crate::watch::resource;
use crate::world::{PolicyView, Source, WebhookView};

/// How long controllers are waited for. Those of a node that is lost never tell that they have ended.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the API server is asked whether they have.
const PACE: Duration = Duration::from_millis(500);
/// Rounds until it is given up.
const ROUNDS: u32 = 20;
/// Objects in one answer of the API server.
const PAGE: u32 = 200;
/// Waits after rounds that found something or failed.
const BACKOFF: Backoff = Backoff { shortest: Duration::from_millis(500), longest: Duration::from_secs(5) };

/// What is removed, and for whom.
pub(crate) struct Uninstall {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) policy_server: String,
    /// The Deployment of the controllers.
    pub(crate) deployment: String,
}

impl Uninstall {
    /// Removes everything, and looks once more whether all has gone.
    ///
    /// # Errors
    /// When something is still there after many rounds; names what the last one met.
    pub(crate) async fn run(&self) -> Result<()> {
        let mut last = None;
        for round in 1..=ROUNDS {
            match self.round().await {
                Ok(0) => {
                    tracing::info!("no webhook and no finalizer of this policy server is left");
                    return Ok(());
                }
                Ok(removed) => tracing::info!(removed, "removed; looking whether that was all"),
                Err(error) => {
                    tracing::warn!(error = format!("{error:#}"), "trying again");
                    last = Some(error);
                }
            }
            tokio::time::sleep(BACKOFF.wait(round, random())).await;
        }
        match last {
            Some(error) => Err(error.context("gave up")),
            None => {
                bail!("gave up: somebody makes again what is removed; is a controller of another installation running?")
            }
        }
    }

    /// How many objects it changed.
    async fn round(&self) -> Result<usize> {
        self.end_controllers().await?;
        let mut removed = 0;
        for source in Source::ALL {
            if let Source::Webhooks(kind) = source {
                for object in self.list(source).await? {
                    let view = WebhookView::read(kind, &object.0);
                    if let Some(webhook) = view.filter(|webhook| webhook.concerns(&self.policy_server)) {
                        self.delete_webhook(source, &webhook.name).await?;
                        removed += 1;
                    }
                }
            }
        }
        for source in Source::ALL {
            if let Source::Policies(kind) = source {
                for object in self.list(source).await? {
                    let Some(policy) = PolicyView::read(kind, &object.0) else { continue };
                    if let Some(patch) = release(&policy, &self.policy_server) {
                        self.release(source, &policy, &patch).await?;
                        removed += 1;
                    }
                }
            }
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
                // It goes after its pods, which is what is waited for.
                match deployments.delete(&self.deployment, &DeleteParams::foreground()).await {
                    Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
                    deleted => drop(deleted.with_context(what)?),
                }
                tracing::info!(deployment = self.deployment, "the controllers end");
                is_told = true;
            }
            if start.elapsed() > PATIENCE {
                tracing::warn!(
                    deployment = self.deployment,
                    "going on, though some controllers did not tell that they ended"
                );
                return Ok(());
            }
            tokio::time::sleep(PACE).await;
        }
    }

    async fn delete_webhook(&self, source: Source, name: &str) -> Result<()> {
        let deleted = self.api(source).delete(name, &DeleteParams::default()).await;
        match deleted {
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            deleted => drop(deleted.with_context(|| format!("webhook configuration {name}"))?),
        }
        tracing::info!(webhook = name, "removed");
        Ok(())
    }

    async fn release(&self, source: Source, policy: &PolicyView, patch: &Value) -> Result<()> {
        let reference = &policy.reference;
        let api = match &reference.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource(source)),
            None => self.api(source),
        };
        let params = PatchParams { field_manager: Some(CONTROLLER_MANAGER.to_owned()), ..PatchParams::default() };
        let patched = api.patch(&reference.name, &params, &Patch::Merge(patch)).await;
        match patched {
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            patched => drop(patched.with_context(|| format!("policy {}", reference.name))?),
        }
        tracing::info!(policy = reference.name, namespace = reference.namespace, "its finalizer is gone");
        Ok(())
    }

    /// All objects of a kind; none where the API server does not know the kind.
    async fn list(&self, source: Source) -> Result<Vec<BoundedObject>> {
        let api = self.api(source);
        let mut objects = Vec::new();
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let page = match api.list(&params).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(objects),
                page => page.with_context(|| format!("the list of {}", resource(source).plural))?,
            };
            objects.extend(page.items);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(objects),
            }
        }
    }

    fn api(&self, source: Source) -> Api<BoundedObject> {
        Api::all_with(self.client.clone(), &resource(source))
    }
}

/// The patch that takes our finalizer off a policy of this policy server; nothing where it has none of ours.
fn release(policy: &PolicyView, policy_server: &str) -> Option<Value> {
    if policy.policy_server != policy_server || !policy.is_held() {
        return None;
    }
    let others: Vec<_> = policy.finalizers.iter().filter(|one| *one != FINALIZER).collect();
    Some(json!({
        "metadata": { "resourceVersion": policy.version, "uid": policy.reference.uid, "finalizers": others },
    }))
}

#[cfg(test)]
mod tests {
    use portcullis_api::Kind;

    use super::*;

    fn policy(spec: Value, finalizers: &[&str]) -> PolicyView {
        let object = json!({
            "apiVersion": "policies.portcullis.dev/v1alpha1", "kind": "ClusterPolicy",
            "metadata": { "name": "a", "uid": "u", "resourceVersion": "7", "finalizers": finalizers },
            "spec": spec,
        });
        PolicyView::read(Kind::ClusterPolicy, &serde_json::from_value(object).expect("an object")).expect("a policy")
    }

    #[test]
    fn our_finalizer_goes_and_those_of_others_stay() {
        let held = policy(json!({}), &["example.com/other", FINALIZER]);
        assert_eq!(
            release(&held, "default"),
            Some(json!({"metadata": {"resourceVersion": "7", "uid": "u", "finalizers": ["example.com/other"]}}))
        );
    }

    #[test]
    fn policies_of_others_and_free_ones_are_left_alone() {
        assert_eq!(release(&policy(json!({"policyServer": "two"}), &[FINALIZER]), "default"), None);
        assert_eq!(release(&policy(json!({}), &["example.com/other"]), "default"), None);
    }
}
