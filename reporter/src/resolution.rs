//! The digest of a generation whose address does not name one: the one that most replicas have resolved. Pure.
//!
//! The controller pins the digest in the status, and then every replica serves it. So a single replica, which may be compromised, must
//! not decide it for the others.

use std::collections::BTreeMap;

use portcullis_api::{PolicyKey, PolicyStatus, Resolved};
use portcullis_contract::Digest;

use crate::facts::{Facts, Replica};

/// What is known of the digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resolution {
    /// The digest is not known: too few replicas have reported one.
    Open,
    /// The digest is this one.
    Settled(Digest),
    /// Replicas have reported different digests, and no digest has a majority.
    Split,
}

impl Resolution {
    /// The pinned digest; else the one that was settled before; else the one that more than half of the expected replicas serve.
    pub(crate) fn of(facts: &Facts<'_>, replicas: &[Replica<'_>], previous: Option<&PolicyStatus>) -> Self {
        let before = previous.and_then(|previous| previous.resolved.as_ref());
        let before = before.filter(|resolved| resolved.generation == facts.generation).map(|resolved| resolved.digest);
        if let Some(digest) = facts.digest.or(before) {
            return Self::Settled(digest);
        }
        let key = PolicyKey::of(facts.uid);
        let expected = replicas.iter().filter(|replica| replica.expected);
        let mut votes: BTreeMap<Digest, usize> = BTreeMap::new();
        for digest in expected.clone().filter_map(|replica| reported_digest(facts, &key, replica)) {
            *votes.entry(digest).or_default() += 1;
        }
        let expected = expected.count();
        match votes.iter().find(|(_, count)| **count * 2 > expected) {
            Some((digest, _)) => Self::Settled(*digest),
            None if votes.len() > 1 => Self::Split,
            None => Self::Open,
        }
    }

    /// The digest, if it is settled.
    pub(crate) fn digest(self) -> Option<Digest> {
        match self {
            Self::Settled(digest) => Some(digest),
            Self::Open | Self::Split => None,
        }
    }
}

/// A generation with this digest, and with its members if it is one of a policy group. Reported members count only if their names and
/// digests give this digest.
pub(crate) fn resolved(
    generation: i64,
    digest: Digest,
    facts: &Facts<'_>,
    replicas: &[Replica<'_>],
    previous: Option<&PolicyStatus>,
) -> Resolved {
    let key = PolicyKey::of(facts.uid);
    let before = previous.into_iter().flat_map(|previous| previous.resolved.iter().chain(&previous.last_served));
    let reported = replicas.iter().filter_map(|replica| replica.report?.report.members.get(&key));
    let told = facts.members.into_iter().chain(before.map(|resolved| &resolved.members)).chain(reported);
    let mut groups =
        told.filter(|members| !members.is_empty()).map(|members| Resolved::group(generation, members.clone()));
    groups.find(|group| group.digest == digest).unwrap_or_else(|| Resolved::module(generation, digest))
}

/// The digest that a replica serves as the newest generation; none if its report does not count or does not have one.
fn reported_digest(facts: &Facts<'_>, key: &PolicyKey, replica: &Replica<'_>) -> Option<Digest> {
    let report = replica.heard()?;
    report.current.get(key).filter(|serving| **serving == facts.generation)?;
    report.digests.get(key).copied()
}

#[cfg(test)]
mod tests {
    use portcullis_api::ReplicaReportSpec;

    use super::*;
    use crate::facts::LastReport;

    const UID: &str = "9b2c41d2-a1f0-4e17-8000-000000000001";

    fn report(pod: &str, generation: i64, digest: &str) -> ReplicaReportSpec {
        let key = PolicyKey::of(UID);
        ReplicaReportSpec {
            pod_uid: pod.to_owned(),
            current: [(key.clone(), generation)].into(),
            digests: [(key, Digest::of(digest.as_bytes()))].into(),
            ..ReplicaReportSpec::default()
        }
    }

    /// The resolution of generation 7 with these reports; `None` for a replica that has not reported.
    fn resolved(says: &[Option<(i64, &str)>]) -> Resolution {
        let names: Vec<_> = (0..says.len()).map(|n| format!("pod-{n}")).collect();
        let report =
            |(name, said): (&String, &Option<(i64, &str)>)| said.map(|(number, what)| report(name, number, what));
        let reports: Vec<_> = names.iter().zip(says).map(report).collect();
        let replica = |(pod, report): (&'_ String, &'_ Option<ReplicaReportSpec>)| (pod.clone(), report.clone());
        let owned: Vec<_> = names.iter().zip(&reports).map(replica).collect();
        let heard = |report| LastReport { report, is_stale: false };
        let replicas: Vec<_> = owned
            .iter()
            .map(|(pod, report)| Replica { pod, pod_uid: pod, expected: true, report: report.as_ref().map(heard) })
            .collect();
        Resolution::of(&facts(), &replicas, None)
    }

    fn facts() -> Facts<'static> {
        Facts { uid: UID, generation: 7, suspend: false, digest: None, members: None, rollback_to: None, refusal: None }
    }

    fn settled(text: &str) -> Resolution {
        Resolution::Settled(Digest::of(text.as_bytes()))
    }

    #[test]
    fn z16_more_than_half_of_the_expected_replicas_settle_it() {
        let a = Some((7, "a"));
        assert_eq!(resolved(&[a]), settled("a"));
        assert_eq!(resolved(&[a, None, None]), Resolution::Open, "one alone settles nothing for three");
        assert_eq!(resolved(&[a, None, a]), settled("a"));
        assert_eq!(resolved(&[a, Some((7, "evil")), a]), settled("a"));
        assert_eq!(resolved(&[Some((7, "evil")), a, None]), Resolution::Split);
        assert_eq!(resolved(&[a, Some((7, "b"))]), Resolution::Split);
        assert_eq!(resolved(&[a, a, Some((7, "b")), Some((7, "b"))]), Resolution::Split);
        assert_eq!(resolved(&[a, Some((6, "b")), None]), Resolution::Open, "of another generation");
    }

    #[test]
    fn z16_who_is_not_expected_or_reports_no_longer_has_no_say() {
        let (good, evil) = (report("good", 7, "a"), report("evil", 7, "evil"));
        let heard = |report, is_stale| Some(LastReport { report, is_stale });
        let replica = |pod, expected, report| Replica { pod, pod_uid: pod, expected, report };
        let resolved = |evil| Resolution::of(&facts(), &[replica("good", true, heard(&good, false)), evil], None);
        assert_eq!(resolved(replica("evil", false, heard(&evil, false))), settled("a"));
        assert_eq!(resolved(replica("evil", true, heard(&evil, true))), Resolution::Open);
        let earlier = Replica { pod: "evil", pod_uid: "another", expected: true, report: heard(&evil, false) };
        assert_eq!(resolved(earlier), Resolution::Open);
    }

    #[test]
    fn what_was_settled_stays_for_its_generation() {
        let other = report("pod", 7, "b");
        let replicas = [Replica {
            pod: "pod",
            pod_uid: "pod",
            expected: true,
            report: Some(LastReport { report: &other, is_stale: false }),
        }];
        let before = |generation| PolicyStatus {
            resolved: Some(Resolved::module(generation, Digest::of(b"a"))),
            ..PolicyStatus::default()
        };
        assert_eq!(Resolution::of(&facts(), &replicas, Some(&before(7))), settled("a"));
        assert_eq!(Resolution::of(&facts(), &replicas, Some(&before(6))), settled("b"));
        let pinned = Facts { digest: Some(Digest::of(b"pin")), ..facts() };
        assert_eq!(Resolution::of(&pinned, &replicas, Some(&before(7))), settled("pin"));
    }

    #[test]
    fn the_members_of_a_group_are_those_that_make_its_digest_whoever_tells_of_them() {
        let members = |module: &str| BTreeMap::from([("a".to_owned(), Digest::of(module.as_bytes()))]);
        let group = Resolved::group(7, members("right"));
        let report = |module: &str| {
            let told = [(PolicyKey::of(UID), members(module))].into();
            ReplicaReportSpec { members: told, ..ReplicaReportSpec::default() }
        };
        let (liar, honest) = (report("wrong"), report("right"));
        let replica = |report| {
            let heard = LastReport { report, is_stale: false };
            Replica { pod: "p", pod_uid: "u", expected: true, report: Some(heard) }
        };
        let found = |replicas: &[Replica<'_>]| super::resolved(7, group.digest, &facts(), replicas, None);
        assert_eq!(found(&[replica(&liar), replica(&honest)]), group);
        assert_eq!(found(&[replica(&liar)]), Resolved::module(7, group.digest));
    }
}
