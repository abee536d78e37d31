//! Section 14: the replies and calls of one policy do not affect the other policies.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use portcullis_contract::Reason;
use portcullis_tests::{Answer, FLOODED, Folder, Pod, Policy, Program, Review, StopOnDrop, Verdict, eventually, heavy};
use serde_json::{Value, json};

const DENIES: &str = "cluster/denies";
const MILLION: usize = 1_000_000;
/// The longest time limit that a policy may have, in seconds.
const LONGEST: u32 = 30;

/// A guest that calls its host forever is stopped at its deadline if it reads the replies, and sooner if it does not.
#[test]
fn fault_z04_refused_calls_without_end() {
    let _alone = heavy();
    let folder = Folder::with_canary();
    let cases = [
        ("wasi_refused_calls", Reason::EvaluationTrapped),
        ("wasi_refused_calls_read", Reason::EvaluationTimedOut),
        ("refused_calls", Reason::EvaluationTimedOut),
    ];
    // A guest that ends by itself gets all the time that it may need on a busy machine.
    let seconds = |reason: Reason| if reason == Reason::EvaluationTimedOut { 4 } else { 30 };
    let id = |guest: &str| format!("cluster/{}", guest.replace('_', "-"));
    for (guest, reason) in cases {
        folder.put(&Policy::cluster(&guest.replace('_', "-")).guest(guest).timeout(seconds(reason)));
    }
    let pod = Pod::on(&folder).start();
    cases.iter().for_each(|(guest, _)| drop(pod.wait_current(&id(guest), 1)));
    let before = pod.evaluator().usage();
    for (guest, reason) in cases {
        let id = id(guest);
        let review = Review::pod();
        for answer in pod.client().ask_at_once(4, &id, &review) {
            let answer = answer.expect("answers");
            answer.assert_not_judged(&review, &id, reason);
            let names_the_limit = answer.verdict().message.contains("beyond their limit of 65536 bytes");
            assert_eq!(names_the_limit, reason == Reason::EvaluationTrapped, "{answer:?}");
        }
    }
    let after = pod.evaluator().usage();
    assert!(after.peak < before.peak + (48 << 20), "{before} became {after}");
}

/// A pod with a list of this many elements, in a field that is not in the schema.
fn with_list(elements: usize) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default"},
           "list": vec![0; elements]})
}

/// A policy that replaces every object with this one.
fn making(name: &str, object: &Value) -> Policy {
    with_object(Policy::cluster(name), object)
}

/// The policy, which replaces every object with this one.
fn with_object(policy: Policy, object: &Value) -> Policy {
    let answer = json!({"accepted": true, "mutated_object": object}).to_string();
    policy.answering("answer", answer).mutating().timeout(LONGEST)
}

/// The first verdict for which neither the policy nor the caller timed out, as may happen on a machine that is busy with other programs.
fn in_time(what: &str, mut ask: impl FnMut() -> Result<Answer, String>) -> Verdict {
    eventually(what, || {
        let answer = ask();
        if let Err(error) = &answer {
            assert!(error.contains("timed out"), "{what}: {error}");
        }
        let verdict = answer.ok()?.verdict();
        let is_late = verdict.raw.to_string().contains(Reason::EvaluationTimedOut.as_str());
        Some(verdict).filter(|_| !is_late)
    })
}

/// The median time of `calls` calls of a policy, one after the other.
fn median(pod: &Pod, id: &str, calls: usize) -> Duration {
    let client = pod.new_client();
    let mut times: Vec<_> = (0..calls).map(|_| client.ask(id, &Review::small_pod()).elapsed).collect();
    times.sort_unstable();
    times[calls / 2]
}

#[test]
fn fault_z06_a_list_of_a_million_is_emptied() {
    let _alone = heavy();
    let folder = Folder::with_canary();
    let empties = making("empties", &with_list(0));
    folder.put(&empties);
    folder.put(&Policy::cluster("denies").guest("always_deny").on("secrets"));
    let pod = Pod::on(&folder).canary_within(FLOODED, "lists of a million are read four at a time").start();
    pod.wait_current(&empties.id(), 1);
    pod.wait_current(DENIES, 1);
    let memory = pod.evaluator().usage();
    let object = with_list(MILLION);
    let review = Review::small_pod().with("/object", object.clone());
    let before = median(&pod, DENIES, 50);
    let done = AtomicBool::new(false);
    // The machine is also busy with this test's client. If the lane were blocked, answers would take seconds.
    let limit = 20 * before + Duration::from_millis(200);
    thread::scope(|scope| {
        let callers = scope.spawn(|| {
            let _done = StopOnDrop(&done);
            let client = pod.new_client();
            let answers = client.ask_at_once(4, &empties.id(), &review).into_iter();
            let verdicts = answers.map(|answer| answer.expect("answers").verdict());
            let is_late = |verdict: &Verdict| verdict.message.contains(Reason::EvaluationTimedOut.as_str());
            let mut verdicts: Vec<_> = verdicts.filter(|verdict| !is_late(verdict)).collect();
            if verdicts.is_empty() {
                // Four at once may be too many for a busy machine.
                verdicts.push(in_time("one that is done in its time", || client.try_ask(&empties.id(), &review)));
            }
            for verdict in verdicts {
                assert!(verdict.allowed, "{verdict:?}");
                assert_eq!(verdict.patch, Some(json!([{"op": "replace", "path": "/list", "value": []}])));
                assert_eq!(verdict.patched(&object), with_list(0));
            }
        });
        while !done.load(Ordering::SeqCst) {
            let since = pod.moment_with_test();
            let during = median(&pod, DENIES, 5);
            let longest = since.allowed(limit, &pod.moment_with_test());
            assert!(during < longest, "{before:?} became {during:?}, and {longest:?} are allowed here and now");
        }
        callers.join().expect("every answer is right");
    });
    let after = pod.evaluator().usage();
    assert!(after.peak < memory.peak + (256 << 20), "{memory} became {after}");
}

/// A member's mutation is processed in that member's time; the next member gets the changed object, and has its own time.
#[test]
fn fault_z06_a_large_mutation_is_its_members_own_business() {
    let _alone = heavy();
    let folder = Folder::with_canary();
    let fills = making("a-fills", &with_list(MILLION)).ignoring_failure();
    let empties = making("b-empties", &with_list(0)).ignoring_failure();
    // Its object is larger than any patch may be.
    let floods = making("c-floods", &with_list(3 * MILLION)).ignoring_failure();
    let members = [&fills, &empties, &floods];
    members.iter().for_each(|member| folder.put(member));
    let pod = Pod::on(&folder).canary_within(FLOODED, "lists of a million are read").start();
    members.iter().for_each(|member| drop(pod.wait_current(&member.id(), 1)));
    let object = with_list(1);
    let review = Review::small_pod().with("/object", object.clone());

    let verdict = in_time("a mutation", || pod.client().try_ask(&fills.id(), &review));
    assert!(verdict.patched(&object) == with_list(MILLION), "the patch leads elsewhere");
    let path = format!("/admit/{}", fills.group());
    let verdict = in_time("mutations of each member", || pod.client().post(&path, review.bytes()));
    assert!(verdict.allowed, "{verdict:?}");
    assert_eq!(verdict.patched(&object), with_list(0), "{verdict:?}");
    let [warning] = &verdict.warnings[..] else { panic!("want one warning in {verdict:?}") };
    assert!(warning.contains(&floods.id()) && warning.contains(Reason::PatchInvalid.as_str()), "{warning}");
}

/// How many policies of one namespace always have large objects, and how many callers each of them has.
const GREEDY: usize = 4;
const CALLERS: usize = 8;
/// How often the policy of another namespace is asked meanwhile.
const ROUNDS: usize = 5;

#[test]
fn fault_z24_large_objects_of_one_namespace_hold_up_no_other() {
    let _alone = heavy();
    let folder = Folder::with_canary();
    let greedy: Vec<_> = (0..GREEDY)
        .map(|number| with_object(Policy::namespaced("team-a", &format!("greedy-{number}")), &with_list(MILLION)))
        .collect();
    // Also above the size that is worked on where the evaluation runs.
    let changed = with_list(100_000);
    let modest = with_object(Policy::namespaced("team-b", "modest"), &changed).timeout(10);
    let all = || greedy.iter().chain([&modest]);
    all().for_each(|policy| folder.put(policy));
    let pod = Pod::on(&folder).canary_within(FLOODED, "lists of a million are read").start();
    all().for_each(|policy| drop(pod.wait_current(&policy.id(), 1)));
    let review = Review::small_pod().with("/object", with_list(1));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for policy in &greedy {
            scope.spawn(|| {
                let client = pod.new_client();
                while !done.load(Ordering::SeqCst) {
                    // Too many at once are late or refused, which is their own business.
                    client.ask_at_once(CALLERS, &policy.id(), &review).into_iter().for_each(drop);
                }
            });
        }
        let _done = StopOnDrop(&done);
        for _ in 0..ROUNDS {
            let verdict = pod.ask(&modest.id(), &review).verdict();
            assert!(verdict.allowed, "{verdict:?}");
            assert_eq!(verdict.patched(&with_list(1)), changed);
        }
    });
}

/// A policy that accepts with this many warnings.
fn warning(name: &str, warnings: usize) -> Policy {
    let texts: Vec<_> = (0..warnings).map(|n| format!("warning {n}")).collect();
    Policy::cluster(name).answering("answer", json!({"accepted": true, "warnings": texts}).to_string())
}

fn names(verdict: &Verdict, warning: &str, id: &str) -> bool {
    verdict.warnings.iter().any(|text| text.contains(warning) && text.contains(id))
}

/// Fail points that make the evaluator panic for these policies, alternately while it calls them and while it processes their replies.
fn panics(policies: &[&Policy]) -> String {
    let points = ["asking", "concluding"].iter().cycle().zip(policies);
    points.map(|(point, policy)| format!("evaluator.{point}/{}=panic", policy.id())).collect::<Vec<_>>().join(";")
}

#[test]
fn fault_z20_sixty_members_warn_one_floods_and_some_panic() {
    let folder = Folder::with_canary();
    let denials: Vec<_> = (0..60)
        .map(|n| Policy::cluster(&format!("denies-{n:02}")).guest("always_deny").mode("warn"))
        .map(|policy| policy.ignoring_failure().on("secrets"))
        .collect();
    let flood = warning("floods", 10_000).ignoring_failure().on("secrets");
    // The first and the last member of the group, and some in between.
    let broken = ["a-first", "b-second", "denies-30-broken", "z-last"];
    let broken = broken.map(|name| Policy::cluster(name).guest("always_accept").ignoring_failure().on("secrets"));
    for policy in denials.iter().chain([&flood]).chain(&broken) {
        folder.put(policy);
    }
    let points = panics(&broken.each_ref());
    let pod = Pod::on(&folder).fail_points(Program::Evaluator, &points).start();
    let members: Vec<_> = denials.iter().chain([&flood]).chain(&broken).collect();
    members.iter().for_each(|member| drop(pod.wait_current(&member.id(), 1)));
    for round in 1..=3 {
        let verdict = pod.admit(&flood.group(), &Review::pod()).verdict();
        assert!(verdict.allowed, "{verdict:?}");
        assert!(verdict.warnings.len() <= 16, "{verdict:?}");
        for denial in &denials {
            assert!(names(&verdict, "60 policies in mode warn deny this request", &denial.id()), "{verdict:?}");
        }
        for broken in &broken {
            assert!(names(&verdict, "4 policies were not evaluated", &broken.id()), "{verdict:?}");
            let key = format!("cluster.{}.policy-not-evaluated", broken.name());
            let expected = format!("{}/{}", broken.id(), Reason::InternalError);
            assert_eq!(verdict.annotations.get(&key), Some(&expected), "{verdict:?}");
        }
        // There is an annotation with the generation of each member, and one more for each broken one.
        assert_eq!(verdict.annotations.len(), members.len() + broken.len(), "{verdict:?}");
        assert!(verdict.warnings.last().is_some_and(|text| text.contains("are not shown")), "{verdict:?}");
        assert_eq!(pod.metric("portcullis_panics_total") as usize, round * broken.len());
    }
}

#[test]
fn fault_z20_the_others_of_a_small_group_are_heard() {
    let folder = Folder::with_canary();
    let group = |name: &str| Policy::cluster(name).guest("always_deny").on("secrets");
    let (first, last) = (group("a-panics"), group("z-panics"));
    let (denies, warns) = (group("denies"), group("warns").mode("warn"));
    let flood = warning("floods", 1000).on("secrets");
    let quiet = warning("quiet", 2).on("secrets");
    let members = [&first, &denies, &flood, &quiet, &warns, &last];
    // Mutating members run in turn: the one after a panic still mutates.
    let fails = Policy::cluster("a-fails").guest("mutates_label").mutating().ignoring_failure();
    let labels = Policy::cluster("b-labels").guest("mutates_label").mutating().ignoring_failure();
    members.iter().chain(&[&fails, &labels]).for_each(|policy| folder.put(policy));
    let points = panics(&[&first, &last, &fails]);
    let pod = Pod::on(&folder).fail_points(Program::Evaluator, &points).start();
    members.iter().chain(&[&fails, &labels]).for_each(|policy| drop(pod.wait_current(&policy.id(), 1)));

    let verdict = pod.admit(&denies.group(), &Review::pod()).verdict();
    let causes = verdict.details["causes"].as_array().expect("causes");
    let told: Vec<_> = causes.iter().map(|cause| (cause["field"].as_str(), cause["reason"].as_str())).collect();
    let (first, last, internal) = (first.id(), last.id(), Some(Reason::InternalError.as_str()));
    assert_eq!(told, [(Some(&*first), internal), (Some(DENIES), None), (Some(&*last), internal)], "{verdict:?}");
    assert_eq!(verdict.warnings.len(), 16, "{verdict:?}");
    assert!(verdict.warnings[0].contains(&warns.id()), "{verdict:?}");
    for text in ["warning 0", "warning 1"] {
        assert!(names(&verdict, text, &quiet.id()), "{verdict:?}");
    }
    assert!(verdict.warnings[15].contains("are not shown"), "{verdict:?}");

    let review = Review::small_pod();
    let verdict = pod.admit(&labels.group(), &review).verdict();
    assert!(verdict.allowed && names(&verdict, "was not evaluated", &fails.id()), "{verdict:?}");
    assert_eq!(verdict.patched(review.object())["metadata"]["labels"]["team"], "web", "{verdict:?}");
}

/// Large parts of a reply are decoded in its policy's time, and do not take much memory.
#[test]
fn fault_z20_a_reply_of_many_small_parts_takes_no_memory() {
    let _alone = heavy();
    let folder = Folder::with_canary();
    let parts = |n: usize| (0..n).map(|n| (format!("{n}"), json!(""))).collect::<serde_json::Map<_, _>>();
    let warnings = json!({"accepted": true, "warnings": vec![""; MILLION]}).to_string();
    let annotations = json!({"accepted": true, "audit_annotations": parts(MILLION / 2)}).to_string();
    for (name, answer) in [("warnings", warnings), ("annotations", annotations)] {
        folder.put(&Policy::cluster(name).answering("answer", answer).timeout(LONGEST));
    }
    let pod = Pod::on(&folder).canary_within(FLOODED, "lists of a million are read four at a time").start();
    let ids = ["cluster/warnings", "cluster/annotations"];
    ids.iter().for_each(|id| drop(pod.wait_current(id, 1)));
    let before = pod.evaluator().usage();
    let start = Instant::now();
    for id in ids {
        for answer in pod.client().ask_at_once(4, id, &Review::pod()) {
            // If an answer is too late, the policy is asked again.
            let mut first = Some(answer);
            let ask = || first.take().unwrap_or_else(|| pod.client().try_ask(id, &Review::pod()));
            assert!(in_time(id, ask).allowed);
        }
    }
    let after = pod.evaluator().usage();
    assert!(after.peak < before.peak + (96 << 20), "{before} became {after} in {:?}", start.elapsed());
}
