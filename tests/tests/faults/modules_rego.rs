//! Section 5, second half: policies in Rego that have the builtins of their host work for them without end.

use std::time::Duration;

use portcullis_contract::Reason;
use portcullis_tests::{FLOODED, Folder, Pod, Policy, Review, heavy, rego_calling};
use serde_json::{Value, json};

const TIMED_OUT: &str = "Policy execution interrupted because it exceeded the allowed execution time";

/// YAML in which each level repeats the one below it nine times.
fn bomb() -> String {
    let mut text = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n".to_owned();
    for level in 1..10 {
        text += &format!("a{level}: &a{level} [{}]\n", vec![format!("*a{}", level - 1); 9].join(", "));
    }
    text
}

/// Each builtin works for long and is called without end. The host's own code is not interrupted with the guest, so it looks at the deadline.
#[test]
fn fault_m14_builtins_of_rego_that_work_without_end() {
    let _alone = heavy();
    let texts = |end: &str| (0..50_000).map(|number| format!("{number}{end}")).collect::<Vec<_>>();
    let moves = vec![json!({"op": "move", "from": "/0", "path": "/1"}); 1000];
    let cases = [
        // One call would take far longer than the policy has.
        ("prefixes", "strings.any_prefix_match", json!(texts("a")), json!(texts("b")), 1),
        ("formats", "sprintf", json!("%.1024f".repeat(1000)), json!(vec![1e-300; 1000]), 3),
        ("patches", "json.patch", json!(vec![0; 900]), json!(moves), 3),
        ("matches", "regex.split", json!("[a-z]*[0-9]|a"), json!("a".repeat(2000)), 3),
        ("reads", "yaml.unmarshal", json!("- [a, {b: c}]\n".repeat(20_000)), Value::Null, 3),
    ];
    let folder = Folder::with_canary();
    for (name, builtin, first, second, seconds) in &cases {
        folder.put(&Policy::cluster(name).bytes(rego_calling(builtin, [first, second])).timeout(*seconds));
    }
    folder.put(&Policy::cluster("denies").guest("always_deny").on("secrets").timeout(20));
    let pod = Pod::on(&folder).canary_within(FLOODED, "builtins work without end, eight at once").start();
    pod.wait_current("cluster/denies", 1);
    for (name, ..) in &cases {
        let (id, review) = (format!("cluster/{name}"), Review::pod());
        pod.wait_current(&id, 1);
        let answer = pod.within(Duration::from_secs(10), &id, || pod.ask(&id, &review));
        answer.assert_not_judged(&review, &id, Reason::EvaluationTimedOut);
        assert!(answer.verdict().message.ends_with(TIMED_OUT), "{answer:?}");

        let answers = pod.client().ask_at_once(8, &id, &review);
        for answer in answers {
            let message = answer.expect("answers").verdict().message;
            let named = |reason: Reason| message.starts_with(&format!("policy {id}: {reason}: "));
            assert!(named(Reason::EvaluationTimedOut) || named(Reason::Overloaded), "{message}");
        }
        // No builtin is left that keeps another policy from an answer.
        assert!(!pod.ask("cluster/denies", &Review::pod()).verdict().allowed);
        assert_eq!(pod.health(&id).code, 200, "a failed evaluation is no failed policy");
    }
    pod.assert_recovers("all instances to be free", || (pod.metric("portcullis_instances") < 2.0).then_some(()));
}

/// A few hundred bytes stand for a billion texts, or two megabytes for many documents that are each as large as one may be. What aliases repeat
/// is counted before it is copied.
#[test]
fn fault_m09_aliases_that_builtins_of_rego_repeat() {
    let _alone = heavy();
    let document = format!("---\n- &a [{}]\n{}", "0,".repeat(100), "- *a\n".repeat(4000));
    let cases = [
        ("levels", "yaml.unmarshal", json!(bomb())),
        ("documents", "yaml.unmarshal", json!(document.repeat(60))),
        ("validity", "yaml.is_valid", json!(document.repeat(60))),
    ];
    let folder = Folder::with_canary();
    for (name, builtin, text) in &cases {
        folder.put(&Policy::cluster(name).bytes(rego_calling(builtin, [text, &Value::Null])).timeout(20));
    }
    let pod = Pod::on(&folder).canary_within(FLOODED, "four calls at once read megabytes of YAML").start();
    cases.iter().for_each(|(name, ..)| drop(pod.wait_current(&format!("cluster/{name}"), 1)));
    let before = pod.evaluator().usage();
    for (name, builtin, _) in &cases {
        let (id, review) = (format!("cluster/{name}"), Review::pod());
        for answer in pod.client().ask_at_once(4, &id, &review) {
            let answer = answer.expect("answers");
            answer.assert_not_judged(&review, &id, Reason::EvaluationTrapped);
            let text = format!("{builtin}: the aliases of the YAML repeat too much");
            assert!(answer.verdict().message.contains(&text), "{answer:?}");
        }
        assert_eq!(pod.health(&id).code, 200, "a failed evaluation is no failed policy");
    }
    let after = pod.evaluator().usage();
    assert!(after.peak < before.peak + (160 << 20), "{before} became {after}");
}
