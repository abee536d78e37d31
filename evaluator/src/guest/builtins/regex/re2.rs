//! The syntax of RE2, in which OPA's expressions are written, in the syntax of the crate that compiles them.
//!
//! Where both know an expression and mean different things by it, RE2 counts: an escaped sign is that sign, also `\<` and `\b{`; in a class
//! `[`, `&&`, `--` and `~~` are characters like any other; braces that are no repetition are braces. What only RE2 knows is translated
//! (`\Q…\E`, octal numbers). What only the crate knows stays as it is, since policies for Kubewarden, which uses that crate, may have it.

use regex_syntax::ast::ClassAsciiKind;
use regex_syntax::is_meta_character;

/// The expression in the crate's syntax; none if it is no expression in either.
pub(super) fn translated(pattern: &str) -> Option<String> {
    let mut reader = Reader::new(pattern);
    while let Some(character) = reader.next() {
        match character {
            '\\' if reader.take("Q") => reader.quoted(),
            '\\' => drop(reader.escape()?),
            '[' => reader.class()?,
            '{' if !is_repetition(reader.rest) => reader.literal('{'),
            // RE2 has no flag for white space and comments, among which nothing here would be what it seems.
            '(' if has_flag_x(reader.rest.chars()) => return Some(pattern.to_owned()),
            other => reader.out.push(other),
        }
    }
    Some(reader.out)
}

/// What is left of an expression, and what the part before it has become.
struct Reader<'p> {
    rest: &'p str,
    out: String,
    /// Whether a `:]` may follow. Once none does, none is looked for again: each of many brackets would look to the end of the expression.
    may_end_name: bool,
}

impl<'p> Reader<'p> {
    fn new(pattern: &'p str) -> Self {
        Self { rest: pattern, out: String::with_capacity(pattern.len()), may_end_name: true }
    }

    fn next(&mut self) -> Option<char> {
        let mut characters = self.rest.chars();
        let next = characters.next();
        self.rest = characters.as_str();
        next
    }

    /// Passes over a text if it comes next.
    fn take(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Takes so many bytes as they are.
    fn copy(&mut self, length: usize) {
        let (part, rest) = self.rest.split_at(length);
        self.out.push_str(part);
        self.rest = rest;
    }

    fn literal(&mut self, character: char) {
        if is_meta_character(character) {
            self.out.push('\\');
        }
        self.out.push(character);
    }

    /// The text after `\Q`.
    fn quoted(&mut self) {
        let (text, rest) = self.rest.split_once(r"\E").unwrap_or((self.rest, ""));
        self.rest = rest;
        text.chars().for_each(|character| self.literal(character));
    }

    /// What comes after a backslash; says whether it is a class of characters.
    fn escape(&mut self) -> Option<bool> {
        let is_octal = |digit: char| matches!(digit, '0'..='7');
        let first = self.next()?;
        match first {
            '0' => self.octal(0),
            '1'..='7' if self.rest.starts_with(is_octal) => self.octal(u32::from(first) - u32::from('0')),
            'p' | 'P' if self.take("{^") => {
                self.out.extend(['\\', if first == 'p' { 'P' } else { 'p' }, '{']);
                self.copy(self.rest.find('}')? + 1);
            }
            'p' | 'P' | 'x' | 'u' | 'U' if self.rest.starts_with('{') => {
                self.out.extend(['\\', first]);
                self.copy(self.rest.find('}')? + 1);
            }
            // One letter for a class; digits are copied like all others.
            'p' | 'P' => {
                self.out.extend(['\\', first]);
                self.copy(self.rest.chars().next()?.len_utf8());
            }
            sign if sign.is_ascii() && !sign.is_ascii_alphanumeric() => self.literal(sign),
            other => self.out.extend(['\\', other]),
        }
        Some(matches!(first, 'p' | 'P' | 'd' | 'D' | 's' | 'S' | 'w' | 'W'))
    }

    /// A character by its number, of which up to two digits follow.
    fn octal(&mut self, first: u32) {
        let mut number = first;
        for _ in 0..2 {
            let Some(digit) = self.rest.chars().next().and_then(|digit| digit.to_digit(8)) else { break };
            self.rest = &self.rest[1..];
            number = number * 8 + digit;
        }
        self.literal(char::from_u32(number).expect("at most 511"));
    }

    /// What comes after the bracket that opens a class. A bracket that closes it is a character where it comes first, as in `[]]`.
    fn class(&mut self) -> Option<()> {
        self.out.push('[');
        if self.take("^") {
            self.out.push('^');
        }
        let mut is_first = true;
        while is_first || !self.take("]") {
            is_first = false;
            if let Some(name) = self.class_name() {
                ClassAsciiKind::from_name(name.strip_prefix('^').unwrap_or(name))?;
                self.copy("[:".len() + name.len() + ":]".len());
                continue;
            }
            let is_class = self.member()?;
            if !is_class && self.rest.starts_with('-') && !self.rest.starts_with("-]") {
                self.copy("-".len());
                self.member()?;
            }
        }
        self.out.push(']');
        Some(())
    }

    /// The name of a class such as `[:alpha:]` that comes next.
    fn class_name(&mut self) -> Option<&'p str> {
        let rest = self.rest.strip_prefix("[:").filter(|_| self.may_end_name)?;
        let name = rest.split_once(":]").map(|(name, _)| name);
        self.may_end_name = name.is_some();
        name
    }

    /// A character of a class, or a class in it; says whether it is one.
    fn member(&mut self) -> Option<bool> {
        match self.next()? {
            '\\' => self.escape(),
            character => {
                self.literal(character);
                Some(false)
            }
        }
    }
}

/// Whether what comes after a brace makes it a repetition: `2}`, `2,}` or `2,3}`, without zeros in front.
fn is_repetition(rest: &str) -> bool {
    let is_number = |text: &str| {
        let is_digits = !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
        is_digits && (text == "0" || !text.starts_with('0'))
    };
    // It looks no further than digits and commas go, since each of many braces would look to the end of the expression.
    let end = rest.find(|character: char| character != ',' && !character.is_ascii_digit());
    let Some(inside) = end.filter(|end| rest[*end..].starts_with('}')).map(|end| &rest[..end]) else { return false };
    match inside.split_once(',') {
        Some((least, most)) => is_number(least) && (most.is_empty() || is_number(most)),
        None => is_number(inside),
    }
}

/// Whether a group begins with flags of which one is `x`, as in `(?x)` and `(?ix:a b)`. It looks no further than flags go, since each of
/// many groups would look to the end of the expression.
fn has_flag_x(mut rest: impl Iterator<Item = char>) -> bool {
    if rest.next() != Some('?') {
        return false;
    }
    let mut has_x = false;
    for character in rest {
        match character {
            'x' => has_x = true,
            ':' | ')' => return has_x,
            flag if flag == '-' || flag.is_ascii_alphabetic() => {}
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_both_know_is_the_same() {
        for pattern in [
            r"^(?i)[a-z0-9]+(?P<tag>:v?\d{1,3})?$",
            r"\pL\p{Greek}\x41\x{1F600}|\b(?:a|b)*?\B",
            r"[^\d\pN[:alpha:]é-ü]{2,}",
            r"\.\*\\\[\{\-",
            "(?x) a [ # it's a comment",
            "(?s-x:a [ # it's a comment)",
        ] {
            assert_eq!(translated(pattern).as_deref(), Some(pattern));
        }
    }

    #[test]
    fn re2_counts() {
        for (pattern, expected) in [
            (r"\<\_\ \/\>", r"<_ />"),
            (r"\b{start}", r"\b\{start}"),
            (r"[a&&b]", r"[a\&\&b]"),
            (r"[+--~~]", r"[\+-\-\~\~]"),
            (r"[[a]", r"[\[a]"),
            (r"[]a][^]a]", r"[\]a][^\]a]"),
            (r"[\d-z][a-]", r"[\d\-z][a\-]"),
            (r"[[:alpha][\]\<]", r"[\[:alpha][\]<]"),
            (r"${a}x{,3}{01}b{0,1}", r"$\{a}x\{,3}\{01}b{0,1}"),
            (r"\p{^Greek}[\P{^Lu}]", r"\P{Greek}[\p{Lu}]"),
            (r"\Qa.b\E*\012\101\0", "a\\.b*\nA\0"),
        ] {
            assert_eq!(translated(pattern).as_deref(), Some(expected), "{pattern}");
        }
        for odd in ["[", "[]", "[^]", "[a", "[[:foo:]]", r"\", r"[\", r"\p", r"\x{41"] {
            assert_eq!(translated(odd), None, "{odd}");
        }
        for no_flag_x in ["(?<x>[[])", "(?i)x)[[]", "(?=x)[[]", "(?x"] {
            assert_eq!(translated(no_flag_x), Some(no_flag_x.replace("[[]", r"[\[]")), "{no_flag_x}");
        }
    }

    #[test]
    fn nothing_looks_at_the_whole_rest_again_and_again() {
        let groups = "(?".repeat(2048);
        assert_eq!(translated(&groups).as_deref(), Some(&*groups));
        let mut read = 0;
        assert!(!has_flag_x(groups[1..].chars().inspect(|_| read += 1)));
        assert_eq!(read, "?(".len());

        let classes = format!("[{}", "[:".repeat(2047));
        assert_eq!(translated(&classes), None);
        let mut reader = Reader::new(&classes[1..]);
        assert_eq!((reader.class_name(), reader.may_end_name), (None, false));
        assert_eq!(translated(&format!("{classes}x]")), Some(format!("[{}x]", r"\[:".repeat(2047))));
        let mut reader = Reader::new("[:alpha:][:digit:][:[:");
        assert_eq!((reader.class_name(), reader.may_end_name), (Some("alpha"), true));

        let braces = "{1,".repeat(1365);
        assert_eq!(translated(&braces), Some(braces.replace('{', r"\{")));
    }
}
