//! How long certificates are valid, and how long a change waits for others to follow.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// How much earlier than it is made a certificate begins to be valid, at most: for API servers whose clock is behind.
const BACKDATED: Duration = Duration::from_secs(3600);

/// What certificates are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// API servers call the policy server. Webhooks hold the authorities that they trust.
    Webhooks,
    /// Loaders get modules from each other. Each is client and server, and trusts the authorities in the Secret that it mounts.
    Siblings,
}

/// The settings of one pair of authority and certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// What the certificates are for.
    pub purpose: Purpose,
    /// The DNS names of the serving certificate.
    pub names: Vec<String>,
    /// The name of the policy server, which is part of the authority's name.
    pub policy_server: String,
    /// How long an authority is valid. It is replaced when a third of its time is left.
    pub ca_lifetime: Duration,
    /// How long a serving certificate is valid. It is renewed when a third of its time is left.
    pub serving_lifetime: Duration,
    /// How long a new authority must have been trusted everywhere before it issues a serving certificate: API servers see it through a
    /// watch, pods through a mounted Secret.
    pub bundle_pause: Duration,
    /// How long a new serving certificate may take to reach every replica before the old authority is dropped: the kubelet updates
    /// mounted Secrets within its sync period and the age of its cache.
    pub replica_pause: Duration,
    /// An event warns when a certificate that should have been renewed has less time left than this.
    pub warning: Duration,
}

/// The validity period of a certificate to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) not_before: Timestamp,
    pub(crate) not_after: Timestamp,
}

impl Validity {
    /// A period that begins a little before `now` and ends `lifetime` after it.
    pub(crate) fn starting(now: Timestamp, lifetime: Duration) -> Self {
        let before = BACKDATED.min(lifetime / 10);
        let signed = |duration: Duration| SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
        Self {
            not_before: now.checked_sub(signed(before)).unwrap_or(Timestamp::MIN),
            not_after: now.checked_add(signed(lifetime)).unwrap_or(Timestamp::MAX),
        }
    }

    /// This period, cut off at `end`.
    pub(crate) fn until(self, end: Timestamp) -> Self {
        Self { not_after: self.not_after.min(end), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_begins_a_little_earlier() {
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().expect("a time");
        let long = Validity::starting(now, Duration::from_secs(90 * 24 * 3600));
        assert_eq!(long.not_before.to_string(), "2026-11-21T11:00:00Z");
        assert_eq!(long.not_after.to_string(), "2027-02-19T12:00:00Z");
        let short = Validity::starting(now, Duration::from_secs(20));
        assert_eq!(short.not_before.to_string(), "2026-11-21T11:59:58Z");
        assert_eq!(short.until(now).not_after, now);
    }

    #[test]
    fn a_lifetime_without_end_ends_with_time() {
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().expect("a time");
        assert_eq!(Validity::starting(now, Duration::MAX).not_after, Timestamp::MAX);
    }
}
