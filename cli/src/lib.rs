//! The command-line tool: runs the pod without a cluster, judges a request offline, and shows status.
//!
//! It has no policy engine and no compiler: `run` and `eval` start the real programs as child processes. `get` and
//! `describe` read what the reporter has written, so they work while the pod runs and after.
#![forbid(unsafe_code)]

pub mod args;
pub mod certificate;
pub mod child;
pub mod describe;
mod eval;
pub mod get;
pub mod http;
pub mod layout;
pub mod log;
pub mod program;
mod run;
pub mod store;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::CommandFactory as _;
use jiff::Timestamp;

pub use args::Args;
use args::{Command, DescribeArgs, GetArgs};
use store::Store;

/// Runs one command. Exit status: 0, 64 for a setting that cannot be used, 1 for any other failure; `eval` has its own.
pub fn run(args: Args) -> ExitCode {
    portcullis_process::install_crypto();
    match args.command {
        Command::Run(args) => portcullis_process::run(|| run::run(&args)),
        Command::Get(args) => portcullis_process::run(|| get(&args)),
        Command::Describe(args) => portcullis_process::run(|| describe(&args)),
        Command::Eval(args) => eval::eval(&args),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Args::command(), "portcullis", &mut script);
            portcullis_process::run(|| print(&script))
        }
        Command::Version => {
            portcullis_process::run(|| print(format!("portcullis {}\n", portcullis_process::VERSION).as_bytes()))
        }
    }
}

fn get(args: &GetArgs) -> anyhow::Result<()> {
    let store = Store::open(&args.dir)?;
    let policies = match &args.policy {
        Some(name) => vec![store.find(name)?],
        None => store.policies().iter().collect(),
    };
    print(get::get(&policies, args.policy.is_some(), args.output, Timestamp::now())?.as_bytes())?;
    tell_if_stopped(&store, &args.dir);
    Ok(())
}

fn describe(args: &DescribeArgs) -> anyhow::Result<()> {
    let store = Store::open(&args.dir)?;
    let policies = match &args.policy {
        Some(name) => vec![store.find(name)?],
        None => store.policies().iter().collect(),
    };
    let now = Timestamp::now();
    let texts = policies.iter().map(|(id, policy)| describe::describe(policy, store.events(id), now));
    let texts = texts.collect::<Result<Vec<String>, _>>()?;
    print(texts.join("\n\n").as_bytes())?;
    tell_if_stopped(&store, &args.dir);
    Ok(())
}

/// On standard error, so that what is piped stays clean.
fn tell_if_stopped(store: &Store, dir: &std::path::Path) {
    let dir = dir.display();
    if store.policies().is_empty() {
        eprintln!("No policies in {dir}.");
    }
    if let Some(stopped) = store.stopped() {
        let time = stopped.strftime("%Y-%m-%dT%H:%M:%SZ");
        eprintln!("This is as of {time}: the pod is not running. Start it with `portcullis run {dir}`.");
    }
}

/// Writes to standard output; a reader that has gone away is no failure.
fn print(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
