//! Sizes, values and defaults. Every list, map and string has a maximum size: the API server estimates what a rule costs, and refuses
//! rules on fields of unlimited size.

use serde_json::{Value, json};

use super::path::at;
use crate::{AuditSummary, ImpactSummary, PolicyStatus, ReplicaReportSpec};

/// A path of a schema, and the keywords to add there.
pub(crate) type Limit = (&'static str, Value);

/// Adds the keywords of each limit to the schema at its path.
pub(crate) fn apply(schema: &mut Value, limits: &[Limit]) {
    for (path, keywords) in limits {
        let keywords = keywords.as_object().expect("limits below are objects");
        let below = at(schema, path).as_object_mut().expect("a schema is an object");
        below.extend(keywords.iter().map(|(key, value)| (key.clone(), value.clone())));
    }
}

fn text(most: usize) -> Value {
    json!({ "minLength": 1, "maxLength": most })
}

/// A list without a key, which is replaced as a whole.
fn list(most: usize) -> Value {
    json!({ "maxItems": most, "x-kubernetes-list-type": "atomic" })
}

fn some(most: usize) -> Value {
    json!({ "minItems": 1, "maxItems": most, "x-kubernetes-list-type": "atomic" })
}

fn seconds() -> Value {
    json!({ "minimum": 1, "maximum": 30 })
}

/// The limits of the spec of both kinds of policy.
pub(crate) fn spec() -> Vec<Limit> {
    let mut limits = vec![
        ("policyServer", text(63)),
        ("module", text(2048)),
        ("policies", json!({ "minProperties": 1, "maxProperties": 16 })),
        ("policies{}.module", text(2048)),
        ("policies{}.timeoutEvalSeconds", seconds()),
        ("expression", text(2048)),
        ("message", text(1024)),
        ("rules", some(32)),
        ("rules[].apiGroups", some(32)),
        ("rules[].apiGroups[]", json!({ "maxLength": 253 })),
        ("rules[].apiVersions", some(16)),
        ("rules[].apiVersions[]", text(63)),
        ("rules[].resources", some(32)),
        ("rules[].resources[]", text(127)),
        ("rules[].operations", some(5)),
        ("rules[].operations[]", json!({ "enum": ["CREATE", "UPDATE", "DELETE", "CONNECT", "*"] })),
        ("rules[].scope", json!({ "enum": ["Cluster", "Namespaced", "*"] })),
        ("matchPolicy", json!({ "enum": ["Exact", "Equivalent"], "default": "Equivalent" })),
        (
            "matchConditions",
            json!({ "maxItems": 60, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"] }),
        ),
        ("matchConditions[].name", text(127)),
        ("matchConditions[].expression", text(4096)),
        ("sideEffects", json!({ "enum": ["None", "NoneOnDryRun"], "default": "None" })),
        ("timeoutSeconds", json!({ "minimum": 1, "maximum": 30, "default": 10 })),
        ("timeoutEvalSeconds", seconds()),
        ("revisionHistoryLimit", json!({ "minimum": 0, "maximum": 100, "default": 10 })),
        ("rollbackTo", json!({ "minimum": 1 })),
        ("backgroundAudit", json!({ "default": true })),
    ];
    for selector in SELECTORS {
        limits.extend([
            (selector[0], json!({ "x-kubernetes-map-type": "atomic" })),
            (selector[1], json!({ "maxProperties": 32 })),
            (selector[2], json!({ "maxLength": 63 })),
            (selector[3], list(32)),
            (selector[4], text(317)),
            (selector[5], list(64)),
            (selector[6], json!({ "maxLength": 63 })),
        ]);
    }
    for grants in GRANTS {
        limits.extend([
            (grants[0], list(64)),
            (grants[1], text(317)),
            (grants[2], text(63)),
            (grants[3], list(64)),
            (grants[4], text(256)),
        ]);
    }
    limits
}

const SELECTORS: [[&str; 7]; 2] = [
    [
        "objectSelector",
        "objectSelector.matchLabels",
        "objectSelector.matchLabels{}",
        "objectSelector.matchExpressions",
        "objectSelector.matchExpressions[].key",
        "objectSelector.matchExpressions[].values",
        "objectSelector.matchExpressions[].values[]",
    ],
    [
        "namespaceSelector",
        "namespaceSelector.matchLabels",
        "namespaceSelector.matchLabels{}",
        "namespaceSelector.matchExpressions",
        "namespaceSelector.matchExpressions[].key",
        "namespaceSelector.matchExpressions[].values",
        "namespaceSelector.matchExpressions[].values[]",
    ],
];

const GRANTS: [[&str; 5]; 2] = [
    [
        "contextAwareResources",
        "contextAwareResources[].apiVersion",
        "contextAwareResources[].kind",
        "hostCapabilities",
        "hostCapabilities[]",
    ],
    [
        "policies{}.contextAwareResources",
        "policies{}.contextAwareResources[].apiVersion",
        "policies{}.contextAwareResources[].kind",
        "policies{}.hostCapabilities",
        "policies{}.hostCapabilities[]",
    ],
];

/// The limits of the status of both kinds of policy. The whole status stays below 64 KiB.
pub(crate) fn status() -> Vec<Limit> {
    let keyed = |key: &str, most: usize| json!({ "maxItems": most, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key] });
    vec![
        ("conditions", keyed("type", 16)),
        ("conditions[].type", text(128)),
        ("conditions[].reason", text(128)),
        ("conditions[].message", json!({ "maxLength": PolicyStatus::MAX_CONDITION_MESSAGE })),
        ("replicas", keyed("pod", PolicyStatus::MAX_REPLICAS)),
        ("replicas[].pod", text(253)),
        ("replicas[].podUID", json!({ "maxLength": 64 })),
        ("replicas[].reason", json!({ "maxLength": 128 })),
        ("replicas[].message", json!({ "maxLength": PolicyStatus::MAX_REPLICA_MESSAGE })),
        ("resolved", json!({ "x-kubernetes-map-type": "atomic" })),
        ("resolved.members", json!({ "maxProperties": 16 })),
        ("lastServed", json!({ "x-kubernetes-map-type": "atomic" })),
        ("lastServed.members", json!({ "maxProperties": 16 })),
        ("replicaCounts", json!({ "x-kubernetes-map-type": "atomic" })),
        ("summary", json!({ "maxLength": 32 })),
        ("history", list(PolicyStatus::MAX_HISTORY)),
        ("history[].reason", json!({ "maxLength": 128 })),
        ("audit", json!({ "x-kubernetes-map-type": "atomic" })),
        ("audit.examples", list(AuditSummary::MAX_EXAMPLES)),
        ("audit.examples[]", json!({ "maxLength": AuditSummary::MAX_EXAMPLE })),
        ("audit.unreadable", list(AuditSummary::MAX_UNREADABLE)),
        ("audit.unreadable[]", json!({ "maxLength": AuditSummary::MAX_RESOURCE })),
        ("audit.message", json!({ "maxLength": AuditSummary::MAX_MESSAGE })),
        ("impact", json!({ "x-kubernetes-map-type": "atomic" })),
        ("impact.examples", list(ImpactSummary::MAX_EXAMPLES)),
        ("impact.examples[]", json!({ "maxLength": ImpactSummary::MAX_EXAMPLE })),
    ]
}

/// The limits of the spec of a report. Its maps and lists are replaced as a whole, so that `managedFields` has one record for all, and
/// not one per policy.
pub(crate) fn report() -> Vec<Limit> {
    let atomic = || json!({ "x-kubernetes-map-type": "atomic" });
    vec![
        ("podUID", text(64)),
        ("node", json!({ "maxLength": 253 })),
        ("versions", atomic()),
        ("versions.loader", json!({ "maxLength": 64 })),
        ("versions.evaluator", json!({ "maxLength": 64 })),
        ("versions.reporter", json!({ "maxLength": 64 })),
        ("versions.engine", json!({ "maxLength": 64 })),
        ("current", atomic()),
        ("digests", atomic()),
        ("members", atomic()),
        ("deviations", list(ReplicaReportSpec::MAX_DEVIATIONS)),
        ("deviations[].policyUID", text(64)),
        ("deviations[].reason", json!({ "maxLength": 128 })),
        ("deviations[].message", json!({ "maxLength": 1024 })),
        ("failing", list(ReplicaReportSpec::MAX_FAILING)),
        ("failing[].policyUID", text(64)),
        ("failing[].reason", json!({ "maxLength": 128 })),
        ("mismatches", list(ReplicaReportSpec::MAX_MISMATCHES)),
        ("mismatches[].policyUID", text(64)),
        ("mismatches[].reason", json!({ "maxLength": 128 })),
        ("mismatches[].message", json!({ "maxLength": ReplicaReportSpec::MAX_MISMATCH_MESSAGE })),
        ("context", list(ReplicaReportSpec::MAX_CONTEXT)),
        ("context[].policyUID", text(64)),
        ("context[].reason", json!({ "maxLength": 128 })),
        ("context[].message", json!({ "maxLength": ReplicaReportSpec::MAX_CONTEXT_MESSAGE })),
        ("impacts", list(ReplicaReportSpec::MAX_IMPACTS)),
        ("impacts[].policyUID", text(64)),
        ("impacts[].impact.examples", list(ImpactSummary::MAX_EXAMPLES)),
        ("impacts[].impact.examples[]", json!({ "maxLength": ImpactSummary::MAX_EXAMPLE })),
        ("pathKeys", list(ReplicaReportSpec::MAX_PATH_KEYS)),
        ("pathKeys[]", json!({ "maxLength": 64 })),
    ]
}
