//! Section 9: connections that are slow, idle, many, or on another port.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use portcullis_contract::Reason;
use portcullis_tests::{
    FLOODED, LIMIT, Program, Raw, Review, Secret, client_hello, eventually, heavy, one_round_in_time, request,
};
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
    /// How long a head may take.
    const HEAD: Duration = Duration::from_secs(10);
    /// How much later the last of so many connections may be seen to be closed.
    const SLACK: Duration = Duration::from_secs(5);
    let _alone = heavy();
    let server = Server::with(|setup| setup.canary_within(FLOODED, "a thousand handshakes come at once"));
    let before = server.pod.evaluator().usage();
    let head = request("POST", PATH, &[("X-Long", &"a".repeat(4096))], "");
    let trickle = |connections: Vec<Raw>| {
        // Each with the time of its first byte.
        let mut open: Vec<_> = connections.into_iter().map(|connection| (connection, None)).collect();
        let (start, mut times) = (Instant::now(), Vec::new());
        for byte in &head {
            // Each connection is watched for a millisecond, so each gets a byte about every quarter of a second.
            open.retain_mut(|(connection, first)| {
                let first = *first.get_or_insert_with(Instant::now);
                let is_open =
                    connection.send([*byte]).is_ok() && connection.closed_within(Duration::from_millis(1)).is_none();
                if !is_open {
                    times.push(first.elapsed());
                }
                is_open
            });
            if open.is_empty() || start.elapsed() > LIMIT {
                break;
            }
        }
        assert!(open.is_empty(), "{} connections were left open", open.len());
        times
    };
    let times = at_once(4, || {
        let connections = (0..250).map(|_| server.connect()).collect();
        server.pod.within(HEAD + SLACK, "heads that never end", || trickle(connections))
    });
    // A server that is short of CPU may count the end of the handshake as part of the head.
    let earliest = times.into_iter().min().expect("there are connections");
    assert!(earliest >= HEAD - Duration::from_secs(1), "a connection was closed after only {earliest:?}");
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

/// How long any body may take.
const BODY: Duration = Duration::from_secs(10);
/// How long a body may take before its rate is judged.
const GRACE: Duration = Duration::from_secs(3);
/// How much later a connection may be closed: the server looks at bodies four times a second, and reads what a refused client still sends
/// for a second.
const SLACK: Duration = Duration::from_secs(3);

#[test]
fn fault_h02_bodies_that_never_end() {
    let server = Server::start();
    let whole = request("POST", PATH, &[], Review::pod().bytes());
    let head = whole.len() - Review::pod().bytes().len();
    let refused = |mut connection: Raw| {
        let start = Instant::now();
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
        let judged = start.elapsed();
        assert!(judged >= GRACE, "a slow body was refused after only {judged:?}");
        assert!(connection.closed_within(LIMIT).is_some(), "the connection stays open");
        // A byte that arrives after the server has closed the connection resets it, and the answer is lost.
        response.ok().flatten().map(|response| assert_refused(&response, 408)).into_iter().collect::<Vec<_>>()
    };
    let refused_in_time = || {
        let connection = server.connect();
        server.pod.within(GRACE + SLACK, "a body that comes byte by byte", || refused(connection))
    };
    // On a busy machine that may happen to all senders.
    eventually("a sender to hear why", || (!at_once(8, refused_in_time).is_empty()).then_some(()));
    one_round_in_time(|_| fast_enough_but_endless(&server));
    assert_eq!(server.asked(), 0);
    server.finish();
}

/// Sends a large body at twice the least rate. The result is an error if the connection was not closed when the time for a body was over:
/// a sender that the machine stops for some seconds is too slow.
fn fast_enough_but_endless(server: &Server) -> Result<(), String> {
    const LARGE: usize = 6 << 20;
    const RATE: u128 = 32 << 10;
    let mut connection = server.connect();
    let send_until_closed = || {
        let (start, mut sent) = (Instant::now(), 0);
        connection.send(request("POST", PATH, &[("Content-Length", &LARGE.to_string())], "")).expect("sends");
        while connection.closed_within(Duration::from_millis(100)).is_none() {
            let due = usize::try_from(RATE * start.elapsed().as_millis() / 1000).expect("it is small");
            // It fails if the connection was closed in this moment.
            let _ = connection.send(vec![b' '; due - sent]);
            sent = due;
            assert!(start.elapsed() < LIMIT, "the connection stays open");
        }
        start.elapsed()
    };
    let (took, in_time) = server.pod.timed(BODY + SLACK, send_until_closed);
    if took < BODY { Err(format!("a body that was fast enough was refused after {took:?}")) } else { in_time }
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

/// This is a fifth of the row's number of connections, with a smaller limit. Those that have asked are the oldest, so that nothing but what
/// they did speaks for them.
#[test]
fn fault_h11_idle_connections() {
    const ASKED: usize = 700;
    const SILENT: usize = 280;
    const NEW: usize = 200;
    const MORE: usize = 300;
    const CAP: usize = 1000;
    /// A connection that has asked nothing may be about to do so for two seconds.
    const SILENCE: Duration = Duration::from_secs(3);
    let _alone = heavy();
    let server = Server::with(|setup| {
        setup.evaluator("--max-connections", CAP).canary_within(FLOODED, "hundreds of handshakes come at once")
    });
    let before = server.pod.evaluator().usage();
    let closed = || server.pod.metric("portcullis_connections_closed_total") as usize;
    let review = request("POST", PATH, &[], Review::pod().bytes());
    let stray = request("GET", "/", &[("Content-Type", "")], "");
    let answered = |connection: &mut Raw, ask: &[u8], status: u16| {
        connection.send(ask).expect("sends");
        assert_eq!(connection.response().expect("answers").status, status);
    };
    let connected = |ask: &[u8], status: u16| {
        let mut connection = server.connect();
        answered(&mut connection, ask, status);
        connection
    };
    let mut asked: Vec<_> = (0..ASKED).map(|_| connected(&review, 200)).collect();
    // A request for what does not exist is no review, so every other one of these counts as having asked nothing, too.
    let silent = |number: usize| if number.is_multiple_of(2) { server.connect() } else { connected(&stray, 404) };
    let mut silent: Vec<_> = (0..SILENT).map(silent).collect();
    // They must have been silent for that long; nothing is waited for here.
    thread::sleep(SILENCE);
    assert_eq!(closed(), 0, "there is room for these");

    let mut new: Vec<_> = (0..NEW).map(|_| connected(&review, 200)).collect();
    let open = eventually("the cap to hold", || {
        Some(server.pod.metric("portcullis_connections") as usize).filter(|open| *open <= CAP)
    });
    assert!(closed() >= ASKED + SILENT + NEW - CAP, "{open} connections are open, {} were closed", closed());
    let during = server.pod.evaluator().usage();
    assert!(during.descriptors < before.descriptors + (ASKED + SILENT + NEW) as u64, "{before} became {during}");

    // None is closed that has asked, however old it is.
    let is_closed = |connection: &mut Raw, limit: Duration| connection.closed_within(limit).is_some();
    let now = Duration::from_millis(1);
    for (what, connections) in [("an old", &mut asked), ("a new", &mut new)] {
        let gone = connections.iter_mut().filter_map(|connection| is_closed(connection, now).then_some(())).count();
        assert_eq!(gone, 0, "{what} connection that has asked was closed before a silent one");
    }
    // The oldest silent connections are closed first: all of them up to a certain one, and none after it. The canary's connection and a few
    // others make it uncertain which one that is.
    let border = ASKED + SILENT + NEW - open;
    let mut old = silent[..border - 16].iter_mut();
    assert!(old.all(|connection| is_closed(connection, LIMIT)), "an old connection is still open");
    let mut young = silent[border + 16..].iter_mut();
    assert!(!young.any(|connection| is_closed(connection, now)), "a young connection was closed before an old one");
    answered(silent.last_mut().expect("there are some"), &stray, 404);
    answered(asked.first_mut().expect("there are some"), &review, 200);

    // Once all silent connections are closed, those go that have asked: the oldest of them, but for the one that has just asked again.
    let mut more: Vec<_> = (0..MORE).map(|_| connected(&review, 200)).collect();
    eventually("the cap to hold", || (server.pod.metric("portcullis_connections") as usize <= CAP).then_some(()));
    assert!(silent.iter_mut().all(|connection| is_closed(connection, LIMIT)), "a silent connection is still open");
    let border = 1 + ASKED + NEW + MORE - CAP;
    let mut old = asked[1..border - 16].iter_mut();
    assert!(old.all(|connection| is_closed(connection, LIMIT)), "an old connection is still open");
    let gone = |kept: &mut [Raw]| kept.iter_mut().filter_map(|connection| connection.closed_within(now)).count();
    let gone = [gone(&mut asked[..1]), gone(&mut asked[border + 16..]), gone(&mut new), gone(&mut more)];
    assert_eq!(gone, [0; 4], "a young connection was closed before an old one");

    drop((asked, silent, new, more));
    eventually("descriptors as before", || {
        (server.pod.evaluator().usage().descriptors <= before.descriptors + 4).then_some(())
    });
    server.finish();
}

/// As many as the row has, with the default limit. Each asks once for what does not exist. There is no TLS, as a debug build cannot do
/// thousands of handshakes within seconds.
#[test]
fn fault_h11_five_thousand_idle_connections() {
    const IDLE: usize = 5000;
    /// The default of `--max-connections`.
    const CAP: usize = 4096;
    let _alone = heavy();
    let server =
        Server::with(|setup| setup.plain_http().canary_within(FLOODED, "five thousand connections come at once"));
    let before = server.pod.evaluator().usage();
    let stray = request("GET", "/", &[("Content-Type", "")], "");
    let idle: Vec<_> = (0..IDLE)
        .map(|_| {
            let mut connection = Raw::tcp(server.pod.admission()).expect("connects");
            // It may be closed already.
            let _ = connection.send(&stray);
            connection
        })
        .collect();
    let metric = |name: &str| server.pod.metric(name) as usize;
    eventually("all to have come", || {
        let (open, closed) = (metric("portcullis_connections"), metric("portcullis_connections_closed_total"));
        (open <= CAP && open + closed >= IDLE).then_some(())
    });
    let (during, answers) = (server.pod.evaluator().usage(), server.pod.canary().answers());
    assert!(during.descriptors < before.descriptors + CAP as u64 + 16, "{before} became {during}");
    eventually("the canary to be asked meanwhile", || (server.pod.canary().answers() > answers + 20).then_some(()));
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

/// The arithmetic of each handshake takes a tenth of a second of its thread here, which shows how many are under way at once: half as many
/// as there are threads, so that the others go on serving.
#[test]
fn fault_h12_half_of_the_threads_are_left_for_others_while_handshakes_wait() {
    const HANDSHAKE: Duration = Duration::from_millis(100);
    const THREADS: usize = 4;
    const AT_ONCE: usize = THREADS / 2;
    const HANDSHAKES: usize = 60;
    let delay = format!("evaluator.handshake=delay({}ms)", HANDSHAKE.as_millis());
    let server = Server::with(|setup| setup.evaluator("--cores", THREADS).fail_points(Program::Evaluator, &delay));
    let address = server.pod.admission();
    let (start, canary) = (Instant::now(), server.pod.canary().answers());
    let waiting = at_once(HANDSHAKES, || {
        let waiting = greeted(address).expect("its hello is answered");
        vec![(start.elapsed(), waiting)]
    });
    let mut answered: Vec<_> = waiting.iter().map(|(answered, _)| *answered).collect();
    answered.sort();
    for (turn, at) in (1..).zip(answered.iter().step_by(AT_ONCE)) {
        assert!(*at >= turn * HANDSHAKE, "more than {AT_ONCE} handshakes at once: {answered:?}");
    }
    assert!(server.pod.canary().answers() > canary + 20, "the canary was answered meanwhile");
    // Clients that do not go on after that hold up no others.
    assert!(!server.pod.new_client().ask(DENIES, &Review::pod()).verdict().allowed);
    drop(waiting);
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
            let _ = connection.send(noise);
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
