//! Control planes for a person at a desk: what `cargo xtask cluster` runs. It makes no cluster that the tests could not make.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod table;
mod trial;

use std::process::ExitCode;

use clap::Parser as _;

use crate::args::Args;

fn main() -> ExitCode {
    match commands::run(Args::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
