//! Certificates of another program, for instance cert-manager: which authorities webhooks trust, and when pods get a certificate. Pure.

use std::time::Duration;

use super::bundle::CaBundle;
use super::decide::{Decision, Now, Observed, Problem, SPREADING, Step, Which};
use super::external_certificate::ExternalCertificate;
use super::rules::Rules;
use super::stored::{Data, StoredServing};

/// Decides which authorities to trust, and whether to pass `offer` on to the pods, which have `given` now. The other program changes
/// certificate and authority at once, so webhooks trust the new authority first, and the old one for as long as pods take to follow.
pub(crate) fn follow(
    observed: &Observed<'_>,
    offer: &Result<ExternalCertificate, Problem>,
    given: Option<&Data>,
    rules: &Rules,
) -> Decision {
    let stored = StoredServing::read(given);
    let shown = stored.shown();
    let mut decision = match offer {
        Ok(offer) if offer.is(given) => settle(observed, offer.authorities(), rules),
        Ok(offer) => {
            let old = shown.clone().and(observed.remembered).unexpired(observed.now);
            let mut decision = Decision::new(offer.authorities().clone().and(&old));
            match introduce(observed, offer, &stored, rules) {
                Now::Do(step) => decision.step = Some(step),
                Now::Wait(wait) => decision.wait = wait,
            }
            decision
        }
        Err(problem) => {
            // Replicas and webhooks keep what they have.
            let mut decision = Decision::new(shown.clone().and(observed.remembered));
            decision.problems.push(problem.clone());
            decision
        }
    };
    let first = shown.certificates().iter().min_by_key(|one| one.not_after);
    for (which, certificate) in [(Which::Ca, first), (Which::Serving, stored.leaf.as_ref())] {
        if let Some(certificate) = certificate {
            decision.judge(observed.now, rules, which, certificate);
        }
    }
    decision
}

/// Pods were given the certificate. The earlier authorities stay trusted until the last pod shows it.
fn settle(observed: &Observed<'_>, authorities: &CaBundle, rules: &Rules) -> Decision {
    let left = rules.replica_pause.checked_sub(observed.unchanged).filter(|left| !left.is_zero());
    let old = observed.remembered.without(authorities).unexpired(observed.now);
    let is_changing = left.is_some() && !old.is_empty();
    let bundle = if is_changing { authorities.clone().and(&old) } else { authorities.clone() };
    let mut decision = Decision::new(bundle);
    decision.wait = left.filter(|_| is_changing);
    decision
}

/// Passes the certificate on to pods as soon as API servers accept it.
fn introduce(observed: &Observed<'_>, offer: &ExternalCertificate, stored: &StoredServing, rules: &Rules) -> Now {
    if !observed.is_spread {
        return Now::Wait(Some(SPREADING));
    }
    let is_served = stored.leaf.as_ref().is_some_and(|leaf| !leaf.is_over(observed.now));
    // A renewed certificate of the same authority is trusted already; and if no valid certificate is served, waiting only prolongs that.
    let is_hurried = !is_served || offer.is_of(&stored.shown());
    let pause = if is_hurried { Duration::ZERO } else { rules.bundle_pause };
    Now::after(pause, observed, Step::Give)
}

#[cfg(test)]
mod tests {
    use super::super::authority::Authority;
    use super::super::decide::tests::{now, rules};
    use super::*;

    fn authority() -> Authority {
        Authority::make(&rules(), now()).expect("an authority")
    }

    fn made(authority: &Authority) -> Data {
        StoredServing::data(&authority.issue(&rules(), now()).expect("a certificate"), &authority.bundle())
    }

    /// Decides about what is offered to pods that have `given`, after some seconds in which nothing changed.
    fn decide(
        unchanged: u64,
        is_spread: bool,
        remembered: &CaBundle,
        offered: Option<&Data>,
        given: Option<&Data>,
    ) -> Decision {
        let observed = Observed { now: now(), unchanged: Duration::from_secs(unchanged), is_spread, remembered };
        follow(&observed, &ExternalCertificate::read(offered, &rules(), now()), given, &rules())
    }

    #[test]
    fn the_first_one_is_given_at_once() {
        let one = authority();
        let offered = made(&one);
        let decision = decide(0, true, &CaBundle::default(), Some(&offered), None);
        assert_eq!((&decision.bundle, &decision.step), (&one.bundle(), &Some(Step::Give)));
        let decision = decide(0, true, &one.bundle(), Some(&offered), Some(&offered));
        assert_eq!((&decision.bundle, &decision.step, decision.wait), (&one.bundle(), &None, None));
        assert_eq!(decision.ends.len(), 2);
        assert!(decision.problems.is_empty() && decision.expiring.is_empty());
    }

    #[test]
    fn fault_h16_webhooks_trust_a_new_authority_before_any_pod_has_its_certificate() {
        let (old, new) = (authority(), authority());
        let (given, offered) = (made(&old), made(&new));
        let both = new.bundle().and(&old.bundle());
        let pause = rules().bundle_pause.as_secs();
        for (unchanged, is_spread, step, wait) in [
            (999, false, None, Some(SPREADING)),
            (0, true, None, Some(rules().bundle_pause)),
            (pause - 1, true, None, Some(Duration::from_secs(1))),
            (pause, true, Some(Step::Give), None),
        ] {
            let decision = decide(unchanged, is_spread, &old.bundle(), Some(&offered), Some(&given));
            assert_eq!(
                (&decision.bundle, decision.step, decision.wait),
                (&both, step, wait),
                "{unchanged} s {is_spread}"
            );
        }
    }

    #[test]
    fn fault_h16_an_old_authority_is_trusted_until_every_pod_has_the_new_certificate() {
        let (old, new) = (authority(), authority());
        let given = made(&new);
        let pause = rules().replica_pause.as_secs();
        let decision = decide(1, true, &old.bundle(), Some(&given), Some(&given));
        assert_eq!(decision.bundle, new.bundle().and(&old.bundle()));
        assert_eq!(decision.wait, Some(Duration::from_secs(pause - 1)));
        let decision = decide(pause, true, &old.bundle(), Some(&given), Some(&given));
        assert_eq!((decision.bundle, decision.wait), (new.bundle(), None));
    }

    #[test]
    fn a_renewed_certificate_of_the_same_authority_is_given_at_once() {
        let one = authority();
        let decision = decide(0, true, &one.bundle(), Some(&made(&one)), Some(&made(&one)));
        assert_eq!((decision.bundle, decision.step), (one.bundle(), Some(Step::Give)));
    }

    #[test]
    fn fault_h15_nothing_is_waited_for_when_the_old_one_has_ended() {
        let (old, new) = (authority(), authority());
        let given = made(&old);
        let later = now().checked_add(jiff::SignedDuration::from_hours(31 * 24)).expect("a time");
        let new = StoredServing::data(&new.issue(&rules(), later).expect("a certificate"), &new.bundle());
        let remembered = old.bundle();
        let observed = Observed { now: later, unchanged: Duration::ZERO, is_spread: true, remembered: &remembered };
        let decision =
            follow(&observed, &ExternalCertificate::read(Some(&new), &rules(), later), Some(&given), &rules());
        assert_eq!((decision.step, decision.expiring), (Some(Step::Give), vec![Which::Serving]));
    }

    #[test]
    fn what_cannot_be_used_is_told_and_pods_and_webhooks_stay_as_they_are() {
        let old = authority();
        let given = made(&old);
        let mut broken = made(&old);
        broken.remove("ca.crt");
        for (offered, problem) in [(None, Problem::NoServing), (Some(&broken), Problem::NotShown)] {
            let decision = decide(999, true, &CaBundle::default(), offered, Some(&given));
            assert_eq!((&decision.bundle, &decision.step), (&old.bundle(), &None));
            assert_eq!((decision.problems, decision.ends.len()), (vec![problem], 2));
        }
    }
}
