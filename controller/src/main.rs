//! `portcullis-controller`: parses its settings and runs.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use portcullis_controller::{Args, run};

fn main() -> ExitCode {
    let args: Args = portcullis_process::parse_args();
    portcullis_process::run(|| {
        args.log.init()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(async { run(args, portcullis_process::Shutdown::on_signals()?).await })
    })
}
