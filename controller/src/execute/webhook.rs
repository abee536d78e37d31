//! Writes webhook configurations.

use kube::api::{Patch, PostParams};
use portcullis_api::kubernetes::BoundedObject;
use serde_json::json;

use super::{Executor, Outcome, applied, manager, passes, posts};
use crate::action::Action;
use crate::desired::Desired;
use crate::event::PolicyWarning;
use crate::failed::Failed;
use crate::memory::WebhookRejection;
use crate::world::Collection;

impl Executor {
    /// Tries, creates, changes or deletes a webhook.
    pub(super) async fn write_webhook(&self, action: &Action) -> Result<Outcome, Failed> {
        match action {
            Action::TryWebhook { group, desired } => {
                let params = PostParams { dry_run: true, ..posts() };
                match self.webhooks(desired.kind).create(&params, &object(desired)?).await {
                    Ok(_) => Ok(Outcome::Tried(group.clone(), Ok(()))),
                    Err(kube::Error::Api(status)) if status.is_already_exists() => {
                        Ok(Outcome::Tried(group.clone(), Ok(())))
                    }
                    Err(error) => {
                        let failed = Failed::from(error);
                        // It is a user's to mend, so it is no failure of this action.
                        let refusal = failed.is_refusal().then(|| WebhookRejection::now(&failed.text));
                        refusal.map(|refusal| Outcome::Tried(group.clone(), Err(refusal))).ok_or(failed)
                    }
                }
            }
            Action::CreateWebhook { desired, repaired, .. } => {
                passes("controller.before_webhook_write").await?;
                let collection = Collection::Webhooks(desired.kind);
                let written = self.webhooks(desired.kind).create(&posts(), &object(desired)?).await?;
                passes("controller.after_webhook_write").await?;
                tracing::info!(webhook = desired.name, "registered");
                log_repair(repaired.as_ref());
                Ok(applied(collection, written))
            }
            Action::ChangeWebhook { desired, version, repaired, .. } => {
                let outcome = self.change_webhook(desired, version).await?;
                log_repair(repaired.as_ref());
                Ok(outcome)
            }
            Action::CreateCheckWebhook { desired, is_repair } => {
                passes("controller.before_webhook_write").await?;
                let collection = Collection::Webhooks(desired.kind);
                let written = self.webhooks(desired.kind).create(&posts(), &object(desired)?).await?;
                passes("controller.after_webhook_write").await?;
                tracing::info!(webhook = desired.name, "registered");
                repaired_check(desired, *is_repair);
                Ok(applied(collection, written))
            }
            Action::ChangeCheckWebhook { desired, version, is_repair } => {
                let outcome = self.change_webhook(desired, version).await?;
                repaired_check(desired, *is_repair);
                Ok(outcome)
            }
            Action::DeleteWebhook { kind, name, uid } => {
                let outcome = self.delete(Collection::Webhooks(*kind), name, uid).await?;
                tracing::info!(webhook = name, "removed");
                passes("controller.after_webhook_delete").await?;
                Ok(outcome)
            }
            _ => Ok(Outcome::Done),
        }
    }

    async fn change_webhook(&self, desired: &Desired, version: &str) -> Result<Outcome, Failed> {
        passes("controller.before_webhook_write").await?;
        let collection = Collection::Webhooks(desired.kind);
        // A merge patch replaces the list as a whole: server-side apply would keep fields of others in our entries.
        let patch = json!({
            "metadata": {
                "resourceVersion": version,
                "labels": desired.labels_patch(),
                "ownerReferences": desired.metadata["ownerReferences"],
            },
            "webhooks": *desired.entries,
        });
        let written = self.webhooks(desired.kind).patch(&desired.name, &manager(), &Patch::Merge(patch)).await?;
        passes("controller.after_webhook_write").await?;
        Ok(applied(collection, written))
    }
}

/// Logs a repair. Its event is written by an action of its own, so that what was written is known at once, and counts if the event fails.
fn log_repair(warning: Option<&PolicyWarning>) {
    if let Some(warning) = warning {
        tracing::warn!(policy = warning.policy.name, note = warning.note, "somebody else had changed a webhook");
    }
}

/// Logs a repair of the webhook that checks policies. It concerns no single policy, so there is no event.
fn repaired_check(desired: &Desired, is_repair: bool) {
    if is_repair {
        tracing::warn!(
            webhook = desired.name,
            "somebody else had changed or deleted a webhook, which has been repaired"
        );
    }
}

fn object(desired: &Desired) -> Result<BoundedObject, Failed> {
    serde_json::from_value(desired.object())
        .map_err(|error| Failed::other(format!("failed to make an object: {error}")))
}
