//! The bodies of the writes of a policy's status (docs/design/status-api.md, section 10). Pure.
//!
//! An apply has all of our fields, since fields that it leaves out are removed. It does not remove values that another manager owns, which
//! can be seen in the answer. An API server with an older schema refuses an apply with fields that it does not know, but takes a merge and
//! drops these fields.

use portcullis_api::{API_VERSION, PolicyStatus};
use serde_json::{Map, Value, json};

use super::fields::FIELDS;
use super::object::{PolicyObject, kind};

/// The body of an apply. It has the version of the object, so that it fails for a later object of the same name.
pub(crate) fn apply(object: &PolicyObject, status: &PolicyStatus) -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": kind(&object.id),
        "metadata": metadata(object),
        "status": status,
    })
}

/// The body of a merge that sets our fields, even where another manager owns a part of them.
pub(crate) fn sweep(object: &PolicyObject, status: &PolicyStatus) -> Value {
    let wanted = json!(status);
    let fields: Map<String, Value> = FIELDS.iter().map(|field| ((*field).to_owned(), wanted[*field].clone())).collect();
    json!({ "metadata": metadata(object), "status": fields })
}

/// The body of a dry-run merge with all of our fields. An API server with an older schema takes the fields that it knows; it would
/// refuse an apply as a whole.
pub(crate) fn trial(object: &PolicyObject, status: &PolicyStatus) -> Value {
    json!({ "metadata": metadata(object), "status": status })
}

/// The body of an apply with the fields that the API server kept of a [`trial`].
pub(crate) fn apply_known(object: &PolicyObject, status: &PolicyStatus, kept: &Value) -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": kind(&object.id),
        "metadata": metadata(object),
        "status": known(&json!(status), kept),
    })
}

/// `wanted` without the fields that `kept` lacks.
pub(crate) fn known(wanted: &Value, kept: &Value) -> Value {
    match (wanted, kept) {
        (Value::Object(wanted), Value::Object(kept)) => {
            let fields = wanted.iter().filter_map(|(name, value)| Some((name.clone(), known(value, kept.get(name)?))));
            Value::Object(fields.collect())
        }
        // A merge takes a list as a whole, so its entries keep their order.
        (Value::Array(wanted), Value::Array(kept)) if wanted.len() == kept.len() => {
            Value::Array(wanted.iter().zip(kept).map(|(wanted, kept)| known(wanted, kept)).collect())
        }
        _ => wanted.clone(),
    }
}

fn metadata(object: &PolicyObject) -> Value {
    let mut metadata = json!({ "name": object.meta.name, "resourceVersion": object.meta.version });
    if let Some(namespace) = &object.meta.namespace {
        metadata["namespace"] = json!(namespace);
    }
    metadata
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use portcullis_api::Kind;

    use super::*;
    use crate::fixtures::status_value as status;
    use crate::kubernetes::fields::absent;

    #[test]
    fn what_an_older_schema_does_not_know_is_left_out_of_an_apply() {
        let mut kept = status();
        kept.as_object_mut().expect("an object").remove("summary");
        kept["replicas"][0].as_object_mut().expect("an object").remove("generation");
        let mut names = BTreeSet::new();
        absent(&status(), &kept, "status", &mut names);
        assert_eq!(names, ["status.replicas.generation", "status.summary"].map(str::to_owned).into());
        let known = known(&status(), &kept);
        assert_eq!(known, kept);
        assert_eq!(known["conditions"], status()["conditions"]);
    }

    #[test]
    fn a_write_carries_every_field_and_the_version_and_never_the_controller_s_condition() {
        let object =
            json!({"metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7"}, "spec": {}});
        let object = PolicyObject::of(Kind::Policy, &object).expect("a policy");
        let wanted: PolicyStatus = serde_json::from_value(status()).expect("a status");
        let body = apply(&object, &wanted);
        assert_eq!(body["metadata"], json!({"name": "a", "namespace": "n", "resourceVersion": "7"}));
        assert_eq!((&body["kind"], &body["status"]["summary"]), (&json!("Policy"), &json!("1/1")));
        let body = sweep(&object, &wanted);
        assert_eq!((body["status"].get("conditions"), body["status"].get("lastServed")), (None, Some(&Value::Null)));
    }
}
