//! Pages that name tests as their evidence: each of these tests must exist. The test run counts whether they run and pass.

use std::collections::BTreeSet;

use crate::evidence::{pages, sources};
use crate::files::TextFile;

pub(super) fn check(files: &[TextFile]) -> Vec<String> {
    let functions = sources::tests(files);
    let tests: BTreeSet<&str> = functions.iter().map(|function| function.name.as_str()).collect();
    pages::of(files)
        .flat_map(|page| missing(&page.text, &tests).into_iter().map(move |name| sentence(page, &name)))
        .collect()
}

fn sentence(page: &TextFile, name: &str) -> String {
    format!("{} names the test {name}, and there is no such test", page.path.display())
}

fn missing(page: &str, tests: &BTreeSet<&str>) -> Vec<String> {
    let named = pages::named(page).into_iter().flat_map(|row| row.tests);
    named.filter(|name| !tests.contains(name.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_is_gone_is_named() {
        let page = "| what | test |\n| --- | --- |\n| `not_the_last_cell` | `it_goes_well`, `it_went_on_well` |\n";
        assert_eq!(missing(page, &BTreeSet::from(["it_goes_well"])), ["it_went_on_well"]);
    }
}
