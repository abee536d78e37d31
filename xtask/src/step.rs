//! Steps of the test run: one line each while they run, the whole output of those that fail, and a table at the end.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::totals::Totals;

/// One thing to run.
pub(crate) struct Step<'a> {
    pub(crate) name: String,
    pub(crate) work: Work<'a>,
    /// When this fails, what follows would only repeat its errors and is not run: the build is broken.
    pub(crate) gate: bool,
}

/// What a step does.
pub(crate) enum Work<'a> {
    /// A command; its exit status is the result, and the tests that its output tells of are counted.
    Command(Command),
    /// The same, for a command that may take minutes and tells of its progress on standard error.
    Shown(Command),
    /// A check in this process, which returns what is wrong, a sentence each.
    Check(Box<dyn Fn() -> Result<Vec<String>> + 'a>),
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
        Self { name: name.into(), work: Work::Command(command), gate: false }
    }

    pub(crate) fn shown(name: impl Into<String>, command: Command) -> Self {
        Self { name: name.into(), work: Work::Shown(command), gate: true }
    }

    pub(crate) fn check(name: impl Into<String>, check: impl Fn() -> Result<Vec<String>> + 'a) -> Self {
        Self { name: name.into(), work: Work::Check(Box::new(check)), gate: false }
    }

    pub(crate) fn skip(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { name: name.into(), work: Work::Skip(reason.into()), gate: false }
    }

    pub(crate) fn gate(self) -> Self {
        Self { gate: true, ..self }
    }
}

/// Runs the steps in order, all of them unless the build is broken. Each step's output is kept in `logs`.
pub(crate) fn run_all(steps: Vec<Step<'_>>, logs: &Path) -> Result<Vec<Done>> {
    fs::create_dir_all(logs).with_context(|| format!("failed to create {}", logs.display()))?;
    let count = steps.len();
    let mut done = Vec::with_capacity(count);
    let mut broken = false;
    for (index, step) in steps.into_iter().enumerate() {
        if broken {
            done.push(Done { name: step.name, outcome: Outcome::NotRun, took: Duration::ZERO });
            continue;
        }
        print!("[{:>2}/{count}] {} ... ", index + 1, step.name);
        std::io::stdout().flush().ok();
        let start = Instant::now();
        let (outcome, output) = run(step.work, &log_path(logs, &step.name))?;
        let took = start.elapsed();
        println!("{}", told(&outcome, took));
        if matches!(outcome, Outcome::Failed(_)) {
            println!("{}\n", output.trim_end());
            broken = step.gate;
        }
        done.push(Done { name: step.name, outcome, took });
    }
    Ok(done)
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

fn run(work: Work<'_>, log: &Path) -> Result<(Outcome, String)> {
    match work {
        Work::Skip(reason) => Ok((Outcome::Skipped(reason), String::new())),
        Work::Check(check) => {
            let problems = check()?;
            let totals = Totals::default();
            let outcome = if problems.is_empty() { Outcome::Passed(totals) } else { Outcome::Failed(totals) };
            Ok((outcome, problems.join("\n")))
        }
        Work::Command(command) => run_command(command, log, false),
        Work::Shown(command) => run_command(command, log, true),
    }
}

fn run_command(mut command: Command, log: &Path, is_shown: bool) -> Result<(Outcome, String)> {
    let file = File::create(log).with_context(|| format!("failed to create {}", log.display()))?;
    // One file for both streams keeps the order of their lines.
    let errors = file.try_clone().with_context(|| format!("failed to open {} twice", log.display()))?;
    let errors = if is_shown { Stdio::inherit() } else { errors.into() };
    let status = command.stdin(Stdio::null()).stdout(file).stderr(errors).status();
    let output = fs::read(log).with_context(|| format!("failed to read {}", log.display()))?;
    let mut output = String::from_utf8_lossy(&output).into_owned();
    let totals = Totals::parse(&output);
    let outcome = match status {
        Ok(status) if status.success() => Outcome::Passed(totals),
        Ok(status) => {
            output += &format!("({status}; this output is kept in {})", log.display());
            Outcome::Failed(totals)
        }
        Err(error) => {
            output += &format!("failed to start {}: {error}", command.get_program().display());
            Outcome::Failed(totals)
        }
    };
    Ok((outcome, output))
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
