//! `regex.*`. What an expression may take is limited before it is compiled, and nothing interrupts a search: so what it may cost has a limit.

mod pattern;
mod re2;

use regex_automata::PatternID;
use regex_automata::nfa::thompson::WhichCaptures;
use regex_automata::util::interpolate;
use serde_json::Value;

use self::pattern::Pattern;
use super::arguments::is_no;
use super::{Arguments, BuiltinError, Outcome, list};

pub(super) fn is_valid(arguments: &Arguments) -> Outcome {
    let Some(pattern) = arguments.value(0)?.as_str() else { return Ok(false.into()) };
    match compiled(arguments, pattern, "") {
        Ok(_) => Ok(true.into()),
        Err(BuiltinError::Form(_)) => Ok(false.into()),
        // It may be valid, and a rule that takes it for invalid might allow.
        Err(error) => Err(error),
    }
}

pub(super) fn is_match(arguments: &Arguments) -> Outcome {
    let text = arguments.text(1)?;
    Ok(compiled(arguments, arguments.text(0)?, text)?.regex.is_match(text).into())
}

/// As Go's package regexp splits: an empty match separates nothing where the text begins, and nothing follows one where it ends.
pub(super) fn split(arguments: &Arguments) -> Outcome {
    let (expression, text) = (arguments.text(0)?, arguments.text(1)?);
    let pattern = compiled(arguments, expression, text)?;
    if text.is_empty() && !expression.is_empty() {
        return Ok(vec![Value::from("")].into());
    }
    let (mut parts, mut last, mut start) = (Vec::new(), 0, 0);
    // Two more than there may be parts: the first may separate nothing, and the text after the last may be none.
    for found in pattern.matches(text).take(arguments.work().effort.items() + 2) {
        let found = found?;
        start = found.start();
        if found.end() > 0 {
            parts.push(&text[last..start]);
        }
        last = found.end();
    }
    if start < text.len() {
        parts.push(&text[last..]);
    }
    list(arguments.work(), parts.into_iter().map(Value::from))
}

/// The first matches, as many as the third argument says; all of them where it is negative.
pub(super) fn find_n(arguments: &Arguments) -> Outcome {
    let text = arguments.text(1)?;
    let count = usize::try_from(arguments.integer(2)?).unwrap_or(usize::MAX);
    let pattern = compiled(arguments, arguments.text(0)?, text)?;
    let found = pattern.matches(text).take(count.min(arguments.work().effort.items() + 1));
    let found = found.map(|found| Ok(&text[found?.range()])).collect::<Result<Vec<_>, BuiltinError>>()?;
    list(arguments.work(), found.into_iter().map(Value::from))
}

pub(super) fn replace(arguments: &Arguments) -> Outcome {
    let (text, with) = (arguments.text(0)?, arguments.text(2)?);
    let (work, most) = (arguments.work(), arguments.work().effort.text());
    let pattern = Pattern::new(arguments.text(1)?, text.len(), work, WhichCaptures::All)?;
    let names = pattern.regex.group_info();
    let (mut replaced, mut last) = (String::new(), 0);
    for found in pattern.captures(text, with.len()) {
        let found = found?;
        let Some(whole) = found.get_match() else { continue };
        replaced += &text[last..whole.start()];
        let mut is_full = false;
        let append = |group, replaced: &mut String| {
            let part = found.get_group(group).map_or("", |span| &text[span]);
            is_full |= replaced.len() + part.len() > most;
            // The replacement may name the group again and again.
            if !is_full {
                replaced.push_str(part);
            }
        };
        interpolate::string(with, append, |name| names.to_index(PatternID::ZERO, name), &mut replaced);
        last = whole.end();
        if is_full || replaced.len() > most {
            return Err(work.beyond(BuiltinError::TooLong));
        }
    }
    replaced += &text[last..];
    Ok(replaced.into())
}

/// Whether a text fits a template, in which only what is between the delimiters is an expression.
pub(super) fn template_match(arguments: &Arguments) -> Outcome {
    let (template, text) = (arguments.text(0)?, arguments.text(1)?);
    let one = |place: usize| {
        let mut characters = arguments.text(place)?.chars();
        match (characters.next(), characters.next()) {
            (Some(character), None) => Ok(character),
            _ => Err(is_no("single character", place)),
        }
    };
    let (start, end) = (one(2)?, one(3)?);
    let odd = || BuiltinError::Form("the template has a delimiter without its counterpart");
    let mut pattern = String::from("^");
    let mut rest = template;
    while let Some((plain, after)) = rest.split_once(start) {
        let closing = closing(after, start, end).filter(|_| !plain.contains(end)).ok_or_else(odd)?;
        pattern += &regex_syntax::escape(plain);
        pattern += &format!("({})", &after[..closing]);
        rest = &after[closing + end.len_utf8()..];
    }
    if rest.contains(end) {
        return Err(odd());
    }
    pattern += &regex_syntax::escape(rest);
    pattern.push('$');
    Ok(compiled(arguments, &pattern, text)?.regex.is_match(text).into())
}

/// Where the delimiter that was opened before `text` is closed. Delimiters may be nested, as those of repetitions are.
fn closing(text: &str, start: char, end: char) -> Option<usize> {
    let mut depth = 1;
    for (index, character) in text.char_indices() {
        if character == end {
            depth -= 1;
            if depth == 0 {
                return Some(index);
            }
        } else if character == start {
            depth += 1;
        }
    }
    None
}

/// An expression whose groups do not matter, for this text.
fn compiled<'w>(arguments: &'w Arguments, pattern: &str, text: &str) -> Result<Pattern<'w>, BuiltinError> {
    Pattern::new(pattern, text.len(), arguments.work(), WhichCaptures::Implicit)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use serde_json::json;

    use super::super::{BuiltinError, Effort, Work, run, run_with};

    #[test]
    fn expressions() {
        assert_eq!(run("regex.split", json!(["[, ]+", "a, b c"])), Ok(json!(["a", "b", "c"])));
        assert_eq!(run("regex.find_n", json!(["a.", "paranormal", 2])), Ok(json!(["ar", "an"])));
        assert_eq!(run("regex.find_n", json!(["a.", "paranormal", -1])), Ok(json!(["ar", "an", "al"])));
        assert_eq!(run("regex.replace", json!(["-ab-axxb-", "a(x*)b", "${1}W"])), Ok(json!("-W-xxW-")));
        assert_eq!(run("regex.match", json!(["^a+$", "aaa"])), Ok(json!(true)));
        assert_eq!(run("regex.is_valid", json!(["("])), Ok(json!(false)));
        assert!(run("regex.match", json!(["(", "x"])).is_err());
    }

    /// What OPA 1.22.2 answers, whose v1/topdown/regex.go splits and finds by Go's package regexp.
    #[test]
    fn expressions_are_those_of_re2() {
        for (pattern, text, parts) in [
            (r"\s*", "a b", json!(["a", "b"])),
            (r"\s*", " a b ", json!(["", "a", "b", ""])),
            (r"\s*", "", json!([""])),
            ("", "", json!([])),
            ("", "abc", json!(["a", "b", "c"])),
            ("a*", "baac", json!(["b", "c"])),
            ("a*", "aaa", json!(["", ""])),
            ("b?", "aba", json!(["a", "a"])),
            ("$", "ab", json!(["ab"])),
            ("^", "ab", json!(["ab"])),
            ("z*", "é", json!(["é"])),
            (",", ",a,", json!(["", "a", ""])),
        ] {
            assert_eq!(run("regex.split", json!([pattern, text])), Ok(parts), "{pattern:?} in {text:?}");
        }
        for (pattern, text, found) in [
            (r"\<[a-z]+\>", "<b> c", json!(["<b>"])),
            ("[a&&b]+", "a&b~", json!(["a&b"])),
            ("[a~~b]+", "a~b", json!(["a~b"])),
            ("[--a]+", "a-b.", json!(["a-", "."])),
            ("[+--]+", "+,-.", json!(["+,-"])),
            ("[[a]+", "[a]", json!(["[a"])),
            ("[[a]]+", "[a]]", json!(["a]]"])),
            ("[]a]+", "]a", json!(["]a"])),
            ("[^]a]+", "]ab", json!(["b"])),
            ("[[:alpha:]x]+", "[ax:", json!(["ax"])),
            ("[[:alpha]+", "[ah:", json!(["[ah:"])),
            (r"[\w&&[^\d]]+", "a1&&]]", json!(["&]]"])),
            (r"[\d-z]+", "a-1z", json!(["-1z"])),
            ("[a-b-c]+", "a-c", json!(["a-c"])),
            ("a{,3}", "aaa{,3}", json!(["a{,3}"])),
            (r"\b{start}", "a{start}", json!(["{start}"])),
            (r"\Qa.\E+", "ab a..", json!(["a.."])),
            (r"\101\052", "A*", json!(["A*"])),
            (r"\p{^Greek}", "αa", json!(["a"])),
            ("a*", "baac", json!(["", "aa", ""])),
        ] {
            assert_eq!(run("regex.find_n", json!([pattern, text, -1])), Ok(found), "{pattern:?} in {text:?}");
        }
        for odd in ["[a--b]", r"[a-\d]", "[[:foo:]]", "[]", "[^]", "[z-a]", r"\é", r"\1", r"\C", r"\Z", "a|*"] {
            assert_eq!(run("regex.is_valid", json!([odd])), Ok(json!(false)), "{odd}");
        }
    }

    #[test]
    fn classes_of_letters_and_digits_are_those_of_ascii() {
        for (pattern, fits, other) in [
            (r"^\d+$", "42", "४२"),
            (r"^[\da-f]+$", "4f", "४"),
            (r"^\D+$", "४é", "4"),
            (r"^[\Dx]+$", "४x", "4"),
            (r"^[^\D]+$", "42", "४"),
            (r"^\w+$", "a_1", "é"),
            (r"^\W+$", "é-", "a"),
            (r"^(\w{2})\d$", "ab1", "éa1"),
            (r"^\s+$", " \t\r\n\x0c", "\x0b"),
            (r"^\S+$", "\u{a0}", " "),
            (r"^[\s.]+$", " .", "\u{2003}"),
            (r"(?x) ^ \s \d $ # a comment", " 1", "1"),
            (r"^[\w-]+$", "a-", "é"),
            // All else knows more letters than that.
            (r"^\pL.$", "éé", "1é"),
            (r"^(?i)É$", "é", "e"),
            (r"^[à-ü]$", "é", "e"),
        ] {
            let matches = |text| run("regex.match", json!([pattern, text]));
            assert_eq!((matches(fits), matches(other)), (Ok(json!(true)), Ok(json!(false))), "{pattern}");
        }
        // A border of a word is between `é` and `a` too.
        assert_eq!(run("regex.replace", json!(["éa", r"\b", "|"])), Ok(json!("é|a|")));
        assert_eq!(run("regex.replace", json!(["éa", r"\Ba", "|"])), Ok(json!("éa")));
    }

    #[test]
    fn templates() {
        let fits = |template, text, start, end| run("regex.template_match", json!([template, text, start, end]));
        assert_eq!(fits("urn:foo:{.*}", "urn:foo:bar:baz", "{", "}"), Ok(json!(true)));
        assert_eq!(fits("urn:foo:{[a-z]{3}}", "urn:foo:bar", "{", "}"), Ok(json!(true)));
        assert_eq!(fits("urn:foo:<.*>", "urn:fooo:bar", "<", ">"), Ok(json!(false)));
        assert_eq!(fits("a.b", "axb", "<", ">"), Ok(json!(false)));
        assert!(fits("a<b", "ab", "<", ">").is_err() && fits("a", "a", "<<", ">").is_err());
        assert!(fits("a>b", "ab", "<", ">").is_err() && fits("a>b<.>", "abc", "<", ">").is_err());
    }

    #[test]
    fn what_would_take_minutes_is_refused() {
        assert!(run("regex.match", json!(["(a{1000}){1000}", "a"])).is_err());
        assert!(run("regex.split", json!(["", "a".repeat(1 << 18)])).expect_err("many").contains("items"));
        let doubled = json!(["a".repeat(1 << 16), "a*", "$0$0".repeat(32)]);
        assert!(run("regex.replace", doubled).expect_err("large").contains("above"));
        let text = "a".repeat(1 << 20);
        assert!(
            run("regex.match", json!(["(a|b|ab){500}c", text])).expect_err("large").contains("too large for a text")
        );
        assert_eq!(run("regex.match", json!(["a+b?$", text])), Ok(json!(true)));
    }
    /// Each group of the replacement is the whole text, which would be half a terabyte.
    #[test]
    fn a_replacement_does_not_grow_beyond_the_limit() {
        let text = "a".repeat(1 << 19);
        let error = run("regex.replace", json!([text, "a+", "$0".repeat(250_000)])).expect_err("large");
        assert!(error.contains("above"), "{error}");
        // Groups that are empty cost time nevertheless.
        let error = run("regex.replace", json!([text, "()a", "$1".repeat(250_000)])).expect_err("long");
        assert!(error.contains("takes too long"), "{error}");
        assert_eq!(run("regex.replace", json!([text, "(a+)", "${1}b$1"])), Ok(json!(format!("{text}b{text}"))));
        let named = json!(["a-b", "(?P<first>.)-(?P<last>.)", "$last-$first$3$none$$"]);
        assert_eq!(run("regex.replace", named), Ok(json!("b-a$")));
    }

    #[test]
    fn expressions_have_a_size_before_they_are_compiled() {
        let valid = |pattern: &str| run("regex.is_valid", json!([pattern]));
        let refused = |pattern: &str| valid(pattern).expect_err("refused");
        assert_eq!(valid(&"a".repeat(4096)), Ok(json!(true)));
        assert!(refused(&"a".repeat(4097)).contains("above 4096 bytes"));
        assert!(refused(r"\pL".repeat(1 << 19).as_str()).contains("above 4096 bytes"));
        assert!(refused(&r"\w".repeat(257)).contains("too many classes"));
        for (flags, class) in [
            ("i", r"\pL"),
            ("i", "[!-\u{10ffff}]"),
            ("i", r"[\W]"),
            ("i", "[[:^alpha:]]"),
            // RE2 has no classes in classes, but with a flag that it does not have either, they are what they are elsewhere.
            ("ix", "[[^a]]"),
            ("ix", "[a&&b]"),
        ] {
            let pattern = class.repeat(17);
            assert!(refused(&format!("(?{flags}){pattern}")).contains("too many classes"), "{class}");
            assert!(refused(&format!("a(?{flags}:{pattern})")).contains("too many classes"), "{class}");
            assert!(!valid(&pattern).is_err_and(|error| error.contains("classes")), "{class}");
        }
        assert!(refused("((a{100}){100}){100}").contains("too large"));
        let groups = json!(["a", "(a)".repeat(1300), ""]);
        assert!(run("regex.replace", groups).expect_err("large").contains("too many groups"));
        assert!(refused(&format!("{}{}", "(".repeat(110), ")".repeat(110))).contains("too large"));
        let usual = r"^(?i)[\w.-]+@(?:[\pL\d-]+\.)+(?:[a-z]{2,63}|\d{1,3})$";
        assert_eq!(run("regex.match", json!([usual, "Joerg@Exämple.ORG"])), Ok(json!(true)));
        assert_eq!(run("regex.match", json!([usual, "Jörg@Exämple.ORG"])), Ok(json!(false)), "as in OPA");
    }

    #[test]
    fn matches_that_each_look_at_the_whole_text_are_refused() {
        let text = "A".repeat(1 << 21);
        let refused = |name, arguments| {
            let error = run(name, arguments).expect_err("long");
            assert!(error.contains("takes too long"), "{name}: {error}");
        };
        refused("regex.find_n", json!(["A*b|A", text, -1]));
        refused("regex.split", json!(["A*b|A", text]));
        refused("regex.replace", json!([text, "A*b|A", ""]));
        // The same with a text in which each search ends soon.
        let text = "A,".repeat(90_000);
        let found = run("regex.split", json!([",", text])).expect("parts");
        assert_eq!(found.as_array().map(Vec::len), Some(90_001));
        assert_eq!(run("regex.replace", json!([text, ",", ""])), Ok(json!("A".repeat(90_000))));
    }

    #[test]
    fn no_search_begins_after_the_deadline() {
        for (name, arguments) in [("regex.match", json!(["a", "a"])), ("regex.replace", json!(["a", "a", ""]))] {
            let error = run_with(name, arguments, Work::new(Effort::Full, Instant::now())).expect_err("late");
            assert!(matches!(error, BuiltinError::TimedOut), "{name}: {error}");
        }
    }

    #[test]
    fn what_takes_more_than_a_tick_is_left_to_another_thread() {
        let hurried = |pattern: &str, text: &str| {
            let work = Work::new(Effort::Little, Instant::now() + Duration::from_secs(3600));
            run_with("regex.match", json!([pattern, text]), work).map_err(|error| error.is_effort())
        };
        assert_eq!(hurried(r"^[a-z0-9.-]+/[\w.-]+:v?\d+$", "registry.example.org/a:v1"), Ok(json!(true)));
        assert_eq!(hurried("(", ""), Err(false));
        assert_eq!(hurried("a{5000}", ""), Err(true));
        assert_eq!(hurried("a{50}", &"a".repeat(50_000)), Err(true));
        assert_eq!(hurried(r"(?i)\pL", ""), Err(true));
    }
}
