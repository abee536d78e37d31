//! Section 14: requests of one namespace that take long leave room for those of others.

use std::thread;
use std::time::Duration;

use portcullis_contract::Reason;
use portcullis_tests::{Answer, FLOODED, Folder, Pod, Policy, Review, eventually};

/// A small limit of requests under way, so that few connections reach it.
const LIMIT: usize = 64;
/// The policies that flood, and the calls of each: together twice as many as may be under way.
const FLOODS: usize = 8;
const CALLS: usize = 2 * LIMIT / FLOODS;

#[test]
fn fault_z22_a_namespace_starts_more_requests_than_may_be_under_way() {
    let folder = Folder::with_canary();
    // They take their whole time. All but one sleep, so that they use no processor time.
    let flood = |number| {
        let guest = if number == 0 { "endless_loop" } else { "clock_sleep" };
        Policy::namespaced("team-a", &format!("floods-{number}")).guest(guest).timeout(30)
    };
    let floods: Vec<_> = (0..FLOODS).map(flood).collect();
    let quick = Policy::namespaced("team-a", "quick").denying("quick").on("secrets");
    let [neighbour, cluster] = [Policy::namespaced("team-b", "neighbour"), Policy::cluster("cluster")];
    let [neighbour, cluster] = [neighbour, cluster].map(|policy| policy.denying("asked").on("configmaps"));
    let all = || floods.iter().chain([&quick, &neighbour, &cluster]);
    all().for_each(|policy| folder.put(policy));
    let pod = Pod::on(&folder).plain_http().evaluator("--max-requests", LIMIT).start();
    all().for_each(|policy| drop(pod.wait_current(&policy.id(), 1)));
    let is_refused = |message: &str| {
        message.contains(&format!(
            "{}: this policy or its namespace has its share of the {LIMIT} requests",
            Reason::Overloaded
        ))
    };
    let answers = thread::scope(|scope| {
        let flood = |policy: &Policy| {
            let (client, id) = (pod.new_client(), policy.id());
            scope.spawn(move || client.ask_at_once(CALLS, &id, &Review::pod()))
        };
        let calls: Vec<_> = floods.iter().map(flood).collect();
        eventually("more requests than may be under way", || {
            (pod.metric("portcullis_overloaded_total") >= (FLOODS * CALLS - LIMIT) as f64).then_some(())
        });
        // A match group with policies of a namespace looks only at requests there.
        let [review, of_flooder] = ["team-b", "team-a"].map(|namespace| Review::pod().with("/namespace", namespace));
        let is_asked = |answer: Answer| answer.verdict().message.ends_with("asked");
        for _ in 0..50 {
            for policy in [&neighbour, &cluster] {
                assert!(is_asked(pod.ask(&policy.id(), &review)));
                assert!(is_asked(pod.admit(&policy.group(), &review)));
            }
        }
        for answer in pod.client().ask_at_once(LIMIT / 8, &neighbour.id(), &review) {
            assert!(is_asked(answer.expect("answers")), "several at the same time");
        }
        // The namespace has its share, for any of its policies. One request more may have room while nobody else is being answered.
        let answer = eventually("a refusal of another policy of the namespace", || {
            Some(pod.admit(&quick.group(), &of_flooder)).filter(|answer| is_refused(&answer.verdict().message))
        });
        answer.assert_not_judged(&of_flooder, &quick.id(), Reason::Overloaded);
        // A policy of which all calls were refused has all its answers already.
        assert!(calls.iter().any(|calls| !calls.is_finished()), "the flood went on all the time");
        calls.into_iter().map(|calls| calls.join().expect("all are sent")).collect::<Vec<_>>()
    });
    let answers = answers.into_iter().flatten();
    let verdicts: Vec<_> = answers.map(|answer| answer.expect("answers").verdict()).collect();
    assert!(verdicts.iter().all(|verdict| !verdict.allowed), "{verdicts:?}");
    let refused = verdicts.iter().filter(|verdict| is_refused(&verdict.message)).count();
    let begun = verdicts.len() - refused;
    assert!((LIMIT / 4..=LIMIT / 2).contains(&begun), "{begun} of {} were under way", verdicts.len());
    // Once they have ended, the namespace is answered again.
    assert_eq!(pod.ask(&quick.id(), &Review::pod()).verdict().message, "quick");
}

/// A policy and a namespace have as much of the memory for large bodies as stays free, as of everything else. All requests come from one
/// address, as those of API servers may.
#[test]
fn fault_z22_a_namespace_fills_the_memory_for_large_bodies() {
    const MIB: usize = 1 << 20;
    const KIB: usize = 1 << 10;
    /// An eighth is for bodies.
    const MEMORY: usize = 256 * MIB;
    /// The largest part of a body, which is smaller than half a MiB.
    const LARGE: usize = 480 * KIB;
    /// All such bodies that there is memory for: each counts twice.
    const ALL: usize = MEMORY / 8 / MIB;
    const CALLS: usize = 6;
    /// Requests of others wait for nothing. It is less than bodies wait for memory.
    const AT_ONCE: Duration = FLOODED;
    const _: () = assert!(FLOODS * CALLS > ALL);
    let folder = Folder::with_canary();
    // They sleep for longer than bodies wait for memory.
    let flood = |number| {
        Policy::namespaced("team-a", &format!("sleeps-{number}")).guest("clock_sleep").timeout(30).on("configmaps")
    };
    let floods: Vec<_> = (0..FLOODS).map(flood).collect();
    let policies = [Policy::namespaced("team-b", "neighbour"), Policy::cluster("cluster")];
    let [neighbour, cluster] = policies.map(|policy| policy.denying("asked").on("configmaps"));
    let quick = Policy::namespaced("team-a", "quick").denying("quick").on("secrets");
    let all = || floods.iter().chain([&neighbour, &cluster, &quick]);
    all().for_each(|policy| folder.put(policy));
    let setup = Pod::on(&folder).plain_http().canary_within(FLOODED, "many large bodies are read at the same time");
    let setup = setup.evaluator("--total-memory", MEMORY).evaluator("--memory-limit", 32 * MIB);
    let pod = setup.evaluator("--instances", 64).evaluator("--max-body", MIB).start();
    all().for_each(|policy| drop(pod.wait_current(&policy.id(), 1)));
    let large = |namespace: &str, bytes: usize| {
        let annotation = serde_json::json!({"data": "x".repeat(bytes)});
        Review::pod().with("/namespace", namespace).with("/object/metadata/annotations", annotation)
    };
    // A caller that has sent a review is no stranger.
    assert!(!pod.ask(&cluster.id(), &Review::pod()).verdict().allowed);
    let (of_flood, of_neighbour) = (large("team-a", LARGE), large("team-b", 100 * KIB));
    let without_room = || pod.metric("portcullis_bodies_without_room_total");
    let answers = thread::scope(|scope| {
        let flood = |policy: &Policy| {
            let (client, id) = (pod.new_client(), policy.id());
            let review = &of_flood;
            scope.spawn(move || client.ask_at_once(CALLS, &id, review))
        };
        let calls: Vec<_> = floods.iter().map(flood).collect();
        eventually("the bodies of the namespace to have its share of the memory", || {
            (pod.metric("portcullis_instances") >= (ALL / 3) as f64).then_some(())
        });
        let mut asked = 0;
        let floods = || calls.iter().any(|calls| !calls.is_finished());
        while asked < 10 || without_room() == 0.0 && floods() {
            for policy in [&neighbour, &cluster] {
                for path in [format!("/validate/{}", policy.id()), format!("/admit/{}", policy.group())] {
                    let post = || pod.client().post(&path, of_neighbour.bytes()).expect("an answer");
                    let answer = pod.within(AT_ONCE, &path, post);
                    assert_eq!(answer.status, 200, "{answer:?}");
                    assert!(answer.verdict().message.ends_with("asked"), "{answer:?}");
                }
            }
            asked += 1;
        }
        calls.into_iter().map(|calls| calls.join().expect("all are sent")).collect::<Vec<_>>()
    });
    let answers: Vec<_> = answers.into_iter().flatten().map(|answer| answer.expect("answers")).collect();
    let (refused, judged): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 503);
    assert!(judged.iter().all(|answer| answer.status == 200), "{judged:?}");
    assert!(refused.iter().all(|answer| answer.body.contains("too many large bodies")), "{refused:?}");
    assert!((ALL / 4..=ALL / 2).contains(&judged.len()), "{} of {} had memory", judged.len(), answers.len());
    // The alert sees it.
    assert!(pod.metric("portcullis_overloaded_total") >= refused.len() as f64);
    // Once they have ended, the namespace has memory again.
    assert_eq!(pod.ask(&quick.id(), &of_flood).verdict().message, "quick");
}
