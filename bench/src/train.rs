//! The load by which the profile of the evaluator is made: policies of each kind are asked for a while. `cargo xtask pgo` starts it with
//! an evaluator that counts.

use std::time::Duration;

use anyhow::ensure;
use bytes::Bytes;

use crate::review;
use crate::served::{Served, assert_judges};
use crate::workload;

/// The settings.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The number of concurrent callers.
    #[arg(long, default_value_t = 8)]
    callers: usize,

    /// How long policies of each kind are asked.
    #[arg(long, default_value = "5s", value_parser = portcullis_process::parse_duration)]
    time: Duration,
}

impl Args {
    pub(crate) async fn run(&self) -> anyhow::Result<()> {
        let body = Bytes::from(review::pod(false));
        for workload in workload::measurable() {
            let name = workload.name();
            let served = Served::start(workload).await?;
            let server = served.server();
            assert_judges(&server, &body, &name, workload.admits()).await?;
            let load = server.target.load(self.callers, self.time, &body).await?;
            ensure!(
                load.unjudged() == 0,
                "{name}: {} of {} calls failed",
                load.unjudged(),
                load.answers() + load.errors
            );
            eprintln!("{name}: {} answers", load.answers());
            // Counts are written at the end of a program that was not killed.
            served.end()?;
        }
        Ok(())
    }
}
