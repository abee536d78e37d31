//! Settings on their way to the guest: unchanged, and within limits.

use portcullis_contract::Reason;
use portcullis_yaml::MAX_DEPTH;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::problem::Problem;

/// Largest settings object, in bytes of JSON.
const MAX_BYTES: usize = 512 << 10;
/// Deepest nesting of settings: a guest reads them inside other objects, and JSON readers stop at 128 levels.
const MAX_NESTING: usize = 100;

/// The settings as JSON text; `{}` if they are absent or null. Error texts never quote a value.
pub(crate) fn settings(value: Option<Value>, too_deep: bool) -> Result<Box<RawValue>, Problem> {
    let value = match value {
        None | Some(Value::Null) => Value::Object(serde_json::Map::new()),
        Some(value @ Value::Object(_)) => value,
        Some(_) => return Err(Problem::new(Reason::SpecInvalid, "settings: want an object")),
    };
    if too_deep || depth(&value) > MAX_NESTING {
        let text = format!("the settings are nested deeper than {MAX_NESTING} levels: flatten them");
        return Err(Problem::new(Reason::SettingsInvalid, text));
    }
    let raw = serde_json::value::to_raw_value(&value).expect("has text keys only");
    if raw.get().len() > MAX_BYTES {
        let text =
            format!("the settings are {} bytes of JSON, the limit is {MAX_BYTES}: shorten them", raw.get().len());
        return Err(Problem::new(Reason::SettingsInvalid, text));
    }
    Ok(raw)
}

/// Levels of nesting; a value from [`portcullis_yaml`] has at most [`MAX_DEPTH`], so recursion is safe.
fn depth(value: &Value) -> usize {
    const { assert!(MAX_DEPTH < 1000) }
    match value {
        Value::Array(list) => 1 + list.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn absent_and_null_are_empty() {
        for value in [None, Some(Value::Null), Some(json!({}))] {
            assert_eq!(settings(value, false).expect("settings").get(), "{}");
        }
    }

    #[test]
    fn s03_large_and_deep_settings_are_refused() {
        let large = json!({"a": "x".repeat(1 << 20)});
        let deep = (0..110).fold(json!(1), |inner, _| json!({ "a": inner }));
        for (value, too_deep) in [(large, false), (deep, false), (json!({}), true)] {
            assert_eq!(settings(Some(value), too_deep).expect_err("refused").reason, Reason::SettingsInvalid);
        }
    }

    #[test]
    fn s04_a_value_is_never_quoted() {
        let problem = settings(Some(json!("hunter2")), false).expect_err("refused");
        assert_eq!(problem, Problem::new(Reason::SpecInvalid, "settings: want an object"));
    }
}
