//! `portcullis-loader`, and its hidden subcommand `compile`: the child that reads hostile bytes.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;
use portcullis_loader::compile::{ChildArgs, SUBCOMMAND, compile_stdin};

fn main() -> ExitCode {
    // The child must confine itself before anything else runs, so it does not go through `run`.
    if std::env::args_os().nth(1).is_some_and(|first| first == SUBCOMMAND) {
        return compile_stdin(&ChildArgs::parse_from(std::env::args_os().skip(1)));
    }
    let args: portcullis_loader::Args = portcullis_process::parse_args();
    portcullis_process::run(|| portcullis_loader::run(&args))
}
