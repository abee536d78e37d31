//! The review that is sent, and its pod as a client sends it to an API server.

use serde_json::Value;

pub(crate) use portcullis_testkit::pod_review as pod;

/// The pod of the review, as it is sent to an API server under this name.
pub(crate) fn to_create(name: &str) -> Value {
    let review: Value = serde_json::from_slice(&pod(false)).unwrap_or_default();
    let mut pod = review["request"]["object"].clone();
    pod["metadata"]["name"] = name.into();
    pod["spec"]["serviceAccountName"] = "default".into();
    if let Some(metadata) = pod["metadata"].as_object_mut() {
        // The owner does not exist here, so the pod would be garbage collected.
        for field in ["namespace", "generateName", "ownerReferences"] {
            metadata.shift_remove(field);
        }
    }
    pod
}
