//! The command-line tool: runs the pod without a cluster, evaluates a request offline, and shows status.
//!
//! It has no policy engine and no compiler: `run`, `eval`, `check`, `test` and `impact` start the real programs as child processes. `get`,
//! `describe` and `history` read what the reporter has written: the status of policies in a cluster, or of a folder, where it can be read
//! even after the pod has ended. `audit` also reads reports. `diff` reads revisions, and `rollback` writes one field of a policy's spec.
#![forbid(unsafe_code)]

pub mod args;
mod audit;
pub mod certificate;
mod check;
pub mod child;
pub mod cluster;
mod complete;
pub mod describe;
pub mod diff;
mod document;
mod eval;
pub mod events;
mod files;
pub mod folder_status;
pub mod get;
pub mod history;
pub mod http;
mod impact;
pub mod item;
mod junit;
mod kind;
pub mod layout;
pub mod log;
mod matching;
mod migrate;
mod module_source;
pub mod moment;
pub mod name;
pub mod plugin;
pub mod policy_source;
pub mod program;
pub mod registry;
pub mod rollback;
mod run;
mod test;

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use portcullis_process::SettingError;
use portcullis_util::causes;

pub use args::Args;
use args::{Command, DiffArgs, RollbackArgs, SaveArgs, SourceArgs};
use cluster::Cluster;
use policy_source::Choice;
use rollback::RollbackError;

/// Runs one command. Exit status: 0, 64 for a setting that cannot be used, 1 for any other failure; `eval`, `check`, `test`, `impact`, `audit` and
/// `migrate` have their own.
pub fn run(args: Args) -> ExitCode {
    portcullis_process::install_crypto();
    match args.command {
        Command::Run(args) => synchronous(|| run::run(&args)),
        Command::Get(args) => asynchronous(policy_source::get(&args)),
        Command::Describe(args) => asynchronous(policy_source::describe(&args)),
        Command::History(args) => asynchronous(policy_source::history(&args)),
        Command::Diff(args) => asynchronous(diff(&args)),
        Command::Rollback(args) => asynchronous(rollback(&args)),
        Command::Eval(args) => eval::eval(&args),
        Command::Check(args) => check::check(&args),
        Command::Test(args) => test::test(&args),
        Command::Impact(args) => impact::impact(&args),
        Command::Audit(args) => audit::audit(&args),
        Command::Migrate(args) => migrate::migrate(&args),
        Command::Pull(args) => asynchronous(async { print(registry::pull(&args).await?.as_bytes()) }),
        Command::Push(args) => asynchronous(async { print(registry::push(&args).await?.as_bytes()) }),
        Command::Inspect(args) => asynchronous(async { print(registry::inspect(&args).await?.as_bytes()) }),
        Command::Verify(args) => asynchronous(async { print(registry::verify(&args).await?.as_bytes()) }),
        Command::Save(args) => asynchronous(save(&args)),
        Command::Load(args) => asynchronous(async { print(registry::load(&args).await?.as_bytes()) }),
        Command::Completion { shell } => synchronous(|| print(&complete::script(shell))),
        Command::Complete { words } => synchronous(|| print(complete::complete(&words).as_bytes())),
        Command::Version => synchronous(|| print(format!("portcullis {}\n", portcullis_process::VERSION).as_bytes())),
    }
}

/// Prints the error of a command whose exit status 1 is an answer: 64 for a setting that cannot be used, otherwise 2.
fn refuse(error: &anyhow::Error) -> ExitCode {
    note(&format!("error: {}", safe(&causes(error.as_ref()))));
    ExitCode::from(if error.is::<SettingError>() { 64 } else { 2 })
}

/// Runs a command that has no exit statuses of its own. Some errors have their cause in their text, and it is printed only once.
fn synchronous(command: impl FnOnce() -> anyhow::Result<()>) -> ExitCode {
    let once = |error: anyhow::Error| {
        let text = safe(&causes(error.as_ref()));
        match text.split_once(": ").filter(|_| error.is::<SettingError>()) {
            Some((setting, problem)) => SettingError::new(setting, problem).into(),
            None => anyhow::Error::msg(text),
        }
    };
    portcullis_process::run(|| command().map_err(once))
}

/// The text of an error, made safe to show: it may quote manifests, archives and answers of servers. The last lines of a program that has
/// ended stay lines of their own ([`child::quoted`]).
fn safe(text: &str) -> String {
    let lines: Vec<String> =
        text.split(child::NEXT_LINE).map(|line| portcullis_contract::clean(line, usize::MAX)).collect();
    lines.join(child::NEXT_LINE)
}

/// Writes a line to standard error. It is not a failure if the reader has gone away.
fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Runs a command that asks a cluster.
fn asynchronous(command: impl Future<Output = anyhow::Result<()>>) -> ExitCode {
    synchronous(|| {
        // One thread is enough, as requests are sent one after the other.
        tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(command)
    })
}

/// A file of limited size, in whole MiB, or standard input for `-`.
fn read(path: &Path, largest: u64) -> anyhow::Result<Vec<u8>> {
    if path.as_os_str() != "-" {
        anyhow::ensure!(!path.is_dir(), "{} is a folder; name one file", path.display());
        // A user may well name a link or a pipe (`<(kubectl …)`) here.
        let file = File::open(path).with_context(|| format!("failed to open {}", path.display()))?;
        return limited(file, largest).with_context(|| format!("failed to read {}", path.display()));
    }
    limited(io::stdin().lock(), largest).context("failed to read standard input")
}

/// Whether the name of a file is that of YAML or JSON.
fn is_manifest(path: &Path) -> bool {
    path.extension().is_some_and(|found| ["yaml", "yml", "json"].iter().any(|known| found == *known))
}

fn limited(reader: impl Read, largest: u64) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(largest + 1).read_to_end(&mut bytes)?;
    let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    anyhow::ensure!(length <= largest, "it is larger than {} MiB", largest >> 20);
    Ok(bytes)
}

async fn diff(args: &DiffArgs) -> anyhow::Result<()> {
    let text = diff::diff(&cluster_of(&args.target.source).await?, args).await?;
    if text.is_empty() {
        note("There is no difference.");
    }
    print(text.as_bytes())
}

async fn rollback(args: &RollbackArgs) -> anyhow::Result<()> {
    let outcome = rollback::rollback(&cluster_of(&args.target.source).await?, args).await?;
    print(outcome.text.as_bytes())?;
    anyhow::ensure!(outcome.is_good, "the rollback has not made the policy Ready; `portcullis describe` tells more");
    Ok(())
}

async fn save(args: &SaveArgs) -> anyhow::Result<()> {
    let saved = registry::save(args).await?;
    print(saved.text.as_bytes())?;
    saved.check()
}

/// The cluster, for a command that does not work with a folder.
async fn cluster_of(args: &SourceArgs) -> anyhow::Result<Cluster> {
    match Choice::of(args) {
        Choice::Folder(dir) => Err(RollbackError::Folder { dir: dir.display().to_string() }.into()),
        Choice::Cluster => Cluster::connect(args).await,
    }
}

/// Writes to standard output. It is not a failure if the reader has gone away.
fn print(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_writes_no_codes_and_no_lines_to_a_terminal_but_those_of_a_program_that_ended() {
        let tail = child::quoted(&["one".to_owned(), "two".to_owned()]);
        let hostile = format!("no field \u{1b}[2J`x\n0 failed\r`{tail}");
        assert_eq!(safe(&hostile), "no field [2J`x 0 failed `\n  one\n  two");
    }
}
