//! Quantities, ranges, and random values.
//!
//! Quantities are decimal numbers, and stay exact: `700m` is 0.7, as in OPA, and not what 700 times the nearest number to 0.001 is.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use portcullis_contract::clean;
use serde_json::{Number, Value};

use super::{Arguments, BuiltinError, Outcome};

/// A quantity with an SI or binary unit, as Kubernetes writes resources: `10k`, `100m`, `1Gi`.
pub(super) fn parse(arguments: &Arguments) -> Outcome {
    let (number, unit) = split(arguments.text(0)?)?;
    let factor = match unit.as_str() {
        "" => Factor::ONE,
        "m" => Factor { tens: -3, ..Factor::ONE },
        // Here, unlike below, case matters: milli and mega.
        unit => factor(&if unit.ends_with('i') { unit.to_lowercase() } else { unit.replace('M', "m") })
            .filter(|_| unit != "m")
            .ok_or_else(|| unknown(unit, "unit"))?,
    };
    if let Some(number) = Decimal::of(number).and_then(|number| number.times(factor).number()) {
        return Ok(Value::Number(number));
    }
    number_of(float(number)? * factor.float())
}

/// A number of bytes: `10KB`, `1.5Gi`, `200`. Case does not matter.
pub(super) fn parse_bytes(arguments: &Arguments) -> Outcome {
    let (number, unit) = split(arguments.text(0)?)?;
    let unit = unit.to_lowercase();
    let unit = unit.strip_suffix('b').unwrap_or(&unit);
    let factor = if unit.is_empty() { Some(Factor::ONE) } else { factor(unit) };
    let factor = factor.ok_or_else(|| unknown(unit, "unit of bytes"))?;
    if let Some(number) = Decimal::of(number).and_then(|number| number.times(factor).whole().number()) {
        return Ok(Value::Number(number));
    }
    number_of((float(number)? * factor.float()).trunc())
}

fn unknown(word: &str, expected: &'static str) -> BuiltinError {
    BuiltinError::Unknown { word: clean(word, 64), expected }
}

fn odd() -> BuiltinError {
    BuiltinError::Form("it is not a number with a unit")
}

/// The number, which Rust can read, and the unit.
fn split(text: &str) -> Result<(&str, String), BuiltinError> {
    let text = text.trim_matches('"');
    let is_unit = |character: char| character.is_ascii_alphabetic() && !matches!(character, 'e' | 'E');
    // An exponent is a part of the number, if a number follows: `1e3` and `1E`.
    let end = text.find(is_unit).unwrap_or(text.len());
    let number = &text[..end];
    let (number, unit) = match number.strip_suffix(['e', 'E']) {
        Some(shorter) => (shorter, format!("{}{}", &number[shorter.len()..], &text[end..])),
        None => (number, text[end..].to_owned()),
    };
    if unit.contains(char::is_whitespace) || number.is_empty() {
        return Err(odd());
    }
    float(number).map(|_| (number, unit))
}

fn float(number: &str) -> Result<f64, BuiltinError> {
    number.parse().map_err(|_| odd())
}

fn factor(unit: &str) -> Option<Factor> {
    let (unit, is_binary) = unit.strip_suffix('i').map_or((unit, false), |unit| (unit, true));
    let power = ["", "k", "m", "g", "t", "p", "e"].iter().position(|known| unit.eq_ignore_ascii_case(known))?;
    let power = i32::try_from(power).ok().filter(|power| *power > 0)?;
    Some(if is_binary { Factor { twos: 10 * power, tens: 0 } } else { Factor { tens: 3 * power, twos: 0 } })
}

/// What a unit stands for: a power of ten, or of two.
#[derive(Clone, Copy)]
struct Factor {
    tens: i32,
    twos: i32,
}

impl Factor {
    const ONE: Self = Self { tens: 0, twos: 0 };

    /// For numbers that are too long for [`Decimal`].
    fn float(self) -> f64 {
        10_f64.powi(self.tens) * 2_f64.powi(self.twos)
    }
}

/// `digits` × 10^`exponent`, below zero or not.
struct Decimal {
    is_negative: bool,
    digits: u128,
    exponent: i32,
}

impl Decimal {
    /// Most digits: with the largest power of two there are 124 bits of them.
    const MOST: usize = 19;

    /// The number in a text that Rust can read; none if it has too many digits.
    fn of(text: &str) -> Option<Self> {
        let (number, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (is_negative, number) = match number.strip_prefix('-') {
            Some(number) => (true, number),
            None => (false, number.strip_prefix('+').unwrap_or(number)),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.len() + fraction.len() > Self::MOST {
            return None;
        }
        let exponent: i32 = exponent.parse().ok().filter(|exponent: &i32| exponent.abs() < 1000)?;
        let exponent = exponent - i32::try_from(fraction.len()).ok()?;
        Some(Self { is_negative, digits: format!("{whole}{fraction}").parse().ok()?, exponent })
    }

    fn times(self, factor: Factor) -> Self {
        Self { digits: self.digits << factor.twos, exponent: self.exponent + factor.tens, ..self }
    }

    /// Without what comes after the point.
    fn whole(self) -> Self {
        if self.exponent >= 0 {
            return self;
        }
        let digits = 10_u128.checked_pow(self.exponent.unsigned_abs()).map_or(0, |below| self.digits / below);
        Self { digits, exponent: 0, ..self }
    }

    /// As JSON; a whole number is an integer. None if it is too large for a number.
    fn number(self) -> Option<Number> {
        let Self { is_negative, mut digits, mut exponent } = self;
        while exponent < 0 && digits.is_multiple_of(10) && digits > 0 {
            (digits, exponent) = (digits / 10, exponent + 1);
        }
        let sign = if is_negative { "-" } else { "" };
        let tens = u32::try_from(exponent).ok().and_then(|exponent| 10_u128.checked_pow(exponent));
        let whole = if digits == 0 { Some(0) } else { tens.and_then(|tens| digits.checked_mul(tens)) };
        let integer = whole.and_then(|whole| i64::try_from(whole).ok());
        match integer {
            Some(integer) => Some(Number::from(if is_negative { -integer } else { integer })),
            None => Number::from_f64(format!("{sign}{digits}e{exponent}").parse().ok()?),
        }
    }
}

/// A number as JSON; a whole one is an integer.
fn number_of(value: f64) -> Outcome {
    #[expect(clippy::cast_possible_truncation, reason = "whole and within 2^63")]
    let whole = (value.fract() == 0.0 && value.abs() < 9e18).then(|| Number::from(value as i64));
    whole.or_else(|| Number::from_f64(value)).map(Value::Number).ok_or(BuiltinError::Range("it is too large"))
}

pub(super) fn range_step(arguments: &Arguments) -> Outcome {
    let (from, to, step) = (arguments.integer(0)?, arguments.integer(1)?, arguments.integer(2)?);
    let step = u64::try_from(step).ok().filter(|step| *step > 0);
    let step = step.ok_or(BuiltinError::Form("the step is not above zero"))?;
    let count = from.abs_diff(to) / step;
    let work = arguments.work();
    if count >= work.effort.items() as u64 {
        return Err(work.beyond(BuiltinError::TooMany { what: "the range", parts: "numbers" }));
    }
    let at = |index: u64| {
        let offset = i64::try_from(index * step).unwrap_or(i64::MAX);
        if from <= to { from.saturating_add(offset) } else { from.saturating_sub(offset) }
    };
    Ok((0..=count).map(|index| Value::from(at(index))).collect())
}

/// A random number below another one; the same for the same arguments throughout one request.
pub(super) fn rand_intn(arguments: &Arguments) -> Outcome {
    let (name, below) = (arguments.text(0)?, arguments.integer(1)?.unsigned_abs());
    Ok(if below == 0 { 0 } else { hash(arguments, name, 0) % below }.into())
}

/// A random UUID of version 4; the same for the same argument throughout one request.
pub(super) fn uuid(arguments: &Arguments) -> Outcome {
    let name = arguments.text(0)?;
    let bits = (u128::from(hash(arguments, name, 1)) << 64) | u128::from(hash(arguments, name, 2));
    let bits = (bits & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
    let digits = format!("{bits:032x}");
    Ok(format!("{}-{}-{}-{}-{}", &digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]).into())
}

fn hash(arguments: &Arguments, name: &str, round: u8) -> u64 {
    let mut hasher = DefaultHasher::new();
    (arguments.seed(), name, round).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{Arguments, Effort, Work, once, run};

    #[test]
    fn quantities() {
        for (text, expected) in [
            ("10", json!(10)),
            ("10k", json!(10_000)),
            ("10K", json!(10_000)),
            ("100m", json!(0.1)),
            ("1M", json!(1_000_000)),
            ("1Mi", json!(1_048_576)),
            ("1.5Gi", json!(1_610_612_736)),
            ("1e3", json!(1000)),
            ("2E", json!(2_000_000_000_000_000_000_i64)),
        ] {
            assert_eq!(run("units.parse", json!([text])), Ok(expected), "{text}");
        }
        for (text, expected) in [
            ("10KB", json!(10_000)),
            ("10kib", json!(10_240)),
            ("1.5mb", json!(1_500_000)),
            ("200", json!(200)),
            ("1Gi", json!(1_073_741_824)),
        ] {
            assert_eq!(run("units.parse_bytes", json!([text])), Ok(expected), "{text}");
        }
        for milli in 1..=2000 {
            let expected = match milli % 1000 {
                0 => json!(milli / 1000),
                _ => json!(format!("{}.{:03}", milli / 1000, milli % 1000).parse::<f64>().expect("a number")),
            };
            assert_eq!(run("units.parse", json!([format!("{milli}m")])), Ok(expected), "{milli}");
        }
        for (text, expected) in [
            ("700m", json!(0.7)),
            ("-700m", json!(-0.7)),
            ("0m", json!(0)),
            ("1.001k", json!(1001)),
            ("0.0015k", json!(1.5)),
            ("1e400m", json!(null)),
        ] {
            let found = run("units.parse", json!([text]));
            assert_eq!(found.ok(), Some(expected).filter(|number| !number.is_null()), "{text}");
        }
        for (text, expected) in [("1.001KB", json!(1001)), ("1.0019KB", json!(1001)), ("0.3Ki", json!(307))] {
            assert_eq!(run("units.parse_bytes", json!([text])), Ok(expected), "{text}");
        }
        for odd in ["", "k", "1 k", "1x", "1..2", "0x10"] {
            assert!(run("units.parse", json!([odd])).is_err(), "{odd}");
            assert!(run("units.parse_bytes", json!([odd])).is_err(), "{odd}");
        }
    }

    #[test]
    fn ranges_have_a_limit() {
        assert_eq!(run("numbers.range_step", json!([0, 10, 4])), Ok(json!([0, 4, 8])));
        assert_eq!(run("numbers.range_step", json!([3, 0, 1])), Ok(json!([3, 2, 1, 0])));
        assert!(run("numbers.range_step", json!([0, i64::MAX, 1])).is_err());
        assert!(run("numbers.range_step", json!([0, 1, 0])).is_err());
    }

    #[test]
    fn random_is_the_same_throughout_a_request() {
        let of = |name: &str, seed| {
            let work = Work::new(Effort::Little, std::time::Instant::now());
            super::rand_intn(&Arguments::new(vec![json!(name), json!(1_000_000_007)], once(seed), work))
                .expect("a number")
        };
        assert_eq!(of("a", 1), of("a", 1));
        assert!(of("a", 1) != of("b", 1) && of("a", 1) != of("a", 2));
        let uuid = run("uuid.rfc4122", json!(["a"])).expect("a text");
        let uuid = uuid.as_str().expect("a text");
        assert!(uuid.len() == 36 && &uuid[14..15] == "4" && "89ab".contains(&uuid[19..20]), "{uuid}");
    }
}
