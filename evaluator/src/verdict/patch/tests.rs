use serde_json::json;
use std::time::Duration;

use super::diff::MAX_PATCH;
use super::*;

fn raw(value: &Value) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).expect("serialises")
}

fn text(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).expect("JSON")
}

fn later() -> Instant {
    Instant::now() + Duration::from_secs(600)
}

fn changed(current: &Value, mutated: &Value) -> Result<Option<Change>, PatchError> {
    change(&raw(current), &raw(current), raw(mutated), Subject::Object, later())
}

/// The patch between two texts, as JSON.
fn json(first: &RawValue, last: &RawValue) -> String {
    let change = change(first, first, last.to_owned(), Subject::Raw, later()).expect("may be applied");
    change.and_then(|change| change.patch).unwrap_or("[]".to_owned())
}

fn operations(first: &Value, last: &Value) -> Value {
    serde_json::from_str(&json(&raw(first), &raw(last))).expect("JSON")
}

/// Applies a patch with another implementation.
fn applied(first: &RawValue, patch: &str) -> Value {
    let mut object = serde_json::from_str(first.get()).expect("JSON");
    let patch: json_patch::Patch = serde_json::from_str(patch).expect("a patch");
    json_patch::patch(&mut object, &patch).unwrap_or_else(|error| panic!("{error}: {patch}"));
    object
}

fn pod() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "b"}, "spec": {"x": 1}})
}

fn pod_with(pointer: &str, value: Value) -> Value {
    let mut pod = pod();
    *pod.pointer_mut(pointer).expect("is there") = value;
    pod
}

fn refusal(current: &Value, mutated: &Value) -> Option<PatchError> {
    changed(current, mutated).err()
}

#[test]
fn the_same_object_is_no_change() {
    assert!(changed(&pod(), &pod()).expect("may be applied").is_none());
    // Equal objects may be written differently.
    let first = text(r#"{"a":"\u00e9/","b":[1.50,{"c":null}],"d":100}"#);
    for same in [
        r#" { "d" : 100, "b":[ 1.5 , {"c": null } ], "a":"é\/" } "#,
        r#"{"a":"x","b":0,"a":"\u00e9/","b":[15e-1,{"\u0063":null}],"d":100,"b":[15e-1,{"c":null}]}"#,
    ] {
        assert_eq!(applied(&first, &json(&first, &text(same))), serde_json::from_str::<Value>(same).expect("JSON"));
    }
    assert_eq!(json(&first, &text(r#" { "d" : 100, "b":[ 1.5 , {"c": null } ], "a":"é\/" } "#)), "[]");
}

#[test]
fn a_change_becomes_a_patch() {
    let mutated = pod_with("/spec", json!({"x": 2, "a/b~c": null, "\"": [1]}));
    let change = changed(&pod(), &mutated).expect("may be applied").expect("a change");
    assert_eq!(change.object.get(), mutated.to_string());
    assert_eq!(
        operations(&pod(), &mutated),
        json!([
            {"op": "replace", "path": "/spec/x", "value": 2},
            {"op": "add", "path": "/spec/a~1b~0c", "value": null},
            {"op": "add", "path": "/spec/\"", "value": [1]},
        ])
    );
}

#[test]
fn of_a_list_either_what_changed_is_sent_or_the_whole() {
    let long = |tail: &[i64]| json!({"a": (0..40_i64).chain(tail.iter().copied()).collect::<Vec<_>>()});
    for (first, last, patch) in [
        (long(&[]), long(&[7]), json!([{"op": "add", "path": "/a/40", "value": 7}])),
        (long(&[7, 8]), long(&[]), json!([{"op": "remove", "path": "/a/41"}, {"op": "remove", "path": "/a/40"}])),
        (long(&[7]), long(&[8]), json!([{"op": "replace", "path": "/a/40", "value": 8}])),
        (long(&[]), json!({"a": []}), json!([{"op": "replace", "path": "/a", "value": []}])),
        (json!({"a": {"b": 1}}), json!({"a": {}}), json!([{"op": "remove", "path": "/a/b"}])),
    ] {
        assert_eq!(operations(&first, &last), patch);
    }
    // A few changes are sent one by one; with many, the whole list is sent.
    let all = |n: usize, x: i64| json!({"a": vec![x; n]});
    assert_eq!(operations(&all(20, 0), &all(20, 1)).as_array().map(Vec::len), Some(20));
    assert_eq!(operations(&all(200, 0), &all(200, 1)).as_array().map(Vec::len), Some(1));
    // Applying the patch may copy the list for each element that is removed.
    let wide = |n: usize| json!({"a": vec!["x".repeat(100); n]});
    assert_eq!(operations(&wide(40), &wide(24)).as_array().map(Vec::len), Some(16));
    assert_eq!(operations(&wide(40), &wide(23)).as_array().map(Vec::len), Some(1));
}

#[test]
fn another_object_is_refused() {
    for (pointer, field) in [
        ("/apiVersion", "apiVersion"),
        ("/kind", "kind"),
        ("/metadata/name", "metadata.name"),
        ("/metadata/namespace", "metadata.namespace"),
    ] {
        for value in [json!("other"), Value::Null, json!(1), json!(["a"])] {
            assert_eq!(refusal(&pod(), &pod_with(pointer, value)), Some(PatchError::AnotherObject(field)));
        }
    }
    for value in [json!([]), json!("text"), json!(1)] {
        assert_eq!(refusal(&pod(), &value), Some(PatchError::NotAnObject));
    }
    assert_eq!(refusal(&pod(), &pod_with("/metadata", json!(1))), Some(PatchError::AnotherObject("metadata.name")));
}

#[test]
fn an_object_without_a_name_stays_without() {
    let mut unnamed = pod();
    unnamed["metadata"] = json!({"generateName": "a-", "namespace": null});
    let mut labelled = unnamed.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    assert!(changed(&unnamed, &labelled).expect("may be applied").is_some());
    assert_eq!(refusal(&unnamed, &pod()), Some(PatchError::AnotherObject("metadata.name")));
}

#[test]
fn a_raw_request_may_become_anything() {
    assert_eq!(operations(&json!({"a": 1}), &json!([1])), json!([{"op": "replace", "path": "", "value": [1]}]));
}

#[test]
fn the_patch_is_from_the_first_object_and_the_change_from_the_one_before() {
    let step = |first: &str, current: &str, mutated: &str| {
        let change =
            change(&text(first), &text(current), text(mutated), Subject::Raw, later()).expect("may be applied");
        change.map(|change| change.patch.is_some())
    };
    assert_eq!(step("[1]", "[2]", "[3]"), Some(true));
    assert_eq!(step("[1]", "[2]", "[2]"), None);
    assert_eq!(step("[1]", "[2]", "[1]"), Some(false));
}

#[test]
fn numbers_stay_exact() {
    assert_eq!(
        json(
            &text(r#"{"a":9007199254740993,"b":1,"c":0}"#),
            &text(r#"{"a":9007199254740992,"b":18446744073709551615,"c":1.50}"#)
        ),
        concat!(
            r#"[{"op":"replace","path":"/a","value":9007199254740992},"#,
            r#"{"op":"replace","path":"/b","value":18446744073709551615},"#,
            r#"{"op":"replace","path":"/c","value":1.50}]"#
        )
    );
}

#[test]
fn what_cannot_be_decoded_is_refused() {
    let deep = text(&format!("{}{}", "[".repeat(500), "]".repeat(500)));
    let refused = |first: &RawValue, mutated: &RawValue| {
        change(first, first, mutated.to_owned(), Subject::Raw, later()).expect_err("refused")
    };
    assert_eq!(refused(&deep, &text("1")), PatchError::Original);
    for mutated in [&*deep, &text("[1e999]"), &text(r#""\ud800""#)] {
        assert_eq!(refused(&text("1"), mutated), PatchError::Mutated);
    }
}

/// Emptying a list of a million elements once made a million operations, each of which moved the rest of the list.
#[test]
fn a_million_elements_that_go_are_one_operation() {
    let (first, last) = (text(&format!("{{\"a\":[{}0]}}", "0,".repeat(999_999))), text(r#"{"a":[]}"#));
    assert_eq!(json(&first, &last), r#"[{"op":"replace","path":"/a","value":[]}]"#);
    assert_eq!(json(&last, &first).len(), first.get().len() - 6 + r#"[{"op":"replace","path":"/a","value":}]"#.len());
}

/// An object and what it becomes, both of this size.
type Shape<'a> = dyn Fn(usize) -> [String; 2] + 'a;

/// Texts made to cost as much as possible: the work is linear in them, and so is the patch.
#[test]
fn work_and_patch_are_linear_in_the_texts() {
    let members = |n: usize, value: &dyn Fn(usize) -> String| {
        (0..n).map(|i| format!("\"k{i}\":{}", value(i))).collect::<Vec<_>>().join(",")
    };
    let nested =
        |n: usize, leaf: &str| (0..100).fold(leaf.to_owned(), |inner, _| format!("[{}{inner}]", "0,".repeat(n / 200)));
    let cases: &[(&str, &Shape<'_>)] = &[
        ("a list emptied", &|n| [format!("{{\"a\":[{}0]}}", "0,".repeat(n / 2)), r#"{"a":[]}"#.into()]),
        ("a list changed", &|n| ["0", "1"].map(|x| format!("{{\"a\":[{}0]}}", format!("{x},").repeat(n / 2)))),
        ("lists changed", &|n| ["[0]", "[1]"].map(|x| format!("{{\"a\":[{}0]}}", format!("{x},").repeat(n / 4)))),
        ("lists that lose 16", &|n| {
            let list = format!("[{}0],", "0,".repeat(16));
            [format!("{{\"a\":[{}0]}}", list.repeat(n / 36)), format!("{{\"a\":[{}0]}}", "[0],".repeat(n / 36))]
        }),
        ("members changed", &|n| ["0", "1"].map(|x| format!("{{\"a\":{{{}}}}}", members(n / 10, &|_| x.to_owned())))),
        ("members of the root changed", &|n| ["0", "1"].map(|x| format!("{{{}}}", members(n / 10, &|_| x.to_owned())))),
        ("members renamed", &|n| {
            let other = members(n / 10, &|_| "0".to_owned()).replace('k', "l");
            [format!("{{{}}}", members(n / 10, &|_| "0".to_owned())), format!("{{{other}}}")]
        }),
        ("below a long key", &|n| {
            ["0", "1"].map(|x| format!("{{\"{}\":{{{}}}}}", "x".repeat(n / 2), members(n / 20, &|_| x.to_owned())))
        }),
        ("below a long key with escapes", &|n| {
            ["0", "1"]
                .map(|x| format!("{{\"{}\":{{{}}}}}", "~\\u0000/".repeat(n / 16), members(n / 20, &|_| x.to_owned())))
        }),
        ("nested with one change at the bottom", &|n| ["0", "1"].map(|x| nested(n, x))),
        ("nested with changes everywhere", &|n| [nested(n, "0"), nested(n, "1").replace("0,", "2,")]),
        ("the same key again and again", &|n| {
            ["0", "1"].map(|x| format!("{{{}}}", vec![format!("\"k\":{x}"); n / 6].join(",")))
        }),
    ];
    for (name, texts) in cases {
        for size in [2_000, 20_000, 200_000] {
            let [first, last] = texts(size).map(|json| text(&json));
            let length = first.get().len() + last.get().len();
            let (from, to) = (Text::of(&first).expect("passes"), Text::of(&last).expect("passes"));
            let diff = Diff::of(&from, &to, later()).unwrap_or_else(|error| panic!("{name}: {error}"));
            let looks = usize::try_from(diff.looks).expect("small");
            assert!(looks <= length, "{name}: {looks} looks at {length} bytes");
            let patch = diff.json();
            // An object at the root is never sent as a whole.
            let most =
                if name.contains("root") || name.contains("same key") || name.contains("renamed") { 8 } else { 1 };
            assert!(patch.len() <= most * length + 5000, "{name}: {} bytes for {length}", patch.len());
            let last: Value = serde_json::from_str(last.get()).expect("JSON");
            assert!(applied(&first, &patch) == last, "{name}: the patch leads elsewhere");
        }
    }
}

#[test]
fn a_patch_has_a_largest_size() {
    let object = |x: &str| text(&format!("{{\"a\":[{}0]}}", format!("{x},").repeat(MAX_PATCH / 2)));
    let refused = change(&object("0"), &object("0"), object("1"), Subject::Object, later());
    assert_eq!(refused.err(), Some(PatchError::TooLong));
    // An object of the largest size that an API server takes, changed everywhere, is not too large.
    let object = |x: &str| text(&format!("{{\"a\":[{}0]}}", format!("{x},").repeat(3 << 19)));
    let change = change(&object("0"), &object("0"), object("1"), Subject::Object, later()).expect("may be applied");
    assert!(change.is_some_and(|change| change.patch.is_some()));
}

#[test]
fn work_ends_with_the_evaluations_time() {
    let object = |x: &str| text(&format!("[{}0]", format!("[{x}],").repeat(100_000)));
    let result = change(&object("0"), &object("0"), object("1"), Subject::Raw, Instant::now());
    assert_eq!(result.err(), Some(PatchError::TooLate));
}

/// A small generator (xorshift), so that a failing seed can be run again.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn value(&mut self, depth: u32) -> Value {
        let keys = ["", "a", "b", "a/b", "~", "~1", "0", "-", "ä"];
        match self.below(if depth == 0 { 5 } else { 9 }) {
            0 => Value::Null,
            1 => json!(self.below(2) == 0),
            2 => json!(u64::MAX - self.below(3)),
            3 => json!(f64::from(u32::try_from(self.below(7)).expect("small")) / 4.0),
            4 => json!(keys[usize::try_from(self.below(9)).expect("small")]),
            5 | 6 => (0..self.below(5)).map(|_| self.value(depth - 1)).collect(),
            _ => Value::Object(
                (0..self.below(5))
                    .map(|_| {
                        let key = keys[usize::try_from(self.below(9)).expect("small")];
                        (key.to_owned(), self.value(depth - 1))
                    })
                    .collect(),
            ),
        }
    }

    /// `value` with some parts replaced.
    fn edited(&mut self, value: &Value) -> Value {
        match value {
            _ if self.below(6) == 0 => self.value(2),
            Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), self.edited(value))).collect(),
            Value::Array(items) => items.iter().map(|item| self.edited(item)).collect(),
            other => other.clone(),
        }
    }
}

#[test]
fn every_patch_leads_to_its_object() {
    for seed in 1..6000_u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let first = random.value(4);
        let last = if seed % 3 == 0 { random.value(4) } else { random.edited(&first) };
        let patch = json(&raw(&first), &raw(&last));
        assert_eq!(applied(&raw(&first), &patch), last, "seed {seed}: {patch}");
        assert_eq!(patch == "[]", first == last, "seed {seed}: {patch}");
        let length = raw(&first).get().len() + raw(&last).get().len();
        assert!(patch.len() <= 8 * length + 5000, "seed {seed}: {patch}");
    }
}
