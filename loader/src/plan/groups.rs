//! Match groups and their tombstones: which policies each group evaluates while API servers may still call an older webhook.
//!
//! In a folder it is not known when a group is no longer called, so a policy that changes groups stays in the old one for a while. In a
//! cluster the revisions say it (docs/design/overview.md, section 3), and a policy that leaves is out at once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use portcullis_contract::{GroupEntry, GroupId, MemberMatch, PolicyId, WebhookKind};

/// All groups for which the evaluator answers.
#[derive(Debug, Default)]
pub(crate) struct Groups(BTreeMap<GroupId, Group>);

/// The groups that a policy is a member of now.
#[derive(Debug, Clone, Default)]
pub(crate) struct Membership {
    /// The groups.
    pub groups: BTreeSet<(GroupId, WebhookKind)>,
    /// Which requests of a shared webhook the policy is asked about, by group; without an entry, all requests of the group.
    pub matches: BTreeMap<GroupId, Vec<MemberMatch>>,
    /// Whether the policy stays for a while in a group that it has left.
    pub lingers: bool,
}

#[derive(Debug)]
struct Group {
    kind: WebhookKind,
    members: BTreeSet<PolicyId>,
    /// Which requests the members of a shared webhook are asked about.
    matches: BTreeMap<PolicyId, Vec<MemberMatch>>,
    /// Policies that have left, because their match part changed. They are still evaluated here until this time.
    lingering: BTreeMap<PolicyId, Instant>,
    /// Until when the group answers "allowed" without members; `None` while it has members.
    tombstone: Option<Instant>,
}

impl Groups {
    /// The groups of an earlier manifest. The next [`Groups::turn`] finds the policies that have left meanwhile.
    pub(crate) fn restore(entries: &[GroupEntry]) -> Self {
        let group = |entry: &GroupEntry| Group {
            kind: entry.kind,
            members: entry.members.iter().cloned().collect(),
            matches: entry.matches.clone(),
            lingering: BTreeMap::new(),
            tombstone: None,
        };
        Self(entries.iter().map(|entry| (entry.id.clone(), group(entry))).collect())
    }

    /// Updates the groups to the present memberships. Policies without one are gone. `keep` is how long groups answer for policies that left.
    pub(crate) fn turn(&mut self, current: &BTreeMap<PolicyId, Membership>, keep: Duration, now: Instant) {
        let until = now + keep;
        for (id, kind) in current.values().flat_map(|membership| &membership.groups) {
            let kind = *kind;
            self.0.entry(id.clone()).or_insert_with(|| Group {
                kind,
                members: BTreeSet::new(),
                matches: BTreeMap::new(),
                lingering: BTreeMap::new(),
                tombstone: None,
            });
        }
        for (id, group) in &mut self.0 {
            let is_in = |membership: &Membership| membership.groups.iter().any(|(group, _)| group == id);
            let is_member = |policy: &PolicyId| current.get(policy).is_some_and(is_in);
            let lingers = |policy: &PolicyId| current.get(policy).is_some_and(|membership| membership.lingers);
            for left in group.members.iter().filter(|policy| !is_member(policy) && lingers(policy)) {
                group.lingering.insert(left.clone(), until);
            }
            group.members = current.keys().filter(|policy| is_member(policy)).cloned().collect();
            let own = |(policy, membership): (&PolicyId, &Membership)| {
                Some((policy.clone(), membership.matches.get(id).filter(|_| is_member(policy))?.clone()))
            };
            group.matches = current.iter().filter_map(own).collect();
            group.lingering.retain(|policy, until| *until > now && lingers(policy) && !group.members.contains(policy));
            let empty = group.members.is_empty() && group.lingering.is_empty();
            group.tombstone = empty.then(|| group.tombstone.unwrap_or(until));
        }
        self.0.retain(|_, group| group.tombstone.is_none_or(|until| until > now));
    }

    /// When [`Groups::turn`] will change something by itself.
    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        self.0.values().flat_map(|group| group.lingering.values().copied().chain(group.tombstone)).min()
    }

    /// The groups as entries of the manifest.
    pub(crate) fn entries(&self) -> Vec<GroupEntry> {
        let entry = |(id, group): (&GroupId, &Group)| {
            let members: BTreeSet<&PolicyId> = group.members.iter().chain(group.lingering.keys()).collect();
            let members = members.into_iter().cloned().collect();
            GroupEntry { id: id.clone(), kind: group.kind, members, matches: group.matches.clone() }
        };
        self.0.iter().map(entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Duration = Duration::from_secs(600);
    const A: &str = "aaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbb";

    fn of(members: &[(&str, &[&str])], lingers: bool) -> BTreeMap<PolicyId, Membership> {
        let one = |(policy, groups): &(&str, &[&str])| {
            let groups = groups.iter().filter_map(|group| Some((group.parse().ok()?, WebhookKind::Validating)));
            (policy.parse().expect("an id"), Membership { groups: groups.collect(), matches: BTreeMap::new(), lingers })
        };
        members.iter().map(one).collect()
    }

    /// Memberships as in a folder: at most one group for each policy.
    fn current(members: &[(&str, &str)]) -> BTreeMap<PolicyId, Membership> {
        let members: Vec<(&str, Vec<&str>)> = members.iter().map(|(policy, group)| (*policy, vec![*group])).collect();
        of(&members.iter().map(|(policy, groups)| (*policy, &groups[..])).collect::<Vec<_>>(), true)
    }

    fn entries(groups: &Groups) -> Vec<(String, Vec<String>)> {
        let words = |entry: &GroupEntry| {
            (entry.id.as_str().to_owned(), entry.members.iter().map(ToString::to_string).collect())
        };
        groups.entries().iter().map(words).collect()
    }

    fn expect(groups: &Groups, expected: &[(&str, &[&str])]) {
        let expected: Vec<(String, Vec<String>)> = expected
            .iter()
            .map(|(id, members)| ((*id).to_owned(), members.iter().map(|&member| member.to_owned()).collect()))
            .collect();
        assert_eq!(entries(groups), expected);
    }

    #[test]
    fn w14_who_changes_groups_is_in_both_for_a_while() {
        let (mut groups, now) = (Groups::default(), Instant::now());
        groups.turn(&current(&[("x", A), ("y", A)]), KEEP, now);
        expect(&groups, &[(A, &["x", "y"])]);
        groups.turn(&current(&[("x", B), ("y", A)]), KEEP, now);
        expect(&groups, &[(A, &["x", "y"]), (B, &["x"])]);
        assert_eq!(groups.wakes_at(), Some(now + KEEP));
        groups.turn(&current(&[("x", B), ("y", A)]), KEEP, now + KEEP);
        expect(&groups, &[(A, &["y"]), (B, &["x"])]);
    }

    #[test]
    fn w14_in_a_cluster_the_revisions_say_who_is_in_both_and_until_when() {
        let (mut groups, now) = (Groups::default(), Instant::now());
        groups.turn(&of(&[("x", &[A]), ("y", &[A])], false), KEEP, now);
        groups.turn(&of(&[("x", &[A, B]), ("y", &[A])], false), KEEP, now);
        expect(&groups, &[(A, &["x", "y"]), (B, &["x"])]);
        groups.turn(&of(&[("x", &[A, B]), ("y", &[A])], false), KEEP, now + 2 * KEEP);
        expect(&groups, &[(A, &["x", "y"]), (B, &["x"])]);
        groups.turn(&of(&[("x", &[B]), ("y", &[A])], false), KEEP, now + 2 * KEEP);
        expect(&groups, &[(A, &["y"]), (B, &["x"])]);
    }

    #[test]
    fn w05_the_last_member_that_goes_leaves_a_tombstone_over_a_restart_too() {
        let (mut groups, now) = (Groups::default(), Instant::now());
        groups.turn(&of(&[("x", &[A])], false), KEEP, now);
        groups.turn(&of(&[], false), KEEP, now);
        expect(&groups, &[(A, &[])]);
        let mut again = Groups::restore(&groups.entries());
        again.turn(&of(&[], false), KEEP, now);
        expect(&again, &[(A, &[])]);
        again.turn(&of(&[], false), KEEP, now + KEEP);
        expect(&again, &[]);
    }

    #[test]
    fn who_comes_back_is_a_plain_member_again() {
        let (mut groups, now) = (Groups::default(), Instant::now());
        groups.turn(&current(&[("x", A)]), KEEP, now);
        groups.turn(&current(&[("x", B)]), KEEP, now);
        groups.turn(&current(&[("x", A)]), KEEP, now);
        groups.turn(&current(&[("x", A)]), KEEP, now + KEEP);
        expect(&groups, &[(A, &["x"]), (B, &[])]);
    }

    #[test]
    fn a_group_without_members_is_a_tombstone_and_then_gone() {
        let (mut groups, now) = (Groups::default(), Instant::now());
        groups.turn(&current(&[("x", A)]), KEEP, now);
        groups.turn(&current(&[]), KEEP, now);
        expect(&groups, &[(A, &[])]);
        groups.turn(&current(&[]), KEEP, now + KEEP / 2);
        expect(&groups, &[(A, &[])]);
        groups.turn(&current(&[]), KEEP, now + KEEP);
        expect(&groups, &[]);
    }

    #[test]
    fn a_restart_goes_on_with_what_the_manifest_says() {
        let (mut groups, now) = (Groups::default(), Instant::now());
        groups.turn(&current(&[("x", A), ("y", "")]), KEEP, now);
        let mut again = Groups::restore(&groups.entries());
        again.turn(&current(&[("x", B), ("y", "")]), KEEP, now);
        expect(&again, &[(A, &["x"]), (B, &["x"])]);
    }

    #[test]
    fn what_members_of_a_shared_webhook_are_matched_by_outlives_a_restart() {
        let (mut groups, now) = (Groups::default(), Instant::now());
        let own = MemberMatch {
            rules: vec![],
            object_selector: Some(serde_json::json!({"matchLabels": {"a": "b"}})),
            match_conditions: vec![],
        };
        let mut members = of(&[("x", &[A]), ("y", &[A])], false);
        let matches = BTreeMap::from([(A.parse().expect("an id"), vec![own.clone()])]);
        members.get_mut("x").expect("a member").matches = matches;
        groups.turn(&members, KEEP, now);
        let expected = BTreeMap::from([("x".parse().expect("an id"), vec![own])]);
        assert_eq!(groups.entries()[0].matches, expected);
        assert_eq!(Groups::restore(&groups.entries()).entries()[0].matches, expected);
        groups.turn(&of(&[("x", &[A]), ("y", &[A])], false), KEEP, now);
        assert!(groups.entries()[0].matches.is_empty());
    }
}
