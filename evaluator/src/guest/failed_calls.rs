//! Which of a guest's host calls failed.

/// The failed host calls of one guest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FailedCalls {
    /// Whether a grant was missing.
    pub(crate) denied: bool,
    /// The last capability that could not be provided, and why.
    pub(crate) failed: Option<String>,
    /// The same of those that need the broker, and so something outside this program that may be back later. What this program answers by itself
    /// fails again with the same question.
    pub(crate) failed_outside: Option<String>,
}

impl FailedCalls {
    /// The failed call because of which the guest may have failed now, and may not fail later. None if a grant was missing: that stays so.
    pub(crate) fn that_may_pass(&self) -> Option<&str> {
        self.failed_outside.as_deref().filter(|_| !self.denied)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_failed_outside_may_pass_and_only_where_nothing_was_denied() {
        let outside = || Some("net/v1/dns_lookup_host: no".to_owned());
        let of = |denied, failed_outside| FailedCalls { denied, failed: outside(), failed_outside };
        assert_eq!(of(false, outside()).that_may_pass(), outside().as_deref());
        assert_eq!(of(true, outside()).that_may_pass(), None);
        assert_eq!(of(false, None).that_may_pass(), None);
    }
}
