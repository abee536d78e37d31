//! `regex.*`. Matching takes time in proportion to the expression and the text, and nothing interrupts it: so their product has a limit.

use regex::Regex;
use regex_automata::nfa::thompson::{Compiler, Config};
use serde_json::Value;

use super::arguments::is_no;
use super::{Arguments, BuiltinError, MAX_TEXT, Outcome, list};

/// The most memory of a compiled expression, in bytes.
const MAX_SIZE: usize = 1 << 20;
/// The largest product of an expression's states and a text's bytes: a tenth of a second at worst.
const MAX_WORK: usize = 50_000_000;

pub(super) fn is_valid(arguments: &Arguments) -> Outcome {
    Ok(arguments.value(0)?.as_str().is_some_and(|pattern| compiled(pattern, 0).is_ok()).into())
}

pub(super) fn is_match(arguments: &Arguments) -> Outcome {
    let text = arguments.text(1)?;
    Ok(compiled(arguments.text(0)?, text.len())?.is_match(text).into())
}

pub(super) fn split(arguments: &Arguments) -> Outcome {
    let text = arguments.text(1)?;
    list(compiled(arguments.text(0)?, text.len())?.split(text).map(Value::from))
}

/// The first matches, as many as the third argument says; all of them where it is negative.
pub(super) fn find_n(arguments: &Arguments) -> Outcome {
    let text = arguments.text(1)?;
    let count = usize::try_from(arguments.integer(2)?).unwrap_or(usize::MAX);
    let regex = compiled(arguments.text(0)?, text.len())?;
    list(regex.find_iter(text).take(count).map(|found| Value::from(found.as_str())))
}

pub(super) fn replace(arguments: &Arguments) -> Outcome {
    let (text, with) = (arguments.text(0)?, arguments.text(2)?);
    let regex = compiled(arguments.text(1)?, text.len())?;
    let (mut replaced, mut last) = (String::new(), 0);
    for found in regex.captures_iter(text) {
        let whole = found.get_match();
        replaced += &text[last..whole.start()];
        found.expand(with, &mut replaced);
        last = whole.end();
        if replaced.len() > MAX_TEXT {
            return Err(BuiltinError::TooLong);
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
    let mut pattern = String::from("^");
    let mut rest = template;
    while let Some((plain, after)) = rest.split_once(start) {
        let closing = closing(after, start, end);
        let closing = closing.ok_or(BuiltinError::Form("the template has a delimiter without its counterpart"))?;
        pattern += &regex::escape(plain);
        pattern += &format!("({})", &after[..closing]);
        rest = &after[closing + end.len_utf8()..];
    }
    pattern += &regex::escape(rest);
    pattern.push('$');
    Ok(compiled(&pattern, text.len())?.is_match(text).into())
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

fn compiled(pattern: &str, text: usize) -> Result<Regex, BuiltinError> {
    let odd = || BuiltinError::Form("it is not a regular expression, or it is too large");
    let config = Config::new().nfa_size_limit(Some(MAX_SIZE));
    let nfa = Compiler::new().configure(config).build(pattern).map_err(|_| odd())?;
    if nfa.states().len().saturating_mul(text) > MAX_WORK {
        return Err(BuiltinError::TooMuchWork("the regular expression is too large for a text of this length"));
    }
    regex::RegexBuilder::new(pattern).size_limit(MAX_SIZE).dfa_size_limit(MAX_SIZE).build().map_err(|_| odd())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::run;

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

    #[test]
    fn templates() {
        let fits = |template, text, start, end| run("regex.template_match", json!([template, text, start, end]));
        assert_eq!(fits("urn:foo:{.*}", "urn:foo:bar:baz", "{", "}"), Ok(json!(true)));
        assert_eq!(fits("urn:foo:{[a-z]{3}}", "urn:foo:bar", "{", "}"), Ok(json!(true)));
        assert_eq!(fits("urn:foo:<.*>", "urn:fooo:bar", "<", ">"), Ok(json!(false)));
        assert_eq!(fits("a.b", "axb", "<", ">"), Ok(json!(false)));
        assert!(fits("a<b", "ab", "<", ">").is_err() && fits("a", "a", "<<", ">").is_err());
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
}
