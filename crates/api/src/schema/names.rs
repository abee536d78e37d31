//! The syntax of names, for which the schema has regular expressions.

/// Words that are reserved in an expression.
const KEYWORDS: [&str; 21] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "false",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
    "namespace",
    "null",
    "package",
    "return",
    "true",
    "var",
    "void",
    "while",
];

/// Whether this can be the name of a group's member in an expression.
pub(crate) fn is_member(name: &str) -> bool {
    let letter = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b'_';
    let bytes = name.as_bytes();
    (1..=63).contains(&bytes.len())
        && bytes.first().is_some_and(letter)
        && bytes.iter().all(|byte| letter(byte) || byte.is_ascii_digit())
        && !KEYWORDS.contains(&name)
}

/// Whether this is a DNS label, of any length.
pub(crate) fn is_label(name: &str) -> bool {
    framed(name, |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit(), b"-")
}

/// Whether this is a qualified name of Kubernetes, that is a name with or without a domain and `/` in front.
pub(crate) fn is_qualified(name: &str) -> bool {
    let (domain, own) = name.split_once('/').map_or((None, name), |(domain, own)| (Some(domain), own));
    domain.is_none_or(|domain| framed(domain, |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit(), b"-."))
        && own.len() <= 63
        && framed(own, |byte| byte.is_ascii_alphanumeric(), b"-_.")
}

/// Whether the name begins and ends with one kind of characters, and has only those and the `between` ones inside.
fn framed(name: &str, end: fn(&u8) -> bool, between: &[u8]) -> bool {
    let bytes = name.as_bytes();
    bytes.first().is_some_and(end)
        && bytes.last().is_some_and(end)
        && bytes.iter().all(|byte| end(byte) || between.contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_can_be_called() {
        assert!(["a", "_a1", "signed_by_us"].into_iter().all(is_member));
        assert!(!["", "1a", "a-b", "in", "ä"].into_iter().any(is_member));
    }

    #[test]
    fn names_end_as_they_begin() {
        assert!(["a", "a-1"].into_iter().all(is_label));
        assert!(!["", "-a", "a-", "A", "a.b"].into_iter().any(is_label));
        assert!(["a", "not-a-node", "example.com/My_name"].into_iter().all(is_qualified));
        assert!(!["", "-a", "a/", "/a", "a/b/c", "a b"].into_iter().any(is_qualified));
    }
}
