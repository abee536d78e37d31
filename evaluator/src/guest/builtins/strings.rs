//! Texts: `sprintf` after Go's package fmt, searching, and what policies say.

use std::fmt::Write as _;
use std::iter::Peekable;
use std::str::Chars;

use serde_json::Value;

use super::arguments::integer;
use super::{Arguments, BuiltinError, Outcome, list};

/// Widest field and longest fraction of `sprintf`; Go's own limit is a million.
const MAX_WIDTH: usize = 1024;
/// What it takes to compare two short texts, in units of work.
const COMPARISON: usize = 5;
/// What one directive of a format takes, and each digit of its precision: floats are shown exactly.
const DIRECTIVE: usize = 200;
const DIGIT: usize = 100;

pub(super) fn quote_glob(arguments: &Arguments) -> Outcome {
    let mut quoted = String::new();
    for character in arguments.text(0)?.chars() {
        if matches!(character, '*' | '?' | '\\' | '[' | ']' | '{' | '}') {
            quoted.push('\\');
        }
        quoted.push(character);
    }
    Ok(quoted.into())
}

pub(super) fn trace(arguments: &Arguments) -> Outcome {
    arguments.text(0)?;
    Ok(true.into())
}

/// `print`: its argument is a list of sets, each with one value to print, or empty where that value is undefined.
pub(super) fn print(arguments: &Arguments) -> Outcome {
    let words = arguments.list(0)?.iter().map(|set| match set.as_array().map(Vec::as_slice) {
        Some([]) | None => "<undefined>".to_owned(),
        Some([value, ..]) => shown(value),
    });
    Ok(words.collect::<Vec<_>>().join(" ").into())
}

/// The log line of a result of `print` or `trace`.
pub(super) fn log_line(result: &[u8]) -> Option<String> {
    serde_json::from_slice(result).ok()
}

/// All places where a text occurs in another, counted in characters. They may overlap, so each would be searched for from the next character
/// on: a search that remembers what has matched (Knuth, Morris and Pratt) takes each byte once.
pub(super) fn indexof_n(arguments: &Arguments) -> Outcome {
    let (text, part) = (arguments.text(0)?, arguments.text(1)?);
    if part.is_empty() {
        return Err(BuiltinError::Form("argument 2 is empty"));
    }
    let (length, part, borders) = (part.chars().count(), part.as_bytes(), borders(part.as_bytes()));
    let (mut characters, mut matched) = (0_usize, 0);
    let places = text.bytes().filter_map(|byte| {
        let is_continuation = byte & 0xc0 == 0x80;
        characters += usize::from(!is_continuation);
        while matched > 0 && part[matched] != byte {
            matched = borders[matched - 1];
        }
        matched += usize::from(part[matched] == byte);
        if matched < part.len() {
            return None;
        }
        matched = borders[matched - 1];
        Some(Value::from(characters - length))
    });
    list(arguments.work(), places)
}

/// For each beginning of a text, how long the longest shorter beginning is that it ends with.
fn borders(text: &[u8]) -> Vec<usize> {
    let (mut borders, mut length) = (vec![0; text.len()], 0);
    for end in 1..text.len() {
        while length > 0 && text[end] != text[length] {
            length = borders[length - 1];
        }
        length += usize::from(text[end] == text[length]);
        borders[end] = length;
    }
    borders
}

pub(super) fn count(arguments: &Arguments) -> Outcome {
    Ok(arguments.text(0)?.matches(arguments.text(1)?).count().into())
}

pub(super) fn reverse(arguments: &Arguments) -> Outcome {
    Ok(arguments.text(0)?.chars().rev().collect::<String>().into())
}

pub(super) fn any_prefix(arguments: &Arguments) -> Outcome {
    any(arguments, |text, part| text.starts_with(part))
}

pub(super) fn any_suffix(arguments: &Arguments) -> Outcome {
    any(arguments, |text, part| text.ends_with(part))
}

fn any(arguments: &Arguments, is_it: impl Fn(&str, &str) -> bool) -> Outcome {
    let (texts, parts) = (arguments.texts(0)?, arguments.texts(1)?);
    for text in &texts {
        for part in &parts {
            arguments.work().count(COMPARISON + text.len().min(part.len()) / 8)?;
            if is_it(text, part) {
                return Ok(true.into());
            }
        }
    }
    Ok(false.into())
}

/// A directive of a format, `%[flags][width][.precision]verb`.
#[derive(Default)]
struct Directive {
    minus: bool,
    plus: bool,
    sharp: bool,
    space: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
}

pub(super) fn sprintf(arguments: &Arguments) -> Outcome {
    let (format, values) = (arguments.text(0)?, arguments.list(1)?);
    let (mut text, work) = (String::new(), arguments.work());
    let mut values = values.iter();
    let mut characters = format.chars().peekable();
    while let Some(character) = characters.next() {
        if text.len() > work.effort.text() {
            return Err(work.beyond(BuiltinError::TooLong));
        }
        if character != '%' {
            text.push(character);
            continue;
        }
        let mut directive = Directive::default();
        while let Some(flag) = characters.next_if(|flag| matches!(flag, '-' | '+' | '#' | ' ' | '0')) {
            match flag {
                '-' => directive.minus = true,
                '+' => directive.plus = true,
                '#' => directive.sharp = true,
                ' ' => directive.space = true,
                _ => directive.zero = true,
            }
        }
        directive.width = number(&mut characters)?;
        if characters.next_if_eq(&'.').is_some() {
            directive.precision = Some(number(&mut characters)?);
        }
        work.count(DIRECTIVE + DIGIT * directive.precision.unwrap_or_default())?;
        match characters.next() {
            Some('%') => text.push('%'),
            None => text += "%!(NOVERB)",
            Some(verb) => match values.next() {
                Some(value) => text += &directive.show(verb, value),
                None => drop(write!(text, "%!{verb}(MISSING)")),
            },
        }
    }
    let extra: Vec<String> = values.map(|value| format!("{}={}", go_type(value), shown(value))).collect();
    if !extra.is_empty() {
        let _ = write!(text, "%!(EXTRA {})", extra.join(", "));
    }
    Ok(text.into())
}

/// The width or precision that comes next in a format; 0 where there is none.
fn number(characters: &mut Peekable<Chars<'_>>) -> Result<usize, BuiltinError> {
    let mut number = 0;
    while let Some(digit) = characters.peek().and_then(|digit| digit.to_digit(10)) {
        characters.next();
        number = number * 10 + digit as usize;
        if number > MAX_WIDTH {
            return Err(BuiltinError::Width(MAX_WIDTH));
        }
    }
    Ok(number)
}

impl Directive {
    fn show(&self, verb: char, value: &Value) -> String {
        if verb == 'T' {
            return self.pad(go_type(value).to_owned(), false);
        }
        match value {
            Value::Number(_) => {
                match integer(value).filter(|_| !value.is_f64() || value.as_f64().is_some_and(is_small)) {
                    Some(whole) => self.whole(verb, whole),
                    None => self.float(verb, value.as_f64().unwrap_or_default(), value),
                }
            }
            Value::String(text) => self.text(verb, text, value),
            other => self.text(verb, &shown(other), other),
        }
    }

    fn text(&self, verb: char, text: &str, value: &Value) -> String {
        let cut = || match self.precision {
            Some(most) => text.chars().take(most).collect(),
            None => text.to_owned(),
        };
        match verb {
            's' => self.pad(cut(), false),
            'v' if self.sharp => self.pad(format!("{text:?}"), false),
            'v' => self.pad(cut(), false),
            'q' => self.pad(Value::from(cut()).to_string(), false),
            'x' | 'X' => {
                let digits = super::encoding::hex(text.as_bytes());
                self.pad(if verb == 'X' { digits.to_uppercase() } else { digits }, false)
            }
            _ => wrong(verb, value),
        }
    }

    fn whole(&self, verb: char, whole: i64) -> String {
        let size = whole.unsigned_abs();
        let character = || u32::try_from(whole).ok().and_then(char::from_u32).unwrap_or(char::REPLACEMENT_CHARACTER);
        let digits = match verb {
            'd' | 'v' => size.to_string(),
            'x' => format!("{}{size:x}", if self.sharp { "0x" } else { "" }),
            'X' => format!("{}{size:X}", if self.sharp { "0X" } else { "" }),
            'o' => format!("{}{size:o}", if self.sharp { "0" } else { "" }),
            'b' => format!("{size:b}"),
            'c' => return self.pad(character().to_string(), false),
            'q' => return self.pad(format!("'{}'", character()), false),
            _ => return wrong(verb, &whole.into()),
        };
        let digits = match self.precision {
            Some(least) => format!("{digits:0>least$}"),
            None => digits,
        };
        self.pad(self.signed(whole < 0, &digits), self.precision.is_none())
    }

    fn float(&self, verb: char, float: f64, value: &Value) -> String {
        let size = float.abs();
        let digits = match verb {
            'f' | 'F' => format!("{size:.*}", self.precision.unwrap_or(6)),
            'e' | 'E' => {
                let text = exponent(&format!("{size:.*e}", self.precision.unwrap_or(6)));
                if verb == 'E' { text.to_uppercase() } else { text }
            }
            'v' | 'g' | 'G' => shortest(size),
            _ => return wrong(verb, value),
        };
        self.pad(self.signed(float.is_sign_negative(), &digits), true)
    }

    fn signed(&self, negative: bool, digits: &str) -> String {
        let sign = match (negative, self.plus, self.space) {
            (true, ..) => "-",
            (false, true, _) => "+",
            (false, false, true) => " ",
            _ => "",
        };
        format!("{sign}{digits}")
    }

    fn pad(&self, text: String, is_number: bool) -> String {
        let missing = self.width.saturating_sub(text.chars().count());
        match (missing, self.minus, self.zero && is_number) {
            (0, ..) => text,
            (_, true, _) => text + &" ".repeat(missing),
            (_, false, true) => {
                let sign = text.len() - text.trim_start_matches(['-', '+', ' ']).len();
                format!("{}{}{}", &text[..sign], "0".repeat(missing), &text[sign..])
            }
            _ => " ".repeat(missing) + &text,
        }
    }
}

fn is_small(float: f64) -> bool {
    float.abs() < 1e15
}

/// A float as Go shows it without a precision: with an exponent from 10^21 on and below 10^-4.
fn shortest(size: f64) -> String {
    if size != 0.0 && !(1e-4..1e21).contains(&size) { exponent(&format!("{size:e}")) } else { format!("{size}") }
}

/// Go writes exponents with a sign and two digits at least.
fn exponent(text: &str) -> String {
    let Some((digits, exponent)) = text.split_once('e') else { return text.to_owned() };
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}

fn wrong(verb: char, value: &Value) -> String {
    format!("%!{verb}({}={})", go_type(value), shown(value))
}

/// The type as which OPA passes a value to Go's package fmt: numbers as numbers, everything else as a string.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int",
        _ => "string",
    }
}

/// A value as Rego writes it, but a text without quotes.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => {
            let mut text = String::new();
            add_rego(&mut text, other);
            text
        }
    }
}

/// Adds a value as Rego writes it. One text takes all of it: a text for each level would be copied as often as it is nested.
fn add_rego(text: &mut String, value: &Value) {
    match value {
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                text.push_str(if index == 0 { "" } else { ", " });
                add_rego(text, item);
            }
            text.push(']');
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_unstable_by_key(|(name, _)| *name);
            text.push('{');
            for (index, (name, value)) in members.into_iter().enumerate() {
                let _ = write!(text, "{}{}: ", if index == 0 { "" } else { ", " }, Value::from(name.as_str()));
                add_rego(text, value);
            }
            text.push('}');
        }
        other => drop(write!(text, "{other}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::run;
    use super::*;

    fn sprintf(format: &str, values: Value) -> String {
        let text = run("sprintf", json!([format, values])).expect("a text");
        text.as_str().expect("a text").to_owned()
    }

    /// The expected texts are those of Go's package fmt.
    #[test]
    fn formats() {
        for (format, values, expected) in [
            ("hello %v %v %v", json!(["world", 42, ["this", 1]]), r#"hello world 42 ["this", 1]"#),
            ("%s is %d%%", json!(["a", 5]), "a is 5%"),
            ("%v", json!([{"b": [true, null], "a": "x"}]), r#"{"a": "x", "b": [true, null]}"#),
            ("%q", json!(["a\"b"]), r#""a\"b""#),
            ("[%5d|%-5d|%05d|%+d|% d]", json!([42, 42, -42, 42, 42]), "[   42|42   |-0042|+42| 42]"),
            ("[%5s|%-5s|%.2s]", json!(["ab", "ab", "abc"]), "[   ab|ab   |ab]"),
            ("%x %X %#x %o %b %c", json!([255, 255, 255, 8, 5, 65]), "ff FF 0xff 10 101 A"),
            ("%x", json!(["hi"]), "6869"),
            ("%f %.2f %e %v %g", json!([1.5, 1.456, 1234.5, 2.5, 1e-7]), "1.500000 1.46 1.234500e+03 2.5 1e-07"),
            ("%v", json!([1e21]), "1e+21"),
            ("%d", json!(["x"]), "%!d(string=x)"),
            ("%s", json!([1]), "%!s(int=1)"),
            ("%s %s", json!(["a"]), "a %!s(MISSING)"),
            ("a", json!([1, "b"]), "a%!(EXTRA int=1, string=b)"),
            ("100%", json!([]), "100%!(NOVERB)"),
            ("%T", json!([1.5]), "float64"),
        ] {
            assert_eq!(sprintf(format, values), expected, "{format}");
        }
    }

    #[test]
    fn a_format_cannot_make_gigabytes() {
        for format in ["%1000000000d", "%.1000000000f", "%99999999999999999999999d"] {
            assert!(run("sprintf", json!([format, [1]])).is_err(), "{format}");
        }
        let many = json!(["%1024d".repeat(10_000), vec![1; 10_000]]);
        assert!(run("sprintf", many).expect_err("large").contains("above"));
    }

    /// What OPA 1.22.2 answers (v1/topdown/strings.go).
    #[test]
    fn every_place_is_found() {
        for (text, part, places) in [
            ("sad as é sad", "s", json!([0, 5, 9])),
            ("aaa", "aa", json!([0, 1])),
            ("ababa", "aba", json!([0, 2])),
            ("ééé", "éé", json!([0, 1])),
            ("aabaaab", "aab", json!([0, 4])),
            ("a", "ab", json!([])),
            ("abc", "x", json!([])),
        ] {
            assert_eq!(run("indexof_n", json!([text, part])), Ok(places), "{part} in {text}");
        }
        assert!(run("indexof_n", json!(["a", ""])).is_err());
        // Each place takes no longer than any other.
        let (text, part) = ("a".repeat(1 << 20), "a".repeat((1 << 20) - 50_000));
        let places = run("indexof_n", json!([text, part])).expect("places");
        assert_eq!(places.as_array().map(Vec::len), Some(50_001));
    }

    #[test]
    fn searching() {
        assert_eq!(run("strings.count", json!(["cheese", "e"])), Ok(json!(3)));
        assert_eq!(run("strings.reverse", json!(["abé"])), Ok(json!("éba")));
        assert_eq!(run("strings.any_prefix_match", json!([["a/b", "c"], ["x", "a/"]])), Ok(json!(true)));
        assert_eq!(run("strings.any_suffix_match", json!(["a/b", "a"])), Ok(json!(false)));
        assert_eq!(run("glob.quote_meta", json!(["*.{a}?"])), Ok(json!("\\*.\\{a\\}\\?")));
        assert_eq!(run("internal.print", json!([[["a"], [], [{"b": 1}]]])), Ok(json!("a <undefined> {\"b\": 1}")));
    }
}
