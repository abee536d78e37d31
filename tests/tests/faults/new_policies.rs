//! Section 14: a new policy that cannot be loaded joins a match group with working members. No request is denied because of it.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use portcullis_contract::Reason;
use portcullis_tests::{Folder, Pod, Policy, Program, Review, StopOnDrop, Verdict, eventually};
use serde_json::{Value, json};

/// New policies that are broken in different ways, each with the reason in its status.
fn broken() -> Vec<(Policy, Reason)> {
    let group = |name: &str, expression: &str| {
        let members = json!({"one": {"module": "modules/one.wasm"}});
        let policy = Policy::cluster(name).spec("module", Value::Null).spec("policies", members);
        policy.spec("expression", expression).spec("message", "no")
    };
    vec![
        (Policy::cluster("new-missing").module("modules/nobody-has-it.wasm"), Reason::NotFound),
        (
            Policy::cluster("new-rego-text").bytes("package policy\n\ndeny[msg] { msg := \"no\" }\n"),
            Reason::ModuleInvalid,
        ),
        (Policy::cluster("new-unsupported").guest("unknown_import"), Reason::ModuleUnsupported),
        (Policy::cluster("new-settings").guest("bad_settings"), Reason::SettingsInvalid),
        (Policy::cluster("new-trap").guest("trap_in_init"), Reason::InstantiationFailed),
        (group("new-members", "one() && none()"), Reason::SpecInvalid),
        (group("new-expression", "one( &&"), Reason::SpecInvalid),
    ]
}

/// A kind of match group: how its members are made, and which request they get.
struct Kind {
    resource: &'static str,
    make: fn(Policy) -> Policy,
    keepers: Vec<Policy>,
    review: fn() -> Review,
    /// Whether this is the right verdict of the existing members.
    right: fn(&Verdict) -> bool,
}

fn validating() -> Kind {
    let labels = Policy::cluster("keeper-labels").example("required-labels").settings(json!({"labels": ["team"]}));
    Kind {
        resource: "services",
        make: |policy| policy,
        keepers: vec![labels, Policy::cluster("keeper-calm").guest("always_accept")],
        review: Review::pod,
        right: |verdict| verdict.allowed,
    }
}

fn mutating() -> Kind {
    Kind {
        resource: "secrets",
        make: Policy::mutating,
        keepers: vec![Policy::cluster("keeper-label").guest("mutates_label")],
        review: Review::small_pod,
        right: |verdict| verdict.allowed && verdict.patch.is_some(),
    }
}

fn key(policy: &Policy) -> String {
    format!("cluster.{}.policy-not-yet-enforced", policy.name())
}

/// Asserts that the group of the keepers judges as before and names the newcomers in annotations, and that the group of a newcomer that is
/// alone allows. On its own path, a newcomer answers that it is unserved.
fn assert_passed_over(pod: &Pod, kind: &Kind, group: &str, newcomers: &[(Policy, Reason)], alone: &[(Policy, Reason)]) {
    let verdict = pod.admit(group, &(kind.review)()).verdict();
    assert!((kind.right)(&verdict) && verdict.warnings.is_empty(), "{verdict:?}");
    for (policy, reason) in newcomers {
        assert_eq!(verdict.annotations.get(&key(policy)), Some(&policy.id()), "{verdict:?}");
        pod.assert_unserved(&policy.id(), *reason);
    }
    for keeper in &kind.keepers {
        assert!(verdict.annotations.contains_key(&format!("cluster.{}.generation", keeper.name())), "{verdict:?}");
    }
    for (policy, reason) in alone {
        pod.wait_failure(&policy.id(), *reason);
        let verdict = pod.admit(&policy.group(), &(kind.review)()).verdict();
        assert!(verdict.allowed && verdict.patch.is_none() && verdict.warnings.is_empty(), "{verdict:?}");
        assert_eq!(verdict.annotations, [(key(policy), policy.id())].into(), "{verdict:?}");
    }
}

fn assert_nobody_notices(kind: &Kind) {
    let folder = Folder::with_canary();
    let keepers: Vec<_> = kind.keepers.iter().map(|keeper| (kind.make)(keeper.clone()).on(kind.resource)).collect();
    keepers.iter().for_each(|keeper| folder.put(keeper));
    let pod = Pod::on(&folder).start();
    keepers.iter().for_each(|keeper| drop(pod.wait_current(&keeper.id(), 1)));
    let group = keepers[0].group();
    let newcomers: Vec<_> =
        broken().into_iter().map(|(policy, why)| ((kind.make)(policy).on(kind.resource), why)).collect();
    let alone = |(number, (policy, why)): (usize, (Policy, Reason))| {
        let policy = (kind.make)(policy.renamed(&format!("{}-alone", policy.name())));
        (policy.on(&format!("{}-{number}", kind.resource)), why)
    };
    let alone: Vec<_> = broken().into_iter().enumerate().map(alone).collect();

    // The group gets requests while the newcomers come, each with another mistake.
    let (done, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let busy = scope.spawn(|| {
            let client = pod.new_client();
            while !done.load(Ordering::SeqCst) {
                let verdict =
                    client.post(&format!("/admit/{group}"), (kind.review)().bytes()).expect("answers").verdict();
                assert!((kind.right)(&verdict), "somebody noticed: {verdict:?}");
                asked.fetch_add(1, Ordering::SeqCst);
            }
        });
        let stop = StopOnDrop(&done);
        for (policy, why) in newcomers.iter().chain(&alone) {
            folder.put(policy);
            pod.wait_failure(&policy.id(), *why);
        }
        let before = asked.load(Ordering::SeqCst);
        eventually("calls after the last one", || (asked.load(Ordering::SeqCst) > before + 20).then_some(()));
        drop(stop);
        busy.join().expect("nobody noticed");
    });
    assert_passed_over(&pod, kind, &group, &newcomers, &alone);
    for (policy, _) in &newcomers {
        let series = format!("portcullis_policy_passed_over_total{{policy=\"{}\"}}", policy.id());
        assert!(pod.metric(&series) > 0.0, "{series}");
    }

    // The same holds after a restart of each program, and after one with empty volumes.
    pod.canary().pause();
    let restarts: [(&str, &dyn Fn()); 3] = [
        ("evaluator", &|| pod.evaluator().restart_with(None)),
        ("loader", &|| pod.loader().restart_with(None)),
        ("pod", &|| pod.start_fresh()),
    ];
    for (what, restart) in restarts {
        restart();
        pod.wait_ready();
        keepers.iter().for_each(|keeper| drop(pod.wait_current(&keeper.id(), 1)));
        println!("after a restart of the {what}");
        assert_passed_over(&pod, kind, &group, &newcomers, &alone);
    }
    pod.resume_canary();

    // Once a newcomer is mended, it is asked.
    let mended = (kind.make)(Policy::cluster("new-missing").denying("mended")).on(kind.resource);
    folder.put(&mended);
    pod.assert_recovered(&mended.id(), 2);
    let verdict = pod.admit(&group, &(kind.review)()).verdict();
    assert!(!verdict.allowed && verdict.message.contains("mended"), "{verdict:?}");
}

#[test]
fn fault_z01_broken_newcomers_in_a_validating_group() {
    assert_nobody_notices(&validating());
}

#[test]
fn fault_z01_broken_newcomers_in_a_mutating_group() {
    assert_nobody_notices(&mutating());
}

/// A policy that was enforced once and can no longer be loaded is subject to its `failurePolicy`, also after restarts.
#[test]
fn fault_z01_w04_what_was_enforced_once_counts_for_ever() {
    let folder = Folder::with_canary();
    let strict = Policy::cluster("strict").guest("always_accept").on("services");
    let lax = Policy::cluster("lax").guest("trap_on_demand").on("secrets").ignoring_failure();
    let changing = Policy::cluster("changing").guest("mutates_label").on("secrets").mutating();
    let all = [&strict, &lax, &changing];
    all.into_iter().for_each(|policy| folder.put(policy));
    let pod = Pod::on(&folder).start();
    for policy in all {
        pod.wait_current(&policy.id(), 1);
        eventually("the mark", || pod.volume().entry(&policy.id()).enforced.then_some(()));
    }

    // Their modules are lost, on the volume and at their source. The records of the policies on the volume remain.
    pod.canary().pause();
    pod.evaluator().kill();
    pod.loader().kill();
    for name in ["always_accept", "trap_on_demand", "mutates_label"] {
        folder.write(&format!("policies/modules/{name}.wasm"), "no module");
    }
    for entry in fs::read_dir(folder.volume()).expect("a folder").flatten().filter(|entry| entry.path().is_dir()) {
        fs::remove_dir_all(entry.path()).expect("it is ours");
    }
    // Without this the evaluator could go on with a private copy, as after any restart.
    for entry in fs::read_dir(pod.path("private")).expect("a folder").flatten() {
        fs::remove_file(entry.path()).expect("it is ours");
    }
    pod.loader().start_again();
    pod.evaluator().start_again();
    for restart in [None, Some(Program::Loader), Some(Program::Evaluator)] {
        match restart {
            Some(Program::Loader) => pod.loader().restart_with(None),
            Some(_) => pod.evaluator().restart_with(None),
            None => {}
        }
        pod.wait_ready();
        pod.wait_failure(&lax.id(), Reason::ModuleInvalid);
        let review = Review::small_pod();
        pod.ask(&lax.id(), &review).assert_ignored(&review, &lax.id(), Reason::ModuleInvalid);
        for policy in [&strict, &changing] {
            pod.assert_unserved(&policy.id(), Reason::ModuleInvalid);
            let verdict = pod.admit(&policy.group(), &Review::small_pod()).verdict();
            let text = format!("policy {}: {}: ", policy.id(), Reason::ModuleInvalid);
            assert!(!verdict.allowed && verdict.message.starts_with(&text), "{verdict:?}");
        }
        let verdict = pod.admit(&lax.group(), &Review::small_pod()).verdict();
        let told = verdict.annotations.get("cluster.lax.policy-not-evaluated").map(String::as_str);
        assert!(verdict.allowed && told == Some("cluster/lax/ModuleInvalid"), "{verdict:?}");
    }
    pod.resume_canary();

    // A policy that is deleted and created again is a new one.
    folder.remove(&strict);
    eventually("it to be forgotten", || (pod.ask(&strict.id(), &Review::pod()).status == 404).then_some(()));
    folder.put(&strict.clone().module("modules/nobody-has-it.wasm"));
    pod.wait_failure(&strict.id(), Reason::NotFound);
    let verdict = pod.admit(&strict.group(), &Review::pod()).verdict();
    assert!(verdict.allowed && verdict.annotations.contains_key(&key(&strict)), "{verdict:?}");
}
