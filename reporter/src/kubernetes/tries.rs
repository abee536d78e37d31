//! The writes of status that failed, by policy: how long to wait before the next try, and which policies the API server has no room for. Pure.
//!
//! An object that leaves no room for its status is refused with code 500, like everything else while the database has trouble. But a leader that has
//! written nothing for a while loses its Lease. So where it goes on, the API server takes writes, and the trouble is the object's own; or that of the
//! kind, as where somebody's webhook for it does not answer, and then it is over for all when it is over for one.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use portcullis_contract::PolicyId;
use portcullis_kubernetes::{CallError, Retry};

use super::object::PolicyObject;

/// How long the same version of an object is refused with code 500 before it counts as the object's own trouble. This is two lives of a Lease.
const PATIENCE: Duration = Duration::from_secs(30);
/// The pause from then on, unless the object changes.
const AGAIN: Duration = Duration::from_secs(60);

/// The policies of which the last write failed.
#[derive(Debug, Default)]
pub(crate) struct Tries(BTreeMap<PolicyId, Try>);

#[derive(Debug, Default)]
struct Try {
    retry: Retry,
    /// The version of the object that was to be written last.
    version: String,
    /// Since when each answer for this version was code 500; none if the last one was not.
    refused: Option<Instant>,
    /// Whether the API server has told, for this version, that it knows all fields of the status.
    knows_all: bool,
    /// Whether it counts as the object's own trouble, so that the next try is far away.
    is_rare: bool,
    /// Whether it was said that the object is the trouble.
    is_said: bool,
}

/// What follows from a failed write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// How long to wait before the next try.
    pub(crate) pause: Duration,
    /// Whether it is news that this object is the trouble.
    pub(crate) is_news: bool,
}

/// What follows from a write that succeeded.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Success {
    /// Whether it was said that the object is the trouble.
    pub(crate) was_said: bool,
    /// Other policies to try again now: this one was refused like them.
    pub(crate) others: Vec<PolicyId>,
}

impl Tries {
    /// Notes that a write failed. `knows_all` is whether the API server has told that it knows all fields; `random` is from 0 to 1.
    pub(crate) fn failed(
        &mut self,
        object: &PolicyObject,
        error: &CallError,
        knows_all: bool,
        random: f64,
        now: Instant,
    ) -> Verdict {
        let one = self.0.entry(object.id.clone()).or_default();
        if one.version != object.meta.version {
            one.version.clone_from(&object.meta.version);
            (one.refused, one.knows_all, one.is_rare) = (None, false, false);
        }
        one.knows_all |= knows_all;
        let pause = one.retry.pause(error, random);
        if error.code() != Some(500) {
            (one.refused, one.is_rare) = (None, false);
            return Verdict { pause, is_news: false };
        }
        let since = *one.refused.get_or_insert(now);
        one.is_rare = now.saturating_duration_since(since) >= PATIENCE;
        if !one.is_rare {
            return Verdict { pause, is_news: false };
        }
        let is_news = !std::mem::replace(&mut one.is_said, true);
        Verdict { pause: AGAIN.mul_f64(0.8 + 0.2 * random), is_news }
    }

    /// Whether the API server is to be asked which fields it knows, if it refuses this version: until it has told that it knows all, and again with
    /// each of the rare tries of a policy that it has no room for, as that may not have been the trouble.
    pub(crate) fn may_ask(&self, object: &PolicyObject) -> bool {
        let known = self.0.get(&object.id).filter(|one| one.version == object.meta.version);
        known.is_none_or(|one| !one.knows_all || one.is_rare)
    }

    /// Whether the object has changed since it was refused for so long that the next try is far away.
    pub(crate) fn is_outdated(&mut self, object: &PolicyObject) -> bool {
        let Some(one) = self.0.get_mut(&object.id) else { return false };
        one.version != object.meta.version && std::mem::take(&mut one.is_rare)
    }

    /// Notes that a policy was written.
    pub(crate) fn succeeded(&mut self, id: &PolicyId) -> Success {
        let Some(one) = self.0.remove(id) else { return Success::default() };
        let is_over = one.refused.is_some();
        let others = self.0.iter_mut().filter_map(|(id, other)| {
            let is_to_try = is_over && std::mem::take(&mut other.is_rare);
            is_to_try.then(|| id.clone())
        });
        Success { was_said: one.is_said, others: others.collect() }
    }

    /// Removes policies that are gone.
    pub(crate) fn retain(&mut self, is_there: impl Fn(&PolicyId) -> bool) {
        self.0.retain(|id, _| is_there(id));
    }
}

#[cfg(test)]
mod tests {
    use portcullis_api::Kind;
    use serde_json::json;

    use super::*;

    fn object(version: &str) -> PolicyObject {
        let metadata = json!({"name": "a", "uid": "u", "resourceVersion": version, "generation": 1});
        PolicyObject::of(Kind::ClusterPolicy, &json!({ "metadata": metadata, "spec": {} })).expect("a policy")
    }

    fn refused(code: u16) -> CallError {
        CallError::Refused { code, retry_after: None, message: String::new() }
    }

    /// Fails with this code as often as the pauses allow, for this many seconds from `start`. Returns the number of tries and the news.
    fn fail(tries: &mut Tries, version: &str, code: u16, start: Instant, seconds: u64) -> (usize, usize) {
        let (mut now, mut count, mut news) = (start, 0, 0);
        while now < start + Duration::from_secs(seconds) {
            let verdict = tries.failed(&object(version), &refused(code), true, 1.0, now);
            count += 1;
            news += usize::from(verdict.is_news);
            now += verdict.pause;
        }
        (count, news)
    }

    #[test]
    fn an_object_without_room_for_its_status_is_tried_every_minute_and_said_once() {
        let (mut tries, start) = (Tries::default(), Instant::now());
        let (count, news) = fail(&mut tries, "1", 500, start, 3600);
        assert!((60..75).contains(&count) && news == 1, "{count} tries, {news} news");
        assert!(!tries.is_outdated(&object("1")));
        assert!(tries.is_outdated(&object("2")), "it is tried at once when it has changed");
        assert!(!tries.is_outdated(&object("2")), "and once");
        let later = start + Duration::from_secs(4000);
        let verdict = tries.failed(&object("2"), &refused(500), true, 1.0, later);
        assert!(verdict.pause <= Duration::from_secs(4) && !verdict.is_news, "{verdict:?}");
        assert_eq!(fail(&mut tries, "2", 500, later, 3600).1, 0, "it was said");
        let id = object("2").id;
        assert_eq!([tries.succeeded(&id), tries.succeeded(&id)].map(|success| success.was_said), [true, false]);
        assert_eq!(fail(&mut tries, "3", 500, later, 60).1, 1, "it is news again");
    }

    #[test]
    fn when_one_is_written_that_was_refused_the_others_are_tried_at_once() {
        let (mut tries, start) = (Tries::default(), Instant::now());
        fail(&mut tries, "1", 500, start, 60);
        let [fine, refused_once] = ["cluster/fine", "cluster/refused"]
            .map(|id| PolicyObject { id: id.parse().expect("an id"), ..object("1") });
        assert_eq!(tries.succeeded(&fine.id), Success::default(), "it was never refused");
        tries.failed(&fine, &refused(409), false, 1.0, start);
        assert_eq!(tries.succeeded(&fine.id).others, []);
        for others in [vec![object("1").id], vec![]] {
            tries.failed(&refused_once, &refused(500), true, 1.0, start);
            assert_eq!(tries.succeeded(&refused_once.id).others, others);
        }
    }

    #[test]
    fn other_trouble_is_no_trouble_of_the_object() {
        for code in [403, 409, 429, 503] {
            let (mut tries, start) = (Tries::default(), Instant::now());
            let (count, news) = fail(&mut tries, "1", code, start, 600);
            assert!(count > 30 && news == 0, "{code}: {count} tries");
        }
        let (mut tries, start) = (Tries::default(), Instant::now());
        for round in 0..40 {
            let now = start + Duration::from_secs(20 * round);
            assert_eq!(fail(&mut tries, "1", 500, now, 15).1, 0);
            tries.failed(&object("1"), &CallError::TimedOut, false, 1.0, now + Duration::from_secs(16));
        }
    }

    #[test]
    fn the_api_server_is_asked_which_fields_it_knows_until_it_knows_all_of_a_version() {
        let (mut tries, start) = (Tries::default(), Instant::now());
        assert!(tries.may_ask(&object("1")));
        tries.failed(&object("1"), &refused(500), false, 1.0, start);
        assert!(tries.may_ask(&object("1")), "it did not answer, or does not know all");
        tries.failed(&object("1"), &refused(500), true, 1.0, start);
        assert_eq!((tries.may_ask(&object("1")), tries.may_ask(&object("2"))), (false, true));
        fail(&mut tries, "1", 500, start, 60);
        assert!(tries.may_ask(&object("1")), "with each of the rare tries");
    }
}
