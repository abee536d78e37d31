//! Section 15: answers of no, which guests get as errors, and which are no failures of a capability.

use portcullis_contract::Reason;
use portcullis_tests::{Folder, Pod, Policy, Program, Registry, Review, eventually};
use rcgen::KeyPair;
use serde_json::json;

use crate::capabilities::{ASKS, ask, asks, lines, pod_with};

const ANNOTATION: &str = "capability-unavailable";

#[test]
fn fault_b04_an_image_that_is_missing_or_not_signed_is_no_failure_of_the_capability() {
    let registry = Registry::tls();
    let (ours, theirs) = (KeyPair::generate().expect("a key"), KeyPair::generate().expect("a key"));
    let (signed, _) = registry.push("apps/signed:v1", b"signed by us");
    registry.push("apps/unsigned:v1", b"signed by nobody");
    registry.sign("apps/signed", &signed, &ours);
    let image = |name: &str| format!("{}/apps/{name}", registry.host());
    let verify =
        |name: &str, key: &KeyPair| json!({"verifyKeys": {"image": image(name), "keys": [key.public_key_pem()]}});
    let no = json!([
        verify("unsigned:v1", &ours),
        verify("signed:v1", &theirs),
        {"manifestDigest": image("signed:v2")},
    ]);
    let folder = Folder::with_canary();
    let policy = asks(Policy::cluster("asks"), &["oci/*"], &no);
    let swallows = policy.renamed("swallows").settings(json!({"calls": no, "swallow": true}));
    let missing = json!(image("signed:v2")).to_string();
    let fails = Policy::cluster("fails").answering("fails_without_image", &missing);
    let fails = fails.spec("hostCapabilities", json!(["oci/*"])).timeout(20);
    for policy in [&policy, &swallows, &fails] {
        folder.put(policy);
    }
    let pod = pod_with(&folder, &registry).start();
    for policy in [&policy, &swallows, &fails] {
        pod.wait_current(&policy.id(), 1);
    }
    pod.wait_broker();

    let verdict = ask(&pod, ASKS);
    let answers = lines(&verdict);
    let wanted = ["no signatures found for image", "missing signatures: pubKey", "(status 404)"];
    assert_eq!(answers.len(), wanted.len(), "{answers:#?}");
    for (answer, text) in answers.iter().zip(wanted) {
        assert!(answer.starts_with("error: ") && answer.contains("Callback evaluation failure: "), "{answers:#?}");
        assert!(answer.contains(text), "{text}: {answers:#?}");
    }
    for verdict in [verdict, ask(&pod, &swallows.id())] {
        assert!(!verdict.annotations.contains_key(ANNOTATION), "{verdict:?}");
    }
    // A guest that passes the error on fails by itself, with the host's words.
    let review = Review::pod();
    let answer = pod.ask(&fails.id(), &review);
    answer.assert_not_judged(&review, &fails.id(), Reason::EvaluationTrapped);
    let verdict = answer.verdict();
    assert!(
        verdict.message.contains("Guest call failure: ") && verdict.message.contains("(status 404)"),
        "{verdict:?}"
    );
    let errors = |reason| pod.evaluation_errors(&fails.id(), reason);
    assert_eq!((errors(Reason::EvaluationTrapped), errors(Reason::CapabilityUnavailable)), (1.0, 0.0));
    // Both programs count the calls as what they are.
    for program in [Program::Evaluator, Program::Loader] {
        assert!(!counted(&pod, program, "negative").is_empty(), "{}", pod.metrics(program));
        assert_eq!(counted(&pod, program, "failed"), [""; 0]);
    }

    // The same questions fail once there is nobody to answer them.
    registry.stop();
    eventually("a registry that is away, which is a failure", || {
        let verdict = ask(&pod, &swallows.id());
        let annotation = verdict.annotations.get(ANNOTATION)?;
        annotation.starts_with("oci/").then_some(())
    });
    assert!(!counted(&pod, Program::Evaluator, "failed").is_empty());
}

/// The series of a program's metrics for calls of `oci/*` with this outcome.
fn counted(pod: &Pod, program: Program, outcome: &str) -> Vec<String> {
    let is_one = |line: &&str| {
        line.contains("_calls_total{capability=\"oci/") && line.contains(&format!("outcome=\"{outcome}\""))
    };
    pod.metrics(program).lines().filter(is_one).map(str::to_owned).collect()
}
