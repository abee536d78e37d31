//! The loop, which passes each new state of loader or evaluator to the outputs: a folder and standard output, Kubernetes, or both.

use std::io::BufRead as _;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use jiff::Timestamp;
use portcullis_process::telemetry::Collectors;
use portcullis_process::{ProbeServer, ProbeSources, Shutdown, write_log_in_background};
use tokio::sync::mpsc;

use crate::args::Args;
use crate::folder::StatusFolder;
use crate::follow;
use crate::join::{Pod, join};
use crate::kubernetes::Cluster;
use crate::local::Local;
use crate::metrics::Metrics;
use crate::view::View;

/// How often the ages in the table are updated, programs are checked for silence, and a failed write is tried again.
const TICK: Duration = Duration::from_secs(1);
/// The loop counts as dead when it has not turned for this long.
const LIVE_LIMIT: Duration = Duration::from_secs(30);
/// Most new states that wait for the loop.
const QUEUE: usize = 16;

/// Runs until the shutdown begins.
///
/// # Errors
/// When a setting cannot be used or a port cannot be opened. Never because of loader, evaluator, the folder or the API server
/// later on.
pub async fn run(args: Args, shutdown: Shutdown) -> anyhow::Result<()> {
    args.check()?;
    let sources = ProbeSources::default();
    write_log_in_background(&sources.metrics)?;
    let metrics = Metrics::new(&sources.metrics).context("failed to register metrics")?;
    Collectors::from_env()
        .export_metrics("portcullis-reporter", &sources.metrics)
        .context("failed to register metrics")?;
    let beat = sources.liveness.beat("report", LIVE_LIMIT);
    let started = sources.readiness.latch("started");
    let readiness = sources.readiness.clone();
    let registry = sources.metrics.clone();
    let folder = args.status_dir.as_deref().map(StatusFolder::open).transpose()?;
    let cluster = match args.cluster()? {
        Some(settings) => {
            let pod = Pod { name: settings.identity.pod.clone(), uid: settings.identity.pod_uid.clone() };
            Some((pod, Cluster::start(settings, args.evaluator_state, &registry, shutdown.clone()).await?))
        }
        None => None,
    };
    let mut probes = ProbeServer::new();
    let address = probes.probes(args.probe_address, sources, axum::Router::new())?;
    probes.start().context("failed to start the probes")?;
    tracing::info!(port = "probes", %address, "listening");

    let (sender, mut updates) = mpsc::channel(QUEUE);
    let loader = follow::loader(args.loader_state, metrics.loader_failures.clone(), sender.clone());
    let evaluator = follow::evaluator(args.evaluator_state, metrics.evaluator_failures.clone(), sender);
    let followers = [tokio::spawn(loader), tokio::spawn(evaluator)];
    let mut notes = notes(args.notes);
    let mut view = View::default();
    let mut local = folder.map(|folder| Local::new(&args, folder, metrics));
    let mut tick = tokio::time::interval(TICK);
    started.release();
    loop {
        tokio::select! {
            () = shutdown.begun() => break,
            Some(word) = updates.recv() => view.update(word, Instant::now()),
            Some(note) = notes.recv() => local.iter_mut().for_each(|local| local.say(&note)),
            _ = tick.tick() => {}
        }
        if let Some(local) = &mut local {
            local.update(&view);
        }
        if let (Some((pod, cluster)), Some((loader, evaluator))) = (&cluster, view.both(Instant::now())) {
            cluster.set_report(join(pod, loader, evaluator, Timestamp::now()));
        }
        beat.now();
    }
    readiness.drain();
    for follower in followers {
        follower.abort();
    }
    if let Some((_, cluster)) = cluster {
        cluster.end().await;
    }
    // The view is not updated after the shutdown begins, so the last frame shows the state before the other programs ended.
    if let Some(local) = &mut local {
        while let Ok(note) = notes.try_recv() {
            local.say(&note);
        }
        local.draw(&view);
    }
    Ok(())
}

/// The lines of standard input, read by a thread of their own, as a read of it cannot be cancelled.
fn notes(wanted: bool) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    if wanted {
        std::thread::spawn(move || {
            let lines = std::io::stdin().lock().lines();
            for line in lines.map_while(Result::ok) {
                if sender.blocking_send(line).is_err() {
                    break;
                }
            }
        });
    }
    receiver
}
