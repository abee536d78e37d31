//! Section 5, first half: modules that are refused before they serve.

use std::process::Command;
use std::time::Duration;
use std::{env, fs};

use portcullis_contract::{Deviation, Reason};
use portcullis_tests::{
    Folder, LIMIT, Pod, Policy, Program, Reply, Review, Source, eventually, eventually_within, guest, heavy, note,
    skip, wat,
};

const UPDATED: &str = "cluster/updated";

/// Asserts that each guest is refused for this reason as a new policy, with this word in the message, and the last one also as an update,
/// where the old generation goes on serving. Other policies still work, and another update with a good module recovers.
fn assert_refused(reason: Reason, guests: &[(&str, &str)]) {
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("updated").denying("generation one"));
    let pod = Pod::on(&folder).start();
    pod.wait_current(UPDATED, 1);

    let name = |guest: &str| guest.replace('_', "-");
    for (guest, _) in guests {
        folder.put(&Policy::cluster(&name(guest)).guest(guest));
    }
    for (guest, word) in guests {
        let failure = pod.assert_unserved(&format!("cluster/{}", name(guest)), reason);
        assert!(failure.message.contains(word), "{guest}: no {word:?} in {:?}", failure.message);
        assert_eq!(failure.next_retry_time, None, "{guest}: a final failure is not retried");
        // Names from the module are cut to 256 bytes.
        assert!(failure.message.len() < 350, "{guest}: {}", failure.message);
    }
    let (last, _) = guests.last().expect("there is one");
    folder.put(&Policy::cluster("updated").guest(last));
    pod.assert_kept(UPDATED, reason, 1, |verdict| verdict.message == "generation one");
    folder.put(&Policy::cluster("updated").denying("generation three"));
    pod.assert_recovered(UPDATED, 3);
}

#[test]
fn fault_m01_a_web_page_instead_of_a_module() {
    let source = Source::https();
    let page = "<!doctype html><html><title>Sign in</title></html>";
    source.answer("/m.wasm", [Reply::ok(page).header("content-type", "text/html")]);
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("updated").denying("generation one"));
    let pod = Pod::on(&folder).loader("--source-ca", source.ca_file(&folder)).start();
    pod.wait_current(UPDATED, 1);

    folder.put(&Policy::cluster("page").module(&source.url("/m.wasm")));
    folder.put(&Policy::cluster("updated").module(&source.url("/m.wasm")));
    pod.assert_unserved("cluster/page", Reason::ModuleInvalid);
    pod.assert_kept(UPDATED, Reason::ModuleInvalid, 1, |verdict| verdict.message == "generation one");

    source.answer("/m.wasm", [Reply::module()]);
    // Only an edit ends a final failure. A new setting that the module ignores is an edit too.
    folder.put(&Policy::cluster("page").module(&source.url("/m.wasm")).settings(serde_json::json!({"edit": 1})));
    pod.assert_recovered("cluster/page", 2);
}

/// The mutants are random modules of wasm-smith, and policies with random changes of wasm-mutate. Each depends only on its number, so that
/// a failure can be repeated. A round is the next generation of the same policies. `PORTCULLIS_TEST_ROUNDS=40` tries ten thousand mutants,
/// which takes a quarter of an hour.
#[test]
fn fault_m02_a_thousand_mutants_go_through_a_loader() {
    const AT_ONCE: usize = 250;
    let rounds = env::var("PORTCULLIS_TEST_ROUNDS").map_or(4, |rounds| rounds.parse().expect("a number of rounds"));
    let Some(program) = env::var_os("PORTCULLIS_MUTANTS") else {
        skip("the program that writes broken modules was not built; `cargo xtask test` builds it");
        return;
    };
    let _alone = heavy();
    let folder = Folder::with_canary();
    let modules = folder.path("policies/modules");
    fs::create_dir_all(&modules).expect("a folder");
    let originals = ["always_accept", "echo_settings", "wasi_accept"].map(|name| {
        folder.write(&format!("{name}.wasm"), guest(name));
        folder.path(&format!("{name}.wasm"))
    });
    let pod = Pod::on(&folder).without(Program::Reporter).start();
    let (mut refused, mut before) = (0, None);
    for round in 0..rounds {
        let (first, generation) = (round * AT_ONCE, i64::try_from(round + 1).expect("it is small"));
        println!("mutants from number {first} on, as `mutants FOLDER {first} {AT_ONCE} POLICY...` writes them");
        let mut write = Command::new(&program);
        write.arg(&modules).args([first, AT_ONCE].map(|number| number.to_string())).args(&originals);
        assert!(write.status().expect("it was built").success(), "it cannot write them");
        for number in 0..AT_ONCE {
            let file = format!("modules/mutant-{}.wasm", first + number);
            // Some mutants never end.
            folder.put(&Policy::cluster(&format!("mutant-{number}")).module(&file).timeout(2));
        }
        refused += eventually_within(10 * LIMIT, &format!("mutants {first} and those after it to be judged"), || {
            let judged = judged(&pod, generation);
            judged.filter(|(accepted, refused)| accepted + refused == AT_ONCE).map(|(_, refused)| refused)
        });
        assert_refused_answers(&pod);
        // No policy uses the mutants of the previous round any longer.
        for number in first.saturating_sub(AT_ONCE)..first {
            fs::remove_file(modules.join(format!("mutant-{number}.wasm"))).expect("it was written");
        }
        let usage = pod.loader().usage();
        let first_usage = *before.get_or_insert(usage);
        assert!(
            usage.resident < first_usage.resident + (32 << 20),
            "{first_usage} became {usage}, mutants from {first} on"
        );
    }
    let all = AT_ONCE * rounds;
    note(&format!("{refused} of {all} mutants were refused"));
    // Some mutants still work, for instance those with a flipped bit in a text.
    assert!((all / 2..all).contains(&refused), "most mutants are refused: {refused} of {all}");
}

/// Asserts that a few of the mutants that are refused, and of which no generation serves, answer as UNSERVED.
fn assert_refused_answers(pod: &Pod) {
    let state = pod.evaluator_state().expect("it answers");
    let is_unserved =
        |deviation: &&Deviation| deviation.serving == 0 && deviation.id.as_str().starts_with("cluster/mutant-");
    let unserved: Vec<_> = state.deviations.iter().filter(is_unserved).take(5).collect();
    assert!(!unserved.is_empty(), "some mutants are refused in each round");
    for deviation in unserved {
        let (id, review) = (deviation.id.as_str(), Review::pod());
        let failure = deviation.failure.as_ref().expect("it does not serve");
        pod.ask(id, &review).assert_unserved(&review, id, failure.reason);
    }
}

/// How many mutants serve this generation, and how many have a failure that is not retried.
fn judged(pod: &Pod, generation: i64) -> Option<(usize, usize)> {
    let state = pod.evaluator_state()?;
    let is_mutant = |id: &str| id.starts_with("cluster/mutant-");
    let accepted =
        state.current.iter().filter(|(id, current)| is_mutant(id.as_str()) && current.generation == generation).count();
    let is_refused = |deviation: &&Deviation| {
        let failure = deviation.failure.as_ref().filter(|failure| failure.generation == generation);
        is_mutant(deviation.id.as_str()) && failure.is_some_and(|failure| !failure.class().is_retryable())
    };
    Some((accepted, state.deviations.iter().filter(is_refused).count()))
}

#[test]
fn fault_m03_unknown_imports() {
    assert_refused(
        Reason::ModuleUnsupported,
        &[
            ("long_import", "portcullis_test"),
            ("unknown_wapc_import", "wapc"),
            ("two_unknown_imports", "first_of_two"),
            ("unknown_import", "no_such_function"),
        ],
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
    pod.assert_unserved("cluster/above", Reason::MemoryLimit);
    pod.assert_recovered("cluster/just-below", 1);
    assert!(pod.ask("cluster/just-below", &Review::pod()).verdict().allowed);

    // An update to such a module fails too.
    folder.put(&Policy::cluster("just-below").guest("huge_first_memory"));
    pod.assert_kept("cluster/just-below", Reason::MemoryLimit, 1, |verdict| verdict.allowed);
}

/// Accepts every request, and has what is put in the place of `{parts}`.
const ACCEPTS: &str = r#"(module
  (import "wapc" "__guest_response" (func $respond (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "{\"valid\":true}")
  (data (i32.const 32) "{\"accepted\":true}")
  (func (export "__guest_call") (param $op_len i32) (param $len i32) (result i32)
    (if (i32.eq (local.get $op_len) (i32.const 17))
      (then (call $respond (i32.const 0) (i32.const 14)) (return (i32.const 1))))
    (call $respond (i32.const 32) (i32.const 17))
    (i32.const 1))
  {parts})"#;

#[test]
fn fault_m10_tables_above_the_limit() {
    assert_refused(Reason::MemoryLimit, &[("huge_first_table", "20000000 elements"), ("many_tables", "99 tables")]);

    let folder = Folder::with_canary();
    let pod = Pod::on(&folder).start();
    let put = |name: &str, part: &str, count: usize| {
        let module = wat(&ACCEPTS.replace("{parts}", &part.repeat(count)));
        folder.put(&Policy::cluster(name).bytes(module).timeout(20));
    };
    let (global, elements) = ("(global (mut i64) (i64.const 1))", "(elem func 0)");
    // Ten thousand do no harm, and are served.
    for (name, part) in [("globals", global), ("elements", elements)] {
        let id = format!("cluster/{name}");
        put(name, part, 10_000);
        pod.assert_recovered(&id, 1);
        let before = pod.evaluator().usage();
        for answer in pod.client().ask_at_once(20, &id, &Review::pod()) {
            assert!(answer.expect("answers").verdict().allowed);
        }
        let after = pod.evaluator().usage();
        assert!(after.peak < before.peak + (32 << 20), "{before} became {after}");
    }
    let nulls = format!("(elem funcref {})", "(ref.null func)".repeat(100_000));
    // Another reason shows that a failure is not that of the row before.
    for (name, part, count, reason, words) in [
        ("globals", global, 250_000, Reason::MemoryLimit, "250000 globals"),
        ("elements", elements, 99_000, Reason::MemoryLimit, "99000 passive segments"),
        ("elements", elements, 200_000, Reason::ModuleInvalid, "element segments count exceeds limit"),
        ("elements", &nulls, 1, Reason::MemoryLimit, "100000 elements in 1 passive segments"),
    ] {
        put(name, part, count);
        let failure = pod.assert_kept(&format!("cluster/{name}"), reason, 1, |verdict| verdict.allowed);
        assert!(failure.message.contains(words), "no {words:?} in {:?}", failure.message);
    }
}

#[test]
fn fault_m11_start_never_returns() {
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("updated").denying("generation one"));
    // With four instances, one policy is loaded at a time: nothing loads while a start that was given up goes on.
    let pod = Pod::on(&folder).evaluator("--instances", 4).start();
    pod.wait_current(UPDATED, 1);

    for guest in ["loop_in_init", "loop_in_start_export", "start_loop"] {
        let policy = Policy::cluster(&guest.replace('_', "-")).guest(guest).timeout(2);
        folder.put(&policy);
        // The module is compiled in this time, too.
        let refused = || pod.wait_failure(&policy.id(), Reason::StartTimedOut);
        pod.within(Duration::from_secs(10), &policy.id(), refused);
        pod.assert_unserved(&policy.id(), Reason::StartTimedOut);
    }
    folder.put(&Policy::cluster("updated").guest("start_loop").timeout(2));
    pod.assert_kept(UPDATED, Reason::StartTimedOut, 1, |verdict| verdict.message == "generation one");
    // The guests that were stopped no longer use memory, nor the only place for a load.
    folder.put(&Policy::cluster("updated").denying("generation three"));
    pod.assert_recovered(UPDATED, 3);
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
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("exits").guest("exit_0_in_start_export"));
    let pod = Pod::on(&folder).start();
    pod.assert_recovered("cluster/exits", 1);
    let verdict = eventually("an answer", || Some(pod.ask("cluster/exits", &Review::pod()).verdict()));
    assert!(verdict.allowed);
}
