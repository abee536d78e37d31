//! The loop: a word of loader or evaluator, then status files, events and standard output.

use std::io::BufRead as _;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use jiff::Timestamp;
use portcullis_contract::PolicyId;
use portcullis_process::files::FileError;
use portcullis_process::{ProbeServer, ProbeSources, Shutdown};
use tokio::sync::mpsc;

use crate::args::Args;
use crate::board::{Board, Change};
use crate::event::EventLog;
use crate::folder::StatusFolder;
use crate::join::Pod;
use crate::line::line;
use crate::metrics::Metrics;
use crate::output::Output;
use crate::view::View;
use crate::{follow, frame};

/// How often the table's ages move, silence is judged, and a failed write is tried again.
const TICK: Duration = Duration::from_secs(1);
/// The loop is dead when it has not turned for this long.
const LIVE_LIMIT: Duration = Duration::from_secs(30);
/// Words that wait for the loop.
const QUEUE: usize = 16;

/// Runs until the shutdown begins.
///
/// # Errors
/// When a setting cannot be used or a port cannot be opened. Never because of loader, evaluator or the folder later on.
pub async fn run(args: Args, shutdown: Shutdown) -> anyhow::Result<()> {
    args.check()?;
    let sources = ProbeSources::default();
    let metrics = Metrics::new(&sources.metrics).context("failed to register metrics")?;
    let beat = sources.liveness.beat("report", LIVE_LIMIT);
    let started = sources.readiness.latch("started");
    let readiness = sources.readiness.clone();
    let folder = StatusFolder::open(&args.status_dir)?;
    let mut probes = ProbeServer::new();
    let address = probes.probes(args.probe_address, sources, axum::Router::new())?;
    probes.start().context("failed to start the probes")?;
    tracing::info!(port = "probes", %address, "listening");

    let (sender, mut news) = mpsc::channel(QUEUE);
    let loader = follow::loader(args.loader_state, metrics.loader_failures.clone(), sender.clone());
    let evaluator = follow::evaluator(args.evaluator_state, metrics.evaluator_failures.clone(), sender);
    let followers = [tokio::spawn(loader), tokio::spawn(evaluator)];
    let mut notes = notes(args.notes);
    let mut reporter = Reporter::new(&args, folder, metrics);
    let mut tick = tokio::time::interval(TICK);
    started.release();
    loop {
        tokio::select! {
            () = shutdown.begun() => break,
            Some(word) = news.recv() => reporter.view.hear(word, Instant::now()),
            Some(note) = notes.recv() => reporter.output.say(&note),
            _ = tick.tick() => {}
        }
        reporter.update();
        beat.now();
    }
    readiness.drain();
    for follower in followers {
        follower.abort();
    }
    // The last picture is the one before the other programs went away.
    while let Ok(note) = notes.try_recv() {
        reporter.output.say(&note);
    }
    reporter.draw();
    Ok(())
}

struct Reporter {
    pod: Pod,
    view: View,
    board: Board,
    folder: StatusFolder,
    events: EventLog,
    output: Output,
    metrics: Metrics,
    troubles: Vec<String>,
    write_failure: Option<String>,
    events_unwritten: bool,
}

impl Reporter {
    fn new(args: &Args, folder: StatusFolder, metrics: Metrics) -> Self {
        let name = args.pod_name();
        Self {
            // A folder has no pods; the name is as good a uid as any.
            pod: Pod { uid: name.clone(), name },
            view: View::default(),
            board: Board::default(),
            events: EventLog::new(folder.read_events()),
            folder,
            output: Output::new(args.table),
            metrics,
            troubles: Vec::new(),
            write_failure: None,
            events_unwritten: false,
        }
    }

    /// Decides all policies anew, and tells what has changed.
    fn update(&mut self) {
        let (instant, now) = (Instant::now(), Timestamp::now());
        if let Some((loader, evaluator)) = self.view.both(instant) {
            let remembered = |id: &PolicyId| self.folder.get(id).cloned();
            let changes = self.board.update(&self.pod, loader, evaluator, remembered, now);
            let complete = loader.complete;
            self.tell(&changes, now);
            let written = self.write(complete);
            self.judge_write(written);
        }
        let troubles = self.view.troubles(instant);
        if !self.output.is_live() {
            for trouble in troubles.iter().filter(|trouble| !self.troubles.contains(trouble)) {
                self.output.say(&format!("{} {trouble}", crate::decide::to_second(now)));
            }
        }
        self.troubles = troubles;
        self.draw();
    }

    fn tell(&mut self, changes: &[Change], now: Timestamp) {
        for change in changes {
            if !self.output.is_live() {
                line(change, now).into_iter().for_each(|line| self.output.say(&line));
            }
            if let Some(after) = &change.after {
                let before = change.before.as_ref().filter(|before| before.metadata.uid == after.metadata.uid);
                let before = before.map(|before| &before.status);
                self.events_unwritten |= self.events.record(&change.id, before, &after.status, now);
            }
        }
        if !changes.is_empty() {
            self.metrics.count(self.board.objects().values().map(|object| object.status.word()));
        }
    }

    /// Brings the folder to what the board says. An equal object costs nothing, so each turn tries what failed before.
    fn write(&mut self, complete: bool) -> Result<(), FileError> {
        for (id, object) in self.board.objects() {
            if self.folder.put(id, object)? {
                self.metrics.writes.inc();
            }
        }
        if complete {
            for id in self.folder.ids() {
                if !self.board.objects().contains_key(&id) {
                    self.folder.remove(&id)?;
                }
            }
        }
        if self.events_unwritten {
            self.folder.write_events(self.events.events())?;
            self.events_unwritten = false;
        }
        Ok(())
    }

    /// One log line when writing begins to fail, one when it works again.
    fn judge_write(&mut self, written: Result<(), FileError>) {
        match written {
            Ok(()) => {
                if self.write_failure.take().is_some() {
                    tracing::info!("status can be written again");
                }
            }
            Err(error) => {
                self.metrics.write_failures.inc();
                if self.write_failure.is_none() {
                    tracing::warn!(%error, "failed to write status; it is tried again every second");
                }
                self.write_failure = Some(error.to_string());
            }
        }
    }

    fn draw(&mut self) {
        if !self.output.is_live() {
            return;
        }
        let loader = self.view.loader();
        let troubles: Vec<String> = self.troubles.iter().cloned().chain(self.write_failure.clone()).collect();
        let (size, colour) = (self.output.size(), self.output.colour);
        let lines = frame::frame(self.board.objects(), loader, &troubles, Timestamp::now(), size, colour);
        self.output.draw(lines);
    }
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
