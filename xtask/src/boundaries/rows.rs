//! The fault catalogue (docs/design/faults.md): each of its rows has a test named after it, or a line in `tests/faults/untested.txt` with
//! the reason why not. The test run counts whether the tests run and pass.

use std::collections::{BTreeMap, BTreeSet};

use crate::evidence::catalogue::{self, PAGE, PREFIX, UNTESTED};
use crate::evidence::sources;
use crate::files::TextFile;

/// The rows. Ids are stable, so none leaves this list; it is compared with the page.
const ROWS: &str = "L01-L27 \
    M01-M32 \
    S01-S06 \
    V01-V22 \
    E01-E18 \
    H01-H22 \
    W01-W16 \
    K01-K12 \
    R01-R32 \
    X01-X10 \
    Z01-Z25 \
    B01-B10 \
    C01-C15";

pub(super) fn check(files: &[TextFile]) -> Vec<String> {
    let tested: BTreeSet<_> =
        sources::tests(files).iter().flat_map(|function| catalogue::rows_of(&function.name)).collect();
    let page: Vec<_> = catalogue::of(files).into_iter().map(|row| row.id).collect();
    let rows = expand(ROWS);
    let mut problems = differences(&rows, &page);
    problems.extend(compare(&rows, &tested, &catalogue::untested_of(files)));
    problems
}

/// The differences between the list of rows and the page.
fn differences(rows: &[String], page: &[String]) -> Vec<String> {
    let mut problems = Vec::new();
    for row in rows {
        match page.iter().filter(|other| *other == row).count() {
            1 => {}
            0 => problems.push(format!("{row} is a row and {PAGE} has none of that id")),
            count => problems.push(format!("{PAGE} has {count} rows {row}")),
        }
    }
    let unknown = page.iter().filter(|row| !rows.contains(row));
    problems.extend(unknown.map(|row| format!("{PAGE} has the row {row}, which is not listed in ROWS")));
    problems
}

fn compare(rows: &[String], tested: &BTreeSet<String>, untested: &BTreeMap<String, String>) -> Vec<String> {
    let mut problems = Vec::new();
    for row in rows.iter().filter(|row| !tested.contains(*row) && !untested.contains_key(*row)) {
        let name = row.to_lowercase();
        problems.push(format!("{row} has no test {PREFIX}{name}_… and no line in {UNTESTED}"));
    }
    for row in tested.iter().filter(|row| !rows.contains(row)) {
        problems.push(format!("a test is named after {row}, which is no row"));
    }
    for (row, reason) in untested {
        if tested.contains(row) {
            problems.push(format!("{row} has a test and is listed in {UNTESTED} still"));
        }
        if reason.is_empty() {
            problems.push(format!("{row} is listed in {UNTESTED} without a reason"));
        }
        if !rows.contains(row) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn set(rows: &[&str]) -> BTreeSet<String> {
        rows.iter().map(|&row| row.to_owned()).collect()
    }

    #[test]
    fn ranges_stand_for_their_rows() {
        assert_eq!(expand("L09 M01-M03"), ["L09", "M01", "M02", "M03"]);
        assert_eq!(expand(ROWS).len(), 247);
    }

    #[test]
    fn the_list_and_the_page_have_the_same_rows() {
        assert_eq!(differences(&expand("L01 L02"), &expand("L02 L01")), Vec::<String>::new());
        assert_eq!(
            differences(&expand("L01 L02"), &expand("L02 L03 L02")),
            [
                format!("L01 is a row and {PAGE} has none of that id"),
                format!("{PAGE} has 2 rows L02"),
                format!("{PAGE} has the row L03, which is not listed in ROWS"),
            ],
        );
    }

    #[test]
    fn only_a_test_counts_for_a_row() {
        let text = format!(
            "#[test]\nfn {PREFIX}l01_one() {{ case(\"{PREFIX}l02_two\") }}\nfn {PREFIX}l03_three() {{}}\n// {PREFIX}l04_four\n"
        );
        let problems = check(&[TextFile { path: "tests/tests/faults/main.rs".into(), text }]);
        let untested = |row: &str| problems.iter().any(|problem| problem.starts_with(&format!("{row} has no test")));
        assert_eq!(["L01", "L02", "L03", "L04"].map(untested), [false, true, true, true], "{problems:#?}");
    }

    #[test]
    fn a_row_is_tested_or_listed_and_never_both() {
        let rows = expand("L01 L02 L03");
        let untested = catalogue::untested("L02 hard\nL01 hard\n");
        assert_eq!(
            compare(&rows, &set(&["L01", "L05"]), &untested),
            [
                format!("L03 has no test {PREFIX}l03_… and no line in {UNTESTED}"),
                "a test is named after L05, which is no row".to_owned(),
                format!("L01 has a test and is listed in {UNTESTED} still"),
            ],
        );
    }

    #[test]
    fn a_line_of_the_list_has_a_row_and_a_reason() {
        let problems = compare(&expand("L01"), &set(&["L01"]), &catalogue::untested("later\n"));
        assert_eq!(problems.len(), 2, "{problems:?}");
    }
}
