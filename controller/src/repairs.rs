//! Repairs of webhooks that something else changes again each time, such as an admission plugin or another tool: when the next one may be written.
//! Otherwise the two would write as fast as the API server lets them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use portcullis_util::Backoff;

use crate::action::Key;

/// The wait between repairs. Even the longest leaves time to repair within the 5 s of docs/design/faults.md, row W02.
const PACE: Backoff = Backoff { shortest: Duration::from_millis(200), longest: Duration::from_secs(3) };
/// A webhook that nobody changed for this long is repaired at once.
const QUIET: Duration = Duration::from_secs(60);

/// The webhooks that were repaired lately.
#[derive(Debug, Default)]
pub(crate) struct Repairs(BTreeMap<Key, Repaired>);

#[derive(Debug)]
struct Repaired {
    count: u32,
    last: Instant,
    /// When the next repair may be written.
    until: Instant,
}

impl Repairs {
    /// When a webhook may be repaired again; `None` if it may now.
    pub(crate) fn waits(&self, key: &Key, now: Instant) -> Option<Instant> {
        self.0.get(key).map(|repaired| repaired.until).filter(|until| *until > now)
    }

    /// Notes a repair. `random`, from 0 to 1, is the jitter of the wait.
    pub(crate) fn note(&mut self, key: Key, now: Instant, random: f64) {
        self.0.retain(|_, repaired| now.saturating_duration_since(repaired.last) < QUIET);
        let repaired = self.0.entry(key).or_insert(Repaired { count: 0, last: now, until: now });
        repaired.count = repaired.count.saturating_add(1);
        repaired.last = now;
        repaired.until = now + PACE.wait(repaired.count, random);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::Webhook(name.to_owned())
    }

    #[test]
    fn a_webhook_that_is_changed_each_time_is_repaired_less_and_less_often() {
        let (mut repairs, start) = (Repairs::default(), Instant::now());
        let (mut now, mut count) = (start, 0);
        while now < start + Duration::from_secs(60) {
            repairs.note(key("a"), now, 1.0);
            count += 1;
            let next = repairs.waits(&key("a"), now).expect("it waits");
            assert!(next <= now + PACE.longest);
            now = next;
        }
        assert!((20..30).contains(&count), "{count}");
        assert_eq!(repairs.waits(&key("b"), start), None, "others do not wait");
    }

    #[test]
    fn after_a_quiet_minute_the_wait_is_short_again() {
        let (mut repairs, start) = (Repairs::default(), Instant::now());
        (0..10).for_each(|_| repairs.note(key("a"), start, 1.0));
        let later = start + QUIET;
        assert_eq!(repairs.waits(&key("a"), later), None);
        repairs.note(key("b"), later, 1.0);
        assert_eq!(repairs.0.len(), 1, "it is forgotten");
        repairs.note(key("a"), later, 1.0);
        assert_eq!(repairs.waits(&key("a"), later), Some(later + PACE.shortest));
    }
}
