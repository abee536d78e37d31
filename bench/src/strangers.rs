//! How long calls take while strangers hold thousands of connections open, each of which sends a body in a trickle over TLS.
//!
//! Row Z13 of the fault catalogue: no call fails, and p99 stays below 100 ms, with 4,096 and 10,000 strangers. The benchmark fails if this
//! is missed.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::pki_types::ServerName;
use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_rustls::TlsConnector;

use crate::load::{Target, trust};
use crate::pod::{FILL, Folder, examples};
use crate::report::{Output, print};

const BENCHMARK: &str = "strangers";
const POLICY: &str = "no-privileged";

/// How many addresses strangers have, other than the callers'.
const ADDRESSES: u16 = 8;
/// The interval between the bytes of a stranger.
const PACE: Duration = Duration::from_secs(1);
/// How long a stranger whose connection was closed waits until it connects again.
const PAUSE: Duration = Duration::from_secs(3);
/// The interval between the first connections of two strangers.
const STAGGER: Duration = Duration::from_micros(200);
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
            let crowd = Crowd::new(&target, *strangers)?;
            let load = target.load_at(f64::from(self.rate), self.time, &body).await?;
            let connections = crowd.counts.made.load(Ordering::Relaxed);
            ensure!(connections >= (*strangers).into(), "only {connections} of {strangers} strangers have come");
            rows.push(Row {
                strangers: *strangers,
                open: crowd.counts.most_open.load(Ordering::Relaxed),
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

/// How many connections strangers have.
#[derive(Default)]
struct Counts {
    open: AtomicU64,
    most_open: AtomicU64,
    made: AtomicU64,
}

/// Strangers, who have a thread of their own and go on until this is dropped.
struct Crowd {
    runtime: Option<Runtime>,
    counts: Arc<Counts>,
}

impl Crowd {
    fn new(target: &Target, strangers: u16) -> anyhow::Result<Self> {
        let address: SocketAddr = target.authority.parse()?;
        let mut config = trust::any()?;
        // Each connection is to cost the server a whole handshake.
        config.resumption = rustls::client::Resumption::disabled();
        let connector = TlsConnector::from(Arc::new(config));
        let head = format!("POST {} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {BODY}\r\n\r\n", target.path);
        let head: Arc<str> = head.into();
        allow_descriptors(u64::from(strangers) + OTHER_DESCRIPTORS)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let counts = Arc::<Counts>::default();
        for number in 0..strangers {
            let (connector, head, counts) = (connector.clone(), Arc::clone(&head), Arc::clone(&counts));
            runtime.spawn(async move {
                sleep(STAGGER * number.into()).await;
                let from = IpAddr::from([127, 0, 0, 2 + (number % ADDRESSES) as u8]);
                loop {
                    // Whether the server closed the connection or did not accept it, the stranger tries again.
                    let _ = visit(address, from, &connector, &head, &counts).await;
                    sleep(PAUSE).await;
                }
            });
        }
        Ok(Self { runtime: Some(runtime), counts })
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
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

/// Connects, sends the head of a request, and then a byte of its body each [`PACE`] until the server closes the connection.
async fn visit(
    address: SocketAddr,
    from: IpAddr,
    connector: &TlsConnector,
    head: &str,
    counts: &Counts,
) -> std::io::Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(from, 0))?;
    let stream = socket.connect(address).await?;
    counts.made.fetch_add(1, Ordering::Relaxed);
    let open = counts.open.fetch_add(1, Ordering::Relaxed) + 1;
    counts.most_open.fetch_max(open, Ordering::Relaxed);
    let talk = async {
        let mut stream = connector.connect(ServerName::IpAddress(address.ip().into()), stream).await?;
        stream.write_all(head.as_bytes()).await?;
        let (mut answer, mut next) = ([0; 1024], Instant::now() + PACE);
        loop {
            tokio::select! {
                read = stream.read(&mut answer) => if read? == 0 { return Ok(()) },
                () = sleep_until(next) => {
                    stream.write_all(b" ").await?;
                    stream.flush().await?;
                    next += PACE;
                }
            }
        }
    };
    let ended = talk.await;
    counts.open.fetch_sub(1, Ordering::Relaxed);
    ended
}
