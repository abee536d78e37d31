//! What an API server adds to an object before it asks a policy. A request that is made from a file lacks it. The mutating webhooks of others
//! may add anything, and are not considered. The namespace is filled in where such a request is made.

use serde_json::Value;

use crate::request::UID;
use crate::selector::{Labels, labels};

/// The label with the name of a Namespace, which API servers set (Kubernetes 1.22).
pub const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Fields of metadata that an object has in a request though its file has none. API servers fill them in, `kubectl apply` adds an annotation,
/// and admission plugins add finalizers to volumes and claims.
pub(crate) const METADATA: [&str; 8] =
    ["annotations", "creationTimestamp", "finalizers", "generation", "managedFields", "name", "resourceVersion", "uid"];
/// Those of them that get more entries than the file has.
const GROWING: [&str; 3] = ["annotations", "finalizers", "managedFields"];
/// Lists of a Pod that get more entries than the file has: the volume of its token, where containers mount it, and tolerations of nodes that
/// do not answer.
const GROWING_LISTS: [&str; 3] = ["tolerations", "volumeMounts", "volumes"];
/// Kinds that get the labels of their template where they have none, after their API groups.
const LABELED_BY_TEMPLATE: [(&str, &str); 2] = [("", "ReplicationController"), ("batch", "Job")];
/// Kinds whose data are as they are written, and where those are.
const DATA_KINDS: [(&str, &str); 2] = [("", "ConfigMap"), ("", "Secret")];
const DATA: [&str; 3] = ["binaryData", "data", "stringData"];
/// Labels of the template of a Job that have no domain of Kubernetes and are set by API servers.
const OF_JOB: [&str; 2] = ["controller-uid", "job-name"];

/// A step of a path: the name of a field, or nothing if an expression computes it.
pub(crate) type Key<'a> = Option<&'a str>;

/// The object of a request that was made from a file.
#[derive(Debug)]
pub(crate) struct FromFile<'a> {
    kind: &'a Value,
    /// The object without the fields that are null: API servers drop them.
    pub(crate) object: Value,
}

impl<'a> FromFile<'a> {
    /// `None` if somebody sent the request, or wrote it as a whole.
    pub(crate) fn of(request: &'a Value) -> Option<Self> {
        let is_made = request["uid"] == UID;
        is_made.then(|| Self { kind: &request["kind"], object: without_nulls(&request["object"]) })
    }

    /// Whether something may be at a path in an API server though the file has nothing there.
    pub(crate) fn may_have(&self, path: &[Key<'_>]) -> bool {
        match path {
            [Some("metadata"), Some("annotations"), Some(key), ..] => is_of_kubernetes(key),
            [Some("metadata"), Some("labels"), rest @ ..] => self.may_get_label(rest.first().copied().flatten()),
            [Some("metadata"), Some(field), ..] => METADATA.contains(field),
            [.., Some("template"), Some("metadata"), Some("labels" | "annotations"), Some(key)] => {
                is_of_kubernetes(key) || is_kind(self.kind, ("batch", "Job")) && OF_JOB.contains(key)
            }
            [Some(field), ..] if self.is_data(field) => self.converts_data(),
            _ => true,
        }
    }

    /// Whether what the file has at a path may be larger in an API server. A list counts as it is written, except in metadata, and except those of
    /// a Pod to which API servers add.
    pub(crate) fn may_grow(&self, path: &[Key<'_>]) -> bool {
        match path {
            [] | [None] | [Some("metadata")] | [Some("metadata"), None] => true,
            [Some("metadata"), Some("labels")] => self.may_get_label(None),
            [Some("metadata"), Some(field)] => GROWING.contains(field),
            [Some("metadata"), ..] => false,
            [Some(field), ..] if self.is_data(field) => self.converts_data(),
            [Some("spec"), .., Some(list)] if self.may_append_to(list) => true,
            // Those of the service account, if the Pod has none.
            [Some("spec"), Some("imagePullSecrets")] if self.is_pod() => {
                self.object["spec"]["imagePullSecrets"].as_array().is_some_and(Vec::is_empty)
            }
            _ => {
                let mut parts = path.iter();
                parts.try_fold(&self.object, |value, key| value.get((*key)?)).is_some_and(Value::is_object)
            }
        }
    }

    /// Whether a list with this name, in the spec of the object, may have more entries in an API server.
    pub(crate) fn may_append_to(&self, list: &str) -> bool {
        self.is_pod() && GROWING_LISTS.contains(&list)
    }

    /// Whether a field of metadata may be another one in an API server.
    pub(crate) fn may_add_to(&self, field: &str) -> bool {
        METADATA.contains(&field) && (GROWING.contains(&field) || self.object["metadata"].get(field).is_none())
    }

    /// Whether the object has annotations. Those of Kubernetes may come to them, and no others.
    pub(crate) fn has_annotations(&self) -> bool {
        self.object["metadata"].get("annotations").is_some()
    }

    /// Whether it may get this label, or any if the label is not known.
    pub(crate) fn may_get_label(&self, key: Key<'_>) -> bool {
        let is_name = key.is_none_or(|key| key == NAME_LABEL);
        // Also an empty mapping: a Job shares it with its template, and API servers add the labels of its controller to that.
        let has_template = LABELED_BY_TEMPLATE.iter().any(|kind| is_kind(self.kind, *kind))
            && self.object["spec"]["template"]["metadata"]["labels"].is_object();
        is_kind(self.kind, ("", "Namespace")) && is_name || has_template && labels(&self.object["metadata"]).is_empty()
    }

    fn is_pod(&self) -> bool {
        is_kind(self.kind, ("", "Pod"))
    }

    fn is_data(&self, field: &str) -> bool {
        DATA.contains(&field) && DATA_KINDS.iter().any(|kind| is_kind(self.kind, *kind))
    }

    /// Whether an API server moves `stringData` into `data`.
    fn converts_data(&self) -> bool {
        self.object.get("stringData").is_some()
    }
}

/// The labels that an object of a request has in an API server, and whether it may have others, which are not known here.
pub fn labels_of(request: &Value, object: &Value) -> (Labels, bool) {
    let mut known = labels(&object["metadata"]);
    if is_kind(&request["kind"], ("", "Namespace"))
        && let Some(name) = request["name"].as_str().filter(|name| !name.is_empty())
    {
        known.insert(NAME_LABEL.to_owned(), name.to_owned());
        return (known, false);
    }
    (known, FromFile::of(request).is_some_and(|made| made.may_get_label(None)))
}

fn is_kind(kind: &Value, (group, name): (&str, &str)) -> bool {
    kind["group"] == group && kind["kind"] == name
}

/// Whether an annotation or a label may be one that API servers or `kubectl` set, such as `deprecated.daemonset.template.generation`.
pub(crate) fn is_of_kubernetes(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    domain.ends_with("kubernetes.io") || domain.ends_with("k8s.io") || key.starts_with("deprecated.")
}

/// A value without the fields that are null. The entries of lists stay.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(_, field)| !field.is_null());
            Value::Object(kept.map(|(name, field)| (name.clone(), without_nulls(field))).collect())
        }
        Value::Array(entries) => Value::Array(entries.iter().map(without_nulls).collect()),
        other => other.clone(),
    }
}
