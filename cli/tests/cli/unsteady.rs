//! API servers that end requests in the middle, restart, or are away.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cluster::NOWHERE;
use crate::portcullis;

/// Answers each request by `answer`: its method and path to a status and a body. Returns a folder with its kubeconfig, named `config`.
fn api_server(answer: impl Fn(&str, &str) -> (u16, Value) + Send + Sync + 'static) -> TempDir {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let address = listener.local_addr().expect("an address");
    let folder = tempfile::tempdir().expect("a folder");
    let config = NOWHERE.replace("https://127.0.0.1:1", &format!("http://{address}"));
    fs::write(folder.path().join("config"), config).expect("writes");
    let answer = Arc::new(answer);
    // It ends with the process.
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            thread::spawn(move || serve(connection, &*answer));
        }
    });
    folder
}

/// Answers one request. A client that goes away is no failure.
fn serve(connection: TcpStream, answer: &dyn Fn(&str, &str) -> (u16, Value)) -> Option<()> {
    let mut reader = BufReader::new(connection);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).ok()?;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let header = header.trim().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    std::io::copy(&mut reader.by_ref().take(length), &mut std::io::sink()).ok()?;
    let mut words = first.split(' ');
    let (status, body) = answer(words.next()?, words.next()?);
    let body = body.to_string();
    let head = "content-type: application/json\r\nconnection: close";
    let text = format!("HTTP/1.1 {status} -\r\n{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    reader.get_mut().write_all(text.as_bytes()).ok()
}

fn refusal(code: u16) -> (u16, Value) {
    (code, json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "not now"}))
}

/// The Policy `labels`; with `rollbackTo`, as the API server and the programs have it after that.
fn policy(generation: i64, rollback_to: Option<i64>) -> Value {
    json!({
        "apiVersion": "policies.portcullis.dev/v1alpha1", "kind": "Policy",
        "metadata": {"name": "labels", "namespace": "team-a", "uid": "u", "generation": generation},
        "spec": {"module": "file:///a.wasm", "rollbackTo": rollback_to},
        "status": {
            "history": [{"generation": 4, "served": true}, {"generation": 3, "served": true}],
            "conditions": [{"type": "Ready", "status": "True", "reason": "Active", "message": "", "observedGeneration": generation}],
        },
    })
}

/// A second try of the same change would be refused, because the policy has another generation by then.
#[test]
fn a_rollback_whose_answer_is_lost_is_found_in_the_policy() {
    let (changes, reads) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(0)));
    let (patched, read) = (Arc::clone(&changes), Arc::clone(&reads));
    let folder = api_server(move |method, path| {
        if !path.contains("/policies/labels") {
            return refusal(403);
        }
        let is_changed = patched.load(Ordering::SeqCst) > 0;
        match method {
            "PATCH" => {
                patched.fetch_add(1, Ordering::SeqCst);
                // Stored, but the answer does not arrive in time.
                if is_changed { refusal(422) } else { refusal(504) }
            }
            _ if is_changed => {
                let mut count = read.lock().expect("not poisoned");
                *count += 1;
                // The API server restarts while the command waits for the policy.
                if *count == 2 { refusal(500) } else { (200, policy(5, Some(3))) }
            }
            _ => (200, policy(4, None)),
        }
    });
    let printed =
        portcullis(folder.path(), &["rollback", "policy/labels", "--to", "3", "-o", "json", "--kubeconfig", "config"]);
    assert_eq!(printed.code, Some(0), "{}", printed.err);
    let told: Value = serde_json::from_str(&printed.out).expect("JSON");
    assert_eq!((&told["generation"], &told["result"]), (&json!(5), &json!("Ready")), "{told}");
    assert_eq!(changes.load(Ordering::SeqCst), 1);
    assert!(*reads.lock().expect("not poisoned") >= 3);
}

/// The same lost answer, but the change was not stored: another one was.
#[test]
fn the_change_of_somebody_else_is_not_taken_for_the_rollback() {
    let changes = Arc::new(AtomicUsize::new(0));
    let patched = Arc::clone(&changes);
    let folder = api_server(move |method, path| match method {
        _ if !path.contains("/policies/labels") => refusal(403),
        "PATCH" => {
            patched.fetch_add(1, Ordering::SeqCst);
            refusal(504)
        }
        _ if patched.load(Ordering::SeqCst) > 0 => (200, policy(5, None)),
        _ => (200, policy(4, None)),
    });
    let printed = portcullis(folder.path(), &["rollback", "policy/labels", "--to", "3", "--kubeconfig", "config"]);
    assert_eq!(printed.code, Some(1));
    assert!(printed.err.contains("has been changed meanwhile and is at generation 5 now"), "{}", printed.err);
    assert_eq!(changes.load(Ordering::SeqCst), 1);
}

/// It has done nothing yet, so the same request may be sent again.
#[test]
fn an_api_server_that_is_busy_for_a_moment_is_asked_again() {
    let questions = Arc::new(AtomicUsize::new(0));
    let asked = Arc::clone(&questions);
    let folder = api_server(move |_, _| match asked.fetch_add(1, Ordering::SeqCst) {
        0 => refusal(429),
        _ => (200, policy(4, None)),
    });
    let printed = portcullis(folder.path(), &["get", "policy/labels", "-o", "name", "--kubeconfig", "config"]);
    assert_eq!((printed.code, questions.load(Ordering::SeqCst)), (Some(0), 2), "{}", printed.err);
}

/// Each command asks once and says what is wrong.
#[test]
fn an_api_server_that_is_away_is_told_after_one_question() {
    let questions = Arc::new(AtomicUsize::new(0));
    let asked = Arc::clone(&questions);
    let folder = api_server(move |_, _| {
        asked.fetch_add(1, Ordering::SeqCst);
        refusal(503)
    });
    for command in ["get", "rollback", "diff"] {
        questions.store(0, Ordering::SeqCst);
        let printed = portcullis(folder.path(), &[command, "policy/labels", "--kubeconfig", "config"]);
        assert_eq!(printed.code, Some(1), "{command}");
        assert!(printed.err.contains("(503): not now"), "{command}: {}", printed.err);
        assert_eq!(questions.load(Ordering::SeqCst), 1, "{command}");
    }
}
