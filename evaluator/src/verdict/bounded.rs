//! Keeps the first few entries of a guest's list or map, and skips the rest: a reply of some megabytes may have millions of entries, which
//! would take ten times its size when decoded.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The most entries that are kept.
pub(crate) const MAX_ENTRIES: usize = 64;

struct Texts(Vec<String>);
struct Annotations(BTreeMap<String, String>);

/// The first item of a list; none if it is empty. The others are skipped.
pub(super) struct First<T>(pub(super) Option<T>);

/// The violations that a Gatekeeper policy found.
pub(super) struct Violations {
    /// Whether there are none.
    pub(super) is_empty: bool,
    /// Their texts, of those that have one.
    pub(super) texts: Vec<String>,
}

#[derive(Deserialize)]
struct Violation {
    #[serde(default)]
    msg: Option<String>,
}

/// Decodes a list of strings; null means none.
pub(crate) fn texts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    Ok(Option::<Texts>::deserialize(deserializer)?.map(|Texts(texts)| texts))
}

/// Decodes a map of strings; null means none.
pub(crate) fn annotations<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<BTreeMap<String, String>>, D::Error> {
    Ok(Option::<Annotations>::deserialize(deserializer)?.map(|Annotations(annotations)| annotations))
}

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;

        impl<'de> Visitor<'de> for List {
            type Value = Texts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of strings")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Texts, A::Error> {
                let mut texts = Vec::new();
                while texts.len() < MAX_ENTRIES {
                    let Some(text) = list.next_element()? else { return Ok(Texts(texts)) };
                    texts.push(text);
                }
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Texts(texts))
            }
        }

        deserializer.deserialize_seq(List)
    }
}

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Map;

        impl<'de> Visitor<'de> for Map {
            type Value = Annotations;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Annotations, A::Error> {
                let mut annotations = BTreeMap::new();
                while annotations.len() < MAX_ENTRIES {
                    let Some((key, text)) = map.next_entry()? else { return Ok(Annotations(annotations)) };
                    annotations.insert(key, text);
                }
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Annotations(annotations))
            }
        }

        deserializer.deserialize_map(Map)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for First<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
            type Value = First<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of results")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<First<T>, A::Error> {
                let first = list.next_element()?;
                if first.is_some() {
                    while list.next_element::<IgnoredAny>()?.is_some() {}
                }
                Ok(First(first))
            }
        }

        deserializer.deserialize_seq(List(PhantomData))
    }
}

impl<'de> Deserialize<'de> for Violations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;

        impl<'de> Visitor<'de> for List {
            type Value = Violations;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of violations")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Violations, A::Error> {
                let mut found = Violations { is_empty: true, texts: Vec::new() };
                while found.texts.len() < MAX_ENTRIES {
                    let Some(violation) = list.next_element::<Violation>()? else { return Ok(found) };
                    found.is_empty = false;
                    found.texts.extend(violation.msg);
                }
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(found)
            }
        }

        deserializer.deserialize_seq(List)
    }
}

#[cfg(test)]
mod tests {
    use super::{First, Violations};
    use crate::verdict::Verdict;

    #[test]
    fn of_many_violations_and_results_the_first_are_kept() {
        let violations = |json: &str| serde_json::from_str::<Violations>(json).expect("violations");
        assert!(violations("[]").is_empty);
        let flood = violations(&format!("[{}{{}}]", "{},".repeat(100_000)));
        assert!(!flood.is_empty);
        // Memory in proportion to what is kept, and not to what is there.
        assert_eq!(flood.texts.capacity(), 0);
        let texts: Vec<_> = (0..100_000).map(|i| format!("{{\"msg\":\"{i}\"}}")).collect();
        let flood = violations(&format!("[{{}},{}]", texts.join(",")));
        assert_eq!((flood.texts.len(), &*flood.texts[63]), (64, "63"));
        assert!(flood.texts.capacity() < 1000);
        let First(first) = serde_json::from_str::<First<u8>>(&format!("[7{}]", ",[]".repeat(1000))).expect("a list");
        assert_eq!(first, Some(7));
        assert!(serde_json::from_str::<First<u8>>("[[]]").is_err() && serde_json::from_str::<First<u8>>("{}").is_err());
    }

    fn verdict(warnings: &str, annotations: &str) -> Verdict {
        let json = format!("{{\"accepted\":true,\"warnings\":{warnings},\"audit_annotations\":{annotations}}}");
        serde_json::from_str(&json).expect("a verdict")
    }

    #[test]
    fn few_are_kept_and_null_is_none() {
        let few = verdict(r#"["a",""]"#, r#"{"k":"v"}"#);
        assert_eq!(few.warnings.as_deref(), Some(&["a".to_owned(), String::new()][..]));
        assert_eq!(few.audit_annotations, Some([("k".to_owned(), "v".to_owned())].into()));
        let none = verdict("null", "null");
        assert_eq!((none.warnings, none.audit_annotations), (None, None));
    }

    #[test]
    fn of_a_flood_the_first_are_kept() {
        let texts: Vec<_> = (0..100_000).map(|i| format!("\"{i}\"")).collect();
        let members: Vec<_> = texts.iter().map(|text| format!("{text}:\"\"")).collect();
        let flood = verdict(&format!("[{}]", texts.join(",")), &format!("{{{}}}", members.join(",")));
        assert_eq!(flood.warnings.map(|texts| (texts.len(), texts[63].clone())), Some((64, "63".to_owned())));
        assert_eq!(flood.audit_annotations.map(|annotations| annotations.len()), Some(64));
    }
}
