//! The invariants of docs/design/faults.md, asserted at the end of each pod that has a canary, whatever its test is about.

use std::collections::BTreeSet;
use std::thread;

use portcullis_contract::Phase;
use portcullis_testkit::{most_excused, note};

use crate::canary::Heard;
use crate::{Pod, Secret, eventually};

/// The longest line of a log, in bytes. Texts of guests and sources are cut before.
const LONGEST_LINE: usize = 16 << 10;

impl Drop for Pod {
    fn drop(&mut self) {
        // The canary is called until the pod's programs end, and no longer.
        let Some(canary) = self.canary.take() else { return };
        if thread::panicking() {
            return;
        }
        let heard = canary.finish();
        note(&in_words(&heard));
        assert_answers(&heard);
        self.assert_alive();
        Secret::assert_none_logged(self);
        self.assert_lines_are_short();
        self.assert_nothing_is_left();
    }
}

/// I1: each answer was right and in time, and few were late because of the machine.
fn assert_answers(heard: &Heard) {
    let Heard { right, excused, wrong, .. } = heard;
    if let Some(first) = wrong.first() {
        panic!("{} answers of the canary were wrong or late (I1), the first {first}", wrong.len());
    }
    assert!(*right > 0, "the canary was never asked");
    assert!(
        *excused <= most_excused(*right),
        "{excused} answers of the canary were late beside {right} in all that were right, which no busy machine excuses (I1)"
    );
}

fn in_words(heard: &Heard) -> String {
    let Heard { right, slowest, excused, wrong } = heard;
    let wrong = wrong.len();
    format!(
        "the canary: {right} right answers, the slowest after {slowest:.1?}; {wrong} wrong or late, {excused} excused"
    )
}

impl Pod {
    /// I4: the lines that the programs write have a limited length.
    fn assert_lines_are_short(&self) {
        for process in self.processes() {
            if let Some(line) = process.lines().into_iter().find(|line| line.len() > LONGEST_LINE) {
                let beginning: String = line.chars().take(200).collect();
                panic!("{} logs a line of {} bytes: {beginning}", process.name(), line.len());
            }
        }
    }

    /// The number of lines that the reporter has written so far, for [`Pod::assert_steady`].
    pub(crate) fn said(&self) -> usize {
        self.reporter.as_ref().map_or(0, |reporter| reporter.lines().len())
    }

    /// I7: since the reporter had written `since` lines, a generation of a policy has reached each of its states only once. The
    /// states are derived from its conditions.
    pub(crate) fn assert_steady(&self, id: &str, generation: i64, since: usize) {
        let lines = self.reporter.as_ref().map(|reporter| reporter.lines()).unwrap_or_default();
        let said = lines.get(since..).unwrap_or_default();
        if let Some(word) = flapping(id, generation, said) {
            panic!("generation {generation} of {id} became {word} twice (I7): {said:#?}");
        }
    }

    /// I5 on the volume: when nothing is being fetched or compiled, no temporary file is left.
    fn assert_nothing_is_left(&self) {
        if self.loader.is_none() {
            return;
        }
        eventually("no temporary file to be left on the volume (I5)", || {
            let is_at_work = |phase: Phase| matches!(phase, Phase::Queued | Phase::Fetching | Phase::Compiling);
            let is_busy = self.loader_state()?.policies.iter().any(|policy| is_at_work(policy.phase));
            (is_busy || self.volume().temporary_files().is_empty()).then_some(())
        });
    }
}

/// The state that a generation of a policy has reached twice, in lines of a reporter: `… policy cluster/a: Active generation 2 (was
/// Progressing): …`.
fn flapping<'l>(id: &str, generation: i64, lines: &'l [String]) -> Option<&'l str> {
    let (start, end) = (format!(" policy {id}: "), format!(" generation {generation} (was "));
    let mut seen = BTreeSet::new();
    let became = |line: &'l String| Some(line.split_once(&start)?.1.split_once(&end)?.0);
    lines.iter().filter_map(became).find(|word| !seen.insert(*word))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn heard(right: u64, wrong: &[&str]) -> Heard {
        let wrong = wrong.iter().map(|&text| text.to_owned()).collect();
        Heard { right, slowest: Duration::from_millis(12), excused: 1, wrong }
    }

    #[test]
    fn right_answers_are_counted_and_the_slowest_is_named() {
        let words = "the canary: 7 right answers, the slowest after 12.0ms; 0 wrong or late, 1 excused";
        assert_eq!(in_words(&heard(7, &[])), words);
        assert_answers(&heard(7, &[]));
    }

    #[test]
    #[should_panic(expected = "2 answers of the canary were wrong or late (I1), the first one")]
    fn one_wrong_answer_is_too_many() {
        assert_answers(&heard(7, &["one", "two"]));
    }

    #[test]
    fn a_few_late_answers_are_excused() {
        assert_answers(&Heard { excused: 3, ..heard(1, &[]) });
        assert_answers(&Heard { excused: 13, ..heard(500, &[]) });
    }

    #[test]
    #[should_panic(expected = "14 answers of the canary were late beside 500")]
    fn excuses_have_a_limit() {
        assert_answers(&Heard { excused: 14, ..heard(500, &[]) });
    }

    #[test]
    fn a_generation_that_becomes_the_same_twice_flaps() {
        let line = |words: &str| format!("2026-01-01T00:00:00Z policy cluster/a: {words}: why");
        let lines = [
            line("Error generation 1 (was Progressing)"),
            line("Progressing generation 2 (was Error)"),
            line("Error generation 2 (was Progressing)"),
            line("Error generation 2"),
            line("Active generation 2 (was Error)"),
            "2026-01-01T00:00:00Z policy cluster/b: Active generation 2 (was Error): why".to_owned(),
        ];
        assert_eq!(flapping("cluster/a", 2, &lines), None);
        let again = [&lines[..], &[line("Error generation 2 (was Active)")]].concat();
        assert_eq!(flapping("cluster/a", 2, &again), Some("Error"));
        assert_eq!(flapping("cluster/a", 2, &again[3..]), None, "one change each");
    }

    #[test]
    #[should_panic(expected = "never asked")]
    fn a_canary_that_was_never_asked_shows_nothing() {
        assert_answers(&heard(0, &[]));
    }
}
