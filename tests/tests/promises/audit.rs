//! The verdicts on existing objects that the reporter gets at the evaluator's state port.

use std::thread;

use portcullis_contract::{AUDIT_PATH, AuditAnswer, AuditOutcome, AuditVerdict, Reason};
use portcullis_tests::{
    Answer, Client, Folder, Pod, Policy, Program, Raw, Review, eventually, guest, guest_with, request,
};
use serde_json::json;

/// The number of audits that come at once: more than may wait.
const FLOOD: usize = 40;

fn path(id: &str) -> String {
    format!("{AUDIT_PATH}{id}")
}

fn audit(pod: &Pod, id: &str, review: &Review) -> Answer {
    let client = Client::plain(pod.state_address(Program::Evaluator));
    client.post(&path(id), review.bytes()).expect("the state port answers")
}

/// The answer to an audit, which is tried again while the evaluator is busy.
fn answer(pod: &Pod, id: &str, review: &Review) -> AuditAnswer {
    let answer = eventually(&format!("a verdict of {id}"), || {
        Some(audit(pod, id, review)).filter(|answer| answer.status != 503)
    });
    assert_eq!(answer.status, 200, "{answer:?}");
    serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error} in {answer:?}"))
}

fn verdict(pod: &Pod, id: &str, review: &Review) -> AuditVerdict {
    answer(pod, id, review).verdict
}

/// The outcome and the message of a policy's first generation.
fn outcome(pod: &Pod, id: &str, review: &Review) -> (AuditOutcome, Option<String>) {
    let AuditVerdict { outcome, generation, message, reason } = verdict(pod, id, review);
    assert_eq!((generation, reason), (1, None), "{id}");
    (outcome, message)
}

/// The reason for which a policy could not be evaluated.
fn failed(pod: &Pod, id: &str) -> Reason {
    let verdict = verdict(pod, id, &Review::pod());
    assert!(verdict.outcome == AuditOutcome::Failed && verdict.message.is_some(), "{id}: {verdict:?}");
    verdict.reason.expect("a reason")
}

#[test]
fn promise_an_audit_tells_the_verdict_as_it_is_and_counts_as_no_request() {
    let folder = Folder::empty();
    folder.put(&Policy::cluster("labels").example("required-labels").settings(json!({"labels": ["owner"]})));
    folder.put(&Policy::namespaced("team-a", "warns").guest("always_deny").mode("warn").spec("message", "ask us"));
    folder.put(&Policy::cluster("changes").guest("mutates_label").mutating());
    folder.put(&Policy::cluster("off").guest("always_deny").spec("suspend", true));
    folder.write("policies/modules/yes.wasm", guest("always_accept"));
    folder.write("policies/modules/deny.wasm", guest_with("deny_text", b"no, says the member"));
    let members = json!({"yes": {"module": "modules/yes.wasm"}, "no": {"module": "modules/deny.wasm"}});
    folder.put(&Policy::cluster("group").group_of(&members, "yes() && no()"));
    folder.put(&Policy::cluster("traps").guest("trap_unreachable").ignoring_failure());
    folder.put(&Policy::cluster("loops").guest("endless_loop").timeout(2));
    folder.put(&Policy::cluster("missing").module("missing.wasm"));
    let pod = Pod::on(&folder).evaluator("--audit-share", "100").start();
    let served = ["labels", "changes", "off", "group", "traps", "loops"].map(|name| format!("cluster/{name}"));
    for id in served.iter().map(String::as_str).chain(["namespaced/team-a/warns"]) {
        pod.wait_current(id, 1);
    }
    pod.wait_failure("cluster/missing", Reason::NotFound);

    let said = |text: &str| Some(text.to_owned());
    let owned = Review::pod().label("owner", "me");
    assert_eq!(outcome(&pod, "cluster/labels", &owned), (AuditOutcome::Allowed, None));
    let denied = (AuditOutcome::Denied, said("missing labels: owner"));
    assert_eq!(outcome(&pod, "cluster/labels", &Review::pod()), denied);
    let denied = (AuditOutcome::Denied, said("denied by always_deny"));
    assert_eq!(outcome(&pod, "namespaced/team-a/warns", &Review::pod()), denied);
    assert_eq!(outcome(&pod, "cluster/changes", &Review::small_pod()), (AuditOutcome::Changes, None));
    assert_eq!(outcome(&pod, "cluster/off", &Review::pod()), (AuditOutcome::Allowed, said("the policy is suspended")));
    let denied = (AuditOutcome::Denied, said("the group denies; member `no`: no, says the member"));
    assert_eq!(outcome(&pod, "cluster/group", &Review::pod()), denied);
    assert_eq!(failed(&pod, "cluster/traps"), Reason::EvaluationTrapped);
    assert_eq!(failed(&pod, "cluster/loops"), Reason::EvaluationTimedOut);
    assert_eq!(failed(&pod, "cluster/missing"), Reason::NotFound);

    // The metrics of policies do not count any request.
    let metrics = pod.metrics(Program::Evaluator);
    let counted = |line: &&str| line.starts_with("portcullis_policy_evaluation") && !line.ends_with(" 0");
    let counted: Vec<_> = metrics.lines().filter(counted).collect();
    assert!(counted.is_empty(), "{counted:?}");
    for (outcome, count) in [("allowed", 2.0), ("denied", 3.0), ("changes", 1.0), ("failed", 3.0)] {
        let series = format!("portcullis_audits_total{{outcome=\"{outcome}\"}}");
        assert!(pod.metric(&series) >= count, "{series}");
    }
}

#[test]
fn promise_an_audit_that_cannot_be_understood_is_refused_and_other_ports_know_of_none() {
    let folder = Folder::empty();
    folder.put(&Policy::cluster("denies").guest("always_deny"));
    let setup = Pod::on(&folder).evaluator("--policy-paths", "off").loader("--policy-paths", "off");
    let pod = setup.evaluator("--max-body", "64KiB").start();
    let id = "cluster/denies";
    pod.wait_current(id, 1);
    let state = pod.state_address(Program::Evaluator);
    // Each request has a connection of its own, because the port closes those that are idle for some seconds.
    let client = || Client::plain(state);
    let body = Review::pod().bytes();
    let post = |path: &str, body: &[u8]| client().post(path, body).expect("the state port answers").status;
    assert_eq!(post(&path(id), &body), 200);
    assert_eq!(post(&path("cluster/unknown"), &body), 404);
    assert_eq!(post(&path("check/7"), &body), 404);
    assert_eq!(post(&path(id), b"{}"), 400);
    assert_eq!(post(&path(id), b""), 400);
    assert_eq!(post(&path(id), " ".repeat(100 << 10).as_bytes()), 413);
    assert_eq!(client().get(&path(id)).expect("the state port answers").status, 405);
    for (header, value) in [("Content-Type", "text/plain"), ("Content-Encoding", "gzip")] {
        let mut raw = Raw::tcp(state).expect("connects");
        raw.send(request("POST", &path(id), &[(header, value)], &body)).expect("takes it");
        assert_eq!(raw.response().expect("answers").status, 415, "{header}");
    }
    // An incomplete body does not hold a place forever.
    let mut raw = Raw::tcp(state).expect("connects");
    raw.send(request("POST", &path(id), &[("Content-Length", "1000")], b"{")).expect("takes it");
    assert_eq!(raw.response().expect("answers").status, 408);
    assert_eq!(post(&path(id), &body), 200);

    let admission = pod.client().post(&path(id), body.as_slice()).expect("answers");
    assert_eq!(admission.status, 404, "{admission:?}");
    let probes = Client::plain(pod.probe_address(Program::Evaluator));
    assert_eq!(probes.post(&path(id), body).expect("answers").status, 404);
}

#[test]
fn promise_a_flood_of_audits_leaves_requests_their_time() {
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("loops").guest("endless_loop").timeout(1));
    let pod = Pod::on(&folder).evaluator("--audit-share", "100").start();
    pod.wait_current("cluster/loops", 1);
    let answers: Vec<_> = thread::scope(|scope| {
        let one = || audit(&pod, "cluster/loops", &Review::pod());
        let flood: Vec<_> = (0..FLOOD).map(|_| scope.spawn(one)).collect();
        flood.into_iter().map(|one| one.join().expect("it is answered")).collect()
    });
    let (refused, judged): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.status == 503);
    assert!(!refused.is_empty() && !judged.is_empty(), "{} refused, {} judged", refused.len(), judged.len());
    for answer in refused {
        assert_eq!(answer.headers.get("retry-after").map(String::as_str), Some("1"), "{answer:?}");
    }
    for answer in judged {
        assert!(answer.status == 200 && answer.body.contains("EvaluationTimedOut"), "{answer:?}");
    }
}

/// By this the reporter leaves out the further objects of a slow policy. Its decision has tests of its own.
#[test]
fn promise_an_audit_says_how_long_each_evaluation_took_and_an_endless_one_delays_others_by_its_own_time() {
    let folder = Folder::with_canary();
    folder.put(&Policy::namespaced("team-a", "loops").guest("endless_loop").timeout(2));
    folder.put(&Policy::cluster("fine").guest("always_accept"));
    let pod = Pod::on(&folder).evaluator("--audit-share", "100").start();
    let (loops, fine) = ("namespaced/team-a/loops", "cluster/fine");
    pod.wait_current(loops, 1);
    pod.wait_current(fine, 1);
    let (endless, others) = thread::scope(|scope| {
        let slow = scope.spawn(|| answer(&pod, loops, &Review::pod()));
        let others: Vec<_> = (0..3).map(|_| answer(&pod, fine, &Review::pod())).collect();
        (slow.join().expect("it is answered"), others)
    });
    assert_eq!(endless.verdict.reason, Some(Reason::EvaluationTimedOut));
    for other in others {
        assert_eq!(other.verdict.outcome, AuditOutcome::Allowed);
        // The time in the queue, behind the endless evaluation, does not count.
        assert!(other.microseconds > 0 && other.microseconds < endless.microseconds, "{other:?} {endless:?}");
    }
}
