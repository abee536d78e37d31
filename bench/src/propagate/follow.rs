//! When each replica began to answer with a generation, from the state of its evaluator.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use portcullis_contract::EvaluatorState;
use portcullis_e2e::Pod;
use portcullis_util::lock;

/// The timeout of a request, longer than a long poll.
const SILENCE: Duration = Duration::from_secs(40);

type Seen = HashMap<(String, i64), Instant>;

/// Follows the evaluators of some pods, until it is dropped.
pub(super) struct Follower {
    replicas: Vec<Arc<Mutex<Seen>>>,
    is_over: Arc<AtomicBool>,
}

impl Follower {
    pub(super) fn of(pods: &[Arc<Pod>]) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let follow = |pod: &Arc<Pod>| {
            let [_, a, b, c] = pod.address().octets();
            let address = SocketAddr::from(([127, a, b, c], 9081));
            let (seen, is_over) = (Arc::<Mutex<Seen>>::default(), Arc::clone(&is_over));
            let told = Arc::clone(&seen);
            // The thread ends with the program at the latest, even in the middle of a poll.
            thread::spawn(move || {
                let mut version = 0;
                while !is_over.load(Ordering::Relaxed) {
                    match poll(address, version) {
                        Some(state) => version = note(&state, &told),
                        None => thread::sleep(Duration::from_millis(50)),
                    }
                }
            });
            seen
        };
        Self { replicas: pods.iter().map(follow).collect(), is_over }
    }

    /// When the last replica began to answer with this generation of a policy; `None` if one does not yet.
    pub(super) fn everywhere(&self, id: &str, generation: i64) -> Option<Instant> {
        let key = (id.to_owned(), generation);
        let times = self.replicas.iter().map(|seen| lock(seen).get(&key).copied());
        times.collect::<Option<Vec<_>>>()?.into_iter().max()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn note(state: &EvaluatorState, seen: &Mutex<Seen>) -> u64 {
    let (now, mut seen) = (Instant::now(), lock(seen));
    for (id, current) in &state.current {
        seen.entry((id.to_string(), current.generation)).or_insert(now);
    }
    state.version
}

fn poll(address: SocketAddr, since: u64) -> Option<EvaluatorState> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5)).ok()?;
    stream.set_read_timeout(Some(SILENCE)).ok()?;
    let request = format!("GET /v1/state?since={since} HTTP/1.1\r\nhost: pod\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
}
