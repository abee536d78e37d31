use super::*;

fn id() -> PolicyId {
    "cluster/a".parse().expect("an id")
}

fn newest(id: &PolicyId) -> NewestSpec<'_> {
    NewestSpec { id, mode: Mode::Protect, failure_policy: FailurePolicy::Fail }
}

const SERVING: ServingSpec<'static> = ServingSpec { generation: 7, mutating: false, message: None };

fn verdict(accepted: bool) -> Verdict {
    Verdict {
        audit_annotations: Some([("key".to_owned(), "value".to_owned())].into()),
        warnings: Some(vec!["careful".to_owned()]),
        ..Verdict::plain(accepted)
    }
}

fn denied() -> Verdict {
    Verdict { message: Some("no".to_owned()), code: Some(418), ..verdict(false) }
}

/// The answer of `decision`, as JSON.
fn json(decision: Decision) -> serde_json::Value {
    serde_json::to_value(decision.alone(&id(), Some("patch".to_owned()))).expect("serialises")
}

fn judged_as(mode: Mode, serving: ServingSpec<'_>, verdict: Verdict, mutation: Mutation) -> serde_json::Value {
    json(judged(NewestSpec { mode, ..newest(&id()) }, serving, verdict, mutation))
}

fn expected(mut answer: serde_json::Value) -> serde_json::Value {
    answer["auditAnnotations"] = serde_json::json!({"generation": "7", "key": "value"});
    if answer.get("warnings").is_none() {
        answer["warnings"] = serde_json::json!(["careful"]);
    }
    answer
}

macro_rules! answers {
    ($($got:expr => $want:tt;)+) => {
        $(assert_eq!($got, expected(serde_json::json!($want)));)+
    };
}

const REFUSES_MUTATION: &str = "Request rejected by policy cluster/a. The policy attempted to mutate the request, but it is currently configured to not allow mutations.";

#[test]
fn protect_passes_the_verdict_on() {
    answers! {
        judged_as(Mode::Protect, SERVING, verdict(true), Mutation::None) => {"allowed": true};
        judged_as(Mode::Protect, SERVING, verdict(false), Mutation::None) => {"allowed": false};
        judged_as(Mode::Protect, SERVING, denied(), Mutation::None) =>
            {"allowed": false, "status": {"message": "no", "code": 418}};
        judged_as(Mode::Protect, SERVING, Verdict { accepted: true, ..denied() }, Mutation::None) =>
            {"allowed": true, "status": {"message": "no", "code": 418}};
    }
}

#[test]
fn a_patch_is_sent_by_a_policy_that_may_mutate() {
    let mutating = ServingSpec { mutating: true, ..SERVING };
    answers! {
        judged_as(Mode::Protect, mutating, verdict(true), Mutation::Changed) =>
            {"allowed": true, "patch": "patch", "patchType": "JSONPatch"};
        judged_as(Mode::Warn, mutating, verdict(true), Mutation::Changed) =>
            {"allowed": true, "patch": "patch", "patchType": "JSONPatch"};
        judged_as(Mode::Protect, mutating, denied(), Mutation::Changed) =>
            {"allowed": false, "status": {"message": "no", "code": 418}};
        judged_as(Mode::Protect, SERVING, verdict(true), Mutation::Changed) =>
            {"allowed": false, "status": {"message": REFUSES_MUTATION}};
        judged_as(Mode::Protect, mutating, verdict(true), Mutation::OfNothing) =>
            {"allowed": false, "status": {"message": NOTHING_TO_MUTATE}};
    }
}

#[test]
fn monitor_admits_without_patch_and_status() {
    for (verdict, mutation) in [
        (verdict(true), Mutation::Changed),
        (denied(), Mutation::None),
        (verdict(true), Mutation::OfNothing),
        (Verdict { accepted: true, ..denied() }, Mutation::None),
    ] {
        let serving = ServingSpec { mutating: true, message: Some("custom"), ..SERVING };
        answers! { judged_as(Mode::Monitor, serving, verdict, mutation) => {"allowed": true}; }
    }
}

#[test]
fn warn_turns_a_rejection_into_a_warning() {
    let custom = ServingSpec { message: Some("ask the platform team"), ..SERVING };
    answers! {
        judged_as(Mode::Warn, SERVING, denied(), Mutation::None) =>
            {"allowed": true, "warnings": ["policy cluster/a: no", "careful"]};
        judged_as(Mode::Warn, custom, denied(), Mutation::None) =>
            {"allowed": true, "warnings": ["policy cluster/a: ask the platform team", "careful"]};
        judged_as(Mode::Warn, SERVING, verdict(false), Mutation::None) =>
            {"allowed": true, "warnings": ["policy cluster/a: the policy denies this request", "careful"]};
        judged_as(Mode::Warn, SERVING, verdict(true), Mutation::Changed) =>
            {"allowed": true, "warnings": [format!("policy cluster/a: {REFUSES_MUTATION}"), "careful"]};
    }
}

#[test]
fn a_custom_message_keeps_the_old_text_as_a_cause() {
    let custom = ServingSpec { message: Some("ask the platform team"), ..SERVING };
    answers! {
        judged_as(Mode::Protect, custom, denied(), Mutation::None) =>
            {"allowed": false, "status": {"message": "ask the platform team", "code": 418,
                                          "details": {"causes": [{"message": "no"}]}}};
        judged_as(Mode::Protect, custom, verdict(false), Mutation::None) =>
            {"allowed": false, "status": {"message": "ask the platform team"}};
        judged_as(Mode::Protect, custom, verdict(true), Mutation::Changed) =>
            {"allowed": false, "status": {"message": "ask the platform team",
                                          "details": {"causes": [{"message": REFUSES_MUTATION}]}}};
        judged_as(Mode::Protect, custom, verdict(true), Mutation::None) => {"allowed": true};
    }
}

#[test]
fn an_audit_tells_the_verdict_as_it_is() {
    answers! {
        json(plain(7, denied(), Mutation::None)) => {"allowed": false, "status": {"message": "no", "code": 418}};
        json(plain(7, verdict(true), Mutation::Changed)) =>
            {"allowed": true, "patch": "patch", "patchType": "JSONPatch"};
    }
}

#[test]
fn texts_of_a_guest_are_cut_and_cleaned() {
    let verdict = Verdict {
        message: Some(format!("a\u{1b}[31m\n{}", "x".repeat(1 << 20))),
        warnings: Some(vec!["w".repeat(1000); 100]),
        audit_annotations: Some((0..1000).map(|i| (format!("k{i}"), "v".repeat(1 << 16))).collect()),
        ..verdict(false)
    };
    let answer = judged(newest(&id()), SERVING, verdict, Mutation::None).alone(&id(), None);
    let message = answer.status.and_then(|status| status.message).expect("a message");
    assert!(message.len() <= 1024 && message.starts_with("a [31m x"), "{message}");
    assert!((2..=16).contains(&answer.warnings.len()), "{:?}", answer.warnings);
    assert!(answer.warnings.iter().all(|warning| warning.len() <= 256));
    assert_eq!(answer.audit_annotations.len(), ANNOTATIONS + 1);
    assert!(answer.audit_annotations.values().all(|value| value.len() <= ANNOTATION));
}

#[test]
fn a_guest_cannot_write_the_annotations_of_this_program() {
    let forged = [(GENERATION, "999"), (NOT_EVALUATED, "cluster/b"), (NOT_YET_ENFORCED, "cluster/b")];
    let verdict = Verdict {
        audit_annotations: Some(forged.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
        ..verdict(true)
    };
    let answer = judged(newest(&id()), SERVING, verdict, Mutation::None).alone(&id(), None);
    assert_eq!(answer.audit_annotations, [(GENERATION.to_owned(), "7".to_owned())].into());
}

fn failure(reason: Reason, next: Option<&str>) -> Failure {
    Failure {
        generation: 3,
        reason,
        message: "failed to fetch the module".to_owned(),
        attempts: 2,
        next_retry_time: next.map(|time| time.parse().expect("a time")),
        since: Timestamp::UNIX_EPOCH,
    }
}

fn unserved_answer(mode: Mode, failure_policy: FailurePolicy, failure: &Failure) -> serde_json::Value {
    let now = "2026-01-01T00:00:00Z".parse().expect("a time");
    json(unserved(NewestSpec { id: &id(), mode, failure_policy }, failure, now))
}

#[test]
fn an_unserved_policy_denies_with_reason_and_next_try() {
    for (reason, next, message, code, details) in [
        (
            Reason::RegistryTimeout,
            Some("2026-01-01T00:00:40Z"),
            "RegistryTimeout: failed to fetch the module; next try in 40 s",
            503,
            None,
        ),
        (
            Reason::RegistryTimeout,
            Some("2026-01-01T00:00:02Z"),
            "RegistryTimeout: failed to fetch the module; next try in 2 s",
            503,
            Some(serde_json::json!({"retryAfterSeconds": 1})),
        ),
        (
            Reason::RegistryTimeout,
            Some("2025-12-31T23:00:00Z"),
            "RegistryTimeout: failed to fetch the module; next try at once",
            503,
            Some(serde_json::json!({"retryAfterSeconds": 1})),
        ),
        (Reason::ArtifactMissing, None, "ArtifactMissing: failed to fetch the module", 503, None),
        (Reason::NotFound, Some("2026-01-01T00:00:01Z"), "NotFound: failed to fetch the module", 500, None),
        (Reason::ModuleInvalid, None, "ModuleInvalid: failed to fetch the module", 500, None),
        // What a guest says about its settings is shown only to users who may read them.
        (
            Reason::SettingsInvalid,
            None,
            "SettingsInvalid: the policy refuses its settings; its status tells why",
            500,
            None,
        ),
        (
            Reason::SettingsCheckFailed,
            None,
            "SettingsCheckFailed: the policy's check of its settings failed; its status tells how",
            500,
            None,
        ),
        (
            Reason::CapabilityUnavailable,
            None,
            "CapabilityUnavailable: a host capability that the policy needs to load could not be provided; its status tells which",
            503,
            None,
        ),
    ] {
        let mut status = serde_json::json!({"message": format!("policy cluster/a: {message}"), "code": code});
        if let Some(details) = details {
            status["details"] = details;
        }
        assert_eq!(
            unserved_answer(Mode::Protect, FailurePolicy::Fail, &failure(reason, next)),
            serde_json::json!({"allowed": false, "status": status})
        );
    }
}

#[test]
fn an_unserved_policy_that_never_denies_admits_with_a_warning() {
    for (mode, failure_policy) in [
        (Mode::Protect, FailurePolicy::Ignore),
        (Mode::Monitor, FailurePolicy::Fail),
        (Mode::Warn, FailurePolicy::Fail),
        (Mode::Warn, FailurePolicy::Ignore),
    ] {
        assert_eq!(
            unserved_answer(mode, failure_policy, &failure(Reason::ModuleInvalid, None)),
            serde_json::json!({
                "allowed": true,
                "auditAnnotations": {"policy-not-evaluated": "cluster/a/ModuleInvalid"},
                "warnings": ["policy cluster/a was not evaluated: ModuleInvalid: failed to fetch the module"],
            })
        );
    }
}

#[test]
fn a_failed_evaluation_has_the_same_shape() {
    let error = |reason| EvaluationError::new(reason, "guest code interrupted");
    for (reason, code) in
        [(Reason::EvaluationTrapped, 500), (Reason::EvaluationTimedOut, 500), (Reason::Overloaded, 503)]
    {
        assert_eq!(
            json(failed(newest(&id()), 7, &error(reason))),
            serde_json::json!({
                "allowed": false,
                "status": {"message": format!("policy cluster/a: {reason}: guest code interrupted"), "code": code},
                "auditAnnotations": {"generation": "7"},
            })
        );
    }
    let id = id();
    let ignored = NewestSpec { failure_policy: FailurePolicy::Ignore, ..newest(&id) };
    assert_eq!(
        json(failed(ignored, 7, &error(Reason::PatchInvalid))),
        serde_json::json!({
            "allowed": true,
            "auditAnnotations": {"generation": "7", "policy-not-evaluated": "cluster/a/PatchInvalid"},
            "warnings": ["policy cluster/a was not evaluated: PatchInvalid: guest code interrupted"],
        })
    );
}

#[test]
fn under_a_bare_id_a_failed_evaluation_says_the_text_alone() {
    let bare: PolicyId = "clusterwide-a".parse().expect("an id");
    let error = EvaluationError::new(Reason::EvaluationTrapped, "internal server error: Guest call failure: x");
    let answer = failed(NewestSpec { id: &bare, ..newest(&id()) }, 7, &error).alone(&bare, None);
    assert_eq!(
        answer.status.and_then(|status| status.message).as_deref(),
        Some("internal server error: Guest call failure: x")
    );
}

#[test]
fn a_suspended_policy_admits() {
    assert_eq!(json(suspended(9)), serde_json::json!({"allowed": true, "auditAnnotations": {"generation": "9"}}));
}
