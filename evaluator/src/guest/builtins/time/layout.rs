//! Layouts of Go's package time, which show one fixed moment in the wanted form: `Mon Jan 2 15:04:05 MST 2006`.

use jiff::fmt::strtime::BrokenDownTime;
use jiff::{Timestamp, Zoned};

use super::super::BuiltinError;

/// The parts of a layout, each with the directive of strftime for it. A longer part comes before a shorter one that it begins with.
const PARTS: [(&str, &str); 28] = [
    ("January", "%B"),
    ("Jan", "%b"),
    ("Monday", "%A"),
    ("Mon", "%a"),
    ("MST", "%Z"),
    ("2006", "%Y"),
    ("-07:00:00", "%::z"),
    ("-07:00", "%:z"),
    ("-0700", "%z"),
    ("Z07:00", "%:z"),
    ("Z0700", "%z"),
    ("002", "%j"),
    ("01", "%m"),
    ("02", "%d"),
    ("03", "%I"),
    ("04", "%M"),
    ("05", "%S"),
    ("06", "%y"),
    ("15", "%H"),
    ("_2", "%e"),
    ("PM", "%p"),
    ("pm", "%P"),
    ("1", "%-m"),
    ("2", "%-d"),
    ("3", "%-I"),
    ("4", "%-M"),
    ("5", "%-S"),
    ("%", "%%"),
];

/// Longest layout, in bytes. Each of them may become a piece of its own.
const MAX_LAYOUT: usize = 1024;

/// A piece of a layout.
enum Piece<'l> {
    /// One of [`PARTS`].
    Part(&'static str, &'static str),
    /// Fraction of a second: the number of digits, and whether zeros at the end are left out.
    Fraction(usize, bool),
    /// Text that stands for itself.
    Text(&'l str),
}

/// The pieces of a layout.
fn pieces(mut layout: &str) -> Result<Vec<Piece<'_>>, BuiltinError> {
    if layout.len() > MAX_LAYOUT {
        return Err(BuiltinError::Form("the layout is above 1024 bytes"));
    }
    let mut pieces = Vec::new();
    while let Some(character) = layout.chars().next() {
        let (piece, length) = if let Some((digits, is_short)) = fraction(layout) {
            (Piece::Fraction(digits, is_short), digits + 1)
        } else if let Some((part, format)) = PARTS.iter().find(|(part, _)| layout.starts_with(part)) {
            (Piece::Part(part, format), part.len())
        } else {
            (Piece::Text(&layout[..character.len_utf8()]), character.len_utf8())
        };
        pieces.push(piece);
        layout = &layout[length..];
    }
    Ok(pieces)
}

/// `.000` or `.999`, or with a comma, which no digit follows.
fn fraction(layout: &str) -> Option<(usize, bool)> {
    let digits = layout.strip_prefix(['.', ','])?;
    let first = digits.chars().next().filter(|digit| matches!(digit, '0' | '9'))?;
    let count = digits.len() - digits.trim_start_matches(first).len();
    let is_end = !digits[count..].starts_with(|character: char| character.is_ascii_digit());
    (is_end && count <= 9).then_some((count, first == '9'))
}

pub(super) fn format(layout: &str, moment: &Zoned) -> Result<String, BuiltinError> {
    let mut text = String::new();
    let show = |format: &str| {
        let shown = jiff::fmt::strtime::format(format, moment);
        shown.map_err(|_| BuiltinError::Form("the layout cannot be shown"))
    };
    for piece in pieces(layout)? {
        match piece {
            Piece::Part("Z07:00" | "Z0700", _) if moment.offset().is_zero() => text.push('Z'),
            Piece::Part(_, format) => text += &show(format)?,
            Piece::Fraction(digits, is_short) => {
                let fraction = format!("{:09}", moment.subsec_nanosecond());
                let fraction = &fraction[..digits];
                let fraction = if is_short { fraction.trim_end_matches('0') } else { fraction };
                if !fraction.is_empty() {
                    text.push('.');
                    text += fraction;
                }
            }
            Piece::Text(plain) => text += plain,
        }
    }
    Ok(text)
}

/// Parses a time by a layout. Parts that the layout lacks are those of the first moment of the year 0 in UTC, as in Go.
pub(super) fn parse(layout: &str, text: &str) -> Result<Timestamp, BuiltinError> {
    let odd = || BuiltinError::Form("the time does not fit its layout");
    let pieces = pieces(super::named(layout))?;
    let mut format = String::new();
    let mut text = text.to_owned();
    for (index, piece) in pieces.iter().enumerate() {
        match piece {
            Piece::Part("Z07:00" | "Z0700", part) => {
                format += part;
                // Only at the end, where the zone is in every layout that is in use.
                if index + 1 == pieces.len() && text.ends_with('Z') {
                    text.pop();
                    text += "+00:00";
                }
            }
            // Letters for a zone do not say what the zone is.
            Piece::Part("MST", _) => format += "UTC",
            Piece::Part("PM" | "pm", _) => format += "%p",
            Piece::Part("05" | "5", part) => {
                format += part;
                // A fraction may follow where the layout has none.
                if !matches!(pieces.get(index + 1), Some(Piece::Fraction(..))) {
                    format += "%.f";
                }
            }
            Piece::Part(_, part) => format += part,
            Piece::Fraction(..) => format += "%.f",
            Piece::Text(plain) => format += plain,
        }
    }
    let mut time = BrokenDownTime::parse(&format, &text).map_err(|_| odd())?;
    let has_day_of_year = time.day_of_year().is_some();
    if time.year().is_none() {
        time.set_year(Some(0)).map_err(|_| odd())?;
    }
    if !has_day_of_year {
        time.set_month(Some(time.month().unwrap_or(1))).map_err(|_| odd())?;
        time.set_day(Some(time.day().unwrap_or(1))).map_err(|_| odd())?;
    }
    if time.hour().is_none() {
        time.set_hour(Some(0)).map_err(|_| odd())?;
    }
    if time.minute().is_none() {
        time.set_minute(Some(0)).map_err(|_| odd())?;
    }
    if time.offset().is_none() {
        time.set_offset(Some(jiff::tz::Offset::UTC));
    }
    time.to_timestamp().map_err(|_| odd())
}
