//! Which warnings an answer carries: few and short, some of every policy, and none dropped without saying so. Pure.
//!
//! Warnings by this program come first: that a policy in mode `warn` denies, or that one was not evaluated. If there are more such notes
//! than fit, each kind is counted in one warning that names the policies. Then come the guests' own warnings, in turn: the first of each
//! policy, the second of each, and so on. The last warning counts those that are left out. Warnings about a policy that somebody applies
//! are a few sentences of the loader, and are not cut.

use std::collections::VecDeque;

use portcullis_contract::{PolicyId, clean, truncate};

/// The most warnings in an answer.
const MOST: usize = 16;
/// The longest warning where not all of them are whole, in bytes: the API server cuts all to this length when together they are above 4 KiB.
const LENGTH: usize = 256;
/// The length of all warnings together, in bytes: 4 KiB without what the API server puts around each.
const TOTAL: usize = (4 << 10) - MOST * 16;
/// The longest warning that counts notes, in bytes: it names the policies.
const COUNT: usize = 1536;
/// The longest warning where all of them are whole, in bytes: a text of at most 1 KiB, and the words before it.
const WHOLE: usize = 1280;
/// Room for the last warning, which counts what is left out, in bytes.
const RESERVED: usize = 80;

/// A warning by this program about a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Note {
    /// The policy is in mode `warn` and denies the request.
    Denies(String),
    /// The policy gave no verdict, and the request may pass nevertheless.
    NotEvaluated(String),
}

/// The warnings about and by one policy.
#[derive(Debug, Default)]
pub(crate) struct Words {
    /// The prefix of the policy's own warnings: its name, or empty if it was asked alone.
    pub(crate) prefix: String,
    /// The warnings by this program.
    pub(crate) notes: Vec<Note>,
    /// The policy's own warnings.
    pub(crate) warnings: Vec<String>,
}

/// Chooses the warnings of an answer. They are whole if all of them together are short enough for the API server to show them so.
pub(crate) fn chosen(members: &[(&PolicyId, Words)]) -> Vec<String> {
    let (mut told, own) = texts(members, WHOLE);
    if fits(&told, &own) {
        told.extend(own);
        return told;
    }
    let (mut told, own) = texts(members, LENGTH);
    let is_room = told.len() < MOST && length(&told) <= TOTAL - RESERVED;
    let mut all = Vec::new();
    if !is_room && !fits(&told, &own) {
        all.extend(counted(members));
    }
    told.extend(own);
    fill(&mut all, told);
    all
}

/// The notes, and the guests' own warnings in turn, each of them at most this long.
fn texts(members: &[(&PolicyId, Words)], longest: usize) -> (Vec<String>, Vec<String>) {
    let notes = members.iter().flat_map(|(_, words)| &words.notes).map(|note| clean(note.text(), longest)).collect();
    let queues = members.iter().map(|(_, Words { prefix, warnings, .. })| {
        let said = warnings.iter().filter(|text| !text.trim().is_empty());
        said.map(|text| clean(&format!("{prefix}{text}"), longest)).collect::<VecDeque<_>>()
    });
    (notes, in_turn(queues.filter(|said| !said.is_empty()).collect()))
}

/// As many of these texts as there is room for, in their order. They are not cut to [`LENGTH`]: the API server shows long warnings
/// whole if all of them together are short enough.
pub(super) fn whole(texts: impl IntoIterator<Item = String>) -> Vec<String> {
    let texts = texts.into_iter().map(|text| clean(&text, WHOLE)).filter(|text| !text.is_empty());
    let mut all = Vec::new();
    fill(&mut all, texts.collect());
    all
}

/// The first text of each queue, then the second of each, and so on.
fn in_turn(mut queues: VecDeque<VecDeque<String>>) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(mut queue) = queues.pop_front() {
        all.extend(queue.pop_front());
        if !queue.is_empty() {
            queues.push_back(queue);
        }
    }
    all
}

/// One warning for each kind of note.
fn counted(members: &[(&PolicyId, Words)]) -> Vec<String> {
    let count = |is_wanted: fn(&Note) -> bool, one: &str, many: &str| {
        let notes = members.iter().flat_map(|(id, words)| words.notes.iter().map(move |note| (id, note)));
        let ids: Vec<_> = notes.filter(|(_, note)| is_wanted(note)).map(|(id, _)| id.as_str()).collect();
        let what = if ids.len() == 1 { one } else { many };
        (!ids.is_empty()).then(|| truncate(&format!("{} {what}: {}", ids.len(), ids.join(", ")), COUNT))
    };
    let denies = |note: &Note| matches!(note, Note::Denies(_));
    let not_evaluated = |note: &Note| matches!(note, Note::NotEvaluated(_));
    [
        count(denies, "policy in mode warn denies this request", "policies in mode warn deny this request"),
        count(not_evaluated, "policy was not evaluated", "policies were not evaluated"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Adds as many texts as there is room for, and one that counts the rest.
fn fill(all: &mut Vec<String>, texts: Vec<String>) {
    if fits(all, &texts) {
        return all.extend(texts);
    }
    let mut left = texts.len();
    for text in texts {
        if all.len() + 1 == MOST || length(all) + text.len() > TOTAL - RESERVED {
            break;
        }
        all.push(text);
        left -= 1;
    }
    // Only the first of a guest's warnings are decoded, so there may be more than this number.
    all.push(format!("{left} more warnings, or even more, are not shown"));
}

fn fits(some: &[String], others: &[String]) -> bool {
    some.len() + others.len() <= MOST && length(some) + length(others) <= TOTAL
}

fn length(texts: &[String]) -> usize {
    texts.iter().map(String::len).sum()
}

impl Note {
    /// The text.
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Denies(text) | Self::NotEvaluated(text) => text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(n: usize) -> Vec<PolicyId> {
        (0..n).map(|i| format!("cluster/p{i:02}").parse().expect("an id")).collect()
    }

    fn warnings(ids: &[PolicyId], words: impl Fn(usize) -> (Vec<Note>, Vec<String>)) -> Vec<String> {
        let member = |(number, id)| {
            let (notes, warnings) = words(number);
            (id, Words { prefix: format!("{id}: "), notes, warnings })
        };
        let all = chosen(&ids.iter().enumerate().map(member).collect::<Vec<_>>());
        assert!(all.len() <= MOST && length(&all) <= TOTAL, "{all:?}");
        all
    }

    fn denies(number: usize) -> Vec<Note> {
        vec![Note::Denies(format!("policy {number}: no"))]
    }

    fn texts(n: usize) -> Vec<String> {
        (0..n).map(|i| format!("w{i}")).collect()
    }

    #[test]
    fn what_fits_is_told_as_it_is_notes_first() {
        let ids = ids(3);
        let all = warnings(&ids, |number| match number {
            0 => (Vec::new(), texts(2)),
            1 => (denies(1), vec![String::new(), "\n".into(), "own".into()]),
            _ => (vec![Note::NotEvaluated("policy 2 was not evaluated".into())], Vec::new()),
        });
        let expected =
            ["policy 1: no", "policy 2 was not evaluated", "cluster/p00: w0", "cluster/p01: own", "cluster/p00: w1"];
        assert_eq!(all, expected);
        let all = warnings(&ids[..1], |_| (Vec::new(), texts(MOST)));
        assert_eq!((all.len(), &*all[15]), (MOST, "cluster/p00: w15"));
    }

    #[test]
    fn a_flood_leaves_room_for_the_others() {
        let ids = ids(4);
        let all = warnings(&ids, |number| (Vec::new(), texts(if number == 1 { 64 } else { 2 })));
        for number in [0, 2, 3] {
            for text in ["w0", "w1"] {
                assert!(all.contains(&format!("cluster/p{number:02}: {text}")), "{all:?}");
            }
        }
        assert_eq!(all[14], "cluster/p01: w8");
        assert_eq!(all[15], "55 more warnings, or even more, are not shown");
    }

    #[test]
    fn denials_are_never_among_what_is_left_out() {
        let some = ids(15);
        let all = warnings(&some, |number| (denies(number), texts(2)));
        assert!((0..15).all(|number| all.contains(&format!("policy {number}: no"))), "{all:?}");
        assert_eq!(all[15], "30 more warnings, or even more, are not shown");
        let all = warnings(&ids(16), |number| (denies(number), Vec::new()));
        assert!((0..16).all(|number| all.contains(&format!("policy {number}: no"))), "{all:?}");
    }

    #[test]
    fn denials_that_do_not_fit_are_counted_and_named() {
        let many = ids(60);
        let all = warnings(&many, |number| (denies(number), texts(1)));
        assert!(all[0].starts_with("60 policies in mode warn deny this request: cluster/p00, "), "{all:?}");
        assert!(many.iter().all(|id| all[0].contains(id.as_str())), "{all:?}");
        assert_eq!((&*all[1], &*all[14]), ("policy 0: no", "policy 13: no"));
        assert_eq!(all[15], "106 more warnings, or even more, are not shown");
        // The same with long texts, and with some policies that were not evaluated.
        let all = warnings(&many, |number| {
            let text = "x".repeat(1000);
            (vec![if number < 59 { Note::Denies(text) } else { Note::NotEvaluated(text) }], Vec::new())
        });
        assert!(all[0].starts_with("59 policies in mode warn deny this request: "), "{all:?}");
        assert_eq!(all[1], "1 policy was not evaluated: cluster/p59");
    }

    #[test]
    fn texts_are_cut_and_cleaned() {
        let long = |count| warnings(&ids(count), |_| (Vec::new(), vec![format!("a\n{}", "w".repeat(1000))]));
        for all in [long(4), long(16)] {
            assert!(all[0].starts_with("cluster/p00: a w"), "{all:?}");
            assert!(all.iter().all(|text| text.len() <= LENGTH), "{all:?}");
        }
        // Together they are below what API servers show whole.
        assert_eq!(long(3)[2], format!("cluster/p02: a {}", "w".repeat(1000)));
    }

    #[test]
    fn texts_of_the_loader_stay_whole_where_there_is_room() {
        let long = format!("not loaded yet: SettingsInvalid: {}", "m".repeat(1024));
        let all = whole([long.clone(), " \n".into(), "a\x1bb".into()]);
        assert_eq!(all, [long.clone(), "a b".into()]);
        assert_eq!(whole(texts(MOST)).len(), MOST);
        for many in [vec![long; 9], texts(100), vec!["x".repeat(1 << 20); 5]] {
            let all = whole(many);
            assert!(all.len() <= MOST && length(&all) <= TOTAL, "{all:?}");
            assert!(all.last().is_some_and(|last| last.ends_with("are not shown")), "{all:?}");
        }
    }

    #[test]
    fn a_thousand_names_are_cut_and_counted() {
        let all = warnings(&ids(1000), |number| (denies(number), Vec::new()));
        assert!(all[0].starts_with("1000 policies ") && all[0].len() <= COUNT && all[0].ends_with('…'), "{all:?}");
    }
}
