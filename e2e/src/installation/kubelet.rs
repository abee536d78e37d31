//! Does what a kubelet does for one pod: mounts its Secret, probes and restarts its containers, reports whether it is ready,
//! and ends it when its object is deleted.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::http;
use super::pod::{Container, Pod, secret_files};
use crate::lock;

/// The interval at which the pod's object is read, to see whether the pod must end.
const PACE: Duration = Duration::from_millis(100);
/// The interval at which an unchanged state is written again, in case it was edited.
const REPEAT: Duration = Duration::from_secs(20);
/// How many consecutive probes must fail before a container counts as not ready.
const FAILURES: u32 = 3;
/// The longest pause before a container is started again; the first is a fifth of a second.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

impl Pod {
    /// Starts a kubelet for the pod.
    pub(super) fn look_after(self: &Arc<Self>) {
        let pod = Arc::clone(self);
        *lock(&self.thread) = Some(thread::spawn(move || run(&pod)));
    }
}

/// Runs the pod until it is let go or its object is deleted. Failures of the API server or a container do not end it.
fn run(pod: &Pod) {
    let mut containers: Vec<Watched> = pod.containers.iter().map(Watched::new).collect();
    let mut told: Option<(bool, Instant)> = None;
    let mut asked: Option<Instant> = None;
    while !pod.is_alone.load(Ordering::SeqCst) {
        if asked.is_none_or(|at| at.elapsed() >= pod.intervals.ask) {
            asked = Some(Instant::now());
            mount(pod);
            match object(pod) {
                Object::There => {}
                Object::Deleted => return end(pod),
                Object::Gone => {
                    pod.is_ready.store(false, Ordering::SeqCst);
                    pod.kill_all();
                    break;
                }
            }
        }
        let mut is_ready = true;
        for container in &mut containers {
            is_ready &= container.look();
        }
        if told.is_none_or(|(was, at)| was != is_ready || at.elapsed() >= REPEAT) && pod.set_ready(is_ready).is_ok() {
            pod.is_ready.store(is_ready, Ordering::SeqCst);
            told = Some((is_ready, Instant::now()));
        }
        thread::sleep(if is_ready { pod.intervals.pace } else { pod.intervals.start });
    }
    pod.has_ended.store(true, Ordering::SeqCst);
}

/// Ends a terminating pod: it drains, its programs end, and then its object is removed.
fn end(pod: &Pod) {
    pod.is_ready.store(false, Ordering::SeqCst);
    // The object is terminating already, so endpoints do not count it, whatever is written here.
    let _ = pod.set_ready(false);
    pod.terminate();
    while !pod.is_alone.load(Ordering::SeqCst) && !matches!(object(pod), Object::Gone) {
        // When no API server answers, it is asked again.
        let _ = pod.api.delete(&pod.path(), Some(0));
        thread::sleep(PACE);
    }
    pod.has_ended.store(true, Ordering::SeqCst);
}

enum Object {
    There,
    /// It has a deletion timestamp.
    Deleted,
    /// It does not exist, or is another one with the same name.
    Gone,
}

fn object(pod: &Pod) -> Object {
    match pod.api.read(&pod.path()) {
        Ok(reply) if reply.code == 404 => Object::Gone,
        Ok(reply) if reply.is_ok() && reply.body["metadata"]["uid"] != pod.uid.as_str() => Object::Gone,
        Ok(reply) if reply.is_ok() && !reply.body["metadata"]["deletionTimestamp"].is_null() => Object::Deleted,
        // If no API server answers, nothing changes here.
        _ => Object::There,
    }
}

/// Mounts the Secrets. If a Secret does not exist, the mounted files stay.
fn mount(pod: &Pod) {
    for (name, mount) in &pod.mounts {
        let path = format!("/api/v1/namespaces/{}/secrets/{name}", pod.namespace);
        if let Some(secret) = pod.api.get(&path)
            && let Err(error) = lock(mount).put(secret_files(&secret))
        {
            eprintln!("pod {}: failed to mount the secret {name}: {error}", pod.name);
        }
    }
}

/// A container and its state.
struct Watched<'p> {
    container: &'p Container,
    is_ready: bool,
    failures: u32,
    pause: Duration,
    ended: Option<Instant>,
    started: Instant,
}

impl<'p> Watched<'p> {
    fn new(container: &'p Container) -> Self {
        let pause = Duration::from_millis(200);
        Self { container, is_ready: false, failures: 0, pause, ended: None, started: Instant::now() }
    }

    /// Restarts it if that is due, and returns whether it is ready.
    fn look(&mut self) -> bool {
        let process = &self.container.process;
        if !process.is_alive() {
            self.is_ready = false;
            let container = self.container;
            let ended = *self.ended.get_or_insert_with(|| {
                container.note_end();
                Instant::now()
            });
            if self.started.elapsed() > Duration::from_secs(30) {
                self.pause = Duration::from_millis(200);
            }
            if ended.elapsed() >= self.pause && !self.container.stays_down.load(Ordering::SeqCst) {
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
                self.ended = None;
                self.started = Instant::now();
                process.start_again();
                self.container.restarts.fetch_add(1, Ordering::SeqCst);
            }
            return false;
        }
        match http::get(self.container.probes, "/readyz", http::PROBE_LIMIT) {
            Ok((200, _)) => {
                self.is_ready = true;
                self.failures = 0;
            }
            _ => {
                self.failures += 1;
                self.is_ready &= self.failures < FAILURES;
            }
        }
        self.is_ready
    }
}
