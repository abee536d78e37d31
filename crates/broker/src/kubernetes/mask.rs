//! `field_masks`: which fields of an object are kept.

use std::collections::BTreeMap;

use serde_json::Value;

/// The annotation in which kubectl keeps the applied manifest: a second copy of the object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Removes what only tools need: who manages which field, and kubectl's copy of the object.
pub(crate) fn trim(object: &mut Value) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    metadata.remove("managedFields");
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove(LAST_APPLIED);
    }
}

/// Whether the masks name only fields of an object's metadata.
pub(crate) fn is_of_metadata(masks: &[String]) -> bool {
    let is_known = |mask: &String| matches!(mask.split('.').next(), Some("metadata" | "apiVersion" | "kind"));
    !masks.is_empty() && masks.iter().all(is_known)
}

/// Masks as a tree: a field that is kept whole has no children.
#[derive(Debug, Default, PartialEq, Eq)]
struct Kept(BTreeMap<String, Kept>);

/// Keeps the fields that dotted masks name, with everything below them; each element of a list is masked in the same way. Without
/// masks, everything is kept.
pub(crate) fn keep(object: &mut Value, masks: &[String]) {
    if masks.is_empty() {
        return;
    }
    let mut root = Kept::default();
    for mask in masks {
        root.add(mask);
    }
    root.apply(object);
}

impl Kept {
    fn add(&mut self, mask: &str) {
        let (mut node, mut is_new) = (self, true);
        for (depth, part) in mask.split('.').enumerate() {
            // A shorter mask keeps everything below it already.
            if depth > 0 && !is_new && node.0.is_empty() {
                return;
            }
            is_new = !node.0.contains_key(part);
            node = node.0.entry(part.to_owned()).or_default();
        }
        node.0.clear();
    }

    fn apply(&self, value: &mut Value) {
        match value {
            _ if self.0.is_empty() => {}
            Value::Object(fields) => {
                fields.retain(|name, _| self.0.contains_key(name));
                for (name, field) in fields {
                    self.0[name].apply(field);
                }
            }
            Value::Array(elements) => elements.iter_mut().for_each(|element| self.apply(element)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kept(masks: &[&str]) -> Value {
        let mut object = json!({
            "kind": "Pod", "metadata": {"name": "a", "labels": {"x": "y"}},
            "spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": "n"},
        });
        let masks: Vec<_> = masks.iter().map(|&mask| mask.to_owned()).collect();
        keep(&mut object, &masks);
        object
    }

    #[test]
    fn masks_keep_what_they_name() {
        assert_eq!(kept(&["metadata.name"]), json!({"metadata": {"name": "a"}}));
        assert_eq!(kept(&["spec.containers.image"]), json!({"spec": {"containers": [{"image": "i"}]}}));
        assert_eq!(kept(&["metadata"]), json!({"metadata": {"name": "a", "labels": {"x": "y"}}}));
        assert_eq!(kept(&["metadata", "metadata.name"]), kept(&["metadata"]));
        assert_eq!(kept(&["metadata.name", "metadata"]), kept(&["metadata"]));
        assert_eq!(kept(&["nothing.of.this"]), json!({}));
        assert_eq!(kept(&[])["kind"], "Pod");
    }

    #[test]
    fn metadata_is_enough_where_no_mask_names_anything_else() {
        let is_enough = |masks: &[&str]| is_of_metadata(&masks.iter().map(|&mask| mask.to_owned()).collect::<Vec<_>>());
        assert!(is_enough(&["metadata.name"]) && is_enough(&["apiVersion", "kind", "metadata", "metadata.labels.app"]));
        assert!(!is_enough(&[]), "everything");
        assert!(!is_enough(&["metadata.name", "spec"]) && !is_enough(&["metadatas"]) && !is_enough(&[""]));
    }

    #[test]
    fn what_only_tools_need_goes() {
        let mut object =
            json!({"metadata": {"name": "a", "managedFields": [1], "annotations": {LAST_APPLIED: "{}", "b": "c"}}});
        trim(&mut object);
        assert_eq!(object, json!({"metadata": {"name": "a", "annotations": {"b": "c"}}}));
    }
}
