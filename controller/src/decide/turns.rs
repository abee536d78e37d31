//! How long API servers wait for a match group.
//!
//! Validating members are evaluated in parallel, so the timeout of the webhook is the largest one of its members. Mutating members are
//! evaluated one after the other, each on the object that the one before left, so the timeout is the sum of their turns. A policy's
//! `timeoutSeconds` is a minimum for the webhook's timeout and a maximum for the policy's own turn; it takes no time from the others.
//!
//! A webhook's timeout is 30 s at most. A mutating policy whose turn does not fit in goes to the next shard of its match part, which is a
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

/// The time that the members of one group need.
#[derive(Debug, Default)]
pub(super) struct Turns<'w> {
    /// The longest turn of each member, in seconds, by the policy's uid.
    turns: BTreeMap<&'w str, u32>,
    /// The largest `timeoutSeconds`.
    wait: u32,
}

impl<'w> Turns<'w> {
    /// Notes how long one evaluation of a member may take, in seconds.
    pub(super) fn add(&mut self, uid: &'w str, turn: u32) {
        let longest = self.turns.entry(uid).or_default();
        *longest = turn.max(*longest);
    }

    /// Notes how long a member wants the API server to wait at least, in seconds.
    pub(super) fn wait(&mut self, timeout_seconds: u32) {
        self.wait = self.wait.max(timeout_seconds);
    }

    /// The timeout of the webhook, in seconds.
    pub(super) fn seconds(&self, kind: WebhookKind) -> u32 {
        match kind {
            WebhookKind::Validating => self.wait.max(1),
            WebhookKind::Mutating => (self.sum() + WAY).clamp(self.wait.max(1), LONGEST.max(self.wait)),
        }
    }

    /// Whether this policy is a member.
    pub(super) fn has(&self, uid: &str) -> bool {
        self.turns.contains_key(uid)
    }

    /// Whether the policy has a turn of at least this length.
    pub(super) fn have(&self, uid: &str, turn: u32) -> bool {
        self.turns.get(uid).is_some_and(|longest| *longest >= turn)
    }

    /// Whether the policy's turn fits in with those of the others. A single one always fits.
    pub(super) fn fit(&self, uid: &str, turn: u32) -> bool {
        let others = self.sum() - self.turns.get(uid).copied().unwrap_or(0);
        others == 0 || others + turn + WAY <= LONGEST
    }

    /// The warning that evaluations may be cut short, for a group from before turns were counted.
    pub(super) fn complaint(&self, kind: WebhookKind) -> Option<String> {
        let (count, sum) = (self.turns.len(), self.sum());
        (kind == WebhookKind::Mutating && count > 1 && sum + WAY > LONGEST).then(|| {
            format!(
                "the turns of its {count} mutating policies are {sum} s together and the API server waits {LONGEST} s at most, so \
                 slow ones may be cut short: lower timeoutEvalSeconds, or edit a policy, which then gets another webhook"
            )
        })
    }

    fn sum(&self) -> u32 {
        self.turns.values().sum()
    }
}

/// The longest evaluation, in seconds, of the generations of a policy that may serve: those in force, and the last good one.
pub(super) fn longest_turn(revisions: &BTreeMap<i64, RevisionView>, rules: &Rules) -> u32 {
    let served = revisions.values().rev().find(|revision| revision.marks.served).map(|served| served.generation);
    let may_serve = revisions.values().filter(|one| one.is_in_force() || Some(one.generation) == served);
    let turns = may_serve.filter_map(|one| one.content.as_ref().ok()).map(|content| content.turn(rules.policy_timeout));
    turns.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(members: &[(&'static str, u32)], wait: u32) -> Turns<'static> {
        let mut turns = Turns::default();
        members.iter().for_each(|(uid, turn)| turns.add(uid, *turn));
        turns.wait(wait);
        turns
    }

    #[test]
    fn judges_wait_for_the_most_patient_one_and_those_who_change_for_all() {
        let members = [("a", 10), ("b", 2), ("c", 2), ("d", 2)];
        assert_eq!(turns(&members, 12).seconds(WebhookKind::Validating), 12);
        assert_eq!(turns(&members, 12).seconds(WebhookKind::Mutating), 17);
    }

    #[test]
    fn what_a_policy_asks_for_is_the_least_and_thirty_seconds_are_the_most() {
        assert_eq!(turns(&[("a", 2)], 10).seconds(WebhookKind::Mutating), 10);
        assert_eq!(turns(&[("a", 20), ("b", 20)], 20).seconds(WebhookKind::Mutating), 30);
        assert_eq!(turns(&[("a", 30)], 30).seconds(WebhookKind::Mutating), 30);
        assert_eq!(turns(&[], 0).seconds(WebhookKind::Validating), 1);
    }

    #[test]
    fn who_fits_is_told_without_the_policy_itself() {
        let full = turns(&[("a", 20), ("b", 9)], 20);
        assert!(full.fit("b", 9) && !full.fit("b", 10), "its own turn is not counted twice");
        assert!(!full.fit("c", 1));
        assert!(turns(&[], 0).fit("c", 30), "one alone always fits");
        assert!(turns(&[("c", 2)], 0).fit("c", 30));
    }

    #[test]
    fn a_group_that_was_too_full_before_says_so() {
        assert!(turns(&[("a", 20), ("b", 9)], 20).complaint(WebhookKind::Mutating).is_none());
        let text = turns(&[("a", 20), ("b", 10)], 20).complaint(WebhookKind::Mutating).expect("too full");
        assert!(text.contains("2 mutating policies are 30 s") && text.contains("timeoutEvalSeconds"), "{text}");
        assert!(turns(&[("a", 20), ("b", 20)], 20).complaint(WebhookKind::Validating).is_none());
    }

    #[test]
    fn the_longest_generation_of_a_policy_counts() {
        let mut turns = turns(&[("a", 10)], 10);
        turns.add("a", 2);
        assert_eq!(turns.seconds(WebhookKind::Mutating), 11);
    }
}
