//! `portcullis-evaluator`: parses its settings and runs.
#![forbid(unsafe_code)]
#![deny(unsafe_code)]

use std::process::ExitCode;

use portcullis_evaluator::{Args, run};

fn main() -> ExitCode {
    let args: Args = portcullis_process::parse_args();
    portcullis_process::run(|| {
        let traces = args.traces();
        args.log.init_with(traces.as_ref())?;
        run(&args, traces)
    })
}
