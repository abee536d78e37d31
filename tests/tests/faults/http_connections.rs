//! Section 9: connections that are slow, idle, many, or on another port.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use portcullis_contract::Reason;
use portcullis_tests::{FLOODED, LIMIT, Program, Raw, Review, Secret, client_hello, eventually, heavy, request};
use serde_json::json;

use crate::http::{DENIES, Server, assert_refused};

const PATH: &str = "/validate/cluster/denies";

/// Runs `work` in this many threads at the same time, and returns all results.
fn at_once<T: Send>(callers: usize, work: impl Fn() -> Vec<T> + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..callers).map(|_| scope.spawn(&work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("the caller ends well")).collect()
    })
}

#[test]
fn fault_h01_heads_that_never_end() {
    let _alone = heavy();
    let server = Server::with(|setup| setup.canary_within(FLOODED, "a thousand handshakes come at once"));
    let before = server.pod.evaluator().usage();
    let head = request("POST", PATH, &[("X-Long", &"a".repeat(4096))], "");
    let left_open = at_once(4, || {
        let mut open: Vec<_> = (0..250).map(|_| server.connect()).collect();
        let start = Instant::now();
        for byte in &head {
            // Each connection is watched for a millisecond, so each gets a byte about every quarter of a second.
            open.retain_mut(|connection| {
                connection.send([*byte]).is_ok() && connection.closed_within(Duration::from_millis(1)).is_none()
            });
            if open.is_empty() || start.elapsed() > LIMIT {
                break;
            }
        }
        open
    });
    assert_eq!(left_open.len(), 0, "connections were left open");
    assert_eq!(server.asked(), 0);
    // I5: connections and threads are gone.
    eventually("descriptors and threads as before", || {
        let after = server.pod.evaluator().usage();
        (after.descriptors <= before.descriptors + 4 && after.threads <= before.threads + 2).then_some(())
    });
    // A client that is slow, but within the limit, is answered.
    let mut connection = server.connect();
    let whole = request("POST", PATH, &[("Connection", "close")], Review::pod().bytes());
    connection.send_slowly(&whole[..60], Duration::from_millis(5)).expect("sends");
    connection.send(&whole[60..]).expect("sends");
    assert_eq!(connection.response().expect("answers").status, 200);
    server.finish();
}

#[test]
fn fault_h02_bodies_that_never_end() {
    let server = Server::start();
    let whole = request("POST", PATH, &[], Review::pod().bytes());
    let head = whole.len() - Review::pod().bytes().len();
    let refused = || {
        let mut connection = server.connect();
        connection.send(&whole[..head]).expect("sends");
        let mut response = Ok(None);
        for byte in &whole[head..] {
            if connection.send([*byte]).is_err() {
                break;
            }
            response = connection.response_within(Duration::from_millis(200));
            if !matches!(response, Ok(None)) {
                break;
            }
        }
        assert!(connection.closed_within(LIMIT).is_some(), "the connection stays open");
        // A byte that arrives after the server has closed the connection resets it, and the answer is lost.
        response.ok().flatten().map(|response| assert_refused(&response, 408)).into_iter().collect::<Vec<_>>()
    };
    // On a busy machine that may happen to all senders.
    eventually("a sender to hear why", || (!at_once(8, refused).is_empty()).then_some(()));
    assert_eq!(server.asked(), 0);
    server.finish();
}

#[test]
fn fault_h03_body_above_the_limit() {
    const LIMIT_BYTES: usize = 7 << 20;
    let server = Server::start();
    // The announced length is enough to refuse it.
    for length in [(LIMIT_BYTES + 1).to_string(), i64::MAX.to_string()] {
        let mut connection = server.connect();
        connection.send(request("POST", PATH, &[("Content-Length", &length)], "")).expect("sends");
        let response = connection.response().expect("answers");
        assert_refused(&response, 413);
        assert!(response.closes(), "{response:?}");
        assert!(connection.closed_within(LIMIT).is_some());
    }
    assert_eq!(server.asked(), 0);

    let padded = |size: usize| {
        let mut body = Review::pod().bytes();
        body.resize(size, b' ');
        body
    };
    let client = server.pod.client();
    // Slow bodies are refused, and a busy machine may be slow to send this one.
    eventually("an answer to the longest body", || {
        client.post(PATH, padded(LIMIT_BYTES)).ok().filter(|answer| answer.status == 200)
    });
    if let Ok(answer) = client.post(PATH, padded(LIMIT_BYTES + 1)) {
        assert_eq!(answer.status, 413, "{answer:?}");
    }

    // A valid update: the old and the new object have 3 MiB each, and the field that decides comes after both.
    let data = || json!({"data": "x".repeat(3 << 20)});
    let review = |privileged: bool| {
        let container = json!({"name": "web", "securityContext": {"privileged": privileged}});
        Review::pod()
            .with("/operation", "UPDATE")
            .with("/oldObject", json!({"metadata": {"annotations": data()}}))
            .with("/object/metadata/annotations", data())
            .with("/object/spec/containers", json!([container]))
    };
    assert!(review(true).bytes().len() > 6 << 20);
    // A busy machine may be slow to send this too, and the policy may time out.
    let judged = |privileged: bool| {
        eventually("a verdict on a large object", || {
            let answer = client.try_ask("cluster/no-privileged", &review(privileged)).ok()?;
            let verdict = Some(answer).filter(|answer| answer.status == 200)?.verdict();
            Some(verdict).filter(|verdict| !verdict.message.contains(Reason::EvaluationTimedOut.as_str()))
        })
    };
    assert!(judged(false).allowed);
    let verdict = judged(true);
    assert!(!verdict.allowed && verdict.message.contains("web"), "{verdict:?}");
    server.finish();
}

/// This is a fifth of the row's number of connections, with a smaller limit. Each has sent a request before, so that it is only idle.
#[test]
fn fault_h11_idle_connections() {
    const IDLE: usize = 1000;
    const CAP: usize = 800;
    let _alone = heavy();
    let server = Server::with(|setup| {
        setup.evaluator("--max-connections", CAP).canary_within(FLOODED, "hundreds of handshakes come at once")
    });
    let before = server.pod.evaluator().usage();
    let ask = request("GET", "/", &[("Content-Type", "")], "");
    let mut idle: Vec<_> = (0..IDLE)
        .map(|_| {
            let mut connection = server.connect();
            connection.send(&ask).expect("sends");
            assert_eq!(connection.response().expect("answers").status, 404);
            connection
        })
        .collect();
    let open = eventually("the cap to hold", || {
        Some(server.pod.metric("portcullis_connections") as usize).filter(|open| *open <= CAP)
    });
    let closed = server.pod.metric("portcullis_connections_closed_total") as usize;
    assert!(closed >= IDLE - CAP, "{open} connections are open, {closed} were closed");
    assert!(server.pod.evaluator().usage().descriptors < before.descriptors + IDLE as u64);

    // The oldest are closed first: all connections before the border are closed, and none after it. The canary's connection and a few
    // others may shift the border.
    let is_closed = |connection: &mut Raw, limit: Duration| connection.closed_within(limit).is_some();
    let border = IDLE - open;
    let mut old = idle[..border - 16].iter_mut();
    assert!(old.all(|connection| is_closed(connection, LIMIT)), "an old connection is still open");
    let mut young = idle[border + 16..].iter_mut();
    let closed = young.any(|connection| is_closed(connection, Duration::from_millis(1)));
    assert!(!closed, "a young connection was closed before an old one");
    let last = idle.last_mut().expect("there are some");
    last.send(&ask).expect("sends");
    assert_eq!(last.response().expect("answers").status, 404);

    drop(idle);
    eventually("descriptors as before", || {
        (server.pod.evaluator().usage().descriptors <= before.descriptors + 4).then_some(())
    });
    server.finish();
}

/// There are 800 handshakes, as fast as this machine can make them: a debug build cannot do the row's 2,000 a second.
#[test]
fn fault_h12_floods_of_handshakes() {
    const HANDSHAKES: usize = 800;
    let _alone = heavy();
    let server = Server::with(|setup| setup.canary_within(FLOODED, "handshakes come without a pause"));
    let address = server.pod.admission();
    let before = server.pod.evaluator().usage();
    let canary = server.pod.canary().answers();
    at_once(8, || {
        for number in 0..HANDSHAKES / 8 {
            match number % 4 {
                // Completed, and then not used.
                0 | 1 => drop(Raw::tls(address)),
                // Abandoned in the middle.
                2 => drop(greeted(address)),
                // Not begun.
                _ => drop(Raw::tcp(address)),
            }
        }
        Vec::<()>::new()
    });
    assert!(server.pod.canary().answers() > canary, "the canary was asked meanwhile");

    // Many clients that send a ClientHello and then wait do not hold up others. On a busy machine the first of them may be disconnected
    // before the last has connected, so it may take several attempts.
    eventually("an answer while all of them wait", || {
        let waiting: Vec<_> = (0..200).map(|_| greeted(address).expect("connects")).collect();
        assert!(!server.pod.new_client().ask(DENIES, &Review::pod()).verdict().allowed);
        let closed = |mut connection: Raw| connection.closed_within(Duration::from_millis(1)).is_some();
        (!waiting.into_iter().any(closed)).then_some(())
    });

    eventually("descriptors and threads as before", || {
        let after = server.pod.evaluator().usage();
        (after.descriptors <= before.descriptors + 4 && after.threads <= before.threads + 2).then_some(())
    });
    server.finish();
}

/// A connection that has sent a ClientHello and received the server's answer to it.
fn greeted(address: SocketAddr) -> std::io::Result<Raw> {
    let mut connection = Raw::tcp(address)?;
    connection.send(client_hello(address)?)?;
    connection.bytes()?;
    Ok(connection)
}

#[test]
fn fault_h22_probe_ports_are_scanned() {
    let _alone = heavy();
    let server = Server::start();
    let (settings, object) = (Secret::planted_in("settings"), Secret::planted_in("object"));
    let policy = portcullis_tests::Policy::cluster("secretive").guest("echo_settings");
    server.folder.put(&policy.settings(json!({"password": settings.text()})));
    server.pod.wait_current("cluster/secretive", 1);
    server.pod.ask("cluster/secretive", &Review::pod().label("password", object.text()));

    let before = server.pod.evaluator().usage();
    let ports = [server.pod.probe_address(Program::Evaluator), server.pod.state_address(Program::Evaluator)];
    for port in ports {
        // Paths that a scanner asks for. Answers may contain only names and reasons.
        for path in [
            "/",
            "/healthz/policies?verbose",
            "/healthz/policies/cluster/secretive",
            "/metrics",
            "/v1/state",
            "/readyz?verbose",
            "/livez?verbose",
            "/debug/pprof/heap",
            "/healthz/policies/../../etc/passwd",
            "/healthz/policies/cluster/unknown",
            "/validate/cluster/denies",
            "/.env",
        ] {
            for method in ["GET", "POST", "BREW"] {
                // If the machine stands still, the program seems dead for a moment.
                eventually(&format!("an answer to {method} {path} that is no failure"), || {
                    let mut connection = Raw::tcp(port).expect("connects");
                    connection
                        .send(request(method, path, &[("Connection", "close"), ("Content-Type", "")], ""))
                        .expect("sends");
                    let response = connection.response().expect("answers");
                    for secret in [&settings, &object] {
                        secret.assert_not_in(path, &response.body);
                    }
                    (response.status < 500).then_some(())
                });
            }
        }
        for noise in
            [&b"\0\0\0\0"[..], b"\x16\x03\x01\x02\x00\x01\x00", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[b'a'; 100_000]]
        {
            let mut connection = Raw::tcp(port).expect("connects");
            let _ = connection.send(noise).and_then(|()| connection.end_sending());
            assert!(connection.closed_within(LIMIT).is_some());
        }
    }

    // Many silent connections: these ports have a limit of their own, and the admission port is not affected.
    let canary = server.pod.canary().answers();
    let idle: Vec<_> = (0..500).map(|number| Raw::tcp(ports[number % 2]).expect("connects")).collect();
    eventually("the canary to be asked meanwhile", || (server.pod.canary().answers() > canary + 20).then_some(()));
    let during = server.pod.evaluator().usage();
    assert!(during.descriptors < before.descriptors + 250, "{before} became {during}");
    // A waiting connection is closed after some seconds, so that a kubelet gets through.
    eventually("a probe to get through", || {
        server.pod.probe(Program::Evaluator, "/livez").ok().filter(|answer| answer.status == 200)
    });
    drop(idle);
    eventually("descriptors and threads as before", || {
        let after = server.pod.evaluator().usage();
        (after.descriptors <= before.descriptors + 4 && after.threads <= before.threads + 2).then_some(())
    });
    settings.assert_nowhere(&server.pod);
    object.assert_nowhere(&server.pod);
    server.finish();
}
