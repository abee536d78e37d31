//! The fault catalogue, read from its page, and the rows that tests are named after.

use std::collections::BTreeMap;

use crate::files::TextFile;

/// The page with the rows.
pub(crate) const PAGE: &str = "docs/design/faults.md";

/// The list of the rows without a test.
pub(crate) const UNTESTED: &str = "tests/faults/untested.txt";

/// The prefix of the names of tests of a row: `fault_l09_truncated_blob`.
pub(crate) const PREFIX: &str = concat!("fault", "_");

/// One row of the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Its id, such as `L09`.
    pub(crate) id: String,
    /// What breaks.
    pub(crate) fault: String,
    /// What the user sees of it.
    pub(crate) seen: String,
    /// The heading above its table, without the number.
    pub(crate) section: String,
}

/// The catalogue of these files.
pub(crate) fn of(files: &[TextFile]) -> Vec<Row> {
    rows(text(files, PAGE))
}

/// The rows without a test in these files, each with its reason.
pub(crate) fn untested_of(files: &[TextFile]) -> BTreeMap<String, String> {
    untested(text(files, UNTESTED))
}

fn text<'f>(files: &'f [TextFile], path: &str) -> &'f str {
    files.iter().find(|file| file.path.as_os_str() == path).map_or("", |file| &file.text)
}

/// The rows of all tables whose first cell is the id of a row.
fn rows(page: &str) -> Vec<Row> {
    let (mut rows, mut section) = (Vec::new(), "");
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            section = heading.split_once(". ").map_or(heading, |(_, title)| title);
        }
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        if let ["", id, fault, seen, ..] = cells[..]
            && row(&id.to_lowercase()).is_some_and(|row| row == id)
        {
            let [id, fault, seen, section] = [id, fault, seen, section].map(str::to_owned);
            rows.push(Row { id, fault, seen, section });
        }
    }
    rows
}

/// Lines like `L05 needs a registry`: a row, then its reason. `#` begins a comment.
pub(crate) fn untested(text: &str) -> BTreeMap<String, String> {
    let line = |line: &str| {
        let (row, reason) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        (row.trim_end_matches(':').to_owned(), reason.trim().to_owned())
    };
    text.lines().map(str::trim).filter(|text| !text.is_empty() && !text.starts_with('#')).map(line).collect()
}

/// The rows at the beginning of a test's name; `fault_v01_v02_…` stands for two.
pub(crate) fn rows_of(test: &str) -> Vec<String> {
    test.strip_prefix(PREFIX).map_or_else(Vec::new, |name| name.split('_').map_while(row).collect())
}

/// The row that a part of a test's name stands for.
pub(crate) fn row(part: &str) -> Option<String> {
    let (letter, number) = (part.chars().next()?, part.get(1..)?);
    let is_row = letter.is_ascii_lowercase() && number.len() == 2 && number.bytes().all(|digit| digit.is_ascii_digit());
    is_row.then(|| part.to_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_in_tables_below_headings() {
        let page = "# Catalogue\n\n## 2. Words\n\n| id | invariant |\n| --- | --- |\n| I1 | A canary answers. |\n\n\
            ## 4. Fetching (loader)\n\n| id | fault | what the user sees |\n| --- | --- | --- |\n\
            | L01 | Source refuses connections | As it is |\n| L02 | Source never answers | As L01 |\n\nA row like L03 | here | is text.\n";
        let row = |id: &str, fault: &str, seen: &str| {
            let [id, fault, seen, section] = [id, fault, seen, "Fetching (loader)"].map(str::to_owned);
            Row { id, fault, seen, section }
        };
        let expected =
            [row("L01", "Source refuses connections", "As it is"), row("L02", "Source never answers", "As L01")];
        assert_eq!(rows(page), expected);
    }

    #[test]
    fn names_of_tests_tell_their_rows() {
        assert_eq!(rows_of(&format!("{PREFIX}l09_truncated_blob")), ["L09"]);
        assert_eq!(rows_of(&format!("{PREFIX}v01_v02")), ["V01", "V02"]);
        assert_eq!(rows_of(&format!("{PREFIX}v01_full_of_v02")), ["V01"]);
        assert_eq!(rows_of(&format!("{PREFIX}list")), Vec::<String>::new());
        assert_eq!(rows_of("the_default_l09"), Vec::<String>::new());
    }

    #[test]
    fn untested_rows_have_reasons() {
        let rows = untested("# not yet\nM02: needs a mutator\n\nX01 no\n");
        let expected = [("M02", "needs a mutator"), ("X01", "no")].map(|(row, why)| (row.to_owned(), why.to_owned()));
        assert_eq!(rows, BTreeMap::from(expected));
    }
}
