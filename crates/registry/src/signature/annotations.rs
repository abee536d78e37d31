//! The annotations of a signed statement that a requirement asks for. The owner of the registry decides which others there are, and in memory
//! they would take many times their length: those are not kept.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::{Deserializer as _, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::Requirement;

/// The names of the annotations that signers require.
pub(super) struct Names<'a>(BTreeSet<&'a str>);

/// Collects the annotations with these names.
struct Collect<'a>(&'a Names<'a>);

impl<'a> Names<'a> {
    /// The names that a requirement has.
    pub(super) fn of(requirement: &'a Requirement) -> Self {
        Self(requirement.signers().flat_map(|signer| signer.annotations().keys()).map(String::as_str).collect())
    }

    /// Those of the annotations that have such a name and a text. `None` if they are no annotations.
    pub(super) fn select(&self, annotations: Option<&RawValue>) -> Option<BTreeMap<String, String>> {
        let Some(json) = annotations else { return Some(BTreeMap::new()) };
        serde_json::Deserializer::from_str(json.get()).deserialize_map(Collect(self)).ok()
    }
}

impl<'de> Visitor<'de> for Collect<'_> {
    type Value = BTreeMap<String, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("annotations")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut annotations: A) -> Result<Self::Value, A::Error> {
        let Names(names) = self.0;
        let mut found = BTreeMap::new();
        while let Some((name, value)) = annotations.next_entry::<String, &RawValue>()? {
            if !names.contains(name.as_str()) {
                continue;
            }
            // If a name stands twice, the last value counts, even if it is not a text.
            match serde_json::from_str(value.get()) {
                Ok(text) => drop(found.insert(name, text)),
                Err(_) => drop(found.remove(&name)),
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(annotations: &str) -> Option<Vec<(String, String)>> {
        let requirement =
            "allOf: [{kind: githubAction, owner: a, annotations: {env: prod, x: y}}, {kind: githubAction, owner: b}]";
        let requirement = Requirement::from_yaml(requirement).expect("is one");
        let json: &RawValue = serde_json::from_str(annotations).expect("JSON");
        Names::of(&requirement).select(Some(json)).map(|found| found.into_iter().collect())
    }

    fn pairs(pairs: &[(&str, &str)]) -> Option<Vec<(String, String)>> {
        Some(pairs.iter().map(|(name, value)| (str::to_owned(name), str::to_owned(value))).collect())
    }

    #[test]
    fn only_annotations_that_are_required_are_kept() {
        // Deeper than a tree of values can be.
        let nested = format!("{}0{}", "[".repeat(1000), "]".repeat(1000));
        let many = format!(r#"{{"a": {nested}, "env": "pr\u006fd", "b": [0, 0, 0], "c": "text", "x": 1}}"#);
        assert_eq!(selected(&many), pairs(&[("env", "prod")]));
        assert_eq!(selected(r#"{"env": "test", "env": "prod", "x": "y", "x": null}"#), pairs(&[("env", "prod")]));
        assert_eq!(selected("{}"), pairs(&[]));
        assert_eq!(selected("[]"), None);
        assert_eq!(selected("\"env\""), None);
    }
}
