//! Steps of the test run: one line each while they run, the whole output of those that fail, and a table at the end.

use std::fs;
use std::io::Write as _;
use std::iter;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::evidence::count::Count;
use crate::evidence::runs::{self, Run, TestOutcome};
use crate::log::{self, Written};
use crate::totals::Totals;
use crate::wrapped;

/// How many steps of a group run at the same time, if they may. Tests of real programs wait more than they compute: two leave a quarter of
/// the machine idle, three a tenth. With four, the slowest answers that canaries get take more than a second.
const LANES: usize = 3;

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
    /// Whether it runs in a lane of its own, at the lowest priority, and so uses what the others of its group leave idle.
    pub(crate) is_when_idle: bool,
    /// Whether its commands may take minutes and show their progress on standard error.
    pub(crate) is_shown: bool,
    /// The longest that all of its commands may take together.
    pub(crate) limit: Duration,
    /// If it is skipped: a part of the paths of the files whose tests do not run because of that.
    pub(crate) leaves_out: Option<&'static str>,
}

/// Steps that may begin when all before them have ended. Those after them wait until all of these have ended.
pub(crate) struct Group<'a> {
    steps: Vec<Step<'a>>,
    /// How many run at the same time, besides one of those that use what is idle.
    lanes: usize,
}

impl<'a> Group<'a> {
    /// Steps that run one after the other, each with the machine to itself but for what uses idle time.
    pub(crate) fn one_by_one(steps: Vec<Step<'a>>) -> Self {
        Self { steps, lanes: 1 }
    }

    /// Steps of which at most two run at the same time.
    pub(crate) fn two_at_once(steps: Vec<Step<'a>>) -> Self {
        Self { steps, lanes: 2 }
    }

    /// Steps that run beside each other, in as many lanes as there are.
    pub(crate) fn beside(steps: Vec<Step<'a>>) -> Self {
        Self { steps, lanes: LANES }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Whether steps run at the same time.
    fn is_beside(&self) -> bool {
        self.lanes > 1 || self.steps.iter().any(|step| step.is_when_idle)
    }
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

    fn is_failed(&self) -> bool {
        matches!(self.outcome, Outcome::Failed(_))
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
        Self {
            name: name.into(),
            work,
            gate: false,
            is_when_idle: false,
            is_shown: false,
            limit: LIMIT,
            leaves_out: None,
        }
    }

    pub(crate) fn gate(self) -> Self {
        Self { gate: true, ..self }
    }

    pub(crate) fn shown(self) -> Self {
        Self { is_shown: true, ..self }
    }

    pub(crate) fn when_idle(self) -> Self {
        Self { is_when_idle: true, ..self }
    }

    pub(crate) fn within(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    pub(crate) fn leaving_out(self, part: &'static str) -> Self {
        Self { leaves_out: Some(part), ..self }
    }
}

/// Runs the groups in order, all of them unless the build is broken. Each step's output is kept in `logs`.
pub(crate) fn run_all(groups: Vec<Group<'_>>, logs: &Path) -> Result<Vec<Done>> {
    fs::create_dir_all(logs).with_context(|| format!("failed to create {}", logs.display()))?;
    let count = groups.iter().map(|group| group.steps.len()).sum();
    let runner = Runner { count, logs, output: Mutex::new(()) };
    let mut done = Vec::with_capacity(count);
    let mut broken = false;
    for group in groups {
        let (is_beside, lanes) = (group.is_beside(), group.lanes);
        let steps = (done.len()..).zip(group.steps);
        let together: Vec<Vec<_>> =
            if is_beside { vec![steps.collect()] } else { steps.map(|step| vec![step]).collect() };
        for mut steps in together {
            let gates: Vec<bool> = steps.iter().map(|(_, step)| step.gate).collect();
            let ended = if broken {
                steps.into_iter().map(|(_, step)| Done::new(step.name, Outcome::NotRun)).collect()
            } else if steps.len() == 1 {
                vec![runner.one(steps.remove(0))?]
            } else {
                runner.beside(steps, lanes)?
            };
            broken |= gates.into_iter().zip(&ended).any(|(is_gate, done)| is_gate && done.is_failed());
            done.extend(ended);
        }
    }
    Ok(done)
}

/// Runs steps one after the other, and fails if one of them does.
pub(crate) fn run_one_by_one(steps: Vec<Step<'_>>, logs: &Path) -> Result<ExitCode> {
    let done = run_all(vec![Group::one_by_one(steps)], logs)?;
    Ok(if done.iter().any(Done::is_failed) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
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

    /// Runs steps, this many of them at the same time, and one more of those that use what is idle. Returns their results in the order of the
    /// steps.
    fn beside(&self, steps: Vec<(usize, Step<'_>)>, lanes: usize) -> Result<Vec<Done>> {
        let (when_idle, in_lanes): (Vec<_>, Vec<_>) = steps.into_iter().partition(|(_, step)| step.is_when_idle);
        let [when_idle, in_lanes] = [when_idle, in_lanes].map(|steps| Mutex::new(steps.into_iter()));
        let ended = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for waiting in iter::once(&when_idle).chain(iter::repeat_n(&in_lanes, lanes)) {
                let ended = &ended;
                scope.spawn(move || {
                    while let Some((index, step)) = next(waiting) {
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
                        lock(ended).push((index, result.map(|(done, _)| done)));
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
        let is_low = step.is_when_idle;
        let with_priority = |command| if is_low { wrapped::at_lowest_priority(&command) } else { command };
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
            Work::Command(command) => of_commands(
                step.name,
                log::run(vec![with_priority(command)], &log, step.limit, step.is_shown, tell)?,
                &log,
            ),
            Work::Commands(commands) => {
                let commands = commands()?.into_iter().map(with_priority).collect();
                of_commands(step.name, log::run(commands, &log, step.limit, step.is_shown, tell)?, &log)
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
    if done.is_failed() {
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
mod tests;
