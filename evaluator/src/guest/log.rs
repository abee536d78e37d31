//! The log lines of a policy: cut, cleaned, and no more than its share.

mod share;

use std::sync::Arc;
use std::time::Instant;

use portcullis_contract::{PolicyId, clean};
use portcullis_process::GUEST_LOG;
use serde_json::{Map, Value};

pub(crate) use share::{Excess, LogShare, LogShares};

use crate::metrics::PolicyMetrics;
use crate::verdict::text::DENIAL;

/// Longest line, in bytes.
const MAX_LINE: usize = 2 << 10;
/// What a line has in the log beside the guest's text and the policy's id, in bytes: time, level, and names of fields.
const BESIDE: usize = 192;
/// Longest payload of `tracing/log` that is decoded, in bytes; the beginning of a longer one is logged undecoded.
const MAX_EVENT: usize = 16 << 10;

/// The log of one generation of a policy.
pub(crate) struct GuestLog {
    policy: PolicyId,
    generation: i64,
    share: Arc<LogShare>,
    metrics: Arc<PolicyMetrics>,
}

impl GuestLog {
    /// The log of one generation of a policy, whose other generations have the same share.
    pub(crate) fn new(policy: PolicyId, generation: i64, share: Arc<LogShare>, metrics: Arc<PolicyMetrics>) -> Self {
        Self { policy, generation, share, metrics }
    }

    /// The log of another generation of the same policy.
    pub(super) fn renumbered(&self, generation: i64) -> Self {
        Self::new(self.policy.clone(), generation, Arc::clone(&self.share), Arc::clone(&self.metrics))
    }

    /// A line of `__console_log`.
    pub(super) fn console(&self, text: &[u8]) {
        self.line(tracing::Level::INFO, text);
    }

    /// What a guest wrote to standard error, line by line. `unkept` bytes more count as a dropped line.
    pub(super) fn stderr(&self, text: &[u8], unkept: usize) {
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()) {
            self.line(tracing::Level::WARN, line);
        }
        if unkept > 0 {
            self.drop_line(unkept);
        }
    }

    /// The payload of `tracing/log`. One that cannot be decoded is logged as it is.
    pub(super) fn event(&self, payload: &[u8]) {
        // Its level is not known before it is decoded, and hidden events are not dropped ones.
        if self.share.is_used_up(Instant::now()) {
            return self.drop_line(payload.len());
        }
        let event = if payload.len() <= MAX_EVENT {
            serde_json::from_slice::<Map<String, Value>>(payload)
        } else {
            return self.line(tracing::Level::WARN, payload);
        };
        let Ok(mut event) = event else { return self.line(tracing::Level::WARN, payload) };
        let level = match event.remove("level").as_ref().and_then(Value::as_str).map(str::to_ascii_uppercase).as_deref()
        {
            Some("TRACE") => tracing::Level::TRACE,
            Some("DEBUG") => tracing::Level::DEBUG,
            Some("WARNING" | "WARN") => tracing::Level::WARN,
            Some("ERROR") => tracing::Level::ERROR,
            _ => tracing::Level::INFO,
        };
        let mut text = match event.remove("message") {
            Some(Value::String(text)) => text,
            Some(other) => other.to_string(),
            None => String::new(),
        };
        if !event.is_empty() {
            text.push(' ');
            text.push_str(&Value::Object(event).to_string());
        }
        self.line(level, text.as_bytes());
    }

    /// What a policy in mode `monitor` decided, with its own `text`: the answer does not say it.
    pub(crate) fn monitored(&self, allowed: bool, mutated: bool, code: Option<u16>, text: Option<&str>) {
        let is_quiet = allowed && !mutated;
        if is_quiet && !tracing::enabled!(target: GUEST_LOG, tracing::Level::DEBUG) {
            return;
        }
        let Some(fitting) = self.fitting(text.unwrap_or_default().as_bytes(), DENIAL) else { return };
        let (policy, generation, text) = (&self.policy, self.generation, text.map(|_| fitting));
        if is_quiet {
            tracing::debug!(target: GUEST_LOG, %policy, generation, allowed, mutated, code, text, "verdict in monitor mode");
        } else {
            tracing::info!(target: GUEST_LOG, %policy, generation, allowed, mutated, code, text, "verdict in monitor mode");
        }
    }

    fn line(&self, level: tracing::Level, text: &[u8]) {
        // Lines that the log's level hides take nothing from the share.
        let is_hidden = match level {
            tracing::Level::TRACE => !tracing::enabled!(target: GUEST_LOG, tracing::Level::TRACE),
            tracing::Level::DEBUG => !tracing::enabled!(target: GUEST_LOG, tracing::Level::DEBUG),
            _ => false,
        };
        if is_hidden {
            return;
        }
        let Some(said) = self.fitting(text, MAX_LINE) else { return };
        let (policy, generation) = (&self.policy, self.generation);
        // The level of an event is part of its static description, so each has its own line here.
        match level {
            tracing::Level::TRACE => tracing::trace!(target: GUEST_LOG, %policy, generation, said, "policy log"),
            tracing::Level::DEBUG => tracing::debug!(target: GUEST_LOG, %policy, generation, said, "policy log"),
            tracing::Level::INFO => tracing::info!(target: GUEST_LOG, %policy, generation, said, "policy log"),
            tracing::Level::WARN => tracing::warn!(target: GUEST_LOG, %policy, generation, said, "policy log"),
            tracing::Level::ERROR => tracing::error!(target: GUEST_LOG, %policy, generation, said, "policy log"),
        }
    }

    /// The text of a line as it is logged, of at most `limit` bytes. `None` if the share has no room for the line, which is counted then.
    fn fitting(&self, text: &[u8], limit: usize) -> Option<String> {
        let fitting = Some(text).filter(|text| self.has_room(text)).map(|text| {
            let cut = &text[..text.len().min(4 * limit)];
            clean(&String::from_utf8_lossy(cut), limit)
        });
        // Quotation marks and unusual characters take more bytes in the log than in the text.
        let written = |text: &String| text.escape_debug().map(char::len_utf8).sum::<usize>();
        let fitting = fitting.filter(|text| self.share.take(Instant::now(), self.beside() + written(text)));
        if fitting.is_none() {
            self.drop_line(text.len());
        }
        fitting
    }

    /// Whether there is room for about as many bytes as the guest wrote. Otherwise the text is not even cleaned, so that a flood costs little.
    fn has_room(&self, text: &[u8]) -> bool {
        self.share.has_room(Instant::now(), self.beside() + text.len().min(MAX_LINE))
    }

    /// What a line has beside the guest's text, in bytes.
    fn beside(&self) -> usize {
        BESIDE + self.policy.as_str().len()
    }

    fn drop_line(&self, bytes: usize) {
        self.metrics.log_lines_dropped.inc();
        self.share.drop_line(bytes);
    }

    #[cfg(test)]
    pub(crate) fn test() -> Self {
        let policy: PolicyId = "cluster/test".parse().expect("an id");
        let metrics = crate::metrics::Metrics::new().expect("registers").policy(&policy);
        let share = LogShares::default().of(&policy, Instant::now());
        Self::new(policy, 1, share, metrics)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_and_counted() {
        let log = GuestLog::test();
        for _ in 0..1000 {
            log.console(b"line");
        }
        assert!(log.metrics.log_lines_dropped.get() >= 890, "{}", log.metrics.log_lines_dropped.get());
    }

    #[test]
    fn what_is_not_kept_of_standard_error_is_counted() {
        let log = GuestLog::test();
        log.stderr(b"one\n\ntwo\n", 0);
        assert_eq!(log.metrics.log_lines_dropped.get(), 0);
        log.stderr(b"one\n", 1 << 20);
        assert_eq!(log.metrics.log_lines_dropped.get(), 1);
    }

    #[test]
    fn another_generation_gets_no_second_share() {
        let log = GuestLog::test();
        (0..1000).for_each(|_| log.console(b"line"));
        let (next, before) = (log.renumbered(2), log.metrics.log_lines_dropped.get());
        (0..1000).for_each(|_| next.console(b"line"));
        assert!(log.metrics.log_lines_dropped.get() >= before + 890, "{}", log.metrics.log_lines_dropped.get());
    }

    #[test]
    fn verdicts_in_monitor_mode_have_no_share_of_their_own() {
        let log = GuestLog::test();
        (0..60).for_each(|_| log.console(b"line"));
        let dropped = || log.metrics.log_lines_dropped.get();
        assert_eq!(dropped(), 0);
        (0..1000).for_each(|_| log.monitored(false, false, Some(403), Some("denied")));
        assert!((890..=960).contains(&dropped()), "{}", dropped());
        let before = dropped();
        (0..1000).for_each(|_| log.monitored(true, true, None, None));
        assert!(dropped() >= before + 890, "a change counts as well: {}", dropped() - before);
        // What the log's level hides takes nothing and is not dropped.
        let before = dropped();
        (0..1000).for_each(|_| log.monitored(true, false, None, Some("fine")));
        assert_eq!(dropped(), before);
    }

    /// A text that the log writes several times as long as the guest did.
    #[test]
    fn what_is_taken_is_what_the_log_writes() {
        let logged = |text: &str| {
            let log = GuestLog::test();
            (0..100).for_each(|_| log.console(text.as_bytes()));
            100 - log.metrics.log_lines_dropped.get()
        };
        let (plain, escaped) = (logged(&"x".repeat(MAX_LINE)), logged(&"\u{200b}".repeat(MAX_LINE / 3)));
        assert!((28..=32).contains(&plain), "{plain}");
        assert!((11..=14).contains(&escaped), "{escaped}");
    }

    #[test]
    fn what_cannot_be_read_is_no_failure() {
        let log = GuestLog::test();
        for payload in [&b"\xff\xfe\x1b[31m"[..], b"[1,2]", b"{\"level\":7}", &[b'['; 100_000]] {
            log.event(payload);
        }
        assert_eq!(log.metrics.log_lines_dropped.get(), 0);
    }
}
