//! `sprintf`, after Go's package fmt, by which OPA formats. A directive that Go knows and this host does not ends the builtin with an error.

mod directive;

use std::borrow::Cow;

use serde_json::{Number, Value};

use self::directive::Directive;
use super::arguments::integer;
use super::rego_text::rego_text;
use super::{Arguments, BuiltinError, Outcome, Work};

/// Widest field and longest fraction; Go's own limit is a million.
const MAX_WIDTH: usize = 1024;
/// What one directive takes in units of work, and each digit of its precision: floats are shown exactly.
const DIRECTIVE: usize = 200;
const DIGIT: usize = 100;
/// Bytes in which a bracket is searched for in one unit of work.
const SEARCHED: usize = 8;

pub(super) fn sprintf(arguments: &Arguments) -> Outcome {
    let (format, values, work) = (arguments.text(0)?, arguments.list(1)?, arguments.work());
    // A format may name a long list again and again, so each is shown once.
    let given: Vec<Given<'_>> = values.iter().map(Given::of).collect();
    let mut reader = Reader { rest: format, given: &given, next: 0, is_reordered: false, is_bad_index: false };
    let mut text = String::new();
    while let Some((plain, rest)) = reader.rest.split_once('%') {
        text += plain;
        if text.len() > work.effort.text() {
            return Err(work.beyond(BuiltinError::TooLong));
        }
        reader.rest = rest;
        reader.directive(&mut text, work)?;
    }
    text += reader.rest;
    let extra = given.get(reader.next..).filter(|extra| !extra.is_empty() && !reader.is_reordered).unwrap_or_default();
    for (place, given) in extra.iter().enumerate() {
        text.push_str(if place == 0 { "%!(EXTRA " } else { ", " });
        text.push_str(given.type_name());
        text.push('=');
        text += &Directive::default().show('v', given)?;
    }
    text.push_str(if extra.is_empty() { "" } else { ")" });
    Ok(text.into())
}

/// A value as OPA passes it to Go's package fmt: numbers as numbers, everything else as a string.
enum Given<'a> {
    Int(i64),
    /// A whole number above those: a `*big.Int`.
    Big(u64),
    Float(f64),
    Text(Cow<'a, str>),
}

impl<'a> Given<'a> {
    /// What is written with a point or an exponent is a float, also where it is whole. Compiled modules show whole results of arithmetic as
    /// floats where these do not fit 32 bits, and OPA as whole numbers.
    fn of(value: &'a Value) -> Self {
        let number = |number: &Number| match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => Self::Int(whole),
            (None, Some(whole)) => Self::Big(whole),
            (None, None) => Self::Float(number.as_f64().unwrap_or_default()),
        };
        match value {
            Value::Number(of) => match integer(value) {
                Some(whole) if of.is_f64() && i32::try_from(whole).is_err() => Self::Int(whole),
                _ => number(of),
            },
            Value::String(text) => Self::Text(Cow::Borrowed(text)),
            other => Self::Text(Cow::Owned(rego_text(other))),
        }
    }

    /// The name of its type in Go.
    fn type_name(&self) -> &'static str {
        match self {
            Self::Int(_) => "int",
            Self::Big(_) => "*big.Int",
            Self::Float(_) => "float64",
            Self::Text(_) => "string",
        }
    }
}

/// Reads a format, as `doPrintf` does in Go.
struct Reader<'a> {
    /// What is left of it.
    rest: &'a str,
    given: &'a [Given<'a>],
    /// The place of the next argument.
    next: usize,
    /// Whether an index was named. Then it is no mistake that arguments are left.
    is_reordered: bool,
    /// Whether the directive names an index that does not exist, or names one in the wrong place.
    is_bad_index: bool,
}

impl Reader<'_> {
    /// Reads the rest of `%[flags][[index]width][.[index]precision][[index]]verb`, and adds its text.
    fn directive(&mut self, text: &mut String, work: &Work) -> Result<(), BuiltinError> {
        self.is_bad_index = false;
        let mut directive = Directive::default();
        while self.rest.chars().next().is_some_and(|flag| directive.flag(flag)) {
            self.rest = &self.rest[1..];
        }
        let mut is_after_index = self.index(work)?;
        if self.skip('*') {
            match self.number_given()? {
                Some((width, is_negative)) => directive.set_width(width, is_negative),
                None => text.push_str("%!(BADWIDTH)"),
            }
            is_after_index = false;
        } else {
            directive.width = self.number()?;
            self.is_bad_index |= is_after_index && directive.width.is_some();
        }
        // At the end of the format, the point is the verb.
        if self.rest.len() > 1 && self.skip('.') {
            self.is_bad_index |= is_after_index;
            is_after_index = self.index(work)?;
            if self.skip('*') {
                let precision = self.number_given()?.filter(|(_, is_negative)| !is_negative);
                directive.precision = precision.map(|(precision, _)| precision);
                text.push_str(if precision.is_none() { "%!(BADPREC)" } else { "" });
                is_after_index = false;
            } else {
                directive.precision = Some(self.number()?.unwrap_or_default());
            }
        }
        if !is_after_index {
            self.index(work)?;
        }
        work.count(DIRECTIVE + DIGIT * directive.precision.unwrap_or_default())?;
        let Some(verb) = self.rest.chars().next() else {
            text.push_str("%!(NOVERB)");
            return Ok(());
        };
        self.rest = &self.rest[verb.len_utf8()..];
        match self.given.get(self.next) {
            _ if verb == '%' => text.push('%'),
            _ if self.is_bad_index => *text += &format!("%!{verb}(BADINDEX)"),
            None => *text += &format!("%!{verb}(MISSING)"),
            Some(given) => {
                *text += &directive.show(verb, given)?;
                self.next += 1;
            }
        }
        Ok(())
    }

    fn skip(&mut self, character: char) -> bool {
        let rest = self.rest.strip_prefix(character);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Reads an index like `[2]`, if one comes next. Whether one did.
    fn index(&mut self, work: &Work) -> Result<bool, BuiltinError> {
        if !self.rest.starts_with('[') {
            return Ok(false);
        }
        self.is_reordered = true;
        let end = self.rest.find(']').filter(|_| self.rest.len() >= 3);
        work.count(end.unwrap_or(self.rest.len()) / SEARCHED)?;
        let number = end.and_then(|end| index_of(&self.rest[1..end]));
        self.rest = &self.rest[end.unwrap_or_default() + 1..];
        match number.and_then(|number| number.checked_sub(1)).filter(|place| *place < self.given.len()) {
            Some(place) => self.next = place,
            None => self.is_bad_index = true,
        }
        Ok(number.is_some())
    }

    /// The width or precision that comes next in the format; `None` if no digit comes next.
    fn number(&mut self) -> Result<Option<usize>, BuiltinError> {
        let mut number = None;
        while let Some(digit) = self.rest.chars().next().and_then(|digit| digit.to_digit(10)) {
            self.rest = &self.rest[1..];
            number = Some(within(number.unwrap_or_default() * 10 + digit as usize)?);
        }
        Ok(number)
    }

    /// The next argument as a width or precision, and whether it is negative; none where it is no whole number, or is missing.
    fn number_given(&mut self) -> Result<Option<(usize, bool)>, BuiltinError> {
        let Some(given) = self.given.get(self.next) else { return Ok(None) };
        self.next += 1;
        let Given::Int(number) = given else { return Ok(None) };
        Ok(Some((within(usize::try_from(number.unsigned_abs()).unwrap_or(usize::MAX))?, *number < 0)))
    }
}

fn within(number: usize) -> Result<usize, BuiltinError> {
    if number > MAX_WIDTH { Err(BuiltinError::Width(MAX_WIDTH)) } else { Ok(number) }
}

/// The number in the brackets of an index; none if it is not a number, or above a million as in Go.
fn index_of(digits: &str) -> Option<usize> {
    let add = |number: usize, digit: u8| {
        (digit.is_ascii_digit() && number <= 1_000_000).then(|| number * 10 + usize::from(digit - b'0'))
    };
    digits.bytes().try_fold(0, add).filter(|_| !digits.is_empty())
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
            // Arguments by their index.
            ("%[2]s %[1]s", json!(["a", "b"]), "b a"),
            ("%[1]s %[1]q %s", json!(["a", "b"]), "a \"a\" b"),
            ("%[1]d", json!([1, 2]), "1"),
            ("%[3]d %[x]d %[0]d %[1", json!([1]), "%!d(BADINDEX) %!d(BADINDEX) %!d(BADINDEX) %!(NOVERB)"),
            ("%[1]5d %[2]*[1]d|%[2]*d", json!([7, 3]), "%!d(BADINDEX)   7|%!d(MISSING)"),
            // Widths and precisions from arguments.
            ("[%*d|%-*d|%*d]", json!([4, 1, 4, 2, -4, 3]), "[   1|2   |3   ]"),
            ("%.*f %.*f", json!([2, 1.5, -1, 1.5]), "1.50 %!(BADPREC)1.500000"),
            ("%*d %.*d", json!(["a", 1, 2.0, 1]), "%!(BADWIDTH)1 %!(BADPREC)1"),
            // Whole floats, and whole numbers that are no int in Go.
            ("%.1f %d %v %s", json!([2.0, 2.0, 2.0, 2.0]), "2.0 %!d(float64=2) 2 %!s(float64=2)"),
            ("%d %v", json!([2_684_354_560.0, 2_684_354_560.0]), "2684354560 2684354560"),
            (
                "%v %v %v %v",
                json!([2_147_483_647.0, -2_147_483_649.0, 9e15, 2.5e9 + 0.5]),
                "2.147483647e+09 -2147483649 9e+15 2.5000000005e+09",
            ),
            ("%d %v", json!([u64::MAX, u64::MAX]), "18446744073709551615 18446744073709551615"),
            (
                "%x %+d %c %T",
                json!([u64::MAX, u64::MAX, u64::MAX, u64::MAX]),
                "ffffffffffffffff +18446744073709551615 %!c(big.Int=18446744073709551615) *big.Int",
            ),
            ("%f", json!([1]), "%!f(int=1)"),
            // Precisions and exponents of floats.
            ("%.2g %.3g %.10g %.1g", json!([1234.5, 100.0, 1.5, 0.05]), "1.2e+03 100 1.5 0.05"),
            ("%v %v %G", json!([1e6, 123_456.5, 1e-7]), "1e+06 123456.5 1E-07"),
            ("[%8.2f|%-8.2f|%08.2f|%+.1f]", json!([-1.5, 1.5, -1.5, 1.5]), "[   -1.50|1.50    |-0001.50|+1.5]"),
            // Flags that count with some verbs only.
            ("%+v %+d %#v %#v", json!([1, 1, "a", 1]), "1 +1 \"a\" 1"),
            ("%#q %+q %q", json!(["a`b", "é", 65]), "\"a`b\" \"\\u00e9\" 'A'"),
            ("% x %# x %.1x %X", json!(["hi", "hi", "hi", "hi"]), "68 69 0x68 0x69 68 6869"),
            ("%U %#U %O %#o %#b", json!([233, 233, 8, 8, 5]), "U+00E9 U+00E9 'é' 0o10 010 0b101"),
            ("[%05s|%3c|%.0d|%6.3d]", json!(["ab", 65, 0, 7]), "[000ab|  A||   007]"),
            ("%t %5z %!", json!([1, 2]), "%!t(int=1) %!z(int=    2) %!!(MISSING)"),
            ("%", json!([1]), "%!(NOVERB)%!(EXTRA int=1)"),
        ] {
            assert_eq!(sprintf(format, values), expected, "{format}");
        }
    }

    #[test]
    fn a_directive_that_is_not_known_is_no_text() {
        for (format, value) in [("%x", json!(1.5)), ("%b", json!(1.5)), ("%#g", json!(1.5)), ("%p", json!(u64::MAX))] {
            let error = run("sprintf", json!([format, [value]])).expect_err(format);
            assert!(error.contains(format), "{error}");
        }
    }

    #[test]
    fn a_format_cannot_make_gigabytes() {
        for format in ["%1000000000d", "%.1000000000f", "%99999999999999999999999d", "%[1]*d"] {
            assert!(run("sprintf", json!([format, [1_000_000]])).is_err(), "{format}");
        }
        let many = json!(["%1024d".repeat(10_000), vec![1; 10_000]]);
        assert!(run("sprintf", many).expect_err("large").contains("above"));
        let again = json!(["%[1]s".repeat(1000), ["x".repeat(1 << 16)]]);
        assert!(run("sprintf", again).expect_err("large").contains("above"));
        // Neither the list nor the end of the format is read again for each directive.
        for format in ["%.0[1]s".repeat(100_000), "%[".repeat(1 << 19)] {
            let begin = std::time::Instant::now();
            let _ = run("sprintf", json!([format, [vec![0; 100_000]]]));
            assert!(begin.elapsed() < std::time::Duration::from_secs(60), "{}", &format[..8]);
        }
    }
}
