//! The revisions that there are, each read once, as the events of a watch tell them.

use std::collections::HashMap;

use kube::ResourceExt as _;
use kube::runtime::watcher::Event;

use super::object::Object;
use super::revision::{Revision, read};
use super::snapshot::snapshot;
use crate::input::Snapshot;

/// What one object is: a revision, or why it is none.
type Entry = Result<Revision, String>;

/// The revisions of one installation.
#[derive(Default)]
pub(super) struct Store {
    entries: HashMap<String, Entry>,
    /// A list that is not complete yet. Until it is, what was known before counts.
    listing: Option<HashMap<String, Entry>>,
    complete: bool,
}

impl Store {
    /// Takes in an event. True when what there is may be another now.
    pub(super) fn take(&mut self, event: Event<Object>) -> bool {
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
                self.complete = true;
                true
            }
            Event::Apply(object) => {
                self.entries.insert(object.name_any(), read(&object));
                true
            }
            Event::Delete(object) => self.entries.remove(&object.name_any()).is_some(),
        }
    }

    /// Whether a list is on its way.
    pub(super) fn is_listing(&self) -> bool {
        self.listing.is_some() || !self.complete
    }

    /// What is wanted; nothing before the first complete list.
    pub(super) fn snapshot(&self) -> Option<Snapshot> {
        self.complete.then(|| {
            let mut snapshot = snapshot(self.entries.values().filter_map(|entry| entry.as_ref().ok()));
            let odd =
                self.entries.iter().filter_map(|(name, entry)| Some((name.clone(), entry.as_ref().err()?.clone())));
            snapshot.problems.extend(odd);
            snapshot.problems.sort();
            snapshot
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::revision::tests::object;
    use super::*;

    fn ids(store: &Store) -> Option<Vec<String>> {
        Some(store.snapshot()?.policies.iter().map(|policy| policy.id.to_string()).collect())
    }

    #[test]
    fn nothing_before_the_first_list_and_no_part_for_the_whole() {
        let mut store = Store::default();
        let one = |name: &str| object(name, 1, &[], |_| ());
        assert!(!store.take(Event::Init) && !store.take(Event::InitApply(one("a"))));
        assert_eq!((ids(&store), store.is_listing()), (None, true));
        assert!(!store.take(Event::InitApply(one("b"))));
        assert!(store.take(Event::InitDone) && !store.is_listing());
        assert_eq!(ids(&store), Some(vec!["cluster/a".to_owned(), "cluster/b".to_owned()]));
        // A list again: what was known counts until it is complete.
        store.take(Event::Init);
        store.take(Event::InitApply(one("b")));
        assert_eq!(ids(&store).map(|ids| ids.len()), Some(2));
        store.take(Event::InitDone);
        assert_eq!(ids(&store), Some(vec!["cluster/b".to_owned()]));
    }

    #[test]
    fn r06_a_list_that_breaks_off_is_forgotten() {
        let mut store = Store::default();
        store.take(Event::Init);
        store.take(Event::InitApply(object("a", 1, &[], |_| ())));
        store.take(Event::Init);
        store.take(Event::InitDone);
        assert_eq!(ids(&store), Some(Vec::new()));
    }

    #[test]
    fn one_that_is_nobodys_is_told_and_harms_no_other() {
        let mut store = Store::default();
        store.take(Event::InitDone);
        assert!(store.take(Event::Apply(object("a", 1, &[], |_| ()))));
        let odd = object("b", 1, &[], |o| {
            o["data"] = json!([]);
            o["metadata"]["labels"] = json!(null);
        });
        store.take(Event::Apply(odd));
        assert_eq!(ids(&store), Some(vec!["cluster/a".to_owned()]));
        assert_eq!(store.snapshot().map(|snapshot| snapshot.problems.len()), Some(1));
        assert!(store.take(Event::Delete(object("a", 1, &[], |_| ()))));
        assert!(!store.take(Event::Delete(object("a", 1, &[], |_| ()))));
        assert_eq!(ids(&store), Some(Vec::new()));
    }
}
