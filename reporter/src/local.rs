//! The output without a cluster: status files, events, and a table or lines on standard output.

use std::collections::BTreeSet;
use std::time::Instant;

use jiff::Timestamp;
use portcullis_api::EventType;
use portcullis_contract::PolicyId;
use portcullis_process::files::FileError;

use crate::args::Args;
use crate::event::EventLog;
use crate::failing;
use crate::folder::StatusFolder;
use crate::frame;
use crate::join::{Evaluator, Pod};
use crate::line::{Describe, line, warning};
use crate::metrics::Metrics;
use crate::output::Output;
use crate::statuses::{Change, Statuses};
use crate::view::View;

/// The output to a folder and to standard output.
pub(crate) struct Local {
    pod: Pod,
    statuses: Statuses,
    folder: StatusFolder,
    events: EventLog,
    /// Policies of which too many evaluations fail, and for which an event was made.
    failing: BTreeSet<PolicyId>,
    output: Output,
    describe: Describe,
    metrics: Metrics,
    problems: Vec<String>,
    write_failure: Option<String>,
    events_unwritten: bool,
}

impl Local {
    /// An output that continues with the content of the folder.
    pub(crate) fn new(args: &Args, folder: StatusFolder, metrics: Metrics) -> Self {
        let name = args.pod_name();
        Self {
            // A folder has no pods, so the name is used as the uid, too.
            pod: Pod { uid: name.clone(), name },
            statuses: Statuses::default(),
            events: EventLog::new(folder.read_events()),
            failing: BTreeSet::new(),
            folder,
            output: Output::new(args.table),
            describe: args.describe(),
            metrics,
            problems: Vec::new(),
            write_failure: None,
            events_unwritten: false,
        }
    }

    /// Decides about all policies again, and shows what has changed.
    pub(crate) fn update(&mut self, view: &View) {
        let (instant, now) = (Instant::now(), Timestamp::now());
        if let Some((loader, evaluator)) = view.both(instant) {
            let remembered = |id: &PolicyId| self.folder.get(id).cloned();
            let changes = self.statuses.update(&self.pod, loader, evaluator, remembered, now);
            let complete = loader.complete;
            self.report_changes(&changes, now);
            self.report_failing(evaluator, now);
            let written = self.write(complete);
            self.judge_write(written);
        }
        let problems = view.problems(instant);
        if !self.output.is_live() {
            for problem in problems.iter().filter(|problem| !self.problems.contains(problem)) {
                self.output.say(&format!("{} {problem}", crate::facts::to_second(now)));
            }
        }
        self.problems = problems;
        self.draw(view);
    }

    /// Prints a line that stays above the table.
    pub(crate) fn say(&mut self, line: &str) {
        self.output.say(line);
    }

    fn report_changes(&mut self, changes: &[Change], now: Timestamp) {
        for change in changes {
            if !self.output.is_live() {
                let lines = line(change, &self.describe, now).into_iter().chain(warning(change, now));
                lines.for_each(|line| self.output.say(&line));
            }
            if change.after.is_none() {
                self.events.forget(&change.id);
            }
            if let Some(after) = &change.after {
                let before = change.before.as_ref().filter(|before| before.metadata.uid == after.metadata.uid);
                let before = before.map(|before| &before.status);
                self.events_unwritten |= self.events.record(&change.id, before, &after.status, now);
            }
        }
        if !changes.is_empty() {
            self.metrics.count(self.statuses.objects().values().map(|object| object.status.word()));
        }
    }

    /// Makes one event of each policy of which too many evaluations fail.
    fn report_failing(&mut self, evaluator: Evaluator<'_>, now: Timestamp) {
        let Evaluator::Answers(state) = evaluator else { return };
        let found: BTreeSet<PolicyId> = state.failing.iter().map(|failing| failing.id.clone()).collect();
        for new in state.failing.iter().filter(|failing| !self.failing.contains(&failing.id)) {
            let note = failing::note(new.reason.as_str(), new.since);
            if !self.output.is_live() {
                self.output.say(&format!("{} {}: {note}", crate::facts::to_second(now), new.id));
            }
            self.events.add(&new.id, EventType::Warning, failing::REASON.to_owned(), note, now);
            self.events_unwritten = true;
        }
        self.failing = found;
    }

    /// Writes the statuses to the folder. An unchanged object is not written, so each turn simply tries again what failed before.
    fn write(&mut self, complete: bool) -> Result<(), FileError> {
        for (id, object) in self.statuses.objects() {
            if self.folder.put(id, object)? {
                self.metrics.writes.inc();
            }
        }
        if complete {
            for id in self.folder.ids() {
                if !self.statuses.objects().contains_key(&id) {
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

    /// Writes one log line when writing begins to fail, and one when it works again.
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

    /// Draws the table, if there is one.
    pub(crate) fn draw(&mut self, view: &View) {
        if !self.output.is_live() {
            return;
        }
        let loader = view.loader();
        let problems: Vec<String> = self.problems.iter().cloned().chain(self.write_failure.clone()).collect();
        let (size, colour) = (self.output.size(), self.output.colour);
        let lines = frame::frame(self.statuses.objects(), loader, &problems, Timestamp::now(), size, colour);
        self.output.draw(lines);
    }
}
