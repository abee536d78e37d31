//! Section 14: strangers with thousands of connections, to the admission port and to the probe ports.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use portcullis_tests::{
    DENIES, FLOODED, Flood, LIMIT, Moment, Pod, Policy, Program, Raw, Review, Server, Stalls, StopOnDrop, Stranger,
    client_hello, connector, eventually, heavy, request,
};
use serde_json::Value;

const PATH: &str = "/validate/cluster/denies";
/// The longest time for a call while strangers are active.
const LONGEST: Duration = FLOODED;
/// Why the canary, too, may take more than a second.
const STRANGERS: &str = "the strangers take processor time as well, of which a machine that runs tests has little";

/// How long requests are sent before the strangers come.
const QUIET: Duration = Duration::from_secs(3);

/// The least number of calls that are answered once the port is full.
const CALLS: usize = 100;

/// How long a connection that has sent nothing is safe at a full port. A client may lose it if the machine stands still for longer, or is
/// busy with other programs.
const FRESH: Duration = Duration::from_secs(1);

/// Addresses of this machine other than the one that callers use.
fn addresses(count: u8) -> impl Iterator<Item = IpAddr> + Clone {
    (2..2 + count).map(|last| IpAddr::from([127, 0, 0, last]))
}

/// The head of a request whose body never comes, or comes in a trickle.
fn head(length: usize) -> Vec<u8> {
    request("POST", PATH, &[("Content-Length", &length.to_string())], "")
}

/// A call like that of an API server.
struct Call {
    /// A moment at least [`FRESH`] before the call, from which on the use of the machine by other programs is measured.
    before: Moment,
    began: Moment,
    ended: Moment,
    /// Why it failed in transport, if it did.
    failure: Option<String>,
}

impl Call {
    fn time(&self) -> Duration {
        self.began.until(&self.ended)
    }
}

/// Makes calls until `done`, which gets the number of answers, returns true; each answer must be right. Two callers keep their
/// connections, and one makes a new connection for each call.
fn calls(pod: &Pod, mut done: impl FnMut(usize) -> bool) -> Vec<Call> {
    let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let caller = |keeps: bool| {
        let (mut all, mut client) = (Vec::new(), pod.new_client());
        let (mut before, mut newer) = (pod.moment_with_test(), pod.moment_with_test());
        while !stop.load(Ordering::SeqCst) {
            if !keeps {
                client = pod.new_client();
            }
            let began = pod.moment_with_test();
            if newer.age() > FRESH {
                before = std::mem::replace(&mut newer, began.clone());
            }
            let answer = client.try_ask(DENIES, &Review::pod());
            let ended = pod.moment_with_test();
            let failure = match answer {
                Ok(answer) => {
                    assert!(!answer.verdict().allowed, "{answer:?}");
                    count.fetch_add(1, Ordering::SeqCst);
                    None
                }
                Err(error) => Some(format!("with a connection it had: {keeps}: {error}")),
            };
            all.push(Call { before: before.clone(), began, ended, failure });
            thread::sleep(Duration::from_millis(20));
        }
        all
    };
    thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        let callers = [true, true, false].map(|keeps| scope.spawn(move || caller(keeps)));
        while !done(count.load(Ordering::SeqCst)) && !callers.iter().any(thread::ScopedJoinHandle::is_finished) {
            thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::SeqCst);
        callers.into_iter().flat_map(|caller| caller.join().expect("every answer is right")).collect()
    })
}

/// Asserts that none of these calls failed, and that at most one in a hundred took longer than [`LONGEST`], or one if there are fewer than
/// a hundred. Time in which the machine stood still or was busy with other programs is not counted, and a call may fail in such a time,
/// because its client had no time to use the connection before it was closed.
fn assert_answered_in_time(what: &str, calls: &[Call]) {
    for call in calls {
        if let Some(failure) = &call.failure {
            let is_excused = call.before.was_disturbed(2 * FRESH, &call.ended);
            assert!(is_excused, "{what}: a call failed after {:?}, {failure}", call.time());
            eprintln!("{what}: a call failed while the machine stood still or was busy with others, {failure}");
        }
    }
    let longest = |call: &Call| call.began.allowed(LONGEST, &call.ended);
    let late: Vec<_> = calls.iter().filter(|call| call.time() > longest(call)).map(Call::time).collect();
    assert!(late.len() <= (calls.len() / 100).max(1), "{what}: of {} calls, some took {late:?}", calls.len());
}

/// Sends requests for [`QUIET`] before the flood, then during it until `is_full`, and then for at least five more seconds and [`CALLS`]
/// more answers. Asserts that all are answered in time.
fn assert_calls_go_on(
    what: &str,
    pod: &Pod,
    strangers: impl Iterator<Item = Stranger>,
    mut is_full: impl FnMut(&Flood) -> bool,
) {
    eventually("the previous strangers to be gone", || (pod.metric("portcullis_connections") < 16.0).then_some(()));
    let (start, mut strangers) = (pod.moment_with_test(), Some(strangers));
    let (mut flood, mut full) = (None, None);
    // How long after the start the flood begins.
    let mut quiet = Duration::MAX;
    let all = calls(pod, |count| {
        if start.age() > QUIET
            && count > 0
            && let Some(strangers) = strangers.take()
        {
            quiet = start.age();
            flood = Some(Flood::of(strangers));
        }
        if full.is_none() && flood.as_ref().is_some_and(&mut is_full) {
            full = Some((Instant::now(), count));
        }
        let is_late =
            |limit: Duration| start.age() > limit && start.age() > start.allowed(limit, &pod.moment_with_test());
        assert!(full.is_some() || !is_late(LIMIT * 2), "{what}: the port never was full");
        assert!(!is_late(LIMIT * 5), "{what}: hardly any call is answered");
        full.is_some_and(|(since, before)| since.elapsed() > Duration::from_secs(5) && count >= before + CALLS)
    });
    let (before, during): (Vec<_>, Vec<_>) = all.into_iter().partition(|call| start.until(&call.began) < quiet);
    let sorted = |calls: &[Call]| {
        let mut times: Vec<_> = calls.iter().map(Call::time).collect();
        times.sort_unstable();
        times
    };
    let (times_before, times) = (sorted(&before), sorted(&during));
    let part = |times: &[Duration], percent: usize| times[times.len() * percent / 100];
    let (p99, longest) = (part(&times, 99), times[times.len() - 1]);
    let ratio = p99.as_secs_f64() / part(&times_before, 99).as_secs_f64();
    let visits = flood.map_or(0, |flood| flood.visits());
    eprintln!(
        "{what}: {} calls before, median {:?}, p99 {:?}; {} calls meanwhile, median {:?}, p99 {p99:?} ({ratio:.1} times), longest \
         {longest:?}; {visits} visits",
        before.len(),
        part(&times_before, 50),
        part(&times_before, 99),
        during.len(),
        part(&times, 50),
    );
    assert_answered_in_time(&format!("{what}, before"), &before);
    assert_answered_in_time(what, &during);
}

/// Bodies come in a trickle, with the default limits. There is no TLS, because a debug build cannot do thousands of handshakes within
/// seconds, and as many connections as possible should get as far as a body.
#[test]
fn fault_z13_thousands_trickle_bodies() {
    let _alone = heavy();
    let server = Server::with(|setup| setup.plain_http().canary_within(FLOODED, STRANGERS));
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
        // A large body gets memory although others hold on to theirs. A machine that is busy with the flood may be slow to send it.
        let mut large = Review::pod().bytes();
        large.resize(6 << 20, b' ');
        let client = pod.new_client();
        let answer = || client.post(PATH, large.clone()).ok().filter(|answer| answer.status == 200);
        eventually("an answer to a large body", answer);
    }
    // All strangers come from one address, which is that of the callers.
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

/// Strangers over TLS stop in every stage: before they send anything, in the middle of a handshake, of a head, of a body. The limit on
/// connections is low enough for a debug build to reach it.
#[test]
fn fault_z13_every_stage_of_a_connection_is_held_up() {
    const CAP: usize = 300;
    let _alone = heavy();
    let server = Server::with(|setup| setup.evaluator("--max-connections", CAP).canary_within(FLOODED, STRANGERS));
    let pod = &server.pod;
    let admission = pod.admission();
    let (stalls, start) = (Stalls::watch(), Instant::now());
    let hello = client_hello(admission).expect("a hello");
    let (from, connector) = (addresses(8).collect::<Vec<_>>(), connector());
    let strangers = (0..4096).map(|number| {
        let stranger = Stranger::silent(admission).from(from[number % from.len()]);
        match number % 32 {
            // Only a few get far, as each of these costs this machine two handshakes.
            0 => stranger.over_tls(connector.clone()).saying(head(4000)).trickling(" "),
            1 => stranger.over_tls(connector.clone()).saying("POST /validate/cluster/den").trickling("i"),
            2 => stranger.over_tls(connector.clone()),
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
    // A flood is over when no connection was closed for ten seconds.
    let pauses = stalls.lost(start, Instant::now()).as_secs() / 10;
    let (told, most) = (told.count() as u64, 1 + pauses);
    assert!((1..=most).contains(&told), "a flood is logged once: {told} lines, want at most {most}");
    server.finish();
}

/// How long strangers flood the probe ports: `PORTCULLIS_TEST_FLOOD_SECONDS`, 20 if it is not set.
fn flood_time() -> Duration {
    let seconds = std::env::var("PORTCULLIS_TEST_FLOOD_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(20))
}

/// The number of failures in a row after which a kubelet acts, as in the chart.
const IN_A_ROW: usize = 3;
/// The time between two probes of a kubelet, as in the chart.
const PERIOD: Duration = Duration::from_secs(2);

/// Sends a probe like that of a kubelet, on a connection of its own. An error says what was wrong.
fn probe(pod: &Pod, program: Program, path: &str) -> Result<(), String> {
    let began = pod.moment_with_test();
    let mut connection = Raw::tcp(pod.probe_address(program)).map_err(|error| format!("no connection: {error}"))?;
    let ask = request("GET", path, &[("Connection", "close"), ("Content-Type", "")], "");
    connection.send(ask).map_err(|error| format!("not sent: {error}"))?;
    let answer = connection.response().map_err(|error| format!("no answer: {error}"))?;
    let ended = pod.moment_with_test();
    let (took, longest) = (began.until(&ended), began.allowed(LONGEST, &ended));
    if answer.status == 200 && took < longest { Ok(()) } else { Err(format!("after {took:?}: {answer:?}")) }
}

/// Asserts that a kubelet would not restart the program. Returns how many probes failed.
fn assert_probed(pod: &Pod, program: Program) -> usize {
    let mut failed = 0;
    for path in ["/readyz", "/livez"] {
        let mut in_a_row = Vec::new();
        while let Err(failure) = probe(pod, program, path) {
            in_a_row.push(failure);
            assert!(in_a_row.len() < IN_A_ROW, "{program} {path}: {in_a_row:?}");
            thread::sleep(PERIOD);
        }
        failed += in_a_row.len();
    }
    failed
}

/// Strangers at a probe or state port. They are silent, send in a trickle, stay after an answer, or ask for a lot.
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

/// Whether the status says that this generation serves.
fn is_reported(pod: &Pod, generation: i64) -> bool {
    let status = pod.status(DENIES).unwrap_or_default();
    let is_ready = |condition: &Value| {
        condition["type"] == "Ready" && condition["status"] == "True" && condition["observedGeneration"] == generation
    };
    status["status"]["conditions"].as_array().into_iter().flatten().any(is_ready)
}

/// The metrics of a program whose probe port may be full.
fn metrics(pod: &Pod, program: Program) -> String {
    eventually("the metrics", || pod.probe(program, "/metrics").ok().filter(|answer| answer.status == 200)).body
}

/// The sum of all series of a counter of a program.
fn counted(pod: &Pod, program: Program, name: &str) -> usize {
    let text = metrics(pod, program);
    let of_series = text.lines().filter(|line| line.starts_with(name));
    of_series.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() as usize
}

/// How often the reporter could not read the state of another program.
fn unread(pod: &Pod) -> usize {
    counted(pod, Program::Reporter, "portcullis_reporter_state_read_failures_total")
}

#[test]
fn fault_z14_floods_of_probe_ports() {
    const PROGRAMS: [Program; 3] = [Program::Evaluator, Program::Loader, Program::Reporter];
    let _alone = heavy();
    let server = Server::with(|setup| setup.canary_within(FLOODED, STRANGERS));
    let pod = &server.pod;
    let before = pod.evaluator().usage();
    let probes = || PROGRAMS.map(|program| pod.probe_address(program));
    let states = || [Program::Evaluator, Program::Loader].map(|program| pod.state_address(program));
    let mut generation = 1;
    for (what, ports) in [("probe ports", probes().to_vec()), ("state ports", states().to_vec())] {
        // Some reads fail while the programs start.
        let unread_before = unread(pod);
        let strangers = ports.iter().flat_map(|port| at(*port, 200)).collect::<Vec<_>>();
        let flood = Flood::of(strangers.clone());
        eventually("every stranger to have come", || (flood.visits() >= strangers.len() as u64).then_some(()));
        let start = pod.moment_with_test();
        let (mut reports, mut probed, mut failed) = (0, 0, 0);
        while start.age() < flood_time() {
            for program in PROGRAMS {
                failed += assert_probed(pod, program);
                probed += 2;
            }
            // Reporting continues: a change is served and reported.
            generation += 1;
            reports += 1;
            server.folder.put(&Policy::cluster("denies").denying(&format!("generation {generation}")));
            pod.wait_current(DENIES, generation);
            eventually("the report of it", || is_reported(pod, generation).then_some(()));
        }
        // Each report takes at least one read of a state. A few attempts may fail on a slow machine: what counts is that a kubelet would
        // not restart anything, and that failed reads are tried again.
        let end = pod.moment_with_test();
        let lost = start.allowed(start.until(&end), &end).saturating_sub(start.until(&end)) / 2;
        let lost = usize::try_from(lost.as_secs()).unwrap_or(usize::MAX);
        let failures = unread(pod) - unread_before;
        assert!(failures <= 1 + lost + reports / 10, "{what}: {failures} reads failed beside {reports} reports");
        assert!(failed <= 1 + lost + probed / 20, "{what}: {failed} of {probed} probes failed");
        eprintln!(
            "{what}: {} visits, {reports} reports, {failures} reads and {failed} of {probed} probes failed",
            flood.visits()
        );
    }
    for program in PROGRAMS {
        let closed = counted(pod, program, "portcullis_probe_connections_closed_total");
        assert!(closed > 0, "{program}: no connection was closed to make room for another");
    }
    // Other clients of the port get answers too.
    eventually("the loader's state", || pod.loader_state());
    eventually("descriptors and threads as before", || {
        let after = pod.evaluator().usage();
        (after.descriptors <= before.descriptors + 4 && after.threads <= before.threads + 2).then_some(())
    });
    server.finish();
}
