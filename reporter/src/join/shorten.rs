//! Cuts a report to what can be stored: to its limits of entries, and to a size. What one namespace has too much of is not taken from others.
//! Pure.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use portcullis_api::{PolicyKey, ReplicaReportSpec, ReportContext, ReportDeviation, ReportMismatch};
use portcullis_contract::LoaderState;

use crate::turns::in_turns;

/// Most bytes of a report as it is stored. etcd takes 1.5 MiB, of which the API server needs some for itself.
const MAX_STORED: usize = 1 << 20;
/// What marks a text that is cut.
const MARK: char = '…';

/// The namespace of each policy, by uid; none for a ClusterPolicy. These have a turn like one namespace.
struct Namespaces<'a>(HashMap<&'a str, Option<&'a str>>);

impl<'a> Namespaces<'a> {
    fn of(loader: &'a LoaderState) -> Self {
        Self(loader.policies.iter().map(|policy| (policy.uid.as_str(), policy.id.namespace())).collect())
    }

    fn get(&self, uid: &str) -> Option<&'a str> {
        self.0.get(uid).copied().flatten()
    }
}

/// Cuts a report about the policies of `loader`.
pub(super) fn shorten(report: &mut ReplicaReportSpec, loader: &LoaderState) {
    let namespaces = Namespaces::of(loader);
    shorten_deviations(report, &namespaces);
    shorten_messages(report, &namespaces);
}

/// Cuts the deviations at their limit. The report is read mainly for failures, so they come first, and of them those with which nothing
/// answers; the namespaces take turns. Only failures that are cut are counted: what merely loads reads the same without its entry, but for
/// how far it has come and whether requests pass without it.
fn shorten_deviations(report: &mut ReplicaReportSpec, namespaces: &Namespaces<'_>) {
    report.deviations = in_turns(std::mem::take(&mut report.deviations), |deviation| {
        let weight = match (&deviation.reason, deviation.serving) {
            (Some(_), 0) => 0,
            (Some(_), _) => 1,
            (None, 0) => 2,
            (None, _) => 3,
        };
        (weight, namespaces.get(&deviation.policy_uid))
    });
    let kept = report.deviations.len().min(ReplicaReportSpec::MAX_DEVIATIONS);
    for cut in report.deviations.split_off(kept) {
        if cut.reason.is_some() {
            report.deviations_omitted = report.deviations_omitted.saturating_add(1);
        }
        // A policy that is nowhere in the report is Pending, or Failed if failures are cut. Of others an older generation answers.
        if cut.serving > 0 {
            report.current.insert(PolicyKey::of(&cut.policy_uid), cut.serving);
        }
    }
}

/// Shortens messages until the report can be stored, first those of the namespace that has the longest ones altogether. Each entry stays.
fn shorten_messages(report: &mut ReplicaReportSpec, namespaces: &Namespaces<'_>) {
    let Some(excess) = stored_report(report).checked_sub(MAX_STORED).filter(|excess| *excess > 0) else { return };
    let mut messages: BTreeMap<Option<&str>, Vec<&mut Arc<str>>> = BTreeMap::new();
    let deviations = report.deviations.iter_mut().filter_map(|ReportDeviation { policy_uid, message, .. }| {
        let message = message.as_mut()?;
        Some((policy_uid, message))
    });
    let mismatches =
        report.mismatches.iter_mut().map(|ReportMismatch { policy_uid, message, .. }| (policy_uid, message));
    let context = report.context.iter_mut().map(|ReportContext { policy_uid, message, .. }| (policy_uid, message));
    for (uid, message) in deviations.chain(mismatches).chain(context) {
        messages.entry(namespaces.get(uid)).or_default().push(message);
    }
    let sizes = |messages: &[&mut Arc<str>]| messages.iter().map(|message| stored(message)).collect::<Vec<_>>();
    let all: Vec<usize> = messages.values().map(|messages| sizes(messages).iter().sum()).collect();
    let of_each_namespace = level(&all, all.iter().sum::<usize>().saturating_sub(excess));
    for messages in messages.into_values() {
        let of_each_message = level(&sizes(&messages), of_each_namespace);
        messages.into_iter().for_each(|message| cut(message, of_each_message));
    }
}

/// The size at which each of these can be cut so that all of them have room.
fn level(sizes: &[usize], mut room: usize) -> usize {
    let mut sizes = sizes.to_vec();
    sizes.sort_unstable();
    let mut left = sizes.len();
    for size in sizes {
        if size > room / left {
            return room / left;
        }
        room -= size;
        left -= 1;
    }
    usize::MAX
}

/// Cuts a message to this many bytes as it is stored.
fn cut(message: &mut Arc<str>, most: usize) {
    if stored(message) <= most {
        return;
    }
    let room = most.saturating_sub(MARK.len_utf8());
    let mut used = 0;
    let fits = |c: &char| {
        used += stored_char(*c);
        used <= room
    };
    let mut kept: String = message.chars().take_while(fits).collect();
    if most >= MARK.len_utf8() {
        kept.push(MARK);
    }
    *message = kept.into();
}

/// The bytes of a text in the JSON that an API server stores.
fn stored(text: &str) -> usize {
    text.chars().map(stored_char).sum()
}

/// API servers escape more characters than other programs do, as the JSON of Go is made for HTML.
fn stored_char(c: char) -> usize {
    match c {
        '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => 6,
        '"' | '\\' => 2,
        c if c.is_ascii_control() => 6,
        c => c.len_utf8(),
    }
}

/// The bytes of a report as it is stored.
fn stored_report(report: &ReplicaReportSpec) -> usize {
    // Quotes, backslashes and control characters are escaped here as well.
    let text = serde_json::to_string(report).unwrap_or_default();
    let more = |c| match c {
        '"' | '\\' => 0,
        c => stored_char(c) - c.len_utf8(),
    };
    text.len() + text.chars().map(more).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use portcullis_contract::ReplicaState;

    use super::*;
    use crate::fixtures::published;

    fn uid(namespace: &str, number: usize) -> String {
        let key: u32 = namespace.bytes().map(u32::from).sum();
        format!("{number:08}-{key:04}-5e17-8000-{namespace:0>12}")
    }

    /// A report and a loader with this many failures and mismatches of each of these namespaces, with messages that are full of `text`.
    fn report(namespaces: &[(&str, usize)], text: &str) -> (ReplicaReportSpec, LoaderState) {
        let (mut report, mut loader) = (ReplicaReportSpec::default(), LoaderState::default());
        for (namespace, policies) in namespaces {
            for number in 0..*policies {
                let uid = uid(namespace, number);
                loader.policies.push(published(&format!("namespaced/{namespace}/p{number}"), &uid));
                report.mismatches.push(ReportMismatch {
                    policy_uid: uid.clone(),
                    generation: 7,
                    reason: "SeveralReasons".into(),
                    message: text.repeat(ReplicaReportSpec::MAX_MISMATCH_MESSAGE / text.len()).into(),
                });
                report.deviations.push(ReportDeviation {
                    policy_uid: uid,
                    generation: 7,
                    serving: i64::try_from(number % 2).expect("small"),
                    state: ReplicaState::Failed,
                    reason: Some("DecompressionLimit".into()),
                    retryable: Some(true),
                    next_retry_time: Some(Timestamp::UNIX_EPOCH),
                    since: Timestamp::UNIX_EPOCH,
                    message: Some(text.repeat(portcullis_contract::Failure::MAX_MESSAGE / text.len()).into()),
                    passed_over: true,
                });
            }
        }
        (report, loader)
    }

    fn of<'a>(report: &'a ReplicaReportSpec, namespace: &str) -> Vec<&'a ReportDeviation> {
        let is_its = |one: &&ReportDeviation| one.policy_uid.ends_with(&format!("{namespace:0>12}"));
        report.deviations.iter().filter(is_its).collect()
    }

    #[test]
    fn a_report_full_of_what_is_escaped_can_be_stored_and_names_each_policy() {
        for text in ["<", "\"", "é", "\u{2028}", "\u{1}"] {
            let (mut report, loader) = report(&[("one", 250), ("two", 250)], text);
            let names = |report: &ReplicaReportSpec| {
                let uids = report.deviations.iter().map(|one| one.policy_uid.clone());
                let mut uids: Vec<_> = uids.chain(report.mismatches.iter().map(|one| one.policy_uid.clone())).collect();
                uids.sort();
                uids
            };
            let before = names(&report);
            shorten(&mut report, &loader);
            let size = stored_report(&report);
            assert!(size <= MAX_STORED, "{text:?}: {size}");
            assert!(size > MAX_STORED - (16 << 10) || text == "é", "{text:?}: no more than needed, {size}");
            assert_eq!(names(&report), before, "{text:?}");
            let messages = report.deviations.iter().map(|one| one.message.as_deref().unwrap_or_default());
            assert!(messages.clone().all(|message| !message.is_empty() && message.len() <= 1024));
        }
    }

    #[test]
    fn the_namespace_that_has_most_loses_its_messages_first() {
        let (mut report, loader) = report(&[("flood", 490), ("quiet", 10)], "<");
        shorten(&mut report, &loader);
        let lengths =
            |namespace| of(&report, namespace).iter().map(|one| one.message.as_deref().map_or(0, str::len)).max();
        assert_eq!((lengths("quiet"), lengths("flood").is_some_and(|longest| longest < 400)), (Some(1024), true));
    }

    #[test]
    fn a_report_that_can_be_stored_stays_as_it_is() {
        let (mut report, loader) = report(&[("one", 250)], "a");
        let mut before = report.clone();
        before.deviations.sort_by_key(|one| one.serving);
        shorten(&mut report, &loader);
        assert_eq!(report, before);
    }

    #[test]
    fn namespaces_take_turns_for_the_places_and_those_where_nothing_answers_come_first() {
        let (mut report, loader) = report(&[("flood", 2000), ("quiet", 7), ("other", 7)], "a");
        shorten(&mut report, &loader);
        assert_eq!((report.deviations.len(), report.deviations_omitted), (500, 1514));
        // Of each of them nothing answers, so those with an older generation are cut, and tell it.
        assert!(report.deviations.iter().all(|one| one.serving == 0));
        assert_eq!(["flood", "quiet", "other"].map(|namespace| of(&report, namespace).len()), [492, 4, 4]);
        assert_eq!(report.current.len(), 1007 - 1);
    }

    #[test]
    fn everything_is_cut_at_one_level() {
        assert_eq!(level(&[5, 100, 7], 1000), usize::MAX);
        assert_eq!(level(&[5, 100, 7], 112), usize::MAX);
        assert_eq!(level(&[5, 100, 7], 111), 99);
        assert_eq!(level(&[5, 100, 100], 105), 50);
        assert_eq!(level(&[5, 5], 0), 0);
        let mut text: Arc<str> = "a<b<c".into();
        cut(&mut text, 11);
        assert_eq!(&*text, "a<b…");
        cut(&mut text, 10);
        assert_eq!(&*text, "a<…");
        cut(&mut text, 2);
        assert_eq!(&*text, "");
    }
}
