//! Executes the actions that were decided on: one write, or one question, each.

mod finalizer;
mod revision;
mod webhook;

use std::time::Duration;

use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client};
use portcullis_api::kubernetes::{BoundedObject, FINALIZER, Outline};
use portcullis_api::revision::{DELETED_ANNOTATION, WITHDRAWN_ANNOTATION};
use portcullis_api::{API_VERSION, PolicyReference};
use portcullis_contract::{GroupId, WebhookKind};
use portcullis_kubernetes::{CONTROLLER_MANAGER, Leadership};
use portcullis_process::failpoint;
use serde_json::{Value, json};

use crate::action::Action;
use crate::desired::marker_value;
use crate::event::{Events, kind};
use crate::failed::Failed;
use crate::marker::Prover;
use crate::memory::{ConditionValue, FailedProof, WebhookRejection};
use crate::watch::resource;
use crate::world::{Change, Collection, Entries};

pub(crate) use finalizer::{kept, release};

/// How long one write may take.
const LIMIT: Duration = Duration::from_secs(20);
/// How long the write of an event may take. It may wait for a webhook that somebody registered for the policy's namespace.
const EVENT_LIMIT: Duration = Duration::from_secs(5);
/// How long a proof may take before it counts as failed for now.
const PATIENCE: Duration = Duration::from_secs(15);

/// The result of an action.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// An object has changed.
    Wrote(Change),
    /// The action changed nothing that decisions depend on.
    Done,
    /// Whether an API server accepts a webhook.
    Tried(GroupId, Result<(), WebhookRejection>),
    /// The policy with this uid does not exist.
    Gone(String),
    /// Every API server calls a webhook; or why that is not known.
    Proven(GroupId, (String, Entries), Option<FailedProof>),
}

/// Executes actions.
pub(crate) struct Executor {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) leadership: Leadership,
    pub(crate) prover: Prover,
    pub(crate) events: Events,
}

impl Executor {
    /// Executes an action. It fails as soon as another controller may lead.
    pub(crate) async fn execute(&self, action: &Action) -> Result<Outcome, Failed> {
        if !self.leadership.is_held() {
            return Err(Failed::overtaken("this controller no longer leads"));
        }
        if let Action::Prove { group, revision, webhook } = action {
            let (_, entries) = webhook;
            // Entries of a revision that nobody can read may be those of an earlier release, whose marker was the group.
            let value = marker_value(entries).unwrap_or(group.as_str());
            let proof = self.prover.prove(group, revision, value, PATIENCE).await;
            let failed = proof.err().map(|unproven| {
                let (status, reason) = unproven.problem.condition();
                let value = ConditionValue { status, reason, message: unproven.to_string() };
                FailedProof { value, keeps_earlier: unproven.keeps_earlier_proof }
            });
            return Ok(Outcome::Proven(group.clone(), webhook.clone(), failed));
        }
        let limit = if matches!(action, Action::Warn(_)) { EVENT_LIMIT } else { LIMIT };
        let done = tokio::time::timeout(limit, self.write(action)).await;
        done.unwrap_or_else(|_| Err(Failed::other(format!("the API server did not answer within {limit:?}"))))
    }

    async fn write(&self, action: &Action) -> Result<Outcome, Failed> {
        match action {
            Action::Hold(policy) => {
                let finalizers = json!({"finalizers": [FINALIZER], "uid": policy.uid});
                let params = PatchParams::apply(CONTROLLER_MANAGER).force();
                let patch = Patch::Apply(identified(policy, &finalizers, None));
                let written = self.policies(policy).patch(&policy.name, &params, &patch).await?;
                Ok(applied(Collection::Policies(policy.kind), written))
            }
            Action::Release(policy) => {
                passes("controller.before_finalizer_removal").await?;
                self.release(policy).await
            }
            Action::FindPolicy(policy) => Ok(found(policy, self.policies(policy).get_opt(&policy.name).await?)),
            Action::CreateRevision { policy, source, object, .. } => {
                let written = self.create_revision(policy, source.as_deref(), object).await?;
                passes("controller.after_revision_create").await?;
                Ok(applied(Collection::Revisions, written))
            }
            Action::Mark { name, labels, annotations, .. } => {
                let patch = Patch::Merge(json!({"metadata": {"labels": labels, "annotations": annotations}}));
                let written = self.api(Collection::Revisions).patch(name, &manager(), &patch).await?;
                for (mark, point) in [
                    (WITHDRAWN_ANNOTATION, "controller.after_mark_withdrawn"),
                    (DELETED_ANNOTATION, "controller.after_mark_deleted"),
                ] {
                    if annotations.get(mark).is_some_and(|value| value == "true") {
                        passes(point).await?;
                    }
                }
                Ok(applied(Collection::Revisions, written))
            }
            Action::DeleteRevision { name, uid, .. } => self.delete(Collection::Revisions, name, uid).await,
            Action::SetCondition { policy, version, condition } => {
                let status = json!({"conditions": [condition]});
                let metadata = json!({"resourceVersion": version});
                let params = PatchParams::apply(CONTROLLER_MANAGER).force();
                let patch = Patch::Apply(identified(policy, &metadata, Some(&status)));
                let written = self.policies(policy).patch_status(&policy.name, &params, &patch).await?;
                Ok(applied(Collection::Policies(policy.kind), written))
            }
            Action::Warn(warning) => {
                self.events.write(warning).await?;
                Ok(Outcome::Done)
            }
            Action::TryWebhook { .. }
            | Action::CreateWebhook { .. }
            | Action::ChangeWebhook { .. }
            | Action::DeleteWebhook { .. }
            | Action::CreateCheckWebhook { .. }
            | Action::ChangeCheckWebhook { .. }
            | Action::Prove { .. } => self.write_webhook(action).await,
        }
    }

    async fn release(&self, policy: &PolicyReference) -> Result<Outcome, Failed> {
        let (collection, api) = (Collection::Policies(policy.kind), self.policies(policy));
        let found = api.get(&policy.name).await?;
        let Some((patch, is_last)) = release(policy, &found) else {
            return Err(Failed::overtaken("the policy has changed since"));
        };
        let written = api.patch(&policy.name, &manager(), &Patch::Merge(patch)).await?;
        Ok(if is_last { deleted(collection, &policy.uid) } else { applied(collection, written) })
    }

    async fn delete(&self, collection: Collection, name: &str, uid: &str) -> Result<Outcome, Failed> {
        delete(&self.api(collection), collection, name, uid).await
    }

    fn api(&self, collection: Collection) -> Api<Outline> {
        let resource = resource(collection);
        match collection {
            Collection::Revisions => Api::namespaced_with(self.client.clone(), &self.namespace, &resource),
            Collection::Policies(_) | Collection::Webhooks(_) => Api::all_with(self.client.clone(), &resource),
        }
    }

    /// The webhook configurations of a kind, which are written whole.
    fn webhooks(&self, kind: WebhookKind) -> Api<BoundedObject> {
        Api::all_with(self.client.clone(), &resource(Collection::Webhooks(kind)))
    }

    fn policies(&self, policy: &PolicyReference) -> Api<Outline> {
        let collection = Collection::Policies(policy.kind);
        match &policy.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource(collection)),
            None => self.api(collection),
        }
    }
}

/// Deletes the object with this name and uid. API servers call a webhook until no finalizer keeps it, so before that the deletion has failed.
async fn delete(api: &Api<Outline>, collection: Collection, name: &str, uid: &str) -> Result<Outcome, Failed> {
    let preconditions = Preconditions { uid: Some(uid.to_owned()), ..Preconditions::default() };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    let answer = match api.delete(name, &params).await {
        Ok(answer) => answer.left(),
        Err(kube::Error::Api(status)) if status.is_not_found() => None,
        Err(error) => return Err(error.into()),
    };
    let is_called = matches!(collection, Collection::Webhooks(_));
    match answer.filter(|_| is_called).as_ref().and_then(kept) {
        Some(problem) => Err(Failed::other(problem)),
        None => Ok(deleted(collection, uid)),
    }
}

/// Fails if this fail point is armed.
async fn passes(point: &'static str) -> Result<(), Failed> {
    if failpoint::hit_async(point).await { Err(Failed::other(format!("fail point {point}"))) } else { Ok(()) }
}

fn posts() -> PostParams {
    PostParams { field_manager: Some(CONTROLLER_MANAGER.to_owned()), ..PostParams::default() }
}

fn manager() -> PatchParams {
    PatchParams { field_manager: Some(CONTROLLER_MANAGER.to_owned()), ..PatchParams::default() }
}

/// A policy with this metadata, for server-side apply.
fn identified(policy: &PolicyReference, metadata: &Value, status: Option<&Value>) -> Value {
    let mut object = json!({"apiVersion": API_VERSION, "kind": kind(policy.kind), "metadata": metadata});
    object["metadata"]["name"] = json!(policy.name);
    if let Some(namespace) = &policy.namespace {
        object["metadata"]["namespace"] = json!(namespace);
    }
    if let Some(status) = status {
        object["status"] = status.clone();
    }
    object
}

fn applied(collection: Collection, object: impl Into<Outline>) -> Outcome {
    Outcome::Wrote(Change::Answered(collection, Box::new(object.into())))
}

/// What an API server says about a policy that no watch has reported. Another object may have its name by now.
fn found(policy: &PolicyReference, object: Option<Outline>) -> Outcome {
    match object.filter(|object| object.metadata.uid.as_ref() == Some(&policy.uid)) {
        Some(object) => applied(Collection::Policies(policy.kind), object),
        None => Outcome::Gone(policy.uid.clone()),
    }
}

fn deleted(collection: Collection, uid: &str) -> Outcome {
    let mut object = DynamicObject::new("", &resource(collection));
    object.metadata.uid = Some(uid.to_owned());
    Outcome::Wrote(Change::Deleted(collection, Box::new(object.into())))
}

#[cfg(test)]
mod tests {
    use portcullis_api::Kind;

    use super::*;
    use crate::failed::Cause;

    #[test]
    fn a_policy_is_gone_only_if_no_object_has_its_name_and_uid() {
        let policy = PolicyReference { kind: Kind::ClusterPolicy, namespace: None, name: "a".into(), uid: "u".into() };
        let object =
            |uid: &str| serde_json::from_value(json!({"metadata": {"name": "a", "uid": uid}})).expect("an object");
        for gone in [None, Some(object("later"))] {
            assert!(matches!(found(&policy, gone), Outcome::Gone(uid) if uid == "u"));
        }
        let there = found(&policy, Some(object("u")));
        assert!(matches!(there, Outcome::Wrote(Change::Answered(Collection::Policies(Kind::ClusterPolicy), _))));
    }

    #[tokio::test]
    async fn a_webhook_that_a_finalizer_keeps_is_not_deleted() {
        let metadata = json!({"name": "a", "uid": "u", "finalizers": ["example.com/hold"]});
        let answer = |timestamp: Value| {
            let mut object = json!({"metadata": metadata, "webhooks": []});
            object["metadata"]["deletionTimestamp"] = timestamp;
            object.to_string()
        };
        let success = json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}).to_string();
        let webhooks = Collection::Webhooks(WebhookKind::Validating);
        let kept = answer(json!("2026-01-01T00:00:00Z"));
        for (collection, answer, is_deleted) in [
            (webhooks, kept.clone(), false),
            (webhooks, success, true),
            // Nobody is asked about a policy because of its revisions.
            (Collection::Revisions, kept, true),
        ] {
            let router = axum::Router::new().fallback(|| async move { answer });
            let api = Api::all_with(Client::new(router, "default"), &resource(collection));
            match delete(&api, collection, "a", "u").await {
                Ok(Outcome::Wrote(Change::Deleted(..))) => assert!(is_deleted, "{collection:?}"),
                Err(failed) => {
                    let text = "it is being deleted, and these finalizers keep it: example.com/hold; remove them";
                    assert_eq!((failed.text.as_str(), failed.cause, is_deleted), (text, Cause::Other, false));
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
