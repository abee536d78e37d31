//! Times in the format of OCI and CycloneDX.

use std::time::{Duration, UNIX_EPOCH};

/// A time in seconds since 1970 as RFC 3339, in UTC.
pub(super) fn rfc3339(seconds: u64) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds)).to_string()
}
