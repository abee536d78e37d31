//! Leaves fields out of JSON without decoding the others.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize as _, Deserializer};
use serde_json::value::RawValue;

/// How many levels of lists and objects a selection is applied to. What is below stays whole: JSON readers give up at 128 levels, and users
/// decide how deep their objects are.
const MAX_DEPTH: usize = 100;

/// Which parts of a JSON value stay. Each element of a list is treated like the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// The whole value.
    All,
    /// Neither the value nor the name of the field.
    Nothing,
    /// The named fields of an object as far as their own selection says, and the others whole or not at all. Other values stay whole.
    Fields {
        /// The fields that are named.
        named: BTreeMap<String, Selection>,
        /// Whether the others stay.
        keeps_others: bool,
    },
}

impl Selection {
    /// These fields, and the others whole or not at all.
    pub fn fields<const N: usize>(named: [(&str, Self); N], keeps_others: bool) -> Self {
        Self::Fields { named: named.map(|(name, selection)| (name.to_owned(), selection)).into(), keeps_others }
    }

    /// What both select.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::All, selection) | (selection, Self::All) => selection.clone(),
            (Self::Nothing, _) | (_, Self::Nothing) => Self::Nothing,
            (Self::Fields { named, keeps_others }, Self::Fields { named: more, keeps_others: keeps_more }) => {
                let of = |name: &str| self.of(name).and(&other.of(name));
                let named = named.keys().chain(more.keys()).map(|name| (name.clone(), of(name))).collect();
                Self::Fields { named, keeps_others: *keeps_others && *keeps_more }
            }
        }
    }

    /// What it selects of a field.
    fn of(&self, name: &str) -> Self {
        self.get(name).cloned().unwrap_or(Self::All)
    }

    /// The selection of a field; `None` for all of it.
    fn get(&self, name: &str) -> Option<&Self> {
        match self {
            Self::All => None,
            Self::Nothing => Some(self),
            Self::Fields { named, keeps_others } => match named.get(name) {
                Some(Self::All) => None,
                None if !keeps_others => Some(&Self::Nothing),
                selection => selection,
            },
        }
    }

    /// The parts of a JSON value that stay, as they are written there.
    ///
    /// # Errors
    /// Never for a text that is JSON.
    pub fn apply(&self, json: &RawValue) -> serde_json::Result<Box<RawValue>> {
        if *self == Self::All {
            return Ok(json.to_owned());
        }
        let mut out = String::new();
        let mut deserializer = serde_json::Deserializer::from_str(json.get());
        Writer { selection: self, depth: 0, out: &mut out }.deserialize(&mut deserializer)?;
        RawValue::from_string(out)
    }
}

/// Writes the parts of a value that stay.
struct Writer<'s, 'o> {
    selection: &'s Selection,
    depth: usize,
    out: &'o mut String,
}

impl Writer<'_, '_> {
    fn scalar<E: Error>(self, value: impl serde::Serialize) -> Result<(), E> {
        *self.out += &serde_json::to_string(&value).map_err(E::custom)?;
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Writer<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if *self.selection == Selection::All || self.depth > MAX_DEPTH {
            *self.out += <&RawValue>::deserialize(deserializer)?.get();
            return Ok(());
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Writer<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.scalar(())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.scalar(value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.scalar(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.scalar(value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.scalar(value)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        self.scalar(value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Self { selection, depth, out } = self;
        let depth = depth + 1;
        out.push('[');
        while items.next_element_seed(Writer { selection, depth, out })?.is_some() {
            out.push(',');
        }
        // The comma behind the last element.
        if out.ends_with(',') {
            out.pop();
        }
        out.push(']');
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let Self { selection, depth, out } = self;
        let depth = depth + 1;
        out.push('{');
        let mut is_first = true;
        while let Some(name) = fields.next_key::<String>()? {
            let below = selection.get(&name);
            if below == Some(&Selection::Nothing) {
                fields.next_value::<IgnoredAny>()?;
                continue;
            }
            if !std::mem::take(&mut is_first) {
                out.push(',');
            }
            *out += &serde_json::to_string(&name).map_err(A::Error::custom)?;
            out.push(':');
            fields.next_value_seed(Writer { selection: below.unwrap_or(&Selection::All), depth, out })?;
        }
        out.push('}');
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(selection: &Selection, json: &str) -> String {
        let json: &RawValue = serde_json::from_str(json).expect("JSON");
        selection.apply(json).expect("reads").get().to_owned()
    }

    #[test]
    fn what_stays_is_written_as_it_was() {
        let without = Selection::fields(
            [("a", Selection::Nothing), ("b", Selection::fields([("c", Selection::Nothing)], true))],
            true,
        );
        assert_eq!(
            selected(&without, r#"{"z":1.50,"a":[1],"b":{"c":1,"d":"\u00e9"},"y\"":[[]]}"#),
            r#"{"z":1.50,"b":{"d":"\u00e9"},"y\"":[[]]}"#
        );
        let only =
            Selection::fields([("a", Selection::fields([("b", Selection::All)], false)), ("c", Selection::All)], false);
        assert_eq!(
            selected(&only, r#"{"a":[{"b":1,"x":2},[{"x":3}],"text",7,null,true,-1,0.5],"c":{"x":[]},"d":4}"#),
            r#"{"a":[{"b":1},[{}],"text",7,null,true,-1,0.5],"c":{"x":[]}}"#
        );
        assert_eq!(selected(&only, r#"{"a":[],"c":[]}"#), r#"{"a":[],"c":[]}"#);
        assert_eq!(selected(&Selection::All, r#"{"a": 1}"#), r#"{"a": 1}"#);
    }

    #[test]
    fn two_selections_keep_what_both_keep() {
        let without = Selection::fields([("a", Selection::fields([("b", Selection::Nothing)], true))], true);
        let only =
            Selection::fields([("a", Selection::All), ("c", Selection::fields([("d", Selection::All)], false))], false);
        let json = r#"{"a":{"b":1,"e":2},"c":{"d":3,"e":4},"f":5}"#;
        for both in [without.and(&only), only.and(&without)] {
            assert_eq!(selected(&both, json), r#"{"a":{"e":2},"c":{"d":3}}"#);
        }
        assert_eq!(without.and(&Selection::All), without);
        assert_eq!(without.and(&Selection::Nothing), Selection::Nothing);
    }

    #[test]
    fn fields_that_stay_whole_or_go_may_be_nested_as_deep_as_they_like() {
        let nested = format!("{}1{}", r#"{"a":"#.repeat(5000), "}".repeat(5000));
        let selection = Selection::fields([("gone", Selection::Nothing), ("whole", Selection::All)], false);
        let json = format!(r#"{{"gone":{nested},"whole":{nested}}}"#);
        assert_eq!(selected(&selection, &json), format!(r#"{{"whole":{nested}}}"#));
        // The named fields of a list in a list, and so on: what is too deep stays whole.
        let lists = format!("{}{{\"a\":1,\"b\":2}}{}", "[".repeat(5000), "]".repeat(5000));
        let named = Selection::fields([("a", Selection::All)], false);
        assert_eq!(selected(&named, &lists), lists);
        assert_eq!(selected(&named, r#"[[[{"a":1,"b":2}]]]"#), r#"[[[{"a":1}]]]"#);
    }
}
