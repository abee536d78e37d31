//! The page `docs/faults.md`: each row of the fault catalogue with the tests that are named after it.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, ensure};

use super::catalogue::{self, Row, rows_of};
use super::environments;
use super::outcomes::{self, Outcomes};
use super::sources::{self, TestFunction};
use crate::files;

/// The path of the page.
pub(crate) const PATH: &str = "docs/faults.md";

/// The text above the tables.
const HEAD: &str = "# Faults and their tests\n\n\
    <!-- Written by `cargo xtask generate`. -->\n\n\
    What can break and what users see then, from the [fault catalogue](design/faults.md), and the tests that break it. The catalogue also has\n\
    the reason that status and messages name, and how a test injects the fault. Tests are named after rows; a row without a test says why.\n\n\
    UNSERVED: the policy has no generation to answer with; the answer says so by its `failurePolicy`. KEEP: an older generation goes on\n\
    answering. EVALERR: one evaluation failed, and the answer says so by the `failurePolicy`. TRANSPORT: an HTTP error without an\n\
    AdmissionReview. I1 to I7 are invariants. [The catalogue](design/faults.md#1-words-used-in-the-tables) has more of each.\n\n\
    `cargo xtask test` counts the rows whose tests all ran and passed, and names the others at its end, with the tests that were skipped.\n\
    `cargo xtask generate --fault-rows FILE` takes the outcomes of a whole run into this page.\n\
    [An hour of random faults](design/faults.md#an-hour-of-random-faults) has its seed and what happened in it.\n\n\
    Behind the file of a test stands where it runs, on real parts or on stand-ins. Sources of modules are servers of the test everywhere, or a\n\
    real registry on this machine:\n\n";

/// The page for the files of the repository.
pub(crate) fn of(root: &Path) -> Result<String> {
    let files = files::read_all(root)?;
    let rows = catalogue::of(&files);
    ensure!(!rows.is_empty(), "{} has no rows", catalogue::PAGE);
    let functions = sources::tests(&files);
    let is_lost =
        |function: &&TestFunction| !rows_of(&function.name).is_empty() && environments::of(&function.file).is_none();
    let lost = functions.iter().find(is_lost).map(|function| &function.file);
    ensure!(lost.is_none(), "xtask/src/evidence/environments.rs does not say where the tests of {lost:?} run");
    let outcomes = Outcomes::read(&root.join(outcomes::KEPT))?;
    Ok(text(&rows, &functions, &catalogue::untested_of(&files), &outcomes))
}

fn text(rows: &[Row], functions: &[TestFunction], untested: &BTreeMap<String, String>, outcomes: &Outcomes) -> String {
    let environment = |file: &str| environments::of(file).map(|words| format!(", {words}")).unwrap_or_default();
    let mut of_rows: BTreeMap<String, Vec<&TestFunction>> = BTreeMap::new();
    for function in functions {
        for row in rows_of(&function.name) {
            of_rows.entry(row).or_default().push(function);
        }
    }
    let tested = rows.iter().filter(|row| of_rows.contains_key(&row.id)).count();
    let mut text = format!(
        "{HEAD}{}\n{tested} of {} rows have a test. The last column says what a whole run of commit {} ({}) has shown: the tests of {} rows all \
         passed.\n*In part*: some of its tests were skipped. *New*: the row was not there yet. *New test*: one of its tests was not.\n",
        environments::legend(),
        rows.len(),
        outcomes.commit,
        outcomes.day,
        outcomes.passed(),
    );
    let mut section = "";
    for row in rows {
        if row.section != section {
            section = &row.section;
            text += &format!(
                "\n## {section}\n\n| row | what breaks | what the user sees | tests | in that run |\n| --- | --- | --- | --- | --- |\n"
            );
        }
        let tests = match (of_rows.get(&row.id), untested.get(&row.id)) {
            (Some(functions), _) => sources::by_files(functions, environment),
            (None, Some(reason)) => format!("not yet: {reason}"),
            (None, None) => "not yet".to_owned(),
        };
        let is_new = |function: &&TestFunction| !outcomes.tests.contains(&function.name);
        let shown = match outcomes.rows.get(&row.id) {
            None => "new".to_owned(),
            Some(_) if of_rows.get(&row.id).into_iter().flatten().any(is_new) => "new test".to_owned(),
            Some(shown) => shown.to_string(),
        };
        text += &format!("| {} | {} | {} | {tests} | {shown} |\n", row.id, row.fault, row.seen);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::outcomes::Shown;

    #[test]
    fn each_row_has_its_tests_or_the_reason_why_not() {
        let row = |id: &str, section: &str| Row {
            id: id.to_owned(),
            fault: format!("{id} breaks"),
            seen: format!("{id} is named"),
            section: section.to_owned(),
        };
        let function = |name: &str, file: &str| TestFunction {
            name: format!("{}{name}", catalogue::PREFIX),
            file: format!("tests/tests/{file}"),
        };
        let functions = [
            function("l01_l02_x", "a.rs"),
            function("l01_y", "b.rs"),
            function("l02_z", "a.rs"),
            function("l03_x", "a.rs"),
            function("l03_y", "a.rs"),
        ];
        let untested = catalogue::untested("K01 There is no release.\n");
        let rows = [("L01", Shown::Passed), ("L02", Shown::InPart), ("L03", Shown::Passed)];
        let rows = rows.map(|(row, shown)| (row.to_owned(), shown)).into();
        let ran = ["l01_l02_x", "l01_y", "l02_z", "l03_x"];
        let tests = ran.map(|name| format!("{}{name}", catalogue::PREFIX)).into();
        let outcomes = Outcomes { commit: "0123abc".to_owned(), day: "2026-11-26".to_owned(), rows, tests };
        let text = text(
            &[row("L01", "Fetching"), row("L02", "Fetching"), row("L03", "Fetching"), row("K01", "Life")],
            &functions,
            &untested,
            &outcomes,
        );
        let expected = "\n3 of 4 rows have a test. The last column says what a whole run of commit 0123abc (2026-11-26) has shown: the \
            tests of 2 rows all passed.\n*In part*: some of its tests were skipped. *New*: the row was not there yet. *New test*: one of its tests was not.\n\n\
            ## Fetching\n\n| row | what breaks | what the user sees | tests | in that run |\n| --- | --- | --- | --- | --- |\n\
            | L01 | L01 breaks | L01 is named | `F_l01_l02_x` ([a.rs](../tests/tests/a.rs), programs); `F_l01_y` ([b.rs](../tests/tests/b.rs), programs) | passed |\n\
            | L02 | L02 breaks | L02 is named | `F_l01_l02_x`, `F_l02_z` ([a.rs](../tests/tests/a.rs), programs) | in part |\n\
            | L03 | L03 breaks | L03 is named | `F_l03_x`, `F_l03_y` ([a.rs](../tests/tests/a.rs), programs) | new test |\n\n\
            ## Life\n\n| row | what breaks | what the user sees | tests | in that run |\n| --- | --- | --- | --- | --- |\n\
            | K01 | K01 breaks | K01 is named | not yet: There is no release. | new |\n";
        assert_eq!(text, format!("{HEAD}{}{}", environments::legend(), expected.replace("F_", catalogue::PREFIX)));
    }
}
