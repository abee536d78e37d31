//! Calls at a steady pace while something happens.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::api::Api;
use crate::connection::{self, Connection, Question};
use crate::wait::LIMIT;
use crate::{eventually_within, lock};

/// The least and the largest number of concurrent callers. Each waits for the answer to its call.
const CALLERS: (u32, u32) = (8, 24);

/// The usual time of a call, for which that many callers keep the pace.
const USUAL: Duration = Duration::from_millis(100);

/// The outcome of one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status; `None` if no API server answered.
    pub code: Option<u16>,
    /// The API server's message about a call that failed, or why there was no answer.
    pub message: String,
    /// When it was sent.
    pub sent: Instant,
    /// When the answer arrived.
    pub answered: Instant,
}

/// Calls that are made until this ends.
pub struct Load {
    shared: Arc<Shared>,
    callers: Vec<JoinHandle<()>>,
    per_second: u32,
    start: Instant,
}

struct Shared {
    api: Api,
    path: String,
    body: String,
    pace: Duration,
    /// When the next call is due, on any connection.
    due: Mutex<Instant>,
    answers: Mutex<Answers>,
    is_done: AtomicBool,
}

#[derive(Default)]
struct Answers {
    made: usize,
    /// The outcomes that have not been taken yet.
    left: Vec<Answer>,
}

impl Load {
    /// Posts a body to a path `per_second` times a second, as far as the machine can, on connections that stay open.
    pub(crate) fn start(api: &Api, path: String, body: &Value, per_second: u32) -> Self {
        let start = Instant::now();
        let shared = Arc::new(Shared {
            api: api.clone(),
            path,
            body: body.to_string(),
            pace: Duration::from_secs(1) / per_second,
            due: Mutex::new(start),
            answers: Mutex::default(),
            is_done: false.into(),
        });
        let callers = (0..callers(per_second)).map(|_| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.call_on())
        });
        Self { callers: callers.collect(), shared, per_second, start }
    }

    /// Ends it one second from now, returns the outcomes that were not taken, and prints how many calls per second there were.
    ///
    /// # Panics
    /// When a caller has panicked.
    pub fn end(mut self) -> Vec<Answer> {
        thread::sleep(Duration::from_secs(1));
        self.shared.is_done.store(true, Ordering::SeqCst);
        for caller in self.callers.drain(..) {
            caller.join().expect("calling does not panic");
        }
        let (seconds, answers) = (self.start.elapsed().as_secs_f64(), std::mem::take(&mut *lock(&self.shared.answers)));
        let rate = answers.made as f64 / seconds;
        println!("{} calls in {seconds:.1} s: {rate:.0} a second of {} wanted", answers.made, self.per_second);
        answers.left
    }

    /// [`Load::end`], but not before this many calls were made.
    ///
    /// # Panics
    /// When they were not made in time, because API servers do not answer.
    pub fn end_after(self, calls: usize) -> Vec<Answer> {
        self.wait_for(calls);
        self.end()
    }

    /// Waits until this many calls were made.
    ///
    /// # Panics
    /// When they were not made in time, because API servers do not answer.
    pub fn wait_for(&self, calls: usize) {
        let is_enough = || (lock(&self.shared.answers).made >= calls).then_some(());
        eventually_within(LIMIT * 2, &format!("{calls} calls"), is_enough);
    }

    /// The outcome of each call since the last time this was called.
    pub fn take(&self) -> Vec<Answer> {
        std::mem::take(&mut lock(&self.shared.answers).left)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.is_done.store(true, Ordering::SeqCst);
    }
}

fn callers(per_second: u32) -> u32 {
    let (least, most) = CALLERS;
    per_second.div_ceil((Duration::from_secs(1).as_millis() / USUAL.as_millis()) as u32).clamp(least, most)
}

/// When a call is made, if it was due at `due`; also sets when the next one is due. A late caller does not catch up, as calls
/// would then come in bursts.
fn turn(due: &mut Instant, pace: Duration, now: Instant) -> Instant {
    let turn = now.max(*due);
    *due = turn + pace;
    turn
}

impl Shared {
    fn call_on(&self) {
        let mut open = None;
        while !self.is_done.load(Ordering::SeqCst) {
            let turn = turn(&mut lock(&self.due), self.pace, Instant::now());
            thread::sleep(turn.saturating_duration_since(Instant::now()));
            let sent = Instant::now();
            let result = self.call(&mut open);
            let (code, message) = match result {
                Ok(answer) => (Some(answer.code), message(answer.code, &answer.body)),
                Err(error) => (None, error.to_string()),
            };
            let mut answers = lock(&self.answers);
            answers.made += 1;
            answers.left.push(Answer { code, message, sent, answered: Instant::now() });
        }
    }

    /// Calls on the open connection, or on a new one to the first API server that accepts it.
    fn call(&self, open: &mut Option<(Connection, Vec<u8>)>) -> io::Result<connection::Answer> {
        let (mut connection, request) = match open.take() {
            Some(open) => open,
            None => self.connect()?,
        };
        let answer = connection.call(&request)?;
        *open = (!connection.is_over()).then_some((connection, request));
        Ok(answer)
    }

    fn connect(&self) -> io::Result<(Connection, Vec<u8>)> {
        let (client, servers) = self.api.parts();
        let question =
            Question { method: "POST", path: &self.path, content_type: "application/json", body: self.body.as_bytes() };
        let connect = |server: &SocketAddr| Ok((client.open(*server)?, client.request(*server, &question)));
        let mut last = Err(io::Error::other("there is no API server"));
        for server in servers {
            last = connect(server);
            if last.is_ok() {
                break;
            }
        }
        last
    }
}

/// The API server's message. It is not read if the call succeeded.
fn message(code: u16, body: &[u8]) -> String {
    let read = || serde_json::from_slice::<Value>(body).unwrap_or_default()["message"].as_str().map(str::to_owned);
    if code < 300 { String::new() } else { read().unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_turns_at_a_steady_pace_and_nobody_catches_up() {
        let (start, pace) = (Instant::now(), Duration::from_millis(5));
        let mut due = start;
        assert_eq!(turn(&mut due, pace, start), start);
        assert_eq!(turn(&mut due, pace, start), start + pace);
        assert_eq!(turn(&mut due, pace, start + pace * 10), start + pace * 10);
        assert_eq!(turn(&mut due, pace, start + pace * 10), start + pace * 11);
    }

    #[test]
    fn a_faster_pace_takes_more_callers() {
        assert_eq!([1, 30, 100, 200, 5000].map(callers), [8, 8, 10, 20, 24]);
    }

    #[test]
    fn only_what_failed_has_a_message() {
        assert_eq!(message(403, br#"{"message": "no"}"#), "no");
        assert_eq!(message(502, b"<html>"), "");
        assert_eq!(message(201, br#"{"message": "no"}"#), "");
    }
}
