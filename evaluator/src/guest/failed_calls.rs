//! Which of a guest's host calls gave it an error.

use portcullis_contract::Capability;

use crate::capability::link::LinkFailure;

/// The host calls of one guest that gave it an error.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FailedCalls {
    /// Whether a grant was missing.
    pub(crate) denied: bool,
    /// The last capability that could not be provided, and why.
    pub(crate) failed: Option<String>,
    /// The last one of those that need the broker, and so something outside this program that may be back later; or else the first one to which
    /// the answer was no, as that may change too. What this program answers by itself fails again with the same question.
    pub(crate) outside: Option<String>,
}

impl FailedCalls {
    /// Notes a call that gave the guest an error. An answer of no does not count as a failure, because the host did its work.
    pub(super) fn note(&mut self, capability: Capability, error: &LinkFailure) {
        let said = || format!("{capability}: {error}");
        match error {
            LinkFailure::Denied(_) => self.denied = true,
            LinkFailure::Negative(_) => {
                self.outside.get_or_insert_with(said);
            }
            LinkFailure::Failed(_) => {
                if !is_answered_here(capability) {
                    self.outside = Some(said());
                }
                self.failed = Some(said());
            }
        }
    }

    /// The call because of which the guest may have failed now, and may not fail later. None if a grant was missing: that stays so.
    pub(crate) fn that_may_pass(&self) -> Option<&str> {
        self.outside.as_deref().filter(|_| !self.denied)
    }
}

/// Whether this program answers by itself. It hands over certificates only where calls are recorded, and then the answer is the same.
fn is_answered_here(capability: Capability) -> bool {
    matches!(capability, Capability::CacheSet | Capability::CacheGet | Capability::CertificateTrusted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_came_from_outside_may_pass_and_only_where_nothing_was_denied() {
        let call = || Some("net/v1/dns_lookup_host: no".to_owned());
        let of = |denied, outside| FailedCalls { denied, failed: call(), outside };
        assert_eq!(of(false, call()).that_may_pass(), call().as_deref());
        assert_eq!(of(true, call()).that_may_pass(), None);
        assert_eq!(of(false, None).that_may_pass(), None);
    }

    /// What is noted of these calls.
    fn noted<const N: usize>(calls: [(Capability, LinkFailure); N]) -> FailedCalls {
        let mut noted = FailedCalls::default();
        calls.into_iter().for_each(|(capability, error)| noted.note(capability, &error));
        noted
    }

    #[test]
    fn a_missing_grant_an_answer_of_no_and_a_failure_are_noted_as_what_they_are() {
        use Capability::{CacheGet, CertificateTrusted, DnsLookupHost, OciVerifyV2};
        let (denied, no) = (|| LinkFailure::Denied("d".into()), || LinkFailure::Negative("n".into()));
        let failed = |text: &str| LinkFailure::Failed(text.into());
        let some = |text: &str| Some(text.to_owned());
        let of = |denied, failed, outside| FailedCalls { denied, failed, outside };
        let (dns, oci) = ("net/v1/dns_lookup_host", "oci/v2/verify");
        assert_eq!(noted([(OciVerifyV2, denied())]), of(true, None, None));
        let signature = format!("{oci}: n");
        assert_eq!(noted([(OciVerifyV2, no())]), of(false, None, some(&signature)));
        assert_eq!(noted([(OciVerifyV2, no()), (DnsLookupHost, no())]), of(false, None, some(&signature)));
        let lookup = format!("{dns}: 2");
        for noted in [
            noted([(DnsLookupHost, failed("1")), (DnsLookupHost, failed("2"))]),
            // A failure is the likelier cause of what follows.
            noted([(DnsLookupHost, failed("2")), (OciVerifyV2, no())]),
            noted([(OciVerifyV2, no()), (DnsLookupHost, failed("2"))]),
        ] {
            assert_eq!(noted, of(false, some(&lookup), some(&lookup)));
        }
        assert_eq!(noted([(CacheGet, failed("f"))]), of(false, some("cache/get: f"), None));
        let trust = some("crypto/v1/is_certificate_trusted: f");
        assert_eq!(noted([(CertificateTrusted, failed("f"))]), of(false, trust, None));
    }
}
