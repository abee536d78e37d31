//! `time.*`: moments are nanoseconds since 1970, alone or with a time zone, `[ns, "Europe/Rome"]`. There is no local zone but UTC.

mod layout;

use jiff::civil::DateTime;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Span, Timestamp, Zoned};
use portcullis_contract::clean;
use serde_json::{Value, json};

use super::arguments::integer;
use super::{Arguments, BuiltinError, Outcome};

/// The layout of [`format`] where none is given.
const RFC3339_NANO: &str = "2006-01-02T15:04:05.999999999Z07:00";

pub(super) fn now(arguments: &Arguments) -> Outcome {
    nanoseconds(arguments.now())
}

pub(super) fn parse_rfc3339(arguments: &Arguments) -> Outcome {
    let text = arguments.text(0)?;
    // Strict: RFC 3339 has a T, seconds and an offset, and no names of zones.
    let is_strict = text.len() >= 20 && text.as_bytes()[10].eq_ignore_ascii_case(&b'T') && !text.contains('[');
    let moment = is_strict.then(|| text.parse::<Timestamp>().ok()).flatten();
    nanoseconds(moment.ok_or(BuiltinError::Form("it is not a time in RFC 3339 format"))?)
}

/// Parses a time by one of Go's layouts, such as `2006-01-02`.
pub(super) fn parse(arguments: &Arguments) -> Outcome {
    nanoseconds(layout::parse(arguments.text(0)?, arguments.text(1)?)?)
}

/// Parses a duration as Go writes it: `1h15m30.5s`, `-1.5h`, `300ms`.
pub(super) fn parse_duration(arguments: &Arguments) -> Outcome {
    let text = arguments.text(0)?;
    let odd = || BuiltinError::Form("it is not a duration such as 1h30m");
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(0.into());
    }
    let mut sum = 0_i128;
    loop {
        let end = rest.find(|character: char| !character.is_ascii_digit() && character != '.').ok_or_else(odd)?;
        let (number, after) = rest.split_at(end);
        let units = [("ns", 1), ("us", 1_000), ("µs", 1_000), ("μs", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
        let units = units.into_iter().chain([("m", 60_000_000_000), ("h", 3_600_000_000_000)]);
        let unit = units.filter_map(|(name, size)| Some((after.strip_prefix(name)?, name.len(), size)));
        let (after, _, size) = unit.max_by_key(|(_, length, _)| *length).ok_or_else(odd)?;
        sum = sum.checked_add(times(number, size).ok_or_else(odd)?).ok_or_else(odd)?;
        rest = after;
        if rest.is_empty() {
            let sum = i64::try_from(sign * sum).map(Value::from);
            return sum.map_err(|_| BuiltinError::Range("the duration is too long"));
        }
    }
}

/// A decimal number times an integer, without the fraction of the product.
fn times(number: &str, size: i128) -> Option<i128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() == 0 || number.len() > 40 {
        return None;
    }
    let whole = if whole.is_empty() { 0 } else { whole.parse::<i128>().ok()?.checked_mul(size)? };
    let digits = &fraction[..fraction.len().min(18)];
    let part = if digits.is_empty() { 0 } else { digits.parse::<i128>().ok()? * size };
    whole.checked_add(part / 10_i128.pow(u32::try_from(digits.len()).ok()?))
}

pub(super) fn date(arguments: &Arguments) -> Outcome {
    let moment = moment(arguments.value(0)?)?;
    Ok(json!([moment.year(), moment.month(), moment.day()]))
}

pub(super) fn clock(arguments: &Arguments) -> Outcome {
    let moment = moment(arguments.value(0)?)?;
    Ok(json!([moment.hour(), moment.minute(), moment.second()]))
}

pub(super) fn weekday(arguments: &Arguments) -> Outcome {
    Ok(moment(arguments.value(0)?)?.strftime("%A").to_string().into())
}

/// The moment so many years, months and days later. A day beyond the end of its month becomes one of the next month.
pub(super) fn add_date(arguments: &Arguments) -> Outcome {
    let moment = moment(arguments.value(0)?)?;
    let (years, months, days) = (arguments.integer(1)?, arguments.integer(2)?, arguments.integer(3)?);
    let too_far = || BuiltinError::Range("the result is out of range");
    let count =
        i64::from(moment.year()).checked_add(years).and_then(|years| years.checked_mul(12)).ok_or_else(too_far)?;
    let count =
        count.checked_add(i64::from(moment.month()) - 1).and_then(|sum| sum.checked_add(months)).ok_or_else(too_far)?;
    let year = i16::try_from(count.div_euclid(12)).map_err(|_| too_far())?;
    let month = i8::try_from(count.rem_euclid(12) + 1).map_err(|_| too_far())?;
    let first =
        DateTime::new(year, month, 1, moment.hour(), moment.minute(), moment.second(), moment.subsec_nanosecond());
    let span = Span::new().try_days(days.saturating_add(i64::from(moment.day()) - 1)).map_err(|_| too_far())?;
    let sum = first.and_then(|first| first.checked_add(span)).and_then(|sum| sum.to_zoned(moment.time_zone().clone()));
    nanoseconds(sum.map_err(|_| too_far())?.timestamp())
}

/// Years, months, days, hours, minutes and seconds between two moments, in the zone of the first: the differences of what calendar and clock
/// show, each of which borrows from the next. Days are borrowed from the month of the earlier moment. Fractions of seconds do not count.
pub(super) fn diff(arguments: &Arguments) -> Outcome {
    let (one, other) = (moment(arguments.value(0)?)?, moment(arguments.value(1)?)?);
    let other = other.with_time_zone(one.time_zone().clone());
    let (from, to) = if one <= other { (one, other) } else { (other, one) };
    let shown = |moment: &Zoned| {
        [moment.year(), moment.month().into(), moment.day().into()].into_iter().map(i32::from).chain([
            moment.hour().into(),
            moment.minute().into(),
            moment.second().into(),
        ])
    };
    let mut parts: Vec<i32> = shown(&to).zip(shown(&from)).map(|(later, earlier)| later - earlier).collect();
    for (part, whole) in [(5, 60), (4, 60), (3, 24), (2, from.days_in_month().into()), (1, 12)] {
        if parts[part] < 0 {
            parts[part] += whole;
            parts[part - 1] -= 1;
        }
    }
    Ok(parts.into())
}

/// Formats a moment, whose third part may be one of Go's layouts.
pub(super) fn format(arguments: &Arguments) -> Outcome {
    let value = arguments.value(0)?;
    let layout = match value.get(2) {
        Some(layout) => layout.as_str().ok_or(BuiltinError::Form("the layout is not a string"))?,
        None => RFC3339_NANO,
    };
    Ok(layout::format(named(layout), &moment(value)?)?.into())
}

/// The layouts that Go has names for.
fn named(layout: &str) -> &str {
    match layout {
        "ANSIC" => "Mon Jan _2 15:04:05 2006",
        "UnixDate" => "Mon Jan _2 15:04:05 MST 2006",
        "RubyDate" => "Mon Jan 02 15:04:05 -0700 2006",
        "RFC822" => "02 Jan 06 15:04 MST",
        "RFC822Z" => "02 Jan 06 15:04 -0700",
        "RFC850" => "Monday, 02-Jan-06 15:04:05 MST",
        "RFC1123" => "Mon, 02 Jan 2006 15:04:05 MST",
        "RFC1123Z" => "Mon, 02 Jan 2006 15:04:05 -0700",
        "RFC3339" => "2006-01-02T15:04:05Z07:00",
        "RFC3339Nano" => RFC3339_NANO,
        other => other,
    }
}

fn moment(value: &Value) -> Result<Zoned, BuiltinError> {
    let (value, zone) = match value {
        Value::Array(parts) => (parts.first().unwrap_or(&Value::Null), parts.get(1)),
        value => (value, None),
    };
    let nanoseconds = integer(value).ok_or(BuiltinError::Form("a time is not a whole number of nanoseconds"))?;
    let timestamp = Timestamp::from_nanosecond(nanoseconds.into());
    let timestamp = timestamp.map_err(|_| BuiltinError::Range("a time is out of range"))?;
    let zone = zone.map(|zone| zone.as_str().ok_or(BuiltinError::Form("a time zone is not a string"))).transpose()?;
    let zone = match zone {
        None | Some("" | "UTC" | "Local") => TimeZone::UTC,
        // Not the machine's database: it may be missing, and this program may not read its files.
        Some(name) => {
            let unknown = |_| BuiltinError::Unknown { word: clean(name, 64), expected: "time zone" };
            TimeZoneDatabase::bundled().get(name).map_err(unknown)?
        }
    };
    Ok(timestamp.to_zoned(zone))
}

fn nanoseconds(moment: Timestamp) -> Outcome {
    let nanoseconds = i64::try_from(moment.as_nanosecond()).map(Value::from);
    nanoseconds.map_err(|_| BuiltinError::Range("the time is out of range"))
}

#[cfg(test)]
mod tests {
    use super::super::run;
    use super::*;

    /// 2017-07-14T02:40:00.123456789Z.
    const MOMENT: i64 = 1_500_000_000_123_456_789;

    #[test]
    fn parts_of_a_moment() {
        assert_eq!(run("time.date", json!([MOMENT])), Ok(json!([2017, 7, 14])));
        assert_eq!(run("date", json!([[MOMENT, "America/New_York"]])), Ok(json!([2017, 7, 13])));
        assert_eq!(run("time.clock", json!([[MOMENT, "Europe/Rome"]])), Ok(json!([4, 40, 0])));
        assert_eq!(run("time.weekday", json!([MOMENT])), Ok(json!("Friday")));
        assert!(run("time.clock", json!([[MOMENT, "Mars/Phobos"]])).is_err());
        assert!(run("time.date", json!([1.5])).is_err() && run("time.date", json!([[]])).is_err());
    }

    #[test]
    fn texts_of_rfc_3339() {
        assert_eq!(run("time.parse_rfc3339_ns", json!(["2017-07-14T04:40:00.123456789+02:00"])), Ok(json!(MOMENT)));
        for odd in
            ["2017-07-14", "2017-07-14 02:40:00Z", "2017-07-14T02:40:00", "2017-07-14T02:40:00+02[Europe/Rome]", "x"]
        {
            assert!(run("time.parse_rfc3339_ns", json!([odd])).is_err(), "{odd}");
        }
    }

    #[test]
    fn durations() {
        let of = |text: &str| run("time.parse_duration_ns", json!([text]));
        assert_eq!(of("1h15m30.918273645s"), Ok(json!(4_530_918_273_645_i64)));
        assert_eq!(
            (of("-1.5h"), of("300ms"), of("0"), of(".5us")),
            (Ok(json!(-5_400_000_000_000_i64)), Ok(json!(300_000_000)), Ok(json!(0)), Ok(json!(500)))
        );
        for odd in ["", "1", "h", "1x", "1h ", "--1h", "99999999999h", "1.2.3s"] {
            assert!(of(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn the_calendar() {
        let day = |text: &str| run("time.parse_ns", json!(["2006-01-02", text])).expect("a day");
        let add = |from: &str, years, months, days| run("time.add_date", json!([day(from), years, months, days]));
        assert_eq!(add("2020-01-31", 0, 1, 0), Ok(day("2020-03-02")), "as Go has it");
        assert_eq!(add("2020-02-29", -1, 0, 0), Ok(day("2019-03-01")));
        assert_eq!(add("2020-12-31", 0, 0, 1), Ok(day("2021-01-01")));
        assert!(add("2020-12-31", i64::MAX, 0, 0).is_err() && add("2020-12-31", 0, 0, i64::MAX).is_err());
        let diff = |one: &str, other: &str| run("time.diff", json!([day(one), day(other)]));
        assert_eq!(diff("2020-03-02", "2019-01-01"), Ok(json!([1, 2, 1, 0, 0, 0])));
    }

    /// What OPA 1.22.2 answers (v1/topdown/time.go).
    #[test]
    fn differences() {
        for (zone, one, other, expected) in [
            ("UTC", "2023-03-01T00:00:00Z", "2023-01-30T00:00:00Z", json!([0, 1, 2, 0, 0, 0])),
            ("UTC", "2023-01-31T00:00:00Z", "2023-03-01T00:00:00Z", json!([0, 1, 1, 0, 0, 0])),
            ("UTC", "2020-02-29T00:00:00Z", "2021-02-28T00:00:00Z", json!([0, 11, 28, 0, 0, 0])),
            ("UTC", "2023-01-30T23:59:59.9Z", "2023-03-01T00:00:00.1Z", json!([0, 1, 1, 0, 0, 1])),
            ("UTC", "2023-01-30T00:00:00Z", "2023-01-30T00:00:00Z", json!([0, 0, 0, 0, 0, 0])),
            // A day and a night of 23 hours, and an hour that comes twice.
            ("Europe/Rome", "2023-03-25T12:00:00Z", "2023-03-26T12:00:00Z", json!([0, 0, 1, 1, 0, 0])),
            ("Europe/Rome", "2023-03-25T23:30:00Z", "2023-03-26T01:30:00Z", json!([0, 0, 0, 3, 0, 0])),
            ("Europe/Rome", "2023-10-29T00:30:00Z", "2023-10-29T01:15:00Z", json!([-1, 11, 30, 23, 45, 0])),
        ] {
            let at = |text: &str| run("time.parse_rfc3339_ns", json!([text])).expect("a time");
            let difference = run("time.diff", json!([[at(one), zone], [at(other), zone]]));
            assert_eq!(difference, Ok(expected), "{one} {other}");
        }
    }

    #[test]
    fn layouts() {
        let parse = |layout: &str, text: &str| run("time.parse_ns", json!([layout, text]));
        assert_eq!(parse("2006-01-02T15:04:05Z07:00", "2017-07-14T02:40:00.123456789Z"), Ok(json!(MOMENT)));
        assert_eq!(parse("2006-01-02T15:04:05Z07:00", "2017-07-14T04:40:00.123456789+02:00"), Ok(json!(MOMENT)));
        assert_eq!(
            parse("Jan _2, 2006 at 3:04pm (MST)", "Feb  4, 2014 at 6:05pm (UTC)"),
            Ok(json!(1_391_537_100_000_000_000_i64))
        );
        assert!(
            parse("2006-01-02", "2017-13-01").is_err() && parse("2006", "x").is_err() && parse("%Y", "2017").is_err()
        );
        let format = |value| run("time.format", json!([value]));
        assert_eq!(format(json!(MOMENT)), Ok(json!("2017-07-14T02:40:00.123456789Z")));
        assert_eq!(format(json!([MOMENT, "Europe/Rome"])), Ok(json!("2017-07-14T04:40:00.123456789+02:00")));
        let long = |length: usize| format(json!([MOMENT, "UTC", "x".repeat(length)]));
        assert_eq!(long(1024), Ok(json!("x".repeat(1024))));
        assert_eq!(long(1025), Err("the layout is above 1024 bytes".to_owned()));
        assert!(parse(&"x".repeat(1025), "").is_err_and(|error| error.contains("above 1024 bytes")));
        let layout = "Mon Jan _2 2006 02/01/06 3:04:05.000 PM, %";
        assert_eq!(format(json!([MOMENT, "UTC", layout])), Ok(json!("Fri Jul 14 2017 14/07/17 2:40:00.123 AM, %")));
        assert_eq!(format(json!([MOMENT, "UTC", "RFC1123Z"])), Ok(json!("Fri, 14 Jul 2017 02:40:00 +0000")));
    }
}
