//! The present time. A loop reads it from the clocks once and gives it to what decides.

use std::time::Instant;

use jiff::Timestamp;

/// The present time, by the monotonic clock and by the wall clock.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// By the monotonic clock, for waiting.
    pub instant: Instant,
    /// By the wall clock, for showing.
    pub wall: Timestamp,
}

impl Now {
    /// Reads both clocks.
    pub fn get() -> Self {
        Self { instant: Instant::now(), wall: Timestamp::now() }
    }

    /// What the wall clock will show at a later moment.
    pub fn wall_at(&self, instant: Instant) -> Timestamp {
        let wait = instant.saturating_duration_since(self.instant);
        self.wall.checked_add(wait).unwrap_or(Timestamp::MAX)
    }
}
