//! Section 14: strangers with thousands of connections, to the admission port and to the probe ports.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use portcullis_tests::{
    Client, Flood, LIMIT, Pod, Policy, Program, Raw, Review, StopOnDrop, Stranger, client_hello, eventually, heavy,
    request,
};

use crate::http::{DENIES, Server};

const PATH: &str = "/validate/cluster/denies";
/// Longest time for a call while strangers are at work: half of what a webhook may take. The strangers take CPU as well, of which
/// a machine that runs tests has little; how fast calls are is measured elsewhere.
const LONGEST: Duration = Duration::from_secs(5);

/// How long is asked before the strangers come.
const QUIET: Duration = Duration::from_secs(3);

/// Addresses of this machine other than the one that callers come from.
fn addresses(count: u8) -> impl Iterator<Item = IpAddr> + Clone {
    (2..2 + count).map(|last| IpAddr::from([127, 0, 0, last]))
}

/// A request whose body never comes, or comes in a trickle.
fn head(length: usize) -> Vec<u8> {
    request("POST", PATH, &[("Content-Length", &length.to_string())], "")
}

/// Times of calls as API servers make them, and when each began, until `done`; each must be answered, and right. Two callers go on with the
/// connection they have, and one makes a new one for each call.
fn calls(pod: &Pod, mut done: impl FnMut() -> bool) -> Vec<(Instant, Duration)> {
    let stop = AtomicBool::new(false);
    let caller = |keeps: bool| {
        let (mut times, mut client) = (Vec::new(), pod.new_client());
        while !stop.load(Ordering::SeqCst) {
            if !keeps {
                client = pod.new_client();
            }
            let start = Instant::now();
            let answer = client.try_ask(DENIES, &Review::pod()).unwrap_or_else(|error| {
                panic!("a call failed after {:?}, with a connection it had: {keeps}: {error}", start.elapsed())
            });
            times.push((start, start.elapsed()));
            assert!(!answer.verdict().allowed, "{answer:?}");
            thread::sleep(Duration::from_millis(20));
        }
        times
    };
    thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        let callers = [true, true, false].map(|keeps| scope.spawn(move || caller(keeps)));
        while !done() && !callers.iter().any(thread::ScopedJoinHandle::is_finished) {
            thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::SeqCst);
        callers.into_iter().flat_map(|caller| caller.join().expect("every call is answered")).collect()
    })
}

/// Sends requests for [`QUIET`] before the flood, then during it, until `is_full` and for five seconds more.
fn assert_calls_go_on(
    what: &str,
    pod: &Pod,
    strangers: impl Iterator<Item = Stranger>,
    mut is_full: impl FnMut(&Flood) -> bool,
) {
    eventually("the previous strangers to be gone", || (pod.metric("portcullis_connections") < 16.0).then_some(()));
    let (start, mut strangers) = (Instant::now(), Some(strangers));
    let (mut flood, mut full_since) = (None, None);
    let times = calls(pod, || {
        if start.elapsed() > QUIET
            && let Some(strangers) = strangers.take()
        {
            flood = Some(Flood::of(strangers));
        }
        if full_since.is_none() && flood.as_ref().is_some_and(&mut is_full) {
            full_since = Some(Instant::now());
        }
        assert!(full_since.is_some() || start.elapsed() < LIMIT * 2, "{what}: the port never was full");
        full_since.is_some_and(|since| since.elapsed() > Duration::from_secs(5))
    });
    let (mut before, mut during) = (Vec::new(), Vec::new());
    for (began, time) in times {
        if began.duration_since(start) < QUIET { &mut before } else { &mut during }.push(time);
    }
    before.sort_unstable();
    during.sort_unstable();
    let part = |times: &[Duration], percent: usize| times[times.len() * percent / 100];
    let (p99, longest) = (part(&during, 99), during[during.len() - 1]);
    let ratio = p99.as_secs_f64() / part(&before, 99).as_secs_f64();
    let visits = flood.map_or(0, |flood| flood.visits());
    eprintln!(
        "{what}: {} calls before, median {:?}, p99 {:?}; {} calls meanwhile, median {:?}, p99 {p99:?} ({ratio:.1} times), longest \
         {longest:?}; {visits} visits",
        before.len(),
        part(&before, 50),
        part(&before, 99),
        during.len(),
        part(&during, 50),
    );
    assert!(longest < LONGEST, "{what}: a call took {longest:?}");
}

/// Bodies in a trickle, with the default limits. Without TLS, because a debug build cannot do thousands of handshakes within seconds, and
/// as many connections as possible should get as far as a body.
#[test]
fn fault_z13_thousands_trickle_bodies() {
    let _alone = heavy();
    let server = Server::with(|setup| setup.plain_http());
    let pod = &server.pod;
    let before = pod.evaluator().usage();
    let admission = pod.admission();
    // Every tenth body is a large one, which holds memory too.
    let trickling = |count: usize, from: Vec<IpAddr>| {
        (0..count).map(move |number| {
            let length = if number % 10 == 0 { 7 << 20 } else { 4000 };
            Stranger::silent(admission).from(from[number % from.len()]).saying(head(length)).trickling(" ")
        })
    };
    for (count, sources) in [(4096, 4), (10_000, 8)] {
        let what = format!("{count} from {sources} addresses");
        let strangers = || trickling(count, addresses(sources).collect());
        assert_calls_go_on(&what, pod, strangers(), |flood| flood.visits() > count as u64 && flood.open() > 2048);
        let _flood = Flood::of(strangers());
        // A large body finds memory although others hold on to it. A machine that is busy with the flood may be slow to send it.
        let mut large = Review::pod().bytes();
        large.resize(6 << 20, b' ');
        let client = pod.new_client();
        let answer = || client.post(PATH, large.clone()).ok().filter(|answer| answer.status == 200);
        eventually("an answer to a large body", answer);
    }
    // All of them behind one address, which is that of the callers.
    let strangers = trickling(6000, vec![IpAddr::from([127, 0, 0, 1])]);
    assert_calls_go_on("6000 from the callers' own address", pod, strangers, |flood| {
        flood.visits() > 6000 && flood.open() > 2048
    });

    assert!(pod.metric("portcullis_bodies_too_slow_total") > 0.0);
    eventually("descriptors and threads as before", || {
        let after = pod.evaluator().usage();
        (after.descriptors <= before.descriptors + 8 && after.threads <= before.threads + 2).then_some(())
    });
    server.finish();
}

/// Over TLS, in every stage: silent, in the middle of a handshake, of a head, of a body. The limit on connections is low enough for a
/// debug build to reach it.
#[test]
fn fault_z13_every_stage_of_a_connection_is_held_up() {
    const CAP: usize = 300;
    let _alone = heavy();
    let server = Server::with(|setup| setup.evaluator("--max-connections", CAP));
    let pod = &server.pod;
    let admission = pod.admission();
    let hello = client_hello(admission).expect("a hello");
    let from: Vec<_> = addresses(8).collect();
    let strangers = (0..4096).map(|number| {
        let stranger = Stranger::silent(admission).from(from[number % from.len()]);
        match number % 32 {
            // Only a few get far, as each of these costs this machine two handshakes.
            0 => stranger.over_tls().saying(head(4000)).trickling(" "),
            1 => stranger.over_tls().saying("POST /validate/cluster/den").trickling("i"),
            2 => stranger.over_tls(),
            3..8 => stranger.saying(hello.clone()),
            8..16 => stranger.trickling(hello.clone()),
            _ => stranger,
        }
    });
    assert_calls_go_on("every stage", pod, strangers, |flood| {
        flood.visits() > 4096 && pod.metric("portcullis_connections_closed_total") > 1000.0
    });
    // A connection that makes room for another still counts until its own task has ended.
    eventually("no more connections than the limit", || {
        (pod.metric("portcullis_connections") <= CAP as f64).then_some(())
    });
    let told = pod
        .evaluator()
        .logs()
        .into_iter()
        .filter(|line| line["message"].as_str().is_some_and(|text| text.starts_with("too many connections")));
    assert_eq!(told.count(), 1, "a flood is logged once");
    server.finish();
}

/// How long strangers are at work on the probe ports: `PORTCULLIS_TEST_FLOOD_SECONDS`, 20 if it is not set.
fn flood_time() -> Duration {
    let seconds = std::env::var("PORTCULLIS_TEST_FLOOD_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(20))
}

/// Probes as a kubelet makes them: each on a connection of its own.
fn assert_probed(pod: &Pod, program: Program) {
    for path in ["/readyz", "/livez"] {
        let start = Instant::now();
        let mut connection = Raw::tcp(pod.probe_address(program)).expect("connects");
        connection.send(request("GET", path, &[("Connection", "close"), ("Content-Type", "")], "")).expect("sends");
        let answer = connection.response().unwrap_or_else(|error| panic!("{program} {path}: {error}"));
        assert_eq!(answer.status, 200, "{program} {path}: {answer:?}");
        assert!(start.elapsed() < LONGEST, "{program} {path} took {:?}", start.elapsed());
    }
}

/// Strangers at a probe or state port, who are silent, trickle, stay after an answer, or ask for much.
fn at(port: SocketAddr, count: usize) -> impl Iterator<Item = Stranger> {
    let from: Vec<_> = addresses(3).collect();
    (0..count).map(move |number| {
        let stranger = Stranger::silent(port).from(from[number % from.len()]);
        let get = |path: &str| request("GET", path, &[("Content-Type", "")], "");
        match number % 4 {
            0 => stranger,
            1 => stranger.trickling("GET /readyz HTTP/1.1\r\n"),
            2 => stranger.saying(get("/readyz")),
            _ => stranger.saying(get("/metrics").repeat(8)),
        }
    })
}

/// How often the reporter could not read the state of another program.
fn unread(pod: &Pod) -> Vec<String> {
    let is = |line: &&str| line.starts_with("portcullis_reporter_state_read_failures_total");
    pod.metrics(Program::Reporter).lines().filter(is).map(str::to_owned).collect()
}

#[test]
fn fault_z14_floods_of_probe_ports() {
    const PROGRAMS: [Program; 3] = [Program::Evaluator, Program::Loader, Program::Reporter];
    let _alone = heavy();
    let server = Server::start();
    let pod = &server.pod;
    let before = pod.evaluator().usage();
    let probes = || PROGRAMS.map(|program| pod.probe_address(program));
    let states = || [Program::Evaluator, Program::Loader].map(|program| pod.state_address(program));
    // While the programs start, the reporter asks in vain.
    let unread_before = unread(pod);
    let mut generation = 1;
    for (what, ports) in [("probe ports", probes().to_vec()), ("state ports", states().to_vec())] {
        let strangers = ports.iter().flat_map(|port| at(*port, 200)).collect::<Vec<_>>();
        let flood = Flood::of(strangers.clone());
        eventually("every stranger to have come", || (flood.visits() >= strangers.len() as u64).then_some(()));
        let start = Instant::now();
        while start.elapsed() < flood_time() {
            for program in PROGRAMS {
                assert_probed(pod, program);
            }
            // Reporting goes on: a change is served and reported.
            generation += 1;
            server.folder.put(&Policy::cluster("denies").denying(&format!("generation {generation}")));
            pod.wait_current(DENIES, generation);
            pod.wait_condition(DENIES, "Ready", "True", "Active");
        }
        assert_eq!(unread(pod), unread_before, "{what}: a state could not be read");
        eprintln!("{what}: {} visits, {generation} generations", flood.visits());
    }
    for program in PROGRAMS {
        assert!(pod.metrics(program).contains("portcullis_probe_connections_closed_total "), "{program}");
    }
    // What somebody else asks there is answered too.
    assert_eq!(Client::plain(pod.state_address(Program::Loader)).get("/v1/state").expect("answers").status, 200);
    eventually("descriptors and threads as before", || {
        let after = pod.evaluator().usage();
        (after.descriptors <= before.descriptors + 4 && after.threads <= before.threads + 2).then_some(())
    });
    server.finish();
}
