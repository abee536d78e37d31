//! The objects that were deleted last. The answer to a write of ours may come after a watch has reported that its object is gone, and must
//! not put the object back: nothing would report its deletion again.

use std::collections::{BTreeSet, VecDeque};

/// How many are known: more than can be deleted while an answer is on its way. Anybody may delete objects, so there is a limit.
const MOST: usize = 4096;

/// The objects that were deleted last, by uid.
#[derive(Debug, Default)]
pub(super) struct Deleted {
    uids: BTreeSet<String>,
    /// The same, the oldest first.
    order: VecDeque<String>,
}

impl Deleted {
    pub(super) fn note(&mut self, uid: &str) {
        if !self.uids.insert(uid.to_owned()) {
            return;
        }
        self.order.push_back(uid.to_owned());
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.uids.remove(&oldest);
        }
    }

    pub(super) fn has(&self, uid: &str) -> bool {
        self.uids.contains(uid)
    }

    /// Forgets an object that is there after all: it waits for a finalizer of somebody else, or etcd was restored.
    pub(super) fn forget(&mut self, uid: &str) {
        if self.uids.remove(uid) {
            self.order.retain(|known| known != uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_many_are_known() {
        let mut deleted = Deleted::default();
        (0..=MOST).for_each(|number| deleted.note(&number.to_string()));
        assert!(!deleted.has("0") && deleted.has("1") && deleted.has(&MOST.to_string()));
        deleted.note("1");
        deleted.forget("1");
        assert!(!deleted.has("1"));
        assert_eq!((deleted.uids.len(), deleted.order.len()), (MOST - 1, MOST - 1));
    }
}
