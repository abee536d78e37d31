//! Certificates that somebody else makes, for instance cert-manager: what webhooks are to trust. Pure.

use super::bundle::CaBundle;
use super::decide::{Decision, Moment, Problem, Which};
use super::rules::Rules;
use super::stored::StoredServing;

/// Decides what to trust by `ca.crt` of the serving Secret alone. What was trusted before stays trusted for the time that a new serving
/// certificate takes to reach every replica, since the other side changes both at once.
pub(crate) fn follow(moment: &Moment<'_>, serving: &StoredServing, rules: &Rules) -> Decision {
    let problem = match &serving.shown {
        Some(Ok(shown)) => {
            let left = rules.replica_pause.checked_sub(moment.quiet).filter(|left| !left.is_zero());
            let old = moment.remembered.without(shown).living(moment.now);
            let is_changing = left.is_some() && !old.is_empty();
            let mut decision = Decision::new(if is_changing { shown.clone().and(&old) } else { shown.clone() });
            decision.wait = left.filter(|_| is_changing);
            let first = shown.certificates().iter().min_by_key(|one| one.not_after);
            for (which, certificate) in [(Which::Ca, first), (Which::Serving, serving.leaf.as_ref())] {
                if let Some(certificate) = certificate {
                    decision.judge(moment.now, rules, which, certificate);
                }
            }
            return decision;
        }
        Some(Err(error)) => Problem::Shown(error.clone()),
        None if serving.pair.is_none() => Problem::NoServing,
        None => Problem::NotShown,
    };
    // Replicas go on with what they have, and so do webhooks.
    let mut decision = Decision::new(CaBundle::default().and(moment.remembered));
    decision.problems.push(problem);
    decision
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::authority::Authority;
    use super::super::decide::tests::{now, rules};
    use super::*;

    fn moment(quiet: u64, remembered: &CaBundle) -> Moment<'_> {
        Moment { now: now(), quiet: Duration::from_secs(quiet), is_spread: true, remembered }
    }

    fn serving(authority: &Authority) -> StoredServing {
        let pair = authority.issue(&rules(), now()).expect("a certificate");
        StoredServing::read(Some(&StoredServing::data(&pair, &authority.bundle())))
    }

    #[test]
    fn what_is_shown_is_trusted_and_nothing_is_made() {
        let authority = Authority::make(&rules(), now()).expect("an authority");
        let decision = follow(&moment(0, &CaBundle::default()), &serving(&authority), &rules());
        assert_eq!((&decision.bundle, decision.step, decision.wait), (&authority.bundle(), None, None));
        assert_eq!(decision.ends.len(), 2);
        assert!(decision.problems.is_empty() && decision.expiring.is_empty());
    }

    #[test]
    fn an_authority_that_changed_is_trusted_for_a_while() {
        let (old, new) = (Authority::make(&rules(), now()), Authority::make(&rules(), now()));
        let (old, new) = (old.expect("an authority"), new.expect("an authority"));
        let remembered = old.bundle();
        let pause = rules().replica_pause.as_secs();
        let decision = follow(&moment(1, &remembered), &serving(&new), &rules());
        assert_eq!(decision.bundle, new.bundle().and(&old.bundle()));
        assert_eq!(decision.wait, Some(Duration::from_secs(pause - 1)));
        let decision = follow(&moment(pause, &remembered), &serving(&new), &rules());
        assert_eq!((decision.bundle, decision.wait), (new.bundle(), None));
    }

    #[test]
    fn what_is_missing_is_told_and_the_old_stays_trusted() {
        let old = Authority::make(&rules(), now()).expect("an authority");
        let remembered = old.bundle();
        let told = |serving: &StoredServing| {
            let decision = follow(&moment(999, &remembered), serving, &rules());
            assert_eq!(decision.bundle, remembered);
            decision.problems
        };
        assert_eq!(told(&StoredServing::default()), [Problem::NoServing]);
        let pair = old.issue(&rules(), now()).expect("a certificate");
        let mut data = StoredServing::data(&pair, &old.bundle());
        data.remove("ca.crt");
        assert_eq!(told(&StoredServing::read(Some(&data))), [Problem::NotShown]);
        data.insert("ca.crt".to_owned(), k8s_openapi::ByteString(b"noise".to_vec()));
        assert!(matches!(told(&StoredServing::read(Some(&data)))[..], [Problem::Shown(_)]));
    }
}
