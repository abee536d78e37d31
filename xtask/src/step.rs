//! Steps of the test run: one line each while they run, the whole output of those that fail, and a table at the end.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::totals::Totals;

/// How many steps run at the same time, of those that may. Tests of real programs wait more than they compute.
const LANES: usize = 2;

/// One thing to run.
pub(crate) struct Step<'a> {
    pub(crate) name: String,
    pub(crate) work: Work<'a>,
    /// When this fails, what follows would only repeat its errors and is not run: the build is broken.
    pub(crate) gate: bool,
    /// Whether it may run while others do that may, and that stand next to it.
    pub(crate) is_beside: bool,
    /// Whether its commands may take minutes and tell of their progress on standard error.
    pub(crate) is_shown: bool,
}

/// What a step does.
pub(crate) enum Work<'a> {
    /// A command; its exit status is the result, and the tests that its output tells of are counted.
    Command(Command),
    /// The same, for commands that an earlier step makes known: each is run, and the result is that of all.
    Commands(Box<dyn FnOnce() -> Result<Vec<Command>> + Send + 'a>),
    /// A check in this process, which returns what is wrong, a sentence each.
    Check(Box<dyn Fn() -> Result<Vec<String>> + Send + 'a>),
    /// Nothing, because something is missing here: what, and how to get it.
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

/// A step that was dealt with.
pub(crate) struct Done {
    pub(crate) name: String,
    pub(crate) outcome: Outcome,
    pub(crate) took: Duration,
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
        Self { name: name.into(), work, gate: false, is_beside: false, is_shown: false }
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
            done.push(Done { name: step.name, outcome: Outcome::NotRun, took: Duration::ZERO });
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
    /// Held while somebody writes more than a line.
    output: Mutex<()>,
}

impl Runner<'_> {
    /// One step that has the machine to itself: its line begins when it does.
    fn one(&self, (index, step): (usize, Step<'_>)) -> Result<Done> {
        print!("{} ... ", self.line(index, &step.name));
        std::io::stdout().flush().ok();
        let (done, output) = self.run(step)?;
        println!("{}", told(&done.outcome, done.took));
        tell_of_failure(&done, &output);
        Ok(done)
    }

    /// Steps of which [`LANES`] run at the same time. Returns them in their order.
    fn lanes(&self, steps: Vec<(usize, Step<'_>)>) -> Result<Vec<Done>> {
        let waiting = Mutex::new(steps.into_iter());
        let ended = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..LANES {
                scope.spawn(|| {
                    while let Some((index, step)) = next(&waiting) {
                        let line = self.line(index, &step.name);
                        println!("{line} begins");
                        let result = self.run(step);
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

    /// What became of a step, and what it wrote.
    fn run(&self, step: Step<'_>) -> Result<(Done, String)> {
        let start = Instant::now();
        let (outcome, output) = run(step.work, &log_path(self.logs, &step.name), step.is_shown)?;
        Ok((Done { name: step.name, outcome, took: start.elapsed() }, output))
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

/// The table of all steps and, as the last line, the totals: a failed step without a failed test counts as one that failed,
/// a step that was skipped or not run as one skipped.
pub(crate) fn summary(done: &[Done]) -> (String, Totals) {
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
    if done.iter().any(|step| step.outcome == Outcome::NotRun) {
        text += "NOT RUN: the build is broken, so the steps after that were left out\n";
    }
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

fn run(work: Work<'_>, log: &Path, is_shown: bool) -> Result<(Outcome, String)> {
    match work {
        Work::Skip(reason) => Ok((Outcome::Skipped(reason), String::new())),
        Work::Check(check) => {
            let problems = check()?;
            let totals = Totals::default();
            let outcome = if problems.is_empty() { Outcome::Passed(totals) } else { Outcome::Failed(totals) };
            Ok((outcome, problems.join("\n")))
        }
        Work::Command(command) => run_commands(vec![command], log, is_shown),
        Work::Commands(commands) => run_commands(commands()?, log, is_shown),
    }
}

fn run_commands(commands: Vec<Command>, log: &Path, is_shown: bool) -> Result<(Outcome, String)> {
    let file = File::create(log).with_context(|| format!("failed to create {}", log.display()))?;
    let again = || file.try_clone().with_context(|| format!("failed to open {} twice", log.display()));
    let mut failures = String::new();
    for mut command in commands {
        // One file for both streams keeps the order of their lines.
        let errors = if is_shown { Stdio::inherit() } else { again()?.into() };
        match command.stdin(Stdio::null()).stdout(again()?).stderr(errors).status() {
            Ok(status) if status.success() => {}
            Ok(status) => failures += &format!("{} ended with {status}\n", command.get_program().display()),
            Err(error) => failures += &format!("failed to start {}: {error}\n", command.get_program().display()),
        }
    }
    let output = fs::read(log).with_context(|| format!("failed to read {}", log.display()))?;
    let output = String::from_utf8_lossy(&output).into_owned();
    let totals = Totals::parse(&output);
    if failures.is_empty() {
        return Ok((Outcome::Passed(totals), output));
    }
    Ok((Outcome::Failed(totals), format!("{output}{failures}(this output is kept in {})", log.display())))
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
        Done { name: name.to_owned(), outcome, took: Duration::from_millis(1240) }
    }

    #[test]
    fn the_summary_ends_with_the_totals() {
        let passed = Outcome::Passed(Totals { passed: 3, failed: 0, skipped: 0 });
        let skipped = Outcome::Skipped("no Go here; install Go 1.24".to_owned());
        let (text, totals) = summary(&[
            done("formatting", Outcome::Passed(Totals::default())),
            done("loader", passed),
            done("go", skipped),
        ]);
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
        let (_, totals) = summary(&[done("formatting", Outcome::Failed(Totals::default()))]);
        assert_eq!(totals, Totals { passed: 0, failed: 1, skipped: 0 });
    }

    #[test]
    fn failed_tests_count_as_many_as_they_are() {
        let (_, totals) = summary(&[done("loader", Outcome::Failed(Totals { passed: 5, failed: 2, skipped: 0 }))]);
        assert_eq!(totals, Totals { passed: 5, failed: 2, skipped: 0 });
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
        // Each of the two waits for the other, which would last for ever in one lane.
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
