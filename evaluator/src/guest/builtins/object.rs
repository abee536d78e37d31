//! Objects and lists: patches, subsets, unions.

use serde_json::{Map, Value};

use super::{Arguments, BuiltinError, Outcome};
use crate::verdict::apply_patch;

/// What it takes to go over one value or to shift it, in units of work.
const TOUCHED: usize = 5;

pub(super) fn patch(arguments: &Arguments) -> Outcome {
    apply_patch(arguments.value(0)?.clone(), arguments.list(1)?, |values| arguments.work().count(values * TOUCHED))
}

/// Whether all of the second is in the first, at every depth.
pub(super) fn subset(arguments: &Arguments) -> Outcome {
    Ok(has(arguments.value(0)?, arguments.value(1)?).into())
}

fn has(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(name, value)| whole.get(name).is_some_and(|there| has(there, value)))
        }
        // A list is a subset if its items follow one another in the other list, in this order.
        (Value::Array(whole), Value::Array(part)) => follow(whole, part),
        (whole, part) => whole == part,
    }
}

/// Whether the items of `part` follow one another in `whole`, by the algorithm of Knuth, Morris and Pratt: beginning again at each place would
/// take hours where the lists are long and nearly alike.
fn follow(whole: &[Value], part: &[Value]) -> bool {
    // For the first items of `part`, how many of them are also the last ones that were seen.
    let mut borders: Vec<usize> = Vec::with_capacity(part.len());
    let longer = |borders: &[usize], mut seen: usize, item: &Value| {
        while seen > 0 && part[seen] != *item {
            seen = borders[seen - 1];
        }
        seen + usize::from(part[seen] == *item)
    };
    for (index, item) in part.iter().enumerate() {
        let border = match index {
            0 => 0,
            _ => longer(&borders, borders[index - 1], item),
        };
        borders.push(border);
    }
    let mut seen = 0;
    part.is_empty()
        || whole.iter().any(|item| {
            seen = longer(&borders, seen, item);
            seen == part.len()
        })
}

/// All objects in one; where they differ, the later one counts.
pub(super) fn union_n(arguments: &Arguments) -> Outcome {
    let mut all = Value::Object(Map::new());
    for object in arguments.list(0)? {
        if !object.is_object() {
            return Err(BuiltinError::Form("argument 1 is not a list of objects"));
        }
        unite(&mut all, object);
    }
    Ok(all)
}

fn unite(all: &mut Value, more: &Value) {
    match (all, more) {
        (Value::Object(all), Value::Object(more)) => {
            for (name, value) in more {
                match all.get_mut(name) {
                    Some(there) => unite(there, value),
                    None => drop(all.insert(name.clone(), value.clone())),
                }
            }
        }
        (all, more) => *all = more.clone(),
    }
}

/// An empty object: policies get nothing of this program's environment or configuration.
pub(super) fn runtime(_: &Arguments) -> Outcome {
    Ok(Value::Object(Map::new()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::run;

    #[test]
    fn patches() {
        let patched = |patch| run("json.patch", json!([{"a": {"b": 1}, "l": [1, 2]}, patch]));
        let expected = Ok(json!({"a": {"b": 1, "c": 2}, "l": [1, 2]}));
        assert_eq!(patched(json!([{"op": "add", "path": "/a/c", "value": 2}])), expected);
        assert_eq!(patched(json!([{"op": "add", "path": "a/c", "value": 2}])), expected);
        assert_eq!(patched(json!([{"op": "add", "path": ["a", "c"], "value": 2}])), expected);
        assert_eq!(patched(json!([{"op": "remove", "path": ["l", 0]}])), Ok(json!({"a": {"b": 1}, "l": [2]})));
        assert!(patched(json!([{"op": "remove", "path": "/x"}])).is_err());
        assert!(patched(json!([{"op": "shout", "path": "/x"}])).is_err());
    }

    /// Each copy would double the value.
    #[test]
    fn a_patch_that_grows_without_end_is_refused() {
        let copies: Vec<_> =
            (0..60).map(|number| json!({"op": "copy", "from": "", "path": format!("/{number}")})).collect();
        let error = run("json.patch", json!([{"a": "x"}, copies])).expect_err("too large");
        assert!(error.contains("copies more than"), "{error}");
    }

    #[test]
    fn long_lists_that_are_nearly_alike_take_no_longer_than_others() {
        let mut part = vec![0; 350_000];
        part[349_999] = 1;
        let mut whole = vec![0; 700_000];
        assert_eq!(run("object.subset", json!([whole, part])), Ok(json!(false)));
        whole[699_999] = 1;
        assert_eq!(run("object.subset", json!([whole, part])), Ok(json!(true)));
    }

    #[test]
    fn subsets_and_unions() {
        let is = |whole, part| run("object.subset", json!([whole, part])) == Ok(json!(true));
        assert!(is(json!({"a": {"b": 1, "c": 2}}), json!({"a": {"b": 1}})));
        assert!(!is(json!({"a": {"b": 1}}), json!({"a": {"b": 2}})));
        assert!(is(json!([1, 2, 3]), json!([2, 3])) && !is(json!([1, 2, 3]), json!([1, 3])));
        let long = |list: &[i32]| json!(list);
        assert!(is(long(&[1, 1, 2, 1, 1, 1, 2, 3]), long(&[1, 1, 2, 3])) && is(long(&[1, 2]), long(&[])));
        assert!(is(long(&[1, 2, 1, 2, 1, 3]), long(&[1, 2, 1, 3])) && !is(long(&[1, 2, 1, 2, 1]), long(&[1, 2, 1, 3])));
        assert!(!is(long(&[]), long(&[1])) && !is(long(&[1, 1]), long(&[1, 1, 1])));
        let union = run("object.union_n", json!([[{"a": 1, "b": {"c": 1}}, {"b": {"d": 2}}, {"a": 3}]]));
        assert_eq!(union, Ok(json!({"a": 3, "b": {"c": 1, "d": 2}})));
    }
}
