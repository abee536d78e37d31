//! Section 14: slow modules of one namespace, and their effect on the other policies.

use std::time::Duration;

use portcullis_contract::{Digest, LoaderPolicy, Phase, Reason};
use portcullis_tests::{
    Folder, Moment, Pod, Policy, Program, Reply, Review, Source, eventually, guest_with, heavy, large_module,
};

use crate::compiling::monster;
use crate::hostile::{WASM, manifest, name, pod_with, serve};

/// The number of policies in the greedy namespace.
const SLOW: usize = 500;
/// How long the download of each of their modules takes: more than a quarter of an hour for all of them.
const EACH: Duration = Duration::from_secs(8);
/// The start gate: short in comparison, but long enough for debug builds on two cores.
const START_GATE: Duration = Duration::from_secs(45);
const GREEDY: &str = "namespaced/a-greedy/";

fn assert_denies(pod: &Pod, policy: &Policy, text: &str) {
    let verdict = pod.ask(&policy.id(), &Review::pod()).verdict();
    assert!(!verdict.allowed && verdict.message.contains(text), "{}: {verdict:?}", policy.id());
}

/// Waits until the pod, which was started at `since`, is ready. Asserts that all others serve then, and hardly any policy of the greedy
/// namespace. If other programs used the machine, the gate may open before the others serve; they still come long before the greedy ones.
fn assert_opens_with(pod: &Pod, since: &Moment, others: &[Policy]) {
    pod.wait_ready();
    let state = pod.evaluator_state().expect("answers");
    let was_disturbed = since.was_disturbed(START_GATE, &pod.moment());
    for policy in others {
        let is_there = state.current.contains_key(policy.id().as_str());
        assert!(is_there || was_disturbed, "{} is not there when the gate opens", policy.id());
        pod.wait_current(&policy.id(), 1);
        assert_denies(pod, policy, &policy.id());
    }
    let state = pod.evaluator_state().expect("answers");
    let greedy = state.current.keys().filter(|id| id.as_str().starts_with(GREEDY)).count();
    assert!(greedy < SLOW / 10, "{greedy} modules came, so that they are not slow");
}

#[test]
fn fault_z09_a_fresh_pod_beside_500_slow_modules_of_one_namespace() {
    let _alone = heavy();
    // All policies have the same host, as they often have the same registry.
    let source = Source::https();
    source.otherwise(|asked| match asked.path.strip_prefix("/denies/") {
        Some(text) => Reply::ok(guest_with("deny_text", text.as_bytes())),
        None => Reply::module_named(&asked.path).after(EACH),
    });
    let denying = |policy: Policy, text: &str| policy.module(&source.url(&format!("/denies/{text}")));
    let folder = Folder::with_canary();
    for n in 0..SLOW {
        // These names and addresses sort before those of the others.
        let policy = Policy::namespaced("a-greedy", &format!("slow-{n}")).module(&source.url(&format!("/a-slow/{n}")));
        folder.put(&policy);
    }
    let others = [
        Policy::cluster("guard"),
        Policy::cluster("watch"),
        Policy::namespaced("team-a", "one"),
        Policy::namespaced("team-a", "two"),
        Policy::namespaced("team-b", "one"),
    ];
    let others = others.map(|policy| {
        let id = policy.id();
        denying(policy, &id)
    });
    others.iter().for_each(|policy| folder.put(policy));
    let setup = Pod::on(&folder).loader("--source-ca", source.ca_file(&folder));
    let pod = setup.evaluator("--start-gate", format!("{}s", START_GATE.as_secs())).begin();
    assert_opens_with(&pod, &pod.moment(), &others);

    // A fresh pod has an empty volume.
    pod.canary().pause();
    pod.start_fresh();
    let since = pod.moment();
    pod.resume_canary();
    assert_opens_with(&pod, &since, &others);

    // Edits of the others arrive while hundreds of modules wait, also after a restart of the loader.
    for (generation, program) in [(2, None), (3, Some(Program::Loader))] {
        if program.is_some() {
            pod.loader().restart_with(None);
        }
        for policy in [&others[0], &others[4]] {
            let text = format!("{}-{generation}", policy.id());
            folder.put(&denying(policy.clone(), &text));
            pod.wait_current(&policy.id(), generation);
            assert_denies(&pod, policy, &text);
        }
    }
}

/// The loader's state of two policies, once the second is on the volume.
fn once_published(pod: &Pod, slow: &Policy, other: &Policy) -> LoaderPolicy {
    eventually(&format!("{} on the volume", other.id()), || {
        let state = pod.loader_state()?;
        let of = |policy: &Policy| state.policies.iter().find(|known| known.id.as_str() == policy.id()).cloned();
        (of(other)?.phase == Phase::Published).then(|| of(slow))?
    })
}

fn wait_phase(pod: &Pod, policy: &Policy, phase: Phase) {
    eventually(&format!("{} to be in the phase {phase:?}", policy.id()), || {
        let state = pod.loader_state()?;
        state.policies.iter().find(|known| known.id.as_str() == policy.id() && known.phase == phase).map(drop)
    });
}

/// With one compilation at a time, as in the chart.
#[test]
fn fault_z09_a_module_that_compiles_for_long_has_the_only_slot_when_those_of_others_arrive() {
    let folder = Folder::with_canary();
    // This limit is far longer than the other modules take even on a busy machine, and shorter than this one takes on any machine.
    let pod = Pod::on(&folder).loader("--compile-time", "20s").loader("--compile-jobs", "1").start();
    let slow = Policy::namespaced("a-greedy", "slow").bytes(monster());
    folder.put(&slow);
    // Those of ClusterPolicies do not wait for it, and those of other namespaces for some time only.
    for other in [Policy::cluster("guard"), Policy::cluster("watch"), Policy::namespaced("team-a", "one")] {
        wait_phase(&pod, &slow, Phase::Compiling);
        let text = format!("denied by {}", other.name());
        folder.put(&other.clone().denying(&text));
        let state = once_published(&pod, &slow, &other);
        assert_eq!(state.failure, None, "the slow one was not compiled for as long as it may be");
        pod.wait_current(&other.id(), 1);
        assert_denies(&pod, &other, &text);
    }
    // It has its turn after them.
    pod.assert_unserved(&slow.id(), Reason::CompileLimit);
}

#[test]
fn fault_z09_a_host_that_sends_the_module_of_others_slowly() {
    let (slow, registry) = (Source::https(), Source::https());
    let module = large_module("not like this", 1 << 18);
    let artifact = manifest(&module, &[WASM]).to_string();
    // All of it would take longer than a download may.
    serve(&slow, "a", artifact.as_bytes(), &module, Reply::ok(module.clone()).rate(2 << 10));
    let folder = Folder::with_canary();
    let greedy = Policy::namespaced("a-greedy", "first").module(&name(&slow, "a"));
    folder.put(&greedy);
    let pod = pod_with(&folder, &slow).start();
    let blobs = |source: &Source| {
        let blob = format!("/blobs/{}", Digest::of(&module));
        source.asked().iter().filter(|asked| asked.path.ends_with(&blob)).count()
    };
    eventually("the slow download to begin", || (blobs(&slow) == 1).then_some(()));
    let others = ["guard", "watch"].map(|repository| {
        serve(&registry, repository, artifact.as_bytes(), &module, Reply::ok(module.clone()));
        Policy::cluster(repository).module(&name(&registry, repository))
    });
    others.iter().for_each(|policy| folder.put(policy));
    for policy in &others {
        let state = once_published(&pod, &greedy, policy);
        assert_eq!((state.phase, state.failure), (Phase::Fetching, None), "the slow download goes on");
        pod.wait_current(&policy.id(), 1);
        assert_denies(&pod, policy, "not like this");
    }
    assert_eq!((blobs(&slow), blobs(&registry)), (1, 1), "policies that share a module of one host fetch it once");
    folder.remove(&greedy);
}
