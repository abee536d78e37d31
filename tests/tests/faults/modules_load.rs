//! Section 5, first half: modules that are refused before they serve.

use portcullis_contract::Reason;
use portcullis_tests::{Canary, Folder, Pod, Policy, Reply, Review, Source, eventually, guest, heavy};

const UPDATED: &str = "cluster/updated";

/// Each guest is refused for this reason, with this word in the message, as a new policy; the last one of them also as an
/// update, which keeps the old generation. Others go on, and a good module mends the update.
fn assert_refused(reason: Reason, guests: &[(&str, &str)]) {
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("updated").denying("generation one"));
    let pod = Pod::on(&folder).start();
    let canary = Canary::on(&pod);
    pod.wait_current(UPDATED, 1);

    let name = |guest: &str| guest.replace('_', "-");
    for (guest, _) in guests {
        folder.put(&Policy::cluster(&name(guest)).guest(guest));
    }
    for (guest, word) in guests {
        let failure = pod.assert_unserved(&format!("cluster/{}", name(guest)), reason);
        assert!(failure.message.contains(word), "{guest}: no {word:?} in {:?}", failure.message);
        assert_eq!(failure.next_retry_time, None, "{guest}: a final failure is not retried");
    }
    let (last, _) = guests.last().expect("there is one");
    folder.put(&Policy::cluster("updated").guest(last));
    pod.assert_kept(UPDATED, reason, 1, |verdict| verdict.message == "generation one");
    folder.put(&Policy::cluster("updated").denying("generation three"));
    pod.assert_recovered(UPDATED, 3);
    canary.finish(&pod);
}

#[test]
fn fault_m01_a_web_page_instead_of_a_module() {
    let source = Source::https();
    let page = "<!doctype html><html><title>Sign in</title></html>";
    source.answer("/m.wasm", [Reply::ok(page).header("content-type", "text/html")]);
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("updated").denying("generation one"));
    let pod = Pod::on(&folder).loader("--source-ca", source.ca_file(&folder)).start();
    let canary = Canary::on(&pod);
    pod.wait_current(UPDATED, 1);

    folder.put(&Policy::cluster("page").module(&source.url("/m.wasm")));
    folder.put(&Policy::cluster("updated").module(&source.url("/m.wasm")));
    pod.assert_unserved("cluster/page", Reason::ModuleInvalid);
    pod.assert_kept(UPDATED, Reason::ModuleInvalid, 1, |verdict| verdict.message == "generation one");

    source.answer("/m.wasm", [Reply::module()]);
    // A final failure ends with an edit only; a setting that the module ignores is one.
    folder.put(&Policy::cluster("page").module(&source.url("/m.wasm")).settings(serde_json::json!({"edit": 1})));
    pod.assert_recovered("cluster/page", 2);
    canary.finish(&pod);
}

#[test]
fn fault_m02_cut_and_mutated_modules() {
    const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
    let _alone = heavy();
    let folder = Folder::with_canary();
    let pod = Pod::on(&folder).without(portcullis_tests::Program::Reporter).start();
    let canary = Canary::on(&pod);
    let before = pod.loader().usage();

    let mut random = Random(SEED);
    let originals = ["always_accept", "echo_settings", "wasi_accept"].map(guest);
    // More of them in a long run: the seed is fixed, so that a failure can be repeated.
    let count = std::env::var("PORTCULLIS_TEST_MODULES").ok().and_then(|text| text.parse().ok()).unwrap_or(300);
    for number in 0..count {
        let mut module = originals[random.below(originals.len())].clone();
        if number % 3 == 0 {
            module.truncate(random.below(module.len()));
        } else {
            for _ in 0..1 + random.below(8) {
                let at = random.below(module.len());
                module[at] ^= 1 << random.below(8);
            }
        }
        folder.put(&Policy::cluster(&format!("mutant-{number}")).bytes(module));
    }
    // Some mutants are as good as new: a flipped bit in a text. The others are refused, each with a final reason of its own.
    let done = |pod: &Pod| {
        let state = pod.evaluator_state()?;
        let is_final = |reason: Reason| !reason.class().is_retryable();
        let failed = state.deviations.iter().filter(|d| d.failure.as_ref().is_some_and(|f| is_final(f.reason))).count();
        (failed + state.current.len() > count).then_some((failed, state.current.len()))
    };
    let (failed, _) =
        portcullis_tests::eventually_within(std::time::Duration::from_secs(600), "all mutants to be judged", || {
            done(&pod)
        });
    assert!(failed > count / 2, "most mutants are refused: {failed} of {count}, seed {SEED:#x}");
    let after = pod.loader().usage();
    assert!(after.resident < before.resident + (64 << 20), "{before} became {after}");
    canary.finish(&pod);
}

/// A generator with a fixed seed (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(limit.max(1)).expect("it is small")).expect("it is below the limit")
    }
}

#[test]
fn fault_m03_unknown_imports() {
    assert_refused(
        Reason::ModuleUnsupported,
        &[("long_import", "portcullis_test"), ("unknown_wapc_import", "wapc"), ("unknown_import", "no_such_function")],
    );
}

#[test]
fn fault_m04_exports_missing_or_of_another_kind() {
    assert_refused(
        Reason::ModuleUnsupported,
        &[
            ("empty", "memory"),
            ("missing_guest_call", "__guest_call"),
            ("missing_memory", "memory"),
            ("guest_call_is_a_global", "__guest_call"),
            ("wrong_signature", "__guest_call"),
            ("wrong_import_signature", "wapc"),
            ("opa_abi", "env"),
            ("wasi_missing_start", "_start"),
        ],
    );
}

#[test]
fn fault_m05_proposals_that_are_switched_off() {
    assert_refused(
        Reason::ModuleUnsupported,
        &[
            ("threads", "threads"),
            ("memory64", "64-bit memory"),
            ("component", "component"),
            ("gc", "garbage collection"),
        ],
    );
}

#[test]
fn fault_m08_first_memory_above_the_limit() {
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("just-below").guest("memory_just_below_limit"));
    folder.put(&Policy::cluster("above").guest("huge_first_memory"));
    let pod = Pod::on(&folder).start();
    let canary = Canary::on(&pod);
    pod.assert_unserved("cluster/above", Reason::MemoryLimit);
    pod.assert_recovered("cluster/just-below", 1);
    assert!(pod.ask("cluster/just-below", &Review::pod()).verdict().allowed);

    // The limit is a setting, and only an edit of the policy helps against it.
    folder.put(&Policy::cluster("just-below").guest("huge_first_memory"));
    pod.assert_kept("cluster/just-below", Reason::MemoryLimit, 1, |verdict| verdict.allowed);
    canary.finish(&pod);
}

#[test]
fn fault_m11_start_never_returns() {
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("updated").denying("generation one"));
    let pod = Pod::on(&folder).start();
    let canary = Canary::on(&pod);
    pod.wait_current(UPDATED, 1);

    let loops = ["loop_in_init", "loop_in_start_export", "start_loop"];
    for guest in loops {
        folder.put(&Policy::cluster(&guest.replace('_', "-")).guest(guest));
    }
    for guest in loops {
        pod.assert_unserved(&format!("cluster/{}", guest.replace('_', "-")), Reason::StartTimedOut);
    }
    folder.put(&Policy::cluster("updated").guest("start_loop"));
    pod.assert_kept(UPDATED, Reason::StartTimedOut, 1, |verdict| verdict.message == "generation one");
    // Whatever loads is free again.
    folder.put(&Policy::cluster("updated").denying("generation three"));
    pod.assert_recovered(UPDATED, 3);
    canary.finish(&pod);
}

#[test]
fn fault_m12_start_traps() {
    assert_refused(
        Reason::InstantiationFailed,
        &[("trap_in_init", ""), ("exit_1_in_start_export", ""), ("start_trap", "")],
    );
}

#[test]
fn fault_m12_exit_with_0_is_no_failure() {
    let folder = Folder::empty();
    folder.put(&Policy::cluster("exits").guest("exit_0_in_start_export"));
    let pod = Pod::on(&folder).start();
    pod.assert_recovered("cluster/exits", 1);
    let verdict = eventually("an answer", || Some(pod.ask("cluster/exits", &Review::pod()).verdict()));
    assert!(verdict.allowed);
}
