//! Pages that name tests as their evidence: each of these tests exists.

use std::collections::BTreeSet;

use crate::files::TextFile;

/// The pages. The last cell of a table's row names the tests.
const PAGES: [&str; 2] = ["docs/compatibility.md", "docs/security.md"];
/// Shorter words in backticks are no names of tests.
const SHORTEST: usize = 12;

pub(super) fn check(files: &[TextFile]) -> Vec<String> {
    let tests: BTreeSet<&str> =
        files.iter().filter(|file| file.is_rust()).flat_map(|file| functions(&file.text)).collect();
    let pages = PAGES.iter().filter_map(|page| files.iter().find(|file| file.path.as_os_str() == *page));
    pages.flat_map(|page| missing(&page.text, &tests).map(|name| sentence(page, name))).collect()
}

fn sentence(page: &TextFile, name: &str) -> String {
    format!("{} names the test {name}, and there is no such function", page.path.display())
}

fn missing<'p>(page: &'p str, tests: &BTreeSet<&str>) -> impl Iterator<Item = &'p str> {
    named(page).filter(|name| !tests.contains(name))
}

/// The names in the last cells. One that begins or ends with an ellipsis stands for several.
fn named(page: &str) -> impl Iterator<Item = &str> {
    let cells = page.lines().filter(|line| line.starts_with('|')).filter_map(|line| {
        let line = line.trim_end().trim_end_matches('|');
        Some(line.rsplit_once('|')?.1)
    });
    let words = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let is_part = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
    words.filter(move |word| word.len() >= SHORTEST && word.contains('_') && word.chars().all(is_part))
}

/// The names of all functions.
fn functions(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("fn ").filter_map(|(at, found)| {
        let rest = &text[at + found.len()..];
        let end = rest.find(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'))?;
        (end > 0).then(|| &rest[..end])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_is_gone_is_named() {
        let tests = functions("async fn it_goes_well() {}\n#[test]\nfn it_goes_on_well() {}\n").collect();
        let page = "| what | test |\n| --- | --- |\n| `not_the_last_cell` | `it_goes_well`, `it_went_on_well`, `…_and_so_on`, `--flag` |\n";
        assert_eq!(missing(page, &tests).collect::<Vec<_>>(), ["it_went_on_well"]);
    }
}
