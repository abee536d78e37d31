//! What a policy would do to the objects that exist, as counted when somebody applied the policy. Any pod may have counted, and its
//! loader keeps the figures until it restarts. The status keeps the newest ones (docs/design/status-api.md, section 4.4). Pure.

use portcullis_api::{ImpactSummary, PolicyStatus, ReplicaReportSpec, ReportImpact};
use portcullis_contract::{LoaderPolicy, LoaderState, clean};

use crate::facts::{Facts, Replica, to_second};

/// The figures that this pod's loader has.
pub(crate) fn reported(loader: &LoaderState) -> Vec<ReportImpact> {
    let entry = |policy: &LoaderPolicy| {
        let figures = policy.impact.as_ref()?;
        let impact = ImpactSummary {
            generation: policy.generation,
            checked_at: to_second(figures.checked_at),
            evaluated: number(figures.evaluated),
            total: figures.total.map(number),
            denied: number(figures.denied),
            changed: number(figures.changed),
            failed: number(figures.failed),
            namespaces: number(figures.namespaces),
            examples: figures.examples.clone(),
            sample: figures.sample,
            complete: figures.complete,
        };
        Some(ReportImpact { policy_uid: policy.uid.clone(), impact: bounded(&impact) })
    };
    loader.policies.iter().filter_map(entry).take(ReplicaReportSpec::MAX_IMPACTS).collect()
}

/// The newest figures of the newest generation that has any. Those in the previous status are considered too: only they are left once the
/// pod that counted is gone.
pub(crate) fn newest(
    facts: &Facts<'_>,
    replicas: &[Replica<'_>],
    previous: Option<&PolicyStatus>,
) -> Option<ImpactSummary> {
    let reports = replicas.iter().filter_map(Replica::heard).flat_map(|report| &report.impacts);
    let told = reports.filter(|entry| entry.policy_uid == facts.uid).map(|entry| &entry.impact);
    let known = previous.and_then(|previous| previous.impact.as_ref()).into_iter().chain(told);
    // A generation that does not exist yet may come from a report that is ahead of this reporter, or be forged.
    let sane = known.filter(|impact| (1..=facts.generation).contains(&impact.generation));
    let age = |impact: &ImpactSummary| (impact.generation, impact.checked_at);
    // Of two that are equally new the first one is taken, so that the status does not change back and forth.
    sane.reduce(|best, next| if age(next) > age(best) { next } else { best }).map(bounded)
}

/// The same figures cut to their limits, since another pod may have written them.
fn bounded(impact: &ImpactSummary) -> ImpactSummary {
    let at_least_zero = |count: i64| count.max(0);
    let examples = impact.examples.iter().take(ImpactSummary::MAX_EXAMPLES);
    ImpactSummary {
        generation: impact.generation,
        checked_at: impact.checked_at,
        evaluated: at_least_zero(impact.evaluated),
        total: impact.total.map(at_least_zero),
        denied: at_least_zero(impact.denied),
        changed: at_least_zero(impact.changed),
        failed: at_least_zero(impact.failed),
        namespaces: at_least_zero(impact.namespaces),
        examples: examples.map(|example| clean(example, ImpactSummary::MAX_EXAMPLE)).collect(),
        sample: impact.sample,
        complete: impact.complete,
    }
}

fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
pub(crate) mod tests {
    use jiff::Timestamp;
    use portcullis_contract::ImpactFigures;

    use super::*;
    use crate::facts::LastReport;
    use crate::fixtures::published;

    /// Figures about a generation, counted in this second.
    pub(crate) fn impact(generation: i64, second: i64, denied: i64) -> ImpactSummary {
        ImpactSummary {
            generation,
            checked_at: Timestamp::from_second(second).expect("a time"),
            evaluated: 340,
            total: Some(340),
            denied,
            changed: 0,
            failed: 0,
            namespaces: 3,
            examples: vec!["team-a/web-1".to_owned()],
            sample: false,
            complete: true,
        }
    }

    fn entry(uid: &str, impact: ImpactSummary) -> ReportImpact {
        ReportImpact { policy_uid: uid.to_owned(), impact }
    }

    fn facts() -> Facts<'static> {
        Facts {
            uid: "uid",
            generation: 7,
            suspend: false,
            digest: None,
            members: None,
            rollback_to: None,
            refusal: None,
        }
    }

    /// The figures of the status when each pod reports one of `reports` and the status was `previous`.
    fn found(reports: &[Vec<ReportImpact>], previous: Option<ImpactSummary>) -> Option<ImpactSummary> {
        let report = |impacts: &Vec<ReportImpact>| ReplicaReportSpec {
            pod_uid: "pod-uid".to_owned(),
            impacts: impacts.clone(),
            ..ReplicaReportSpec::default()
        };
        let reports: Vec<_> = reports.iter().map(report).collect();
        let replica = |report| {
            let heard = LastReport { report, is_stale: false };
            Replica { pod: "pod", pod_uid: "pod-uid", expected: true, report: Some(heard) }
        };
        let replicas: Vec<_> = reports.iter().map(replica).collect();
        let previous = PolicyStatus { impact: previous, ..PolicyStatus::default() };
        newest(&facts(), &replicas, Some(&previous))
    }

    #[test]
    fn what_the_loader_counted_is_reported_with_its_generation() {
        let figures = ImpactFigures {
            checked_at: Timestamp::from_millisecond(5700).expect("a time"),
            evaluated: 340,
            total: Some(u64::MAX),
            denied: 12,
            changed: 3,
            failed: 1,
            namespaces: 3,
            examples: vec!["team-a/web-1".to_owned()],
            sample: true,
            complete: false,
        };
        let counted = LoaderPolicy { generation: 6, impact: Some(figures), ..published("cluster/a", "uid") };
        let loader = LoaderState { policies: vec![published("cluster/b", "other"), counted], ..LoaderState::default() };
        let wanted = ImpactSummary {
            total: Some(i64::MAX),
            changed: 3,
            failed: 1,
            sample: true,
            complete: false,
            ..impact(6, 5, 12)
        };
        assert_eq!(reported(&loader), [entry("uid", wanted)]);
        let many = LoaderState { policies: vec![loader.policies[1].clone(); 1000], ..LoaderState::default() };
        assert_eq!(reported(&many).len(), ReplicaReportSpec::MAX_IMPACTS);
    }

    #[test]
    fn the_newest_generation_counts_and_then_the_newest_figures_whichever_pod_has_them() {
        let [old, late, new] = [impact(5, 90, 1), impact(6, 10, 2), impact(6, 20, 3)];
        let pods = |impacts: &[&ImpactSummary]| -> Vec<Vec<ReportImpact>> {
            impacts
                .iter()
                .map(|impact| vec![entry("another", (*impact).clone()), entry("uid", (*impact).clone())])
                .collect()
        };
        for order in [[&old, &late, &new], [&new, &old, &late], [&late, &new, &old]] {
            assert_eq!(found(&pods(&order), None).as_ref(), Some(&new));
        }
        assert_eq!(found(&[vec![entry("another", new.clone())]], None), None);
        assert_eq!(
            found(&pods(&[&old, &late]), Some(new.clone())).as_ref(),
            Some(&new),
            "the pod that answered is gone"
        );
        assert_eq!(found(&pods(&[&new]), Some(old)).as_ref(), Some(&new));
        let same_time = ImpactSummary { denied: 99, ..new.clone() };
        assert_eq!(found(&pods(&[&same_time]), Some(new.clone())).as_ref(), Some(&new));
    }

    #[test]
    fn what_the_status_says_stays_while_no_pod_knows_more() {
        let before = impact(5, 10, 1);
        assert_eq!(found(&[], Some(before.clone())), Some(before.clone()), "it says which generation it is about");
        assert_eq!(found(&[Vec::new()], Some(before.clone())), Some(before));
        assert_eq!(found(&[], None), None);
        assert_eq!(newest(&facts(), &[], None), None);
    }

    #[test]
    fn a_pod_that_does_not_count_and_a_forged_report_change_little() {
        let report = ReplicaReportSpec { impacts: vec![entry("uid", impact(7, 1, 1))], ..ReplicaReportSpec::default() };
        let stale = LastReport { report: &report, is_stale: true };
        let replica = Replica { pod: "pod", pod_uid: "", expected: true, report: Some(stale) };
        assert_eq!(newest(&facts(), &[replica], None), None);
        assert_eq!(found(&[vec![entry("uid", impact(8, 1, 1)), entry("uid", impact(0, 1, 1))]], None), None);
        let forged = ImpactSummary {
            denied: -1,
            total: Some(i64::MIN),
            examples: vec![format!("\u{1b}[31m{}", "x".repeat(1 << 20)); 1000],
            ..impact(7, 1, 1)
        };
        let shown = found(&[vec![entry("uid", forged)]], None).expect("figures");
        assert_eq!((shown.denied, shown.total, shown.examples.len()), (0, Some(0), ImpactSummary::MAX_EXAMPLES));
        let is_bounded = |name: &String| name.len() <= ImpactSummary::MAX_EXAMPLE && !name.contains('\u{1b}');
        assert!(shown.examples.iter().all(is_bounded));
        assert_eq!(found(&[], Some(shown.clone())), Some(shown), "and is not written again");
    }
}
