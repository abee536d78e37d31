//! `portcullis`: parses its arguments and runs one command.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    portcullis::run(portcullis::plugin::parse_args())
}
