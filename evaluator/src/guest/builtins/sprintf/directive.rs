//! One directive of a format, and the text of a value by it, as in Go's package fmt.

use super::super::BuiltinError;
use super::super::encoding::hex;
use super::super::rego_text::{is_print, quoted};
use super::Given;

/// Flags, width and precision of a directive.
#[derive(Default)]
pub(super) struct Directive {
    minus: bool,
    plus: bool,
    sharp: bool,
    space: bool,
    zero: bool,
    /// The flag `+` of the verb `v`, which is no sign there.
    plus_v: bool,
    /// The flag `#` of the verb `v`.
    sharp_v: bool,
    pub(super) width: Option<usize>,
    pub(super) precision: Option<usize>,
}

impl Directive {
    /// Sets a flag; whether the character is one.
    pub(super) fn flag(&mut self, flag: char) -> bool {
        match flag {
            '-' => self.minus = true,
            '+' => self.plus = true,
            '#' => self.sharp = true,
            ' ' => self.space = true,
            '0' => self.zero = true,
            _ => return false,
        }
        true
    }

    /// Sets the width that an argument gives.
    pub(super) fn set_width(&mut self, width: usize, is_negative: bool) {
        self.width = Some(width);
        self.minus |= is_negative;
        self.zero &= !is_negative;
    }

    /// The text of a value.
    ///
    /// # Errors
    /// When Go knows the directive, and this host does not.
    pub(super) fn show(mut self, verb: char, given: &Given<'_>) -> Result<String, BuiltinError> {
        if matches!(verb, 'v' | 'w') {
            (self.plus_v, self.sharp_v) = (self.plus, self.sharp);
            (self.plus, self.sharp) = (false, false);
        }
        self.print(verb, given)
    }

    fn print(&self, verb: char, given: &Given<'_>) -> Result<String, BuiltinError> {
        if verb == 'T' {
            return Ok(self.pad(self.cut(given.type_name()).to_owned()));
        }
        let text = match given {
            Given::Int(whole) => self.int(verb, *whole),
            Given::Big(whole) if !matches!(verb, 'p' | 'w') => Some(self.big(verb, *whole)),
            Given::Float(float) if !matches!(verb, 'b' | 'x' | 'X') && !self.sharp => self.float(verb, *float),
            Given::Text(text) => self.text(verb, text),
            Given::Big(_) | Given::Float(_) => {
                let word = format!("%{}{verb} of a {}", if self.sharp { "#" } else { "" }, given.type_name());
                return Err(BuiltinError::Unknown { word, expected: "directive that this host knows" });
            }
        };
        match text {
            Some(text) => Ok(text),
            None => Ok(format!("%!{verb}({}={})", given.type_name(), self.print('v', given)?)),
        }
    }

    fn text(&self, verb: char, text: &str) -> Option<String> {
        Some(self.pad(match verb {
            'v' if self.sharp_v => quoted(self.cut(text), '"', false),
            's' | 'v' => self.cut(text).to_owned(),
            'q' if self.sharp && self.cut(text).chars().all(is_raw) => format!("`{}`", self.cut(text)),
            'q' => quoted(self.cut(text), '"', self.plus),
            'x' => self.bytes(text),
            'X' => self.bytes(text).to_ascii_uppercase(),
            _ => return None,
        }))
    }

    /// As much of a text as the precision leaves.
    fn cut<'a>(&self, text: &'a str) -> &'a str {
        let end = self.precision.and_then(|most| text.char_indices().nth(most));
        &text[..end.map_or(text.len(), |(end, _)| end)]
    }

    /// The bytes of a text as hexadecimal digits. The precision counts bytes.
    fn bytes(&self, text: &str) -> String {
        let bytes = &text.as_bytes()[..self.precision.unwrap_or(usize::MAX).min(text.len())];
        let prefix = if self.sharp { "0x" } else { "" };
        if !self.space {
            return if bytes.is_empty() { String::new() } else { prefix.to_owned() + &hex(bytes) };
        }
        let mut digits = String::new();
        for (place, byte) in bytes.iter().enumerate() {
            digits.push_str(if place == 0 { "" } else { " " });
            digits.push_str(prefix);
            digits.push_str(&hex(&[*byte]));
        }
        digits
    }

    fn int(&self, verb: char, whole: i64) -> Option<String> {
        let character = || u32::try_from(whole).ok().and_then(char::from_u32).unwrap_or(char::REPLACEMENT_CHARACTER);
        let text = match verb {
            'c' => return Some(self.pad(character().to_string())),
            'q' => return Some(self.pad(quoted(character().encode_utf8(&mut [0; 4]), '\'', self.plus))),
            'U' => {
                let shown = u32::try_from(whole).ok().and_then(char::from_u32);
                let shown = shown.filter(|shown| self.sharp && is_print(*shown));
                let shown = shown.map(|shown| format!(" '{shown}'")).unwrap_or_default();
                format!("U+{:0>least$}{shown}", format!("{whole:X}"), least = self.precision.unwrap_or_default().max(4))
            }
            // Go prints an empty text for zero with a precision of zero.
            _ if self.precision == Some(0) && whole == 0 => digits(verb, 0).map(|_| String::new())?,
            _ => self.signed_digits(verb, whole)?,
        };
        Some(self.filled(text, ' '))
    }

    /// Zeros fill the width before the prefix, as in Go.
    fn signed_digits(&self, verb: char, whole: i64) -> Option<String> {
        let sign = self.sign(whole < 0);
        let fill = if self.zero && !self.minus { self.width } else { None };
        let least = self.precision.or(fill.map(|width| width.saturating_sub(sign.len()))).unwrap_or_default();
        let digits = format!("{:0>least$}", digits(verb, whole.unsigned_abs())?);
        let prefix = match verb {
            'b' if self.sharp => "0b",
            'o' if self.sharp && !digits.starts_with('0') => "0",
            'O' if self.sharp && !digits.starts_with('0') => "0o0",
            'O' => "0o",
            'x' if self.sharp => "0x",
            'X' if self.sharp => "0X",
            _ => "",
        };
        Some(format!("{sign}{prefix}{digits}"))
    }

    /// A `*big.Int`, which has a form of its own in Go.
    fn big(&self, verb: char, whole: u64) -> String {
        let Some(digits) = digits(if verb == 's' { 'd' } else { verb }, whole) else {
            return format!("%!{verb}(big.Int={whole})");
        };
        let sign = if self.plus_v { "+" } else { self.sign(false) };
        let prefix = match verb {
            'O' => "0o",
            'b' if self.sharp => "0b",
            'o' if self.sharp => "0",
            'x' if self.sharp => "0x",
            'X' if self.sharp => "0X",
            _ => "",
        };
        let fill = if self.zero && !self.minus { self.width } else { None };
        let fill = fill.map(|width| width.saturating_sub(sign.len() + prefix.len()));
        let least = self.precision.or(fill).unwrap_or_default();
        self.filled(format!("{sign}{prefix}{digits:0>least$}"), ' ')
    }

    fn float(&self, verb: char, float: f64) -> Option<String> {
        let size = float.abs();
        let digits = match verb {
            'f' | 'F' => format!("{size:.*}", self.precision.unwrap_or(6)),
            'e' | 'E' => exponent(&format!("{size:.*e}", self.precision.unwrap_or(6))),
            'v' | 'g' | 'G' => general(size, self.precision),
            _ => return None,
        };
        let digits = if matches!(verb, 'E' | 'G') { digits.to_ascii_uppercase() } else { digits };
        let sign = self.sign(float.is_sign_negative());
        let fill = if self.zero && !self.minus { self.width.unwrap_or_default() } else { 0 };
        let least = fill.saturating_sub(sign.len());
        Some(self.filled(format!("{sign}{digits:0>least$}"), ' '))
    }

    fn sign(&self, is_negative: bool) -> &'static str {
        match (is_negative, self.plus, self.space) {
            (true, ..) => "-",
            (false, true, _) => "+",
            (false, false, true) => " ",
            _ => "",
        }
    }

    fn pad(&self, text: String) -> String {
        self.filled(text, if self.zero { '0' } else { ' ' })
    }

    /// Fills the width, on the left with `fill`.
    fn filled(&self, text: String, fill: char) -> String {
        let missing = self.width.unwrap_or_default().saturating_sub(text.chars().count());
        match (missing, self.minus) {
            (0, _) => text,
            (_, true) => text + &" ".repeat(missing),
            (_, false) => fill.to_string().repeat(missing) + &text,
        }
    }
}

/// Whether a text with the character can be in backquotes.
fn is_raw(character: char) -> bool {
    !matches!(character, '`' | '\u{7f}' | '\u{feff}') && (character >= ' ' || character == '\t')
}

/// The digits of a whole number in the base of the verb; none for a verb without one.
fn digits(verb: char, size: u64) -> Option<String> {
    Some(match verb {
        'd' | 'v' => size.to_string(),
        'b' => format!("{size:b}"),
        'o' | 'O' => format!("{size:o}"),
        'x' => format!("{size:x}"),
        'X' => format!("{size:X}"),
        _ => return None,
    })
}

/// A float by the verb `g`, with as many digits as it needs, or as the precision says at most. It has an exponent below 10^-4, and where the
/// precision does not reach the point; without a precision from 10^6 on.
fn general(size: f64, precision: Option<usize>) -> String {
    let precision = precision.map(|precision| precision.max(1));
    let text = match precision {
        Some(precision) => format!("{size:.*e}", precision - 1),
        None => format!("{size:e}"),
    };
    let (mantissa, power) = text.split_once('e').unwrap_or((&text, "0"));
    let power: i32 = power.parse().unwrap_or_default();
    let digits = mantissa.replace('.', "");
    let digits = digits.trim_end_matches('0');
    let most = precision.map_or(6, |precision| i32::try_from(precision).unwrap_or(i32::MAX));
    if !(-4..most).contains(&power) {
        let (first, rest) = digits.split_at(1.min(digits.len()));
        let point = if rest.is_empty() { "" } else { "." };
        return exponent(&format!("{first}{point}{rest}e{power}"));
    }
    let before = usize::try_from(power + 1).unwrap_or_default();
    let zeros = "0".repeat(usize::try_from(-power - 1).unwrap_or_default());
    match digits.split_at_checked(before) {
        _ if digits.is_empty() => "0".to_owned(),
        None => format!("{digits:0<before$}"),
        Some((whole, "")) => whole.to_owned(),
        Some((whole, part)) => format!("{}.{zeros}{part}", if whole.is_empty() { "0" } else { whole }),
    }
}

/// Go writes exponents with a sign and two digits at least.
fn exponent(text: &str) -> String {
    let Some((digits, exponent)) = text.split_once('e') else { return text.to_owned() };
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}
