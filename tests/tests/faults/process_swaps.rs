//! Section 8: policies change while they get requests.

use std::collections::{BTreeMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use portcullis_contract::Reason;
use portcullis_tests::{
    Answer, Client, FLOODED, Folder, LIMIT, Pod, Policy, Process, Program, Review, StopOnDrop, Verdict, assert_no_leak,
    eventually, heavy, note, one_round_in_time,
};
use serde_json::json;

const CHANGES: &str = "cluster/changes";

/// Runs `change` while `callers` make one `call` after the other without a pause, each with a client of its own. Returns the number of
/// calls.
fn under_load(pod: &Pod, callers: usize, call: impl Fn(&Client) + Sync, change: impl FnOnce(&AtomicUsize)) -> usize {
    let (done, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let caller = || {
        let client = pod.new_client();
        while !done.load(Ordering::SeqCst) {
            call(&client);
            count.fetch_add(1, Ordering::SeqCst);
        }
    };
    thread::scope(|scope| {
        let callers: Vec<_> = (0..callers).map(|_| scope.spawn(caller)).collect();
        let stop = StopOnDrop(&done);
        change(&count);
        drop(stop);
        for caller in callers {
            caller.join().expect("every answer is right");
        }
    });
    count.into_inner()
}

/// Sends a review to a path, which may not fail in transport.
fn post(client: &Client, path: &str) -> Answer {
    client.post(path, Review::pod().bytes()).unwrap_or_else(|error| panic!("a call failed: {error}"))
}

fn generation(verdict: &Verdict) -> i64 {
    verdict.annotations["generation"].parse().expect("a number")
}

/// The policy of a generation: odd ones admit, even ones deny.
fn opposite(generation: i64) -> Policy {
    if generation % 2 == 1 {
        Policy::cluster("changes").guest("always_accept")
    } else {
        Policy::cluster("changes").guest("always_deny")
    }
}

#[test]
fn fault_e11_swaps_while_requests_run() {
    const SWAPS: i64 = 40;
    let _alone = heavy();
    let folder = Folder::with_canary();
    folder.put(&opposite(1));
    let pod = Pod::on(&folder).canary_within(FLOODED, "16 callers ask without a pause").start();
    pod.wait_current(CHANGES, 1);
    let seen = AtomicUsize::new(0);
    let call = |client: &Client| {
        let verdict = post(client, "/validate/cluster/changes").verdict();
        assert_eq!(verdict.allowed, generation(&verdict) % 2 == 1, "a mixture: {verdict:?}");
        assert!(verdict.allowed || verdict.message == "denied by always_deny", "{verdict:?}");
        seen.fetch_max(usize::try_from(generation(&verdict)).expect("it is not below zero"), Ordering::SeqCst);
    };
    under_load(&pod, 16, call, |count| {
        for generation in 2..2 + SWAPS {
            folder.put(&opposite(generation));
            pod.wait_current(CHANGES, generation);
        }
        let last = usize::try_from(1 + SWAPS).expect("it is small");
        eventually("an answer of the last generation", || (seen.load(Ordering::SeqCst) == last).then_some(()));
        eventually("thousands of answers", || (count.load(Ordering::SeqCst) > 2000).then_some(()));
    });
}

/// Two thousand requests run at the moment of a swap: some are evaluated, which takes 20 ms each, and the others wait for their turn.
#[test]
fn fault_e11_a_swap_under_thousands_of_requests() {
    const REQUESTS: usize = 2000;
    let _alone = heavy();
    let folder = Folder::with_canary();
    // Odd generations wait and admit, even ones deny.
    let policy = |generation: i64| match generation % 2 {
        1 => Policy::cluster("changes").guest("sleep_short").timeout(30),
        _ => opposite(generation),
    };
    folder.put(&policy(1));
    // With 16 cores, more of them are evaluated at the same time, and they need hardly any.
    let setup = Pod::on(&folder).plain_http().evaluator("--cores", 16);
    let pod = setup.canary_within(FLOODED, "two thousand requests come at once").start();
    pod.wait_current(CHANGES, 1);
    // On a busy machine all may be answered before the next generation is loaded.
    one_round_in_time(|round| {
        let first = 1 + 2 * i64::from(round);
        folder.put(&policy(first));
        pod.wait_current(CHANGES, first);
        let before = pod.metric("portcullis_connections");
        let (answers, was_in_time) = thread::scope(|scope| {
            let burst = scope.spawn(|| pod.new_client().ask_at_once(REQUESTS, CHANGES, &Review::pod()));
            eventually("a thousand of them to arrive", || {
                // The probe port may be late beside so many.
                let metrics = pod.probe(Program::Evaluator, "/metrics").ok()?.body;
                let now = metrics.lines().find_map(|line| line.strip_prefix("portcullis_connections ")?.parse().ok());
                (now.unwrap_or(0.0) >= before + (REQUESTS / 2) as f64 || burst.is_finished()).then_some(())
            });
            folder.put(&policy(first + 1));
            pod.wait_current(CHANGES, first + 1);
            let was_in_time = !burst.is_finished();
            (burst.join().expect("all are sent"), was_in_time)
        });
        let mut seen = BTreeMap::<i64, usize>::new();
        // A client on a busy machine may be disconnected before it has sent its request.
        for answer in answers.into_iter().flatten() {
            let verdict = answer.verdict();
            if verdict.message.contains(Reason::Overloaded.as_str()) {
                continue;
            }
            assert_eq!(verdict.allowed, generation(&verdict) % 2 == 1, "a mixture: {verdict:?}");
            *seen.entry(generation(&verdict)).or_default() += 1;
        }
        note(&format!("answers of each generation, of {REQUESTS}: {seen:?}"));
        assert!(seen.keys().all(|generation| (first..=first + 1).contains(generation)), "{seen:?}");
        match (was_in_time, seen.values().sum::<usize>()) {
            (true, evaluated) if evaluated > 100 => Ok(()),
            (true, evaluated) => Err(format!("only {evaluated} were evaluated")),
            (false, _) => Err(format!("all were answered before the swap: {seen:?}")),
        }
    });
}

#[test]
fn fault_e12_a_thousand_edits() {
    let _alone = heavy();
    let folder = Folder::with_canary();
    let edit = |number: u32| Policy::cluster("changes").guest("always_deny").spec("message", format!("edit {number}"));
    folder.put(&edit(0));
    let pod = Pod::on(&folder).start();
    pod.wait_current(CHANGES, 1);
    let storm = |first: u32, count: u32| {
        for number in first..first + count {
            folder.put(&edit(number));
        }
        let last = format!("edit {}", first + count - 1);
        let in_time = pod.recovers("the last edit to answer", || {
            (pod.ask(CHANGES, &Review::pod()).verdict().message == last).then_some(())
        });
        eventually("the loader to have nothing to do", || {
            let loader = pod.loader_state()?;
            (loader.manifest_number == pod.evaluator_state()?.manifest_number).then_some(())
        });
        in_time
    };
    // The first edits warm up what grows only once.
    one_round_in_time(|round| storm(1 + 100 * round, 100));
    let before = [pod.evaluator().usage(), pod.loader().usage()];
    let artifacts = pod.volume().artifacts();
    one_round_in_time(|round| storm(1001 + 1000 * round, 1000));
    for (process, before) in [pod.evaluator(), pod.loader()].into_iter().zip(&before) {
        eventually(&format!("{} to use no more than before (I5)", process.name()), || {
            process.usage().is_back_to(before).then_some(())
        });
    }
    assert_eq!(pod.volume().artifacts(), artifacts, "an edit of a text compiles nothing");
    let state = pod.evaluator_state().expect("it answers");
    pod.wait_current(CHANGES, state.current[CHANGES].generation);
}

#[test]
fn fault_e13_policy_is_deleted_while_it_is_asked() {
    const CALLERS: usize = 4;
    let folder = Folder::with_canary();
    let denies = Policy::cluster("changes").guest("always_deny").on("services");
    let loops = Policy::cluster("loops").guest("endless_loop").timeout(25).on("secrets");
    folder.put(&denies);
    folder.put(&loops);
    let pod = Pod::on(&folder).start();
    pod.wait_current(CHANGES, 1);
    pod.wait_current("cluster/loops", 1);

    // The API server calls the group, which goes on answering.
    let (gone, path) = (AtomicBool::new(false), format!("/admit/{}", denies.group()));
    let asked_later = Mutex::new(HashSet::new());
    let call = |client: &Client| {
        // What is asked after this was asked after the deletion.
        let was_gone = gone.load(Ordering::SeqCst);
        let verdict = post(client, &path).verdict();
        if was_gone {
            assert!(verdict.allowed, "a policy that is gone was asked: {verdict:?}");
            asked_later.lock().expect("no caller panics with it").insert(thread::current().id());
        } else {
            assert!(verdict.allowed || verdict.message.contains("denied by always_deny"), "{verdict:?}");
        }
    };
    under_load(&pod, CALLERS, call, |count| {
        let before = count.load(Ordering::SeqCst);
        eventually("calls before", || (count.load(Ordering::SeqCst) > before + 20).then_some(()));
        folder.remove(&denies);
        eventually("the group to allow", || pod.admit(&denies.group(), &Review::pod()).verdict().allowed.then_some(()));
        gone.store(true, Ordering::SeqCst);
        let before = count.load(Ordering::SeqCst);
        eventually("calls after", || (count.load(Ordering::SeqCst) > before + 20).then_some(()));
        let callers = || asked_later.lock().expect("no caller panics with it").len();
        eventually("calls of every caller after", || (callers() == CALLERS).then_some(()));
        assert!(pod.admit(&denies.group(), &Review::pod()).verdict().allowed);
    });
    let answer = pod.client().try_ask(CHANGES, &Review::pod()).expect("answers");
    assert_eq!(answer.status, 404, "{answer:?}");

    // The deletion does not affect a running evaluation. It is the only one while the canary pauses.
    pod.canary().pause();
    let review = Review::pod();
    thread::scope(|scope| {
        let running = scope.spawn(|| pod.new_client().ask("cluster/loops", &review));
        eventually("it to run", || (pod.metric("portcullis_instances") >= 1.0).then_some(()));
        folder.remove(&loops);
        eventually("it to be gone", || (!pod.evaluator_state()?.current.contains_key("cluster/loops")).then_some(()));
        assert!(!running.is_finished(), "it ended before the policy was gone");
        let answer = pod.client().try_ask("cluster/loops", &review).expect("answers");
        assert_eq!(answer.status, 404, "{answer:?}");
        running.join().expect("answers").assert_not_judged(&review, "cluster/loops", Reason::EvaluationTimedOut);
    });
    pod.canary().resume();
    // The metrics of the policies disappear too.
    eventually("no series of what is gone", || {
        let text = pod.metrics(portcullis_tests::Program::Evaluator);
        (!text.contains(CHANGES) && !text.contains("cluster/loops")).then_some(())
    });
}

/// Scaled down from a million evaluations and ten thousand swaps to what two cores do in a minute: a leak of a kilobyte for each
/// evaluation or each swap would still show, in each program. Memory that an allocator keeps grows in some windows, a leak in all of them.
#[test]
fn fault_e14_soak() {
    const EVALUATIONS: usize = 7_000;
    const SWAPS: i64 = 200;
    const WINDOWS: usize = 3;
    let _alone = heavy();
    let folder = Folder::with_canary();
    let edit = |number: i64| {
        Policy::cluster("changes").guest("echo_settings").spec("message", "no").settings(json!({"edit": number}))
    };
    folder.put(&edit(1));
    let pod = Pod::on(&folder).canary_within(FLOODED, "eight callers ask without a pause").start();
    pod.wait_current(CHANGES, 1);
    let call = |client: &Client| assert_eq!(post(client, "/validate/cluster/changes").verdict().message, "no");
    let mut last = 1;
    let mut work = |swaps: i64, evaluations: usize| {
        under_load(&pod, 8, call, |count| {
            for generation in last + 1..=last + swaps {
                folder.put(&edit(generation));
                pod.wait_current(CHANGES, generation);
            }
            portcullis_tests::eventually_within(portcullis_tests::LIMIT * 10, "evaluations", || {
                (count.load(Ordering::SeqCst) >= evaluations).then_some(())
            });
        });
        last += swaps;
        pod.memory_at_rest()
    };
    let mut sizes = vec![work(SWAPS / 2, EVALUATIONS / 2)];
    let before: Vec<_> = pod.processes().map(Process::usage).collect();
    for _ in 0..WINDOWS {
        sizes.push(work(SWAPS, EVALUATIONS));
    }
    for (number, process) in pod.processes().enumerate() {
        let of_one: Vec<_> = sizes.iter().map(|sizes| sizes[number]).collect();
        assert_no_leak(process.name(), &of_one, SWAPS.unsigned_abs(), "swaps", 1 << 10);
    }
    for (process, before) in pod.processes().zip(&before) {
        let mut after = process.usage();
        eventually(&format!("{} to use no more than before, {before}, but {after}", process.name()), || {
            after = process.usage();
            after.is_back_to(before).then_some(())
        });
    }
}

/// The evaluator alone does more swaps in the same time, so a leak of half a kilobyte with each would show.
#[test]
fn fault_e14_a_thousand_swaps_leave_nothing_behind() {
    const WARM_UP: i64 = 500;
    const WINDOW: i64 = 1000;
    const WINDOWS: usize = 3;
    let folder = Folder::with_canary();
    folder.put(&opposite(1));
    let pod = Pod::on(&folder).start();
    pod.wait_current(CHANGES, 1);
    let odd = pod.volume().candidate(CHANGES);
    folder.put(&opposite(2));
    pod.wait_current(CHANGES, 2);
    let even = pod.volume().candidate(CHANGES);
    // The test writes manifests itself, because it is faster than a loader.
    pod.loader().kill();
    pod.reporter().kill();
    let mut last = 2;
    let mut swap = |swaps: i64| {
        for generation in last + 1..=last + swaps {
            let mut candidate = if generation % 2 == 1 { odd.clone() } else { even.clone() };
            candidate.generation = generation;
            pod.volume().edit(|manifest| {
                let changes = manifest.policies.iter_mut().find(|policy| policy.id.as_str() == CHANGES);
                let changes = changes.expect("it is there");
                changes.generation = generation;
                changes.candidates = vec![candidate];
                changes.failures.clear();
            });
            let start = Instant::now();
            loop {
                let verdict = pod.ask(CHANGES, &Review::pod()).verdict();
                let answering = self::generation(&verdict);
                assert_eq!(verdict.allowed, answering % 2 == 1, "a mixture: {verdict:?}");
                if answering == generation {
                    break;
                }
                assert!(start.elapsed() < LIMIT, "generation {generation} never answers: {verdict:?}");
                thread::sleep(Duration::from_millis(2));
            }
        }
        last += swaps;
        pod.memory_at_rest()[0]
    };
    let mut sizes = vec![swap(WARM_UP)];
    let before = pod.evaluator().usage();
    for _ in 0..WINDOWS {
        sizes.push(swap(WINDOW));
    }
    assert_no_leak(pod.evaluator().name(), &sizes, WINDOW.unsigned_abs(), "swaps", 512);
    // Private copies are removed by threads that end some seconds after the last swap.
    let mut after = pod.evaluator().usage();
    eventually(&format!("the evaluator to use no more than before, {before}, but {after}"), || {
        after = pod.evaluator().usage();
        after.is_back_to(&before).then_some(())
    });
    pod.loader().start_again();
    pod.reporter().start_again();
}

#[test]
fn fault_e18_one_module_with_different_settings() {
    let folder = Folder::with_canary();
    let labels = ["team", "owner", "stage", "cost-center"];
    for label in labels {
        folder.put(
            &Policy::cluster(label).example("required-labels").settings(json!({"labels": [format!("needs-{label}")]})),
        );
    }
    let pod = Pod::on(&folder).start();
    for label in labels {
        pod.wait_current(&format!("cluster/{label}"), 1);
    }
    let artifacts: Vec<_> = labels.iter().map(|label| pod.volume().artifact(&format!("cluster/{label}"))).collect();
    assert!(artifacts.windows(2).all(|pair| pair[0] == pair[1]), "one module is one artifact");
    thread::scope(|scope| {
        let caller = |label: &'static str| {
            let (client, id) = (pod.new_client(), format!("cluster/{label}"));
            for _ in 0..100 {
                let verdict = client.ask(&id, &Review::pod()).verdict();
                assert_eq!(verdict.message, format!("missing labels: needs-{label}"));
            }
        };
        let callers: Vec<_> = labels.iter().chain(&labels).map(|label| scope.spawn(move || caller(label))).collect();
        for caller in callers {
            caller.join().expect("settings are never mixed");
        }
    });
}
