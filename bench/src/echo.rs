//! What a request costs before any guest is asked: TLS, HTTP, reading the review, and writing the answer.
//!
//! The policy that answers is suspended. The real evaluator finds it like any other policy and admits every request without asking its
//! guest, so the difference to `evaluate` is the cost of asking a guest. It is most of what goal P3 limits: what a request costs beside the
//! guest's own work.

use anyhow::ensure;
use bytes::Bytes;
use serde_json::json;

use crate::pod::{FILL, Folder, examples};
use crate::report::{Output, print};
use crate::review;
use crate::rounds::{Figures, Rounds, Server};

/// The settings.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    rounds: Rounds,
}

impl Args {
    pub(crate) async fn run(&self, output: &Output) -> anyhow::Result<()> {
        let (folder, module) = (Folder::new()?, std::fs::read(examples().join("modules/no-privileged.wasm"))?);
        let module = folder.module("suspended", &module)?;
        folder.manifest("suspended", json!({"module": module, "settings": {}, "suspend": true}))?;
        let volume = folder.path("volume");
        folder.fill(&volume, 1, FILL)?;
        let evaluator = folder.evaluator(&volume, &folder.path("private"))?;
        let target = evaluator.target("cluster/suspended");
        // The guest would deny this pod.
        let answer = target.connect().await?.ask(Bytes::from(review::pod(true))).await?;
        ensure!(answer["allowed"] == true, "the policy is not suspended: {answer}");
        let server = Server::portcullis(target, &evaluator);
        let measured = self.rounds.measure(&[server], &Bytes::from(review::pod(false))).await?;
        let rows: Vec<Figures> = measured.into_iter().map(|(_, figures)| figures).collect();
        print(output, "echo", &rows)
    }
}
