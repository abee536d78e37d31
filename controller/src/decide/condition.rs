//! The condition `WebhookConfigured` of a policy (docs/design/status-api.md, section 4).

use portcullis_api::{Condition, ConditionType};
use portcullis_contract::GroupId;
use portcullis_process::Now;

use super::groups::{Group, Groups};
use super::rules::Rules;
use super::{uninstalled, unreadable};
use crate::action::Action;
use crate::certificates::CaBundle;
use crate::memory::{ConditionValue, Memory, WAITING};
use crate::world::{PolicyView, RevisionView, WebhookView, World, webhook_name};

/// The longest message, in bytes.
const MESSAGE: usize = 1024;

/// The condition of a policy whose newest revision exists; `None` while it is being found out, and the present one stays.
pub(super) fn value(
    policy: &PolicyView,
    newest: &RevisionView,
    groups: &Groups<'_>,
    memory: &Memory,
    rules: &Rules,
) -> Option<ConditionValue> {
    let problem = unreadable::words(newest, rules);
    let known = newest.content.as_ref().ok().map(|content| &content.group);
    let id = match (known.or_else(|| groups.stands_in(&policy.reference.uid)), &problem) {
        (Some(id), _) => id,
        (None, problem) => {
            return Some(ConditionValue::not_configured("SpecInvalid", problem.clone().unwrap_or_default()));
        }
    };
    let group = groups.get(id)?;
    let remembered = memory.groups.get(id);
    let refused = remembered.and_then(|remembered| remembered.refused.clone());
    if let Err(missing) = &rules.installation {
        // A registered webhook stays, and so does its condition.
        return group.found.is_none().then(|| missing.clone());
    }
    let Some(found) = group.found else {
        if let Some(problem) = problem {
            let name = webhook_name(&rules.policy_server, id);
            let next = if group.desired.is_some() { "" } else { ", and its content is no longer known" };
            return Some(ConditionValue::not_configured(
                "SpecInvalid",
                format!("{problem}; webhook configuration {name} does not exist{next}"),
            ));
        }
        if let Some(Err(refusal)) = remembered.and_then(|remembered| remembered.tried.as_ref()) {
            return Some(ConditionValue::not_configured("SpecInvalid", refusal.message.clone()));
        }
        if refused.is_some() {
            return refused;
        }
        if group.may_register || remembered.is_some_and(|remembered| remembered.right.is_some()) {
            return None;
        }
        return Some(waiting(policy));
    };
    if !group.is_right {
        if !trusts(found, group) {
            let text = format!(
                "webhook configuration {} trusts other authorities than those in use; it is being repaired",
                found.name
            );
            return Some(ConditionValue::not_configured("CABundleInvalid", text));
        }
        // One that somebody else has edited is no longer as it was proven.
        let is_proven = remembered.is_some_and(|remembered| remembered.proven.is_some());
        let is_called = is_proven && newest.content.as_ref().is_ok_and(|content| group.calls_for(content));
        return match refused {
            Some(refused) if is_called && refused.reason == "SpecInvalid" => {
                let message =
                    format!("{}; the API server refuses a change of it: {}", called_by(found, id), refused.message);
                Some(ConditionValue::registered(message))
            }
            refused => refused,
        };
    }
    if let Some((remembered, failed)) = remembered.and_then(|one| Some((one, one.unproven.clone()?))) {
        // What this leader has written, or has proven in another form, is not what the leader before has proven.
        let is_untouched = remembered.proven.is_none() && !remembered.is_written;
        if !failed.keeps_earlier || !is_untouched || !policy.is_registered_at(policy.generation) {
            return Some(failed.value);
        }
        let message = format!("{}; not proven again: {}", called_by(found, id), failed.value.message);
        return Some(ConditionValue::registered(message));
    }
    if newest.content.as_ref().is_ok_and(|content| !group.calls_for(content)) {
        // Other policies share the webhook, which is not called for the rules of this one yet.
        let is_ready = !policy.is_suspended && policy.status.everywhere >= policy.generation;
        return (!is_ready && group.is_proven).then(|| waiting(policy));
    }
    let mut message = called_by(found, id);
    if newest.content.as_ref().is_ok_and(|content| content.shared) {
        message.push_str("; it is shared, and the policy server applies rules, objectSelector and matchConditions");
    }
    // The webhook is called, which is what this condition is about; `Accepted` says that the policy is not served.
    let more = problem.map(|problem| format!("; it stays as it is: {problem}"));
    let more = more.or_else(|| group.turns.complaint(found.kind).map(|complaint| format!("; {complaint}")));
    let message = format!("{message}{}", more.unwrap_or_default());
    group.is_proven.then(|| ConditionValue::registered(message))
}

/// What calls a policy, for people to read.
fn called_by(found: &WebhookView, group: &GroupId) -> String {
    format!("webhook configuration {} of match group {group}", found.name)
}

/// The condition of a policy that no webhook calls yet: it is suspended, or waits for its replicas.
fn waiting(policy: &PolicyView) -> ConditionValue {
    if policy.is_suspended {
        let text = "a suspended policy is not registered; it will be when it is resumed";
        return ConditionValue::not_configured("Suspended", text);
    }
    let text = "no webhook is registered until every replica serves the policy and knows its newest generation";
    ConditionValue::not_configured(WAITING, text)
}

/// Whether each entry trusts an authority in use. While authorities change, both are in use for a time.
fn trusts(found: &WebhookView, group: &Group<'_>) -> bool {
    let Some(desired) = &group.desired else { return true };
    let Some(wanted) = bundles(&desired.entries).next().flatten() else { return true };
    // A webhook without entries calls nothing, which is another fault.
    bundles(&found.entries).all(|found| {
        let found = found.unwrap_or_default();
        found.certificates().iter().any(|one| wanted.certificates().contains(one))
    })
}

/// The authorities of each entry; `None` if they cannot be read.
fn bundles(entries: &serde_json::Value) -> impl Iterator<Item = Option<CaBundle>> {
    use base64::Engine as _;
    let entries = entries.as_array().map(Vec::as_slice).unwrap_or_default();
    entries.iter().map(|entry| {
        let text = entry["clientConfig"]["caBundle"].as_str()?;
        let pem = base64::engine::general_purpose::STANDARD.decode(text).ok()?;
        CaBundle::parse(&pem).ok()
    })
}

/// The write that sets a policy's condition to this value, unless it has it already.
pub(super) fn write(world: &World, policy: &PolicyView, value: ConditionValue, now: Now) -> Option<Action> {
    let value = uninstalled::keep_reason(policy, world, value);
    let known = ConditionType::WebhookConfigured.reasons();
    debug_assert!(known.contains(&value.reason), "{} is not in the list of reasons", value.reason);
    let before = policy.status.webhook.as_ref();
    let condition = Condition {
        r#type: ConditionType::WebhookConfigured,
        status: value.status,
        reason: value.reason.to_owned(),
        message: portcullis_contract::clean(&value.message, MESSAGE),
        observed_generation: policy.generation,
        last_transition_time: before
            .filter(|before| before.status == value.status)
            .map_or(now.wall, |before| before.last_transition_time),
    };
    let says = |before: &Condition| {
        before.observed_generation >= condition.observed_generation
            && (before.status, &before.reason, &before.message)
                == (condition.status, &condition.reason, &condition.message)
    };
    if before.is_some_and(says) {
        return None;
    }
    Some(Action::SetCondition {
        policy: policy.reference.clone(),
        version: policy.version.clone(),
        condition: Box::new(condition),
    })
}
