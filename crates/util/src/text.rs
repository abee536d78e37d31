//! Makes untrusted text safe to show.

/// Cuts `text` to at most `max_bytes` bytes at a character boundary; `…` marks the cut and counts as part of the
/// length.
pub fn truncate(text: &str, max_bytes: usize) -> String {
    const MARK: &str = "…";
    if text.len() <= max_bytes {
        return text.to_owned();
    }
    let mut end = max_bytes.saturating_sub(MARK.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{MARK}", &text[..end])
}

/// Makes untrusted text safe for terminals, logs and status: control characters (terminal escapes among them) become a
/// space, runs of white space become one space, bidirectional overrides are removed, and the rest is cut to `max_bytes`
/// bytes.
pub fn clean(text: &str, max_bytes: usize) -> String {
    // Reading stops soon after the limit, so that a text of many megabytes costs no more than a short one.
    let mut out = String::with_capacity(max_bytes.min(text.len()) + 4);
    let mut space = false;
    for c in text.chars() {
        if c.is_control() || c.is_whitespace() {
            space = !out.is_empty();
            continue;
        }
        if matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}') {
            continue;
        }
        if space {
            out.push(' ');
            space = false;
        }
        out.push(c);
        if out.len() > max_bytes {
            break;
        }
    }
    truncate(&out, max_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_text_is_untouched() {
        assert_eq!(clean("image is not allowed", 64), "image is not allowed");
    }

    #[test]
    fn terminal_codes_and_line_breaks_become_spaces() {
        assert_eq!(clean("a\u{1b}[31mred\r\nlevel=info", 64), "a [31mred level=info");
    }

    #[test]
    fn a_long_text_is_cut_at_a_character_boundary() {
        assert_eq!(truncate("äöüß", 6), "ä…");
        assert!(clean(&"x".repeat(1 << 20), 1024).len() <= 1024);
    }
}
