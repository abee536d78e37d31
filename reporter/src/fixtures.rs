//! Objects that the tests of several files begin with.

use std::collections::BTreeMap;

use jiff::Timestamp;
use portcullis_api::{ObservedPolicy, ObservedSpec, PolicyStatus};
use portcullis_contract::{FailurePolicy, LoaderPolicy, Mode, Phase};
use serde_json::{Value, json};

/// A policy of which the loader has published generation 1.
pub(crate) fn published(id: &str, uid: &str) -> LoaderPolicy {
    LoaderPolicy {
        id: id.parse().expect("an id"),
        uid: uid.to_owned(),
        generation: 1,
        mode: Mode::Protect,
        failure_policy: FailurePolicy::Fail,
        suspend: false,
        enforced: true,
        module: String::new(),
        digest: None,
        members: BTreeMap::new(),
        phase: Phase::Published,
        activity: None,
        failure: None,
        last_good: None,
        mismatches: Vec::new(),
        context: Vec::new(),
        impact: None,
        created: Timestamp::UNIX_EPOCH,
    }
}

/// A policy with this status.
pub(crate) fn observed(id: &str, generation: i64, status: PolicyStatus) -> ObservedPolicy {
    let spec = ObservedSpec {
        module: "m.wasm".into(),
        mode: Mode::Protect,
        failure_policy: FailurePolicy::Fail,
        suspend: false,
    };
    ObservedPolicy::new(&id.parse().expect("an id"), "uid", generation, Timestamp::UNIX_EPOCH, spec, status)
}

/// A status with some of our fields, as an API server has it.
pub(crate) fn status_value() -> Value {
    let condition = |r#type: &str| {
        json!({"type": r#type, "status": "True", "reason": "R", "message": "",
        "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    json!({
        "observedGeneration": 1,
        "conditions": [condition("Accepted"), condition("Ready")],
        "replicaCounts": {"expected": 1},
        "summary": "1/1",
        "replicas": [{"pod": "a", "podUID": "u", "state": "Current", "generation": 1}],
        "replicasOmitted": 0,
    })
}
