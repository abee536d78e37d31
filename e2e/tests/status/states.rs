//! Stand-ins for the loader and the evaluator of a pod: the `/v1/state` that the reporter reads.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::evaluator::Faults;

/// The state of a policy on a replica.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Says {
    /// The newest generation serves.
    Current,
    /// The newest generation serves, and too many evaluations fail for this reason.
    Failing(&'static str),
    /// The newest generation serves, and its module declares what the policy does not grant, with this message.
    Differs(&'static str),
    /// The newest generation failed in the loader: the generation that serves (0 for none), the reason, the message, and whether it is
    /// retried.
    Failed(i64, &'static str, String, bool),
}

/// A failure that may pass.
pub(crate) fn unreachable() -> Says {
    Says::Failed(0, "RegistryUnreachable", "the registry does not answer".to_owned(), true)
}

/// A failure of the policy itself.
pub(crate) fn refused(serving: i64, words: &str) -> Says {
    Says::Failed(serving, "SettingsInvalid", words.to_owned(), false)
}

struct Word {
    version: u64,
    policies: BTreeMap<String, (String, i64, Says)>,
}

/// The two state ports of a pod.
pub(crate) struct States {
    word: Arc<Mutex<Word>>,
    pub(crate) loader: SocketAddr,
    pub(crate) evaluator: SocketAddr,
    /// The fault of the evaluator's port.
    pub(crate) faults: Arc<Faults>,
}

impl States {
    /// Starts both, without policies.
    pub(crate) fn start() -> Self {
        let word = Arc::new(Mutex::new(Word { version: 1, policies: BTreeMap::new() }));
        let faults = Arc::<Faults>::default();
        let loader = serve(Arc::clone(&word), loader, Arc::default());
        let evaluator = serve(Arc::clone(&word), evaluator, Arc::clone(&faults));
        Self { word, loader, evaluator, faults }
    }

    /// Reports this about the object's newest generation.
    pub(crate) fn say(&self, object: &Value, says: Says) {
        let metadata = &object["metadata"];
        let name = metadata["name"].as_str().unwrap();
        let id = match metadata["namespace"].as_str() {
            Some(namespace) => format!("namespaced/{namespace}/{name}"),
            None => format!("cluster/{name}"),
        };
        let uid = metadata["uid"].as_str().unwrap().to_owned();
        let mut word = self.word.lock().unwrap();
        word.version += 1;
        word.policies.insert(id, (uid, metadata["generation"].as_i64().unwrap(), says));
    }
}

fn digest(generation: i64) -> String {
    format!("sha256:{generation:064x}")
}

fn loader(word: &Word) -> Value {
    let policy = |(id, (uid, generation, says)): (&String, &(String, i64, Says))| {
        let mut policy = json!({
            "id": id, "uid": uid, "generation": generation, "mode": "protect", "failurePolicy": "Fail", "suspend": false,
            "module": "https://example.invalid/m.wasm", "created": "2026-01-01T00:00:00Z",
            "phase": if matches!(says, Says::Current | Says::Failing(_) | Says::Differs(_)) { "Published" } else { "Fetching" },
        });
        if let Says::Failed(_, reason, message, retries) = says {
            policy["phase"] = json!("Failed");
            policy["failure"] = json!({
                "generation": generation, "reason": reason, "message": message, "attempts": 1,
                "since": "2026-01-01T00:00:00Z",
            });
            if *retries {
                policy["failure"]["nextRetryTime"] = json!("2099-01-01T00:00:00Z");
            }
        }
        if let Says::Differs(message) = says {
            policy["mismatches"] = json!([{ "reason": "CapabilityNotGranted", "message": message }]);
        }
        policy
    };
    json!({
        "version": word.version, "program": program("portcullis-loader"), "complete": true, "manifestNumber": word.version,
        "policies": word.policies.iter().map(policy).collect::<Vec<_>>(), "sources": [], "problems": [],
    })
}

fn evaluator(word: &Word) -> Value {
    let serving = |(_, generation, says): &(String, i64, Says)| match says {
        Says::Current | Says::Failing(_) | Says::Differs(_) => *generation,
        Says::Failed(serving, ..) => *serving,
    };
    let current: serde_json::Map<String, Value> = word
        .policies
        .iter()
        .filter(|(_, policy)| serving(policy) > 0)
        .map(|(id, policy)| {
            let generation = serving(policy);
            let current = json!({
                "uid": policy.0, "generation": generation, "digest": digest(generation), "since": "2026-01-01T00:00:00Z",
            });
            (id.clone(), current)
        })
        .collect();
    let failing = |(id, (uid, _, says)): (&String, &(String, i64, Says))| match says {
        Says::Failing(reason) => {
            Some(json!({ "id": id, "uid": uid, "since": "2026-01-01T00:00:00Z", "reason": reason }))
        }
        _ => None,
    };
    json!({
        "version": word.version, "program": program("portcullis-evaluator"), "ready": true, "manifestNumber": word.version,
        "current": current, "deviations": [], "failing": word.policies.iter().filter_map(failing).collect::<Vec<_>>(),
    })
}

fn program(name: &str) -> Value {
    json!({ "name": name, "version": "0.0.0", "engine": "wasmtime 0" })
}

fn serve(word: Arc<Mutex<Word>>, state: fn(&Word) -> Value, faults: Arc<Faults>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (word, faults) = (Arc::clone(&word), Arc::clone(&faults));
            thread::spawn(move || answer(&stream, &word, state, &faults));
        }
    });
    address
}

/// Answers requests until the other side closes the connection.
fn answer(stream: &TcpStream, word: &Mutex<Word>, state: fn(&Word) -> Value, faults: &Faults) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    loop {
        let request = lines.next()?.ok()?;
        while !lines.next()?.ok()?.is_empty() {}
        if let Some(goes_on) = faults.answer(stream, || state(&word.lock().unwrap())) {
            if goes_on {
                continue;
            }
            return None;
        }
        let since = request.split(['?', '&', ' ']).find_map(|part| part.strip_prefix("since=")?.parse::<u64>().ok());
        let mut same = true;
        for _ in 0..20 {
            same = since == Some(word.lock().unwrap().version);
            if !same {
                break;
            }
            thread::sleep(Duration::from_millis(20));
        }
        let mut stream = stream;
        if same {
            stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").ok()?;
        } else {
            let body = state(&word.lock().unwrap()).to_string();
            let head =
                format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all(format!("{head}{body}").as_bytes()).ok()?;
        }
    }
}
