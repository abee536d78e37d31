//! Connections to pods like those of an API server that has just started: each is new, and trusts what webhooks trust at that moment.
//! Running API servers keep their connections, and would not notice a problem at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use portcullis_e2e::Release;

use crate::certificates::Certificates;
use crate::stage::own_cluster;
use crate::tls::connect;

/// The pause between two rounds over all pods.
const PACE: Duration = Duration::from_millis(200);

/// Connects to each pod, again and again.
pub(crate) struct Newcomers {
    is_done: Arc<AtomicBool>,
    thread: Option<JoinHandle<(usize, Vec<String>)>>,
}

impl Newcomers {
    /// Starts to connect. In an existing cluster, pods cannot be reached, and there are no connections.
    pub(crate) fn start(release: &'static Release<'static>) -> Self {
        let is_done = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&is_done);
        let thread = own_cluster("a new connection to each pod").map(|_| thread::spawn(move || come(release, &done)));
        Self { is_done, thread }
    }

    /// Stops, and asserts that each connection was accepted by both sides.
    pub(crate) fn end(mut self) {
        self.is_done.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let (count, problems) = thread.join().unwrap();
            assert!(problems.is_empty(), "{} of {count} connections: {problems:#?}", problems.len());
            assert!(count > 20, "{count} connections prove nothing");
        }
    }
}

impl Drop for Newcomers {
    fn drop(&mut self) {
        self.is_done.store(true, Ordering::SeqCst);
    }
}

/// Connects until `is_done` is set. Returns the number of connections, and the problems.
fn come(release: &'static Release<'static>, is_done: &AtomicBool) -> (usize, Vec<String>) {
    let (certificates, mut count, mut problems) = (Certificates(release), 0, Vec::new());
    let name = format!("portcullis-policy-server.{}.svc", release.namespace());
    while !is_done.load(Ordering::SeqCst) {
        for pod in release.pods() {
            count += 1;
            let shake = || {
                certificates.bundles().iter().try_for_each(|bundle| connect(&pod, 8443, &name, bundle, None).map(drop))
            };
            // The authorities may have changed after they were read, but not twice in a row.
            if let Err(problem) = shake().or_else(|_| shake()) {
                problems.push(format!("{}: {problem}", pod["metadata"]["name"]));
            }
        }
        thread::sleep(PACE);
    }
    (count, problems)
}
