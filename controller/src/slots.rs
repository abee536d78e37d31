//! Which of the actions that were decided on start. Only so many run at the same time, so webhooks come first, and then the namespaces take
//! turns: one whose users edit much does not hold up the policies of others. Proofs have room of their own, and those take turns that fail.

use std::collections::{BTreeMap, BTreeSet};

use crate::action::{Action, Key};

/// How many proofs may run at the same time; each waits most of its time.
const PROOFS: usize = 8;

/// The actions that run.
#[derive(Debug)]
pub(crate) struct Slots {
    /// How many writes may run at the same time.
    parallel: usize,
    running: BTreeMap<Key, Kind>,
    /// When each namespace was last served, as the number of that action, if it has more to do.
    served: BTreeMap<String, u64>,
    /// When each proof that is still wanted was last begun, as the number of that action.
    tried: BTreeMap<Key, u64>,
    turns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Write,
    /// The condition of a policy that was never accepted.
    Refusal,
    /// An event, which may wait for a webhook of its namespace.
    Event,
    Proof,
}

impl Slots {
    /// Slots for `parallel` writes, all of them free.
    pub(crate) fn new(parallel: usize) -> Self {
        Self { parallel, running: BTreeMap::new(), served: BTreeMap::new(), tried: BTreeMap::new(), turns: 0 }
    }

    pub(crate) fn is_running(&self, key: &Key) -> bool {
        self.running.contains_key(key)
    }

    pub(crate) fn ended(&mut self, key: &Key) {
        self.running.remove(key);
    }

    pub(crate) fn all_ended(&mut self) {
        self.running.clear();
    }

    /// Forgets proofs that are no longer `wanted`. One that fails is wanted while it waits for its next try.
    pub(crate) fn retain(&mut self, wanted: &BTreeSet<Key>) {
        self.tried.retain(|proof, _| wanted.contains(proof));
    }

    /// The actions that start now, of those that need not wait, most important first. `refusals` are the conditions of policies that were never
    /// accepted. Users can cause any number of them, so they come last, and only a quarter of the writes are for them. Another quarter is the most
    /// for events, which users can slow down.
    pub(crate) fn start(&mut self, actions: Vec<Action>, refusals: Vec<Action>) -> Vec<Action> {
        let waiting: BTreeSet<&str> = actions.iter().chain(&refusals).filter_map(Action::namespace).collect();
        self.served.retain(|namespace, _| waiting.contains(namespace.as_str()));
        let (of_policies, mut others): (Vec<_>, Vec<_>) =
            actions.into_iter().partition(|one| one.namespace().is_some());
        // Writes and proofs that were never tried come first, then the proofs that were tried longest ago: a few that fail, each of which takes
        // long, do not keep the others from being tried.
        others.sort_by_cached_key(|action| self.tried.get(&action.key()).copied());
        let first = others.into_iter().chain(self.by_turns(of_policies)).map(|action| (action, Kind::Write));
        let last = self.by_turns(refusals).into_iter().map(|action| (action, Kind::Refusal));
        let count = |kind| self.running.values().filter(|running| **running == kind).count();
        let (mut writes, mut refused) = (count(Kind::Write), count(Kind::Refusal));
        let (mut events, mut proofs) = (count(Kind::Event), count(Kind::Proof));
        let quarter = (self.parallel / 4).max(1);
        let mut started = Vec::new();
        for (action, kind) in first.chain(last).collect::<Vec<_>>() {
            let key = action.key();
            let is_free = writes + refused + events < self.parallel;
            let (kind, has_room, count) = match (&key, kind) {
                (Key::Proof(_), _) => (Kind::Proof, proofs < PROOFS, &mut proofs),
                (Key::Event(_), _) => (Kind::Event, is_free && events < quarter, &mut events),
                (_, Kind::Refusal) => (kind, is_free && refused < quarter, &mut refused),
                _ => (kind, is_free, &mut writes),
            };
            if !has_room || self.running.contains_key(&key) {
                continue;
            }
            *count += 1;
            self.turns += 1;
            if let Some(namespace) = action.namespace() {
                self.served.insert(namespace.to_owned(), self.turns);
            }
            if kind == Kind::Proof {
                self.tried.insert(key.clone(), self.turns);
            }
            self.running.insert(key, kind);
            started.push(action);
        }
        started
    }

    /// The first action of each namespace, then the second of each, and so on. Of the namespaces, the one that was served longest ago is first.
    fn by_turns(&self, actions: Vec<Action>) -> Vec<Action> {
        let mut counts = BTreeMap::<String, usize>::new();
        let turn = |action: &Action| {
            let namespace = action.namespace().unwrap_or_default();
            let count = counts.entry(namespace.to_owned()).or_default();
            *count += 1;
            (*count, self.served.get(namespace).copied())
        };
        let turns: Vec<_> = actions.iter().map(turn).collect();
        let mut actions: Vec<_> = turns.into_iter().zip(actions).collect();
        actions.sort_by_key(|(turn, _)| *turn);
        actions.into_iter().map(|(_, action)| action).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portcullis_api::{Kind as PolicyKind, PolicyReference};
    use portcullis_contract::WebhookKind;

    use super::*;
    use crate::event::PolicyWarning;

    /// A write for a policy of this namespace.
    fn write(namespace: &str, name: &str) -> Action {
        let (name, namespace) = (name.to_owned(), Some(namespace.to_owned()));
        Action::Hold(PolicyReference { kind: PolicyKind::Policy, namespace, uid: name.clone(), name })
    }

    fn writes(namespace: &str, count: usize) -> Vec<Action> {
        (0..count).map(|number| write(namespace, &format!("{namespace}{number:03}"))).collect()
    }

    /// How many of the actions that start are of each namespace.
    fn started(slots: &mut Slots, actions: Vec<Action>, refusals: Vec<Action>) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for action in slots.start(actions, refusals) {
            *counts.entry(action.namespace().unwrap_or("none").to_owned()).or_default() += 1;
        }
        counts
    }

    #[test]
    fn who_edits_much_does_not_hold_up_others() {
        let all = [writes("a", 100), writes("b", 100), writes("z", 1)].concat();
        let mut slots = Slots::new(4);
        let expected = [("a", 2), ("b", 1), ("z", 1)].map(|(name, count)| (name.to_owned(), count));
        assert_eq!(started(&mut slots, all, Vec::new()), expected.into());
    }

    #[test]
    fn with_one_slot_namespaces_are_served_one_after_the_other() {
        let mut slots = Slots::new(1);
        let all = ["a", "b", "c"].map(|namespace| writes(namespace, 9)).concat();
        let mut next = || {
            slots.all_ended();
            started(&mut slots, all.clone(), Vec::new()).into_keys().collect::<String>()
        };
        assert_eq!([next(), next(), next(), next()], ["a", "b", "c", "a"]);
    }

    #[test]
    fn conditions_of_refused_policies_take_a_quarter_at_most_and_what_runs_counts() {
        let mut slots = Slots::new(16);
        let of = |counts: &BTreeMap<String, usize>, name: &str| counts.get(name).copied().unwrap_or_default();
        let counts = started(&mut slots, Vec::new(), writes("refused", 100));
        assert_eq!(of(&counts, "refused"), 4);
        let counts = started(&mut slots, writes("a", 100), writes("refused", 100));
        assert_eq!((of(&counts, "a"), of(&counts, "refused")), (12, 0));
        slots.ended(&write("refused", "refused000").key());
        slots.ended(&write("a", "a000").key());
        let counts = started(&mut slots, writes("b", 1), writes("refused", 100));
        assert_eq!((of(&counts, "b"), of(&counts, "refused")), (1, 1));
    }

    #[test]
    fn events_take_a_quarter_at_most_and_hold_up_no_write() {
        let event = |number: usize| match write("slow", &format!("{number}")) {
            Action::Hold(policy) => Action::Warn(PolicyWarning { policy, reason: "waits", note: String::new() }),
            other => other,
        };
        let events: Vec<_> = (0..99).map(event).collect();
        let mut slots = Slots::new(16);
        assert_eq!(slots.start(events.clone(), Vec::new()), events[..4]);
        let counts = started(&mut slots, [events.clone(), writes("a", 100)].concat(), Vec::new());
        assert_eq!(counts, [("a".to_owned(), 12)].into());
        slots.ended(&events[0].key());
        assert_eq!(slots.start(events[4..].to_vec(), Vec::new()), events[4..5]);
    }

    #[test]
    fn proofs_that_fail_do_not_keep_others_from_being_tried() {
        let prove = |number: usize| {
            let group = format!("{number:016x}").parse().expect("a group");
            Action::Prove { group, revision: "a-1".to_owned(), webhook: ("u".to_owned(), Arc::default()) }
        };
        let all: Vec<_> = (0..30).map(prove).collect();
        let wanted: BTreeSet<_> = all.iter().map(Action::key).collect();
        let mut slots = Slots::new(4);
        let mut round = |ready: &[Action]| {
            let started = slots.start(ready.to_vec(), Vec::new());
            started.iter().for_each(|proof| slots.ended(&proof.key()));
            slots.retain(&wanted);
            started
        };
        let mut tried = Vec::new();
        for _ in 0..3 {
            tried.extend(round(&all));
            assert_eq!(tried, all[..tried.len()]);
        }
        // The others wait for their next try, and are not taken for new ones after that.
        assert_eq!(round(&all[24..]), all[24..]);
        assert_eq!(round(&all), all[..8]);
        slots.retain(&BTreeSet::new());
        assert!(slots.tried.is_empty());
    }

    #[test]
    fn webhooks_come_first_and_nothing_starts_twice() {
        let mut slots = Slots::new(2);
        let (name, uid) = ("webhook".to_owned(), "u".to_owned());
        let webhook = Action::DeleteWebhook { kind: WebhookKind::Validating, name, uid };
        let all = [writes("a", 1), writes("b", 1), vec![webhook.clone(), webhook.clone()]].concat();
        assert_eq!(slots.start(all.clone(), Vec::new()), [webhook, write("a", "a000")]);
        assert_eq!(slots.start(all, Vec::new()), []);
    }
}
