//! Pages that name tests as their evidence, in the last cell of a table's row.

use crate::files::TextFile;

/// The pages.
pub(crate) const PAGES: [&str; 2] = ["docs/compatibility.md", "docs/security.md"];

/// Shorter words in backticks are not names of tests.
const SHORTEST: usize = 12;

/// The longest title of a row, in characters.
const LONGEST_TITLE: usize = 50;

/// A row of a page, with the tests that its last cell names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    /// The first cell, cut.
    pub(crate) title: String,
    pub(crate) tests: Vec<String>,
}

/// The rows of a page that name tests. A name that begins or ends with an ellipsis stands for several and is left out.
pub(crate) fn named(page: &str) -> Vec<Named> {
    let is_part = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
    let is_test = |word: &&str| word.len() >= SHORTEST && word.contains('_') && word.chars().all(is_part);
    let row = |line: &str| {
        let line = line.strip_prefix('|')?.trim_end().trim_end_matches('|');
        let (before, last) = line.rsplit_once('|')?;
        let title = before.split('|').next().unwrap_or_default().trim();
        let tests: Vec<_> = last.split('`').skip(1).step_by(2).filter(is_test).map(str::to_owned).collect();
        (!tests.is_empty()).then(|| Named { title: title.chars().take(LONGEST_TITLE).collect(), tests })
    };
    page.lines().filter_map(row).collect()
}

/// The pages among these files.
pub(crate) fn of(files: &[TextFile]) -> impl Iterator<Item = &TextFile> {
    PAGES.into_iter().filter_map(move |page| files.iter().find(|file| file.path.as_os_str() == page))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_cell_names_tests() {
        let page = "| what | here | test |\n| --- | --- | --- |\n\
            | `one` of them | `not_the_last_cell` | `it_goes_well`, `it_went_on_well`, `…_and_so_on`, `--flag` |\n\
            | two | works | unit tests |\nText with `a_name_in_it` | here\n";
        let tests = ["it_goes_well", "it_went_on_well"].map(str::to_owned).to_vec();
        assert_eq!(named(page), [Named { title: "`one` of them".to_owned(), tests }]);
    }
}
