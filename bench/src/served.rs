//! A workload that the real evaluator serves.

use std::time::Duration;

use anyhow::{bail, ensure};
use bytes::Bytes;
use serde_json::Value;

use crate::load::{Outcome, Target};
use crate::pod::{Evaluator, FILL, Folder, Program};
use crate::review;
use crate::rounds::Server;
use crate::workload::Workload;

/// The programs that serve it, which end when this is dropped.
pub(crate) struct Served {
    /// The policies.
    pub(crate) folder: Folder,
    evaluator: Evaluator,
    target: Target,
    _broker: Option<Program>,
}

impl Served {
    /// Fills a volume with the policies of a workload, and waits until they can be asked.
    pub(crate) async fn start(workload: Workload) -> anyhow::Result<Self> {
        let folder = Folder::new()?;
        let volume = folder.path("volume");
        let policies = workload.put(&folder)?;
        let manifest = folder.fill(&volume, policies, FILL)?;
        let evaluator = folder.evaluator(&volume, &folder.path("private"))?;
        let target = evaluator.at(workload.path(&manifest)?);
        let broker = if workload.needs_broker() { Some(connected(&folder, &target).await?) } else { None };
        Ok(Self { folder, evaluator, target, _broker: broker })
    }

    /// The evaluator, which is asked about the workload.
    pub(crate) fn server(&self) -> Server {
        Server::portcullis(self.target.clone(), &self.evaluator)
    }

    /// Lets the evaluator end by itself.
    pub(crate) fn end(self) -> anyhow::Result<()> {
        self.evaluator.end()
    }
}

/// Asks a server once, which must admit or deny the review as expected.
pub(crate) async fn assert_judges(server: &Server, body: &Bytes, policy: &str, admits: bool) -> anyhow::Result<()> {
    let answer = server.target.connect().await?.ask(body.clone()).await?;
    let expected = if admits { "admit" } else { "deny" };
    let is_expected = answer["allowed"] == admits && Outcome::of(&answer) == Outcome::Judged;
    ensure!(is_expected, "{} does not {expected} what {policy} is asked about: {answer}", server.name);
    Ok(())
}

/// A broker that answers the policy at `target`.
async fn connected(folder: &Folder, target: &Target) -> anyhow::Result<Program> {
    let broker = folder.loader(&folder.path("volume"))?;
    let (mut connection, body) = (target.connect().await?, Bytes::from(review::pod(false)));
    let mut answer = Value::Null;
    for _ in 0..100 {
        answer = connection.ask(body.clone()).await?;
        if answer["status"]["message"].as_str().is_some_and(|message| !message.contains("error")) {
            return Ok(broker);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    bail!("the broker does not answer the policy: {answer}")
}
