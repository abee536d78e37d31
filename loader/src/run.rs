//! Starts the parts of the loader, and ends them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use axum::Router;
use jiff::Timestamp;
use portcullis_broker::{PublishedGrants, Services, Socket};
use portcullis_contract::{EvaluatorState, Failure, LoaderState, MAX_CHECKS, Program};
use portcullis_engine::Compiler;
use portcullis_kubernetes::{AnswerLimits, ApiServer};
use portcullis_process::telemetry::Collectors;
use portcullis_process::{
    Beat, Follower, Liveness, PolicyChecks, ProbeServer, ProbeSources, Readiness, SettingError, Shutdown, StateFeed,
    raise_descriptors, state_route, supervised, write_log_in_background,
};
use portcullis_registry::oci::Registry;
use portcullis_registry::{PeerKeys, Web};
use portcullis_util::LogOnce;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use crate::args::{Args, Input, Settings};
use crate::checks::{CheckSettings, Checks, Impact};
use crate::compile::Compilers;
use crate::end::{Broker, Parts};
use crate::input::{Desired, Directory, Installation};
use crate::jobs::{JobRunner, PinSource};
use crate::metrics::Metrics;
use crate::mismatch::Provided;
use crate::source::Sources;
use crate::volume::Volume;
use crate::volume_error::VolumeError;
use crate::work::{Outside, work};

/// Longest time between two turns of a loop that is alive.
const ALIVE: Duration = Duration::from_secs(30);
/// Descriptors that are wanted. Each module that is being fetched has one for its connection and one for its file, and there may be thousands of
/// them: downloads are limited for each host only.
const DESCRIPTORS: u64 = 16 << 10;
/// The largest answer of the API server for checks of policies, in bytes. A page of objects that is larger is asked for in smaller ones.
const LARGEST_CHECK_ANSWER: usize = 16 << 20;

/// Runs the loader until a signal ends it.
///
/// # Errors
/// A setting that cannot be used, or a port that cannot be bound.
pub fn run(args: &Args) -> anyhow::Result<()> {
    args.log.init()?;
    let settings = args.settings()?;
    raise_descriptors(DESCRIPTORS);
    let key = Compiler::new().context("failed to start")?.key();
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.clamp(2, 4))
        .enable_all()
        .build()
        .context("failed to start the runtime")?;
    let result = runtime.block_on(serve(args, settings, key));
    // A file operation that hangs must not delay the end of the program.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

async fn serve(args: &Args, settings: Settings, key: String) -> anyhow::Result<()> {
    let shutdown = Shutdown::on_signals().context("failed to catch signals")?;
    let input = Watched::of(&settings.input).await?;
    let metrics = Metrics::new().context("failed to set up metrics")?;
    write_log_in_background(&metrics.registry)?;
    let (readiness, liveness) = (Readiness::default(), Liveness::default());
    let started = readiness.latch("volume");
    let program = Program {
        name: "portcullis-loader".to_owned(),
        version: portcullis_process::VERSION.to_owned(),
        engine: portcullis_engine::ENGINE.to_owned(),
    };
    let first = LoaderState { program: program.clone(), ..LoaderState::default() };
    let feed = StateFeed::new(first, |state: &mut LoaderState, version| state.version = version);

    let probe_sources = ProbeSources { readiness, liveness: liveness.clone(), metrics: metrics.registry.clone() };
    serve_probes(args, probe_sources, &feed)?;
    let siblings = listen_to_siblings(&settings)?;
    let beat = liveness.beat("loader", ALIVE);
    let Some(volume) = open(&settings, &key, &feed, &beat, &shutdown).await else { return Ok(()) };
    started.release();
    let cluster = input.server();
    let pins = if cluster.is_some() { PinSource::Revisions } else { PinSource::Loader };
    let input_beat = liveness.beat("input", ALIVE);
    let beats = [beat.clone(), input_beat.clone()];
    let desired = input.watch(&settings, &metrics, input_beat, &shutdown);
    let evaluator = follow(args.evaluator_state, &shutdown)?;
    let watched_files = settings.fetching.files();
    let sources = Sources::new(settings.roots.clone(), settings.fetching.clone());
    let compilers = Compilers::new(settings.compile);
    let volume = Arc::new(volume);
    if let Some((listener, keys)) = siblings {
        let limit = settings.compile.max_module_size;
        tokio::spawn(crate::siblings::serve(listener, keys, Arc::clone(&volume), limit, shutdown.clone()));
    }
    let collectors = Collectors::from_env();
    collectors.export_metrics("portcullis-loader", &metrics.registry).context("failed to set up metrics")?;
    let grants = Arc::new(PublishedGrants::default());
    let checks = checks(args, &settings, cluster.as_ref(), evaluator.clone(), desired.clone(), Arc::clone(&grants))?;
    let asked = (args.broker.policy_checks != PolicyChecks::Off).then(|| {
        let (sender, requests) = mpsc::channel(MAX_CHECKS);
        (sender, tokio::spawn(Arc::clone(&checks).serve(requests)))
    });
    let (asked, answers_checks) = asked.unzip();
    let contexts = watch::Sender::default();
    let mut broker = None;
    let mut provided = Provided { namespaced: args.broker.namespaced_capability.clone(), ..Provided::default() };
    if let Some(path) = &args.broker.broker_socket {
        let socket = Socket { path: path.clone(), user: args.broker.evaluator_user };
        let services = services(args, &settings, cluster, collectors).await?;
        let services = Services { checks: asked, contexts: watch::Sender::clone(&contexts), ..services };
        provided.broker = true;
        provided.cluster = services.cluster.is_ok() || args.broker.replay_capabilities.is_some();
        let metrics = portcullis_broker::Metrics::new(&metrics.registry).context("failed to set up metrics")?;
        broker = Some(Broker {
            task: tokio::spawn(portcullis_broker::run(
                socket,
                services,
                Arc::clone(&grants),
                metrics,
                shutdown.clone(),
            )),
            evaluator: evaluator.clone(),
            limit: args.broker.drain_limit,
        });
    }
    let runner = Arc::new(JobRunner::new(volume, sources, compilers, metrics, settings.compile, pins));
    let outside = Outside {
        settings: settings.plan,
        desired,
        evaluator,
        feed,
        program,
        watched_files,
        beat,
        shutdown: shutdown.clone(),
        grants,
        contexts,
        provided: Arc::new(provided),
        checks,
    };
    let work = supervised("work", &shutdown, move || work(outside.clone(), Arc::clone(&runner)));
    shutdown.begun().await;
    Parts { work, checks: answers_checks, broker, beats }.end().await;
    Ok(())
}

/// Serves the probes, and the state of this program on the loopback.
fn serve_probes(args: &Args, sources: ProbeSources, feed: &StateFeed<LoaderState>) -> anyhow::Result<()> {
    let mut ports = ProbeServer::new();
    // On the loopback the health of policies and sources is always served: users who may forward ports of the pod can read it.
    let health = crate::health::routes(feed.clone());
    let shown = if args.policy_paths.is_on() { health.clone() } else { Router::new() };
    let probes = ports.probes(args.probe_address, sources, shown)?;
    let state = ports.port(args.state_address, state_route(feed.clone()).merge(health))?;
    ports.start().context("failed to serve the probes")?;
    tracing::info!(port = "probes", address = %probes, "listening");
    tracing::info!(port = "state", address = %state, "listening");
    Ok(())
}

/// Opens the port for the loaders of other pods, if there is one.
fn listen_to_siblings(settings: &Settings) -> anyhow::Result<Option<(TcpListener, PeerKeys)>> {
    let Some((address, keys)) = &settings.siblings_port else { return Ok(None) };
    let listener = listen(*address);
    let listener = listener.with_context(|| format!("--siblings-address: failed to listen on {address}"))?;
    tracing::info!(port = "siblings", address = %listener.local_addr()?, "listening");
    Ok(Some((listener, keys.clone())))
}

/// The checks of policies that somebody applies.
fn checks(
    args: &Args,
    settings: &Settings,
    cluster: Option<&ApiServer>,
    evaluator: watch::Receiver<Option<Arc<EvaluatorState>>>,
    desired: Desired,
    grants: Arc<PublishedGrants>,
) -> anyhow::Result<Arc<Checks>> {
    let limits = AnswerLimits { largest: LARGEST_CHECK_ANSWER, ..AnswerLimits::default() };
    let client = cluster.map(|cluster| cluster.client_within(limits));
    let wanted = CheckSettings {
        denies: args.broker.policy_checks == PolicyChecks::Deny,
        shares_webhooks: args.broker.shared_webhooks,
    };
    Ok(Checks::new(wanted, evaluator, desired, grants, client, impact(args, &settings.input)?))
}

/// What the broker needs. The API server is the one whose policies are watched; for a folder it is that of a kubeconfig, if there is one.
async fn services(
    args: &Args,
    settings: &Settings,
    cluster: Option<ApiServer>,
    collectors: Collectors,
) -> anyhow::Result<Services> {
    let cluster = match cluster {
        Some(cluster) => Ok(cluster),
        None => args.input.access.connect("portcullis-loader").await,
    };
    let fetching = &settings.fetching;
    Ok(Services {
        registry: Registry::new(Web::new(fetching.web.clone()), fetching.docker.clone()),
        trust_root: fetching.trust_root.clone(),
        name_server: fetching.web.name_server,
        cluster,
        namespaced: args.broker.namespaced_capability.clone(),
        session: args.broker.session()?,
        collectors,
        contexts: watch::Sender::default(),
        checks: None,
    })
}

/// What checks use to look at objects that exist; `None` unless that is switched on and policies come from a cluster.
fn impact(args: &Args, input: &Input) -> anyhow::Result<Option<Impact>> {
    let installation = match input {
        Input::Cluster(installation) if args.broker.check_impact.is_on() => installation,
        _ => return Ok(None),
    };
    let impact = Impact::new(args.evaluator_state, &installation.namespace);
    impact.map(Some).context("failed to set up questions to the evaluator")
}

/// Where policies come from, ready to be watched.
enum Watched {
    Folder(Directory),
    Cluster(Box<ApiServer>, Installation),
}

impl Watched {
    /// Fails if no API server is configured. Whether it answers does not matter yet.
    async fn of(input: &Input) -> anyhow::Result<Self> {
        Ok(match input {
            Input::Folder(directory) => Self::Folder(directory.clone()),
            Input::Cluster(installation) => {
                let server = installation.access.connect("portcullis-loader").await;
                let server = server.map_err(|error| SettingError::new("--kubeconfig", error.to_string()))?;
                Self::Cluster(Box::new(server), installation.clone())
            }
        })
    }

    /// The API server; `None` for a folder.
    fn server(&self) -> Option<ApiServer> {
        match self {
            Self::Folder(_) => None,
            Self::Cluster(server, _) => Some(ApiServer::clone(server)),
        }
    }

    /// Follows which policies there are until the shutdown.
    fn watch(self, settings: &Settings, metrics: &Metrics, beat: Beat, shutdown: &Shutdown) -> Desired {
        match self {
            Self::Folder(directory) => crate::input::watch_directory(directory, settings.roots.clone(), beat, shutdown),
            Self::Cluster(server, installation) => {
                crate::input::watch_revisions(server.client, installation, metrics.watch_errors.clone(), beat, shutdown)
            }
        }
    }
}

/// Opens the volume, however long that takes: another loader may be ending, or the disk may be full. `None` at the shutdown.
async fn open(
    settings: &Settings,
    key: &str,
    feed: &StateFeed<LoaderState>,
    beat: &Beat,
    shutdown: &Shutdown,
) -> Option<Volume> {
    let (mut waits, mut log) = (false, LogOnce::default());
    loop {
        beat.now();
        let (root, key, room) = (settings.volume.clone(), key.to_owned(), settings.room);
        let open = move || Volume::open(&root, &key)?.map(|volume| volume.with_room(room)).transpose();
        let opened = crate::jobs::blocking(open).await;
        match opened {
            Ok(Ok(Some(volume))) => return Some(volume),
            Ok(Ok(None)) => {
                if !std::mem::replace(&mut waits, true) {
                    tracing::info!(volume = %settings.volume.display(), "another loader has the volume; waiting for its end");
                }
            }
            Ok(Err(VolumeError { reason, message })) => {
                if log.fails(&message, Instant::now()) {
                    tracing::warn!(reason = %reason, message, "the volume cannot be used; trying again");
                }
                let mut state = LoaderState::clone(&feed.latest());
                let since = state.volume_failure.map_or_else(Timestamp::now, |failure| failure.since);
                state.volume_failure = Some(Failure::new(0, reason, &message, since));
                feed.publish(state, |state, version| state.version = version);
            }
            Err(error) => tracing::error!(problem = error.message, "failed to open the volume; trying again"),
        }
        let pause = if waits { Duration::from_millis(100) } else { Duration::from_secs(1) };
        tokio::select! {
            () = shutdown.begun() => return None,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Opens a port for the main runtime.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = portcullis_process::listen(address)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Follows the evaluator's state.
fn follow(address: SocketAddr, shutdown: &Shutdown) -> anyhow::Result<watch::Receiver<Option<Arc<EvaluatorState>>>> {
    // Made once here, so that a setting that cannot work is reported at the start.
    Follower::<EvaluatorState>::new(address).context("failed to set up the evaluator's follower")?;
    let (sender, receiver) = watch::channel(None);
    let sender = Arc::new(sender);
    supervised("evaluator", shutdown, move || {
        let sender = Arc::clone(&sender);
        async move {
            let Ok(mut follower) = Follower::<EvaluatorState>::new(address) else { return };
            loop {
                match follower.next(|state| state.version).await {
                    Ok(state) => drop(sender.send_replace(Some(Arc::new(state)))),
                    Err(error) => {
                        // The evaluator may not have started yet, or may be restarting. Its last state counts until then.
                        tracing::debug!(%error, "the evaluator's state cannot be read");
                        tokio::time::sleep(Duration::from_millis(500)).await;
                    }
                }
            }
        }
    });
    Ok(receiver)
}
