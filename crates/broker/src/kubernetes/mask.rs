//! `field_masks`: which fields of an object are kept.

use std::collections::BTreeMap;

use portcullis_kubernetes::Selection;

/// The annotation in which kubectl keeps the applied manifest: a second copy of the object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Most levels of a mask. Objects are hardly nested deeper.
pub(crate) const MOST_LEVELS: usize = 64;

/// What is kept of objects: the fields that dotted masks name, with everything below them, or everything without masks. Each element of a list
/// is treated like the list. What only tools need is never kept: who manages which field, and kubectl's copy of the object.
pub(crate) fn kept(masks: &[String]) -> Selection {
    let annotations = Selection::fields([(LAST_APPLIED, Selection::Nothing)], true);
    let metadata = Selection::fields([("managedFields", Selection::Nothing), ("annotations", annotations)], true);
    let mut named = if masks.is_empty() { Selection::All } else { Selection::fields([], false) };
    for mask in masks {
        add(&mut named, mask.split('.'));
    }
    named.and(&Selection::fields([("metadata", metadata)], true))
}

/// Adds a mask to a selection of named fields. A shorter mask keeps everything below it.
fn add<'m>(selection: &mut Selection, mut mask: impl Iterator<Item = &'m str>) {
    let Some(part) = mask.next() else { return *selection = Selection::All };
    if let Selection::Fields { named, .. } = selection {
        let below = named.entry(part.to_owned());
        add(below.or_insert_with(|| Selection::Fields { named: BTreeMap::new(), keeps_others: false }), mask);
    }
}

/// Whether the masks name only fields of an object's metadata.
pub(crate) fn is_of_metadata(masks: &[String]) -> bool {
    let is_known = |mask: &String| matches!(mask.split('.').next(), Some("metadata" | "apiVersion" | "kind"));
    !masks.is_empty() && masks.iter().all(is_known)
}

#[cfg(test)]
mod tests {
    use serde_json::value::to_raw_value;
    use serde_json::{Value, json};

    use super::*;

    fn select(masks: &[&str], object: &Value) -> Value {
        let masks: Vec<_> = masks.iter().map(|&mask| mask.to_owned()).collect();
        let json = kept(&masks).apply(&to_raw_value(object).expect("JSON")).expect("reads");
        serde_json::from_str(json.get()).expect("JSON")
    }

    fn of_pod(masks: &[&str]) -> Value {
        let pod = json!({
            "kind": "Pod", "metadata": {"name": "a", "labels": {"x": "y"}},
            "spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": "n"},
        });
        select(masks, &pod)
    }

    #[test]
    fn masks_keep_what_they_name() {
        assert_eq!(of_pod(&["metadata.name"]), json!({"metadata": {"name": "a"}}));
        assert_eq!(of_pod(&["spec.containers.image"]), json!({"spec": {"containers": [{"image": "i"}]}}));
        assert_eq!(of_pod(&["metadata"]), json!({"metadata": {"name": "a", "labels": {"x": "y"}}}));
        assert_eq!(of_pod(&["metadata", "metadata.name"]), of_pod(&["metadata"]));
        assert_eq!(of_pod(&["metadata.name", "metadata"]), of_pod(&["metadata"]));
        assert_eq!(of_pod(&["nothing.of.this"]), json!({}));
        assert_eq!(of_pod(&[])["kind"], "Pod");
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
        let object = json!({
            "metadata": {"name": "a", "managedFields": [1], "annotations": {LAST_APPLIED: "{}", "b": "c"}}, "spec": {"managedFields": 1},
        });
        let all = json!({"metadata": {"name": "a", "annotations": {"b": "c"}}, "spec": {"managedFields": 1}});
        assert_eq!(select(&[], &object), all);
        assert_eq!(select(&["metadata"], &object), json!({"metadata": all["metadata"]}));
        assert_eq!(select(&["metadata.managedFields"], &object), json!({"metadata": {}}));
    }
}
