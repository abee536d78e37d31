//! Section 14: how much processor time and memory one policy can take, and how much is left for the others.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use portcullis_contract::Reason;
use portcullis_tests::{
    Answer, Cgroup, FLOODED, Folder, Pod, Policy, Program, Review, StopOnDrop, allow_many_connections, eventually,
    note, wat,
};
use serde_json::json;

const MIB: u64 = 1 << 20;

/// How many times longer than alone the others may take beside a policy that loops.
const LONGER: f64 = 3.0;
/// How many rounds of measurements decide, those left out in which other programs disturbed them.
const DECIDING: usize = 5;
/// How many rounds there are at most, of those that were disturbed as well.
const ROUNDS: usize = 15;
/// How many times everything is tried, including the measurement without the loops: other programs may begin to use the machine between
/// the two measurements.
const TRIES: usize = 3;

/// The time before the next round, after one that was disturbed or took too long.
const PAUSE: Duration = Duration::from_secs(1);

/// What the callers of a flood were answered.
#[derive(Default)]
struct Outcomes {
    /// Admissions.
    judged: AtomicUsize,
    /// Refusals because there was no memory left, each with the code 503.
    without_memory: AtomicUsize,
    /// Evaluations that were ended at their deadline.
    timed_out: AtomicUsize,
}

/// Sends requests until `done`. Each caller waits a second after an answer, so that refusals cost nothing that is measured here. Each
/// answer is an admission or must say that time or memory was not enough.
fn flood(pod: &Pod, ids: &[String], callers: usize, done: &AtomicBool) -> Outcomes {
    let outcomes = Outcomes::default();
    thread::scope(|scope| {
        for id in (0..callers).map(|n| &ids[n % ids.len()]) {
            let (client, outcomes) = (pod.client().clone(), &outcomes);
            let caller = move || {
                while !done.load(Ordering::SeqCst) {
                    let answer = client.ask(id, &Review::pod());
                    let verdict = answer.verdict();
                    if verdict.allowed {
                        outcomes.judged.fetch_add(1, Ordering::SeqCst);
                    } else {
                        assert_not_judged(&answer);
                        let is_without_memory = verdict.message.contains(NO_MEMORY);
                        assert!(!is_without_memory || verdict.code == 503, "{verdict:?}");
                        outcomes.without_memory.fetch_add(usize::from(is_without_memory), Ordering::SeqCst);
                        let is_late = verdict.message.contains(Reason::EvaluationTimedOut.as_str());
                        outcomes.timed_out.fetch_add(usize::from(is_late), Ordering::SeqCst);
                    }
                    let again = Instant::now() + Duration::from_secs(1);
                    while Instant::now() < again && !done.load(Ordering::SeqCst) {
                        thread::sleep(Duration::from_millis(100));
                    }
                }
            };
            thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, caller).expect("a thread");
        }
    });
    outcomes
}

/// In the answer to a request that has not got its memory.
const NO_MEMORY: &str = "Overloaded: this replica has no memory left for this policy or its namespace now";

fn assert_not_judged(answer: &Answer) {
    let (verdict, reasons) = (answer.verdict(), [Reason::EvaluationTimedOut, Reason::Overloaded]);
    let is_one = reasons.iter().any(|reason| verdict.message.contains(reason.as_str()));
    assert!(is_one, "want one of {reasons:?}: {verdict:?}");
}

/// The median time of some answers, each an admission.
fn median(pod: &Pod, id: &str) -> Duration {
    let mut times: Vec<_> = (0..7)
        .map(|_| {
            let answer = pod.ask(id, &Review::pod());
            assert!(answer.verdict().allowed, "{id}: {answer:?}");
            answer.elapsed
        })
        .collect();
    times.sort();
    times[times.len() / 2]
}

/// One measurement beside a policy that loops.
struct Round {
    /// How many times longer than alone it took.
    longer: f64,
    /// Whether that was in time, less what other programs took of the machine; none if they disturbed the round.
    in_time: Option<bool>,
}

impl Round {
    fn measure(pod: &Pod, policy: &Policy, alone: Duration) -> Self {
        let since = pod.moment_with_test();
        let took = median(pod, &policy.id());
        let now = pod.moment_with_test();
        let in_time = took <= since.allowed(alone.mul_f64(LONGER), &now);
        let longer = took.as_secs_f64() / alone.as_secs_f64();
        Self { longer, in_time: (!since.was_disturbed(alone, &now)).then_some(in_time) }
    }
}

impl fmt::Debug for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let beside = if self.in_time.is_none() { " (disturbed)" } else { "" };
        write!(f, "{:.1}{beside}", self.longer)
    }
}

/// Whether these rounds show that sharing is fair; none if more are needed. Most of those that were not disturbed must be in time, and one
/// round of all must have taken less than [`LONGER`] times as long as alone, whatever others took of the machine. Where others disturb
/// every round, that one is all that can be wanted.
fn verdict(rounds: &[Round]) -> Option<bool> {
    const MOST: usize = DECIDING / 2 + 1;
    let count = |wanted| rounds.iter().filter(|round| round.in_time == Some(wanted)).count();
    let (in_time, late) = (count(true), count(false));
    if late >= MOST {
        return Some(false);
    }
    let is_decided = in_time >= MOST || (rounds.len() >= DECIDING && (in_time > late || in_time + late == 0));
    if is_decided && rounds.iter().any(|round| round.longer < LONGER) {
        return Some(true);
    }
    (rounds.len() == ROUNDS).then_some(false)
}

#[test]
fn most_rounds_that_were_not_disturbed_decide() {
    let rounds = |text: &str| {
        let round = |letter| match letter {
            'f' => Round { longer: 1.5, in_time: Some(true) },
            'l' => Round { longer: 4.0, in_time: Some(false) },
            // In time only by what others took.
            'b' => Round { longer: 4.0, in_time: Some(true) },
            _ => Round { longer: if letter == '+' { 1.5 } else { 4.0 }, in_time: None },
        };
        verdict(&text.chars().map(round).collect::<Vec<_>>())
    };
    for (text, wanted) in [
        ("", None),
        ("ff", None),
        ("fff", Some(true)),
        ("llff", None),
        ("llfff", Some(true)),
        ("lflfl", Some(false)),
        ("----+", Some(true)),
        ("-----", None),
        ("---------------", Some(false)),
        ("---f+", Some(true)),
        ("---l+", None),
        ("bbb", None),
        ("bbb+", Some(true)),
        ("bbbbbbbbbbbbbbb", Some(false)),
    ] {
        assert_eq!(rounds(text), wanted, "{text}");
    }
}

/// Asserts that evaluations of other policies, which take about 50 ms, go on beside policies of one namespace that loop forever.
fn assert_others_go_on(cores: usize) {
    allow_many_connections();
    let folder = Folder::with_canary();
    let loops: Vec<_> =
        (0..30).map(|n| Policy::namespaced("greedy", &format!("loops-{n}")).guest("endless_loop").timeout(2)).collect();
    let others =
        [Policy::cluster("heavy"), Policy::namespaced("team-a", "heavy"), Policy::namespaced("team-b", "heavy")];
    let others = others.map(|policy| policy.guest("heavy").timeout(30));
    for policy in loops.iter().chain(&others) {
        folder.put(policy);
    }
    let pod = Pod::on(&folder)
        .evaluator("--cores", cores)
        .canary_within(FLOODED, "policies that loop take all processors")
        .start();
    for policy in loops.iter().chain(&others) {
        pod.wait_current(&policy.id(), 1);
    }
    let ids: Vec<_> = loops.iter().map(Policy::id).collect();
    // One policy, and then a namespace with many of them.
    for (callers, ids) in [(64, &ids[..1]), (200, &ids[..1]), (200, &ids[..])] {
        let mut unfair = Vec::new();
        while let Err(words) = go_on_beside(&pod, &others, ids, callers) {
            unfair.push(words);
            assert!(unfair.len() < TRIES, "{unfair:#?}");
        }
    }
}

/// Checks that each of the others takes less than [`LONGER`] times as long beside `callers` callers of policies that loop as alone, by the
/// [`verdict`] on several rounds.
fn go_on_beside(pod: &Pod, others: &[Policy], loops: &[String], callers: usize) -> Result<(), String> {
    let alone: Vec<_> = others.iter().map(|policy| median(pod, &policy.id())).collect();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let flood = scope.spawn(|| flood(pod, loops, callers, &done));
        let stop = StopOnDrop(&done);
        // Handshakes come first, and are not to be measured. There are fewer connections than callers, because callers share them.
        let some = callers as f64 / 4.0;
        eventually("connections of callers", || (pod.metric("portcullis_connections") >= some).then_some(()));
        let measured = others.iter().zip(alone).try_for_each(|(policy, alone)| {
            let mut rounds: Vec<Round> = Vec::new();
            let is_fair = loop {
                if let Some(is_fair) = verdict(&rounds) {
                    break is_fair;
                }
                if rounds.last().is_some_and(|round| round.in_time != Some(true)) {
                    thread::sleep(PAUSE);
                }
                rounds.push(Round::measure(pod, policy, alone));
            };
            let words =
                format!("{callers} callers of {}: {} took {rounds:.1?} times {alone:.1?}", loops.len(), policy.id());
            note(&words);
            if is_fair { Ok(()) } else { Err(words) }
        });
        drop(stop);
        let outcomes = flood.join().expect("every answer is right");
        assert_eq!(outcomes.judged.into_inner(), 0, "a loop never ends");
        assert!(outcomes.timed_out.into_inner() > 0, "no loop was ended at its deadline");
        for policy in others {
            let series = format!("portcullis_policy_evaluation_errors_total{{policy=\"{}\"", policy.id());
            let metrics = pod.metrics(Program::Evaluator);
            assert!(!metrics.contains(&series), "{} failed:\n{metrics}", policy.id());
        }
        measured
    })
}

#[test]
fn fault_z02_one_policy_loops_on_2_cores() {
    assert_others_go_on(2);
}

/// More threads than the machine has processors, as on a large node that is full.
#[test]
fn fault_z02_one_policy_loops_on_16_cores() {
    assert_others_go_on(16);
}

#[test]
fn fault_z02_one_policy_loops_on_96_cores() {
    assert_others_go_on(96);
}

/// The longest time limit that a policy may have, and with it the longest time that a caller waits.
const LONGEST: Duration = Duration::from_secs(30);

/// Asks a policy that has its share of time and memory, and so judges within its limit. If other programs use the machine, it may time
/// out, and is asked again.
fn assert_judged(pod: &Pod, id: &str) {
    eventually(&format!("a verdict of {id}"), || {
        let since = pod.moment_with_test();
        let answer = pod.ask(id, &Review::pod());
        if answer.verdict().allowed {
            return Some(());
        }
        assert_not_judged(&answer);
        let was_disturbed = since.was_disturbed(LONGEST / 2, &pod.moment_with_test());
        assert!(was_disturbed && answer.elapsed > LONGEST / 2, "{answer:?}");
        None
    });
}

/// A module that grows by 12 MiB, like a guest with a runtime of its own, and accepts.
const MODEST: &str = r#"(module
  (import "wapc" "__guest_response" (func $respond (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "{\"valid\":true}")
  (data (i32.const 32) "{\"accepted\":true}")
  (func (export "__guest_call") (param $op_len i32) (param $len i32) (result i32)
    (if (i32.eq (memory.grow (i32.const 192)) (i32.const -1)) (then unreachable))
    (memory.fill (i32.const 65536) (i32.const 1) (i32.const 12582912))
    (if (i32.eq (local.get $op_len) (i32.const 17))
      (then (call $respond (i32.const 0) (i32.const 14)) (return (i32.const 1))))
    (call $respond (i32.const 32) (i32.const 17))
    (i32.const 1)))"#;

#[test]
fn fault_z05_policies_touch_all_memory() {
    const LIMIT: u64 = 1024 * MIB;
    allow_many_connections();
    let folder = Folder::with_canary();
    // 5 GiB if all of them had their memory at the same time.
    let greedy: Vec<_> = (0..40)
        .map(|n| {
            Policy::namespaced(&format!("greedy-{}", n % 8), &format!("touches-{n}"))
                .guest("touches_memory")
                .timeout(30)
        })
        .collect();
    let modest = [Policy::cluster("modest"), Policy::namespaced("team-a", "modest")]
        .map(|policy| policy.bytes(wat(MODEST)).timeout(30));
    for policy in greedy.iter().chain(&modest) {
        folder.put(policy);
    }
    // The memory limit of the chart is that of a cgroup, in which the evaluator runs from its start. If the test may not create a cgroup, the
    // limit is a setting, and the kernel does not enforce it.
    let cgroup = Cgroup::of_memory(LIMIT);
    let setup = Pod::on(&folder).canary_within(FLOODED, "120 callers touch all memory");
    let pod = match &cgroup {
        Some(cgroup) => {
            let enter = format!("echo $$ > {} && exec \"$@\"", cgroup.file("cgroup.procs").display());
            setup.through(Program::Evaluator, &["sh", "-c", &enter, "sh"]).start()
        }
        None => setup.evaluator("--total-memory", LIMIT).start(),
    };
    let limit = pod.metric("portcullis_guest_memory_limit_bytes");
    // Loading touches just as much memory. A policy that does not get its memory in time is tried again.
    for policy in greedy.iter().chain(&modest) {
        pod.wait_current(&policy.id(), 1);
    }
    // Half of the callers wait for memory for as long as they may, and the others for a second at most.
    let ids: Vec<_> = greedy.chunks(2).flat_map(|pair| [pair[0].id(), pair[1].id() + "?timeout=1s"]).collect();
    let done = AtomicBool::new(false);
    let refused = || pod.metric("portcullis_guest_memory_refused_total");
    let refused_before = refused();
    thread::scope(|scope| {
        let flood = scope.spawn(|| flood(&pod, &ids, 120, &done));
        let stop = StopOnDrop(&done);
        eventually("an instance that waits", || {
            (pod.metric("portcullis_guest_memory_waits_total") > 0.0).then_some(())
        });
        eventually("an instance that is refused", || (refused() > refused_before).then_some(()));
        for _ in 0..15 {
            for policy in &modest {
                assert_judged(&pod, &policy.id());
            }
            assert!(pod.metric("portcullis_guest_memory_bytes") <= limit);
        }
        drop(stop);
        let Outcomes { judged, without_memory, .. } = flood.join().expect("every answer is right");
        assert!(judged.into_inner() > 0, "nobody got any memory");
        assert!(without_memory.into_inner() > 0, "nobody was refused as Overloaded");
    });
    assert!((1.0..LIMIT as f64 * 0.75).contains(&limit), "{limit}: the limit is not seen");
    let usage = pod.evaluator().usage();
    assert!(usage.peak < LIMIT, "{usage}");
    assert_eq!(cgroup.as_ref().map_or(0, Cgroup::killed), 0, "the kernel killed it for memory");
    eventually("all of it to come back", || (pod.metric("portcullis_instances") < 2.0).then_some(()));
}

/// The object that a mutating policy makes is kept while the policies after it are asked, and so is the patch that leads to it.
#[test]
fn what_mutating_policies_add_to_an_object_has_its_part_of_the_memory() {
    const LIMIT: u64 = 512 * MIB;
    let added = "x".repeat(3_900_000);
    let metadata = json!({"name": "web", "namespace": "default", "annotations": {"added": added}});
    let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata});
    let reply = json!({"accepted": true, "mutated_object": object}).to_string();
    let adds = Policy::cluster("adds").answering("answer", reply).timeout(8).mutating();
    let folder = Folder::with_canary();
    folder.put(&adds);
    folder.put(&Policy::cluster("then-sleeps").guest("clock_sleep").timeout(8).mutating());
    let setup = Pod::on(&folder).evaluator("--total-memory", LIMIT).evaluator("--memory-limit", 32 * MIB);
    let setup = setup.evaluator("--instances", 64).evaluator("--cores", 2).without(Program::Reporter).plain_http();
    let pod = setup.canary_within(FLOODED, "a hundred large objects are made at once").start();
    for id in ["cluster/adds", "cluster/then-sleeps"] {
        pod.wait_current(id, 1);
    }
    let path = format!("/admit/{}?timeout=20s", adds.group());
    let answers = pod.new_client().post_at_once(100, &path, &Review::pod());
    let verdicts: Vec<_> = answers.into_iter().map(|answer| answer.expect("answers").verdict()).collect();
    assert!(verdicts.iter().all(|verdict| !verdict.allowed), "the second policy never answers");
    let without_memory = verdicts.iter().filter(|verdict| verdict.message.contains(NO_MEMORY)).count();
    let usage = pod.evaluator().usage();
    note(&format!("{without_memory} of 100 found no memory; {usage}"));
    assert!(usage.peak < LIMIT, "{usage}");
    eventually("all of it to come back", || (pod.metric("portcullis_guest_memory_bytes") < 1.0).then_some(()));
}

#[test]
fn fault_m28_a_thousand_heavy_calls_at_once() {
    /// A time well after the limit of the policy, 8 seconds: the way of a thousand answers counts too.
    const LATEST: Duration = Duration::from_secs(8 + 4);
    allow_many_connections();
    let folder = Folder::with_canary();
    // Long enough for some calls to end even if other programs keep the processors busy.
    folder.put(&Policy::cluster("heavy").guest("heavy").timeout(8));
    folder.put(&Policy::cluster("light").denying("light"));
    // Without TLS, because a debug build cannot do a thousand handshakes within seconds.
    let setup = Pod::on(&folder).without(Program::Reporter).plain_http();
    let pod = setup.canary_within(FLOODED, "a thousand calls come at once").start();
    pod.wait_current("cluster/heavy", 1);
    pod.wait_current("cluster/light", 1);

    let since = pod.moment_with_test();
    let answers = thread::scope(|scope| {
        let heavy = scope.spawn(|| pod.new_client().ask_at_once(1000, "cluster/heavy", &Review::pod()));
        while !heavy.is_finished() {
            assert_eq!(pod.ask("cluster/light", &Review::pod()).verdict().message, "light");
        }
        heavy.join().expect("all are answered")
    });
    let allowed = since.allowed(LATEST, &pod.moment_with_test());
    let slowest = answers.iter().flatten().map(|answer| answer.elapsed).max().expect("some are answered");
    note(&format!("the slowest of a thousand answers came after {slowest:.1?}, {allowed:.1?} allowed here and now"));
    assert!(slowest <= allowed, "an answer came after {slowest:?}, and {allowed:?} were allowed here and now");
    let (mut judged, mut overloaded) = (0, 0);
    for answer in answers {
        let verdict = answer.expect("answers").verdict();
        if verdict.allowed {
            judged += 1;
        } else {
            let refused = [Reason::Overloaded, Reason::EvaluationTimedOut];
            let named = |reason: &Reason| verdict.message.starts_with(&format!("policy cluster/heavy: {reason}: "));
            assert!(refused.iter().any(named), "{verdict:?}");
            overloaded += usize::from(verdict.code == 503);
        }
    }
    assert!(judged > 0, "some are judged");
    assert!(overloaded > 0, "some are refused early");
    // Calls are judged again at once; a machine that is busy with other programs may be too slow now and then.
    let is_judged = |_| pod.ask("cluster/heavy", &Review::pod()).verdict().allowed;
    assert!((0..3).any(is_judged), "the next calls are not judged");
}
