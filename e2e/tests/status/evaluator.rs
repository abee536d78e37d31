//! An evaluator whose state port does not answer as it should.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use portcullis_e2e::{Moment, Program, Usage, eventually_within, note, one_round_in_time};
use portcullis_testkit::{Bound, lock};
use serde_json::{Value, json};

use crate::cluster;
use crate::stage::{SOON, Stage, status_and_reason};
use crate::states::Says;

/// What the state port does instead of answering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It accepts requests and never answers.
    Hangs,
    /// Its answer begins and never ends.
    Stalls,
    /// Its answer is not a state.
    Babbles,
    /// Its answer is the state of generations that do not exist.
    Lies,
    /// Its answer has a length of 1 GiB, and all of that comes.
    Floods,
}

/// The fault of a state port, and what clients did meanwhile.
#[derive(Default)]
pub(crate) struct Faults {
    now: Mutex<Option<Fault>>,
    /// How long each client waited before it gave up.
    waits: Mutex<Vec<Duration>>,
    /// The most bytes that a client took of one answer.
    taken: AtomicU64,
}

impl Faults {
    fn set(&self, fault: Option<Fault>) {
        *lock(&self.now) = fault;
        lock(&self.waits).clear();
    }

    /// Answers a request as the fault demands, with a state if it must be one. Returns whether the connection goes on; `None` without a
    /// fault, when there is no answer yet.
    pub(crate) fn answer(&self, mut stream: &TcpStream, state: impl Fn() -> Value) -> Option<bool> {
        let fault = (*lock(&self.now))?;
        let begun = Instant::now();
        let whole = |length: usize| {
            format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n")
        };
        let text = match fault {
            Fault::Hangs => String::new(),
            Fault::Stalls => whole(1 << 20) + "{\"version\": 1,",
            Fault::Babbles => whole(17) + "{\"version\": \"17\"}",
            Fault::Lies => {
                let mut state = state();
                for current in state["current"].as_object_mut().into_iter().flat_map(serde_json::Map::values_mut) {
                    current["generation"] = json!(99);
                }
                let state = state.to_string();
                whole(state.len()) + &state
            }
            Fault::Floods => whole(1 << 30),
        };
        let is_sent = stream.write_all(text.as_bytes()).is_ok();
        match fault {
            Fault::Hangs | Fault::Stalls => {
                // The client sends nothing more, so the read ends when it closes the connection.
                let _ = stream.read(&mut [0]);
                let mut waits = lock(&self.waits);
                if *lock(&self.now) == Some(fault) {
                    waits.push(begun.elapsed());
                }
                Some(false)
            }
            Fault::Floods => {
                let (mut taken, piece) = (0, [b' '; 1 << 16]);
                while taken < 1 << 30 && stream.write_all(&piece).is_ok() {
                    taken += piece.len() as u64;
                }
                self.taken.fetch_max(taken, Ordering::SeqCst);
                Some(false)
            }
            Fault::Babbles | Fault::Lies => {
                // A client that has seen a change asks again at once.
                thread::sleep(Duration::from_millis(100));
                Some(is_sent)
            }
        }
    }
}

/// How many clients must give up, and the time before which, and at most after which, they do so.
struct Patience {
    clients: usize,
    least: Duration,
    limit: Duration,
}

/// How long clients wait for an answer of this kind: for its beginning three seconds, for its end twenty. The port sees a request a moment
/// after the client has begun to wait.
fn patience(fault: Fault) -> Option<Patience> {
    let of = |clients, least, limit| Patience {
        clients,
        least: Duration::from_millis(least),
        limit: Duration::from_secs(limit),
    };
    match fault {
        Fault::Hangs => Some(of(3, 2500, 4)),
        Fault::Stalls => Some(of(1, 17_500, 22)),
        Fault::Babbles | Fault::Lies | Fault::Floods => None,
    }
}

/// Waits until enough clients have given up, and checks when they did: all but one of them, and one at least, neither too soon nor too late.
/// On a busy machine one of them may seem to wait for a shorter or a longer time.
fn check_waits(stage: &Stage, faults: &Faults, since: &Moment, patience: &Patience) -> Result<(), String> {
    let waits = eventually_within(SOON, "clients that give up", || {
        let waits = lock(&faults.waits).clone();
        (waits.len() >= patience.clients).then_some(waits)
    });
    let allowed = since.allowed(patience.limit, &stage.installation.moment());
    note(&format!("clients waited for {waits:.1?} of {:?} to {allowed:.1?}", patience.least));
    let right = waits.iter().filter(|wait| (patience.least..=allowed).contains(*wait)).count();
    if right >= 1 && right + 1 >= waits.len() {
        return Ok(());
    }
    Err(format!("clients waited for {waits:?} instead of {:?} to {allowed:?}", patience.least))
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r28_an_evaluator_that_does_not_answer_in_time_or_lies_makes_its_replica_unknown() {
    let (stage, replicas) = Stage::with(cluster(), "evaluator", 1);
    let [replica] = replicas.as_slice() else { unreachable!("one replica") };
    let faults = &replica.states.faults;
    let (policy, object) = stage.policy("labels");
    replica.says(&object, Says::Current);
    stage.word(&policy, "Active");
    for fault in [Fault::Hangs, Fault::Stalls, Fault::Babbles, Fault::Lies, Fault::Floods] {
        one_round_in_time(|_| {
            let since = stage.installation.moment();
            faults.set(Some(fault));
            let found = stage.word(&policy, "Degraded");
            let usual = Duration::from_secs(12);
            let bound = match fault {
                Fault::Hangs | Fault::Babbles | Fault::Lies => Bound { limit: usual, reason: "the usual time" },
                Fault::Stalls | Fault::Floods => {
                    Bound { limit: Duration::from_secs(20) + usual, reason: "an answer may take twenty seconds" }
                }
            };
            let is_seen = bound.check(&format!("{fault:?}"), &since, &stage.installation.moment());
            assert_eq!(status_and_reason(&found, "Ready"), "False/Degraded", "{fault:?}");
            assert_eq!(status_and_reason(&found, "Degraded"), "True/EvaluatorUnreachable", "{fault:?}");
            assert_eq!(found["status"]["replicaCounts"]["unknown"], 1, "{fault:?}");
            let entry = &found["status"]["replicas"][0];
            assert_eq!(
                (&entry["state"], &entry["reason"]),
                (&json!("Unknown"), &json!("EvaluatorUnreachable")),
                "{fault:?}"
            );
            let have_waited = patience(fault).map_or(Ok(()), |patience| check_waits(&stage, faults, &since, &patience));
            if fault == Fault::Floods {
                eventually_within(SOON, "the end of a flood", || {
                    (faults.taken.load(Ordering::SeqCst) > 0).then_some(())
                });
            }
            faults.set(None);
            // A lie had the version of the state, so the truth needs another one to be read.
            replica.says(&object, Says::Current);
            stage.word(&policy, "Active");
            is_seen.and(have_waited)
        });
    }
    let taken = faults.taken.load(Ordering::SeqCst);
    assert!(taken < 128 << 20, "{} MiB of an answer were taken", taken >> 20);
    let usage = Usage::of(replica.pod.program(Program::Reporter).pid().expect("it runs"));
    assert!(usage.peak < 256 << 20, "{usage}");
    assert_eq!(replica.pod.restarts(Program::Reporter), 0);
}
