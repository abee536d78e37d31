//! Section 14: more modules than there is room for, on the volume and in the evaluator's folder of private copies.

use portcullis_contract::{EvaluatorState, Reason};
use portcullis_tests::{
    FLOODED, Folder, LIMIT, Pod, Policy, Review, bytes_below, eventually, eventually_within, heavy, large_module,
};

/// Policies of the greedy namespace, each with a module of its own.
const FLOOD: usize = 40;
/// The bytes of each module. Its artifact is a little larger, so together they take 80 MiB for modules and more than that for artifacts.
const MODULE: usize = 2 << 20;
const GREEDY: &str = "namespaced/a-greedy/";

fn greedy(n: usize) -> Policy {
    Policy::namespaced("a-greedy", &format!("large-{n}")).bytes(large_module(&format!("greedy {n}"), MODULE))
}

/// Policies of others, which have large modules too.
fn others(generation: usize) -> [Policy; 3] {
    let with = |policy: Policy, name: &str| policy.bytes(large_module(&format!("{name} {generation}"), MODULE));
    [
        with(Policy::cluster("guard"), "guard"),
        with(Policy::namespaced("team-a", "one"), "one"),
        with(Policy::namespaced("team-b", "two"), "two"),
    ]
}

fn assert_denies(pod: &Pod, policy: &Policy, text: &str) {
    let verdict = pod.ask(&policy.id(), &Review::pod()).verdict();
    assert!(!verdict.allowed && verdict.message == text, "{}: {verdict:?}", policy.id());
}

/// Waits until every policy of the flood has loaded or been refused, and returns how many serve. Asserts that the folder always has less
/// than `most` bytes.
fn settled(pod: &Pod, folder: &str, most: u64) -> usize {
    let is_greedy = |id: &str| id.starts_with(GREEDY);
    let told = |state: &EvaluatorState| {
        let full = state.deviations.iter().filter(|deviation| is_greedy(deviation.id.as_str()));
        full.filter(|deviation| deviation.failure.as_ref().is_some_and(|failure| failure.reason == Reason::VolumeFull))
            .count()
    };
    eventually_within(4 * LIMIT, "every policy of the flood to serve or to say that there is no room", || {
        let bytes = bytes_below(&pod.path(folder));
        assert!(bytes < most, "{folder} has {bytes} bytes");
        let state = pod.evaluator_state()?;
        let served = state.current.keys().filter(|id| is_greedy(id.as_str())).count();
        (served + told(&state) == FLOOD).then_some(served)
    })
}

/// Asserts that the policies of others load beside a flood, and load again in a fresh pod.
fn flood(flag: (&str, u64), folder_name: &str, is_loader: bool) {
    let _alone = heavy();
    let folder = Folder::with_canary();
    (0..FLOOD).for_each(|n| folder.put(&greedy(n)));
    let (name, size) = flag;
    let setup = Pod::on(&folder);
    let setup = if is_loader { setup.loader(name, size) } else { setup.evaluator(name, size) };
    let pod = setup
        .evaluator("--start-gate", "5s")
        .canary_within(FLOODED, "large modules are loaded one after the other")
        .begin();
    pod.wait_current("cluster/canary", 1);
    let served = settled(&pod, folder_name, size);
    assert!((FLOOD / 8..FLOOD / 2).contains(&served), "{served} of the flood serve");
    let state = pod.evaluator_state().expect("answers");
    let full = state.deviations.first().and_then(|one| one.failure.clone()).expect("somebody has no room");
    assert!(full.message.contains("namespace a-greedy"), "{}", full.message);
    assert!(full.next_retry_time.is_some() && full.class().is_retryable());

    // There is room for the modules and artifacts of others.
    for generation in 1..=3 {
        let others = others(generation);
        others.iter().for_each(|policy| folder.put(policy));
        for policy in &others {
            pod.wait_current(&policy.id(), i64::try_from(generation).expect("a small number"));
        }
        for (policy, text) in others.iter().zip(["guard", "one", "two"]) {
            assert_denies(&pod, policy, &format!("{text} {generation}"));
        }
    }
    assert!(settled(&pod, folder_name, size) >= served, "what served goes on");
    assert_eq!(pod.loader_state().and_then(|state| state.volume_failure), None, "the volume itself is well");

    pod.canary().pause();
    pod.start_fresh();
    pod.resume_canary();
    for policy in &others(3) {
        let serves = || pod.evaluator_state().filter(|state| state.current.contains_key(policy.id().as_str()));
        eventually_within(2 * LIMIT, &format!("{} to serve in a fresh pod", policy.id()), serves);
    }
    settled(&pod, folder_name, size);

    // Without the flood there is room for all.
    (1..FLOOD).for_each(|n| folder.remove(&greedy(n)));
    folder.put(&greedy(0));
    eventually_within(2 * LIMIT, "nobody to lack room", || {
        pod.evaluator_state().filter(|state| state.deviations.is_empty())
    });
}

#[test]
fn fault_z08_one_namespace_floods_the_volume() {
    flood(("--volume-size", 96 << 20), "volume", true);
}

#[test]
fn fault_z08_one_namespace_floods_the_folder_of_private_copies() {
    flood(("--private-size", 48 << 20), "private", false);
}

#[test]
fn fault_z08_a_compiled_module_above_the_limit() {
    let folder = Folder::with_canary();
    folder.put(&greedy(0));
    let pod = Pod::on(&folder).loader("--max-artifact-size", "1MiB").start();
    let failure = pod.assert_unserved(&greedy(0).id(), Reason::CompileLimit);
    assert!(failure.message.contains("(--max-artifact-size)"), "{}", failure.message);
    eventually("no temporary file to be left", || pod.volume().temporary_files().is_empty().then_some(()));
}
