//! The log lines of a policy: cut, cleaned, and no more than its rate allows.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use portcullis_contract::{PolicyId, clean};
use portcullis_util::lock;
use serde_json::{Map, Value};

use crate::metrics::PolicyMetrics;

/// The rate in lines a second, and the most lines at once.
const LINES: f64 = 100.0;
/// The rate in bytes a second, and the most bytes at once.
const BYTES: f64 = 64.0 * 1024.0;
/// Longest line, in bytes.
const MAX_LINE: usize = 2 << 10;
/// Longest payload of `tracing/log` that is decoded, in bytes; the beginning of a longer one is logged undecoded.
const MAX_EVENT: usize = 16 << 10;

/// The log of one policy. All its instances share the rate.
pub(crate) struct GuestLog {
    policy: PolicyId,
    generation: i64,
    budget: Mutex<Budget>,
    metrics: Arc<PolicyMetrics>,
}

impl GuestLog {
    /// The log of one generation of a policy.
    pub(crate) fn new(policy: PolicyId, generation: i64, metrics: Arc<PolicyMetrics>) -> Self {
        Self { policy, generation, budget: Mutex::new(Budget::full(Instant::now())), metrics }
    }

    /// The log of another generation of the same policy.
    pub(super) fn renumbered(&self, generation: i64) -> Self {
        Self::new(self.policy.clone(), generation, Arc::clone(&self.metrics))
    }

    /// A line of `__console_log`.
    pub(super) fn console(&self, text: &[u8]) {
        self.line(tracing::Level::INFO, text);
    }

    /// What a guest wrote to standard error, line by line.
    pub(super) fn stderr(&self, text: &[u8]) {
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()) {
            self.line(tracing::Level::WARN, line);
        }
    }

    /// The payload of `tracing/log`. One that cannot be decoded is logged as it is.
    pub(super) fn event(&self, payload: &[u8]) {
        // An event that would be dropped is not decoded.
        if self.is_full() {
            return self.metrics.log_lines_dropped.inc();
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

    fn is_full(&self) -> bool {
        let mut budget = lock(&self.budget);
        budget.refill(Instant::now());
        budget.lines < 1.0
    }

    fn line(&self, level: tracing::Level, text: &[u8]) {
        let cut = &text[..text.len().min(4 * MAX_LINE)];
        if !lock(&self.budget).take(Instant::now(), cut.len().min(MAX_LINE)) {
            self.metrics.log_lines_dropped.inc();
            return;
        }
        let (policy, generation, said) =
            (&self.policy, self.generation, clean(&String::from_utf8_lossy(cut), MAX_LINE));
        // The level of an event is part of its static description, so each has its own line here.
        match level {
            tracing::Level::TRACE => tracing::trace!(target: "policy", %policy, generation, said, "policy log"),
            tracing::Level::DEBUG => tracing::debug!(target: "policy", %policy, generation, said, "policy log"),
            tracing::Level::INFO => tracing::info!(target: "policy", %policy, generation, said, "policy log"),
            tracing::Level::WARN => tracing::warn!(target: "policy", %policy, generation, said, "policy log"),
            tracing::Level::ERROR => tracing::error!(target: "policy", %policy, generation, said, "policy log"),
        }
    }

    #[cfg(test)]
    pub(crate) fn test() -> Self {
        let policy: PolicyId = "cluster/test".parse().expect("an id");
        let metrics = crate::metrics::Metrics::new().expect("registers").policy(&policy);
        Self::new(policy, 1, metrics)
    }
}

/// How many lines and bytes may still be logged.
#[derive(Debug, Clone, Copy)]
struct Budget {
    lines: f64,
    bytes: f64,
    at: Instant,
}

impl Budget {
    fn full(now: Instant) -> Self {
        Self { lines: LINES, bytes: BYTES, at: now }
    }

    fn refill(&mut self, now: Instant) {
        let seconds = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
        self.lines = (self.lines + seconds * LINES).min(LINES);
        self.bytes = (self.bytes + seconds * BYTES).min(BYTES);
    }

    /// Takes a line of `bytes` bytes, if there is room for it.
    fn take(&mut self, now: Instant, bytes: usize) -> bool {
        self.refill(now);
        let bytes = f64::from(u32::try_from(bytes).unwrap_or(u32::MAX));
        if self.lines < 1.0 || self.bytes < bytes {
            return false;
        }
        self.lines -= 1.0;
        self.bytes -= bytes;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
    fn the_budget_comes_back_with_time() {
        let start = Instant::now();
        let mut budget = Budget::full(start);
        assert_eq!((0..200).filter(|_| budget.take(start, 10)).count(), 100);
        let later = start + Duration::from_millis(500);
        assert_eq!((0..200).filter(|_| budget.take(later, 10)).count(), 50);
    }

    #[test]
    fn long_lines_use_up_the_bytes() {
        let start = Instant::now();
        let mut budget = Budget::full(start);
        assert_eq!((0..100).filter(|_| budget.take(start, MAX_LINE)).count(), 32);
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
