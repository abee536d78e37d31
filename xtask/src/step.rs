//! Steps of the test run: one line each while they run, the whole output of those that fail, and a table at the end.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::evidence::count::Count;
use crate::evidence::runs::{self, Run, TestOutcome};
use crate::log::{self, Written};
use crate::totals::Totals;

/// How many of the steps that may run beside others run at the same time. Tests of real programs wait more than they
/// compute. Three leave no core idle and save some minutes, but then canaries wait longer than a busy machine excuses.
const LANES: usize = 2;

/// The longest that a step may take: several times what it takes on two cores. A step that takes longer hangs, and is
/// ended.
const LIMIT: Duration = Duration::from_secs(45 * 60);

/// The longest for a step that compiles everything, perhaps for the first time.
pub(crate) const LIMIT_OF_BUILDS: Duration = Duration::from_secs(90 * 60);

/// One thing to run.
pub(crate) struct Step<'a> {
    pub(crate) name: String,
    pub(crate) work: Work<'a>,
    /// If this fails, the build is broken and later steps are not run, because they would only repeat its errors.
    pub(crate) gate: bool,
    /// Whether it may run at the same time as adjacent steps that may do so too.
    pub(crate) is_beside: bool,
    /// Whether its commands may take minutes and show their progress on standard error.
    pub(crate) is_shown: bool,
    /// The longest that all of its commands may take together.
    pub(crate) limit: Duration,
    /// If it is skipped: a part of the paths of the files whose tests do not run because of that.
    pub(crate) leaves_out: Option<&'static str>,
}

/// What a step does.
pub(crate) enum Work<'a> {
    /// A command; its exit status is the result, and the tests in its output are counted.
    Command(Command),
    /// Several commands, which an earlier step determines: each is run, and the result is that of all.
    Commands(Box<dyn FnOnce() -> Result<Vec<Command>> + Send + 'a>),
    /// A check in this process, which returns what is wrong, a sentence each.
    Check(Box<dyn Fn() -> Result<Vec<String>> + Send + 'a>),
    /// Nothing, because something is missing here: what is missing, and how to get it.
    Skip(String),
}

/// How a step ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    Passed(Totals),
    Failed(Totals),
    Skipped(String),
    NotRun,
}

/// A step that has ended or was skipped.
pub(crate) struct Done {
    pub(crate) name: String,
    pub(crate) outcome: Outcome,
    pub(crate) took: Duration,
    /// The tests that ran in it.
    pub(crate) runs: Vec<Run>,
    /// If it took too long: the command that was ended, and the last lines of its log.
    pub(crate) hung: Option<String>,
    /// A part of the paths of the files whose tests were skipped with it.
    pub(crate) leaves_out: Option<&'static str>,
}

impl Done {
    /// A step in which nothing ran.
    fn new(name: String, outcome: Outcome) -> Self {
        Self { name, outcome, took: Duration::ZERO, runs: Vec::new(), hung: None, leaves_out: None }
    }
}

impl<'a> Step<'a> {
    pub(crate) fn command(name: impl Into<String>, command: Command) -> Self {
        Self::new(name, Work::Command(command))
    }

    pub(crate) fn commands(
        name: impl Into<String>,
        commands: impl FnOnce() -> Result<Vec<Command>> + Send + 'a,
    ) -> Self {
        Self::new(name, Work::Commands(Box::new(commands)))
    }

    pub(crate) fn check(name: impl Into<String>, check: impl Fn() -> Result<Vec<String>> + Send + 'a) -> Self {
        Self::new(name, Work::Check(Box::new(check)))
    }

    pub(crate) fn skip(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::new(name, Work::Skip(reason.into()))
    }

    fn new(name: impl Into<String>, work: Work<'a>) -> Self {
        Self { name: name.into(), work, gate: false, is_beside: false, is_shown: false, limit: LIMIT, leaves_out: None }
    }

    pub(crate) fn gate(self) -> Self {
        Self { gate: true, ..self }
    }

    pub(crate) fn shown(self) -> Self {
        Self { is_shown: true, ..self }
    }

    pub(crate) fn beside(self) -> Self {
        Self { is_beside: true, ..self }
    }

    pub(crate) fn within(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    pub(crate) fn leaving_out(self, part: &'static str) -> Self {
        Self { leaves_out: Some(part), ..self }
    }
}

/// Runs the steps in order, all of them unless the build is broken. Each step's output is kept in `logs`.
pub(crate) fn run_all(steps: Vec<Step<'_>>, logs: &Path) -> Result<Vec<Done>> {
    fs::create_dir_all(logs).with_context(|| format!("failed to create {}", logs.display()))?;
    let runner = Runner { count: steps.len(), logs, output: Mutex::new(()) };
    let mut done = Vec::with_capacity(steps.len());
    let mut broken = false;
    let mut steps = steps.into_iter().enumerate().peekable();
    while let Some((index, step)) = steps.next() {
        if broken {
            done.push(Done::new(step.name, Outcome::NotRun));
            continue;
        }
        let mut group = vec![(index, step)];
        if group[0].1.is_beside {
            while let Some(next) = steps.next_if(|(_, next)| next.is_beside) {
                group.push(next);
            }
        }
        let is_gate = group[0].1.gate;
        let ended = if group.len() == 1 { vec![runner.one(group.remove(0))?] } else { runner.lanes(group)? };
        broken = is_gate && ended.iter().any(|done| matches!(done.outcome, Outcome::Failed(_)));
        done.extend(ended);
    }
    Ok(done)
}

/// Runs steps, and tells of each.
struct Runner<'l> {
    count: usize,
    logs: &'l Path,
    /// Locked while a thread writes more than a line.
    output: Mutex<()>,
}

impl Runner<'_> {
    /// Runs one step that has the machine to itself. Its line is begun when it starts, and begun again after panics that were
    /// reported in the meantime.
    fn one(&self, (index, step): (usize, Step<'_>)) -> Result<Done> {
        let line = self.line(index, &step.name);
        print!("{line} ... ");
        std::io::stdout().flush().ok();
        let is_interrupted = AtomicBool::new(false);
        let tell = |panic: &str| {
            is_interrupted.store(true, Ordering::SeqCst);
            print!("\n{panic}");
            std::io::stdout().flush().ok();
        };
        let (done, output) = self.run(step, &tell)?;
        let begin = if is_interrupted.into_inner() { format!("\n{line} ... ") } else { String::new() };
        println!("{begin}{}", told(&done.outcome, done.took));
        tell_of_failure(&done, &output);
        Ok(done)
    }

    /// Runs steps, [`LANES`] of them at the same time. Returns their results in the order of the steps.
    fn lanes(&self, steps: Vec<(usize, Step<'_>)>) -> Result<Vec<Done>> {
        let waiting = Mutex::new(steps.into_iter());
        let ended = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..LANES {
                scope.spawn(|| {
                    while let Some((index, step)) = next(&waiting) {
                        let line = self.line(index, &step.name);
                        println!("{line} begins");
                        let tell = |panic: &str| {
                            let _whole = lock(&self.output);
                            println!("{line}: {panic}");
                        };
                        let result = self.run(step, &tell);
                        if let Ok((done, output)) = &result {
                            let _whole = lock(&self.output);
                            println!("{line} ... {}", told(&done.outcome, done.took));
                            tell_of_failure(done, output);
                        }
                        lock(&ended).push((index, result.map(|(done, _)| done)));
                    }
                });
            }
        });
        let mut ended = ended.into_inner().unwrap_or_else(PoisonError::into_inner);
        ended.sort_by_key(|(index, _)| *index);
        ended.into_iter().map(|(_, done)| done).collect()
    }

    fn line(&self, index: usize, name: &str) -> String {
        format!("[{:>2}/{}] {name}", index + 1, self.count)
    }

    /// The outcome of a step, and its output. `tell` gets each panic of a test at once.
    fn run(&self, step: Step<'_>, tell: &(dyn Fn(&str) + Sync)) -> Result<(Done, String)> {
        let start = Instant::now();
        let log = log_path(self.logs, &step.name);
        let (done, output) = match step.work {
            Work::Skip(reason) => {
                (Done { leaves_out: step.leaves_out, ..Done::new(step.name, Outcome::Skipped(reason)) }, String::new())
            }
            Work::Check(check) => {
                let problems = check()?;
                let totals = Totals::default();
                let outcome = if problems.is_empty() { Outcome::Passed(totals) } else { Outcome::Failed(totals) };
                (Done::new(step.name, outcome), problems.join("\n"))
            }
            Work::Command(command) => {
                of_commands(step.name, log::run(vec![command], &log, step.limit, step.is_shown, tell)?, &log)
            }
            Work::Commands(commands) => {
                of_commands(step.name, log::run(commands()?, &log, step.limit, step.is_shown, tell)?, &log)
            }
        };
        Ok((Done { took: start.elapsed(), ..done }, output))
    }
}

fn next<T>(waiting: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    lock(waiting).next()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn tell_of_failure(done: &Done, output: &str) {
    if matches!(done.outcome, Outcome::Failed(_)) {
        println!("{}\n", output.trim_end());
    }
}

/// The table of all steps, the skipped and failed ones, what the tests have shown, and, as the last line, the totals. A failed step
/// without a failed test counts as one failed test, a step that was skipped or not run as one skipped test, and a missing test as
/// failed.
pub(crate) fn summary(done: &[Done], count: &Count) -> (String, Totals) {
    let width = done.iter().map(|step| step.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    let mut totals = Totals::default();
    for step in done {
        text += &format!("{:width$}  {}\n", step.name, told(&step.outcome, step.took));
        totals += step.outcome.totals();
    }
    for step in done {
        if let Outcome::Skipped(reason) = &step.outcome {
            text += &format!("SKIPPED: {}: {reason}\n", step.name);
        }
    }
    for (step, run) in done.iter().flat_map(|step| step.runs.iter().map(move |run| (&step.name, run))) {
        match run.outcome {
            TestOutcome::Skipped if run.is_skipped_inside => {
                text += &format!("SKIPPED: {step}: {}: {}\n", run.test, run.words);
            }
            TestOutcome::Failed if run.words.is_empty() => text += &format!("FAILED: {step}: {}\n", run.test),
            TestOutcome::Failed => text += &format!("FAILED: {step}: {}: {}\n", run.test, run.words),
            TestOutcome::Passed | TestOutcome::Skipped => {}
        }
    }
    for step in done {
        if let Some(hung) = &step.hung {
            text += &format!("FAILED: {}: {hung}\n", step.name);
        }
    }
    if done.iter().any(|step| step.outcome == Outcome::NotRun) {
        text += "NOT RUN: the build is broken, so the steps after that were left out\n";
    }
    for line in &count.lines {
        text += &format!("{line}\n");
    }
    totals.failed += count.missing;
    text += &totals.to_string();
    (text, totals)
}

impl Outcome {
    fn totals(&self) -> Totals {
        match self {
            Self::Passed(totals) => *totals,
            Self::Failed(totals) => Totals { failed: totals.failed.max(1), ..*totals },
            Self::Skipped(_) | Self::NotRun => Totals { skipped: 1, ..Totals::default() },
        }
    }
}

/// The outcome of a step of commands with this output, and the part of it that is shown.
fn of_commands(name: String, written: Written, log: &Path) -> (Done, String) {
    let Written { output, failures, hung } = written;
    let runs = runs::parse(&output);
    let skips = runs.iter().filter(|run| run.is_skipped_inside).count();
    let totals = Totals::parse(&output).with_skips_inside(skips as u64);
    let is_failed = !failures.is_empty();
    let outcome = if is_failed { Outcome::Failed(totals) } else { Outcome::Passed(totals) };
    let output =
        if is_failed { format!("{output}{failures}(this output is kept in {})", log.display()) } else { output };
    (Done { runs, hung, ..Done::new(name, outcome) }, output)
}

fn log_path(logs: &Path, name: &str) -> PathBuf {
    let name: String =
        name.chars().map(|letter| if letter.is_ascii_alphanumeric() || letter == '-' { letter } else { '_' }).collect();
    logs.join(format!("{name}.log"))
}

fn told(outcome: &Outcome, took: Duration) -> String {
    let time = format!("{:.1} s", took.as_secs_f64());
    match outcome {
        Outcome::Passed(totals) if *totals == Totals::default() => format!("ok      {time:>8}"),
        Outcome::Passed(totals) => format!("ok      {time:>8}  {totals}"),
        Outcome::Failed(totals) if *totals == Totals::default() => format!("FAILED  {time:>8}"),
        Outcome::Failed(totals) => format!("FAILED  {time:>8}  {totals}"),
        Outcome::Skipped(_) => "SKIPPED".to_owned(),
        Outcome::NotRun => "not run".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(name: &str, outcome: Outcome) -> Done {
        Done { took: Duration::from_millis(1240), ..Done::new(name.to_owned(), outcome) }
    }

    #[test]
    fn the_summary_ends_with_the_totals() {
        let passed = Outcome::Passed(Totals { passed: 3, failed: 0, skipped: 0 });
        let skipped = Outcome::Skipped("no Go here; install Go 1.24".to_owned());
        let steps =
            [done("formatting", Outcome::Passed(Totals::default())), done("loader", passed), done("go", skipped)];
        let (text, totals) = summary(&steps, &Count::default());
        assert_eq!(
            text,
            "formatting  ok         1.2 s\n\
             loader      ok         1.2 s  3 passed, 0 failed, 0 skipped\n\
             go          SKIPPED\n\
             SKIPPED: go: no Go here; install Go 1.24\n\
             3 passed, 0 failed, 1 skipped",
        );
        assert_eq!(totals, Totals { passed: 3, failed: 0, skipped: 1 });
    }

    #[test]
    fn a_failed_check_counts_as_one_failure() {
        let (_, totals) = summary(&[done("formatting", Outcome::Failed(Totals::default()))], &Count::default());
        assert_eq!(totals, Totals { passed: 0, failed: 1, skipped: 0 });
    }

    #[test]
    fn failed_tests_count_as_many_as_they_are() {
        let failed = done("loader", Outcome::Failed(Totals { passed: 5, failed: 2, skipped: 0 }));
        let (_, totals) = summary(&[failed], &Count::default());
        assert_eq!(totals, Totals { passed: 5, failed: 2, skipped: 0 });
    }

    #[test]
    fn tests_that_failed_or_said_that_they_were_skipped_are_named_before_the_totals() {
        let output =
            "SKIPPED a: no node\ntest a ... ok\nFAILING b: x.rs:1:1: why\ntest b ... FAILED\ntest c ... FAILED\n";
        let mut step = done("loader", Outcome::Failed(Totals { passed: 0, failed: 2, skipped: 1 }));
        step.runs = runs::parse(output);
        let count = Count { lines: vec!["fault catalogue: none".to_owned()], missing: 1, ..Count::default() };
        let (text, _) = summary(&[step], &count);
        assert_eq!(
            text.split_once('\n').unwrap().1,
            "SKIPPED: loader: a: no node\nFAILED: loader: b: x.rs:1:1: why\nFAILED: loader: c\nfault catalogue: none\n\
             0 passed, 3 failed, 1 skipped",
        );
    }

    #[test]
    fn a_skip_inside_a_test_is_counted_as_one() {
        let logs = std::env::temp_dir().join(format!("xtask-steps-skip-{}", std::process::id()));
        let mut echo = Command::new("sh");
        let output =
            "SKIPPED a: no node\ntest a ... ok\ntest b ... ok\ntest result: ok. 2 passed; 0 failed; 0 ignored\n";
        echo.args(["-c", "printf %s \"$0\"", output]);
        let steps = vec![Step::command("one", echo), Step::skip("two", "no node").leaving_out("e2e/tests/node/")];
        let done = run_all(steps, &logs).unwrap();
        assert_eq!(done[0].outcome, Outcome::Passed(Totals { passed: 1, failed: 0, skipped: 1 }));
        assert_eq!(done[0].runs.len(), 2);
        assert_eq!(done[1].leaves_out, Some("e2e/tests/node/"));
        fs::remove_dir_all(logs).unwrap();
    }

    #[test]
    fn a_step_that_hangs_fails_and_its_last_lines_come_before_the_totals() {
        let logs = std::env::temp_dir().join(format!("xtask-steps-hung-{}", std::process::id()));
        let mut hangs = Command::new("sh");
        hangs.args(["-c", "echo 'test a ... ok'; echo 'test b has been running'; exec sleep 3600"]);
        let steps = vec![
            Step::command("one", hangs).within(Duration::from_secs(1)),
            Step::command("two", Command::new("true")),
        ];
        let done = run_all(steps, &logs).unwrap();
        assert!(matches!(done[0].outcome, Outcome::Failed(_)), "{:?}", done[0].outcome);
        assert_eq!(done[1].outcome, Outcome::Passed(Totals::default()), "the others run");
        let (text, totals) = summary(&done, &Count::default());
        let told = "FAILED: one: sh was ended, as the step may take 1 s; its last lines:\n    test a ... ok\n    \
            test b has been running\n";
        assert!(text.contains(told), "{text}");
        assert_eq!(totals.failed, 1);
        fs::remove_dir_all(logs).unwrap();
    }

    #[test]
    fn a_broken_build_ends_the_run() {
        let logs = std::env::temp_dir().join(format!("xtask-steps-{}", std::process::id()));
        let steps = vec![
            Step::check("builds", || Ok(vec!["it does not build".to_owned()])).gate(),
            Step::check("tests", || panic!("a step behind a broken build was run")),
        ];
        let done = run_all(steps, &logs).unwrap();
        let outcomes: Vec<_> = done.iter().map(|step| step.outcome.clone()).collect();
        assert_eq!(outcomes, [Outcome::Failed(Totals::default()), Outcome::NotRun]);
        fs::remove_dir_all(logs).unwrap();
    }

    #[test]
    fn steps_that_may_run_beside_each_other_end_in_their_order() {
        let logs = std::env::temp_dir().join(format!("xtask-steps-beside-{}", std::process::id()));
        fs::create_dir_all(&logs).unwrap();
        // Each of the two waits for the other, which would never end in one lane.
        let (one, two) = (logs.join("one"), logs.join("two"));
        let meet = |mine: &Path, other: &Path| {
            let mut command = Command::new("sh");
            command.args(["-c", "touch \"$0\"; until [ -e \"$1\" ]; do sleep 0.01; done"]).args([mine, other]);
            command
        };
        let steps = vec![
            Step::command("one", meet(&one, &two)).beside(),
            Step::commands("two", || Ok(vec![meet(&two, &one), Command::new("false")])).beside(),
            Step::command("three", Command::new("true")),
        ];
        let done = run_all(steps, &logs).unwrap();
        let told: Vec<_> = done.iter().map(|step| (step.name.as_str(), step.outcome.clone())).collect();
        let (passed, failed) = (Outcome::Passed(Totals::default()), Outcome::Failed(Totals::default()));
        assert_eq!(told, [("one", passed.clone()), ("two", failed), ("three", passed)]);
        fs::remove_dir_all(logs).unwrap();
    }

    #[test]
    fn a_failed_step_lets_the_others_run() {
        let logs = std::env::temp_dir().join(format!("xtask-steps-on-{}", std::process::id()));
        let mut echo = Command::new("sh");
        echo.args(["-c", "echo 'test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured'"]);
        let steps = vec![Step::command("one", Command::new("false")), Step::command("two", echo)];
        let outcomes: Vec<_> = run_all(steps, &logs).unwrap().into_iter().map(|step| step.outcome).collect();
        assert_eq!(
            outcomes,
            [Outcome::Failed(Totals::default()), Outcome::Passed(Totals { passed: 2, failed: 0, skipped: 0 })]
        );
        fs::remove_dir_all(logs).unwrap();
    }
}
