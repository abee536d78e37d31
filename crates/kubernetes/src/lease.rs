//! The Lease of a leader (docs/design/status-api.md, section 2.3).
//!
//! Age is judged by the local monotonic time at which a change was seen, and never by the times in the object, so that clocks may
//! differ. A leader counts itself out before others may count it out.

mod calls;
mod decide;
mod hold;
mod leadership;

use std::time::Duration;

pub use calls::{ClientLeases, LeaseCalls};
pub use decide::LeaseSettings;
pub use hold::hold_lease;
pub use leadership::{Leadership, Seat};

/// How long a Lease counts after its last renewal, whatever the object says.
const DURATION: Duration = Duration::from_secs(15);
/// How long its holder trusts a renewal, counted from its begin: it stops before another may begin.
const TRUSTED: Duration = Duration::from_secs(13);
/// How often the holder renews it.
const RENEW: Duration = Duration::from_secs(5);
/// How often the others look: a dead leader is noticed so much later than its Lease ends.
const LOOK: Duration = Duration::from_millis(1800);
/// Longest time for one look and the write after it: a renewal that takes all of it still comes in time.
const TURN_LIMIT: Duration = Duration::from_secs(8);
