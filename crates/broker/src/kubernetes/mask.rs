//! `field_masks`: which fields of an object are kept.

use std::collections::BTreeMap;

use portcullis_kubernetes::Selection;

/// The annotation in which kubectl keeps the applied manifest: a second copy of the object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The fields that policies get without a mask that names them.
const ALWAYS: [&str; 3] = ["apiVersion", "kind", "metadata"];
/// Most levels of a mask. Objects are hardly nested deeper.
pub(crate) const MOST_LEVELS: usize = 64;

/// What a policy gets of an object: the fields that dotted masks name, with everything below them, or everything without masks. Each element
/// of a list is treated like the list. Type and metadata are there whatever the masks say, as upstream prunes only what is beside them: policies
/// decode both as fields that are never absent.
pub(crate) fn named(masks: &[String]) -> Selection {
    if masks.is_empty() {
        return Selection::All;
    }
    let mut named = Selection::fields(ALWAYS.map(|field| (field, Selection::All)), false);
    for mask in masks {
        add(&mut named, mask.split('.'));
    }
    named
}

/// What is kept of the objects of a list: the named fields without what only tools need, which are the managers of fields, and kubectl's copy of
/// the object.
pub(crate) fn kept(masks: &[String]) -> Selection {
    let annotations = Selection::fields([(LAST_APPLIED, Selection::Nothing)], true);
    let metadata = Selection::fields([("managedFields", Selection::Nothing), ("annotations", annotations)], true);
    named(masks).and(&Selection::fields([("metadata", metadata)], true))
}

/// Adds a mask to a selection of named fields. A shorter mask keeps everything below it, whichever comes first.
fn add<'m>(selection: &mut Selection, mut mask: impl Iterator<Item = &'m str>) {
    let Some(part) = mask.next() else { return *selection = Selection::All };
    if let Selection::Fields { named, .. } = selection {
        let below = named.entry(part.to_owned());
        add(below.or_insert_with(|| Selection::Fields { named: BTreeMap::new(), keeps_others: false }), mask);
    }
}

/// Whether the masks name nothing but what is there without them: an object's type and fields of its metadata.
pub(crate) fn is_of_metadata(masks: &[String]) -> bool {
    let is_known = |mask: &String| mask.split('.').next().is_some_and(|field| ALWAYS.contains(&field));
    !masks.is_empty() && masks.iter().all(is_known)
}

#[cfg(test)]
mod tests {
    use serde_json::value::to_raw_value;
    use serde_json::{Value, json};

    use super::*;

    fn select(select: fn(&[String]) -> Selection, masks: &[&str], object: &Value) -> Value {
        let masks: Vec<_> = masks.iter().map(|&mask| mask.to_owned()).collect();
        let json = select(&masks).apply(&to_raw_value(object).expect("JSON")).expect("reads");
        serde_json::from_str(json.get()).expect("JSON")
    }

    fn pod() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "labels": {"x": "y"}},
            "spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": "n"}, "status": {"phase": "Running"},
        })
    }

    #[test]
    fn masks_keep_what_they_name() {
        for of in [kept, named] {
            let spec = |masks: &[&str]| {
                let mut selected = select(of, masks, &pod());
                selected.as_object_mut().expect("an object").shift_remove("spec").unwrap_or_default()
            };
            assert_eq!(spec(&["spec.containers.image"]), json!({"containers": [{"image": "i"}]}));
            assert_eq!(spec(&["spec.nodeName", "metadata.name"]), json!({"nodeName": "n"}));
            assert_eq!(spec(&["spec", "spec.nodeName"]), pod()["spec"]);
            assert_eq!(spec(&["spec.nodeName", "spec"]), pod()["spec"]);
            assert_eq!(spec(&["nothing.of.this"]), Value::Null);
            assert_eq!(select(of, &[], &pod()), pod());
        }
    }

    #[test]
    fn type_and_metadata_are_there_whatever_the_masks_say() {
        let mut known = pod();
        for field in ["spec", "status"] {
            known.as_object_mut().expect("an object").shift_remove(field);
        }
        for of in [kept, named] {
            for masks in [
                &["metadata.name"][..],
                &["metadata"],
                &["metadata", "metadata.name"],
                &["metadata.name", "metadata"],
                &["kind.of", "apiVersion"],
                &["nothing.of.this"],
                &[""],
            ] {
                assert_eq!(select(of, masks, &pod()), known, "{masks:?}");
            }
        }
        // What is beside them goes, as upstream: policies name only that.
        let report = json!({"apiVersion": "a/v1", "kind": "Report", "metadata": {"name": "r", "uid": "u"}, "report": {"a": 1, "b": 2}});
        let selected =
            json!({"apiVersion": "a/v1", "kind": "Report", "metadata": {"name": "r", "uid": "u"}, "report": {"a": 1}});
        assert_eq!(select(kept, &["report.a"], &report), selected);
    }

    #[test]
    fn metadata_is_enough_where_no_mask_names_anything_else() {
        let is_enough = |masks: &[&str]| is_of_metadata(&masks.iter().map(|&mask| mask.to_owned()).collect::<Vec<_>>());
        assert!(is_enough(&["metadata.name"]) && is_enough(&["apiVersion", "kind", "metadata", "metadata.labels.app"]));
        assert!(!is_enough(&[]), "everything");
        assert!(!is_enough(&["metadata.name", "spec"]) && !is_enough(&["metadatas"]) && !is_enough(&[""]));
    }

    #[test]
    fn what_only_tools_need_goes_from_lists() {
        let object = json!({
            "metadata": {"name": "a", "managedFields": [1], "annotations": {LAST_APPLIED: "{}", "b": "c"}}, "spec": {"managedFields": 1},
        });
        let all = json!({"metadata": {"name": "a", "annotations": {"b": "c"}}, "spec": {"managedFields": 1}});
        assert_eq!(select(kept, &[], &object), all);
        for mask in ["metadata", "metadata.name", "metadata.managedFields"] {
            assert_eq!(select(kept, &[mask], &object), json!({"metadata": all["metadata"]}));
            assert_eq!(
                select(named, &[mask], &object),
                json!({"metadata": object["metadata"]}),
                "a single object is whole"
            );
        }
        assert_eq!(select(named, &[], &object), object);
    }
}
