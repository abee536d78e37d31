//! Quantities, ranges, and random values.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use portcullis_contract::clean;
use serde_json::{Number, Value};

use super::{Arguments, BuiltinError, Outcome};

/// A quantity with an SI or binary unit, as Kubernetes writes resources: `10k`, `100m`, `1Gi`.
pub(super) fn parse(arguments: &Arguments) -> Outcome {
    let (number, unit) = split(arguments.text(0)?)?;
    let factor = match unit.as_str() {
        "" => 1.0,
        "m" => 0.001,
        // Here, unlike below, case matters: milli and mega.
        unit => factor(&if unit.ends_with('i') { unit.to_lowercase() } else { unit.replace('M', "m") })
            .filter(|_| unit != "m")
            .ok_or_else(|| unknown(unit, "unit"))?,
    };
    number_of(number * factor)
}

/// A number of bytes: `10KB`, `1.5Gi`, `200`. Case does not matter.
pub(super) fn parse_bytes(arguments: &Arguments) -> Outcome {
    let (number, unit) = split(arguments.text(0)?)?;
    let unit = unit.to_lowercase();
    let unit = unit.strip_suffix('b').unwrap_or(&unit);
    let factor = if unit.is_empty() { Some(1.0) } else { factor(unit) };
    number_of((number * factor.ok_or_else(|| unknown(unit, "unit of bytes"))?).trunc())
}

fn unknown(word: &str, expected: &'static str) -> BuiltinError {
    BuiltinError::Unknown { word: clean(word, 64), expected }
}

fn split(text: &str) -> Result<(f64, String), BuiltinError> {
    let odd = || BuiltinError::Form("it is not a number with a unit");
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
    Ok((number.parse().map_err(|_| odd())?, unit))
}

fn factor(unit: &str) -> Option<f64> {
    let (unit, base) = unit.strip_suffix('i').map_or((unit, 1000.0_f64), |unit| (unit, 1024.0));
    let power = ["", "k", "m", "g", "t", "p", "e"].iter().position(|known| unit.eq_ignore_ascii_case(known))?;
    Some(base.powi(i32::try_from(power).ok().filter(|power| *power > 0)?))
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

    use super::super::{Arguments, Effort, Work, run};

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
            super::rand_intn(&Arguments::new(vec![json!(name), json!(1_000_000_007)], seed, work)).expect("a number")
        };
        assert_eq!(of("a", 1), of("a", 1));
        assert!(of("a", 1) != of("b", 1) && of("a", 1) != of("a", 2));
        let uuid = run("uuid.rfc4122", json!(["a"])).expect("a text");
        let uuid = uuid.as_str().expect("a text");
        assert!(uuid.len() == 36 && &uuid[14..15] == "4" && "89ab".contains(&uuid[19..20]), "{uuid}");
    }
}
