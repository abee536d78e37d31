//! Section 5, second half: modules that misbehave when they are called.

use std::time::{Duration, Instant};

use portcullis_contract::Reason;
use portcullis_tests::{Answer, FLOODED, Folder, Pod, Policy, Program, Review, eventually, heavy};
use serde_json::{Value, json};

/// Each guest fails for this reason whenever it is called, by name and with this text; with `failurePolicy: Ignore` the request passes
/// with a warning. The policy's health does not change, and other policies keep working.
fn assert_fails(reason: Reason, guests: &[(&str, &str)]) {
    let folder = Folder::with_canary();
    // What fails by itself has all the time that it may need on a busy machine.
    let (seconds, limit) = if reason == Reason::EvaluationTimedOut { (3, 10) } else { (20, 30) };
    let limit = Duration::from_secs(limit);
    let strict = |guest: &str| Policy::cluster(&guest.replace('_', "-")).guest(guest).timeout(seconds);
    let lax = |guest: &str| Policy::cluster(&format!("{}-lax", guest.replace('_', "-"))).guest(guest).timeout(seconds);
    for (guest, _) in guests {
        folder.put(&strict(guest));
        folder.put(&lax(guest).ignoring_failure());
    }
    let pod = Pod::on(&folder).start();
    for (guest, text) in guests {
        let (id, lax) = (strict(guest).id(), lax(guest).id());
        pod.wait_current(&id, 1);
        pod.wait_current(&lax, 1);
        for _ in 0..2 {
            let review = Review::pod();
            let answer = pod.within(limit, &id, || pod.ask(&id, &review));
            answer.assert_not_judged(&review, &id, reason);
            assert!(answer.verdict().message.contains(text), "no {text:?} in {answer:?}");
            let answer = pod.within(limit, &lax, || pod.ask(&lax, &review));
            answer.assert_ignored(&review, &lax, reason);
        }
        assert!(pod.evaluation_errors(&id, reason) >= 2.0, "{id}");
        assert_eq!(pod.health(&id).code, 200, "a failed evaluation is no failed policy");
        pod.wait_condition(&id, "Ready", "True", "Active");
    }
    // No instance goes on running or sleeping once its call is answered. The canary has at most one.
    pod.assert_recovers("all instances to be free", || (pod.metric("portcullis_instances") < 2.0).then_some(()));
}

/// What docs/design/policy-abi.md fixes for a trap.
const TRAPPED: &str = "internal server error: Guest call failure: ";
const TIMED_OUT: &str = "Policy execution interrupted because it exceeded the allowed execution time";

#[test]
fn fault_m09_memory_without_end() {
    const LIMIT: u64 = 16 << 20;
    const SLOTS: u64 = 8;
    let _alone = heavy();
    let folder = Folder::with_canary();
    let guests = ["memory_growth", "memory_growth_ignored"];
    for guest in guests {
        folder.put(&Policy::cluster(&guest.replace('_', "-")).guest(guest).timeout(20));
    }
    let pod = Pod::on(&folder)
        .evaluator("--memory-limit", "16MiB")
        .evaluator("--instances", SLOTS)
        .canary_within(FLOODED, "32 calls at once touch all memory")
        .start();
    let ids = guests.map(|guest| format!("cluster/{}", guest.replace('_', "-")));
    ids.iter().for_each(|id| drop(pod.wait_current(id, 1)));
    // The peak is that of the process since its start, so it is read once.
    let before = pod.evaluator().usage();
    for id in &ids {
        let mut at_the_limit = 0;
        for answer in pod.client().ask_at_once(32, id, &Review::pod()) {
            let verdict = answer.expect("answers").verdict();
            let reasons = [Reason::EvaluationTrapped, Reason::EvaluationTimedOut, Reason::Overloaded];
            let named = |reason: &Reason| verdict.message.starts_with(&format!("policy {id}: {reason}: "));
            assert!(!verdict.allowed && reasons.iter().any(named), "{verdict:?}");
            let text = format!("memory grew beyond its limit of {}MiB", LIMIT >> 20);
            at_the_limit += usize::from(named(&Reason::EvaluationTrapped) && verdict.message.contains(&text));
        }
        assert!(at_the_limit > 0, "no call of {id} has reached the limit");
        let after = pod.evaluator().usage();
        assert!(after.peak < before.peak + LIMIT * SLOTS + (32 << 20), "{before} became {after}");
    }
}

#[test]
fn fault_m10_tables_without_end() {
    assert_fails(Reason::EvaluationTrapped, &[("table_growth", "a table grew beyond its limit")]);
}

#[test]
fn fault_m13_endless_loop() {
    let _alone = heavy();
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("loops").guest("endless_loop").timeout(3));
    folder.put(&Policy::cluster("wasi-loops").guest("wasi_loop").timeout(3));
    let pod = Pod::on(&folder).canary_within(FLOODED, "a hundred calls at once never end").start();
    for id in ["cluster/loops", "cluster/wasi-loops"] {
        pod.wait_current(id, 1);
        let review = Review::pod();
        let answer = pod.within(Duration::from_secs(10), id, || pod.ask(id, &review));
        answer.assert_not_judged(&review, id, Reason::EvaluationTimedOut);
        assert!(answer.verdict().message.ends_with(TIMED_OUT), "{answer:?}");

        // The canary is asked meanwhile. On a busy machine a hundred may be over before its answer comes.
        eventually("an answer of the canary beside a hundred calls", || {
            let before = pod.canary().answers();
            let answers = pod.client().ask_at_once(100, id, &review);
            let meanwhile = pod.canary().answers() - before;
            let of = |reason: Reason| {
                let is = |answer: &&Result<Answer, String>| {
                    let answer = answer.as_ref().expect("answers");
                    answer.verdict().message.starts_with(&format!("policy {id}: {reason}: "))
                };
                answers.iter().filter(is).count()
            };
            let (timed_out, overloaded) = (of(Reason::EvaluationTimedOut), of(Reason::Overloaded));
            assert_eq!(timed_out + overloaded, 100, "{answers:?}");
            assert!(timed_out > 0, "some have run");
            (meanwhile > 0).then_some(())
        });
    }
}

#[test]
fn fault_m14_sleeps_in_a_host_call() {
    assert_fails(Reason::EvaluationTimedOut, &[("clock_sleep", TIMED_OUT)]);
}

#[test]
fn fault_m15_bulk_copies() {
    assert_fails(Reason::EvaluationTimedOut, &[("bulk_copy_loop", TIMED_OUT)]);
}

#[test]
fn fault_m16_endless_recursion() {
    let guests = ["recursion", "recursion_with_host_calls"];
    assert_fails(Reason::EvaluationTrapped, &guests.map(|guest| (guest, "call stack exhausted")));
}

/// Guests run on stacks of a size of their own, half of which is left for host functions. The stacks of the program's threads, here a quarter
/// of the default, make no difference. `PORTCULLIS_TEST_STACK_KIB` sets another size: a release build also passes with 128, with which a debug
/// build does not start.
#[test]
fn fault_m16_endless_recursion_where_threads_have_small_stacks() {
    let folder = Folder::with_canary();
    let policies = ["recursion", "recursion_with_host_calls"]
        .map(|guest| Policy::cluster(&guest.replace('_', "-")).guest(guest).timeout(20));
    policies.iter().for_each(|policy| folder.put(policy));
    let size: u64 =
        std::env::var("PORTCULLIS_TEST_STACK_KIB").map_or(512, |size| size.parse().expect("a number of KiB"));
    let setup = Pod::on(&folder).env(Program::Evaluator, "RUST_MIN_STACK", &(size << 10).to_string());
    let limited = format!("ulimit -s {size} && exec \"$@\"");
    let pod = setup.through(Program::Evaluator, &["sh", "-c", &limited, "sh"]).start();
    for policy in &policies {
        let (id, review) = (policy.id(), Review::pod());
        pod.wait_current(&id, 1);
        for answer in pod.client().ask_at_once(8, &id, &review) {
            let answer = answer.expect("answers");
            answer.assert_not_judged(&review, &id, Reason::EvaluationTrapped);
            assert!(answer.verdict().message.contains("call stack exhausted"), "{answer:?}");
        }
    }
}

#[test]
fn fault_m17_traps() {
    assert_fails(
        Reason::EvaluationTrapped,
        &[
            ("trap_unreachable", "unreachable"),
            ("trap_div_zero", "divide by zero"),
            ("trap_out_of_bounds", "out of bounds"),
            ("guest_error", "the guest gave up"),
            ("guest_error_without_text", "No error message set for call failure"),
            ("guest_error_not_utf8", TRAPPED),
        ],
    );
}

#[test]
fn fault_m17_the_call_after_a_trap_is_right() {
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("sometimes").guest("trap_on_demand"));
    let pod = Pod::on(&folder).start();
    pod.wait_current("cluster/sometimes", 1);
    for _ in 0..20 {
        let bad = Review::pod().label("say", "trap-me");
        pod.ask("cluster/sometimes", &bad).assert_not_judged(&bad, "cluster/sometimes", Reason::EvaluationTrapped);
        assert!(pod.ask("cluster/sometimes", &Review::pod()).verdict().allowed);
    }
}

#[test]
fn fault_m18_answers_that_make_no_sense() {
    assert_fails(
        Reason::ResponseInvalid,
        &[
            ("not_json", "internal server error: invalid response from policy: "),
            ("empty_answer", "internal server error: "),
            ("wrong_shape", "internal server error: invalid response from policy: "),
            ("missing_accepted", "accepted"),
            ("bad_code", "internal server error: invalid response from policy: "),
            ("not_utf8", "internal server error: invalid response from policy: "),
            ("no_reply", "No error message OR response set for call success"),
            ("no_reply_with_error", "the guest gave up"),
            ("pointer_outside_memory", "internal server error: "),
            ("length_outside_memory", "internal server error: "),
            ("negative_length", "internal server error: "),
            ("wasi_bad_stdout", "internal server error: Cannot deserialize policy validation response: "),
            ("wasi_no_stdout", "internal server error: Cannot deserialize policy validation response: "),
        ],
    );
}

#[test]
fn fault_m19_answers_of_many_megabytes() {
    const ROUNDS: usize = 50;
    assert_fails(Reason::ResponseTooLarge, &[("answer_10mib", ""), ("wasi_stdout_flood", "")]);

    // Of 2,000 MiB that the guest answers, nothing stays.
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("talks").guest("answer_10mib").timeout(20));
    let pod = Pod::on(&folder).start();
    pod.wait_current("cluster/talks", 1);
    let review = Review::pod();
    let before = pod.evaluator().usage();
    for _ in 0..ROUNDS {
        for answer in pod.client().ask_at_once(4, "cluster/talks", &review) {
            answer.expect("answers").assert_not_judged(&review, "cluster/talks", Reason::ResponseTooLarge);
        }
    }
    let after = pod.evaluator().usage();
    assert!(after.peak < before.peak + (160 << 20), "{before} became {after}");
}

#[test]
fn fault_m20_deep_nesting() {
    assert_fails(Reason::ResponseInvalid, &[("answer_nested", "")]);
}

#[test]
fn fault_m21_denial_of_a_megabyte() {
    let folder = Folder::with_canary();
    // With a failure instead of the denial, the request would be admitted.
    folder.put(&Policy::cluster("talks").guest("denial_1mib").ignoring_failure());
    let pod = Pod::on(&folder).start();
    pod.wait_current("cluster/talks", 1);
    let verdict = pod.ask("cluster/talks", &Review::pod()).verdict();
    assert!(!verdict.allowed && verdict.warnings.is_empty(), "{verdict:?}");
    assert!(verdict.message.contains("denied") && verdict.message.contains("for the record"), "{verdict:?}");
    assert!(!verdict.message.contains("policy cluster/talks:"), "{verdict:?}");
    assert!(verdict.message.len() <= 1024, "{}", verdict.message.len());
    // U+202E, which turns the direction of a text, is not among the control characters.
    assert!(!verdict.message.contains(|c: char| c.is_control() || c == '\u{202e}'), "{:?}", verdict.message);
}

#[test]
fn fault_m22_mutations_that_are_none() {
    let folder = Folder::with_canary();
    let guests = [
        "mutates_kind",
        "mutates_api_version",
        "mutates_name",
        "mutates_namespace",
        "mutates_to_array",
        "mutates_to_text",
    ];
    let strict = |guest: &str| Policy::cluster(&guest.replace('_', "-")).guest(guest).mutating();
    let lax = |guest: &str| Policy::cluster(&format!("{}-lax", guest.replace('_', "-"))).guest(guest).mutating();
    for guest in guests {
        folder.put(&strict(guest));
        folder.put(&lax(guest).ignoring_failure());
    }
    let pod = Pod::on(&folder).start();
    for guest in guests {
        let (strict, lax) = (strict(guest).id(), lax(guest).id());
        pod.wait_current(&strict, 1);
        pod.wait_current(&lax, 1);
        let review = Review::small_pod();
        pod.ask(&strict, &review).assert_not_judged(&review, &strict, Reason::PatchInvalid);
        pod.ask(&lax, &review).assert_ignored(&review, &lax, Reason::PatchInvalid);
    }
}

/// Objects of many shapes as request and as mutation: whatever patch is sent leads from the one to the other.
#[test]
fn fault_m22_a_patch_leads_where_it_should() {
    let shapes = [
        json!({}),
        json!({"a": 1}),
        json!({"a": {"b": {"c": [1, 2, 3]}}}),
        json!({"a": {"b": {"c": [3, 1, 2, {"d": null}]}}}),
        json!({"a/b": 1, "a~b": 2, "": 3, "~1": {"/": []}}),
        json!({"a": [[], [[]], {}], "é": "ü\u{0}\n", "n": 18_446_744_073_709_551_615_u64}),
        json!({"a": [1, 1, 1, 1], "n": -9_223_372_036_854_775_808_i64, "f": 0.1}),
        json!({"a": [1, 1], "f": 1e300, "t": true, "x": null}),
    ];
    let object = |spec: &Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default"}, "spec": spec});
    let folder = Folder::with_canary();
    for (number, spec) in shapes.iter().enumerate() {
        let answer = json!({"accepted": true, "mutated_object": object(spec)}).to_string();
        folder.put(&Policy::cluster(&format!("shape-{number}")).answering("answer", answer).mutating());
    }
    let pod = Pod::on(&folder).start();
    for (number, to) in shapes.iter().enumerate() {
        let id = format!("cluster/shape-{number}");
        pod.wait_current(&id, 1);
        for from in &shapes {
            let verdict = pod.ask(&id, &Review::pod().with("/object", object(from))).verdict();
            assert!(verdict.allowed, "{from} to {to}: {verdict:?}");
            if from == to {
                assert_eq!(verdict.patch, None);
            } else {
                assert_eq!(verdict.patched(&object(from)), object(to), "{verdict:?}");
            }
        }
    }
}

#[test]
fn fault_m23_mutation_where_none_may_be() {
    let folder = Folder::with_canary();
    for (name, policy) in [
        ("on-delete", Policy::cluster("on-delete").guest("mutates_label").mutating()),
        ("may-not", Policy::cluster("may-not").guest("mutates_label")),
    ] {
        folder.put(&policy);
        folder.put(&policy.renamed(&format!("{name}-lax")).ignoring_failure());
    }
    let members = json!({"changes": {"module": "modules/mutates_label.wasm"}});
    // A member that changes the object counts as false, so its negation is true.
    for (name, expression) in [("group", "changes()"), ("negated", "!changes()")] {
        let group = Policy::cluster(name).group_of(&members, expression);
        folder.put(&group);
        folder.put(&group.renamed(&format!("{name}-lax")).ignoring_failure());
    }
    let pod = Pod::on(&folder).start();
    let errors = |id: &str| pod.evaluation_errors(id, Reason::PatchInvalid) as usize;
    for suffix in ["", "-lax"] {
        let id = format!("cluster/on-delete{suffix}");
        pod.wait_current(&id, 1);
        let verdict = pod.ask(&id, &Review::small_pod().deleting()).verdict();
        assert!(!verdict.allowed && verdict.patch.is_none(), "{verdict:?}");
        assert_eq!(
            verdict.message,
            "Incoming object is null, which happens only with DELETE operations, but the policy is attempting a \
             mutation. This is not allowed"
        );
        assert!(pod.ask(&id, &Review::small_pod()).verdict().patch.is_some(), "it may mutate what is created");
        assert_eq!(errors(&id), 1, "{id}: only the mutation of nothing");

        let id = format!("cluster/may-not{suffix}");
        pod.wait_current(&id, 1);
        let verdict = pod.ask(&id, &Review::small_pod()).verdict();
        assert!(!verdict.allowed && verdict.patch.is_none(), "{verdict:?}");
        assert_eq!(
            verdict.message,
            format!(
                "Request rejected by policy {id}. The policy attempted to mutate the request, but it is currently \
                 configured to not allow mutations."
            )
        );
        assert_eq!(errors(&id), 1, "{id}");

        let id = format!("cluster/group{suffix}");
        pod.wait_current(&id, 1);
        let verdict = pod.ask(&id, &Review::small_pod()).verdict();
        assert!(!verdict.allowed && verdict.patch.is_none(), "{verdict:?}");
        assert_eq!(verdict.message, "the group denies");
        assert_eq!(
            verdict.details["causes"],
            json!([{"message": "mutation is not allowed inside of policy group", "field": "spec.policies.changes"}])
        );
        assert_eq!(errors(&id), 0, "{id}: it denies as it should");

        let id = format!("cluster/negated{suffix}");
        pod.wait_current(&id, 1);
        let verdict = pod.ask(&id, &Review::small_pod()).verdict();
        assert!(verdict.allowed && verdict.patch.is_none() && verdict.warnings.is_empty(), "{verdict:?}");
        assert_eq!(errors(&id), 0, "{id}");
    }
}

#[test]
fn fault_m24_remembers_nothing() {
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("counts").guest("counter"));
    let pod = Pod::on(&folder).start();
    pod.wait_current("cluster/counts", 1);
    let answers = (0..30).map(|_| Ok(pod.ask("cluster/counts", &Review::pod())));
    let at_once = pod.client().ask_at_once(30, "cluster/counts", &Review::pod());
    for answer in answers.chain(at_once) {
        let answer: Answer = answer.expect("answers");
        assert_eq!(answer.verdict().message, "call 1 by global, call 1 by memory");
    }
}

#[test]
fn fault_m25_floods_of_log_lines() {
    /// What a policy may log: at once, and then in a second.
    const AT_ONCE: usize = 64 << 10;
    const A_SECOND: usize = 16 << 10;
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("logs").guest("log_flood").timeout(10));
    folder.put(&Policy::cluster("wasi-logs").guest("wasi_stderr_flood").timeout(3));
    let pod = Pod::on(&folder).start();
    let ids = ["cluster/logs", "cluster/wasi-logs"];
    ids.iter().for_each(|id| drop(pod.wait_current(id, 1)));
    let start = Instant::now();
    for id in ids {
        for _ in 0..3 {
            pod.ask(id, &Review::pod());
        }
    }
    let series = "portcullis_policy_log_lines_dropped_total{policy=\"cluster/logs\"}";
    eventually(series, || (pod.metric(series) > 0.0).then_some(()));
    let bytes_of = |lines: &[String], id: &str| -> usize {
        let is_of_guest = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap_or_default();
            line["message"] == "policy log" && line["policy"] == id
        };
        lines.iter().filter(|line| is_of_guest(line)).map(|line| line.len() + 1).sum()
    };
    eventually("lines of a guest", || (bytes_of(&pod.evaluator().lines(), ids[0]) > AT_ONCE / 2).then_some(()));
    let lines = pod.evaluator().lines();
    let seconds = usize::try_from(start.elapsed().as_secs() + 1).expect("not so many");
    // The guests wrote 30 MiB and more.
    for id in ids {
        let (bytes, share) = (bytes_of(&lines, id), AT_ONCE + A_SECOND * seconds);
        assert!(bytes <= share, "{bytes} bytes of {id} in {seconds} s, the share is {share}");
    }
    let longest = lines.iter().map(String::len).max().unwrap_or(0);
    assert!(longest < 16 << 10, "a line of {longest} bytes");
}

#[test]
fn fault_m26_exit() {
    assert_fails(
        Reason::EvaluationTrapped,
        &[("exit", ""), ("wasi_exit_1", "the guest gave up"), ("wasi_exit_1_silent", "")],
    );
}

/// The host panics below the guest's own frames, in both calling conventions.
#[test]
fn fault_m29_panic_in_a_host_function() {
    const ROUNDS: usize = 2;
    let folder = Folder::with_canary();
    let strict = [("asks", "log_one"), ("asks-wasi", "wasi_two_host_calls")]
        .map(|(name, guest)| Policy::cluster(name).guest(guest));
    let lax = Policy::cluster("asks-lax").guest("log_one").ignoring_failure();
    let all = [&strict[0], &strict[1], &lax];
    all.iter().for_each(|policy| folder.put(policy));
    let points = format!("evaluator.host_call/tracing/log={}*panic", ROUNDS * all.len());
    let pod = Pod::on(&folder).fail_points(Program::Evaluator, &points).start();
    all.iter().for_each(|policy| drop(pod.wait_current(&policy.id(), 1)));
    let review = Review::pod();
    for round in 0..ROUNDS {
        for policy in &strict {
            pod.ask(&policy.id(), &review).assert_not_judged(&review, &policy.id(), Reason::InternalError);
        }
        pod.ask(&lax.id(), &review).assert_ignored(&review, &lax.id(), Reason::InternalError);
        assert_eq!(pod.metric("portcullis_panics_total") as usize, (round + 1) * all.len());
    }
    // The guests trap unless their calls are answered as they should be.
    for policy in all {
        let id = policy.id();
        assert!(pod.ask(&id, &review).verdict().allowed, "{id}");
        assert_eq!(pod.evaluation_errors(&id, Reason::InternalError) as usize, ROUNDS, "{id}");
        assert_eq!(pod.health(&id).code, 200, "a panic in one evaluation is no failed policy");
        pod.wait_condition(&id, "Ready", "True", "Active");
    }
}
