//! Section 14: requests of one namespace that take long leave room for those of others.

use std::thread;

use portcullis_contract::Reason;
use portcullis_tests::{Answer, Folder, Pod, Policy, Review, eventually};

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
