//! `docs/status.md` has a row for every word that a status can have, and `docs/operations.md` one that says who should act.

use std::collections::BTreeSet;

use portcullis_api::ConditionType;
use portcullis_api::reason::EVENT_REASONS;
use portcullis_contract::{Class, Reason};

const PAGE: &str = include_str!("../../../docs/status.md");
const OPERATIONS: &str = include_str!("../../../docs/operations.md");

fn rows() -> Vec<Vec<String>> {
    rows_of(PAGE)
}

/// The cells of each row of a table; code marks are left out.
fn rows_of(page: &str) -> Vec<Vec<String>> {
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect();
    page.lines().filter(|line| line.starts_with('|')).map(cells).collect()
}

#[test]
fn every_failure_has_a_row_with_its_class() {
    let class = |reason: &Reason| match reason.class() {
        Class::Retry => "R",
        Class::Outside => "S",
        Class::Final => "F",
    };
    let wanted: BTreeSet<String> = Reason::ALL.iter().map(|reason| format!("{reason} ({})", class(reason))).collect();
    let is_class = |cell: &String| [" (R)", " (S)", " (F)"].iter().any(|end| cell.ends_with(end));
    let found: BTreeSet<String> =
        rows().into_iter().filter(|row| row.len() == 4).map(|row| row[0].clone()).filter(is_class).collect();
    let missing: Vec<_> = wanted.difference(&found).collect();
    let unknown: Vec<_> = found.difference(&wanted).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "without a row: {missing:?}; no reasons: {unknown:?}");
}

#[test]
fn every_reason_of_a_condition_has_a_row() {
    let wanted: BTreeSet<(String, String)> = ConditionType::ALL
        .iter()
        .flat_map(|r#type| r#type.reasons().iter().map(|reason| (r#type.as_str().to_owned(), (*reason).to_owned())))
        .collect();
    let is_type = |cell: &str| ConditionType::ALL.iter().any(|r#type| r#type.as_str() == cell);
    let found: BTreeSet<(String, String)> = rows()
        .into_iter()
        .filter(|row| row.len() == 4 && is_type(&row[0]) && row[1].chars().all(char::is_alphanumeric))
        .map(|row| (row[0].clone(), row[1].clone()))
        .collect();
    let missing: Vec<_> = wanted.difference(&found).collect();
    let unknown: Vec<_> = found.difference(&wanted).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "without a row: {missing:?}; not in the code: {unknown:?}");
}

#[test]
fn every_condition_and_every_word_of_ready_has_a_row() {
    let rows = rows();
    let has = |word: &str| rows.iter().any(|row| row[0] == word);
    for r#type in ConditionType::ALL {
        assert!(has(r#type.as_str()), "{}", r#type.as_str());
    }
    for word in ConditionType::Ready.reasons() {
        assert!(has(word), "{word}");
    }
}

#[test]
fn every_event_has_a_row() {
    let rows = rows();
    for (r#type, reason) in EVENT_REASONS {
        let found = rows.iter().any(|row| row.len() == 4 && row[0] == r#type.as_str() && row[1] == *reason);
        assert!(found, "{} {reason}", r#type.as_str());
    }
}

#[test]
fn every_reason_has_a_row_for_those_who_operate() {
    let failures = Reason::ALL.iter().map(|reason| reason.as_str());
    let conditions = ConditionType::ALL.iter().flat_map(|r#type| r#type.reasons().iter().copied());
    let events = EVENT_REASONS.iter().map(|(_, reason)| *reason);
    let wanted: BTreeSet<String> = failures.chain(conditions).chain(events).map(str::to_owned).collect();
    let (_, part) = OPERATIONS.split_once("\n## Troubleshooting by reason\n").expect("the page has this part");
    let (part, _) = part.split_once("\n## ").expect("another part follows");
    let is_reason = |cell: &String| cell.starts_with(char::is_uppercase) && cell.chars().all(char::is_alphanumeric);
    let found: Vec<String> =
        rows_of(part).into_iter().filter(|row| row.len() == 3).map(|row| row[0].clone()).filter(is_reason).collect();
    let once: BTreeSet<String> = found.iter().cloned().collect();
    assert_eq!(once.len(), found.len(), "a reason has two rows: {found:?}");
    let missing: Vec<_> = wanted.difference(&once).collect();
    let unknown: Vec<_> = once.difference(&wanted).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "without a row: {missing:?}; not in the code: {unknown:?}");
}
