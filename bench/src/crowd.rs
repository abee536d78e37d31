//! Many policies applied at once: the time until all are Ready, and what happens to requests to another policy in the
//! meantime.
//!
//! Goal P17, row K08 of the fault catalogue: a thousand policies within 120 s on two cores, and every request is judged. The benchmark
//! fails if this is missed.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use portcullis_e2e::{Cluster, Installation, InstallationOptions, Options};
use portcullis_process::parse_duration;
use serde::Serialize;
use serde_json::json;

use crate::api::is_ready;
use crate::pod::examples;
use crate::report::{Output, Samples, print};
use crate::variant::variant;

/// The installation's name and namespace.
const NAME: &str = "crowd";
/// How many manifests one kubectl applies, because its time is limited.
const PART: usize = 100;
/// The number of match parts among the policies, each with a webhook.
const PARTS: u32 = 10;
/// The denial of the policy that is asked in the meantime.
const JUDGED: &str = "not today";
/// The interval of requests to it.
const PACE: Duration = Duration::from_millis(20);
/// The interval at which all policies are read.
const LOOK: Duration = Duration::from_millis(500);

/// The arguments.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many policies are applied.
    #[arg(long, default_value = "1000", value_parser = clap::value_parser!(u32).range(1..=5000))]
    policies: u32,

    /// How many different modules they have.
    #[arg(long, default_value = "20", value_parser = clap::value_parser!(u32).range(1..=1000))]
    modules: u32,

    /// How many replicas serve them.
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u32).range(1..=10))]
    replicas: u32,

    /// How long it may take.
    #[arg(long, default_value = "120s", value_parser = parse_duration)]
    limit: Duration,
}

/// The results.
#[derive(Debug, Serialize)]
struct Row {
    policies: u32,
    /// From the start of the first kubectl to the end of the last.
    applied_s: f64,
    /// From the same start until a policy is Ready.
    ready_p50_s: f64,
    all_ready_s: f64,
    calls: usize,
    calls_wrong: usize,
    call_p50_ms: f64,
    call_p99_ms: f64,
}

/// What happened to the requests.
#[derive(Default)]
struct Calls {
    latency: Samples,
    wrong: Vec<String>,
}

impl Args {
    /// Runs the benchmark.
    pub(crate) fn run(&self, output: &Output) -> anyhow::Result<()> {
        Cluster::require_own_network();
        let cluster = Cluster::start(&Options::default())?;
        let installation = Installation::start(&cluster, InstallationOptions::named(NAME)).with(self.replicas as usize);
        let namespace = installation.make_namespace("pods");
        installation.apply_ready(&[installation.cluster_policy("asked").denying(JUDGED)]);
        let manifests = self.manifests(&installation)?;
        eprintln!("applying {} policies", self.policies);
        let done = AtomicBool::new(false);
        let (measured, calls) = thread::scope(|scope| {
            let calling = scope.spawn(|| call(&installation, &namespace, &done));
            let measured = self.measure(&installation, &manifests);
            done.store(true, Ordering::Relaxed);
            (measured, calling.join())
        });
        let calls = calls.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let (applied, ready) = measured?;
        drop(installation);
        let row = Row {
            policies: self.policies,
            applied_s: applied.as_secs_f64(),
            ready_p50_s: ready.quantile(0.5) / 1e3,
            all_ready_s: ready.quantile(1.0) / 1e3,
            calls: calls.latency.len(),
            calls_wrong: calls.wrong.len(),
            call_p50_ms: calls.latency.quantile(0.5),
            call_p99_ms: calls.latency.quantile(0.99),
        };
        print(output, "crowd", std::slice::from_ref(&row))?;
        ensure!(calls.wrong.is_empty(), "{} of {} calls went wrong: {}", row.calls_wrong, row.calls, calls.wrong[0]);
        let limit = self.limit.as_secs_f64();
        ensure!(
            row.all_ready_s <= limit,
            "all were Ready after {:.0} s, and {limit:.0} s are allowed",
            row.all_ready_s
        );
        Ok(())
    }

    /// The manifests for kubectl.
    fn manifests(&self, installation: &Installation<'_>) -> anyhow::Result<Vec<String>> {
        let module = std::fs::read(examples().join("modules/no-privileged.wasm"))?;
        let modules: Vec<_> = (0..self.modules).map(|number| variant(&module, number)).collect::<Result<_, _>>()?;
        let mut texts = vec![String::new(); (self.policies as usize).div_ceil(PART)];
        for number in 0..self.policies {
            let expression = format!("request.name == 'part-{}'", number % PARTS);
            let policy = installation.cluster_policy(&format!("crowd-{number}")).on(&["secrets"]);
            let policy = policy.module_of(modules[number as usize % modules.len()].clone());
            let policy = policy.field("matchConditions", json!([{ "name": "part", "expression": expression }]));
            let manifest = policy.manifest(installation.source());
            writeln!(texts[number as usize / PART], "---\n{manifest}")?;
        }
        Ok(texts)
    }

    /// Applies the policies and waits until all are Ready. Returns how long kubectl took, and how long each policy
    /// took.
    fn measure(&self, installation: &Installation<'_>, texts: &[String]) -> anyhow::Result<(Duration, Samples)> {
        // It goes on for a while after the goal is missed, so that there is a figure.
        let longest = self.limit * 5;
        let start = Instant::now();
        let (mut ready, mut samples) = (HashSet::new(), Samples::default());
        let applied = thread::scope(|scope| {
            let applying = scope.spawn(|| {
                for text in texts {
                    let applied = installation.cluster().apply_server_side(text);
                    ensure!(applied.is_ok(), "kubectl failed: {}", applied.stderr);
                }
                Ok(start.elapsed())
            });
            while ready.len() < self.policies as usize && !(applying.is_finished() && start.elapsed() > longest) {
                thread::sleep(LOOK);
                let list = installation.api().get("/apis/policies.portcullis.dev/v1alpha1/clusterpolicies");
                for object in list.unwrap_or_default()["items"].as_array().into_iter().flatten() {
                    let name = object["metadata"]["name"].as_str().unwrap_or_default();
                    if name.starts_with("crowd-") && is_ready(object) && ready.insert(name.to_owned()) {
                        samples.push(start.elapsed());
                    }
                }
            }
            applying.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        ensure!(ready.len() == self.policies as usize, "only {} are Ready after {longest:?}", ready.len());
        Ok((applied, samples))
    }
}

/// Creates pods in dry runs until `done` is set. The policy must deny each of them.
fn call(installation: &Installation<'_>, namespace: &str, done: &AtomicBool) -> Calls {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "generateName": "tried-" },
        "spec": { "containers": [{ "name": "main", "image": "example.invalid/none" }] },
    });
    let (api, path) = (installation.api(), format!("/api/v1/namespaces/{namespace}/pods?dryRun=All"));
    let mut calls = Calls::default();
    while !done.load(Ordering::Relaxed) {
        let asked = Instant::now();
        let reply = api.create(&path, &pod);
        calls.latency.push(asked.elapsed());
        match reply {
            Ok(reply) if reply.code == 403 && reply.body["message"].to_string().contains(JUDGED) => {}
            Ok(reply) => calls.wrong.push(format!("{} {}", reply.code, reply.body["message"])),
            Err(error) => calls.wrong.push(error),
        }
        thread::sleep(PACE.saturating_sub(asked.elapsed()));
    }
    calls
}
