//! The condition `WebhookConfigured` of a policy (docs/design/status-api.md, section 4).

use std::time::Duration;

use portcullis_api::{Condition, ConditionType};
use portcullis_contract::GroupId;
use portcullis_process::Now;

use super::groups::{Group, Groups};
use super::rules::{Decision, Rules};
use super::{reverted, uninstalled, unreadable};
use crate::action::Action;
use crate::certificates::CaBundle;
use crate::memory::{ConditionValue, GroupMemory, Memory, WAITING};
use crate::world::{PolicyView, RevisionView, WebhookView, World, webhook_name};

/// The longest message, in bytes.
const MESSAGE: usize = 1024;

/// How long a new leader may need to learn what it must know before it can register a webhook, and how long an API server may fail to create it
/// before policies say so.
const BEGINNING: Duration = Duration::from_secs(30);

/// A policy whose newest revision exists, with its group.
struct Subject<'a> {
    policy: &'a PolicyView,
    newest: &'a RevisionView,
    /// Why the revision cannot be read, if it cannot.
    problem: Option<String>,
    id: &'a GroupId,
    group: &'a Group<'a>,
    remembered: &'a GroupMemory,
}

/// The condition of a policy whose newest revision exists; `None` while it is being found out, and the present one stays.
pub(super) fn value(
    policy: &PolicyView,
    newest: &RevisionView,
    groups: &Groups<'_>,
    memory: &Memory,
    rules: &Rules,
    decision: &mut Decision,
) -> Option<ConditionValue> {
    if rules.is_never_asked(&policy.reference) {
        return Some(never_asked(&rules.namespace));
    }
    let problem = unreadable::words(newest, rules);
    let known = newest.content.as_ref().ok().map(|content| &content.group);
    let Some(id) = known.or_else(|| groups.stands_in(&policy.reference.uid)) else {
        return Some(ConditionValue::not_configured("SpecInvalid", problem.unwrap_or_default()));
    };
    let (group, nothing) = (groups.get(id)?, GroupMemory::default());
    let remembered = memory.groups.get(id).unwrap_or(&nothing);
    let subject = Subject { policy, newest, problem, id, group, remembered };
    match (group.found, &rules.installation) {
        (None, Ok(_)) => subject.without_webhook(rules, decision),
        (None, Err(missing)) => {
            // What the status says may be all that is known of the registration, and it has to be known to the next leader if this one ends before it
            // has registered the webhook again. But if that takes long, people must read of it.
            let stays = group.comes_back(remembered)
                && policy.is_registered_at(policy.generation)
                && !decision.has_passed(memory.since, BEGINNING);
            (!stays).then(|| missing.clone())
        }
        // A registered webhook stays, and so does its condition.
        (Some(_), Err(_)) => None,
        (Some(found), Ok(_)) if group.is_right => subject.with_right_webhook(found, decision),
        (Some(found), Ok(_)) => subject.with_wrong_webhook(found, decision),
    }
}

impl Subject<'_> {
    /// The condition while the webhook does not exist.
    fn without_webhook(&self, rules: &Rules, decision: &mut Decision) -> Option<ConditionValue> {
        let Self { group, remembered, .. } = self;
        let name = webhook_name(&rules.policy_server, self.id);
        if let Some(problem) = &self.problem {
            let next = if group.desired.is_some() { "" } else { ", and its content is no longer known" };
            return Some(ConditionValue::not_configured(
                "SpecInvalid",
                format!("{problem}; webhook configuration {name} does not exist{next}"),
            ));
        }
        if let Some(Err(refusal)) = &remembered.tried {
            return Some(ConditionValue::not_configured("SpecInvalid", refusal.message.clone()));
        }
        if remembered.refused.is_some() {
            return remembered.refused.clone();
        }
        if let Some((since, text)) = &remembered.failing
            && decision.has_passed(*since, BEGINNING)
        {
            let message = format!("webhook configuration {name} is missing and cannot be registered: {text}");
            return Some(ConditionValue::not_configured("Unknown", message));
        }
        (!group.may_register && !group.comes_back(remembered)).then(|| waiting(self.policy))
    }

    /// The condition while the webhook is not as it should be.
    fn with_wrong_webhook(&self, found: &WebhookView, decision: &mut Decision) -> Option<ConditionValue> {
        let Self { group, remembered, .. } = self;
        // The same as while it is right for a moment, whatever was changed: otherwise the condition would change with each write.
        if remembered.refused.is_none()
            && let Some(reverted) = reverted::condition(&found.name, remembered, decision)
        {
            return Some(reverted);
        }
        if !trusts(found, group) {
            let text = format!(
                "webhook configuration {} trusts other authorities than those in use; it is being repaired",
                found.name
            );
            return Some(ConditionValue::not_configured("CABundleInvalid", text));
        }
        // One that somebody else has edited is no longer as it was proven.
        let is_called =
            remembered.proven.is_some() && self.newest.content.as_ref().is_ok_and(|content| group.calls_for(content));
        match remembered.refused.clone() {
            Some(refused) if is_called && refused.reason == "SpecInvalid" => {
                let message =
                    format!("{}; the API server refuses a change of it: {}", self.called_by(found), refused.message);
                Some(ConditionValue::registered(message))
            }
            refused => refused,
        }
    }

    /// The condition while the webhook is as it should be.
    fn with_right_webhook(&self, found: &WebhookView, decision: &mut Decision) -> Option<ConditionValue> {
        let Self { policy, group, remembered, .. } = self;
        if let Some(reverted) = reverted::condition(&found.name, remembered, decision) {
            return Some(reverted);
        }
        if let Some(failed) = &remembered.unproven {
            // What this leader has written, or has proven in another form, is not what the leader before has proven.
            let is_untouched = remembered.proven.is_none() && !remembered.is_written;
            if !failed.keeps_earlier || !is_untouched || !policy.is_registered_at(policy.generation) {
                return Some(failed.value.clone());
            }
            let message = format!("{}; not proven again: {}", self.called_by(found), failed.value.message);
            return Some(ConditionValue::registered(message));
        }
        let content = self.newest.content.as_ref().ok();
        if content.is_some_and(|content| !group.calls_for(content)) {
            // Other policies share the webhook, which is not called for the rules of this one yet.
            let is_ready = !policy.is_suspended && policy.status.everywhere >= policy.generation;
            return (!is_ready && group.is_proven).then(|| waiting(policy));
        }
        let mut message = self.called_by(found);
        if content.is_some_and(|content| content.shared) {
            message.push_str("; it is shared, and the policy server applies rules, objectSelector and matchConditions");
        }
        // The webhook is called, which is what this condition is about; `Accepted` says that the policy is not served.
        let more = self.problem.as_ref().map(|problem| format!("; it stays as it is: {problem}"));
        let more = more.or_else(|| group.timeout.warning(found.kind).map(|warning| format!("; {warning}")));
        let message = format!("{message}{}", more.unwrap_or_default());
        group.is_proven.then(|| ConditionValue::registered(message))
    }

    /// What calls the policy, for people to read.
    fn called_by(&self, found: &WebhookView) -> String {
        format!("webhook configuration {} of match group {}", found.name, self.id)
    }
}

/// The condition of a policy in the installation's namespace.
fn never_asked(namespace: &str) -> ConditionValue {
    let text = format!(
        "no policy is asked about objects in {namespace}, the namespace of the installation: move the policy to another namespace"
    );
    ConditionValue::not_configured("SpecInvalid", text)
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
