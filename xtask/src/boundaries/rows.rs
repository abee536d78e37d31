//! The fault catalogue (docs/design/faults.md): each of its rows that this version answers for has a test named after it, or a line in
//! `tests/faults/untested.txt` that says why not.

use std::collections::{BTreeMap, BTreeSet};

use crate::files::TextFile;

/// Rows that this version answers for.
const ROWS: &str = "L01-L27 \
    M01-M09 M11-M13 M15-M18 M20-M28 M30-M32 \
    S01-S06 \
    V01-V22 \
    E01-E18 \
    H01-H22 \
    W01-W16 \
    K01-K12 \
    R01-R32 \
    X01-X10 \
    Z01-Z20 \
    B01-B10";

const UNTESTED: &str = "tests/faults/untested.txt";

/// What a test of a row is called before the row: `fault_l09_truncated_blob`.
const PREFIX: &str = concat!("fault", "_");

pub(super) fn check(files: &[TextFile]) -> Vec<String> {
    let tested: BTreeSet<_> = files
        .iter()
        .filter(|file| file.is_rust() && !file.path.starts_with("xtask"))
        .flat_map(|file| tested_rows(&file.text))
        .collect();
    let untested = files.iter().find(|file| file.path.as_os_str() == UNTESTED);
    compare(&expand(ROWS), &tested, &untested_rows(untested.map_or("", |file| &file.text)))
}

fn compare(rows: &[String], tested: &BTreeSet<String>, untested: &BTreeMap<String, String>) -> Vec<String> {
    let mut problems = Vec::new();
    for row in rows.iter().filter(|row| !tested.contains(*row) && !untested.contains_key(*row)) {
        let name = row.to_lowercase();
        problems.push(format!("{row} has no test {PREFIX}{name}_… and no line in {UNTESTED}"));
    }
    for (row, reason) in untested {
        if tested.contains(row) {
            problems.push(format!("{row} has a test and is listed in {UNTESTED} still"));
        }
        if reason.is_empty() {
            problems.push(format!("{row} is listed in {UNTESTED} without a reason"));
        }
        if self::row(&row.to_lowercase()).is_none() {
            problems.push(format!("{row} is listed in {UNTESTED} but is no row: begin each line with a row, like L05"));
        }
    }
    problems
}

/// `M01-M03 W13` as the ids it stands for.
fn expand(rows: &str) -> Vec<String> {
    let one = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let letter = first[..1].to_owned();
        let number = |row: &str| row[1..].parse::<u32>().expect("rows above are a letter and a number");
        (number(first)..=number(last)).map(move |number| format!("{letter}{number:02}"))
    };
    rows.split_whitespace().flat_map(one).collect()
}

/// Rows that names of tests begin with; `fault_v01_v02_…` stands for two.
fn tested_rows(text: &str) -> BTreeSet<String> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let names = code.flat_map(|line| line.match_indices(PREFIX).map(|(at, _)| &line[at + PREFIX.len()..]));
    let rows = |name: &str| -> Vec<String> { name.split('_').map_while(row).collect() };
    names.flat_map(rows).collect()
}

/// The row that a part of a test's name stands for.
fn row(part: &str) -> Option<String> {
    let id = part.split(|letter: char| !letter.is_ascii_alphanumeric()).next()?;
    let (letter, number) = (id.chars().next()?, id.get(1..)?);
    let is_row = letter.is_ascii_lowercase() && number.len() == 2 && number.bytes().all(|digit| digit.is_ascii_digit());
    is_row.then(|| id.to_uppercase())
}

/// Lines like `L05 needs a registry`, after the row their reason; `#` begins a comment.
fn untested_rows(text: &str) -> BTreeMap<String, String> {
    let line = |line: &str| {
        let (row, reason) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        (row.trim_end_matches(':').to_owned(), reason.trim().to_owned())
    };
    text.lines().map(str::trim).filter(|text| !text.is_empty() && !text.starts_with('#')).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(rows: &[&str]) -> BTreeSet<String> {
        rows.iter().map(|&row| row.to_owned()).collect()
    }

    #[test]
    fn ranges_stand_for_their_rows() {
        assert_eq!(expand("L09 M01-M03"), ["L09", "M01", "M02", "M03"]);
        assert_eq!(expand(ROWS).len(), 223);
    }

    #[test]
    fn names_of_tests_tell_their_rows() {
        let text = format!("async fn {PREFIX}l09_truncated_blob() {{\nfn {PREFIX}v01_v02() {{\n// {PREFIX}m01\n");
        assert_eq!(tested_rows(&text), set(&["L09", "V01", "V02"]));
        assert_eq!(tested_rows(&format!("fn {PREFIX}list() {{ case(\"{PREFIX}e12\") }}")), set(&["E12"]));
    }

    #[test]
    fn untested_rows_have_reasons() {
        let rows = untested_rows("# not yet\nM02: needs a mutator\n\nX01 no\n");
        let expected = [("M02", "needs a mutator"), ("X01", "no")].map(|(row, why)| (row.to_owned(), why.to_owned()));
        assert_eq!(rows, BTreeMap::from(expected));
    }

    #[test]
    fn a_row_is_tested_or_listed_and_never_both() {
        let rows = expand("L01 L02 L03");
        let untested = untested_rows("L02 hard\nL01 hard\n");
        assert_eq!(
            compare(&rows, &set(&["L01"]), &untested),
            [
                format!("L03 has no test {PREFIX}l03_… and no line in {UNTESTED}"),
                format!("L01 has a test and is listed in {UNTESTED} still"),
            ],
        );
    }

    #[test]
    fn a_line_of_the_list_has_a_row_and_a_reason() {
        let problems = compare(&expand("L01"), &set(&["L01"]), &untested_rows("later\n"));
        assert_eq!(problems.len(), 2, "{problems:?}");
    }
}
