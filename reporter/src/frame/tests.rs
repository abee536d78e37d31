use portcullis_api::{Condition, PolicyStatus, Resolved, Truth};
use portcullis_contract::{Digest, LoaderPolicy};

use super::*;
use crate::fixtures::{observed, published};

const WIDE: Size = Size { width: 100, height: 40 };

fn now() -> Timestamp {
    Timestamp::from_second(90).expect("a time")
}

fn object(id: &str, word: &str, failure: Option<(&str, &str)>) -> (PolicyId, ObservedPolicy) {
    let condition = |r#type, status, reason: &str, message: &str| Condition {
        r#type,
        status,
        reason: reason.into(),
        message: message.into(),
        observed_generation: 2,
        last_transition_time: Timestamp::UNIX_EPOCH,
    };
    let (reason, words) = failure.unwrap_or(("AsExpected", ""));
    let truth = if failure.is_some() { Truth::True } else { Truth::False };
    let status = PolicyStatus {
        conditions: vec![
            condition(ConditionType::Ready, Truth::False, word, words),
            condition(ConditionType::Degraded, truth, reason, ""),
        ],
        last_served: Some(Resolved::module(1, Digest::of(b""))),
        summary: "0/1".into(),
        ..PolicyStatus::default()
    };
    (id.parse().expect("an id"), observed(id, 2, status))
}

fn loading(id: &str, phase: Phase, bytes: u64, total: Option<u64>) -> LoaderState {
    let activity = Some(Activity { bytes, total, since: Timestamp::from_second(86).expect("a time") });
    let policy = LoaderPolicy { phase, activity, ..published(id, "uid") };
    LoaderState { policies: vec![policy], ..LoaderState::default() }
}

#[test]
fn good_broken_and_input_that_is_no_policy() {
    let objects = BTreeMap::from([
        object("cluster/no-privileged", "Active", None),
        object(
            "namespaced/default/labels",
            "ServingPrevious",
            Some((
                "SettingsInvalid",
                "generation 1 answers; generation 2: SettingsInvalid: labels must not be empty, and there is more to say",
            )),
        ),
    ]);
    let problems = ["broken.yaml: line 3: mapping values are not allowed here".to_owned()];
    assert_eq!(
        frame(&objects, None, &problems, now(), WIDE, false),
        [
            "NAME                        READY   STATUS            MODE      GENERATION   REASON            AGE",
            "cluster/no-privileged       0/1     Active            protect   1            -                 90s",
            "namespaced/default/labels   0/1     ServingPrevious   protect   1            SettingsInvalid   90s",
            "",
            "namespaced/default/labels: generation 1 answers; generation 2: SettingsInvalid: labels must not be",
            "  empty, and there is more to say",
            "broken.yaml: line 3: mapping values are not allowed here",
        ]
    );
}

#[test]
fn progress_is_shown_while_a_module_loads() {
    let objects = BTreeMap::from([object("cluster/a", "Progressing", None)]);
    let last = |state: &LoaderState| frame(&objects, Some(state), &[], now(), WIDE, false).pop();
    let fetching = loading("cluster/a", Phase::Fetching, 1_230_000, Some(3_300_000));
    assert_eq!(last(&fetching).as_deref(), Some("cluster/a: fetching [#######-------------] 1.2 of 3.3 MB, 4s"));
    let without_length = loading("cluster/a", Phase::Fetching, 1_230_000, None);
    assert_eq!(last(&without_length).as_deref(), Some("cluster/a: fetching 1.2 MB, 4s"));
    let compiling = loading("cluster/a", Phase::Compiling, 0, None);
    assert_eq!(last(&compiling).as_deref(), Some("cluster/a: compiling, 4s"));
}

#[test]
fn a_bar_never_leaves_its_frame() {
    for (bytes, total, done) in
        [(0, 10, 0), (5, 10, 10), (10, 10, 20), (11, 10, 20), (0, 0, 0), (u64::MAX, u64::MAX, 20)]
    {
        assert_eq!(
            bar(bytes, total),
            format!("[{}{}]", "#".repeat(done), "-".repeat(BAR - done)),
            "{bytes} of {total}"
        );
    }
}

#[test]
fn a_narrow_terminal_loses_columns_and_no_line_is_too_long() {
    let objects = BTreeMap::from([object("cluster/a-policy-with-a-rather-long-name", "Active", None)]);
    let narrow = frame(&objects, None, &[], now(), Size { width: 60, height: 40 }, false);
    assert_eq!(
        narrow,
        [
            "NAME                                 READY   STATUS   REASON",
            "cluster/a-policy-with-a-rather-lo…   0/1     Active   -",
        ]
    );
    let narrower = frame(&objects, None, &[], now(), Size { width: 40, height: 40 }, false);
    assert!(narrower.iter().all(|line| line.chars().count() <= 40), "{narrower:?}");
}

#[test]
fn a_low_terminal_keeps_in_sight_what_is_not_active() {
    let mut objects: BTreeMap<_, _> = (10..40).map(|n| object(&format!("cluster/p{n}"), "Active", None)).collect();
    objects.extend([object("cluster/p99", "Error", Some(("NotFound", "nothing answers")))]);
    let lines = frame(&objects, None, &[], now(), Size { width: 80, height: 10 }, false);
    assert!(lines.len() <= 9, "{lines:?}");
    assert!(lines[1].starts_with("cluster/p99 "), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("… and ")), "{lines:?}");
    assert_eq!(lines.last().map(String::as_str), Some("cluster/p99: nothing answers"));
}

#[test]
fn colours_are_only_where_they_are_wanted() {
    let objects = BTreeMap::from([object("cluster/a", "Active", None)]);
    let plain = frame(&objects, None, &[], now(), WIDE, false).join("\n");
    let coloured = frame(&objects, None, &[], now(), WIDE, true).join("\n");
    assert!(!plain.contains('\u{1b}'));
    assert!(coloured.contains("\u{1b}[32mActive\u{1b}[0m"), "{coloured:?}");
}

#[test]
fn a_word_longer_than_the_line_is_cut_into_pieces() {
    assert_eq!(paragraph(&"x".repeat(30), 20), ["x".repeat(20), format!("  {}", "x".repeat(10))]);
}
