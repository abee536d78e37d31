//! Actions that fail at the moment: when to try them again, and what the log says. It has a line for each problem when it begins, with the
//! object that has it, and a line when all actions of this kind work again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use portcullis_util::Backoff;

use crate::action::Key;
use crate::failed::{Cause, Failed, obeying};

/// The wait after failures.
const BACKOFF: Backoff = Backoff { shortest: Duration::from_millis(200), longest: Duration::from_secs(30) };
/// How many problems are logged in a minute. The others are logged later, if they last. Users can cause failures, and their number is not
/// limited.
const LINES: usize = 6;
const MINUTE: Duration = Duration::from_secs(60);
/// How many problems of one verb are remembered. After that many they may be logged again.
const PROBLEMS: usize = 64;

/// Failing actions, by object, and the problems that were logged, by verb.
#[derive(Debug, Default)]
pub(crate) struct FailingActions {
    failing: BTreeMap<Key, Failing>,
    logged: Problems,
    /// The same of those for which an action was given up.
    given_up: Problems,
    /// When the last lines were logged.
    lines: VecDeque<Instant>,
}

/// Problems, by verb.
#[derive(Debug, Default)]
struct Problems(BTreeMap<&'static str, BTreeSet<String>>);

#[derive(Debug)]
struct Failing {
    verb: &'static str,
    failures: u32,
    /// How many of the failures came although an API server could be reached.
    reached: u32,
    until: Instant,
    /// Since when each try was overtaken by a change of the object.
    overtaken: Option<Instant>,
}

impl Problems {
    /// Adds one. Returns whether it is new.
    fn add(&mut self, verb: &'static str, problem: &str) -> bool {
        let problems = self.0.entry(verb).or_default();
        if problems.contains(problem) {
            return false;
        }
        if problems.len() >= PROBLEMS {
            problems.clear();
        }
        problems.insert(problem.to_owned())
    }
}

impl FailingActions {
    /// When an action may be tried again; `None` if it may now.
    pub(crate) fn waits(&self, key: &Key, now: Instant) -> Option<Instant> {
        self.failing.get(key).map(|failing| failing.until).filter(|until| *until > now)
    }

    /// How often an action has failed since its last success although an API server could be reached.
    pub(crate) fn reached(&self, key: &Key) -> u32 {
        self.failing.get(key).map_or(0, |failing| failing.reached)
    }

    /// Notes a failure, and returns whether to log it. One because the object has changed meanwhile is simply decided again, and logged only if
    /// that goes on for a minute. `random`, from 0 to 1, is the jitter of the wait.
    pub(crate) fn fail(&mut self, key: Key, verb: &'static str, failed: &Failed, now: Instant, random: f64) -> bool {
        let begins = Failing { verb, failures: 0, reached: 0, until: now, overtaken: None };
        let failing = self.failing.entry(key).or_insert(begins);
        failing.failures = failing.failures.saturating_add(1);
        failing.reached = failing.reached.saturating_add(u32::from(failed.cause != Cause::Unreachable));
        failing.verb = verb;
        failing.until = now + obeying(failed.retry_after, BACKOFF.wait(failing.failures, random));
        if failed.cause != Cause::Overtaken {
            failing.overtaken = None;
        } else if now.duration_since(*failing.overtaken.get_or_insert(now)) < MINUTE {
            return false;
        }
        let is_told = self.has_line(now) && self.logged.add(verb, &failed.text);
        self.lines.extend(is_told.then_some(now));
        is_told
    }

    /// Notes that an action has failed and is not tried again, and returns whether to log it. Nothing waits for it, and no line says later that
    /// it works again.
    pub(crate) fn give_up(&mut self, key: &Key, verb: &'static str, failed: &Failed, now: Instant) -> bool {
        self.failing.remove(key);
        let is_told = self.has_line(now) && self.given_up.add(verb, &failed.text);
        self.lines.extend(is_told.then_some(now));
        is_told
    }

    /// Notes a success, and returns whether to log that all actions with this verb work again.
    pub(crate) fn pass(&mut self, key: &Key, verb: &'static str) -> bool {
        self.failing.remove(key);
        self.given_up.0.remove(verb);
        let others = self.failing.values().any(|failing| failing.verb == verb);
        !others && self.logged.0.remove(verb).is_some()
    }

    /// Drops failures of actions that are no longer `wanted`, and returns the verbs whose failures have ended with that.
    pub(crate) fn retain(&mut self, wanted: &BTreeSet<Key>, now: Instant) -> Vec<&'static str> {
        self.failing.retain(|key, failing| wanted.contains(key) || failing.until > now);
        let is_over = |verb: &&str| !self.failing.values().any(|failing| failing.verb == *verb);
        let ended: Vec<_> = self.logged.0.keys().copied().filter(is_over).collect();
        self.logged.0.retain(|verb, _| !ended.contains(verb));
        ended
    }

    fn has_line(&mut self, now: Instant) -> bool {
        while self.lines.front().is_some_and(|line| now.duration_since(*line) >= MINUTE) {
            self.lines.pop_front();
        }
        self.lines.len() < LINES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::Revision(name.to_owned())
    }

    fn failed(text: &str) -> Failed {
        Failed::other(text.to_owned())
    }

    #[test]
    fn a_trouble_is_told_when_it_begins_and_when_it_ends() {
        let (mut failures, now) = (FailingActions::default(), Instant::now());
        assert!(failures.fail(key("a"), "create", &failed("down"), now, 0.5));
        assert!(!failures.fail(key("b"), "create", &failed("down"), now, 0.5));
        assert!(failures.waits(&key("a"), now).is_some());
        assert!(!failures.pass(&key("a"), "create"));
        assert!(failures.pass(&key("b"), "create"));
        assert_eq!(failures.waits(&key("a"), now), None);
        assert!(failures.fail(key("a"), "create", &failed("down"), now, 0.5), "it is back");
    }

    #[test]
    fn one_that_lasts_hides_no_other() {
        let (mut failures, now) = (FailingActions::default(), Instant::now());
        assert!(failures.fail(key("a"), "create", &failed("a is forbidden"), now, 0.5));
        assert!(failures.fail(key("b"), "create", &failed("b is forbidden"), now, 0.5));
        assert!(failures.fail(key("c"), "change", &failed("a is forbidden"), now, 0.5));
        assert!(!failures.pass(&key("b"), "create"));
        assert!(!failures.fail(key("a"), "create", &failed("a is forbidden"), now + MINUTE, 0.5), "once");
    }

    #[test]
    fn of_many_problems_a_few_are_told_in_a_minute_and_the_others_later() {
        let (mut failures, mut now) = (FailingActions::default(), Instant::now());
        let mut told = |now: Instant| {
            let fails = |number: &usize| {
                failures.fail(key(&format!("{number}")), "create", &failed(&format!("{number}")), now, 0.5)
            };
            (0..PROBLEMS).filter(fails).collect::<Vec<_>>()
        };
        let mut all = BTreeSet::new();
        for _ in 0..PROBLEMS.div_ceil(LINES) {
            let lines = told(now);
            assert!((1..=LINES).contains(&lines.len()), "{lines:?}");
            assert!(lines.into_iter().all(|line| all.insert(line)), "none twice");
            assert_eq!(told(now), [0; 0]);
            now += MINUTE;
        }
        assert_eq!(all.len(), PROBLEMS);
    }

    #[test]
    fn a_write_that_somebody_else_overtook_is_no_trouble_unless_that_goes_on_for_a_minute() {
        let (mut failures, now) = (FailingActions::default(), Instant::now());
        let overtaken = Failed::overtaken("the object has been modified");
        assert!(!failures.fail(key("a"), "create", &overtaken, now, 0.5));
        assert!(failures.waits(&key("a"), now).is_some());
        assert!(!failures.pass(&key("a"), "create"));
        let mut is_told = |after: u64, failed: &Failed| {
            failures.fail(key("a"), "create", failed, now + Duration::from_secs(after), 0.5)
        };
        assert!(!is_told(60, &overtaken), "there was a success since");
        assert!(!is_told(119, &overtaken));
        assert!(is_told(120, &overtaken));
        assert!(!is_told(180, &overtaken), "once");
        assert!(is_told(181, &failed("down")));
        assert!(!is_told(182, &overtaken));
    }

    #[test]
    fn what_the_api_server_asks_for_is_obeyed_within_a_limit() {
        let (mut failures, now) = (FailingActions::default(), Instant::now());
        let mut pause = |asked: Option<u64>| {
            let busy = Failed { retry_after: asked.map(Duration::from_secs), ..failed("too many requests") };
            failures.fail(key("a"), "create", &busy, now, 1.0);
            failures.waits(&key("a"), now).expect("a wait") - now
        };
        assert_eq!(
            [pause(None), pause(Some(7)), pause(Some(3600))].map(|pause| pause.as_millis()),
            [200, 7000, 60_000]
        );
        for _ in 0..10 {
            pause(None);
        }
        assert_eq!(pause(Some(7)), BACKOFF.longest, "the longer of both");
    }

    #[test]
    fn failures_count_where_an_api_server_could_be_reached_until_one_works_or_is_given_up() {
        let (mut failures, now) = (FailingActions::default(), Instant::now());
        let mut after = |cause| {
            failures.fail(key("a"), "write_event", &Failed::of(cause, "its words".to_owned()), now, 0.5);
            failures.reached(&key("a"))
        };
        assert_eq!([Cause::Other, Cause::Unreachable, Cause::Overtaken].map(&mut after), [1, 1, 2]);
        failures.pass(&key("a"), "write_event");
        assert_eq!(failures.reached(&key("a")), 0);
        failures.fail(key("a"), "write_event", &failed("down"), now, 0.5);
        failures.give_up(&key("a"), "write_event", &failed("down"), now);
        assert_eq!(failures.reached(&key("a")), 0);
    }

    #[test]
    fn what_is_given_up_is_told_once_and_does_not_end() {
        let (mut failures, now) = (FailingActions::default(), Instant::now());
        let refused = Failed::of(Cause::Forbidden, "no rights".to_owned());
        assert!(failures.give_up(&key("a"), "write_event", &refused, now));
        assert!(!failures.give_up(&key("b"), "write_event", &refused, now), "once");
        assert_eq!(failures.waits(&key("a"), now), None);
        assert_eq!(failures.retain(&BTreeSet::new(), now + MINUTE), [""; 0]);
        assert!(!failures.pass(&key("c"), "write_event"), "nothing was to work again");
        assert!(failures.give_up(&key("a"), "write_event", &refused, now), "it is back");
        let other = |number: usize| Failed::of(Cause::Forbidden, number.to_string());
        assert_eq!(
            (0..LINES).filter(|number| failures.give_up(&key("a"), "write_event", &other(*number), now)).count(),
            LINES - 2
        );
    }

    #[test]
    fn what_nobody_wants_any_more_is_over() {
        let (mut failures, now) = (FailingActions::default(), Instant::now());
        failures.fail(key("a"), "create", &failed("down"), now, 0.5);
        assert_eq!(failures.retain(&BTreeSet::new(), now + Duration::from_secs(60)), ["create"]);
    }
}
