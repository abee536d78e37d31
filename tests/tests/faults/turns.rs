//! Mutating members of a match group, which are called one after the other.

use std::thread;
use std::time::Duration;

use portcullis_contract::Reason;
use portcullis_tests::{Answer, Folder, Pod, Policy, Review};

const SIZE: usize = 4;

/// A group of four on a resource of its own: a sleeper with a limit of 10 s in this place, and three quick ones with limits of 2 s, the last
/// of which denies or adds a label.
fn four(resource: &str, place: usize, denies: bool) -> Vec<Policy> {
    let last = if place == SIZE - 1 { SIZE - 2 } else { SIZE - 1 };
    let member = |number: usize| {
        let policy = Policy::cluster(&format!("{resource}-{number}"));
        let policy = match number {
            number if number == place => policy.guest("clock_sleep").timeout(10),
            number if number == last && denies => policy.denying("not like this").timeout(2),
            number if number == last => policy.guest("mutates_label").timeout(2),
            _ => policy.guest("always_accept").timeout(2),
        };
        policy.on(resource).mutating().ignoring_failure()
    };
    (0..SIZE).map(member).collect()
}

fn ask(pod: &Pod, members: &[Policy], timeout: &str) -> Answer {
    let path = format!("/admit/{}?timeout={timeout}", members[0].group());
    pod.new_client().post(&path, Review::small_pod().bytes()).expect("an answer")
}

/// Asserts that only the sleeper timed out, and that the verdicts of the others are in the answer.
fn assert_only_the_sleeper_is_blamed(answer: &Answer, members: &[Policy], place: usize, denies: bool) {
    let verdict = answer.verdict();
    let told = format!("policy {} was not evaluated: {}: ", members[place].id(), Reason::EvaluationTimedOut);
    let [warning] = &verdict.warnings[..] else { panic!("want one warning in {verdict:?}") };
    assert!(warning.starts_with(&told), "{warning}");
    for (number, member) in members.iter().enumerate().filter(|(number, _)| *number != place) {
        let generation = verdict.annotations.get(&format!("cluster.{}.generation", member.name()));
        assert_eq!(generation.map(String::as_str), Some("1"), "{number} in {verdict:?}");
        let missed = verdict.annotations.get(&format!("cluster.{}.policy-not-evaluated", member.name()));
        assert_eq!(missed, None, "{number} in {verdict:?}");
    }
    assert_eq!((verdict.allowed, verdict.patch.is_some()), (!denies, !denies), "{verdict:?}");
    assert_eq!(verdict.message.contains("not like this"), denies, "{verdict:?}");
}

/// The requests come with the 17 s of these four's webhook, and with the 10 s that it would have if the members did not run in turn.
#[test]
fn fault_z03_a_mutating_member_that_uses_all_its_time_takes_none_of_the_others() {
    let folder = Folder::with_canary();
    let groups: Vec<_> = (0..SIZE)
        .flat_map(|place| [false, true].map(|denies| (place, denies)))
        .map(|(place, denies)| {
            let members = four(&format!("sleeps-{place}-{denies}"), place, denies);
            members.iter().for_each(|member| folder.put(member));
            (place, denies, members)
        })
        .collect();
    let pod = Pod::on(&folder).start();
    for (_, _, members) in &groups {
        members.iter().for_each(|member| drop(pod.wait_current(&member.id(), 1)));
    }
    for timeout in ["17s", "10s"] {
        thread::scope(|scope| {
            for (place, denies, members) in &groups {
                scope.spawn(|| {
                    let sleeper = members[*place].id();
                    let answer = pod.within(Duration::from_secs(14), &sleeper, || ask(&pod, members, timeout));
                    assert_only_the_sleeper_is_blamed(&answer, members, *place, *denies);
                });
            }
        });
    }
}

#[test]
fn fault_z03_who_was_never_asked_says_so_and_not_that_it_took_too_long() {
    let folder = Folder::with_canary();
    let members: Vec<_> =
        four("late", 0, false).into_iter().map(|member| member.spec("failurePolicy", "Fail")).collect();
    members.iter().for_each(|member| folder.put(member));
    let pod = Pod::on(&folder).start();
    members.iter().for_each(|member| drop(pod.wait_current(&member.id(), 1)));
    let verdict = ask(&pod, &members, "5ms").verdict();
    assert!(!verdict.allowed && verdict.patch.is_none(), "{verdict:?}");
    for member in &members {
        let told = format!("policy {}: {}: the policy was not asked", member.id(), Reason::EvaluationSkipped);
        assert!(verdict.message.contains(&told), "no {told:?} in {verdict:?}");
    }
    assert!(!verdict.message.contains(Reason::EvaluationTimedOut.as_str()), "{verdict:?}");
}
