//! What happened in a run, as a text for a page.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use super::assess::Assessment;
use super::attempts::Attempts;
use super::fault::Fault;
use super::usage::{Usages, shown};

/// I1: in this time an answer should come. Here it is counted and not asserted, as pods of debug builds start and end all the time on cores
/// that they share with the one that answers, and some faults freeze what answers.
const IN_TIME: Duration = Duration::from_secs(1);

/// Counts of faults and answers.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// How many faults of each kind there were.
    faults: BTreeMap<String, usize>,
    pub(super) right: usize,
    pub(super) broken: usize,
    /// The right answers to calls that no fault may break, and that took longer than [`IN_TIME`].
    late: usize,
    /// How long the slowest right answer took, of calls that no fault may break.
    slowest: Duration,
    /// How often no fault was left.
    recoveries: usize,
    /// I3: how long it took at most until all policies were Ready and not Degraded then.
    slowest_recovery: Duration,
}

impl Tally {
    /// Counts a fault, and the one within it.
    pub(super) fn fault(&mut self, fault: &Fault) {
        *self.faults.entry(kind(fault)).or_default() += 1;
        if let Fault::WhileSourceIsClosed { fault, .. } | Fault::WhileSourceIsSlow { fault, .. } = fault {
            self.fault(fault);
        }
    }

    /// Counts an answer, which took this long; `may_break` says whether a fault would excuse it.
    pub(super) fn answer(&mut self, assessment: Assessment, took: Duration, may_break: bool) {
        match assessment {
            Assessment::Right => self.right += 1,
            Assessment::Broken => self.broken += 1,
            Assessment::Wrong => {}
        }
        if assessment == Assessment::Right && !may_break {
            self.late += usize::from(took > IN_TIME);
            self.slowest = self.slowest.max(took);
        }
    }

    /// Counts a recovery after all faults were lifted, which took this long.
    pub(super) fn recovered(&mut self, took: Duration) {
        self.recoveries += 1;
        self.slowest_recovery = self.slowest_recovery.max(took);
    }

    /// The text: two tables.
    pub(super) fn text(
        &self,
        run: Duration,
        excused: Duration,
        usages: (&Usages, &Usages),
        attempts: &Attempts,
    ) -> String {
        let Self { faults, right, broken, late, slowest, recoveries, slowest_recovery } = self;
        let share = 100.0 * excused.as_secs_f64() / run.as_secs_f64();
        let Attempts { requests, most_of_a_module, most_connections } = attempts;
        let mut text = String::from("| what | how much |\n| --- | --- |\n");
        let mut row = |what: &str, value: String| writeln!(text, "| {what} | {value} |").expect("memory");
        row("time", format!("{:.0} s", run.as_secs_f64()));
        row("answers", format!("{right} right, {broken} broken, none wrong"));
        row("time in which a call may break", format!("{:.0} s, {share:.0} % of all", excused.as_secs_f64()));
        row("slowest right answer outside that time", format!("{slowest:.1?}; {late} took longer than {IN_TIME:?}"));
        row("recoveries when no fault was left", format!("{recoveries}, the slowest took {slowest_recovery:.1?}"));
        row("requests at the source", format!("{requests}, at most {most_of_a_module} for one module within a minute"));
        row("connections at the source", format!("at most {most_connections} within a minute"));
        let (before, after) = usages;
        for (program, after) in &after.0 {
            let before = before.0.get(program).map(shown).unwrap_or_default();
            row(
                &format!("{program}, before the first fault and after the last"),
                format!("{before} → {}", shown(after)),
            );
        }
        text += "\n| fault | how often |\n| --- | --- |\n";
        for (kind, count) in faults {
            writeln!(text, "| {kind} | {count} |").expect("memory");
        }
        text
    }
}

/// The name of a fault's kind: the first word of its debug form.
fn kind(fault: &Fault) -> String {
    let text = format!("{fault:?}");
    text.split(' ').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_told_in_tables() {
        let mut tally = Tally::default();
        let inner = Box::new(Fault::KillLeader);
        tally.fault(&Fault::WhileSourceIsSlow { time: Duration::ZERO, fault: inner });
        tally.fault(&Fault::KillLeader);
        tally.fault(&Fault::Scale { replicas: 2 });
        tally.answer(Assessment::Right, Duration::from_secs(3), true);
        tally.answer(Assessment::Right, Duration::from_secs(2), false);
        tally.answer(Assessment::Broken, Duration::from_secs(9), true);
        for seconds in [4, 6, 5] {
            tally.recovered(Duration::from_secs(seconds));
        }
        let attempts = Attempts { requests: 7, most_of_a_module: 3, most_connections: 9 };
        let usages = Usages([("loader", Default::default())].into());
        let (run, excused) = (Duration::from_secs(200), Duration::from_secs(50));
        let text = tally.text(run, excused, (&usages, &usages), &attempts);
        for line in [
            "| answers | 2 right, 1 broken, none wrong |",
            "| time in which a call may break | 50 s, 25 % of all |",
            "| slowest right answer outside that time | 2.0s; 1 took longer than 1s |",
            "| recoveries when no fault was left | 3, the slowest took 6.0s |",
            "| requests at the source | 7, at most 3 for one module within a minute |",
            "| KillLeader | 2 |",
            "| Scale | 1 |",
            "| WhileSourceIsSlow | 1 |",
        ] {
            assert!(text.lines().any(|one| one == line), "no {line} in\n{text}");
        }
    }
}
