//! Which rows of the fault catalogue have a test, and which are listed as having none.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Those of `rows` that have neither a test function `fault_<row>_…` nor a line in `untested.txt`.
pub fn rows_without_a_test<'r>(rows: &[&'r str]) -> Vec<&'r str> {
    let (sources, untested) = (sources(), untested());
    rows.iter().copied().filter(|row| !is_tested(&sources, row) && !untested.contains_key(*row)).collect()
}

/// Lines of `untested.txt` that should not be there: without a reason, or of a row that has a test.
pub fn stale_lines() -> Vec<String> {
    let sources = sources();
    let stale = |(row, reason): &(String, String)| reason.is_empty() || is_tested(&sources, row);
    untested().into_iter().filter(stale).map(|(row, reason)| format!("{row} {reason}")).collect()
}

fn is_tested(sources: &str, row: &str) -> bool {
    sources.contains(&format!("fn fault_{}_", row.to_lowercase()))
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults")
}

fn sources() -> String {
    let entries = fs::read_dir(folder()).expect("the tests are there").flatten();
    entries.filter_map(|entry| fs::read_to_string(entry.path()).ok()).collect()
}

fn untested() -> BTreeMap<String, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("faults/untested.txt");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("failed to read {}: {error}", path.display()));
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (row, reason) = line.split_once(' ').unwrap_or((line, ""));
            (row.to_owned(), reason.trim().to_owned())
        })
        .collect()
}
