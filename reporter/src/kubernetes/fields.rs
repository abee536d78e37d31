//! The fields of a policy's status that are ours, and whether those that were found are those that are wanted (docs/design/status-api.md,
//! section 10). Pure.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use portcullis_api::ConditionType;
use serde_json::{Map, Value};

/// The types of conditions that are ours; `WebhookConfigured` is the controller's, and there may be others.
const CONDITIONS: [ConditionType; 8] = [
    ConditionType::Accepted,
    ConditionType::Ready,
    ConditionType::Enforced,
    ConditionType::Degraded,
    ConditionType::Reconciling,
    ConditionType::Stalled,
    ConditionType::MetadataMatched,
    ConditionType::ContextSynced,
];

/// Our fields beside `conditions`.
pub(super) const FIELDS: [&str; 10] = [
    "observedGeneration",
    "resolved",
    "lastServed",
    "replicaCounts",
    "summary",
    "replicas",
    "replicasOmitted",
    "history",
    "audit",
    "impact",
];

/// How the fields that were found compare to the wanted ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fit {
    /// They are the same.
    Same,
    /// These fields are absent: the schema of the API server does not know them.
    Dropped(Vec<String>),
    /// There are also values of another manager, or fields have other values.
    Foreign,
}

/// A hash of our fields of a status. Where it is equal, the fields are the same. It is kept of each policy instead of the fields: as values,
/// they take a thousand times as much memory, and nothing limits how many policies there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint(u64);

impl Fingerprint {
    /// The fingerprint of a status.
    pub(crate) fn of(status: &Value) -> Self {
        let mut hasher = DefaultHasher::new();
        ours(status).hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// Our fields of a status, in a form that can be compared: lists with keys become maps.
pub(crate) fn ours(status: &Value) -> Value {
    let mut ours = Map::new();
    for field in FIELDS {
        if !status[field].is_null() {
            ours.insert(field.to_owned(), status[field].clone());
        }
    }
    let mut conditions = by_key(&status["conditions"], "type");
    conditions.retain(|r#type, _| CONDITIONS.iter().any(|ours| ours.as_str() == r#type));
    ours.insert("conditions".to_owned(), Value::Object(conditions));
    for (field, key) in [("replicas", "pod"), ("history", "generation")] {
        if ours.contains_key(field) {
            ours.insert(field.to_owned(), Value::Object(by_key(&status[field], key)));
        }
    }
    Value::Object(ours)
}

fn by_key(list: &Value, key: &str) -> Map<String, Value> {
    let name = |entry: &Value| entry[key].as_str().map_or_else(|| entry[key].to_string(), str::to_owned);
    list.as_array().into_iter().flatten().map(|entry| (name(entry), entry.clone())).collect()
}

/// Compares two results of [`ours`].
pub(crate) fn fit(wanted: &Value, found: &Value) -> Fit {
    if wanted == found {
        return Fit::Same;
    }
    let mut dropped = BTreeSet::new();
    absent(wanted, found, "status", &mut dropped);
    if dropped.is_empty() { Fit::Foreign } else { Fit::Dropped(dropped.into_iter().collect()) }
}

/// Adds the paths of the fields that `found` lacks; of a whole missing part, only its outermost path. Each is added once, however many entries of
/// a list lack it.
pub(crate) fn absent(wanted: &Value, found: &Value, path: &str, out: &mut BTreeSet<String>) {
    if let (Value::Array(wanted), Value::Array(found)) = (wanted, found)
        && wanted.len() == found.len()
    {
        wanted.iter().zip(found).for_each(|(wanted, found)| absent(wanted, found, path, out));
    }
    for (name, value) in wanted.as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        match found.get(name) {
            Some(found) => absent(value, found, &path, out),
            None => {
                out.insert(path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use portcullis_api::{AuditSummary, PolicyStatus, ReplicaCounts, Resolved};
    use portcullis_contract::Digest;
    use serde_json::json;

    use super::*;
    use crate::fixtures::status_value as status;

    #[test]
    fn each_field_and_each_condition_of_a_status_is_ours_except_that_of_the_controller() {
        let resolved = Some(Resolved::module(1, Digest::of(b"m")));
        // Without `..`, so that a new field makes this incomplete.
        let status = PolicyStatus {
            observed_generation: 1,
            conditions: Vec::new(),
            resolved: resolved.clone(),
            last_served: resolved,
            replica_counts: ReplicaCounts::default(),
            summary: String::new(),
            replicas: Vec::new(),
            replicas_omitted: 0,
            history: Some(Vec::new()),
            audit: Some(AuditSummary {
                scanned_at: Timestamp::UNIX_EPOCH,
                generation: 1,
                checked: 0,
                violations: 0,
                errors: 0,
                examples: Vec::new(),
                unreadable: Vec::new(),
                message: String::new(),
                handled_request: String::new(),
            }),
            impact: Some(crate::impact::tests::impact(1, 0, 0)),
        };
        let status = json!(status);
        let found: BTreeSet<&str> = status.as_object().expect("an object").keys().map(String::as_str).collect();
        let ours: BTreeSet<&str> = FIELDS.into_iter().chain(["conditions"]).collect();
        assert_eq!(found, ours);
        let others = ConditionType::ALL.iter().filter(|r#type| !CONDITIONS.contains(r#type)).collect::<Vec<_>>();
        assert_eq!(others, [&ConditionType::WebhookConfigured]);
    }

    #[test]
    fn order_and_foreign_conditions_do_not_count() {
        let mut found = status();
        let foreign = json!({"type": "WebhookConfigured", "status": "True"});
        found["conditions"] = json!([foreign, status()["conditions"][1], status()["conditions"][0]]);
        assert_eq!(fit(&ours(&status()), &ours(&found)), Fit::Same);
        assert_eq!(Fingerprint::of(&status()), Fingerprint::of(&found));
    }

    #[test]
    fn fields_in_another_order_have_the_same_fingerprint_and_every_edit_has_another() {
        let mut turned = status();
        let fields = turned.as_object_mut().expect("an object");
        let mut entries: Vec<_> = std::mem::take(fields).into_iter().collect();
        entries.reverse();
        fields.extend(entries);
        assert_ne!(turned.to_string(), status().to_string());
        assert_eq!(Fingerprint::of(&turned), Fingerprint::of(&status()));
        for (path, value) in [
            ("/summary", json!("9/9")),
            ("/observedGeneration", json!(2)),
            ("/conditions/1/lastTransitionTime", json!("1999-01-01T00:00:00Z")),
            ("/replicas/0/state", json!("Failed")),
            ("/replicas", json!([])),
            ("/replicaCounts", json!({})),
        ] {
            let mut edited = status();
            *edited.pointer_mut(path).expect("it is there") = value;
            assert_ne!(Fingerprint::of(&edited), Fingerprint::of(&status()), "{path}");
        }
    }

    #[test]
    fn an_edited_field_is_noticed() {
        let mut found = status();
        found["summary"] = json!("9/9");
        assert_eq!(fit(&ours(&status()), &ours(&found)), Fit::Foreign);
        let mut found = status();
        found["replicas"].as_array_mut().expect("a list").push(json!({"pod": "forged", "podUID": "u"}));
        assert_eq!(fit(&ours(&status()), &ours(&found)), Fit::Foreign);
    }

    #[test]
    fn a_field_that_an_older_schema_drops_is_named() {
        let mut found = status();
        found.as_object_mut().expect("an object").remove("replicasOmitted");
        found["replicas"][0].as_object_mut().expect("an object").remove("podUID");
        let dropped = ["status.replicas.a.podUID", "status.replicasOmitted"].map(str::to_owned).to_vec();
        let Fit::Dropped(mut found) = fit(&ours(&status()), &ours(&found)) else { panic!("dropped") };
        found.sort();
        assert_eq!(found, dropped);
    }
}
