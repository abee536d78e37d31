//! How long calls take while strangers hold thousands of connections open, each of which sends a body in a trickle over TLS.
//!
//! Row Z13 of the fault catalogue: no call fails, and p99 stays below 100 ms, with 4,096 and 10,000 strangers. The benchmark fails if this
//! is missed.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use portcullis_testkit::{Flood, Stranger};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;
use tokio_rustls::TlsConnector;

use crate::load::{Target, trust};
use crate::pod::{FILL, Folder, examples};
use crate::report::{Output, print};

const BENCHMARK: &str = "strangers";
const POLICY: &str = "no-privileged";

/// How many addresses strangers have, other than the callers'.
const ADDRESSES: u16 = 8;
/// The size in bytes of a body that is promised.
const BODY: usize = 4000;
/// How many descriptors the callers need, and everything else.
const OTHER_DESCRIPTORS: u64 = 1024;
/// Row Z13.
const MOST_P99_MS: f64 = 100.0;

/// The settings.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The numbers of strangers; a line for each.
    #[arg(long, value_delimiter = ',', default_value = "0,4096,10000", value_parser = clap::value_parser!(u16).range(..=10_000))]
    strangers: Vec<u16>,

    /// How many calls are made each second.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    rate: u16,

    /// How long calls are measured, from the first stranger on.
    #[arg(long, default_value = "20s", value_parser = portcullis_process::parse_duration)]
    time: Duration,
}

#[derive(Serialize)]
struct Row {
    strangers: u16,
    /// The most of their connections that were open at the same time.
    open: u64,
    /// How many connections they made in all, with a handshake each.
    connections: u64,
    calls: usize,
    /// Calls without a verdict.
    failed: usize,
    p50_ms: f64,
    p99_ms: f64,
    largest_ms: f64,
}

impl Args {
    pub(crate) async fn run(&self, output: &Output) -> anyhow::Result<()> {
        let folder = Folder::new()?;
        let module = std::fs::read(examples().join(format!("modules/{POLICY}.wasm")))?;
        folder.policy(POLICY, &module, &serde_json::json!({}), false)?;
        folder.fill(&folder.path("volume"), 1, FILL)?;
        let body = Bytes::from(crate::review::pod(false));
        let mut rows = Vec::new();
        for strangers in &self.strangers {
            let evaluator = folder.evaluator(&folder.path("volume"), &folder.path("private"))?;
            let target = evaluator.target(&format!("cluster/{POLICY}"));
            // An evaluator spares the clients that it has answered.
            target.load(1, Duration::from_secs(1), &body).await?;
            let flood = flood(&target, *strangers)?;
            let load = target.load_at(f64::from(self.rate), self.time, &body).await?;
            let connections = flood.visits();
            ensure!(connections >= (*strangers).into(), "only {connections} of {strangers} strangers have come");
            rows.push(Row {
                strangers: *strangers,
                open: flood.most_open(),
                connections,
                calls: load.answers() + load.errors,
                failed: load.unjudged(),
                p50_ms: load.judged.quantile(0.5),
                p99_ms: load.judged.quantile(0.99),
                largest_ms: load.judged.quantile(1.0),
            });
        }
        print(output, BENCHMARK, &rows)?;
        for row in rows {
            ensure!(row.failed == 0, "{} strangers: {} of {} calls failed", row.strangers, row.failed, row.calls);
            let p99 = row.p99_ms;
            ensure!(p99 < MOST_P99_MS, "{} strangers: p99 {p99:.0} ms, and {MOST_P99_MS} are allowed", row.strangers);
        }
        Ok(())
    }
}

/// Starts strangers. Each sends the head of a request, and then its body in a trickle.
fn flood(target: &Target, strangers: u16) -> anyhow::Result<Flood> {
    let address: SocketAddr = target.authority.parse()?;
    let mut config = trust::any()?;
    // Each connection is to cost the server a whole handshake.
    config.resumption = rustls::client::Resumption::disabled();
    let connector = TlsConnector::from(Arc::new(config));
    let head = format!("POST {} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {BODY}\r\n\r\n", target.path);
    allow_descriptors(u64::from(strangers) + OTHER_DESCRIPTORS)?;
    Ok(Flood::of((0..strangers).map(|number| {
        let from = IpAddr::from([127, 0, 0, 2 + (number % ADDRESSES) as u8]);
        Stranger::silent(address).from(from).over_tls(connector.clone()).saying(head.as_str()).trickling(" ")
    })))
}

/// Raises the limit of this process to so many descriptors.
fn allow_descriptors(count: u64) -> anyhow::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < count) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(count), ..limit })
            .with_context(|| format!("{count} descriptors are needed: raise the hard limit (ulimit -Hn)"))?;
    }
    Ok(())
}
