//! Creates that go on while certificates or keys change.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use portcullis_e2e::{Api, Heard, IN_TIME, Installation, Listener, eventually};
use serde_json::json;

/// The number of callers, each of which creates 50 objects a second.
const CALLERS: usize = 2;
/// The largest number of wrong answers that are shown.
const TOLD: usize = 5;

/// A hundred creates of ConfigMaps a second, each of which a policy must deny.
pub(crate) struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Heard<()>>>,
}

struct Shared {
    listener: Listener,
    stop: AtomicBool,
    calls: AtomicUsize,
    wrong: Mutex<Vec<String>>,
}

impl Load {
    /// Starts the load. `text` is the message of the policy's denial.
    pub(crate) fn start(installation: &Installation<'_>, namespace: &str, text: &str) -> Self {
        let listener = installation.listener();
        let shared = Arc::new(Shared { listener, stop: false.into(), calls: 0.into(), wrong: Mutex::default() });
        let caller = |number: usize| {
            let (api, shared) = (installation.api(), Arc::clone(&shared));
            let (namespace, text) = (namespace.to_owned(), text.to_owned());
            thread::spawn(move || shared.call(&api, number, &namespace, &text))
        };
        Self { threads: (0..CALLERS).map(caller).collect(), shared }
    }

    /// Waits for this many more creates.
    pub(crate) fn go_on(&self, calls: usize) {
        let before = self.shared.calls.load(Ordering::SeqCst);
        eventually("creates", || (self.shared.calls.load(Ordering::SeqCst) >= before + calls).then_some(()));
    }

    /// Ends the load. Asserts that every create was denied, by the policy and in time.
    pub(crate) fn finish(mut self) {
        for heard in self.end() {
            heard.in_time();
        }
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

    fn end(&mut self) -> Vec<Heard<()>> {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.threads.drain(..).map(|thread| thread.join().unwrap()).collect()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn call(&self, api: &Api, caller: usize, namespace: &str, text: &str) -> Heard<()> {
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        let mut number = 0_u32;
        self.listener.hear(IN_TIME, &self.stop, || {
            number += 1;
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
        })
    }
}
