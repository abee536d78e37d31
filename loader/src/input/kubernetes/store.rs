//! The revisions of an installation, kept up to date from the events of a watch. Each is read once.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use kube::ResourceExt as _;
use kube::runtime::watcher::Event;

use super::object::Object;
use super::revision::{Revision, UnknownOwner, read};
use super::snapshot::snapshot;
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
}

impl Store {
    /// Takes in an event. True when the snapshot may have changed.
    pub(super) fn take(&mut self, event: Event<Object>, now: Instant) -> bool {
        match event {
            Event::Init => {
                self.listing = Some(HashMap::new());
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

    /// Whether a list is on its way.
    #[cfg(test)]
    fn is_listing(&self) -> bool {
        self.listing.is_some() || !self.complete
    }

    /// The policies to serve; `None` before the first complete list.
    pub(super) fn snapshot(&self) -> Option<Snapshot> {
        self.complete.then(|| {
            let there = self.entries.values().filter_map(|entry| entry.as_ref().ok());
            let mut snapshot = snapshot(there.chain(self.missed.values().map(|(revision, _)| revision)));
            let odd =
                self.entries.iter().filter_map(|(name, entry)| Some((name.clone(), entry.as_ref().err()?.to_string())));
            snapshot.problems.extend(odd);
            snapshot.problems.sort();
            snapshot
        })
    }
}

#[cfg(test)]
mod tests {
    use portcullis_api::revision::{DELETED_ANNOTATION, WITHDRAWN_ANNOTATION};
    use serde_json::json;

    use super::super::revision::tests::object;
    use super::*;

    fn take(store: &mut Store, event: Event<Object>) -> bool {
        store.take(event, Instant::now())
    }

    fn ids(store: &Store) -> Option<Vec<String>> {
        Some(store.snapshot()?.policies.iter().map(|policy| policy.id.to_string()).collect())
    }

    #[test]
    fn nothing_before_the_first_list_and_no_part_for_the_whole() {
        let mut store = Store::default();
        let one = |name: &str| object(name, 1, &[], |_| ());
        assert!(!take(&mut store, Event::Init) && !take(&mut store, Event::InitApply(one("a"))));
        assert_eq!((ids(&store), store.is_listing()), (None, true));
        assert!(!take(&mut store, Event::InitApply(one("b"))));
        assert!(take(&mut store, Event::InitDone) && !store.is_listing());
        assert_eq!(ids(&store), Some(vec!["cluster/a".to_owned(), "cluster/b".to_owned()]));
        // A second list: the earlier entries count until it is complete.
        take(&mut store, Event::Init);
        take(&mut store, Event::InitApply(one("b")));
        assert_eq!(ids(&store).map(|ids| ids.len()), Some(2));
        take(&mut store, Event::InitDone);
        assert_eq!(ids(&store), Some(vec!["cluster/b".to_owned()]));
    }

    #[test]
    fn r06_a_list_that_breaks_off_is_forgotten() {
        let mut store = Store::default();
        take(&mut store, Event::Init);
        take(&mut store, Event::InitApply(object("a", 1, &[], |_| ())));
        take(&mut store, Event::Init);
        take(&mut store, Event::InitDone);
        assert_eq!(ids(&store), Some(Vec::new()));
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
        assert_eq!(ids(&store), Some(vec!["cluster/a".to_owned()]));
        assert_eq!(store.snapshot().map(|snapshot| snapshot.problems.len()), Some(1));
        let deleted = || object("a", 1, &[(DELETED_ANNOTATION, "true")], |_| ());
        take(&mut store, Event::Apply(deleted()));
        assert!(take(&mut store, Event::Delete(deleted())));
        assert!(!take(&mut store, Event::Delete(deleted())));
        assert_eq!(ids(&store), Some(Vec::new()));
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
        assert_eq!(ids(&store).map(|ids| ids.len()), Some(2));
        // Once the revision is made again, only the new one counts.
        store.take(Event::Apply(object("a", 1, &[(WITHDRAWN_ANNOTATION, "true")], |_| ())), now);
        assert!(!store.forget(now + MISSED));
        // The controller may remove revisions that are no longer in force without marking them again.
        store.take(Event::Delete(one("a")), now);
        assert_eq!(ids(&store), Some(vec!["cluster/b".to_owned()]));
        store.take(Event::Delete(one("b")), now);
        assert!(!store.forget(now) && store.forget(now + MISSED));
        assert_eq!(ids(&store), Some(Vec::new()));
    }
}
