//! What can be done: each is one write, or one question.

use std::collections::BTreeMap;

use portcullis_api::{Condition, PolicyReference};
use portcullis_contract::{GroupId, WebhookKind};
use serde_json::Value;

use crate::desired::Desired;
use crate::event::Told;
use crate::world::Entries;

/// Something to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Put our finalizer on a policy.
    Hold(PolicyReference),
    /// Take our finalizer off a policy; these stay.
    Release {
        /// Which.
        policy: PolicyReference,
        /// The version that was looked at.
        version: String,
        /// Finalizers of others.
        finalizers: Vec<String>,
    },
    /// Make a revision.
    CreateRevision {
        /// Its name.
        name: String,
        /// The policy whose spec is in it, as long as it is of this generation.
        policy: PolicyReference,
        /// The revision whose content it has, where the policy is rolled back to one.
        source: Option<String>,
        /// The object, without that spec.
        object: Value,
    },
    /// Add labels and annotations to a revision.
    Mark {
        /// Its name.
        name: String,
        /// What to add to its labels.
        labels: BTreeMap<&'static str, String>,
        /// What to add to its annotations.
        annotations: BTreeMap<&'static str, String>,
    },
    /// Remove a revision.
    DeleteRevision {
        /// Its name.
        name: String,
        /// Its uid.
        uid: String,
    },
    /// Ask in a dry run what the API server says to a webhook.
    TryWebhook {
        /// The match group.
        group: GroupId,
        /// What to ask about.
        desired: Box<Desired>,
    },
    /// Register a webhook.
    CreateWebhook {
        /// The match group.
        group: GroupId,
        /// What to make.
        desired: Box<Desired>,
        /// What to tell, where somebody else had removed it.
        repaired: Option<Told>,
    },
    /// Make a webhook what it should be.
    ChangeWebhook {
        /// The match group.
        group: GroupId,
        /// What it should be.
        desired: Box<Desired>,
        /// The version that was looked at.
        version: String,
        /// What to tell, where somebody else had changed it.
        repaired: Option<Told>,
    },
    /// Remove a webhook.
    DeleteWebhook {
        /// Validating or mutating.
        kind: WebhookKind,
        /// Its name.
        name: String,
        /// Its uid.
        uid: String,
    },
    /// Prove that every API server calls a webhook.
    Prove {
        /// The match group.
        group: GroupId,
        /// The revision that carries the marker.
        revision: String,
        /// The webhook's uid and entries, which are proven then.
        webhook: (String, Entries),
    },
    /// Write our condition.
    SetCondition {
        /// Of which policy.
        policy: PolicyReference,
        /// The version that was looked at.
        version: String,
        /// What to write.
        condition: Box<Condition>,
    },
    /// Write an event.
    Tell(Told),
}

/// What two actions have in common that must not run at the same time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// The object of a policy, by uid.
    Policy(String),
    /// The status of a policy, by uid.
    Status(String),
    /// A revision, by name.
    Revision(String),
    /// A webhook configuration, by name.
    Webhook(String),
    /// The proof of a group.
    Proof(GroupId),
    /// Events about a policy, by uid.
    Event(String),
}

impl Action {
    /// The object it is about.
    pub fn key(&self) -> Key {
        match self {
            Self::Hold(policy) | Self::Release { policy, .. } => Key::Policy(policy.uid.clone()),
            Self::SetCondition { policy, .. } => Key::Status(policy.uid.clone()),
            Self::CreateRevision { name, .. } | Self::Mark { name, .. } | Self::DeleteRevision { name, .. } => {
                Key::Revision(name.clone())
            }
            Self::TryWebhook { desired, .. }
            | Self::CreateWebhook { desired, .. }
            | Self::ChangeWebhook { desired, .. } => Key::Webhook(desired.name.clone()),
            Self::DeleteWebhook { name, .. } => Key::Webhook(name.clone()),
            Self::Prove { group, .. } => Key::Proof(group.clone()),
            Self::Tell(told) => Key::Event(told.policy.uid.clone()),
        }
    }

    /// A word for metrics and logs.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Hold(_) => "add_finalizer",
            Self::Release { .. } => "remove_finalizer",
            Self::CreateRevision { .. } => "create_revision",
            Self::Mark { .. } => "mark_revision",
            Self::DeleteRevision { .. } => "delete_revision",
            Self::TryWebhook { .. } => "try_webhook",
            Self::CreateWebhook { .. } => "create_webhook",
            Self::ChangeWebhook { .. } => "change_webhook",
            Self::DeleteWebhook { .. } => "delete_webhook",
            Self::Prove { .. } => "prove_webhook",
            Self::SetCondition { .. } => "set_condition",
            Self::Tell(_) => "write_event",
        }
    }
}
