//! Which status is written next, and when: at once, within limits for each policy and for all together. Each policy has one slot.
//! Only its name waits there: the status is decided just before it is written. Namespaces take turns, so that the policies of one do not hold
//! up the status of others. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use portcullis_contract::PolicyId;

use super::urgency::Urgency;

/// Writes of a policy before it has to wait. A new policy needs these: it is seen, it is loaded by all replicas, API servers call it.
const BURST: f64 = 3.0;
/// Writes of one policy in a second, after that.
const PER_POLICY: f64 = 1.0;
/// How long the status may lag when loading has begun.
const SOON: Duration = Duration::from_secs(1);
/// The least time between a write and the next one that only shows progress.
const PROGRESS: Duration = Duration::from_secs(10);
/// The least time between a write and the next one that only says when pods try again.
const RETRIES: Duration = Duration::from_secs(60);
/// The part of all writes that may be used for less urgent ones. The rest is kept for urgent ones.
const CAN_WAIT: f64 = 0.2;
/// The most calls under way at the same time.
const IN_FLIGHT: usize = 16;

/// A token bucket: permits that come back with time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bucket {
    permits: f64,
    most: f64,
    per_second: f64,
    at: Instant,
}

impl Bucket {
    /// A full bucket.
    pub(crate) fn new(most: f64, per_second: f64, now: Instant) -> Self {
        Self { permits: most, most, per_second, at: now }
    }

    fn level(&self, now: Instant) -> f64 {
        let gained = now.saturating_duration_since(self.at).as_secs_f64() * self.per_second;
        (self.permits + gained).min(self.most)
    }

    /// Whether it is as full as a new one.
    pub(crate) fn is_full(&self, now: Instant) -> bool {
        self.level(now) >= self.most
    }

    /// When there is a permit: `now`, or later.
    pub(crate) fn free_at(&self, now: Instant) -> Instant {
        let lacking = 1.0 - self.level(now);
        // A microsecond more, so that there is a permit at that time in spite of rounding.
        if lacking <= 0.0 {
            now
        } else {
            now + Duration::from_secs_f64(lacking / self.per_second) + Duration::from_micros(1)
        }
    }

    /// Takes a permit.
    pub(crate) fn take(&mut self, now: Instant) {
        self.permits = self.level(now) - 1.0;
        self.at = now;
    }
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Next {
    /// Write this policy's status.
    Write(PolicyId),
    /// Wait until this time.
    At(Instant),
    /// Wait for the next change.
    Idle,
}

#[derive(Debug)]
struct Slot {
    /// Since when a write is wanted, and how soon.
    wanted: Option<(Instant, Urgency)>,
    /// When the last write began.
    written: Option<Instant>,
    not_before: Instant,
    bucket: Bucket,
    in_flight: bool,
}

/// The slots of all policies.
#[derive(Debug)]
pub(crate) struct Pace {
    slots: BTreeMap<PolicyId, Slot>,
    all: Bucket,
    can_wait: Bucket,
    in_flight: usize,
    /// When each namespace had its last turn, as the number of that write, if it has policies.
    served: BTreeMap<String, u64>,
    turns: u64,
}

/// The namespace of a policy; empty for cluster-wide ones, which take turns like one namespace.
fn namespace(id: &PolicyId) -> &str {
    id.namespace().unwrap_or_default()
}

impl Slot {
    /// When this policy may be written by its own limits.
    fn due(&self, now: Instant) -> Instant {
        let patient = match (self.wanted, self.written) {
            (Some((_, Urgency::Progress)), Some(written)) => written + PROGRESS,
            (Some((_, Urgency::Retries)), Some(written)) => written + RETRIES,
            (Some((since, Urgency::Soon | Urgency::Progress | Urgency::Retries | Urgency::Refused)), _) => since + SOON,
            (Some((_, Urgency::Now)) | None, _) => now,
        };
        self.not_before.max(self.bucket.free_at(now)).max(patient)
    }
}

impl Pace {
    /// A pace of at most `per_second` writes in all.
    pub(crate) fn new(per_second: u32, now: Instant) -> Self {
        let per_second = f64::from(per_second.max(1));
        // At most the writes of a tenth of a second at once, so that the limit holds in every second and not only on average.
        let bucket = |per_second: f64| Bucket::new((per_second / 10.0).max(1.0), per_second, now);
        let (all, can_wait) = (bucket(per_second), bucket(per_second * CAN_WAIT));
        Self { slots: BTreeMap::new(), all, can_wait, in_flight: 0, served: BTreeMap::new(), turns: 0 }
    }

    /// Sets how soon a write is wanted; `None` if none is.
    pub(crate) fn want(&mut self, id: &PolicyId, wanted: Option<Urgency>, now: Instant) {
        let Some(urgency) = wanted else {
            self.slots.entry(id.clone()).and_modify(|slot| slot.wanted = None);
            return;
        };
        let slot = self.slots.entry(id.clone()).or_insert_with(|| Slot {
            wanted: None,
            written: None,
            not_before: now,
            bucket: Bucket::new(BURST, PER_POLICY, now),
            in_flight: false,
        });
        let since = slot.wanted.map_or(now, |(since, _)| since);
        slot.wanted = Some((since, urgency));
    }

    /// Ends a write. The next one has to wait until `not_before`, if that is set.
    pub(crate) fn done(&mut self, id: &PolicyId, not_before: Option<Instant>) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if let Some(slot) = self.slots.get_mut(id) {
            slot.in_flight = false;
            slot.not_before = not_before.unwrap_or(slot.not_before);
        }
    }

    /// Lets the policy be written without waiting for its `not_before`.
    pub(crate) fn expedite(&mut self, id: &PolicyId, now: Instant) {
        if let Some(slot) = self.slots.get_mut(id) {
            slot.not_before = now;
        }
    }

    /// Removes policies that are gone.
    pub(crate) fn forget(&mut self, is_there: impl Fn(&PolicyId) -> bool) {
        self.slots.retain(|id, slot| slot.in_flight || is_there(id));
        let known: BTreeSet<&str> = self.slots.keys().map(namespace).collect();
        self.served.retain(|namespace, _| known.contains(namespace.as_str()));
    }

    /// What to do now. A write counts as under way until [`Pace::done`].
    pub(crate) fn next(&mut self, now: Instant) -> Next {
        if self.in_flight >= IN_FLIGHT {
            return Next::Idle;
        }
        let patient = self.can_wait.free_at(now);
        let waiting = self.slots.iter().filter(|(_, slot)| !slot.in_flight).filter_map(|(id, slot)| {
            let (since, urgency) = slot.wanted?;
            let due = slot.due(now).max(if urgency == Urgency::Now { now } else { patient });
            // Refused ones and those that show progress take turns, or many of either would hold up the others for as long as there are some.
            let rank = urgency.min(Urgency::Progress);
            let turn = self.served.get(namespace(id));
            // Of those that may be written now, the most urgent one; of these, that of the namespace whose last turn is longest ago, and of its
            // policies the one that has waited longest. Else the one that may be written first.
            Some((due.max(now), rank, turn, since, id, urgency))
        });
        let Some((due, .., id, urgency)) = waiting.min() else { return Next::Idle };
        let at = due.max(self.all.free_at(now));
        if at > now {
            return Next::At(at);
        }
        let id = id.clone();
        self.all.take(now);
        if urgency != Urgency::Now {
            self.can_wait.take(now);
        }
        self.in_flight += 1;
        self.turns += 1;
        self.served.insert(namespace(&id).to_owned(), self.turns);
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.bucket.take(now);
            slot.in_flight = true;
            slot.wanted = None;
            slot.written = Some(now);
        }
        Next::Write(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> PolicyId {
        format!("cluster/{name}").parse().expect("an id")
    }

    fn writes(pace: &mut Pace, now: Instant) -> usize {
        let mut writes = 0;
        while let Next::Write(id) = pace.next(now) {
            pace.done(&id, None);
            writes += 1;
        }
        writes
    }

    #[test]
    fn the_first_change_goes_at_once_and_later_ones_once_a_second() {
        let start = Instant::now();
        let mut pace = Pace::new(50, start);
        let mut times = Vec::new();
        for step in 0..100 {
            let now = start + Duration::from_millis(100 * step);
            pace.want(&id("a"), Some(Urgency::Now), now);
            if writes(&mut pace, now) > 0 {
                times.push(step / 10);
            }
        }
        assert_eq!(times, [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn all_together_keep_to_the_limit_and_none_waits_for_ever() {
        let start = Instant::now();
        let mut pace = Pace::new(50, start);
        for number in 0..200 {
            pace.want(&id(&format!("p{number}")), Some(Urgency::Now), start);
        }
        let mut total = 0;
        for step in 0..=300 {
            total += writes(&mut pace, start + Duration::from_millis(10 * step));
            assert!(total as f64 <= 6.0 + step as f64 / 2.0, "{total} after {step} hundredths of a second");
        }
        assert!((150..=156).contains(&total), "{total} in three seconds");
        assert_eq!(writes(&mut pace, start + Duration::from_secs(9)), 5);
    }

    #[test]
    fn who_waits_longest_goes_first() {
        let start = Instant::now();
        let mut pace = Pace::new(50, start);
        pace.want(&id("z"), Some(Urgency::Now), start);
        pace.want(&id("a"), Some(Urgency::Now), start + Duration::from_millis(1));
        assert_eq!(pace.next(start + Duration::from_millis(2)), Next::Write(id("z")));
    }

    #[test]
    fn the_policies_of_one_namespace_do_not_hold_up_that_of_another() {
        let start = Instant::now();
        let mut pace = Pace::new(50, start);
        let of = |namespace: &str, number: usize| -> PolicyId {
            format!("namespaced/{namespace}/p{number}").parse().expect("an id")
        };
        let flood: Vec<_> = (0..500).map(|number| of("flood", number)).collect();
        flood.iter().for_each(|id| pace.want(id, Some(Urgency::Now), start));
        for step in 1..200 {
            let now = start + Duration::from_millis(100 * step);
            while let Next::Write(id) = pace.next(now) {
                pace.done(&id, None);
                pace.want(&id, Some(Urgency::Now), now);
            }
        }
        let now = start + Duration::from_secs(20);
        pace.want(&of("quiet", 1), Some(Urgency::Now), now);
        let picks = [(); 2].map(|()| pace.next(now));
        assert!(picks.contains(&Next::Write(of("quiet", 1))), "{picks:?}");
        // What is less urgent takes turns, too.
        pace.done(&of("quiet", 1), None);
        flood.iter().for_each(|id| pace.want(id, Some(Urgency::Refused), now));
        let later = now + Duration::from_secs(60);
        pace.want(&of("quiet", 1), Some(Urgency::Progress), now);
        let picks = [(); 2].map(|()| pace.next(later));
        assert!(picks.contains(&Next::Write(of("quiet", 1))), "{picks:?}");
        pace.forget(|id| id.namespace() == Some("flood"));
        assert_eq!(pace.served.len(), 2, "one is on its way");
        pace.done(&of("quiet", 1), None);
        pace.forget(|id| id.namespace() == Some("flood"));
        assert_eq!(pace.served.keys().collect::<Vec<_>>(), ["flood"]);
    }

    #[test]
    fn one_write_of_a_policy_is_on_its_way_at_a_time() {
        let start = Instant::now();
        let mut pace = Pace::new(50, start);
        pace.want(&id("a"), Some(Urgency::Now), start);
        assert_eq!(pace.next(start), Next::Write(id("a")));
        pace.want(&id("a"), Some(Urgency::Now), start);
        assert_eq!(pace.next(start), Next::Idle);
        pace.done(&id("a"), None);
        assert_eq!(pace.next(start), Next::Write(id("a")));
    }

    #[test]
    fn a_slow_api_server_has_a_bounded_number_of_calls() {
        let start = Instant::now();
        let mut pace = Pace::new(1000, start);
        for number in 0..100 {
            pace.want(&id(&format!("p{number}")), Some(Urgency::Now), start);
        }
        let given = (0..100).filter(|_| matches!(pace.next(start), Next::Write(_))).count();
        assert_eq!(given, IN_FLIGHT);
    }

    #[test]
    fn a_failed_write_waits_unless_there_is_news() {
        let start = Instant::now();
        let mut pace = Pace::new(50, start);
        let later = start + Duration::from_secs(4);
        pace.want(&id("a"), Some(Urgency::Now), start);
        assert_eq!(pace.next(start), Next::Write(id("a")));
        pace.done(&id("a"), Some(later));
        pace.want(&id("a"), Some(Urgency::Now), start);
        assert_eq!(pace.next(start), Next::At(later));
        pace.expedite(&id("a"), start);
        assert_eq!(pace.next(start), Next::Write(id("a")));
    }

    #[test]
    fn a_wish_can_be_withdrawn() {
        let start = Instant::now();
        let mut pace = Pace::new(50, start);
        pace.want(&id("a"), Some(Urgency::Now), start);
        pace.want(&id("a"), None, start);
        assert_eq!(pace.next(start), Next::Idle);
    }

    #[test]
    fn what_can_wait_is_overtaken() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut pace = Pace::new(50, start);
        pace.want(&id("a"), Some(Urgency::Soon), start);
        assert_eq!(pace.next(start), Next::At(at(1000)));
        pace.want(&id("a"), Some(Urgency::Now), at(300));
        assert_eq!(writes(&mut pace, at(300)), 1);
        pace.want(&id("a"), Some(Urgency::Progress), at(900));
        assert_eq!(pace.next(at(900)), Next::At(at(10_300)), "what it tells is that it goes on");
        pace.want(&id("b"), Some(Urgency::Soon), at(900));
        assert_eq!(pace.next(at(1900)), Next::Write(id("b")), "nothing better came");
        pace.want(&id("a"), Some(Urgency::Retries), at(1900));
        assert_eq!(pace.next(at(1900)), Next::At(at(60_300)), "that pods try again as before");
    }

    #[test]
    fn many_that_can_wait_leave_room_for_those_that_cannot() {
        let start = Instant::now();
        let mut pace = Pace::new(50, start);
        for number in 0..100 {
            pace.want(&id(&format!("p{number}")), Some(Urgency::Soon), start);
        }
        pace.want(&id("urgent"), Some(Urgency::Now), start + SOON);
        assert_eq!(pace.next(start + SOON), Next::Write(id("urgent")));
        pace.done(&id("urgent"), None);
        let written: usize =
            (0..100).map(|step| writes(&mut pace, start + SOON + Duration::from_millis(10 * step))).sum();
        assert!((9..=12).contains(&written), "{written} in a second");
    }
}
