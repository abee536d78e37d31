//! How long API servers wait for a match group.
//!
//! Validating members are evaluated in parallel, so the timeout of the webhook is the largest one of its members. Mutating members are
//! evaluated one after the other, each on the object that the one before left, so the timeout is the sum of their limits. A policy's
//! `timeoutSeconds` is a minimum for the webhook's timeout and a maximum for the policy's own evaluation; it takes no time from the others.
//!
//! A webhook's timeout is 30 s at most. A mutating policy whose evaluation does not fit in goes to the next shard of its match part, which is a
//! group with a webhook of its own. It could be refused instead, but its author cannot know which other policies match the same objects,
//! one more call costs the API server less than a millisecond, and mutating webhooks are called one after the other anyway. The shard of a
//! generation never changes (its revision has it), so no policy loses its place to a later one.

use std::collections::BTreeMap;

use portcullis_contract::WebhookKind;

use super::rules::Rules;
use crate::world::RevisionView;

/// The longest timeout of a webhook, in seconds.
pub(super) const LONGEST: u32 = 30;
/// The part of the timeout that is left for the way to the evaluator and back, in whole seconds.
const WAY: u32 = 1;

/// The timeout of a group's webhook: what its members need.
#[derive(Debug, Default)]
pub(super) struct WebhookTimeout<'w> {
    /// How long one evaluation of each member may take, in seconds, by the policy's uid.
    limits: BTreeMap<&'w str, u32>,
    /// The largest `timeoutSeconds`.
    least: u32,
}

impl<'w> WebhookTimeout<'w> {
    /// Notes how long one evaluation of a member may take, in seconds.
    pub(super) fn add(&mut self, uid: &'w str, limit: u32) {
        let longest = self.limits.entry(uid).or_default();
        *longest = limit.max(*longest);
    }

    /// Notes how long a member wants the API server to wait at least, in seconds.
    pub(super) fn at_least(&mut self, timeout_seconds: u32) {
        self.least = self.least.max(timeout_seconds);
    }

    /// The timeout of the webhook, in seconds.
    pub(super) fn seconds(&self, kind: WebhookKind) -> u32 {
        match kind {
            WebhookKind::Validating => self.least.max(1),
            WebhookKind::Mutating => (self.sum() + WAY).clamp(self.least.max(1), LONGEST.max(self.least)),
        }
    }

    /// Whether this policy is a member.
    pub(super) fn has(&self, uid: &str) -> bool {
        self.limits.contains_key(uid)
    }

    /// Whether an evaluation of the policy may already take this long.
    pub(super) fn covers(&self, uid: &str, limit: u32) -> bool {
        self.limits.get(uid).is_some_and(|longest| *longest >= limit)
    }

    /// Whether an evaluation of the policy fits in with those of the others. A single one always fits.
    pub(super) fn has_room_for(&self, uid: &str, limit: u32) -> bool {
        let others = self.sum() - self.limits.get(uid).copied().unwrap_or(0);
        others == 0 || others + limit + WAY <= LONGEST
    }

    /// The warning that evaluations may be cut short, for a group from before their limits were added up.
    pub(super) fn warning(&self, kind: WebhookKind) -> Option<String> {
        let (count, sum) = (self.limits.len(), self.sum());
        (kind == WebhookKind::Mutating && count > 1 && sum + WAY > LONGEST).then(|| {
            format!(
                "its {count} mutating policies may take {sum} s together and the API server waits {LONGEST} s at most, so slow ones \
                 may be cut short: lower timeoutEvalSeconds, or edit a policy, which then gets another webhook"
            )
        })
    }

    fn sum(&self) -> u32 {
        self.limits.values().sum()
    }
}

/// The longest evaluation, in seconds, of the generations of a policy that may serve: those in force, and the last good one.
pub(super) fn longest_evaluation(revisions: &BTreeMap<i64, RevisionView>, rules: &Rules) -> u32 {
    let served = revisions.values().rev().find(|revision| revision.marks.served).map(|served| served.generation);
    let may_serve = revisions.values().filter(|one| one.is_in_force() || Some(one.generation) == served);
    let contents = may_serve.filter_map(|one| one.content.as_ref().ok());
    contents.map(|content| content.evaluation_limit(rules.policy_timeout)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeout(members: &[(&'static str, u32)], least: u32) -> WebhookTimeout<'static> {
        let mut timeout = WebhookTimeout::default();
        members.iter().for_each(|(uid, limit)| timeout.add(uid, *limit));
        timeout.at_least(least);
        timeout
    }

    #[test]
    fn judges_wait_for_the_most_patient_one_and_those_who_change_for_all() {
        let members = [("a", 10), ("b", 2), ("c", 2), ("d", 2)];
        assert_eq!(timeout(&members, 12).seconds(WebhookKind::Validating), 12);
        assert_eq!(timeout(&members, 12).seconds(WebhookKind::Mutating), 17);
    }

    #[test]
    fn what_a_policy_asks_for_is_the_least_and_thirty_seconds_are_the_most() {
        assert_eq!(timeout(&[("a", 2)], 10).seconds(WebhookKind::Mutating), 10);
        assert_eq!(timeout(&[("a", 20), ("b", 20)], 20).seconds(WebhookKind::Mutating), 30);
        assert_eq!(timeout(&[("a", 30)], 30).seconds(WebhookKind::Mutating), 30);
        assert_eq!(timeout(&[], 0).seconds(WebhookKind::Validating), 1);
    }

    #[test]
    fn who_fits_is_told_without_the_policy_itself() {
        let full = timeout(&[("a", 20), ("b", 9)], 20);
        assert!(full.has_room_for("b", 9) && !full.has_room_for("b", 10), "its own evaluation is not counted twice");
        assert!(!full.has_room_for("c", 1));
        assert!(timeout(&[], 0).has_room_for("c", 30), "one alone always fits");
        assert!(timeout(&[("c", 2)], 0).has_room_for("c", 30));
    }

    #[test]
    fn a_group_that_was_too_full_before_says_so() {
        assert!(timeout(&[("a", 20), ("b", 9)], 20).warning(WebhookKind::Mutating).is_none());
        let text = timeout(&[("a", 20), ("b", 10)], 20).warning(WebhookKind::Mutating).expect("too full");
        assert!(text.contains("2 mutating policies may take 30 s") && text.contains("timeoutEvalSeconds"), "{text}");
        assert!(timeout(&[("a", 20), ("b", 20)], 20).warning(WebhookKind::Validating).is_none());
    }

    #[test]
    fn the_longest_generation_of_a_policy_counts() {
        let mut timeout = timeout(&[("a", 10)], 10);
        timeout.add("a", 2);
        assert_eq!(timeout.seconds(WebhookKind::Mutating), 11);
    }
}
