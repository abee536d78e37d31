//! Section 3: policy groups with a bad member, and bad expressions.

use portcullis_contract::Reason;
use portcullis_tests::{Folder, Pod, Policy, Reply, Review, Source, guest, guest_with};
use serde_json::{Value, json};

const ID: &str = "cluster/group";

fn folder() -> Folder {
    let folder = Folder::with_canary();
    for name in ["always_accept", "trap_unreachable", "endless_loop", "bad_settings", "wrong_signature"] {
        folder.write(&format!("policies/modules/{name}.wasm"), guest(name));
    }
    folder.write("policies/modules/deny.wasm", guest_with("deny_text", b"no"));
    folder
}

fn members(modules: &[(&str, &str)]) -> Value {
    // A guest that ends by itself gets all the time that it may need on a busy machine.
    let seconds = |module: &str| if module == "endless_loop" { 2 } else { 9 };
    let member =
        |module: &str| json!({"module": format!("modules/{module}.wasm"), "timeoutEvalSeconds": seconds(module)});
    modules.iter().map(|(name, module)| ((*name).to_owned(), member(module))).collect::<serde_json::Map<_, _>>().into()
}

fn group(modules: &[(&str, &str)], expression: &str) -> Policy {
    Policy::cluster("group").group_of(&members(modules), expression).spec("timeoutSeconds", 30)
}

#[test]
fn fault_m30_a_member_of_a_policy_group_fails() {
    let folder = folder();
    let modules = [("fails", "trap_unreachable"), ("loops", "endless_loop"), ("yes", "always_accept"), ("no", "deny")];
    let pod = Pod::on(&folder).start();
    for (bad, reason) in [("fails", Reason::EvaluationTrapped), ("loops", Reason::EvaluationTimedOut)] {
        let [alone, negated, needed, ignored, or_yes, and_no] = [
            ("alone", format!("{bad}()")),
            ("negated", format!("!{bad}()")),
            ("needed", format!("yes() && {bad}()")),
            ("ignored", format!("!{bad}()")),
            ("or-yes", format!("{bad}() || yes()")),
            ("and-no", format!("{bad}() && no()")),
        ]
        .map(|(name, expression)| group(&modules, &expression).renamed(&format!("{bad}-{name}")));
        let ignored = ignored.ignoring_failure();
        let all = [&alone, &negated, &needed, &ignored, &or_yes, &and_no];
        all.iter().for_each(|policy| folder.put(policy));
        all.iter().for_each(|policy| drop(pod.wait_current(&policy.id(), 1)));

        let (review, member) = (Review::pod(), format!("{reason}: member `{bad}`: "));
        for policy in [&alone, &negated, &needed] {
            let answer = pod.ask(&policy.id(), &review);
            answer.assert_not_judged(&review, &policy.id(), reason);
            assert!(answer.verdict().message.contains(&member), "{answer:?}");
            let errors = pod.evaluation_errors(&policy.id(), reason);
            assert!((errors - 1.0).abs() < 0.5, "{errors} errors of {}", policy.id());
        }
        let answer = pod.ask(&ignored.id(), &review);
        answer.assert_ignored(&review, &ignored.id(), reason);
        assert!(answer.verdict().warnings.join("").contains(&format!("member `{bad}`")), "{answer:?}");
        assert!(pod.ask(&or_yes.id(), &review).verdict().allowed, "{bad}: the other member decides");
        let denied = pod.ask(&and_no.id(), &review).verdict();
        assert_eq!((denied.allowed, &*denied.message), (false, "the group denies"), "{bad}: the other member decides");
    }
}

#[test]
fn fault_m31_a_member_of_a_policy_group_cannot_be_loaded() {
    let folder = folder();
    let good = [("a", "always_accept"), ("b", "deny")];
    folder.put(&group(&good, "a() && b()"));
    let source = Source::https();
    let pod = Pod::on(&folder).loader("--source-ca", source.ca_file(&folder)).start();
    pod.wait_current(ID, 1);
    for (generation, (module, reason)) in (2..).zip([
        ("bad_settings", Reason::SettingsInvalid),
        ("wrong_signature", Reason::ModuleUnsupported),
        ("absent", Reason::NotFound),
    ]) {
        folder.put(&group(&[("a", "always_accept"), ("b", module)], "a() && b()"));
        let failure = pod.assert_kept(ID, reason, 1, |verdict| verdict.message == "the group denies");
        assert!(failure.message.starts_with("member `b`: "), "{module}: {}", failure.message);
        assert_eq!(failure.generation, generation);
    }
    folder.put(&group(&good, "a() || b()"));
    pod.assert_recovered(ID, 5);
    assert!(pod.ask(ID, &Review::pod()).verdict().allowed);

    // One module of several is not available for a while: the new generation serves only once it is.
    source.answer("/late.wasm", [Reply::status(500)]);
    let mut late = members(&[("a", "deny")]);
    late["late"] = json!({"module": source.url("/late.wasm")});
    folder.put(&Policy::cluster("group").group_of(&late, "a() || !late()").spec("timeoutSeconds", 30));
    pod.assert_kept(ID, Reason::RegistryServerError, 5, |verdict| verdict.allowed);
    source.answer("/late.wasm", [Reply::ok(guest("always_accept"))]);
    pod.assert_recovered(ID, 6);
    assert!(!pod.ask(ID, &Review::pod()).verdict().allowed);
}

#[test]
fn fault_m32_an_expression_that_cannot_be_used() {
    let folder = folder();
    let modules = [("a", "always_accept"), ("b", "deny")];
    folder.put(&group(&modules, "a()"));
    let pod = Pod::on(&folder).start();
    pod.wait_current(ID, 1);
    let deep = format!("{}a(){}", "(a() && ".repeat(200), ")".repeat(200));
    let long = format!("a(){}", " || a()".repeat(400));
    for (n, expression) in
        ["a() &&", "a() && missing()", "a() + b()", "a", "1", "request.name == 'a'", &deep, &long].iter().enumerate()
    {
        let bad = group(&modules, expression).renamed(&format!("bad-{n}"));
        folder.put(&bad);
        let failure = pod.assert_unserved(&bad.id(), Reason::SpecInvalid);
        assert!(failure.message.starts_with("spec.expression: "), "{expression}: {}", failure.message);
        assert_eq!(failure.next_retry_time, None, "{expression}: only an edit helps");
    }
    folder.put(&group(&modules, "a() && missing()"));
    let failure = pod.assert_kept(ID, Reason::SpecInvalid, 1, |verdict| verdict.allowed);
    assert!(failure.message.contains("its members are `a`, `b`"), "{}", failure.message);
    assert_eq!(failure.next_retry_time, None, "{failure:?}");
    folder.put(&group(&modules, "!b()"));
    pod.assert_recovered(ID, 3);
}
