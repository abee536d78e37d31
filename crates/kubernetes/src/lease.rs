//! The Lease of a leader (docs/design/status-api.md, section 2.3).
//!
//! The age of a renewal is measured on the local monotonic clock from when it was seen, and never by the times in the object, so
//! that clocks may differ. A leader considers its Lease lost before another program may take it.

mod decide;
mod hold;
mod leadership;

use std::time::Duration;

pub use decide::LeaseSettings;
pub use hold::hold_lease;
pub use leadership::{Leadership, LeadershipSender, OfTerm};

/// How long a Lease is valid after its last renewal, whatever the object says.
const DURATION: Duration = Duration::from_secs(15);
/// How long its holder relies on a renewal, counted from the beginning of the call: it stops before another program may
/// start.
const TRUSTED: Duration = Duration::from_secs(13);
/// The interval at which the holder renews it.
const RENEW: Duration = Duration::from_secs(5);
/// The interval at which the others read it: a dead leader is noticed at most this long after its Lease ends.
const LOOK: Duration = Duration::from_millis(1800);
/// Longest time for one read and the write after it: even a renewal that takes this long is still in time.
const TURN_LIMIT: Duration = Duration::from_secs(8);
