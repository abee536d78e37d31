//! Label selectors, which are sent as queries to an API server or applied here.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Longest value of a label, and longest name in its key, in bytes.
const LONGEST_NAME: usize = 63;
/// Longest DNS name in the key of a label, in bytes.
const LONGEST_DOMAIN: usize = 253;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// A label selector. The one without requirements selects everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selector(Vec<Requirement>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    condition: Condition,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Condition {
    Equals(String),
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Exists,
    DoesNotExist,
}

/// Why a value is not a label selector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// A field has the wrong type.
    #[error("{field}: want {wanted}")]
    Type {
        /// The field, for instance `matchLabels`.
        field: &'static str,
        /// What it must be.
        wanted: &'static str,
    },
    /// A key or value has characters that labels do not have.
    #[error("{0:?} is not the key or value of a label")]
    Word(String),
    /// The operator is unknown.
    #[error("{0:?} is not an operator of label selectors")]
    Operator(String),
    /// `In` or `NotIn` has no values.
    #[error("{0}: the operators In and NotIn want at least one value")]
    NoValues(String),
}

impl Selector {
    /// Reads a selector.
    ///
    /// # Errors
    /// When it is not a label selector, or has characters that would mean something else in a query.
    pub fn parse(selector: &Value) -> Result<Self, SelectorError> {
        let mut requirements = Vec::new();
        for (key, value) in fields(&selector["matchLabels"])? {
            let key = word("matchLabels", Some(key))?;
            requirements.push(Requirement { key, condition: Condition::Equals(word("matchLabels", value.as_str())?) });
        }
        for expression in list("matchExpressions", &selector["matchExpressions"])? {
            let key = word("matchExpressions.key", expression["key"].as_str())?;
            let values = list("matchExpressions.values", &expression["values"])?.iter();
            let values: Result<BTreeSet<String>, _> =
                values.map(|value| word("matchExpressions.values", value.as_str())).collect();
            let values = values?;
            let operator = expression["operator"].as_str().unwrap_or_default();
            if matches!(operator, "In" | "NotIn") && values.is_empty() {
                return Err(SelectorError::NoValues(key));
            }
            let condition = match operator {
                "In" => Condition::In(values),
                "NotIn" => Condition::NotIn(values),
                "Exists" => Condition::Exists,
                "DoesNotExist" => Condition::DoesNotExist,
                other => return Err(SelectorError::Operator(other.to_owned())),
            };
            requirements.push(Requirement { key, condition });
        }
        Ok(Self(requirements))
    }

    /// Whether an API server accepts a selector in a webhook: labels can have its keys and values, and an operator has values only if it
    /// wants some.
    pub(crate) fn is_accepted(selector: &Value) -> bool {
        let has_values = |expression: &Value| expression["values"].as_array().is_some_and(|values| !values.is_empty());
        let wants_values = |expression: &Value| expression["operator"] == "In" || expression["operator"] == "NotIn";
        let mut expressions = selector["matchExpressions"].as_array().into_iter().flatten();
        let is_requirement_of_labels = |Requirement { key, condition }: &Requirement| {
            is_key(key)
                && match condition {
                    Condition::Equals(value) => is_value(value),
                    Condition::In(values) | Condition::NotIn(values) => values.iter().all(|value| is_value(value)),
                    Condition::Exists | Condition::DoesNotExist => true,
                }
        };
        expressions.all(|expression| wants_values(expression) || !has_values(expression))
            && Self::parse(selector).is_ok_and(|Self(all)| all.iter().all(is_requirement_of_labels))
    }

    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The selector in the form of a query, for instance `app=shop,tier in (a,b),!legacy`; empty if it selects everything.
    pub fn query(&self) -> String {
        let parts = self.0.iter().map(|Requirement { key, condition }| match condition {
            Condition::Equals(value) => format!("{key}={value}"),
            Condition::In(values) => format!("{key} in ({})", joined(values)),
            Condition::NotIn(values) => format!("{key} notin ({})", joined(values)),
            Condition::Exists => key.clone(),
            Condition::DoesNotExist => format!("!{key}"),
        });
        parts.collect::<Vec<_>>().join(",")
    }

    /// Whether it selects an object with these labels, by the rules of an API server: `NotIn` holds for an object without the
    /// label.
    pub fn selects(&self, labels: &Labels) -> bool {
        self.0.iter().all(|Requirement { key, condition }| {
            let found = labels.get(key);
            match condition {
                Condition::Equals(value) => found == Some(value),
                Condition::In(values) => found.is_some_and(|found| values.contains(found)),
                Condition::NotIn(values) => found.is_none_or(|found| !values.contains(found)),
                Condition::Exists => found.is_some(),
                Condition::DoesNotExist => found.is_none(),
            }
        })
    }
}

/// The labels in the metadata of an object.
pub fn labels(metadata: &Value) -> Labels {
    let labels = metadata["labels"].as_object().into_iter().flatten();
    labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

fn joined(values: &BTreeSet<String>) -> String {
    values.iter().map(String::as_str).collect::<Vec<_>>().join(",")
}

fn fields(value: &Value) -> Result<Vec<(&str, &Value)>, SelectorError> {
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Object(fields) => Ok(fields.iter().map(|(key, value)| (key.as_str(), value)).collect()),
        _ => Err(SelectorError::Type { field: "matchLabels", wanted: "a mapping" }),
    }
}

fn list<'v>(field: &'static str, value: &'v Value) -> Result<&'v [Value], SelectorError> {
    match value {
        Value::Null => Ok(&[]),
        Value::Array(entries) => Ok(entries),
        _ => Err(SelectorError::Type { field, wanted: "a list" }),
    }
}

fn word(field: &'static str, text: Option<&str>) -> Result<String, SelectorError> {
    let text = text.ok_or(SelectorError::Type { field, wanted: "a string" })?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    if text.bytes().all(is_plain) { Ok(text.to_owned()) } else { Err(SelectorError::Word(text.to_owned())) }
}

/// Whether a label can have this key: a name, and maybe a DNS name and `/` before it.
fn is_key(text: &str) -> bool {
    let (domain, name) = text.split_once('/').map_or((None, text), |(domain, name)| (Some(domain), name));
    domain.is_none_or(is_domain) && is_label_name(name)
}

/// Whether a label can have this value, which may be empty.
fn is_value(text: &str) -> bool {
    text.is_empty() || is_label_name(text)
}

/// Whether this can be the name in the key of a label, after its prefix, or a value that is not empty
/// (<https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set>).
pub fn is_label_name(text: &str) -> bool {
    text.len() <= LONGEST_NAME && is_framed(text, |byte| byte.is_ascii_alphanumeric(), b"-_.")
}

fn is_domain(text: &str) -> bool {
    let is_label = |label| is_framed(label, |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit(), b"-");
    text.len() <= LONGEST_DOMAIN && text.split('.').all(is_label)
}

/// Whether a text begins and ends with one kind of characters, and has only those and the `between` ones inside.
fn is_framed(text: &str, end: fn(&u8) -> bool, between: &[u8]) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(end)
        && bytes.last().is_some_and(end)
        && bytes.iter().all(|byte| end(byte) || between.contains(byte))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn selector() -> Selector {
        let selector = json!({
            "matchLabels": {"app.example.com/name": "shop"},
            "matchExpressions": [
                {"key": "a", "operator": "In", "values": ["x", "y"]}, {"key": "b", "operator": "NotIn", "values": ["z"]},
                {"key": "c", "operator": "Exists"}, {"key": "d", "operator": "DoesNotExist"},
            ],
        });
        Selector::parse(&selector).expect("a selector")
    }

    #[test]
    fn selectors_become_queries() {
        assert_eq!(selector().query(), "app.example.com/name=shop,a in (x,y),b notin (z),c,!d");
        let all = Selector::parse(&json!({})).expect("a selector");
        assert_eq!((all.query().as_str(), all.is_empty(), all.selects(&Labels::new())), ("", true, true));
    }

    #[test]
    fn selectors_are_applied_as_an_api_server_applies_them() {
        let with = |change: &[(&str, Option<&str>)]| {
            let good = [("app.example.com/name", "shop"), ("a", "y"), ("c", "")];
            let mut labels: Labels = good.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
            for (key, value) in change {
                match value {
                    Some(value) => labels.insert((*key).to_owned(), (*value).to_owned()),
                    None => labels.remove(*key),
                };
            }
            selector().selects(&labels)
        };
        assert!(with(&[]));
        assert!(with(&[("a", Some("x")), ("b", Some("y"))]));
        for wrong in [
            ("app.example.com/name", Some("Shop")),
            ("app.example.com/name", None),
            ("a", Some("z")),
            ("a", None),
            ("b", Some("z")),
            ("c", None),
            ("d", Some("")),
        ] {
            assert!(!with(&[wrong]), "{wrong:?}");
        }
    }

    #[test]
    fn what_is_no_selector_is_an_error() {
        for wrong in [
            json!({"matchLabels": {"a": "b,c=d"}}),
            json!({"matchLabels": {"a": 1}}),
            json!({"matchLabels": ["a"]}),
            json!({"matchExpressions": [{"key": "a", "operator": "Like"}]}),
            json!({"matchExpressions": [{"key": "a", "operator": "In", "values": []}]}),
            json!({"matchExpressions": [{"operator": "Exists"}]}),
            json!({"matchExpressions": [{"key": "a", "operator": "In", "values": "b"}]}),
        ] {
            assert!(Selector::parse(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn api_servers_accept_the_keys_and_values_that_labels_can_have() {
        let is_accepted = |key: &str, value: &str| {
            let labels = Selector::is_accepted(&json!({"matchLabels": {key: value}}));
            for operator in ["In", "NotIn"] {
                let expression = json!({"key": key, "operator": operator, "values": [value]});
                assert_eq!(Selector::is_accepted(&json!({"matchExpressions": [expression]})), labels, "{key}={value}");
            }
            labels
        };
        let (long, longer) = ("x".repeat(63), "x".repeat(64));
        let [domain, longer_domain] = [126, 127].map(|count| format!("{}x/a", "x.".repeat(count)));
        for key in ["a", "A-b_c.D", "7", "a.b/c", "a-1.example.com/B", "a/b", &long, &domain] {
            assert!(is_accepted(key, "x"), "{key}");
        }
        let wrong = "-a a- a,b ä /a a/ a/b/c A/b a_b/c a..b/c -a/b a-.b/c .a/b".split(' ');
        for key in wrong.chain(["", "a b", &longer, &longer_domain]) {
            assert!(!is_accepted(key, "x"), "{key}");
            let exists = json!({"matchExpressions": [{"key": key, "operator": "Exists"}]});
            assert!(!Selector::is_accepted(&exists), "{key}");
        }
        for value in ["", "a", "A-b_c.D", "7", &long] {
            assert!(is_accepted("a", value), "{value}");
        }
        for value in ["shop-", "-shop", ".", "a b", "a/b", "a,b=c", "ä", &longer] {
            assert!(!is_accepted("a", value), "{value}");
        }
        for operator in ["Exists", "DoesNotExist"] {
            let with =
                |values: &[&str]| json!({"matchExpressions": [{"key": "a", "operator": operator, "values": values}]});
            assert!(Selector::is_accepted(&with(&[])) && !Selector::is_accepted(&with(&["b"])), "{operator}");
        }
        assert!(Selector::is_accepted(&json!({})) && !Selector::is_accepted(&json!({"matchLabels": ["a"]})));
    }

    #[test]
    fn labels_that_are_no_text_are_left_out() {
        assert_eq!(labels(&json!({"labels": {"a": "b", "c": 1}})), Labels::from([("a".to_owned(), "b".to_owned())]));
        assert!(labels(&json!({})).is_empty());
    }
}
