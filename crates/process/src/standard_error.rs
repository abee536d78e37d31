//! Standard error: the log is written on a thread of its own, so that a slow reader of standard error delays no thread that logs.
//!
//! Lines wait in a queue with a limit of bytes. A line for which there is no room is lost and counted, and the log has a line about it as soon as
//! it is read again. tracing-appender does the same with a limit of lines, whose length guests decide, and gives the program's own lines no
//! precedence.

mod panics;
mod queue;

use std::io::{self, ErrorKind, Write};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use portcullis_util::lock;
use prometheus::{IntCounter, Registry};
use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

use crate::metrics::counter;

use queue::{Queue, Speaker};

/// The target of events that say what a guest said, whose lines give way to all others.
pub const GUEST_LOG: &str = "policy";

/// How long the end of the program waits until the last lines are written.
pub(crate) const LAST_LINES: Duration = Duration::from_secs(2);
/// The pause before the next try where standard error does not block and is full.
const PAUSE: Duration = Duration::from_millis(10);

static BACKGROUND: OnceLock<Background> = OnceLock::new();

/// From now on, lines of the log and messages of panics are written by a thread of their own, which this starts. Threads that log never wait,
/// and those that panic not for long. Lines that were not read as fast as they came are lost, and counted in `metrics`.
///
/// # Errors
/// When the metric is registered already, or the thread cannot be started.
pub fn write_log_in_background(metrics: &Registry) -> anyhow::Result<()> {
    let help = "Log lines lost, as standard error was not read as fast as they came";
    let lost = counter(metrics, "portcullis_log_lines_lost_total", help)?;
    let thread = thread::Builder::new().name("log".to_owned()).spawn(|| {
        let (background, mut batch) = (BACKGROUND.wait(), Vec::new());
        loop {
            background.write_next(&mut batch, &mut io::stderr(), |lines| {
                tracing::warn!(lines, "log lines were lost: standard error was not read as fast as they came");
            });
        }
    });
    thread.context("failed to start the thread that writes the log")?;
    BACKGROUND.get_or_init(|| Background::new(lost));
    panics::say_them();
    Ok(())
}

/// Writes a text that is not an event.
pub(crate) fn say(text: &str) {
    match BACKGROUND.get() {
        Some(background) => background.push(text.as_bytes(), Speaker::Program),
        None => eprint!("{text}"),
    }
}

/// Waits until all lines are written, but only for `patience` if they are not read.
pub(crate) fn finish(patience: Duration) {
    if let Some(background) = BACKGROUND.get() {
        background.finish(patience);
    }
}

/// Gives each line to the thread, once there is one, and writes it before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogWriter;

/// The writer of one line.
pub(crate) struct LineWriter(Speaker);

impl MakeWriter<'_> for LogWriter {
    type Writer = LineWriter;

    fn make_writer(&self) -> LineWriter {
        LineWriter(Speaker::Program)
    }

    fn make_writer_for(&self, event: &Metadata<'_>) -> LineWriter {
        LineWriter(if event.target() == GUEST_LOG { Speaker::Guest } else { Speaker::Program })
    }
}

/// An event is written whole, by one call.
impl Write for LineWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match BACKGROUND.get() {
            Some(background) => {
                background.push(line, self.0);
                Ok(line.len())
            }
            None => io::stderr().write(line),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Background {
    queue: Mutex<Queue>,
    /// A line waits.
    came: Condvar,
    /// A batch is written.
    written: Condvar,
    lost: IntCounter,
}

impl Background {
    fn new(lost: IntCounter) -> Self {
        Self { queue: Mutex::default(), came: Condvar::new(), written: Condvar::new(), lost }
    }

    fn push(&self, line: &[u8], speaker: Speaker) {
        let mut queue = lock(&self.queue);
        // Otherwise the thread is awake, and looks for more before it sleeps.
        let is_idle = queue.is_idle();
        let is_kept = queue.push(line, speaker);
        drop(queue);
        if !is_kept {
            self.lost.inc();
        } else if is_idle {
            self.came.notify_one();
        }
    }

    /// Waits for lines and writes them. `tell` logs how many lines were lost, if any were.
    fn write_next(&self, batch: &mut Vec<u8>, out: &mut impl Write, tell: impl FnOnce(u64)) {
        let mut queue =
            self.came.wait_while(lock(&self.queue), |queue| queue.is_empty()).unwrap_or_else(PoisonError::into_inner);
        queue.take(batch);
        drop(queue);
        if write_all(batch, out).is_err() {
            let lines = batch.iter().filter(|byte| **byte == b'\n').count();
            self.lost.inc_by(u64::try_from(lines).unwrap_or(u64::MAX));
        }
        let lines = lock(&self.queue).written();
        if lines > 0 {
            tell(lines);
        }
        // Only now, so that the end of the program waits for that line too.
        lock(&self.queue).done();
        self.written.notify_all();
    }

    fn finish(&self, patience: Duration) {
        let waited = self.written.wait_timeout_while(lock(&self.queue), patience, |queue| !queue.is_idle());
        drop(waited);
    }
}

/// Writes all bytes. It fails where nobody can read them any longer.
fn write_all(mut bytes: &[u8], out: &mut impl Write) -> io::Result<()> {
    while !bytes.is_empty() {
        match out.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(PAUSE),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, channel};

    use super::queue::{ROOM, ROOM_OF_GUESTS};
    use super::*;

    fn background() -> Background {
        Background::new(IntCounter::new("lost", "lost").expect("a counter"))
    }

    /// Writes only as often as it is allowed to.
    struct Allowed {
        allowed: Receiver<()>,
        seen: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Allowed {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.allowed.recv().map_err(|_| ErrorKind::BrokenPipe)?;
            lock(&self.seen).extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn nobody_waits_for_a_reader_that_stands_still() {
        let (background, (allow, allowed)) = (background(), channel());
        let mut out = Allowed { allowed, seen: Arc::default() };
        let seen = Arc::clone(&out.seen);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut batch = Vec::new();
                (0..2).for_each(|_| background.write_next(&mut batch, &mut out, drop));
            });
            let line = [b'g'; 1 << 10];
            (0..2 * ROOM / line.len()).for_each(|_| background.push(&line, Speaker::Guest));
            assert_eq!(background.lost.get(), u64::try_from((2 * ROOM - ROOM_OF_GUESTS) / line.len()).expect("fits"));
            background.push(b"the program's own\n", Speaker::Program);
            background.finish(Duration::ZERO);
            assert!(lock(&seen).is_empty());
            (0..2).for_each(|_| allow.send(()).expect("it is waited for"));
            background.finish(Duration::from_secs(60));
            assert!(lock(&seen).ends_with(b"the program's own\n"));
            // In case all came in one batch.
            background.push(b"one more\n", Speaker::Program);
        });
    }

    #[test]
    fn what_nobody_can_read_is_lost_and_counted() {
        let (background, (allow, allowed)) = (background(), channel());
        drop(allow);
        let mut out = Allowed { allowed, seen: Arc::default() };
        background.push(b"one\n", Speaker::Program);
        background.push(b"two\n", Speaker::Guest);
        background.write_next(&mut Vec::new(), &mut out, drop);
        assert_eq!(background.lost.get(), 2);
        background.finish(Duration::from_secs(60));
    }

    #[test]
    fn the_end_waits_for_the_line_about_lost_lines() {
        let (background, mut seen) = (background(), Vec::new());
        let line = [b'g'; 1 << 10];
        (0..2 * ROOM / line.len()).for_each(|_| background.push(&line, Speaker::Program));
        background.write_next(&mut Vec::new(), &mut seen, |lines| {
            assert_eq!(lines, 1024);
            assert!(!lock(&background.queue).is_idle(), "the program would end now");
            background.push(b"1024 lost\n", Speaker::Program);
        });
        background.write_next(&mut Vec::new(), &mut seen, |lines| panic!("{lines} lost"));
        assert!(seen.ends_with(b"g1024 lost\n"));
        background.finish(Duration::MAX);
    }

    #[test]
    fn what_is_written_in_parts_is_written_whole() {
        struct Slow(Vec<u8>, u32);
        impl Write for Slow {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.1 += 1;
                match self.1 % 3 {
                    0 => Err(ErrorKind::WouldBlock.into()),
                    1 => Err(ErrorKind::Interrupted.into()),
                    _ => {
                        self.0.push(bytes[0]);
                        Ok(1)
                    }
                }
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut out = Slow(Vec::new(), 0);
        write_all(b"all of it\n", &mut out).expect("writes");
        assert_eq!(out.0, b"all of it\n");
    }
}
