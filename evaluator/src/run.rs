//! The program from start to end.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use arc_swap::ArcSwap;
use axum::Router;
use portcullis_contract::{EvaluatorState, Signal};
use portcullis_engine::{RunLimits, RunningEngine, finds_written_pages};
use portcullis_process::telemetry::{Traces, export_metrics};
use portcullis_process::{
    Beat, Latch, Liveness, ProbeServer, ProbeSources, Readiness, Shutdown, StateFeed, failpoint, state_route,
    write_log_in_background,
};

use crate::admission::Admission;
use crate::admission::check::Checks;
use crate::admission::last_call::LastCall;
use crate::args::Args;
use crate::audit::{self, Audits};
use crate::capability::{BrokerLink, BrokerOutlet, BrokerSocket};
use crate::confinement::confine;
use crate::health;
use crate::http::body::BodyLimits;
use crate::http::connections::Connections;
use crate::http::descriptors;
use crate::http::handler::Handler;
use crate::http::path_keys::AcceptedKeys;
use crate::http::server::{DrainTimes, Server};
use crate::http::tls::expiry::{self, Expiry};
use crate::http::tls::{Certificates, TlsFiles};
use crate::http::under_way::UnderWay;
use crate::lanes::{LaneLimits, Lanes};
use crate::memory::{MemoryPlan, TotalMemory};
use crate::metrics::Metrics;
use crate::table::{SharedTable, Table};
use crate::volume::follow::Follow;
use crate::volume::private_copy::prepare_private_dir;
use crate::volume::state::{Overall, document, numbered};

/// The most connections that wait to be accepted. Beyond that the kernel drops the client's packet, which the client sends again after a
/// second.
const BACKLOG: i32 = 4096;
/// How often the main runtime reports that it is alive, and how late it may be: load alone never delays it so long.
const BEAT: Duration = Duration::from_secs(1);
const BEAT_LIMIT: Duration = Duration::from_secs(10);
/// How late a tick of the engine's clock may be; a tick is due every few milliseconds.
const TICK_LIMIT: Duration = Duration::from_secs(2);

/// Runs the evaluator until a signal ends it. `traces` collects its spans; none if they are not exported.
///
/// # Errors
/// For a setting that cannot be used, a port that cannot be bound, and an engine that cannot be set up.
pub fn run(args: &Args, traces: Option<Traces>) -> anyhow::Result<()> {
    args.check()?;
    let metrics = Metrics::new()?;
    let metrics = if args.kubewarden_metrics { metrics.with_kubewarden()? } else { metrics };
    let table: SharedTable = Arc::new(ArcSwap::from_pointee(Table::default()));
    let keys = args.path_keys.clone().map(AcceptedKeys::new);
    let state = StateFeed::new(document(&Overall::new(keys.as_deref()), std::iter::empty()), numbered);
    let sources = ProbeSources { metrics: metrics.registry.clone(), ..ProbeSources::default() };
    let (readiness, liveness) = (sources.readiness.clone(), sources.liveness.clone());

    // Ports first: a confined process cannot bind any.
    let listener = bind(args.address)?;
    let mut probes = ProbeServer::new();
    let expiry = Expiry::default();
    // The health of policies is always on the loopback, for users who may forward ports of the pod.
    let health = health::routes(Arc::clone(&table));
    let shown = if args.policy_paths.is_on() { health.clone() } else { Router::new() };
    // Without TLS there is no certificate that could expire.
    let shown = if args.tls_dir.is_some() { shown.merge(expiry::routes(expiry.clone())) } else { shown };
    let address = probes.probes(args.probe_address, sources, shown)?;
    listening("probes", address);
    // On the same port the reporter asks about objects that exist. No other container of the pod needs a verdict.
    let (jobs, audits) = audit::queues(args.audit_share);
    let largest = usize::try_from(args.max_body).context("--max-body")?;
    let asked = Audits::new(Arc::clone(&table), readiness.clone(), jobs, largest, &metrics);
    let routes = state_route(state.clone()).merge(health).merge(audit::routes(asked));
    let address = probes.port(args.state_address, routes)?;
    listening("state", address);

    let broker = match &args.broker_socket {
        Some(path) => {
            let failed = || format!("--broker-socket: failed to listen on {}", path.display());
            Some(BrokerSocket::bind(path, args.broker_user).with_context(failed)?)
        }
        None => None,
    };

    // Read before the confinement makes these files unreadable. The number of cores is the lower one of the container's quota, found
    // on the way up through its control groups of either version, and the processors that it is bound to.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let connections = descriptors::make_room_for(args.max_connections);
    let cores = args.cores.map_or(cores, usize::from);
    let memory = planned_memory(args, &metrics);
    prepare_private_dir(&args.private_dir)?;
    tell_how_memory_is_cleared(&metrics);
    confine(args, &metrics);
    // A thread from before the confinement would not be confined.
    write_log_in_background(&metrics.registry)?;

    let limits = RunLimits {
        memory_bytes: usize::try_from(args.memory_limit).context("--memory-limit")?,
        instances: args.instances,
        kept_bytes: memory.kept(),
        ..RunLimits::default()
    };
    let hang = || {
        failpoint::hit("evaluator.tick");
    };
    let engine = RunningEngine::with_hook(limits, hang)?;
    let ticks = engine.ticks().clone();
    liveness.watch("epoch", TICK_LIMIT, move || ticks.age());
    // Every latch is made before the first probe: a program without latches would count as ready.
    let gate = readiness.latch("start-gate");
    let certificate = args.tls_dir.is_some().then(|| readiness.latch("certificate"));
    let keys = keys.map(|keys| (keys, readiness.latch("path-keys")));
    let parts = Parts {
        metrics,
        table,
        state,
        readiness,
        gate,
        certificate,
        keys,
        expiry,
        liveness,
        engine,
        cores,
        connections,
        memory,
        audits,
        broker,
        traces,
    };
    probes.start()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores)
        .thread_name("main-lane")
        .enable_all()
        .build()?;
    let served = runtime.block_on(parts.serve(args, listener));
    // Work that still runs has had its time, and is not waited for.
    runtime.shutdown_background();
    served
}

/// What the parts of the program share.
struct Parts {
    metrics: Metrics,
    table: SharedTable,
    state: StateFeed<EvaluatorState>,
    readiness: Readiness,
    gate: Latch,
    certificate: Option<Latch>,
    keys: Option<(Arc<AcceptedKeys>, Latch)>,
    expiry: Expiry,
    liveness: Liveness,
    engine: RunningEngine,
    cores: usize,
    connections: u32,
    memory: MemoryPlan,
    audits: audit::Worker,
    broker: Option<BrokerSocket>,
    traces: Option<Traces>,
}

impl Parts {
    async fn serve(self, args: &Args, listener: TcpListener) -> anyhow::Result<()> {
        let shutdown = Shutdown::on_signals()?;
        let lane_limits = LaneLimits::new(usize::try_from(args.instances).context("--instances")?, self.cores);
        let keys = match self.keys {
            Some((keys, ready)) => {
                keys.follow(ready)?;
                Some(keys)
            }
            None => None,
        };
        let broker = self.broker.map(|socket| {
            let link = BrokerLink::new(&self.metrics, args.broker_certificates);
            tokio::spawn(Arc::clone(&link).serve(socket));
            link
        });
        if let (Some(traces), Some(link)) = (self.traces, &broker) {
            let outlet = BrokerOutlet { link: Arc::clone(link), signal: Signal::Traces };
            traces.export(&self.metrics.registry, outlet)?;
        }
        if let Some(link) = broker.as_ref().filter(|_| args.exports(Signal::Metrics)) {
            let outlet = BrokerOutlet { link: Arc::clone(link), signal: Signal::Metrics };
            export_metrics("portcullis-evaluator", self.metrics.registry.clone(), outlet)?;
        }
        let last_call = LastCall::default();
        let checks = broker.clone().map(|link| Checks::new(link, last_call.clone(), &self.metrics));
        let lanes = Lanes::new(lane_limits, self.memory, &self.metrics)?;
        let follow = Follow {
            broker,
            volume: args.volume.clone(),
            private_dir: args.private_dir.clone(),
            private_size: args.private_size,
            poll_interval: args.poll_interval,
            start_gate: args.start_gate,
            policy_timeout: args.policy_timeout,
            namespaced_capabilities: args.namespaced_capability.as_slice().into(),
            error_window: args.error_window,
            path_keys: keys.clone(),
            drain: shutdown.clone(),
            engine: self.engine,
            lanes: Arc::clone(&lanes),
            metrics: self.metrics.clone(),
        };
        let beat = self.liveness.beat("follow", BEAT_LIMIT);
        // It gets a shutdown of its own, which never begins: while the program drains, the loop still takes changes and shows that it is alive.
        let following = follow.run(Arc::clone(&self.table), self.state, self.gate, beat, Shutdown::default());
        tokio::spawn(following);
        tokio::spawn(report_alive(self.liveness.beat("runtime", BEAT_LIMIT), self.cores));
        let certificates = match (&args.tls_dir, self.certificate) {
            (Some(dir), Some(ready)) => {
                let certificates = Certificates::new(TlsFiles {
                    dir: dir.clone(),
                    client_ca: args.client_ca.clone(),
                    client_names: args.client_name.clone(),
                });
                certificates.follow(ready, self.metrics.clone(), self.expiry)?;
                Some(certificates)
            }
            _ => None,
        };
        let admission = Admission { metrics: self.metrics.clone(), last_call };
        lanes.spawn_slow(self.audits.run(admission.clone()));
        let handler = Handler {
            table: self.table,
            admission,
            checks,
            bodies: BodyLimits::new(
                usize::try_from(args.max_body).context("--max-body")?,
                self.memory.bodies,
                &self.metrics,
            ),
            readiness: self.readiness.clone(),
            open: args.open_paths(),
            keys,
            under_way: UnderWay::new(args.max_requests),
        };
        let connections = usize::try_from(self.connections).context("--max-connections")?;
        let server = Server {
            handler: Arc::new(handler),
            connections: Connections::new(connections, &self.metrics),
            certificates,
            metrics: self.metrics,
            readiness: self.readiness,
            drain: DrainTimes { delay: args.drain_delay, grace: args.grace },
        };
        server.run(listener, shutdown).await.context("failed to serve the admission port")
    }
}

/// Plans the memory that this program may use, and logs the plan.
fn planned_memory(args: &Args, metrics: &Metrics) -> MemoryPlan {
    let total = args.total_memory.map_or_else(TotalMemory::found, TotalMemory::Said);
    let (bytes, source, wanted) = (total.bytes(), total.source(), args.wanted());
    let plan = MemoryPlan::new(bytes, wanted);
    let MemoryPlan { floor, shared, bodies } = plan;
    tracing::info!(bytes, source, floor, shared, bodies, "planned memory");
    let least = wanted.least();
    if bytes < least {
        tracing::warn!(
            bytes,
            source,
            least,
            "too little memory for so many instances of that size: policies that need much of it are refused as Overloaded; raise the limit, or make --instances or --memory-limit smaller"
        );
    }
    let limit = shared.saturating_add(floor.saturating_mul(u64::from(args.instances)));
    metrics.guest_memory_limit.set(i64::try_from(limit).unwrap_or(i64::MAX));
    plan
}

/// Warns if the kernel cannot show which pages were written. This also opens the file that the engine needs for that, while the process may still open it.
fn tell_how_memory_is_cleared(metrics: &Metrics) {
    let finds_written_pages = finds_written_pages();
    metrics.written_pages_found.set(finds_written_pages.into());
    if !finds_written_pages {
        tracing::warn!(
            "the kernel does not tell which pages of memory were written (PAGEMAP_SCAN, since Linux 6.7): evaluations take more CPU time"
        );
    }
}

fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let failed = || format!("failed to listen on {address}");
    let listener = portcullis_process::listen(address).with_context(failed)?;
    // The standard library's own queue is short.
    rustix::net::listen(&listener, BACKLOG).with_context(failed)?;
    listener.set_nonblocking(true).with_context(failed)?;
    listening("admission", listener.local_addr().with_context(failed)?);
    Ok(listener)
}

fn listening(port: &str, address: SocketAddr) {
    tracing::info!(port, %address, "listening");
}

/// Reports for ever that the main runtime is alive.
async fn report_alive(beat: Beat, workers: usize) {
    let mut turns = tokio::time::interval(BEAT);
    turns.tick().await;
    loop {
        beat.now();
        turns.tick().await;
        if cfg!(debug_assertions) {
            for _ in 0..workers {
                tokio::spawn(async { failpoint::hit("evaluator.runtime") });
            }
        }
    }
}
