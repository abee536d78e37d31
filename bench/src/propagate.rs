//! From `kubectl apply` to a status that confirms the change: the whole product, with three replicas and cached
//! modules.
//!
//! Goal P8: enforced on all replicas within 1 s, Ready=True within 2 s, both as p99 and including kubectl's own start. The last
//! row is a failing replica: the time until the statuses of many policies report it.

mod follow;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use portcullis_e2e::{Cluster, Installation, InstallationOptions, Options, Policy, condition};
use serde::Serialize;
use serde_json::{Value, json};

use crate::report::{Output, Samples, print};
use follow::Follower;

/// The installation's name and namespace.
const NAME: &str = "propagate";
/// The time limit for anything that should take a second or two.
const LIMIT: Duration = Duration::from_secs(60);
/// The time between two reads of a status.
const PACE: Duration = Duration::from_millis(10);

/// The arguments.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many edits, and how many new policies, are measured.
    #[arg(long, default_value = "50", value_parser = clap::value_parser!(u32).range(1..=500))]
    rounds: u32,

    /// How many replicas there are.
    #[arg(long, default_value = "3", value_parser = clap::value_parser!(u32).range(2..=20))]
    replicas: u32,

    /// How many policies there are when a replica fails.
    #[arg(long, default_value = "100", value_parser = clap::value_parser!(u32).range(1..=1000))]
    policies: u32,
}

/// One kind of change.
#[derive(Debug, Serialize)]
struct Row {
    change: &'static str,
    samples: usize,
    /// From the start of kubectl until every replica answers with the new generation.
    enforced_p50_ms: Option<f64>,
    enforced_p99_ms: Option<f64>,
    /// From the start of kubectl until the status reports it.
    status_p50_ms: f64,
    status_p99_ms: f64,
}

impl Args {
    /// Runs the benchmark.
    pub(crate) fn run(self, output: &Output) -> anyhow::Result<()> {
        Cluster::require_own_network();
        let cluster = Cluster::start(&Options::default())?;
        let installation = Installation::start(&cluster, InstallationOptions::named(NAME)).with(self.replicas as usize);
        installation.make_namespace("pods");
        let follower = Follower::of(&installation.replicas());
        // The first policy brings the webhook of the group that all others join.
        let first = installation.cluster_policy("edited").example("no-privileged");
        installation.apply_ready(std::slice::from_ref(&first));
        let rows = [
            self.edits(&installation, &follower, &first)?,
            self.new_policies(&installation, &follower)?,
            self.failure(&installation)?,
        ];
        drop(follower);
        drop(installation);
        print(output, "propagate", &rows)
    }

    fn edits(&self, installation: &Installation<'_>, follower: &Follower, policy: &Policy) -> anyhow::Result<Row> {
        let mut times = Times::default();
        for round in 0..self.rounds {
            let policy = policy.clone().field("message", format!("edit {round}"));
            times.measure(installation, follower, &policy, i64::from(round) + 2)?;
        }
        Ok(times.row("an edit"))
    }

    fn new_policies(&self, installation: &Installation<'_>, follower: &Follower) -> anyhow::Result<Row> {
        let mut times = Times::default();
        for round in 0..self.rounds {
            let policy = installation.cluster_policy(&format!("new-{round}")).example("no-privileged");
            times.measure(installation, follower, &policy, 1)?;
        }
        Ok(times.row("a new policy of a registered group"))
    }

    /// Ends a replica that does not lead, without warning, and deletes its object.
    fn failure(&self, installation: &Installation<'_>) -> anyhow::Result<Row> {
        let there = self.rounds + 1;
        let more: Vec<Policy> = (there..self.policies.max(there))
            .map(|number| installation.cluster_policy(&format!("more-{number}")).example("no-privileged"))
            .collect();
        installation.apply_ready(&more);
        let lease = format!("/apis/coordination.k8s.io/v1/namespaces/{NAME}/leases/portcullis-{NAME}-reporter");
        let holder =
            installation.api().get(&lease).context("there is no leader")?["spec"]["holderIdentity"].to_string();
        let replicas = installation.replicas();
        let other = replicas.iter().find(|pod| !holder.contains(pod.name())).context("every replica leads")?;
        other.lose_node();
        let start = Instant::now();
        other.mark_not_ready();
        let expected = json!(self.replicas - 1);
        let (mut samples, mut done) = (Samples::default(), std::collections::HashSet::new());
        while done.len() < there as usize + more.len() {
            ensure!(start.elapsed() < LIMIT, "only {} statuses say that a replica is gone", done.len());
            let list =
                installation.api().get("/apis/policies.portcullis.dev/v1alpha1/clusterpolicies").unwrap_or_default();
            for object in list["items"].as_array().into_iter().flatten() {
                let is_told = object["status"]["replicaCounts"]["expected"] == expected;
                if is_told && done.insert(object["metadata"]["name"].to_string()) {
                    samples.push(start.elapsed());
                }
            }
            thread::sleep(PACE);
        }
        Ok(Row {
            change: "a replica fails",
            samples: samples.len(),
            enforced_p50_ms: None,
            enforced_p99_ms: None,
            status_p50_ms: samples.quantile(0.5),
            status_p99_ms: samples.quantile(0.99),
        })
    }
}

#[derive(Default)]
struct Times {
    enforced: Samples,
    ready: Samples,
}

impl Times {
    /// Applies a policy, which then has this generation.
    fn measure(
        &mut self,
        installation: &Installation<'_>,
        follower: &Follower,
        policy: &Policy,
        generation: i64,
    ) -> anyhow::Result<()> {
        let start = Instant::now();
        let applied = installation.apply(policy);
        ensure!(applied.is_ok(), "kubectl failed to apply {}: {applied:?}", policy.name());
        let ready = loop {
            let object = installation.object(policy).unwrap_or_default();
            if is_ready(&object, generation) {
                break Instant::now();
            }
            ensure!(start.elapsed() < LIMIT, "{} is not Ready: {}", policy.name(), object["status"]);
            thread::sleep(PACE);
        };
        let id = format!("cluster/{}", policy.name());
        // The states of replicas reach this program in another way than the status, perhaps later.
        let enforced = loop {
            if let Some(at) = follower.everywhere(&id, generation) {
                break at;
            }
            ensure!(
                ready.elapsed() < LIMIT,
                "{id} is Ready, and a replica does not answer with generation {generation}"
            );
            thread::sleep(PACE);
        };
        self.enforced.push(enforced.saturating_duration_since(start));
        self.ready.push(ready - start);
        Ok(())
    }

    fn row(&self, change: &'static str) -> Row {
        Row {
            change,
            samples: self.ready.len(),
            enforced_p50_ms: Some(self.enforced.quantile(0.5)),
            enforced_p99_ms: Some(self.enforced.quantile(0.99)),
            status_p50_ms: self.ready.quantile(0.5),
            status_p99_ms: self.ready.quantile(0.99),
        }
    }
}

fn is_ready(object: &Value, generation: i64) -> bool {
    condition(object, "Ready")
        .is_some_and(|ready| ready["status"] == "True" && ready["observedGeneration"] == generation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_of_an_older_generation_is_not_ready() {
        let object = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "observedGeneration": 1}]}});
        assert!(is_ready(&object, 1) && !is_ready(&object, 2) && !is_ready(&json!({}), 1));
    }
}
