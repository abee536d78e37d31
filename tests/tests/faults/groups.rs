//! Section 11, without the rows that need an API server: match groups.

use std::thread;

use portcullis_contract::Reason;
use portcullis_tests::{FLOODED, Folder, LIMIT, Pod, Policy, Review, Verdict, eventually, heavy};

const SIZE: usize = 5;

/// A group of five on a resource of its own, with `bad` in one place; the others deny with their number.
fn five(resource: &str, place: usize, bad: &Policy) -> Vec<Policy> {
    let member = |number: usize| {
        let name = format!("{resource}-{number}");
        match number == place {
            true => bad.renamed(&name).on(resource),
            false => Policy::cluster(&format!("member-{number}"))
                .denying(&format!("no {number}"))
                .renamed(&name)
                .on(resource),
        }
    };
    (0..SIZE).map(member).collect()
}

/// Asserts that the verdicts of the four others are in the answer, in the order of their ids.
fn assert_others_deny(verdict: &Verdict, members: &[Policy], place: usize) {
    assert!(!verdict.allowed && verdict.patch.is_none(), "{verdict:?}");
    let mut rest = verdict.message.as_str();
    for (number, member) in members.iter().enumerate().filter(|(number, _)| *number != place) {
        let text = format!("policy {}: no {number}", member.id());
        let at = rest.find(&text).unwrap_or_else(|| panic!("no {text:?} in its order in {verdict:?}"));
        rest = &rest[at + text.len()..];
        let key = format!("cluster.{}.generation", member.name());
        assert_eq!(verdict.annotations.get(&key).map(String::as_str), Some("1"), "{verdict:?}");
    }
    assert_eq!(verdict.code, 403, "several deny: {verdict:?}");
}

fn causes(verdict: &Verdict) -> Vec<(String, String)> {
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let causes = verdict.details["causes"].as_array().into_iter().flatten();
    causes.map(|cause| (text(&cause["field"]), text(&cause["reason"]))).collect()
}

/// Writes two groups for each place of the bad member, one with `failurePolicy: Fail` and one with `Ignore`. Returns each group with
/// that place, and with whether it is the one with `Fail`.
fn put_groups(
    folder: &Folder,
    kind: &str,
    members: impl Fn(&str, usize) -> Vec<Policy>,
) -> Vec<(usize, bool, Vec<Policy>)> {
    let both = |place| {
        let lax = members(&format!("{kind}-lax-{place}"), place);
        let lax = lax.into_iter().map(Policy::ignoring_failure).collect();
        [(place, true, members(&format!("{kind}-{place}"), place)), (place, false, lax)]
    };
    let groups: Vec<_> = (0..SIZE).flat_map(both).collect();
    for (_, _, members) in &groups {
        members.iter().for_each(|member| folder.put(member));
    }
    groups
}

/// Asserts what a verdict says about five members of which one failed: with `failurePolicy: Fail` all five are in the answer, the bad one with
/// its reason, and with `Ignore` the bad one is a warning beside four denials.
fn assert_one_failed(verdict: &Verdict, members: &[Policy], place: usize, is_strict: bool, reason: Reason) {
    assert_others_deny(verdict, members, place);
    let bad = members[place].id();
    let causes = causes(verdict);
    if is_strict {
        let told = format!("policy {bad}: {reason}: ");
        assert!(verdict.message.contains(&told), "no {told:?} in {verdict:?}");
        assert_eq!(causes.len(), SIZE, "{verdict:?}");
        assert_eq!(causes[place], (bad, reason.to_string()), "{verdict:?}");
    } else {
        assert!(!verdict.message.contains(&bad), "{verdict:?}");
        assert_eq!(causes.len(), SIZE - 1, "{verdict:?}");
        let [warning] = &verdict.warnings[..] else { panic!("want one warning in {verdict:?}") };
        assert!(warning.contains(&bad) && warning.contains(reason.as_str()), "{warning}");
        let key = format!("cluster.{}.policy-not-evaluated", members[place].name());
        assert_eq!(verdict.annotations.get(&key), Some(&format!("{bad}/{reason}")), "{verdict:?}");
    }
}

/// Asks a group of five with one that always fails, for each place of it.
fn assert_one_of_five(kind: &str, bad: &Policy, reason: Reason) {
    let folder = Folder::with_canary();
    let groups = put_groups(&folder, kind, |resource, place| five(resource, place, bad));
    let pod = Pod::on(&folder).start();
    for (place, is_strict, members) in &groups {
        members.iter().for_each(|member| drop(pod.wait_current(&member.id(), 1)));
        let verdict = pod.admit(&members[0].group(), &Review::pod()).verdict();
        assert_one_failed(&verdict, members, *place, *is_strict, reason);
    }
}

#[test]
fn fault_w13_one_of_five_traps() {
    assert_one_of_five("traps", &Policy::cluster("bad").guest("trap_unreachable"), Reason::EvaluationTrapped);
}

#[test]
fn fault_w13_one_of_five_times_out() {
    assert_one_of_five("loops", &Policy::cluster("bad").guest("endless_loop").timeout(2), Reason::EvaluationTimedOut);
}

#[test]
fn fault_w13_one_of_five_answers_nonsense() {
    assert_one_of_five("nonsense", &Policy::cluster("bad").guest("not_json"), Reason::ResponseInvalid);
}

/// The same for mutating members, which run in turn. With `failurePolicy: Ignore` the change of the four others is sent, with a warning
/// about the bad one; with `Fail` the denial names the bad one, and there is no patch. All four are asked in both cases.
fn assert_one_of_five_mutating(kind: &str, bad: &Policy, reason: Reason) {
    let members = |resource: &str, place: usize| -> Vec<Policy> {
        let good = Policy::cluster("good").guest("mutates_label");
        let member = |number: usize| {
            let one = if number == place { bad } else { &good };
            one.renamed(&format!("{resource}-{number}")).on(resource).mutating()
        };
        (0..SIZE).map(member).collect()
    };
    let folder = Folder::with_canary();
    let groups = put_groups(&folder, kind, members);
    let pod = Pod::on(&folder).start();
    for (place, is_strict, members) in &groups {
        members.iter().for_each(|member| drop(pod.wait_current(&member.id(), 1)));
        let bad = members[*place].id();
        let review = Review::small_pod();
        let verdict = pod.admit(&members[0].group(), &review).verdict();
        for (_, member) in members.iter().enumerate().filter(|(number, _)| number != place) {
            let key = format!("cluster.{}.generation", member.name());
            assert_eq!(verdict.annotations.get(&key).map(String::as_str), Some("1"), "{verdict:?}");
        }
        if *is_strict {
            assert!(!verdict.allowed && verdict.patch.is_none(), "{verdict:?}");
            assert_eq!(causes(&verdict), [(bad, reason.to_string())], "{verdict:?}");
        } else {
            assert!(verdict.allowed, "{verdict:?}");
            assert_eq!(verdict.patched(review.object())["metadata"]["labels"]["team"], "web", "{verdict:?}");
            let [warning] = &verdict.warnings[..] else { panic!("want one warning in {verdict:?}") };
            assert!(warning.contains(&bad) && warning.contains(reason.as_str()), "{warning}");
        }
    }
}

#[test]
fn fault_w13_one_of_five_mutating_members_traps() {
    let bad = Policy::cluster("bad").guest("trap_unreachable");
    assert_one_of_five_mutating("mutating-traps", &bad, Reason::EvaluationTrapped);
}

#[test]
fn fault_w13_one_of_five_mutating_members_times_out() {
    let bad = Policy::cluster("bad").guest("endless_loop").timeout(2);
    assert_one_of_five_mutating("mutating-loops", &bad, Reason::EvaluationTimedOut);
}

/// The bad member gets so many other calls that its share is used up.
#[test]
fn fault_w13_one_of_five_is_overloaded() {
    let _alone = heavy();
    let folder = Folder::with_canary();
    let bad = Policy::cluster("bad").guest("endless_loop").timeout(2);
    let groups = put_groups(&folder, "busy", |resource, place| five(resource, place, &bad));
    let pod = Pod::on(&folder).canary_within(FLOODED, "200 calls at once never end").start();
    for (place, is_strict, members) in &groups {
        members.iter().for_each(|member| drop(pod.wait_current(&member.id(), 1)));
        let bad = members[*place].id();
        let refused = || pod.evaluation_errors(&bad, Reason::Overloaded);
        let ask_while_busy = || {
            let before = refused();
            thread::scope(|scope| {
                // Twice as many calls as may run and wait; each of them takes the whole time limit of the policy.
                let busy = scope.spawn(|| pod.new_client().ask_at_once(200, &bad, &Review::pod()));
                eventually("the first to be refused", || (refused() > before).then_some(()));
                let verdict = pod.admit(&members[0].group(), &Review::pod()).verdict();
                busy.join().expect("all are answered");
                verdict
            })
        };
        // On a slow machine the other calls may be over before this one, which then times out instead.
        let verdict = eventually(&format!("{bad} to be {}", Reason::Overloaded), || {
            let verdict = ask_while_busy();
            assert_others_deny(&verdict, members, *place);
            let timed_out = verdict.raw.to_string().contains(Reason::EvaluationTimedOut.as_str());
            (!timed_out).then_some(verdict)
        });
        assert_one_failed(&verdict, members, *place, *is_strict, Reason::Overloaded);
    }
}

#[test]
fn fault_w15_group_that_nobody_knows() {
    let folder = Folder::with_canary();
    let policy = Policy::cluster("denies").guest("always_deny").on("services");
    let other = Policy::cluster("other").guest("always_deny").on("secrets");
    folder.put(&policy);
    let pod = Pod::on(&folder).loader("--tombstone", "20s").start();
    pod.wait_current("cluster/denies", 1);
    let ask = |group: &str| pod.client().post(&format!("/admit/{group}"), Review::pod().bytes()).expect("answers");

    let group = policy.group();
    for unknown in ["0123456789abcdef", &other.group(), &group.to_uppercase(), &group[1..], &format!("{group}0"), "x"] {
        let answer = ask(unknown);
        assert_eq!(answer.status, 404, "{answer:?}");
        assert!(answer.json()["message"].as_str().is_some_and(|text| text.contains(unknown)), "{answer:?}");
    }
    assert!(!ask(&group).verdict().allowed);

    // A group without members goes on answering for a while, and is then unknown, like one that never existed.
    folder.remove(&policy);
    eventually("the group to allow", || ask(&group).verdict().allowed.then_some(()));
    portcullis_tests::eventually_within(LIMIT, "the tombstone to end", || (ask(&group).status == 404).then_some(()));

    // A new member brings the group back.
    folder.put(&policy);
    eventually("the group to deny", || {
        let answer = ask(&group);
        (answer.status == 200 && !answer.verdict().allowed).then_some(())
    });
}

/// A webhook registered for other namespaces can lead to the group of a tenant. Its members are passed over there.
#[test]
fn a_namespaced_member_is_asked_about_its_own_namespace_only() {
    let folder = Folder::with_canary();
    let policies = [
        Policy::namespaced("team-a", "denies").denying("the tenant says no"),
        Policy::namespaced("team-a", "mutates").guest("mutates_label").mutating(),
    ];
    policies.iter().for_each(|policy| folder.put(policy));
    let pod = Pod::on(&folder).start();
    for policy in &policies {
        pod.wait_current(&policy.id(), 1);
        let ask = |namespace: serde_json::Value| {
            pod.admit(&policy.group(), &Review::small_pod().with("/namespace", namespace)).verdict()
        };
        let own = ask("team-a".into());
        assert!(!own.allowed || own.patch.is_some(), "{own:?}");
        for namespace in ["team-b".into(), "".into(), serde_json::Value::Null] {
            let other = ask(namespace);
            assert!(other.allowed && other.patch.is_none() && other.warnings.is_empty(), "{other:?}");
            let key = format!("namespaced.team-a.{}.policy-outside-its-namespace", policy.name());
            assert_eq!(other.annotations.get(&key), Some(&policy.id()), "{other:?}");
        }
    }
}
