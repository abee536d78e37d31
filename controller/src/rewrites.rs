//! Webhooks that are written again as they were written before, because something else changes them each time, such as an admission plugin or another
//! tool: when the next write may be. Otherwise the two would write as fast as the API server lets them.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::{Duration, Instant};

use portcullis_util::Backoff;

use crate::desired::Desired;

/// The wait between writes. Even the longest leaves time to repair within the 5 s of docs/design/faults.md, row W02.
const PACE: Backoff = Backoff { shortest: Duration::from_millis(100), longest: Duration::from_secs(2) };
/// A webhook that was not written for this long is not known any longer, so that waits begin with the shortest again.
const QUIET: Duration = Duration::from_secs(60);

/// The webhooks that were written lately, by name.
#[derive(Debug, Default)]
pub(crate) struct Rewrites(BTreeMap<String, Written>);

#[derive(Debug)]
struct Written {
    content: u64,
    /// How often the same content was written again.
    again: u32,
    last: Instant,
    /// When the same content may be written again.
    until: Instant,
}

impl Rewrites {
    /// When a webhook may be written; `None` if it may now. A webhook with other content than before never waits.
    pub(crate) fn waits(&self, webhook: &Desired, now: Instant) -> Option<Instant> {
        let written = self.0.get(&webhook.name).filter(|written| written.content == content(webhook))?;
        Some(written.until).filter(|until| *until > now)
    }

    /// Notes that a webhook was written. `random`, from 0 to 1, is the jitter of the wait.
    pub(crate) fn wrote(&mut self, webhook: &Desired, now: Instant, random: f64) {
        self.0.retain(|_, written| now.saturating_duration_since(written.last) < QUIET);
        let content = content(webhook);
        let again = self.0.get(&webhook.name).filter(|written| written.content == content);
        let again = again.map_or(0, |written| written.again.saturating_add(1));
        // A single repair after a write is immediate.
        let until = if again == 0 { now } else { now + PACE.wait(again, random) };
        self.0.insert(webhook.name.clone(), Written { content, again, last: now, until });
    }
}

fn content(webhook: &Desired) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&webhook.metadata, &*webhook.entries).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portcullis_contract::WebhookKind;
    use serde_json::json;

    use super::*;

    fn webhook(name: &str, rules: u32) -> Desired {
        let (kind, metadata) = (WebhookKind::Validating, json!({ "name": name }));
        Desired { name: name.to_owned(), kind, metadata, entries: Arc::new(json!([rules])) }
    }

    #[test]
    fn a_webhook_that_is_changed_each_time_is_written_less_and_less_often() {
        let (mut rewrites, start) = (Rewrites::default(), Instant::now());
        let (mut now, mut count) = (start, 0);
        while now < start + Duration::from_secs(60) {
            rewrites.wrote(&webhook("a", 1), now, 1.0);
            count += 1;
            let next = rewrites.waits(&webhook("a", 1), now);
            assert_eq!(next.is_none(), count == 1, "a single repair is immediate");
            assert!(next.is_none_or(|next| next <= now + PACE.longest));
            now = next.unwrap_or(now);
        }
        assert!((30..40).contains(&count), "{count}");
        assert_eq!(rewrites.waits(&webhook("b", 1), start), None, "others do not wait");
    }

    #[test]
    fn what_should_be_different_now_does_not_wait() {
        let (mut rewrites, now) = (Rewrites::default(), Instant::now());
        (0..9).for_each(|_| rewrites.wrote(&webhook("a", 1), now, 1.0));
        assert!(rewrites.waits(&webhook("a", 1), now).is_some());
        assert_eq!(rewrites.waits(&webhook("a", 2), now), None);
        rewrites.wrote(&webhook("a", 2), now, 1.0);
        assert_eq!(rewrites.waits(&webhook("a", 2), now), None);
    }

    #[test]
    fn after_a_quiet_minute_the_waits_are_short_again() {
        let (mut rewrites, start) = (Rewrites::default(), Instant::now());
        (0..9).for_each(|_| rewrites.wrote(&webhook("a", 1), start, 1.0));
        let later = start + QUIET;
        rewrites.wrote(&webhook("b", 1), later, 1.0);
        assert_eq!(rewrites.0.len(), 1, "it is forgotten");
        (0..2).for_each(|_| rewrites.wrote(&webhook("a", 1), later, 1.0));
        assert_eq!(rewrites.waits(&webhook("a", 1), later), Some(later + PACE.shortest));
    }
}
