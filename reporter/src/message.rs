//! The messages of a status: what the replicas do, why some fail, and where. Pure.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::Timestamp;
use portcullis_api::ReplicaCounts;
use portcullis_contract::{Class, ContextReason, ReplicaState};

use crate::event::SEVERAL_REASONS;
use crate::facts::{Facts, to_second};
use crate::replica::{Assessment, Problem};

/// Most pods that a message names.
const NAMED_PODS: usize = 3;

/// One reason for several failing replicas: the most frequent; on a tie the one of the worst class (final, then outside, then
/// retry); `SeveralReasons` if there is still a tie.
pub(crate) fn joint_reason(bad: &[&Assessment<'_>]) -> String {
    let groups = by_reason(bad);
    match groups.as_slice() {
        [] => "AsExpected".to_owned(),
        [first, second, ..] if (first.pods.len(), first.class) == (second.pods.len(), second.class) => {
            SEVERAL_REASONS.to_owned()
        }
        [first, ..] => first.reason.to_owned(),
    }
}

/// The failures of some replicas: counts per reason and at most three pods. If there is only one replica, its failure in its
/// own words instead, as there is nothing to count.
pub(crate) fn failures(bad: &[&Assessment<'_>], expected: u32) -> String {
    if let (1, [Assessment { problem: Some(problem), .. }]) = (expected, bad) {
        return in_full(problem);
    }
    if let [Assessment { pod, problem: Some(problem), .. }] = bad {
        return format!("{pod}: {}{}", problem.reason, retry(problem.next_retry));
    }
    let mut names_left = NAMED_PODS;
    let groups: Vec<String> = by_reason(bad)
        .iter()
        .map(|group| {
            let named = &group.pods[..group.pods.len().min(names_left)];
            names_left -= named.len();
            let more = if named.len() < group.pods.len() && !named.is_empty() { ", …" } else { "" };
            let pods = if named.is_empty() { String::new() } else { format!(" ({}{more})", named.join(", ")) };
            format!("{} on {}{pods}", group.reason, group.pods.len())
        })
        .collect();
    groups.join(", ")
}

/// [`failures`], then the message of the most frequent reason.
pub(crate) fn failures_in_words(bad: &[&Assessment<'_>], expected: u32) -> String {
    let counted = failures(bad, expected);
    let words = by_reason(bad).first().map_or("", |group| group.message);
    if expected == 1 || words.is_empty() { counted } else { format!("{counted}: {words}") }
}

/// What is being loaded, and on how many replicas.
pub(crate) fn loading(facts: &Facts<'_>, counts: ReplicaCounts, assessments: &[&Assessment<'_>]) -> String {
    let generation = facts.generation;
    if let [assessment] = assessments {
        let doing = assessment.note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default();
        let meanwhile = answering(assessment.serving).map(|text| format!("; meanwhile {text}")).unwrap_or_default();
        return format!("generation {generation} is being loaded{doing}{meanwhile}");
    }
    let working = assessments.iter().filter(|assessment| assessment.is_working()).count();
    let meanwhile = instead(generation, assessments).map(|text| format!("; meanwhile {text}")).unwrap_or_default();
    format!("{}; {working} still loading it{meanwhile}", share(generation, counts))
}

/// The worst problem with objects that these replicas read, as reason and sentence; none if there is no problem. `expected` is the number
/// of all replicas.
pub(crate) fn lacking<'a>(
    assessments: impl Iterator<Item = &'a Assessment<'a>>,
    expected: u32,
) -> Option<(ContextReason, String)> {
    let troubled: Vec<_> = assessments.filter_map(|one| Some((one.pod, one.context.as_ref()?))).collect();
    let (pod, worst) = troubled.iter().min_by_key(|(_, context)| context.reason)?;
    let message = match expected {
        1 => worst.message.clone(),
        _ => format!("on {} of {expected} replicas, for instance {pod}: {}", troubled.len(), worst.message),
    };
    Some((worst.reason, message))
}

/// Says that requests pass without the policy, and until when.
pub(crate) fn passed_over(passing: usize, expected: u32, is_stuck: bool) -> String {
    let until = if is_stuck { "fixed and loaded" } else { "loaded" };
    match expected {
        1 => format!("it was never enforced, so requests pass without it until it is {until}"),
        _ => format!(
            "it was never enforced on all replicas, so requests pass without it on {passing} of {expected} until it is {until} there"
        ),
    }
}

/// `2 of 3 replicas serve generation 7`.
pub(crate) fn share(generation: i64, counts: ReplicaCounts) -> String {
    format!("{} of {} replicas serve generation {generation}", counts.current, counts.expected)
}

/// What replicas answer with that do not serve the newest generation: `2 answer with generation 6`. `None` if there are none. A message that
/// only said how many serve the newest would read as if the others answered nothing.
pub(crate) fn instead(generation: i64, assessments: &[&Assessment<'_>]) -> Option<String> {
    let previous = assessments.iter().filter(|assessment| assessment.state == ReplicaState::Previous);
    let (differing, others): (Vec<i64>, Vec<i64>) =
        previous.map(|assessment| assessment.serving).partition(|serving| *serving == generation);
    let other = match others.as_slice() {
        [first, rest @ ..] if rest.iter().all(|serving| serving == first) => format!("generation {first}"),
        _ => "other generations".to_owned(),
    };
    let told = [(others.len(), other), (differing.len(), format!("other bytes of generation {generation}"))];
    let told = told.into_iter().filter_map(|(count, with)| match count {
        0 => None,
        1 => Some(format!("1 answers with {with}")),
        _ => Some(format!("{count} answer with {with}")),
    });
    let told: Vec<String> = told.collect();
    (!told.is_empty()).then(|| told.join(", "))
}

/// `generation 6 answers`; `None` if none does.
pub(crate) fn answering(serving: i64) -> Option<String> {
    (serving > 0).then(|| format!("generation {serving} answers"))
}

/// Says that pods which are not ready may still answer with an older generation.
pub(crate) fn older(pods: &[&Assessment<'_>]) -> String {
    match pods {
        [] => String::new(),
        [one] => format!(
            "{} is not ready, and still answers with generation {} on connections that are open",
            one.pod, one.serving
        ),
        [first, others @ ..] => format!(
            "{} and {} more are not ready, and still answer with older generations on connections that are open",
            first.pod,
            others.len()
        ),
    }
}

fn in_full(problem: &Problem) -> String {
    let Problem { reason, message, next_retry, .. } = problem;
    let words = if message.is_empty() { String::new() } else { format!(": {message}") };
    format!("{reason}{words}{}", retry(*next_retry))
}

/// When the next try is, as a point in time and not as the time left, since a status is not rewritten as time passes.
pub(crate) fn retry(next: Option<Timestamp>) -> String {
    next.map(|next| format!(", next try at {}", to_second(next))).unwrap_or_default()
}

struct Group<'a> {
    reason: &'a str,
    class: Class,
    pods: Vec<&'a str>,
    /// The message of the first pod that has one.
    message: &'a str,
}

/// The failing replicas by reason: the most frequent first, then those of the worst class, then by name.
fn by_reason<'a>(bad: &[&'a Assessment<'a>]) -> Vec<Group<'a>> {
    let mut groups: BTreeMap<&str, Group<'a>> = BTreeMap::new();
    for assessment in bad {
        let Some(problem) = &assessment.problem else { continue };
        let group = groups.entry(&problem.reason).or_insert_with(|| Group {
            reason: &problem.reason,
            class: problem.class,
            pods: Vec::new(),
            message: &problem.message,
        });
        group.pods.push(assessment.pod);
        if group.message.is_empty() {
            group.message = &problem.message;
        }
    }
    let mut groups: Vec<Group<'a>> = groups.into_values().collect();
    groups.sort_by_key(|group| Reverse((group.pods.len(), group.class)));
    groups
}

#[cfg(test)]
mod tests {
    use portcullis_contract::Reason;

    use super::*;

    fn failing(pod: &'static str, reason: Reason) -> Assessment<'static> {
        let problem =
            Problem { reason: reason.to_string(), class: reason.class(), next_retry: None, message: "words".into() };
        Assessment {
            pod,
            pod_uid: pod,
            expected: true,
            state: ReplicaState::Failed,
            serving: 0,
            knows_newest: true,
            is_left_out: false,
            problem: Some(problem),
            note: None,
            since: None,
            context: None,
            is_context_left_out: false,
            passed_over: false,
        }
    }

    fn joined(reasons: &[Reason]) -> (String, String) {
        let pods = ["a", "b", "c", "d", "e"];
        let assessments: Vec<_> = reasons.iter().zip(pods).map(|(reason, pod)| failing(pod, *reason)).collect();
        let assessments: Vec<_> = assessments.iter().collect();
        (joint_reason(&assessments), failures_in_words(&assessments, 5))
    }

    #[test]
    fn the_most_frequent_reason_counts() {
        let (reason, words) = joined(&[Reason::NotFound, Reason::RegistryTimeout, Reason::RegistryTimeout]);
        assert_eq!(reason, "RegistryTimeout");
        assert_eq!(words, "RegistryTimeout on 2 (b, c), NotFound on 1 (a): words");
    }

    #[test]
    fn on_a_tie_the_worst_class_counts() {
        assert_eq!(joined(&[Reason::RegistryTimeout, Reason::NotFound]).0, "NotFound");
        assert_eq!(joined(&[Reason::NotFound, Reason::ModuleInvalid]).0, "ModuleInvalid");
    }

    #[test]
    fn a_tie_within_a_class_is_several_reasons() {
        assert_eq!(joined(&[Reason::NotFound, Reason::Unauthorized]).0, "SeveralReasons");
    }

    #[test]
    fn at_most_three_pods_are_named() {
        use Reason::{NotFound, RegistryTimeout, Unauthorized};
        let (_, words) = joined(&[NotFound, NotFound, RegistryTimeout, RegistryTimeout, Unauthorized]);
        assert_eq!(words, "NotFound on 2 (a, b), RegistryTimeout on 2 (c, …), Unauthorized on 1: words");
    }

    #[test]
    fn one_failing_pod_of_several_is_named_with_its_next_try() {
        let mut assessment = failing("pod-c", Reason::RegistryTimeout);
        if let Some(problem) = &mut assessment.problem {
            problem.next_retry = Some("2026-01-01T00:00:40.5Z".parse().expect("a time"));
        }
        assert_eq!(failures(&[&assessment], 3), "pod-c: RegistryTimeout, next try at 2026-01-01T00:00:40Z");
        assert_eq!(failures(&[&assessment], 1), "RegistryTimeout: words, next try at 2026-01-01T00:00:40Z");
    }

    #[test]
    fn what_answers_instead_of_the_newest_generation_is_told() {
        let told = |served: &[i64]| {
            let previous = |serving: &i64| Assessment {
                state: ReplicaState::Previous,
                serving: *serving,
                ..failing("a", Reason::NotFound)
            };
            let mut assessments: Vec<_> = served.iter().map(previous).collect();
            assessments.push(failing("b", Reason::NotFound));
            instead(7, &assessments.iter().collect::<Vec<_>>())
        };
        assert_eq!(told(&[]), None);
        assert_eq!(told(&[6]).as_deref(), Some("1 answers with generation 6"));
        assert_eq!(told(&[6, 6]).as_deref(), Some("2 answer with generation 6"));
        assert_eq!(told(&[6, 5]).as_deref(), Some("2 answer with other generations"));
        assert_eq!(
            told(&[6, 7]).as_deref(),
            Some("1 answers with generation 6, 1 answers with other bytes of generation 7")
        );
    }
}
