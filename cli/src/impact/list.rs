//! How far a list of objects has been read. A list that becomes too old meanwhile is read again from the beginning. Pure.

use std::collections::HashSet;

use serde_json::Value;

use crate::cluster::{ClusterError, Page};

/// How often a list is read again from the beginning.
const MOST_RESTARTS: u32 = 3;

/// A list that is read page by page.
#[derive(Debug, Default)]
pub(super) struct List {
    /// The continue token of the next page; empty for the first page.
    next: String,
    is_over: bool,
    /// The objects that were read already. After a restart, most of them come once more.
    seen: HashSet<String>,
    /// How many objects were read since the list was last begun.
    position: u64,
    /// How many objects there are in all; `None` if the API server does not say.
    total: Option<u64>,
    restarts: u32,
}

impl List {
    /// The continue token of the next page; `None` after the last page.
    pub(super) fn next(&self) -> Option<&str> {
        (!self.is_over).then_some(&self.next)
    }

    /// Takes a page. Gives those of its objects that were not read before.
    pub(super) fn take(&mut self, page: Page) -> Vec<Value> {
        let Page { mut objects, next, remaining } = page;
        self.is_over = next.is_empty();
        self.next = next;
        self.position += number(objects.len());
        self.total = remaining.map(|remaining| self.position.saturating_add(remaining));
        objects.retain(|object| self.seen.insert(identity(object)));
        objects
    }

    /// Goes back to the beginning if the list is too old to go on. False for any other error, and after too many restarts.
    pub(super) fn begin_again(&mut self, error: &ClusterError) -> bool {
        let is_done = error.is_expired() && self.restarts < MOST_RESTARTS;
        if is_done {
            self.restarts += 1;
            self.next.clear();
            self.position = 0;
        }
        is_done
    }

    /// How many objects were read, and how many there are if that is known.
    pub(super) fn progress(&self) -> (u64, Option<u64>) {
        let read = number(self.seen.len());
        (read, self.total.map(|total| total.max(read)))
    }
}

/// What identifies an object within its list. Some aggregated API servers give no uids.
fn identity(object: &Value) -> String {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    match text("uid") {
        "" => format!("{}/{}", text("namespace"), text("name")),
        uid => uid.to_owned(),
    }
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::Action;

    fn page(uids: &[&str], next: &str, remaining: Option<u64>) -> Page {
        let objects = uids.iter().map(|uid| json!({"metadata": {"uid": uid, "name": "same"}})).collect();
        Page { objects, next: next.to_owned(), remaining }
    }

    fn refused(code: u16) -> ClusterError {
        let action =
            Action { verb: "list", version: "v1".to_owned(), resource: "pods".into(), namespace: None, name: None };
        ClusterError::Refused { action, code, said: String::new() }
    }

    #[test]
    fn pages_follow_one_another_to_the_last() {
        let mut list = List::default();
        assert_eq!((list.next(), list.progress()), (Some(""), (0, None)));
        assert_eq!(list.take(page(&["a", "b"], "token", Some(3))).len(), 2);
        assert_eq!((list.next(), list.progress()), (Some("token"), (2, Some(5))));
        assert_eq!(list.take(page(&["c", "d", "e"], "", Some(0))).len(), 3);
        assert_eq!((list.next(), list.progress()), (None, (5, Some(5))));
    }

    #[test]
    fn a_list_that_is_too_old_is_begun_again_and_no_object_comes_twice() {
        let mut list = List::default();
        list.take(page(&["a", "b"], "token", None));
        assert!(list.begin_again(&refused(410)));
        assert_eq!(list.next(), Some(""));
        let objects = list.take(page(&["b", "c"], "token", Some(1)));
        assert_eq!(objects.iter().map(|object| object["metadata"]["uid"].as_str()).collect::<Vec<_>>(), [Some("c")]);
        assert_eq!(list.progress(), (3, Some(3)), "one was deleted meanwhile");
        assert!(!list.begin_again(&refused(500)), "another error");
        assert!(list.begin_again(&refused(410)) && list.begin_again(&refused(410)));
        assert!(!list.begin_again(&refused(410)), "often enough");
    }

    #[test]
    fn objects_without_uids_are_told_apart_by_name() {
        let named = |namespace: &str, name: &str| json!({"metadata": {"namespace": namespace, "name": name}});
        let objects = vec![named("a", "x"), named("b", "x"), named("a", "x")];
        assert_eq!(List::default().take(Page { objects, next: String::new(), remaining: None }).len(), 2);
    }
}
