//! Section 8: the evaluator ends and comes back, or starts before there is anything to serve.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use portcullis_contract::Reason;
use portcullis_tests::{
    CANARY, Cgroup, Client, Folder, Handshake, LIMIT, Pod, Policy, Program, Raw, Review, StopOnDrop, eventually, heavy,
    never, note, one_round_in_time, request,
};
use rustix::process::Signal;
use serde_json::json;

use crate::resolving::NameServer;

const DENIES: &str = "cluster/denies";
const PATH: &str = "/validate/cluster/denies";

/// Writes a hundred policies with ten modules.
fn a_hundred(folder: &Folder) {
    for number in 0..100 {
        let module = number % 10;
        let policy = Policy::cluster(&format!("module-{module}")).denying(&format!("module {module}"));
        folder.put(&policy.renamed(&format!("policy-{number}")));
    }
}

fn assert_hundred_answer(pod: &Pod) {
    for number in 0..100 {
        let verdict = pod.ask(&format!("cluster/policy-{number}"), &Review::pod()).verdict();
        assert_eq!(verdict.message, format!("module {}", number % 10));
    }
}

/// Ends the evaluator by `end` under load, without a network and without a loader. Asserts that all of its policies are back from the
/// volume as soon as it is.
fn assert_back_from_the_volume(policies: impl Fn(&Folder), end: impl Fn(&Pod)) {
    let _alone = heavy();
    let folder = Folder::with_canary();
    a_hundred(&folder);
    policies(&folder);
    let pod = Pod::on(&folder).start();
    let all = pod.volume().manifest().policies.len();
    eventually("all policies", || (pod.evaluator_state()?.current.len() == all).then_some(()));
    pod.loader().kill();

    let (done, down) = (AtomicBool::new(false), AtomicBool::new(false));
    let load = || {
        while !done.load(Ordering::SeqCst) {
            // The evaluator may be back by the time the answer is checked.
            let was_down = down.load(Ordering::SeqCst);
            let answer = pod.client().try_ask("cluster/policy-7", &Review::pod());
            let is_down = was_down || down.load(Ordering::SeqCst);
            match answer {
                // It is back, but not ready yet, and says so.
                Ok(answer) if is_down && answer.body.contains(Reason::AwaitingManifest.as_str()) => {}
                Ok(answer) => assert_eq!(answer.verdict().message, "module 7"),
                // Requests to this replica fail only while it is down.
                Err(error) => assert!(is_down, "a request failed: {error}"),
            }
        }
    };
    thread::scope(|scope| {
        let callers = [(); 4].map(|()| scope.spawn(load));
        let stop = StopOnDrop(&done);
        let round = |_| {
            pod.canary().pause();
            down.store(true, Ordering::SeqCst);
            end(&pod);
            pod.evaluator().start_again();
            let back =
                pod.recovers("all policies to be back", || (pod.evaluator_state()?.current.len() == all).then_some(()));
            eventually("readiness", || {
                pod.probe(Program::Evaluator, "/readyz").ok().filter(|answer| answer.status == 200)
            });
            assert_hundred_answer(&pod);
            let before = pod.canary().answers();
            pod.resume_canary();
            eventually("the canary", || (pod.canary().answers() > before + 10).then_some(()));
            down.store(false, Ordering::SeqCst);
            let before = pod.canary().answers();
            eventually("calls of which none fails", || (pod.canary().answers() > before + 10).then_some(()));
            back
        };
        (0..2).for_each(|_| one_round_in_time(round));
        drop(stop);
        for caller in callers {
            caller.join().expect("every answer is right");
        }
    });
    pod.loader().start_again();
    pod.wait_ready();
}

#[test]
fn fault_e01_killed_for_memory() {
    /// The memory that the evaluator gets beyond what it uses.
    const MORE: u64 = 2 << 20;
    if Cgroup::of_memory(MORE).is_none() {
        return;
    }
    assert_back_from_the_volume(
        // This policy, too, has to load again beside the hundred others.
        |folder| folder.put(&Policy::cluster("grows").guest("memory_growth").timeout(20)),
        |pod| {
            let cgroup = Cgroup::of_memory(MORE).expect("there was one before");
            cgroup.take(pod.evaluator().pid());
            // This touches more memory than the limit allows.
            let grow = thread::spawn({
                let client = pod.new_client();
                move || client.ask_at_once(4, "cluster/grows", &Review::pod())
            });
            let status = pod.evaluator().wait_for_end(LIMIT);
            assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{status}");
            assert!(cgroup.killed() > 0, "it was killed, but not for memory");
            grow.join().expect("the callers end");
        },
    );
}

#[test]
fn fault_e02_killed_under_load() {
    assert_back_from_the_volume(|_| (), |pod| pod.evaluator().kill());
}

/// Long enough for all checks before the port closes.
const DRAIN_DELAY: Duration = Duration::from_secs(40);

#[test]
fn fault_e03_sigterm_under_load() {
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("denies").guest("always_deny"));
    folder.put(&Policy::cluster("sleeps").guest("clock_sleep").timeout(8));
    let delay = format!("{}s", DRAIN_DELAY.as_secs());
    let pod = Pod::on(&folder).evaluator("--drain-delay", delay).start();
    one_round_in_time(|_| assert_ends_under_load(&pod));
}

/// Ends the evaluator by SIGTERM under load, and starts it again. The result is an error if it was ready for too long after the signal.
fn assert_ends_under_load(pod: &Pod) -> Result<(), String> {
    /// How long new connections are made. A busy machine gets the rest of the delay for the last one.
    const ASKED_FOR: Duration = Duration::from_secs(30);
    /// How soon it is not ready any more.
    const AT_ONCE: Duration = Duration::from_secs(2);
    /// The own limit of an evaluation that runs when the signal comes.
    const OWN_LIMIT: Duration = Duration::from_secs(8);
    pod.wait_current(DENIES, 1);
    pod.wait_current("cluster/sleeps", 1);
    let ask = || request("POST", PATH, &[], Review::pod().bytes());
    let mut kept = Raw::tls(pod.admission()).expect("connects");
    kept.send(ask()).expect("sends");
    assert!(!kept.response().expect("answers").closes());

    let (done, draining, told) = (AtomicBool::new(false), AtomicBool::new(false), AtomicUsize::new(0));
    let caller = || {
        let client = pod.new_client();
        while !done.load(Ordering::SeqCst) {
            let is_draining = draining.load(Ordering::SeqCst);
            let answer = client.try_ask(DENIES, &Review::pod());
            let answer = answer.unwrap_or_else(|error| panic!("a call failed: {error}"));
            assert!(!answer.verdict().allowed);
            if is_draining {
                assert_eq!(answer.headers.get("connection").map(String::as_str), Some("close"), "{answer:?}");
                told.fetch_add(1, Ordering::SeqCst);
            }
        }
    };
    let (since, at_once) = thread::scope(|scope| {
        let callers = [(); 3].map(|()| scope.spawn(caller));
        let stop = StopOnDrop(&done);
        let running = scope.spawn(|| {
            let review = Review::pod();
            let answer = pod.new_client().ask("cluster/sleeps", &review);
            answer.assert_not_judged(&review, "cluster/sleeps", Reason::EvaluationTimedOut);
            answer.elapsed
        });
        let begun = "portcullis_policy_wait_seconds_count{policy=\"cluster/sleeps\"}";
        eventually("the evaluation to begin", || (pod.metric(begun) > 0.5).then_some(()));
        // The load is the test's own.
        let since = pod.moment_with_test();
        pod.evaluator().signal(Signal::TERM);
        let ready = eventually("the pod not to be ready", || {
            pod.probe(Program::Evaluator, "/readyz").ok().filter(|answer| answer.status == 503)
        });
        let now = pod.moment_with_test();
        let (took, allowed) = (since.until(&now), since.allowed(AT_ONCE, &now));
        let what = format!("not ready after {took:?}, of {allowed:?} allowed here and now");
        note(&what);
        let at_once = if took <= allowed { Ok(()) } else { Err(what) };
        assert!(ready.body.contains("draining"), "{ready:?}");
        draining.store(true, Ordering::SeqCst);
        // Existing connections and new ones.
        for connection in [&mut kept, &mut Raw::tls(pod.admission()).expect("connects")] {
            connection.send(ask()).expect("sends");
            let response = connection.response().expect("answers");
            assert!(response.status == 200 && response.closes(), "{response:?}");
            assert!(connection.closed_within(LIMIT).is_some());
        }
        eventually("calls that are answered meanwhile", || (told.load(Ordering::SeqCst) > 20).then_some(()));
        eventually("liveness, as draining is no failure", || {
            pod.probe(Program::Evaluator, "/livez").ok().filter(|answer| answer.status == 200)
        });
        drop(stop);
        for caller in callers {
            caller.join().expect("no call fails");
        }
        let took = running.join().expect("it is answered");
        assert!(took >= OWN_LIMIT, "it was cut short after {took:?}");
        while since.age() < ASKED_FOR {
            assert!(!pod.new_client().ask(DENIES, &Review::pod()).verdict().allowed);
            thread::sleep(Duration::from_millis(200));
        }
        pod.canary().pause();
        (since, at_once)
    });
    // Idle connections do not delay the end.
    let _idle = Raw::tls(pod.admission());
    assert_eq!(pod.evaluator().wait_for_end(LIMIT).code(), Some(0));
    assert!(since.age() >= DRAIN_DELAY, "it ended {:?} after the signal", since.age());
    pod.evaluator().start_again();
    pod.wait_ready();
    pod.resume_canary();
    at_once
}

#[test]
fn fault_e03_a_connection_that_opens_as_the_port_closes_is_answered() {
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("denies").guest("always_deny"));
    let pod = Pod::on(&folder).evaluator("--drain-delay", "1s").evaluator("--grace", "20s").start();
    pod.wait_current(DENIES, 1);
    pod.canary().pause();
    pod.evaluator().signal(Signal::TERM);
    let handshake = Handshake::begin(pod.admission()).expect("connects, as new connections are still accepted");
    eventually("the port to close", || Raw::tcp(pod.admission()).err());
    let mut connection = handshake.complete().expect("a handshake that has begun is completed");
    connection.send(request("POST", PATH, &[], Review::pod().bytes())).expect("sends");
    let response = connection.response().expect("answers");
    assert!(response.status == 200 && response.closes(), "{response:?}");
    assert_eq!(pod.evaluator().wait_for_end(LIMIT).code(), Some(0));
    pod.evaluator().start_again();
    pod.wait_ready();
    pod.resume_canary();
}

/// A policy that asks its host in each evaluation, and denies with the answer.
fn asks() -> Policy {
    let policy = Policy::cluster("asks").example("host-capabilities").timeout(20);
    let policy = policy.spec("hostCapabilities", json!(["net/v1/*"]));
    policy.settings(json!({"calls": [{"lookupHost": "web.example"}]}))
}

#[test]
fn fault_e03_policies_that_ask_their_host_are_answered_as_long_as_they_are_called() {
    /// How long the evaluator accepts calls after the signal.
    const DELAY: Duration = Duration::from_secs(5);
    /// What the policy hears by its host.
    const RIGHT: &str = r#"{"ips":["192.0.2.7"]}"#;
    let names = NameServer::new([192, 0, 2, 7]);
    names.answer_one_of(1);
    let folder = Folder::with_canary();
    folder.put(&asks());
    let (id, review) = (asks().id(), Review::pod());
    let setup = Pod::on(&folder).evaluator("--drain-delay", format!("{}s", DELAY.as_secs()));
    // Much longer than any wait of this test: the end of the loader comes from what the evaluator does.
    let pod = setup.loader("--name-server", names.address).loader("--drain-limit", "1h").start();
    pod.wait_current(&id, 1);
    pod.wait_broker();
    assert_eq!(pod.ask(&id, &review).verdict().message, RIGHT);

    // A loader that is restarted alone waits for nothing.
    pod.loader().signal(Signal::TERM);
    assert_eq!(pod.loader().wait_for_end(LIMIT).code(), Some(0));
    pod.loader().start_again();
    eventually("the next loader to answer", || (pod.ask(&id, &review).verdict().message == RIGHT).then_some(()));

    pod.canary().pause();
    let since = Instant::now();
    // As a kubelet does, which asks all containers of a pod to end. The loader is the first here.
    pod.loader().signal(Signal::TERM);
    pod.evaluator().signal(Signal::TERM);
    let mut answers = 0;
    while let Ok(answer) = pod.new_client().try_ask(&id, &review) {
        assert_eq!(answer.verdict().message, RIGHT, "answer {answers}, {:?} after the signal", since.elapsed());
        answers += 1;
        if answers == 1 {
            // A kubelet that is itself restarted meanwhile repeats its signal.
            pod.loader().signal(Signal::TERM);
        }
    }
    assert!(since.elapsed() >= DELAY, "a call failed {:?} after the signal", since.elapsed());
    assert!(answers > 1, "no call was answered after the signals");
    for program in [pod.evaluator(), pod.loader()] {
        assert_eq!(program.wait_for_end(LIMIT).code(), Some(0), "{}", program.name());
        program.start_again();
    }
    pod.wait_ready();
    pod.resume_canary();
}

#[test]
fn fault_e04_request_longer_than_the_grace() {
    let folder = Folder::with_canary();
    let policies = [Policy::cluster("loops").guest("endless_loop"), Policy::cluster("waits").guest("clock_sleep")];
    for policy in &policies {
        folder.put(&policy.clone().timeout(30));
    }
    let pod = Pod::on(&folder).evaluator("--drain-delay", "100ms").evaluator("--grace", "5s").start();
    let group = policies[0].group();
    for policy in &policies {
        pod.wait_current(&policy.id(), 1);
    }
    pod.canary().pause();
    let review = Review::pod();
    // All answers come in the last second of the grace period, in which a busy machine may not send each of them.
    one_round_in_time(|_| {
        let answered = thread::scope(|scope| {
            let ask = |policy: &Policy| (policy.id(), pod.new_client().try_ask(&policy.id(), &review));
            let asked = policies.each_ref().map(|policy| scope.spawn(move || ask(policy)));
            let of_group = scope.spawn(|| pod.client().post(&format!("/admit/{group}"), review.bytes()));
            // One instance for each policy that is asked alone, and one for each member of the group.
            eventually("all to run", || (pod.metric("portcullis_instances") >= 4.0).then_some(()));
            pod.evaluator().signal(Signal::TERM);
            let asked = asked.map(|asked| asked.join().expect("the caller ends"));
            let of_group = of_group.join().expect("the caller ends");
            for (id, answer) in asked {
                answer?.assert_not_judged(&review, &id, Reason::EvaluationTimedOut);
            }
            let verdict = of_group?.verdict();
            assert!(!verdict.allowed, "{verdict:?}");
            for policy in &policies {
                let told = format!("{}: {}", policy.id(), Reason::EvaluationTimedOut);
                assert!(verdict.message.contains(&told), "no {told:?} in {verdict:?}");
            }
            Ok::<_, String>(())
        });
        assert_eq!(pod.evaluator().wait_for_end(LIMIT).code(), Some(0));
        pod.evaluator().start_again();
        pod.wait_ready();
        pod.wait_admission();
        for policy in &policies {
            pod.wait_current(&policy.id(), 1);
        }
        answered
    });
    pod.resume_canary();
}

/// More connections than there are descriptors, each with bytes to read.
fn flood(pod: &Pod) -> Vec<Raw> {
    let mut many: Vec<_> = (0..200).map(|_| Raw::tcp(pod.admission()).expect("the kernel accepts")).collect();
    for connection in &mut many {
        let _ = connection.send([0x16]);
    }
    many
}

/// Waits for answers of the canary, which has a connection.
fn wait_for_canary(pod: &Pod) {
    let answers = pod.canary().answers();
    eventually("the canary, on the connection it has", || (pod.canary().answers() > answers + 20).then_some(()));
}

/// Asserts that swaps work, which need descriptors as well, and that the evaluator has as many as before.
fn assert_swaps_with(pod: &Pod, folder: &Folder, before: u64) {
    folder.put(&Policy::cluster("denies").denying("generation two"));
    pod.assert_recovered(DENIES, 2);
    eventually("descriptors as before", || (pod.evaluator().usage().descriptors <= before + 4).then_some(()));
}

#[test]
fn fault_e09_descriptors_run_out() {
    /// How many descriptors the evaluator may have beside those that it uses: far fewer than its connections may be.
    const MORE: u64 = 24;
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("denies").guest("always_deny"));
    let pod = Pod::on(&folder).start();
    pod.wait_current(DENIES, 1);
    // A client that has had an answer keeps its connection. The server cannot tell the connection of a new client from the many others.
    eventually("the canary", || (pod.canary().answers() > 0).then_some(()));
    let before = pod.evaluator().usage().descriptors;
    pod.evaluator().limit_descriptors(before + MORE);
    let times = |message: &str| pod.evaluator().logs().iter().filter(|line| line["message"] == message).count();
    let failures = || times("failed to accept a connection; trying again until it works");
    let ends = || times("connections are accepted again");
    for _ in 0..2 {
        let (failed, ended) = (failures(), ends());
        let many = flood(&pod);
        eventually("an accept that fails", || (failures() > failed).then_some(()));
        wait_for_canary(&pod);
        drop(many);
        let answer = eventually("new connections", || pod.new_client().try_ask(DENIES, &Review::pod()).ok());
        assert!(!answer.verdict().allowed);
        eventually("the line that says so, some seconds after the last failure", || {
            pod.new_client().try_ask(DENIES, &Review::pod()).ok().filter(|_| ends() > ended)
        });
    }
    assert_swaps_with(&pod, &folder, before);
}

/// The program then has fewer connections from the start, and closes some for others.
#[test]
fn fault_e09_few_descriptors_from_the_start() {
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("denies").guest("always_deny"));
    let pod = Pod::on(&folder).through(Program::Evaluator, &["prlimit", "--nofile=64"]).start();
    pod.wait_current(DENIES, 1);
    eventually("the canary", || (pod.canary().answers() > 0).then_some(()));
    let before = pod.evaluator().usage().descriptors;
    for _ in 0..2 {
        let many = flood(&pod);
        wait_for_canary(&pod);
        drop(many);
        let answer = eventually("new connections", || pod.new_client().try_ask(DENIES, &Review::pod()).ok());
        assert!(!answer.verdict().allowed);
    }
    assert_swaps_with(&pod, &folder, before);
}

#[test]
fn fault_e10_starts_before_the_loader() {
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("denies").guest("always_deny"));
    let pod = Pod::on(&folder).without(Program::Loader).evaluator("--start-gate", "500ms").begin();
    let canary = format!("cluster/{CANARY}");
    let assert_waits = || {
        let ready = pod.probe(Program::Evaluator, "/readyz").expect("answers");
        assert_eq!(ready.status, 503, "{ready:?}");
        let health = pod.health(DENIES);
        assert!(health.code == 503 && health.retry_after.is_some(), "{health:?}");
        assert!(health.body.contains(Reason::AwaitingManifest.as_str()), "{health:?}");
    };
    eventually("the certificate", || Client::tls(pod.admission()).get("/").ok());
    assert_waits();
    for path in [PATH, "/admit/0123456789abcdef", "/validate/cluster/unknown"] {
        let answer = pod.client().post(path, Review::pod().bytes()).expect("answers");
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(answer.body.contains(Reason::AwaitingManifest.as_str()), "{answer:?}");
        assert!(answer.headers.contains_key("retry-after"), "{answer:?}");
        assert_eq!(answer.json()["kind"], serde_json::Value::Null, "no AdmissionReview");
    }
    // It stays unready for as long as there is no manifest, even after the time of the start gate.
    never(Duration::from_secs(2), "readiness without a manifest", || {
        pod.probe(Program::Evaluator, "/readyz").ok().filter(|answer| answer.status == 200)
    });
    assert_waits();

    // The loader of another pod on the same volume provides everything that the evaluator needs.
    let other = Pod::on(&folder).without(Program::Evaluator).without(Program::Reporter).begin();
    pod.wait_current(DENIES, 1);
    pod.wait_current(&canary, 1);
    pod.wait_ready();
    assert!(!pod.ask(DENIES, &Review::pod()).verdict().allowed);
    other.assert_alive();
}
