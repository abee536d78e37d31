//! The revisions of an installation, kept up to date from the events of a watch. Each is read once.
//!
//! Settings may be large, and a policy has many revisions. So they are kept only of those that may serve: the newest revision of a policy, and
//! the newest older one that served. If one of these is deleted and settings of another are needed, everything is listed again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use kube::ResourceExt as _;
use kube::runtime::watcher::Event;

use super::object::Object;
use super::revision::{Revision, UnknownOwner, read};
use super::snapshot::{snapshot, with_settings};
use crate::content::Body;
use crate::input::Snapshot;

/// How long a revision still counts that was not deleted by the controller, which marks a revision first. The controller makes it again, and
/// the policy must not leave its group meanwhile.
const MISSED: Duration = Duration::from_secs(600);

/// One object: a revision, or why it cannot be read as one.
type Entry = Result<Revision, UnknownOwner>;

/// The revisions of one installation.
#[derive(Default)]
pub(super) struct Store {
    entries: HashMap<String, Entry>,
    /// A list that is not complete yet. Until it is, the earlier entries count.
    listing: Option<HashMap<String, Entry>>,
    /// Revisions in force that were deleted without a mark, and until when they count.
    missed: HashMap<String, (Revision, Instant)>,
    complete: bool,
    /// Whether settings are needed that were not kept.
    wants_list: bool,
}

impl Store {
    /// Takes in an event. True when the snapshot may have changed.
    pub(super) fn take(&mut self, event: Event<Object>, now: Instant) -> bool {
        match event {
            Event::Init => {
                self.listing = Some(HashMap::new());
                self.wants_list = false;
                false
            }
            Event::InitApply(object) => {
                self.listing.get_or_insert_default().insert(object.name_any(), read(&object));
                false
            }
            Event::InitDone => {
                self.entries = self.listing.take().unwrap_or_default();
                self.missed.retain(|name, _| !self.entries.contains_key(name));
                self.complete = true;
                true
            }
            Event::Apply(object) => {
                let name = object.name_any();
                self.missed.remove(&name);
                self.entries.insert(name, read(&object));
                true
            }
            Event::Delete(object) => {
                let name = object.name_any();
                let Some(entry) = self.entries.remove(&name) else { return false };
                if let Ok(revision) = entry
                    && !revision.marks.deleted
                    && !revision.marks.withdrawn
                {
                    tracing::warn!(
                        name,
                        "a revision was deleted, and not by the controller; it counts until the controller has made it again"
                    );
                    self.missed.insert(name, (revision, now + MISSED));
                }
                true
            }
        }
    }

    /// Forgets deleted revisions that no longer count. True if there were any.
    pub(super) fn forget(&mut self, now: Instant) -> bool {
        let before = self.missed.len();
        self.missed.retain(|_, (_, until)| *until > now);
        self.missed.len() < before
    }

    /// Whether everything must be listed again. True once for each list.
    pub(super) fn take_list_wish(&mut self) -> bool {
        std::mem::take(&mut self.wants_list)
    }

    /// Whether a list is on its way.
    #[cfg(test)]
    fn is_listing(&self) -> bool {
        self.listing.is_some() || !self.complete
    }

    /// The policies to serve; `None` before the first complete list, and until the next one where settings are missing.
    pub(super) fn snapshot(&mut self) -> Option<Snapshot> {
        if !self.complete || !self.drop_settings() {
            return None;
        }
        let mut snapshot = snapshot(self.revisions());
        let odd =
            self.entries.iter().filter_map(|(name, entry)| Some((name.clone(), entry.as_ref().err()?.to_string())));
        snapshot.problems.extend(odd);
        snapshot.problems.sort();
        Some(snapshot)
    }

    fn revisions(&self) -> impl Iterator<Item = &Revision> {
        let there = self.entries.values().filter_map(|entry| entry.as_ref().ok());
        there.chain(self.missed.values().map(|(revision, _)| revision))
    }

    /// Drops the settings that are not used. False if others are missing, which a list brings.
    fn drop_settings(&mut self) -> bool {
        let used = with_settings(self.revisions());
        let lacks = |revision: &Revision| revision.body.as_ref().is_ok_and(Body::lacks_settings);
        // A list does not bring what was deleted.
        let there = self.entries.values().filter_map(|entry| entry.as_ref().ok());
        if there.filter(|revision| used.contains(&revision.name)).any(lacks) {
            self.wants_list = self.listing.is_none();
            return false;
        }
        let there = self.entries.values_mut().filter_map(|entry| entry.as_mut().ok());
        let all = there.chain(self.missed.values_mut().map(|(revision, _)| revision));
        for revision in all.filter(|revision| !used.contains(&revision.name)) {
            if let Ok(body) = &mut revision.body
                && !body.lacks_settings()
            {
                body.drop_settings();
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use portcullis_api::revision::{DELETED_ANNOTATION, SERVED_ANNOTATION, WITHDRAWN_ANNOTATION};
    use serde_json::json;

    use super::super::revision::tests::object;
    use super::*;

    fn take(store: &mut Store, event: Event<Object>) -> bool {
        store.take(event, Instant::now())
    }

    fn ids(store: &mut Store) -> Option<Vec<String>> {
        Some(store.snapshot()?.policies.iter().map(|policy| policy.id.to_string()).collect())
    }

    #[test]
    fn nothing_before_the_first_list_and_no_part_for_the_whole() {
        let mut store = Store::default();
        let one = |name: &str| object(name, 1, &[], |_| ());
        assert!(!take(&mut store, Event::Init) && !take(&mut store, Event::InitApply(one("a"))));
        assert_eq!((ids(&mut store), store.is_listing()), (None, true));
        assert!(!take(&mut store, Event::InitApply(one("b"))));
        assert!(take(&mut store, Event::InitDone) && !store.is_listing());
        assert_eq!(ids(&mut store), Some(vec!["cluster/a".to_owned(), "cluster/b".to_owned()]));
        // A second list: the earlier entries count until it is complete.
        take(&mut store, Event::Init);
        take(&mut store, Event::InitApply(one("b")));
        assert_eq!(ids(&mut store).map(|ids| ids.len()), Some(2));
        take(&mut store, Event::InitDone);
        assert_eq!(ids(&mut store), Some(vec!["cluster/b".to_owned()]));
    }

    #[test]
    fn r06_a_list_that_breaks_off_is_forgotten() {
        let mut store = Store::default();
        take(&mut store, Event::Init);
        take(&mut store, Event::InitApply(object("a", 1, &[], |_| ())));
        take(&mut store, Event::Init);
        take(&mut store, Event::InitDone);
        assert_eq!(ids(&mut store), Some(Vec::new()));
    }

    #[test]
    fn one_that_is_nobodys_is_told_and_harms_no_other() {
        let mut store = Store::default();
        take(&mut store, Event::InitDone);
        assert!(take(&mut store, Event::Apply(object("a", 1, &[], |_| ()))));
        let odd = object("b", 1, &[], |o| {
            o["data"] = json!([]);
            o["metadata"]["labels"] = json!(null);
        });
        take(&mut store, Event::Apply(odd));
        assert_eq!(ids(&mut store), Some(vec!["cluster/a".to_owned()]));
        assert_eq!(store.snapshot().map(|snapshot| snapshot.problems.len()), Some(1));
        let deleted = || object("a", 1, &[(DELETED_ANNOTATION, "true")], |_| ());
        take(&mut store, Event::Apply(deleted()));
        assert!(take(&mut store, Event::Delete(deleted())));
        assert!(!take(&mut store, Event::Delete(deleted())));
        assert_eq!(ids(&mut store), Some(Vec::new()));
    }

    #[test]
    fn settings_are_shared_and_kept_of_what_may_serve_only() {
        let mut store = Store::default();
        let one = |generation| object("a", generation, &[(SERVED_ANNOTATION, "true")], |_| ());
        let list = |store: &mut Store, generations: &[i64]| {
            take(store, Event::Init);
            for generation in generations {
                take(store, Event::InitApply(one(*generation)));
            }
            take(store, Event::InitDone);
        };
        let kept = |store: &Store| {
            let kept = store.revisions().filter(|revision| revision.body.as_ref().is_ok_and(|b| !b.lacks_settings()));
            kept.map(|revision| revision.generation).collect::<BTreeSet<_>>()
        };
        list(&mut store, &[1, 2, 3, 4]);
        let policy = store.snapshot().expect("it is complete").policies.remove(0);
        let served = policy.object.and_then(|object| object.last_served).expect("it served");
        assert_eq!((kept(&store), served.generation), (BTreeSet::from([3, 4]), 3));
        let newest = policy.body.expect("good");
        for revision in store.revisions().filter(|revision| revision.generation > 2) {
            let of = if revision.generation == 4 { &newest } else { &served.body };
            let own = &revision.body.as_ref().expect("good").settings;
            assert_eq!(own.get().as_ptr(), of.settings.get().as_ptr(), "they are the same, and no copy");
        }
        // The controller removes the oldest, for which nothing need be listed.
        take(&mut store, Event::Apply(object("a", 1, &[(WITHDRAWN_ANNOTATION, "true")], |_| ())));
        take(&mut store, Event::Delete(one(1)));
        assert!(store.snapshot().is_some() && !store.take_list_wish());
        // Nobody serves what is not known: until it was listed again, the earlier snapshot counts.
        take(&mut store, Event::Apply(object("a", 3, &[(WITHDRAWN_ANNOTATION, "true")], |_| ())));
        take(&mut store, Event::Delete(one(3)));
        assert!(store.snapshot().is_none() && store.take_list_wish() && !store.take_list_wish());
        list(&mut store, &[2, 4]);
        let policy = store.snapshot().expect("it is complete").policies.remove(0);
        let served = policy.object.and_then(|object| object.last_served).expect("it served");
        assert_eq!((served.generation, served.body.settings.get()), (2, r#"{"of":2}"#));
        assert!(!store.take_list_wish());
    }

    #[test]
    fn what_a_list_cannot_bring_is_not_waited_for() {
        let mut store = Store::default();
        let one = |generation| object("a", generation, &[(SERVED_ANNOTATION, "true")], |_| ());
        for event in [Event::Init, Event::InitApply(one(1)), Event::InitApply(one(2)), Event::InitApply(one(3))] {
            take(&mut store, event);
        }
        take(&mut store, Event::InitDone);
        assert!(store.snapshot().is_some());
        // Deleted by hand, the first revision counts for its groups; what it served is gone.
        take(&mut store, Event::Delete(one(1)));
        take(&mut store, Event::Apply(object("a", 2, &[(WITHDRAWN_ANNOTATION, "true")], |_| ())));
        take(&mut store, Event::Delete(one(2)));
        let policy = store.snapshot().expect("nothing is waited for").policies.remove(0);
        assert!(policy.body.is_ok() && policy.object.is_some_and(|object| object.last_served.is_none()));
        assert!(!store.take_list_wish());
    }

    #[test]
    fn z18_a_revision_that_is_deleted_by_hand_counts_until_it_is_made_again() {
        let (mut store, now) = (Store::default(), Instant::now());
        let one = |name: &str| object(name, 1, &[], |_| ());
        [Event::Init, Event::InitApply(one("a")), Event::InitApply(one("b")), Event::InitDone].into_iter().for_each(
            |event| {
                store.take(event, now);
            },
        );
        store.take(Event::Delete(one("a")), now);
        assert_eq!(ids(&mut store).map(|ids| ids.len()), Some(2));
        // Once the revision is made again, only the new one counts.
        store.take(Event::Apply(object("a", 1, &[(WITHDRAWN_ANNOTATION, "true")], |_| ())), now);
        assert!(!store.forget(now + MISSED));
        // The controller may remove revisions that are no longer in force without marking them again.
        store.take(Event::Delete(one("a")), now);
        assert_eq!(ids(&mut store), Some(vec!["cluster/b".to_owned()]));
        store.take(Event::Delete(one("b")), now);
        assert!(!store.forget(now) && store.forget(now + MISSED));
        assert_eq!(ids(&mut store), Some(Vec::new()));
    }
}
