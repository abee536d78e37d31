//! A moment. The loop reads it from the clocks and gives it to the plan.

use std::time::Instant;

use jiff::Timestamp;

/// A moment, on the monotonic clock and on the wall clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    /// For waiting.
    pub instant: Instant,
    /// For showing.
    pub wall: Timestamp,
}

impl Now {
    /// This moment.
    pub(crate) fn get() -> Self {
        Self { instant: Instant::now(), wall: Timestamp::now() }
    }

    /// What the wall clock will show at a later moment.
    pub(crate) fn wall_at(&self, instant: Instant) -> Timestamp {
        let wait = instant.saturating_duration_since(self.instant);
        self.wall.checked_add(wait).unwrap_or(Timestamp::MAX)
    }
}
