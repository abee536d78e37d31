//! Decides about the webhook with which API servers ask the evaluators about policies that users apply.

use std::sync::Arc;

use portcullis_contract::WebhookKind;

use super::rules::{Decision, Rules};
use crate::action::Action;
use crate::desired::check_webhook;
use crate::memory::Memory;
use crate::world::{World, check_webhook_name};

pub(super) fn decide(world: &World, memory: &mut Memory, rules: &Rules, decision: &mut Decision) {
    let name = check_webhook_name(&rules.policy_server);
    let found = world.webhooks.get(&(WebhookKind::Validating, name));
    let Some(timeout_seconds) = rules.check_timeout else {
        memory.check_webhook = None;
        if let Some(found) = found.filter(|found| found.is_ours(&rules.policy_server)) {
            let (name, uid) = (found.name.clone(), found.uid.clone());
            decision.act(Action::DeleteWebhook { kind: found.kind, name, uid });
        }
        return;
    };
    let Ok(installation) = &rules.installation else { return };
    let desired = check_webhook(installation, timeout_seconds);
    match found {
        Some(found) if desired.is(found, installation) => memory.check_webhook = Some(Arc::clone(&found.entries)),
        Some(found) => {
            // If the webhook was right before and has not changed, we want something else now. Otherwise something else changed it.
            let is_repair = memory.check_webhook.as_ref().is_some_and(|right| *right != found.entries);
            let (desired, version) = (Box::new(desired), found.version.clone());
            decision.act(Action::ChangeCheckWebhook { desired, version, is_repair });
        }
        None => {
            let is_repair = memory.check_webhook.is_some();
            decision.act(Action::CreateCheckWebhook { desired: Box::new(desired), is_repair });
        }
    }
}
