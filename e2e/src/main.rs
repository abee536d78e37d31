//! Control planes for developers: the program behind `cargo xtask cluster`. It can make the same clusters as the tests.
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
