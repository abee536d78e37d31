use portcullis_contract::{Artifact, CandidateMember, CandidateModule};
use serde_json::value::RawValue;

use super::*;

fn late() -> CallError {
    CallError::TimedOut { may_pass: None }
}

fn wapc(reply: Result<&str, CallError>) -> (Reason, String) {
    wapc_after(&FailedCalls::default(), reply)
}

fn wapc_after(failed_calls: &FailedCalls, reply: Result<&str, CallError>) -> (Reason, String) {
    let reply = reply.map(|text| (text.as_bytes().to_vec(), failed_calls.clone()));
    let error = judge(reply, ExecutionMode::KubewardenWapc).expect_err("refused");
    (error.reason(), error.to_string())
}

#[test]
fn settings_that_the_guest_refuses() {
    let (reason, text) = wapc(Ok(r#"{"valid":false,"message":"no such label"}"#));
    assert_eq!((reason, text.as_str()), (Reason::SettingsInvalid, "Policy settings are invalid: no such label"));
    for silent in [r#"{"valid":false}"#, r#"{"valid":false,"message":null}"#, r#"{"valid":false,"message":" "}"#] {
        assert_eq!(wapc(Ok(silent)).1, "Policy settings are invalid: no message");
    }
    let long = format!(r#"{{"valid":false,"message":"{}"}}"#, "x".repeat(4096));
    assert!(wapc(Ok(&long)).1.len() < 600);
}

#[test]
fn a_check_that_fails_itself() {
    for reply in [Ok("nonsense"), Ok("{}"), Err(late()), Err(CallError::Trap("wasm trap".into()))] {
        assert_eq!(wapc(reply).0, Reason::SettingsCheckFailed);
    }
    let text = wapc(Err(CallError::Guest("oh".into()))).1;
    assert_eq!(
        text,
        "Policy settings are invalid: Error invoking settings validation callback: Guest call failure: oh"
    );
}

#[test]
fn what_fails_with_its_capability_may_pass_and_names_it() {
    let call = "oci/v1/verify: Callback evaluation failure: the registry is away";
    let may_pass = || Some(call.to_owned());
    let failed = FailedCalls { denied: false, failed: may_pass(), outside: may_pass() };
    let init = CallError::Init { text: "Initialization failed: no".into(), timed_out: false, may_pass: may_pass() };
    let named = "a host capability gave an error while the policy was loaded: oci/v1/verify: the registry is away";
    for (reply, said) in [
        (Err(CallError::Unprovided { text: "oh".into(), may_pass: may_pass() }), "; then the policy failed: oh"),
        (Err(init), "; then the policy failed: Initialization failed: no"),
        (
            Err(CallError::TimedOut { may_pass: may_pass() }),
            "; then the policy failed: guest code interrupted, execution deadline exceeded",
        ),
        (
            Err(CallError::TimedOut { may_pass: may_pass() }.init("wapc_init")),
            "; then the policy failed: Initialization failed: wapc_init init interrupted, execution deadline exceeded",
        ),
        (Ok(r#"{"valid":false,"message":"not signed"}"#), "; then the policy failed: not signed"),
        (Ok(r#"{"valid":false}"#), ""),
    ] {
        let (reason, text) = wapc_after(&failed, reply);
        assert_eq!((reason, text), (Reason::CapabilityUnavailable, format!("{named}{said}")));
        assert!(reason.class().is_retryable());
    }
    let (reason, text) = wapc_after(&failed, Ok("no registry"));
    assert_eq!(reason, Reason::CapabilityUnavailable);
    assert!(text.contains(named) && text.contains("Error invoking settings validation callback"), "{text}");
    let error = judge(Ok((b"no registry".to_vec(), failed.clone())), ExecutionMode::Wasi).expect_err("refused");
    assert_eq!(error.reason(), Reason::CapabilityUnavailable, "{error}");
    let valid = (br#"{"valid":true}"#.to_vec(), failed.clone());
    assert!(judge(Ok(valid), ExecutionMode::KubewardenWapc).is_ok(), "it does without");
    let long = format!(r#"{{"valid":false,"message":"{}"}}"#, "x".repeat(4096));
    let failed = FailedCalls { outside: Some("y".repeat(4096)), ..failed };
    assert!(wapc_after(&failed, Ok(&long)).1.len() < 1024);
}

#[test]
fn what_fails_after_an_answer_of_no_may_pass_as_the_answer_may_change() {
    let call = "kubernetes/get_resource: Callback evaluation failure: Cannot find v1/ConfigMap named 'a'".to_owned();
    let answered = FailedCalls { outside: Some(call.clone()), ..FailedCalls::default() };
    let error = Box::new(CallError::Guest("no settings".into()));
    for reply in [Ok(r#"{"valid":false,"message":"no settings"}"#), Err(CallError::AfterNo { error, may_pass: call })] {
        let (reason, text) = wapc_after(&answered, reply);
        let wanted = "a host capability gave an error while the policy was loaded: kubernetes/get_resource: Cannot find v1/ConfigMap named 'a'; \
                      then the policy failed: no settings";
        assert_eq!((reason, text.as_str()), (Reason::CapabilityUnavailable, wanted));
    }
}

#[test]
fn what_is_denied_or_fails_again_with_the_same_question_is_final() {
    let call = || Some("crypto/v1/is_certificate_trusted: it is none".to_owned());
    let here = FailedCalls { denied: false, failed: call(), outside: None };
    let denied = FailedCalls { denied: true, failed: call(), outside: call() };
    for failed in [here, denied] {
        assert_eq!(wapc_after(&failed, Ok(r#"{"valid":false}"#)).0, Reason::SettingsInvalid);
    }
    for error in [CallError::Denied("oh".into()), CallError::Unprovided { text: "oh".into(), may_pass: None }] {
        assert_eq!(wapc(Err(error)).0, Reason::SettingsCheckFailed);
    }
}

#[test]
fn a_start_without_memory_may_pass() {
    let (reason, text) = wapc(Err(CallError::Overloaded("no memory left".into())));
    assert_eq!((reason, text.as_str()), (Reason::MemoryUnavailable, "no memory left"));
    assert!(reason.class().is_retryable());
}

#[test]
fn a_start_without_processor_time_may_pass() {
    let limit = Duration::from_secs(2);
    let had = |millis| LoadTimes { used: Duration::from_millis(millis), waited: Duration::ZERO };
    let judged = |reply, millis| {
        judge_in_time(reply, had(millis), limit, ExecutionMode::KubewardenWapc).expect_err("it does not serve")
    };
    for (late, reason) in [(late(), Reason::SettingsCheckFailed), (late().init("wapc_init"), Reason::StartTimedOut)] {
        let error = judged(Err(late.clone()), 80);
        assert!(error.reason() == Reason::ProcessorUnavailable && error.reason().class().is_retryable());
        assert!(error.to_string().contains("80 ms within 2000 ms"), "{error}");
        assert_eq!(error.blaming_the_module().reason(), reason);
        assert_eq!(judged(Err(late), 1900).reason(), reason, "the module is to blame");
    }
    let failed = judged(Err(CallError::Exit(1).init("_start")), 0);
    assert_eq!(failed.reason(), Reason::InstantiationFailed);
    assert_eq!(failed.blaming_the_module().reason(), Reason::InstantiationFailed);
}

#[test]
fn a_group_has_the_time_of_all_its_members() {
    let group = |members: &[Option<u32>]| {
        let members = members.iter().enumerate().map(|(n, &timeout_eval_seconds)| {
            let artifact = Artifact { file: "a".into(), sha256: Digest::of(b"code"), size: 4 };
            let module = CandidateModule {
                artifact,
                execution_mode: ExecutionMode::KubewardenWapc,
                settings: RawValue::from_string("{}".to_owned()).expect("JSON"),
                host_capabilities: Vec::new(),
                context_aware_resources: Vec::new(),
            };
            let member = CandidateMember { digest: Digest::of(b"module"), timeout_eval_seconds, module };
            (format!("m{n}"), member)
        });
        CandidatePolicyGroup { expression: "true".to_owned(), members: members.collect() }
    };
    for (own, members, default, seconds) in [
        (None, &[None, None, None][..], 2, 6),
        (None, &[Some(3), None], 2, 5),
        (None, &[Some(3), Some(4)], 2, 7),
        (None, &[Some(1)], 2, 2),
        (Some(1), &[None, Some(4)], 2, 1),
        (Some(9), &[None], 2, 9),
        (None, &[None; 15], 2, 30),
        (None, &[None; 16], 10, 30),
        (None, &[Some(30), None], 2, 30),
        (None, &[Some(5)], 40, 40),
    ] {
        let limit = group_limit(own, &group(members), Duration::from_secs(default));
        assert_eq!(limit, Duration::from_secs(seconds), "{own:?} {members:?} {default}");
    }
}

#[test]
fn a_start_that_fails_is_another_matter() {
    assert_eq!(wapc(Err(late().init("wapc_init"))).0, Reason::StartTimedOut);
    assert_eq!(wapc(Err(CallError::Exit(1).init("_start"))).0, Reason::InstantiationFailed);
}

#[test]
fn large_and_deep_settings_are_refused_unseen() {
    let large = format!("{{\"a\":\"{}\"}}", "x".repeat(MAX_SETTINGS));
    let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
    for settings in [large, deep] {
        assert_eq!(check_size(&settings).expect_err("refused").reason(), Reason::SettingsInvalid);
    }
    assert!(check_size(&"[".repeat(999)).is_ok());
}
