//! Creates that go on while something changes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use portcullis_e2e::{Api, Installation, eventually};
use serde_json::json;

/// The number of callers, each of which creates 25 objects a second.
const CALLERS: usize = 4;
const PACE: Duration = Duration::from_millis(40);
/// The largest number of wrong answers that are shown.
const TOLD: usize = 5;

/// A hundred creates of ConfigMaps a second, each of which a policy is to deny.
pub(crate) struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    stop: AtomicBool,
    calls: AtomicUsize,
    wrong: Mutex<Vec<String>>,
}

impl Load {
    /// Starts the load. `text` is the message of the policy's denial.
    pub(crate) fn start(installation: &Installation<'_>, namespace: &str, text: &str) -> Self {
        let shared = Arc::new(Shared { stop: false.into(), calls: 0.into(), wrong: Mutex::default() });
        let caller = |number: usize| {
            let (api, shared) = (installation.api(), Arc::clone(&shared));
            let (namespace, text) = (namespace.to_owned(), text.to_owned());
            thread::spawn(move || shared.call(&api, number, &namespace, &text))
        };
        Self { threads: (0..CALLERS).map(caller).collect(), shared }
    }

    /// Waits for so many more creates.
    pub(crate) fn go_on(&self, calls: usize) {
        let before = self.shared.calls.load(Ordering::SeqCst);
        eventually("creates", || (self.shared.calls.load(Ordering::SeqCst) >= before + calls).then_some(()));
    }

    /// Ends the load. Asserts that every create was denied, and by the policy.
    pub(crate) fn finish(mut self) {
        self.end();
        let wrong = self.shared.wrong.lock().unwrap();
        let calls = self.shared.calls.load(Ordering::SeqCst);
        eprintln!("{calls} creates were asked for");
        assert!(
            wrong.is_empty(),
            "{} of {calls} creates went wrong: {:#?}",
            wrong.len(),
            &wrong[..wrong.len().min(TOLD)]
        );
    }

    fn end(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn call(&self, api: &Api, caller: usize, namespace: &str, text: &str) {
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        for number in 0_u32.. {
            let begin = Instant::now();
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            let object = json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": format!("load-{caller}-{number}") },
            });
            let wrong = match api.create(&path, &object) {
                Ok(reply)
                    if !reply.is_ok() && reply.body["message"].as_str().is_some_and(|said| said.contains(text)) =>
                {
                    None
                }
                Ok(reply) => Some(format!("{} {}", reply.code, reply.body["message"])),
                Err(error) => Some(error),
            };
            self.wrong.lock().unwrap().extend(wrong);
            self.calls.fetch_add(1, Ordering::SeqCst);
            // Who is late does not catch up: a machine that was busy would be so even more.
            thread::sleep(PACE.saturating_sub(begin.elapsed()));
        }
    }
}
