//! How long API servers wait for a match group.
//!
//! Validating members are asked side by side, so the webhook waits as long as its most patient member. Mutating ones are asked in
//! turn, each on what the ones before left, so the webhook waits for the sum of their turns. What a policy says in `timeoutSeconds`
//! is the least that the webhook waits, and bounds the policy's own turn; it never takes time from the others.
//!
//! A webhook waits 30 s at most. A mutating policy whose turn does not fit beside the others goes to the next shard of its match
//! part, which is a group with a webhook of its own. Refusing it would be the other way; but an author cannot know whom else an
//! installation asks about the same objects, one more call of the API server costs less than a millisecond, and the API server asks
//! mutating webhooks in turn anyway. The shard of a generation never changes (it stands in its revision), so nobody who has a place
//! loses it to who comes later.

use std::collections::BTreeMap;

use portcullis_contract::WebhookKind;

/// Longest time in seconds that API servers wait for a webhook.
pub(super) const LONGEST: u32 = 30;
/// What of it the way to the evaluator and back needs, in whole seconds.
const WAY: u32 = 1;

/// What the members of one group need.
#[derive(Debug, Default)]
pub(super) struct Turns<'w> {
    /// The longest turn of each member, in seconds, by the policy's uid.
    turns: BTreeMap<&'w str, u32>,
    /// The largest `timeoutSeconds`.
    wait: u32,
}

impl<'w> Turns<'w> {
    /// A member may take so long.
    pub(super) fn add(&mut self, uid: &'w str, turn: u32) {
        let longest = self.turns.entry(uid).or_default();
        *longest = turn.max(*longest);
    }

    /// A member wants the API server to wait so long at least.
    pub(super) fn wait(&mut self, timeout_seconds: u32) {
        self.wait = self.wait.max(timeout_seconds);
    }

    /// How long the webhook waits.
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

    /// Whether this policy has so long a turn already.
    pub(super) fn have(&self, uid: &str, turn: u32) -> bool {
        self.turns.get(uid).is_some_and(|longest| *longest >= turn)
    }

    /// Whether this policy's turn fits beside those of the others. One alone always does.
    pub(super) fn fit(&self, uid: &str, turn: u32) -> bool {
        let others = self.sum() - self.turns.get(uid).copied().unwrap_or(0);
        others == 0 || others + turn + WAY <= LONGEST
    }

    /// That members may be cut short, where they were all here before turns were counted.
    pub(super) fn complaint(&self, kind: WebhookKind) -> Option<String> {
        let (count, sum) = (self.turns.len(), self.sum());
        (kind == WebhookKind::Mutating && count > 1 && sum + WAY > LONGEST).then(|| {
            format!(
                "the turns of its {count} mutating policies are {sum} s together and the API server waits {LONGEST} s at most, so \
                 whoever is slow may be cut short: lower timeoutEvalSeconds, or edit a policy, which then gets another webhook"
            )
        })
    }

    fn sum(&self) -> u32 {
        self.turns.values().sum()
    }
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
