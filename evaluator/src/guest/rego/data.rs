//! `data` of a policy: its settings, and the objects of the cluster where it reads any (docs/design/policy-abi.md, section 7).
//!
//! The objects are large and are not copied here: the text ends where they begin, and the caller adds them and a closing brace.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::CallError;

/// The key of the objects in the settings of mode `opa`.
const OBJECTS: &str = "kubernetes";

/// The settings; the objects, if there are any, take the place of the key [`OBJECTS`].
pub(super) fn for_opa<'a>(settings: &'a [u8], objects: Option<&[u8]>) -> Result<Cow<'a, [u8]>, CallError> {
    if objects.is_none() {
        return Ok(settings.into());
    }
    let unreadable = |error: serde_json::Error| CallError::Host(format!("failed to read the settings: {error}"));
    let mut fields: BTreeMap<String, &RawValue> = serde_json::from_slice(settings).map_err(unreadable)?;
    fields.remove(OBJECTS);
    let mut text = serde_json::to_vec(&fields).map_err(unreadable)?;
    text.pop();
    if !fields.is_empty() {
        text.push(b',');
    }
    text.extend(format!("\"{OBJECTS}\":").bytes());
    Ok(text.into())
}

/// Only the objects, since the settings are part of the input.
pub(super) fn for_gatekeeper(objects: Option<&[u8]>) -> Cow<'static, [u8]> {
    Cow::Borrowed(if objects.is_some() { b"{\"inventory\":" } else { b"{}" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opa(settings: &str, objects: Option<&str>) -> String {
        let before = for_opa(settings.as_bytes(), objects.map(str::as_bytes)).expect("data");
        whole(before, objects)
    }

    fn whole(before: Cow<'_, [u8]>, objects: Option<&str>) -> String {
        let end = objects.map(|objects| format!("{objects}}}")).unwrap_or_default();
        String::from_utf8(before.into_owned()).expect("UTF-8") + &end
    }

    #[test]
    fn objects_take_their_place_beside_the_settings() {
        let objects = Some(r#"{"pods":{}}"#);
        assert_eq!(opa("{}", objects), r#"{"kubernetes":{"pods":{}}}"#);
        let numbers = r#"{"a": 9007199254740993, "kubernetes": "mine", "b":{"kubernetes":1.0}}"#;
        assert_eq!(opa(numbers, objects), r#"{"a":9007199254740993,"b":{"kubernetes":1.0},"kubernetes":{"pods":{}}}"#);
        assert_eq!(opa(numbers, None), numbers);
        assert_eq!(whole(for_gatekeeper(objects.map(str::as_bytes)), objects), r#"{"inventory":{"pods":{}}}"#);
        assert_eq!(whole(for_gatekeeper(None), None), "{}");
    }
}
