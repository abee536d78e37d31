//! Words: patterns of stilted English that once were all over the repository, each with the words to use instead.
//!
//! They are looked for in Rust, Go, Lua, shell scripts, Markdown, YAML, TOML, templates and the Dockerfile. In Rust they are looked for in comments and strings: code has no
//! spaces inside a name, and single words, which may be names, count only after `//` or an opening quote.

use crate::files::TextFile;

/// Phrases, as whole words in any case, and what to write instead.
const PHRASES: [(&str, &str); 24] = [
    ("for who", "name the user or program: \"for users who\", \"for the program that\""),
    ("of who", "name the user or program"),
    ("to who", "name the user or program"),
    ("by who", "name the user or program"),
    ("whoever", "name the user or program: \"a user who\", \"a program that\", \"every client\""),
    ("whom", "name the user or program, or turn the sentence round"),
    ("nobody's", "say what is the case: \"of an unknown policy\", \"not ours\""),
    ("everybody's", "say of which users or programs"),
    ("is told", "say how: \"gets\", \"is logged\", \"is reported\", \"is shown\", \"is set to\""),
    ("are told", "say how: \"get\", \"are logged\", \"are reported\", \"are shown\", \"are set to\""),
    ("of before", "\"earlier\", \"previous\""),
    ("has not the", "\"does not have the\""),
    ("have not the", "\"do not have the\""),
    ("is none that", "\"is not one that\""),
    ("the host is none", "\"not a valid host\""),
    ("more than nothing", "\"at least one\", \"not empty\""),
    ("what there is", "name the things"),
    ("goes its way", "\"works as intended\""),
    ("at the most", "\"at most\""),
    ("anew", "\"again\""),
    ("not any more", "\"no longer\""),
    ("trusted no more", "\"no longer trusted\""),
    ("says nothing of", "\"does not mention\", \"does not depend on\""),
    ("as far as anybody", "say what is known"),
];

/// Things that "are not" something else: "is no list" is "is not a list". "There is no list" is plain.
const KINDS: [&str; 14] = [
    "call",
    "dns name",
    "duration",
    "file",
    "function",
    "json",
    "key",
    "list",
    "module",
    "number",
    "object",
    "policy",
    "trust root",
    "yaml",
];

/// Doc comments that say nothing by themselves.
const FRAGMENTS: [&str; 20] = [
    "Whose.",
    "Which.",
    "Why.",
    "Where.",
    "When.",
    "Who.",
    "None.",
    "Decides.",
    "All of it.",
    "All of them.",
    "How.",
    "How long.",
    "How often.",
    "How many.",
    "Since when.",
    "These.",
    "What.",
    "What was found.",
    "Where from.",
    "Why, in words.",
];

/// Endings of the files that are read by people.
const ENDINGS: [&str; 10] = ["rs", "go", "lua", "sh", "md", "yaml", "yml", "toml", "tpl", "txt"];

/// This file, which lists the phrases.
const OWN: &str = "xtask/src/boundaries/words.rs";

pub(super) fn check(files: &[TextFile]) -> Vec<String> {
    let is_read = |file: &&TextFile| {
        let ending = file.path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        (ENDINGS.contains(&ending) || file.path.ends_with("Dockerfile")) && !file.path.starts_with(OWN)
    };
    files.iter().filter(is_read).flat_map(stilted).collect()
}

fn stilted(file: &TextFile) -> Vec<String> {
    let mut problems = Vec::new();
    let mut is_inside = false;
    for (index, line) in file.text.lines().enumerate() {
        let place = format!("{}:{}", file.path.display(), index + 1);
        let lower = line.to_lowercase();
        for (phrase, instead) in PHRASES.iter().filter(|(phrase, _)| has_words(&lower, phrase, file.is_rust())) {
            problems.push(format!("{place} has \"{phrase}\"; write instead: {instead}"));
        }
        for words in denials(&lower) {
            problems.push(format!("{place} has \"{words}\"; write instead: \"is not a …\""));
        }
        let doc = file.is_rust().then(|| line.trim_start().strip_prefix("///")).flatten();
        if let Some(text) = doc.map(str::trim).filter(|text| !is_inside && is_fragment(text)) {
            problems
                .push(format!("{place} opens with \"{text}\"; write instead: a sentence that says what the item is"));
        }
        is_inside = doc.is_some();
    }
    problems
}

/// Which words of a line in lower case deny that one thing is another by "no".
fn denials(line: &str) -> impl Iterator<Item = &str> {
    ["is no ", "are no "].into_iter().flat_map(move |verb| {
        line.match_indices(verb).filter_map(move |(at, _)| {
            let (before, after) = (&line[..at], &line[at + verb.len()..]);
            let kind = KINDS.iter().find(|kind| {
                let rest = after.strip_prefix(**kind);
                rest.is_some_and(|rest| !rest.strip_prefix('s').unwrap_or(rest).starts_with(char::is_alphanumeric))
            })?;
            // At the beginning of a line, "there" may stand at the end of the line before.
            let plain = before.trim_start_matches(['/', '!', '#', ' ']);
            let is_plain = plain.is_empty() || plain.trim_end().ends_with("there");
            (before.ends_with(' ') && !is_plain).then(|| &line[at..at + verb.len() + kind.len()])
        })
    })
}

/// Whether a doc comment that opens with this line does not name its item.
fn is_fragment(text: &str) -> bool {
    FRAGMENTS.contains(&text) || text.starts_with("Of ")
}

/// Whether a line has these words, and not only as a part of other words or, in Rust, as a name.
fn has_words(line: &str, words: &str, is_rust: bool) -> bool {
    let is_letter = |letter: Option<char>| letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_');
    let may_be_name = is_rust && !words.contains(' ');
    line.match_indices(words).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + words.len()..]);
        let is_text = before.contains("//") || before.matches('"').count() % 2 == 1;
        !is_letter(before.chars().next_back()) && !is_letter(after.chars().next()) && (is_text || !may_be_name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_one(path: &str, text: &str) -> Vec<String> {
        check(&[TextFile { path: path.into(), text: text.to_owned() }])
    }

    #[test]
    fn a_phrase_is_named_with_its_line_and_what_to_write() {
        let expected = "a.md:2 has \"of before\"; write instead: \"earlier\", \"previous\"";
        assert_eq!(check_one("a.md", "One.\nThe keys Of Before.\n"), [expected]);
        assert_eq!(check_one("a.rs", "// The keys of before.\n").len(), 1);
    }

    #[test]
    fn a_part_of_a_word_is_no_phrase() {
        assert_eq!(check_one("a.rs", "fn is_told() {} // of beforehand, renewal\n"), Vec::<String>::new());
        assert_eq!(check_one("a.wasm", "of before"), Vec::<String>::new());
    }

    #[test]
    fn a_name_in_code_is_no_phrase() {
        assert_eq!(check_one("a.rs", "if !anew { self.whom.clear(); }\n"), Vec::<String>::new());
        assert_eq!(check_one("a.rs", "say(\"made anew\"); // For whom.\n").len(), 2);
    }

    #[test]
    fn a_thing_is_not_another_rather_than_no_other() {
        let expected = "a.md:1 has \"is no list\"; write instead: \"is not a …\"";
        assert_eq!(check_one("a.md", "It is no list.\n"), [expected]);
        assert_eq!(check_one("Dockerfile", "# Tokens are no modules.\n").len(), 1);
        assert_eq!(check_one("a.rs", "// There is no list: this is no listing, and it is\n// no list.\n").len(), 0);
        assert_eq!(check_one("a.rs", "// What counts where there\n// is no list.\n").len(), 0);
    }

    #[test]
    fn a_doc_comment_that_names_nothing_is_named() {
        assert_eq!(check_one("a.rs", "/// Why.\na: u8,\n/// Of a namespace.\nb: u8,\n").len(), 2);
        assert_eq!(check_one("a.rs", "/// The list\n/// Of names.\na: u8,\n"), Vec::<String>::new());
    }
}
