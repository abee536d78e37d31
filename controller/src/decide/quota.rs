//! The limits within which policies are accepted: how many a namespace may have, and how large they are (`policies`); the webhook
//! configurations of a namespace (`webhooks`); and what stays in force of a policy's older generations (`in_force`).

mod in_force;
mod policies;
mod webhooks;

pub(super) use in_force::refusal;
pub(super) use policies::{Quota, is_taken};
pub(super) use webhooks::WebhookQuota;
