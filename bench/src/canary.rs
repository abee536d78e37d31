//! Admission while something else goes on: a few pods per second are created, without being stored, for a policy that admits them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use http::Method;
use kube::Client;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use crate::api::send;
use crate::report::Samples;

/// The interval at which pods are created. It is so long that they take about a hundredth of a core.
const PACE: Duration = Duration::from_millis(50);
/// How long it may take until the policy is enforced.
const LIMIT: Duration = Duration::from_secs(120);

/// Creates pods until it is stopped.
pub(crate) struct Canary {
    is_over: Arc<AtomicBool>,
    task: JoinHandle<Seen>,
}

/// The results of the canary.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// How long each pod took.
    pub(crate) times: Samples,
    /// How many pods were refused or not answered.
    pub(crate) errors: usize,
}

impl Canary {
    /// Starts to create pods at this path.
    pub(crate) fn start(client: &Client, path: &str) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (client, path, over) = (client.clone(), path.to_owned(), Arc::clone(&is_over));
        let task = tokio::spawn(async move {
            let mut seen = Seen::default();
            let pod = pod(false);
            let mut pace = tokio::time::interval(PACE);
            pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while !over.load(Ordering::Relaxed) {
                pace.tick().await;
                let start = Instant::now();
                match send(&client, Method::POST, &path, "application/json", &pod).await {
                    Ok(_) => seen.times.push(start.elapsed()),
                    Err(_) => seen.errors += 1,
                }
            }
            seen
        });
        Self { is_over, task }
    }

    /// Stops, and returns the results.
    pub(crate) async fn stop(self) -> anyhow::Result<Seen> {
        self.is_over.store(true, Ordering::Relaxed);
        Ok(self.task.await?)
    }
}

/// Waits until the policy denies a privileged pod.
pub(crate) async fn wait_enforced(client: &Client, path: &str) -> anyhow::Result<()> {
    let (start, pod) = (Instant::now(), pod(true));
    loop {
        let denied = send(client, Method::POST, path, "application/json", &pod).await.err();
        let text = denied.map(|error| format!("{error:#}")).unwrap_or_default();
        if text.contains("privileged containers") {
            return Ok(());
        }
        ensure!(start.elapsed() < LIMIT, "the policy of the canary is not enforced: {text}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn pod(is_privileged: bool) -> Value {
    let container = json!({"name": "main", "image": "none", "securityContext": {"privileged": is_privileged}});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "canary-"}, "spec": {"containers": [container]}})
}
