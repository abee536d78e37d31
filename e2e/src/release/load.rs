//! Calls at a steady pace while something happens.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::api::Api;

/// Callers at the same time; a call that takes long delays those of its caller only.
const CALLERS: u32 = 8;

/// What became of one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The status of HTTP; nothing when no API server answered.
    pub code: Option<u16>,
    /// What the API server said, or why nobody answered.
    pub message: String,
}

/// Calls that go on.
pub struct Load {
    is_done: Arc<AtomicBool>,
    callers: Vec<JoinHandle<Vec<Answer>>>,
}

impl Load {
    /// Posts a body to a path so many times a second, as far as the machine can.
    pub(crate) fn start(api: &Api, path: String, body: Value, per_second: u32) -> Self {
        let is_done = Arc::new(AtomicBool::new(false));
        let pace = Duration::from_secs(1) * CALLERS / per_second;
        let callers = (0..CALLERS).map(|number| {
            let (api, path, body, is_done) = (api.clone(), path.clone(), body.clone(), Arc::clone(&is_done));
            thread::spawn(move || {
                let mut answers = Vec::new();
                let mut next = Instant::now() + pace * number / CALLERS;
                while !is_done.load(Ordering::SeqCst) {
                    // Who is late does not catch up: calls would come in bursts.
                    next = (next + pace).max(Instant::now());
                    answers.push(call(&api, &path, &body));
                    thread::sleep(next.saturating_duration_since(Instant::now()));
                }
                answers
            })
        });
        Self { callers: callers.collect(), is_done }
    }

    /// Ends it, a second after now, and tells what became of each call.
    ///
    /// # Panics
    /// When a caller has.
    pub fn end(mut self) -> Vec<Answer> {
        thread::sleep(Duration::from_secs(1));
        self.is_done.store(true, Ordering::SeqCst);
        self.callers.drain(..).flat_map(|caller| caller.join().expect("calling does not panic")).collect()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.is_done.store(true, Ordering::SeqCst);
    }
}

fn call(api: &Api, path: &str, body: &Value) -> Answer {
    match api.create(path, body) {
        Ok(reply) => {
            let message = reply.body["message"].as_str().unwrap_or_default().to_owned();
            Answer { code: Some(reply.code), message }
        }
        Err(message) => Answer { code: None, message },
    }
}
