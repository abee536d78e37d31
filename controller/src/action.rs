//! The actions of the controller: each is one write to the API server, or one question.

use std::collections::BTreeMap;

use portcullis_api::{Condition, PolicyReference};
use portcullis_contract::{GroupId, WebhookKind};
use serde_json::Value;

use crate::desired::Desired;
use crate::event::PolicyWarning;
use crate::world::Entries;

/// One write, or one question.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Adds our finalizer to a policy.
    Hold(PolicyReference),
    /// Asks the API server whether a policy that has revisions, and that no watch has reported, exists.
    FindPolicy(PolicyReference),
    /// Removes our finalizer from a policy that is being deleted. The others stay: they are read just before.
    Release(PolicyReference),
    /// Creates a revision.
    CreateRevision {
        /// Its name.
        name: String,
        /// The policy whose spec it holds, if the policy still has this generation.
        policy: PolicyReference,
        /// The name of the revision whose content it holds, if the policy is rolled back to one.
        source: Option<String>,
        /// The object, without the spec.
        object: Value,
    },
    /// Adds labels and annotations to a revision.
    Mark {
        /// Its name.
        name: String,
        /// Its policy.
        policy: PolicyReference,
        /// The labels to add.
        labels: BTreeMap<&'static str, String>,
        /// The annotations to add.
        annotations: BTreeMap<&'static str, String>,
    },
    /// Deletes a revision.
    DeleteRevision {
        /// Its name.
        name: String,
        /// Its policy.
        policy: PolicyReference,
        /// Its uid.
        uid: String,
    },
    /// Asks the API server in a dry run whether it accepts a webhook.
    TryWebhook {
        /// The match group.
        group: GroupId,
        /// The webhook configuration.
        desired: Box<Desired>,
    },
    /// Registers a webhook.
    CreateWebhook {
        /// The match group.
        group: GroupId,
        /// The webhook configuration.
        desired: Box<Desired>,
        /// The event to write afterwards, if the webhook had been deleted by something else.
        repaired: Option<PolicyWarning>,
    },
    /// Changes a webhook to what it should be.
    ChangeWebhook {
        /// The match group.
        group: GroupId,
        /// The webhook configuration.
        desired: Box<Desired>,
        /// The `resourceVersion` that the decision is based on.
        version: String,
        /// The event to write afterwards, if the webhook had been changed by something else.
        repaired: Option<PolicyWarning>,
    },
    /// Deletes a webhook.
    DeleteWebhook {
        /// Validating or mutating.
        kind: WebhookKind,
        /// Its name.
        name: String,
        /// Its uid.
        uid: String,
    },
    /// Registers the webhook with which API servers ask about policies that users apply.
    CreateCheckWebhook {
        /// The webhook configuration.
        desired: Box<Desired>,
        /// Whether something else had deleted it.
        is_repair: bool,
    },
    /// Changes the webhook with which API servers ask about policies that users apply to what it should be.
    ChangeCheckWebhook {
        /// The webhook configuration.
        desired: Box<Desired>,
        /// The `resourceVersion` that the decision is based on.
        version: String,
        /// Whether something else had changed it.
        is_repair: bool,
    },
    /// Proves that every API server calls a webhook.
    Prove {
        /// The match group.
        group: GroupId,
        /// The revision that carries the marker.
        revision: String,
        /// The webhook's uid and entries.
        webhook: (String, Entries),
    },
    /// Writes our condition.
    SetCondition {
        /// The policy.
        policy: PolicyReference,
        /// The `resourceVersion` that the decision is based on.
        version: String,
        /// The condition.
        condition: Box<Condition>,
    },
    /// Writes an event.
    Warn(PolicyWarning),
}

/// The object of an action. Two actions with the same key never run at the same time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A policy, by uid.
    Policy(String),
    /// The status of a policy, by uid.
    Status(String),
    /// A revision, by name.
    Revision(String),
    /// A webhook configuration, by name.
    Webhook(String),
    /// The proof of a match group.
    Proof(GroupId),
    /// The events on a policy, by uid.
    Event(String),
}

impl Action {
    /// The object of this action.
    pub fn key(&self) -> Key {
        match self {
            Self::Hold(policy) | Self::FindPolicy(policy) | Self::Release(policy) => Key::Policy(policy.uid.clone()),
            Self::SetCondition { policy, .. } => Key::Status(policy.uid.clone()),
            Self::CreateRevision { name, .. } | Self::Mark { name, .. } | Self::DeleteRevision { name, .. } => {
                Key::Revision(name.clone())
            }
            Self::TryWebhook { desired, .. }
            | Self::CreateWebhook { desired, .. }
            | Self::ChangeWebhook { desired, .. }
            | Self::CreateCheckWebhook { desired, .. }
            | Self::ChangeCheckWebhook { desired, .. } => Key::Webhook(desired.name.clone()),
            Self::DeleteWebhook { name, .. } => Key::Webhook(name.clone()),
            Self::Prove { group, .. } => Key::Proof(group.clone()),
            Self::Warn(warning) => Key::Event(warning.policy.uid.clone()),
        }
    }

    /// The namespace of the policy that it is for, empty for a ClusterPolicy; `None` if it is about a webhook, which may be that of many.
    pub fn namespace(&self) -> Option<&str> {
        let policy = match self {
            Self::Hold(policy) | Self::FindPolicy(policy) | Self::Release(policy) => policy,
            Self::CreateRevision { policy, .. }
            | Self::Mark { policy, .. }
            | Self::DeleteRevision { policy, .. }
            | Self::SetCondition { policy, .. } => policy,
            Self::Warn(warning) => &warning.policy,
            Self::TryWebhook { .. }
            | Self::CreateWebhook { .. }
            | Self::ChangeWebhook { .. }
            | Self::DeleteWebhook { .. }
            | Self::CreateCheckWebhook { .. }
            | Self::ChangeCheckWebhook { .. }
            | Self::Prove { .. } => return None,
        };
        Some(policy.namespace.as_deref().unwrap_or_default())
    }

    /// The webhook that it writes; `None` if it writes none.
    pub fn written(&self) -> Option<&Desired> {
        match self {
            Self::CreateWebhook { desired, .. }
            | Self::ChangeWebhook { desired, .. }
            | Self::CreateCheckWebhook { desired, .. }
            | Self::ChangeCheckWebhook { desired, .. } => Some(desired),
            _ => None,
        }
    }

    /// Whether it restores a webhook that something else had changed or deleted.
    pub fn is_repair(&self) -> bool {
        match self {
            Self::CreateWebhook { repaired, .. } | Self::ChangeWebhook { repaired, .. } => repaired.is_some(),
            Self::CreateCheckWebhook { is_repair, .. } | Self::ChangeCheckWebhook { is_repair, .. } => *is_repair,
            _ => false,
        }
    }

    /// Whether the deletion of a policy may wait for it.
    pub fn is_removal(&self) -> bool {
        matches!(self, Self::DeleteWebhook { .. } | Self::Mark { .. } | Self::DeleteRevision { .. } | Self::Release(_))
    }

    /// Whether it creates a webhook that something else has deleted.
    pub fn restores(&self) -> bool {
        matches!(self, Self::CreateWebhook { .. } | Self::CreateCheckWebhook { .. }) && self.is_repair()
    }

    /// The name of its object, for logs.
    pub fn object(&self) -> String {
        let of = |policy: &PolicyReference| match &policy.namespace {
            Some(namespace) => format!("policy {namespace}/{}", policy.name),
            None => format!("clusterpolicy {}", policy.name),
        };
        match self {
            Self::Hold(policy) | Self::FindPolicy(policy) | Self::Release(policy) => of(policy),
            Self::SetCondition { policy, .. } => of(policy),
            Self::Warn(warning) => of(&warning.policy),
            Self::CreateRevision { name, .. } | Self::Mark { name, .. } | Self::DeleteRevision { name, .. } => {
                format!("controllerrevision {name}")
            }
            Self::TryWebhook { desired, .. }
            | Self::CreateWebhook { desired, .. }
            | Self::ChangeWebhook { desired, .. }
            | Self::CreateCheckWebhook { desired, .. }
            | Self::ChangeCheckWebhook { desired, .. } => format!("webhook {}", desired.name),
            Self::DeleteWebhook { name, .. } => format!("webhook {name}"),
            Self::Prove { group, .. } => format!("match group {group}"),
        }
    }

    /// The action's name in metrics and logs.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Hold(_) => "add_finalizer",
            Self::FindPolicy(_) => "find_policy",
            Self::Release(_) => "remove_finalizer",
            Self::CreateRevision { .. } => "create_revision",
            Self::Mark { .. } => "mark_revision",
            Self::DeleteRevision { .. } => "delete_revision",
            Self::TryWebhook { .. } => "try_webhook",
            Self::CreateWebhook { .. } | Self::CreateCheckWebhook { .. } => "create_webhook",
            Self::ChangeWebhook { .. } | Self::ChangeCheckWebhook { .. } => "change_webhook",
            Self::DeleteWebhook { .. } => "delete_webhook",
            Self::Prove { .. } => "prove_webhook",
            Self::SetCondition { .. } => "set_condition",
            Self::Warn(_) => "write_event",
        }
    }
}
