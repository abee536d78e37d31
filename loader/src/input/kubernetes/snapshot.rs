//! From all revisions to the policies to serve (docs/design/overview.md, section 3).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use portcullis_contract::{GroupId, MemberMatch, PolicyId};

use super::revision::{Revision, damaged};
use crate::content::{Body, DesiredPolicy, Object, Served};
use crate::input::Snapshot;
use crate::pins::Pins;
use crate::problem::Problem;

/// One policy for each id that has revisions. One that is being deleted does not count.
pub(super) fn snapshot<'r>(revisions: impl Iterator<Item = &'r Revision>) -> Snapshot {
    let policies = by_policy(revisions);
    let matched = policies.iter().filter_map(|(id, revisions)| {
        let newest = revisions.iter().min_by(|one, other| order(one).cmp(&order(other)))?;
        Some((PolicyId::clone(id), newest.matched.clone()?))
    });
    let matched = matched.collect();
    Snapshot { policies: policies.into_values().filter_map(policy).collect(), matched, ..Snapshot::default() }
}

/// The names of the revisions whose settings are used: the newest one of each policy, and the newest older one that served.
pub(super) fn with_settings<'r>(revisions: impl Iterator<Item = &'r Revision>) -> HashSet<String> {
    let used = |mut revisions: Vec<&'r Revision>| {
        revisions.sort_by(|one, other| order(one).cmp(&order(other)));
        let served = revisions.iter().skip(1).find(|revision| revision.marks.served && revision.body.is_ok());
        revisions.first().into_iter().chain(served).map(|revision| revision.name.clone()).collect::<Vec<_>>()
    };
    by_policy(revisions).into_values().flat_map(used).collect()
}

/// The revisions of each policy.
fn by_policy<'r>(revisions: impl Iterator<Item = &'r Revision>) -> BTreeMap<&'r PolicyId, Vec<&'r Revision>> {
    let mut objects: HashMap<&str, Vec<&Revision>> = HashMap::new();
    let mut deleted = HashSet::new();
    for revision in revisions {
        objects.entry(&revision.uid).or_default().push(revision);
        if revision.marks.deleted {
            deleted.insert(revision.uid.as_str());
        }
    }
    let mut policies: BTreeMap<&PolicyId, Vec<&Revision>> = BTreeMap::new();
    for (_, revisions) in objects.into_iter().filter(|(uid, _)| !deleted.contains(uid)) {
        // Two objects with the same name: the older one was deleted, and its revisions were left behind.
        let age = |revisions: &[&Revision]| {
            let newest = revisions.iter().map(|revision| revision.created).max().flatten();
            (newest, revisions.first().map(|revision| revision.uid.clone()))
        };
        match policies.get_mut(&revisions[0].id) {
            Some(other) if age(other) >= age(&revisions) => {}
            Some(other) => *other = revisions,
            None => drop(policies.insert(&revisions[0].id, revisions)),
        }
    }
    policies
}

fn policy(mut revisions: Vec<&Revision>) -> Option<DesiredPolicy> {
    revisions.sort_by(|one, other| order(one).cmp(&order(other)));
    let (newest, older) = revisions.split_first()?;
    let in_force = older.iter().filter(|revision| !revision.marks.withdrawn);
    let older_groups = in_force.flat_map(|revision| revision.head.group.iter().chain(&revision.other_group));
    let older_groups: BTreeSet<_> = older_groups.chain(&newest.other_group).cloned().collect();
    let last_served = older.iter().find_map(|revision| {
        let body = revision.body.as_ref().ok().filter(|body| revision.marks.served && !body.lacks_settings())?;
        Some(Served { generation: revision.generation, body: body.clone(), pins: pins_of(revision) })
    });
    Some(DesiredPolicy {
        id: newest.id.clone(),
        file: newest.name.clone(),
        created: revisions.iter().filter_map(|revision| revision.created).min(),
        hash: newest.hash,
        head: Some(newest.head.clone()),
        body: body_of(newest),
        object: Some(Object {
            uid: newest.uid.clone(),
            generation: newest.generation,
            pins: pins(newest, older),
            older_groups,
            matches: matches(newest, older),
            last_served,
            // Counts even if the revision's content cannot be read: the mark is an annotation.
            enforced: revisions.iter().any(|revision| revision.marks.served),
            newest_served: newest.marks.served,
            fingerprint: newest.fingerprint,
        }),
    })
}

/// What a revision serves. The settings of one that was deleted by hand may be gone: it serves nothing until the controller has made it again.
fn body_of(revision: &Revision) -> Result<Body, Problem> {
    match &revision.body {
        Ok(body) if body.lacks_settings() => Err(damaged(&revision.name, "its settings are gone")),
        body => body.clone(),
    }
}

/// Which requests of shared webhooks the policy is asked about: those of each revision in force. If a revision of a group has no shared
/// webhook, or its content cannot be read, the policy is asked about all requests of that group.
fn matches(newest: &Revision, older: &[&Revision]) -> BTreeMap<GroupId, Vec<MemberMatch>> {
    let mut matches: BTreeMap<GroupId, Option<Vec<MemberMatch>>> = BTreeMap::new();
    let in_force = older.iter().copied().filter(|revision| !revision.marks.withdrawn);
    for revision in std::iter::once(newest).chain(in_force) {
        for (group, _) in revision.head.group.iter().chain(&revision.other_group) {
            let known = matches.entry(group.clone()).or_insert_with(|| Some(Vec::new()));
            // For a group that only the labels name, the revision's content does not say which requests match.
            let own =
                revision.matches.as_ref().filter(|_| revision.head.group.as_ref().is_some_and(|own| own.0 == *group));
            match (own, known.as_mut()) {
                (Some(own), Some(known)) if !known.contains(own) => known.push(own.clone()),
                (Some(_), _) => {}
                (None, _) => *known = None,
            }
        }
    }
    matches.into_iter().filter_map(|(group, matches)| Some((group, matches?))).collect()
}

/// Newest first; of two revisions of one generation, the one with the controller's name first.
fn order(revision: &Revision) -> (Reverse<i64>, bool, &str) {
    (Reverse(revision.generation), !revision.is_named_well, &revision.name)
}

/// The digests that the newest generation's modules must have: the recorded ones. Until one is recorded, those of the generation that it
/// rolls back to, or of the newest generation that served with the same address, so that an edit of settings fetches nothing new and a
/// fresh pod agrees with the others.
fn pins(newest: &Revision, older: &[&Revision]) -> Pins {
    let address = |revision: &Revision, part: &str| {
        let body = revision.body.as_ref().ok()?;
        body.parts().into_iter().find(|(name, _)| *name == part).map(|(_, part)| part.module.clone())
    };
    let restored = newest.marks.rolled_back_to.and_then(|number| older.iter().find(|other| other.generation == number));
    let mut pins = pins_of(newest);
    for (part, _) in newest.body.iter().flat_map(Body::parts) {
        if pins.get(part).is_some() {
            continue;
        }
        let is_same = |other: &&&Revision| address(other, part) == address(newest, part);
        let same = older.iter().filter(|other| other.marks.served).find(is_same);
        let known = restored.filter(|other| is_same(other)).and_then(|other| pins_of(other).get(part));
        pins.set(part, known.or_else(|| pins_of(same?).get(part)));
    }
    pins
}

fn pins_of(revision: &Revision) -> Pins {
    Pins::new(revision.marks.pinned_digest, revision.marks.pinned_members.clone())
}

#[cfg(test)]
mod tests {
    use portcullis_api::revision::{
        DELETED_ANNOTATION, PINNED_DIGEST_ANNOTATION, ROLLED_BACK_TO_ANNOTATION, SERVED_ANNOTATION,
        WITHDRAWN_ANNOTATION,
    };
    use portcullis_contract::{Digest, Mode, Reason, WebhookKind};
    use serde_json::{Value, json};

    use super::super::revision::read;
    use super::super::revision::tests::object;
    use super::*;

    fn revision(generation: i64, annotations: &[(&str, &str)], change: impl FnOnce(&mut Value)) -> Revision {
        read(&object("a", generation, annotations, change)).expect("it names its policy")
    }

    fn plain(generation: i64, annotations: &[(&str, &str)]) -> Revision {
        revision(generation, annotations, |_| ())
    }

    fn on(resource: &'static str) -> impl FnOnce(&mut Value) {
        move |o| o["data"]["spec"]["rules"][0]["resources"] = json!([resource])
    }

    fn only(revisions: &[Revision]) -> (DesiredPolicy, Object) {
        let mut policies = snapshot(revisions.iter()).policies;
        assert_eq!(policies.len(), 1);
        let policy = policies.remove(0);
        let object = policy.object.clone().expect("an object");
        (policy, object)
    }

    fn digest(text: &str) -> Digest {
        Digest::of(text.as_bytes())
    }

    #[test]
    fn the_newest_is_wanted_and_the_newest_older_that_served_stands_behind_it() {
        let pin = digest("6").to_string();
        let revisions = [
            plain(5, &[(SERVED_ANNOTATION, "true")]),
            revision(8, &[(SERVED_ANNOTATION, "true")], |o| {
                o["data"]["spec"]["rules"] = json!([]);
                o["data"]["spec"]["mode"] = json!("monitor");
            }),
            plain(6, &[(SERVED_ANNOTATION, "true"), (PINNED_DIGEST_ANNOTATION, &pin)]),
            plain(7, &[]),
        ];
        let (policy, object) = only(&revisions);
        assert_eq!((object.generation, object.uid.as_str()), (8, "uid-of-a"));
        assert_eq!(policy.head.map(|head| head.mode), Some(Mode::Monitor));
        assert_eq!(policy.body.expect_err("a problem").reason, Reason::SpecInvalid);
        let served = object.last_served.expect("served");
        assert_eq!((served.generation, served.pins.module()), (6, Some(digest("6"))));
        assert_eq!(policy.created.map(|time| time.to_string()).as_deref(), Some("2026-01-01T00:00:05Z"));
    }

    #[test]
    fn w04_any_mark_of_the_object_says_that_it_was_enforced() {
        let served = [(SERVED_ANNOTATION, "true")];
        let enforced = |revisions: &[Revision]| only(revisions).1.enforced;
        assert!(!enforced(&[plain(1, &[])]));
        assert!(!enforced(&[plain(1, &[(SERVED_ANNOTATION, "false")]), plain(2, &[])]));
        assert!(enforced(&[plain(1, &served)]));
        assert!(enforced(&[plain(1, &served), plain(2, &[])]));
        // The match part has changed, and API servers no longer call the old group.
        let withdrawn = revision(1, &[(SERVED_ANNOTATION, "true"), (WITHDRAWN_ANNOTATION, "true")], on("services"));
        assert!(enforced(&[withdrawn, plain(2, &[])]));
        let damaged = revision(1, &served, |o| o["data"]["spec"]["rules"] = json!("no"));
        assert!(enforced(&[damaged, plain(2, &[])]));
        // Deleted and created again: revisions left from the older object do not count.
        let again = revision(1, &[], |o| {
            o["data"]["policy"]["uid"] = json!("later");
            o["metadata"]["creationTimestamp"] = json!("2026-02-01T00:00:00Z");
        });
        assert!(!enforced(&[plain(9, &served), again]));
    }

    #[test]
    fn z09_whether_the_newest_served_is_its_own_mark() {
        let served = [(SERVED_ANNOTATION, "true")];
        assert!(only(&[plain(1, &[]), plain(2, &served)]).1.newest_served);
        assert!(!only(&[plain(1, &served), plain(2, &[])]).1.newest_served);
    }

    #[test]
    fn w14_a_policy_is_in_the_groups_of_all_revisions_that_are_not_withdrawn() {
        let group = |revision: &Revision| revision.head.group.clone().expect("a group");
        let (old, new) = (revision(1, &[], on("services")), plain(2, &[]));
        let (policy, object) = only(&[old.clone(), new.clone()]);
        assert_eq!(policy.head.and_then(|head| head.group), Some(group(&new)));
        assert_eq!(object.older_groups, BTreeSet::from([group(&old)]));
        let withdrawn = revision(1, &[(WITHDRAWN_ANNOTATION, "true")], on("services"));
        assert!(only(&[withdrawn, new]).1.older_groups.is_empty());
    }

    #[test]
    fn z18_a_damaged_newest_generation_leaves_the_older_ones_serving_and_in_their_groups() {
        let old = revision(1, &[(SERVED_ANNOTATION, "true")], on("services"));
        let label: portcullis_contract::GroupId = "0123456789abcdef".parse().expect("an id");
        let damaged = revision(2, &[], |o| {
            for (key, value) in portcullis_api::revision::group_labels(&label, WebhookKind::Validating) {
                o["metadata"]["labels"][key] = value.into();
            }
            o["data"] = json!("damage");
        });
        let group = old.head.group.clone().expect("a group");
        let (policy, object) = only(&[old, damaged]);
        assert_eq!((object.generation, object.last_served.map(|served| served.generation)), (2, Some(1)));
        assert_eq!(object.older_groups, BTreeSet::from([group]));
        assert_eq!(policy.head.and_then(|head| head.group), Some((label, WebhookKind::Validating)));
        assert_eq!(policy.body.expect_err("a problem").reason, Reason::SpecInvalid);
    }

    #[test]
    fn z18_a_label_that_names_another_group_adds_it() {
        let other: portcullis_contract::GroupId = "0123456789abcdef".parse().expect("an id");
        let labelled = revision(1, &[], |o| {
            for (key, value) in portcullis_api::revision::group_labels(&other, WebhookKind::Validating) {
                o["metadata"]["labels"][key] = value.into();
            }
        });
        let (policy, object) = only(std::slice::from_ref(&labelled));
        assert_eq!(policy.head.and_then(|head| head.group), labelled.head.group);
        assert_eq!(object.older_groups, BTreeSet::from([(other, WebhookKind::Validating)]));
    }

    #[test]
    fn the_newest_revision_tells_which_requests_reach_the_policy() {
        let matched = |revisions: &[Revision]| snapshot(revisions.iter()).matched;
        let of = |revision: &Revision| revision.matched.as_ref().map(|matched| matched.group.clone());
        let (old, new) = (plain(1, &[]), revision(2, &[], on("services")));
        let found = matched(&[old.clone(), new.clone()]);
        assert_eq!(
            found.values().map(|matched| matched.group.clone()).collect::<Vec<_>>(),
            [of(&new).expect("a part")]
        );
        assert_ne!(of(&old), of(&new));
        let shard = revision(1, &[], |o| o["data"]["shard"] = json!(2));
        assert_eq!(of(&shard), of(&old), "shards are of one match part");
        assert!(matched(&[revision(3, &[], |o| o["data"] = json!("damage")), old]).is_empty());
    }

    #[test]
    fn z18_somebodys_copy_does_not_stand_in_for_the_revision() {
        let ours = plain(1, &[]);
        let copy = |name: &'static str| {
            revision(1, &[], move |o| {
                o["metadata"]["name"] = json!(name);
                o["data"] = json!("damage");
            })
        };
        let (policy, _) = only(&[copy("0"), ours, copy("z")]);
        assert!(policy.body.is_ok());
    }

    #[test]
    fn w05_k09_a_policy_that_is_being_deleted_is_gone() {
        let revisions = [plain(1, &[(DELETED_ANNOTATION, "true")]), plain(2, &[])];
        assert!(snapshot(revisions.iter()).policies.is_empty());
    }

    #[test]
    fn a_policy_that_was_deleted_and_made_again_is_the_later_one() {
        let again = |generation, created: &'static str| {
            revision(generation, &[], move |o| {
                o["data"]["policy"]["uid"] = json!("later");
                o["metadata"]["creationTimestamp"] = json!(created);
            })
        };
        let left_behind = plain(9, &[]);
        let (_, object) = only(&[left_behind.clone(), again(1, "2026-02-01T00:00:00Z")]);
        assert_eq!((object.uid.as_str(), object.generation), ("later", 1));
        let (_, object) = only(&[again(1, "2025-02-01T00:00:00Z"), left_behind]);
        assert_eq!((object.uid.as_str(), object.generation), ("uid-of-a", 9));
    }

    #[test]
    fn l11_what_was_recorded_counts_and_bytes_that_served_go_on() {
        let pin = |text: &str| digest(text).to_string();
        let served = plain(1, &[(SERVED_ANNOTATION, "true"), (PINNED_DIGEST_ANNOTATION, &pin("1"))]);
        let unserved = plain(2, &[(PINNED_DIGEST_ANNOTATION, &pin("2"))]);
        let pinned = plain(3, &[(PINNED_DIGEST_ANNOTATION, &pin("3"))]);
        assert_eq!(only(&[served.clone(), unserved.clone(), pinned]).1.pins.module(), Some(digest("3")));
        assert_eq!(only(&[served.clone(), unserved.clone(), plain(3, &[])]).1.pins.module(), Some(digest("1")));
        let other = revision(3, &[], |o| o["data"]["spec"]["module"] = json!("https://example.com/b.wasm"));
        assert_eq!(only(&[served.clone(), unserved.clone(), other]).1.pins.module(), None);
        let rollback = plain(3, &[(ROLLED_BACK_TO_ANNOTATION, "2")]);
        assert_eq!(only(&[served, unserved, rollback]).1.pins.module(), Some(digest("2")));
    }

    #[test]
    fn a_policy_in_a_shared_webhook_is_matched_by_its_revisions_in_force() {
        let shared = |generation: i64, marks: &[(&str, &str)], app: &'static str| {
            revision(generation, marks, move |o| {
                o["data"]["shared"] = json!(true);
                o["data"]["spec"]["objectSelector"] = json!({"matchLabels": {"app": app}});
            })
        };
        let selectors = |revisions: &[Revision]| -> Vec<Value> {
            let matches = only(revisions).1.matches.into_values().flatten();
            matches.map(|one| one.object_selector.expect("a selector")["matchLabels"]["app"].clone()).collect()
        };
        let group = revision(1, &[], |o| o["data"]["shared"] = json!(true)).head.group;
        let (shop, bank) = (shared(1, &[], "shop"), shared(2, &[], "bank"));
        assert_eq!((&shop.head.group, &bank.head.group), (&group, &group), "as if they had no selector");
        assert_eq!(selectors(std::slice::from_ref(&shop)), ["shop"]);
        assert_eq!(selectors(&[shop, bank.clone()]), ["bank", "shop"], "API servers may not know of the edit yet");
        assert_eq!(selectors(&[shared(1, &[(WITHDRAWN_ANNOTATION, "true")], "shop"), bank.clone()]), ["bank"]);
        assert_eq!(selectors(&[plain(1, &[]), bank]), ["bank"], "the older one has a webhook of its own");
        let alone = revision(1, &[], |o| o["data"]["spec"]["objectSelector"] = json!({"matchLabels": {"app": "shop"}}));
        assert!(alone.head.group != group && only(&[alone]).1.matches.is_empty());
    }
}
