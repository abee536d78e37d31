//! Decides what becomes of keys that somebody else has stored: a backup that was restored, or a tool that applies an old version. Pure.
//!
//! Pods see another Secret one by one. So the key that webhooks have becomes the current one again, and the key that was stored the next
//! one: webhooks get its paths when all replicas accept it, as with a key of our own.

use std::time::Duration;

use portcullis_contract::{PathKey, PathKeys};

use super::decide::PathRules;

/// What is known of the keys by whose paths webhooks are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InUse {
    /// These. They may be others than those that are stored.
    Keys(PathKeys),
    /// There are no webhooks, or the stored keys made their paths.
    Stored,
    /// No stored key made the path of any webhook.
    Unknown,
}

/// What to do with the keys that are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// They are used as they are.
    AsStored,
    /// Somebody else stored them. These are stored in their place; they are the same where no key is missing.
    Replaced(PathKeys),
    /// The key that webhooks have is lost. They keep their paths until replicas accept the stored key.
    Lost,
}

/// Decides what to do with stored keys. `written` are those that this controller tried to store last, as it may not have got the answer.
pub(crate) fn taken(in_use: InUse, written: Option<PathKeys>, stored: PathKeys, rules: &PathRules) -> Taken {
    let used = match in_use {
        InUse::Keys(used) => used,
        InUse::Stored => return Taken::AsStored,
        InUse::Unknown => return Taken::Lost,
    };
    if used == stored || written == Some(stored) {
        return Taken::AsStored;
    }
    if used.current == stored.current {
        // Some webhooks may still have paths of the previous key.
        let previous = used.previous.filter(|previous| stored.all().all(|key| key != *previous));
        return Taken::Replaced(PathKeys { previous: previous.or(stored.previous), ..stored });
    }
    // Whether paths have a code is a setting, which nobody changes by storing other keys.
    let is_wanted = (stored.current == PathKey::Plain) == rules.is_plain;
    let next = if is_wanted { Some(stored.current) } else { used.next };
    Taken::Replaced(PathKeys { next, ..used })
}

/// Whether replicas had the time to accept the stored key, so that webhooks get its paths although the key that they have is not stored.
/// `unchanged` is for how long the Secret has been the same. Somebody may write it again and again, and webhooks are not maintained
/// meanwhile if their key is lost, so `blocked`, the time since the first such Secret, has a limit too.
pub(crate) fn is_late(unchanged: Duration, blocked: Duration, rules: &PathRules) -> bool {
    unchanged >= rules.pause || blocked >= rules.pause.saturating_mul(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PathKey = PathKey::Secret([1; 32]);
    const B: PathKey = PathKey::Secret([2; 32]);
    const X: PathKey = PathKey::Secret([3; 32]);
    const Y: PathKey = PathKey::Secret([4; 32]);
    const RULES: PathRules = PathRules { is_plain: false, age: Duration::ZERO, pause: Duration::ZERO };

    fn keys(current: PathKey, next: Option<PathKey>, previous: Option<PathKey>) -> PathKeys {
        PathKeys { current, next, previous }
    }

    fn replaced(used: PathKeys, stored: PathKeys) -> PathKeys {
        let Taken::Replaced(keys) = taken(InUse::Keys(used), None, stored, &RULES) else { panic!("they are others") };
        keys
    }

    #[test]
    fn what_this_controller_read_or_wrote_is_its_own() {
        let (before, moved) = (keys(A, Some(B), None), keys(B, None, Some(A)));
        assert_eq!(taken(InUse::Keys(before), None, before, &RULES), Taken::AsStored);
        assert_eq!(taken(InUse::Keys(before), Some(moved), moved, &RULES), Taken::AsStored, "the answer was lost");
        assert_eq!(taken(InUse::Keys(before), Some(moved), before, &RULES), Taken::AsStored, "the write was lost");
        assert_eq!(taken(InUse::Stored, None, moved, &RULES), Taken::AsStored);
    }

    #[test]
    fn a_strange_key_is_the_next_one_and_those_in_use_stay() {
        let strange = PathKeys::only(X);
        assert_eq!(replaced(PathKeys::only(A), strange), keys(A, Some(X), None));
        assert_eq!(replaced(keys(A, Some(B), None), strange), keys(A, Some(X), None));
        assert_eq!(replaced(keys(B, None, Some(A)), strange), keys(B, Some(X), Some(A)));
        assert_eq!(replaced(PathKeys::only(A), keys(X, Some(Y), Some(B))), keys(A, Some(X), None));
    }

    #[test]
    fn an_older_state_of_the_keys_takes_no_key_from_webhooks() {
        assert_eq!(replaced(keys(B, None, Some(A)), keys(A, Some(B), None)), keys(B, Some(A), Some(A)));
        assert_eq!(replaced(keys(B, None, Some(A)), PathKeys::only(A)), keys(B, Some(A), Some(A)));
        assert_eq!(replaced(keys(B, None, Some(A)), PathKeys::only(B)), keys(B, None, Some(A)));
        assert_eq!(replaced(keys(B, None, Some(A)), keys(B, None, Some(X))), keys(B, None, Some(A)));
        assert_eq!(replaced(keys(B, None, Some(A)), keys(B, Some(A), None)), keys(B, Some(A), None));
    }

    #[test]
    fn keys_that_leave_the_current_one_are_used_as_they_are() {
        for stored in [PathKeys::only(A), keys(A, Some(X), None), keys(A, None, Some(X))] {
            assert_eq!(replaced(keys(A, Some(B), None), stored), stored);
        }
    }

    #[test]
    fn whether_paths_have_a_code_stays_a_setting() {
        let plain = PathKeys::only(PathKey::Plain);
        assert_eq!(replaced(keys(A, Some(B), None), plain), keys(A, Some(B), None));
        let rules = PathRules { is_plain: true, ..RULES };
        assert_eq!(taken(InUse::Keys(plain), None, PathKeys::only(X), &rules), Taken::Replaced(plain));
        let leaving = keys(A, Some(PathKey::Plain), None);
        assert_eq!(taken(InUse::Keys(leaving), None, plain, &rules), Taken::Replaced(leaving));
    }

    #[test]
    fn a_tool_that_repeats_itself_gets_its_key_in_the_end() {
        // Each time it takes away what it does not know, it is put back, and what follows is not begun again.
        let tool = PathKeys::only(X);
        let mut used = PathKeys::only(A);
        for then in [keys(A, Some(X), None), keys(A, Some(X), None)] {
            used = replaced(used, tool);
            assert_eq!(used, then);
        }
        let moved = keys(X, None, Some(A));
        assert_eq!(replaced(moved, tool), moved);
        assert_eq!(taken(InUse::Keys(tool), None, tool, &RULES), Taken::AsStored);
    }

    #[test]
    fn webhooks_whose_key_is_lost_wait_for_replicas() {
        assert_eq!(taken(InUse::Unknown, None, PathKeys::only(X), &RULES), Taken::Lost);
    }

    #[test]
    fn a_secret_that_is_written_again_and_again_delays_webhooks_for_two_pauses_at_most() {
        let second = Duration::from_secs(1);
        let pause = 300 * second;
        let rules = PathRules { pause, ..RULES };
        assert!(!is_late(pause - second, pause - second, &rules));
        assert!(is_late(pause, pause, &rules), "it stayed the same");
        assert!(!is_late(second, 2 * pause - second, &rules), "it is new");
        assert!(is_late(Duration::ZERO, 2 * pause, &rules), "it is new again");
    }
}
