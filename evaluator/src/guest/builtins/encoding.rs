//! Texts as other texts: base64url, hexadecimal digits, query strings, YAML.

use std::cell::Cell;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use portcullis_yaml::{Limits, ReadError, SyntaxError, TreeError};
use serde_json::{Map, Value};

use super::{Arguments, BuiltinError, Outcome};

/// Most parts of a query string. Each becomes a field with a list, of which a text of a megabyte could make half a million.
const MAX_PARTS: usize = 10_000;
/// What it takes to read one event of YAML, in units of work.
const EVENT: usize = 1000;

pub(super) fn base64url_no_pad(arguments: &Arguments) -> Outcome {
    Ok(URL_SAFE_NO_PAD.encode(arguments.text(0)?).into())
}

pub(super) fn hex_encode(arguments: &Arguments) -> Outcome {
    Ok(hex(arguments.text(0)?.as_bytes()).into())
}

pub(super) fn hex_decode(arguments: &Arguments) -> Outcome {
    let digits: Option<Vec<u32>> = arguments.text(0)?.chars().map(|digit| digit.to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0);
    let digits = digits.ok_or(BuiltinError::Form("it is not made of pairs of hexadecimal digits"))?;
    let bytes = digits.chunks_exact(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).expect("two digits"));
    let text = String::from_utf8(bytes.collect());
    text.map(Value::String).map_err(|_| BuiltinError::Form("what it says is no UTF-8"))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    const DIGITS: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    bytes.iter().flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 0xf)]]).collect()
}

pub(super) fn json_is_valid(arguments: &Arguments) -> Outcome {
    let text = arguments.value(0)?.as_str();
    Ok(text.is_some_and(|text| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()).into())
}

pub(super) fn urlquery_encode(arguments: &Arguments) -> Outcome {
    let mut query = String::new();
    escape(&mut query, arguments.text(0)?);
    Ok(query.into())
}

/// Adds a text as Go's `url.QueryEscape` writes it. The standard of URLs, and so the crate for it, leaves `*` as it is and not `~`.
fn escape(query: &mut String, text: &str) {
    for byte in text.bytes() {
        match byte {
            b'-' | b'_' | b'.' | b'~' => query.push(byte.into()),
            _ if byte.is_ascii_alphanumeric() => query.push(byte.into()),
            b' ' => query.push('+'),
            _ => drop(write!(query, "%{byte:02X}")),
        }
    }
}

/// Refuses a `%` that two hexadecimal digits do not follow, which the crate takes as it is.
fn check_escapes(query: &str) -> Result<(), BuiltinError> {
    let is_whole = |rest: &str| rest.len() >= 2 && rest.bytes().take(2).all(|digit| digit.is_ascii_hexdigit());
    if query.split('%').skip(1).all(is_whole) {
        return Ok(());
    }
    Err(BuiltinError::Form("a % is not followed by two hexadecimal digits"))
}

pub(super) fn urlquery_decode(arguments: &Arguments) -> Outcome {
    let encoded = arguments.text(0)?;
    check_escapes(encoded)?;
    // Decoded as the value of a pair with an empty name.
    let pair = format!("={}", encoded.replace('&', "%26").replace('=', "%3D"));
    Ok(form_urlencoded::parse(pair.as_bytes()).map(|(_, value)| value.into_owned()).collect::<String>().into())
}

pub(super) fn urlquery_encode_object(arguments: &Arguments) -> Outcome {
    let odd = || BuiltinError::Form("a value is neither a string nor a list of strings");
    let mut query = String::new();
    let mut add = |name: &str, value: &str| {
        if !query.is_empty() {
            query.push('&');
        }
        escape(&mut query, name);
        query.push('=');
        escape(&mut query, value);
    };
    let mut names: Vec<_> = arguments.object(0)?.iter().collect();
    names.sort_unstable_by_key(|(name, _)| *name);
    for (name, value) in names {
        match value {
            Value::String(value) => add(name, value),
            Value::Array(values) => {
                for value in values {
                    add(name, value.as_str().ok_or_else(odd)?);
                }
            }
            _ => return Err(odd()),
        }
    }
    Ok(query.into())
}

pub(super) fn urlquery_decode_object(arguments: &Arguments) -> Outcome {
    let (query, mut object) = (arguments.text(0)?, Map::new());
    check_escapes(query)?;
    if query.contains(';') {
        return Err(BuiltinError::Form("a ; is no separator of a query"));
    }
    for (number, (name, value)) in form_urlencoded::parse(query.as_bytes()).enumerate() {
        if number == MAX_PARTS {
            return Err(BuiltinError::Form("it has more than 10000 parts"));
        }
        let values = object.entry(name.into_owned()).or_insert_with(|| Value::Array(Vec::with_capacity(1)));
        values.as_array_mut().expect("only lists are put in").push(value.into_owned().into());
    }
    Ok(object.into())
}

pub(super) fn yaml_is_valid(arguments: &Arguments) -> Outcome {
    let Some(text) = arguments.value(0)?.as_str() else { return Ok(false.into()) };
    match from_yaml(arguments, text) {
        Ok(_) => Ok(true.into()),
        Err(BuiltinError::Yaml(_)) => Ok(false.into()),
        // It may be valid, and a rule that takes it for invalid might allow.
        Err(error) => Err(error),
    }
}

pub(super) fn yaml_marshal(arguments: &Arguments) -> Outcome {
    let text = portcullis_yaml::write_within(arguments.value(0)?, arguments.work().effort.text())?;
    text.map(Value::String).ok_or_else(|| arguments.work().beyond(BuiltinError::TooLong))
}

pub(super) fn yaml_unmarshal(arguments: &Arguments) -> Outcome {
    from_yaml(arguments, arguments.text(0)?)
}

fn from_yaml(arguments: &Arguments, text: &str) -> Outcome {
    let stopped = Cell::new(None);
    let goes_on = || arguments.work().count(EVENT).map_err(|error| stopped.set(Some(error))).is_ok();
    let limits = Limits { copies: arguments.work().effort.copies(), goes_on: &goes_on };
    let read = portcullis_yaml::read_within(text, &limits);
    match (read, stopped.take()) {
        (Ok(value), _) => Ok(value),
        (Err(_), Some(error)) => Err(error),
        (Err(ReadError::Syntax(SyntaxError::Tree { source: TreeError::TooManyCopies, .. })), None) => {
            Err(arguments.work().beyond(BuiltinError::Copies))
        }
        (Err(error), None) => Err(BuiltinError::Yaml(error)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::run;

    /// Values of OPA's own tests and documentation.
    #[test]
    fn known_answers() {
        let of = |name, argument: &str| run(name, json!([argument])).expect("a text");
        assert_eq!(of("base64url.encode_no_pad", "a?>"), "YT8-");
        assert_eq!(of("hex.encode", "lorem ipsum"), "6c6f72656d20697073756d");
        assert_eq!(of("hex.decode", "6C6f72656d20697073756d"), "lorem ipsum");
        assert!(run("hex.decode", json!(["6c6"])).is_err() && run("hex.decode", json!(["ff"])).is_err());
        assert_eq!(of("urlquery.encode", "a=b+1 &"), "a%3Db%2B1+%26");
        assert_eq!(of("urlquery.decode", "a%3Db%2B1+%26"), "a=b+1 &");
        let query = json!([{"c": ["d", "e"], "a": "b&"}]);
        assert_eq!(run("urlquery.encode_object", query), Ok(json!("a=b%26&c=d&c=e")));
        assert_eq!(of("urlquery.decode_object", "a=b%26&c=d&c=e"), json!({"a": ["b&"], "c": ["d", "e"]}));
        assert_eq!((of("json.is_valid", "[1]"), of("json.is_valid", "[1")), (json!(true), json!(false)));
        for name in ["json.is_valid", "yaml.is_valid"] {
            assert_eq!(run(name, json!([1])), Ok(json!(false)), "{name}");
        }
        assert_eq!((of("urlquery.encode", "a b/&"), of("urlquery.decode", "a&b")), (json!("a+b%2F%26"), json!("a&b")));
    }

    /// What OPA 1.22.2 answers, whose v1/topdown/encoding.go has Go's package net/url.
    #[test]
    fn queries() {
        for (text, expected) in [("~*", "~%2A"), ("a b/&é-_.~*!'()", "a+b%2F%26%C3%A9-_.~%2A%21%27%28%29"), ("", "")] {
            assert_eq!(run("urlquery.encode", json!([text])), Ok(json!(expected)));
            assert_eq!(run("urlquery.decode", json!([expected])), Ok(json!(text)));
        }
        for (object, expected) in [
            (json!({"~*": "a b", "x": ["~", "*"]}), "x=~&x=%2A&~%2A=a+b"),
            (json!({"a": []}), ""),
            (json!({}), ""),
            (json!({"": ""}), "="),
        ] {
            assert_eq!(run("urlquery.encode_object", json!([object])), Ok(json!(expected)), "{object}");
        }
        assert_eq!(run("urlquery.decode", json!(["a;b"])), Ok(json!("a;b")));
        assert_eq!(run("urlquery.decode_object", json!(["a&b=&=c&&"])), Ok(json!({"": ["c"], "a": [""], "b": [""]})));
        for odd in ["a%2", "%zz", "%é", "%"] {
            assert!(run("urlquery.decode", json!([odd])).is_err(), "{odd}");
            assert!(run("urlquery.decode_object", json!([odd])).is_err(), "{odd}");
        }
        assert!(run("urlquery.decode_object", json!(["a=1;b=2"])).is_err());
    }

    #[test]
    fn a_query_has_a_limited_number_of_parts() {
        let query = |parts: usize| (0..parts).map(|number| format!("{number}&")).collect::<String>();
        assert!(run("urlquery.decode_object", json!([query(10_000)])).is_ok());
        let error = run("urlquery.decode_object", json!([query(10_001)])).expect_err("many");
        assert_eq!(error, "it has more than 10000 parts");
    }

    #[test]
    fn yaml() {
        assert_eq!(
            run("yaml.unmarshal", json!(["a: [1, x]\nb: {c: true}\n"])),
            Ok(json!({"a": [1, "x"], "b": {"c": true}}))
        );
        let value = json!({"a": ["1", 2, null], "b": {"c": "yes"}});
        let text = run("yaml.marshal", json!([value])).expect("a text");
        assert_eq!(run("yaml.unmarshal", json!([text])), Ok(value));
        assert_eq!(run("yaml.is_valid", json!(["a: [1"])), Ok(json!(false)));
        let error = run("yaml.unmarshal", json!(["a: 1\nb: [secret"])).expect_err("no YAML");
        assert!(error.contains("it is not YAML") && !error.contains("secret"), "{error}");
    }

    /// With its indentation each item has about 240 bytes.
    #[test]
    fn a_text_that_indentation_makes_long_is_refused() {
        let deep = |items| (0..119).fold(json!(vec![0; items]), |value, _| Value::Array(vec![value]));
        assert!(run("yaml.marshal", Value::Array(vec![deep(1000)])).is_ok());
        assert_eq!(
            run("yaml.marshal", Value::Array(vec![deep(100_000)])),
            Err("the result is above 2097152 bytes".to_owned())
        );
    }

    /// A few hundred bytes of YAML that would expand to a billion texts.
    #[test]
    fn aliases_of_aliases_are_refused() {
        let mut text = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n".to_owned();
        for level in 1..10 {
            let before = format!("*a{}", level - 1);
            text += &format!("a{level}: &a{level} [{}]\n", [&*before; 9].join(", "));
        }
        assert!(run("yaml.unmarshal", json!([text])).is_err());
        for depth in [100, 1000, 100_000] {
            let deep = format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
            assert_eq!(run("yaml.unmarshal", json!([deep])).is_ok(), depth == 100, "{depth}");
        }
        assert!(run("yaml.unmarshal", json!(["[".repeat(100_000)])).is_err());
    }
}
