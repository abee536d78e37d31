//! The table of all values in the chart's README, between two marks.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use super::values::Setting;

/// The line before the table.
const BEGIN: &str = "<!-- Made by `cargo xtask generate` from values.yaml, down to the next mark. -->\n";
/// The line after the table.
const END: &str = "<!-- The end of what is made. -->\n";

/// The README with this table instead of its current one.
pub(super) fn with_table(readme: &str, settings: &[Setting]) -> Result<String> {
    let (before, rest) = readme.split_once(BEGIN).with_context(|| format!("there is no line {BEGIN:?}"))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("there is no line {END:?}"))?;
    Ok(format!("{before}{BEGIN}{}\n{END}{after}", table(settings)))
}

/// A heading and a table for each top-level mapping, and one table for the other keys.
fn table(settings: &[Setting]) -> String {
    let mut text = String::new();
    let is_top = |setting: &&Setting| setting.path.len() == 1;
    let plain: Vec<_> = settings.iter().filter(is_top).filter(|setting| setting.default.is_some()).collect();
    rows(&mut text, &plain);
    for part in settings.iter().filter(is_top).filter(|setting| setting.default.is_none()) {
        // Writing to a string does not fail.
        let _ = write!(text, "\n### `{}`\n\n{}\n", part.name(), part.words);
        let inner: Vec<_> = settings.iter().filter(|one| one.path.len() > 1 && one.path[0] == part.path[0]).collect();
        rows(&mut text, &inner);
    }
    text
}

fn rows(text: &mut String, settings: &[&Setting]) {
    let with_default: Vec<_> = settings.iter().filter_map(|one| Some((one, one.default.as_ref()?))).collect();
    if with_default.is_empty() {
        return;
    }
    text.push_str("\n| setting | default | what it is |\n| --- | --- | --- |\n");
    for (setting, default) in with_default {
        let words = setting.words.replace('|', "\\|");
        let default = default.to_string().replace('|', "\\|");
        let _ = writeln!(text, "| `{}` | `{default}` | {words} |", setting.name());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::values;

    #[test]
    fn the_table_takes_the_place_of_the_old_one() {
        let settings = values::read("# First.\nfirst: 1\n\n# A part.\npart:\n  # A | B.\n  one: []\n").unwrap();
        let old = format!("before\n{BEGIN}old\n{END}after\n");
        let new = with_table(&old, &settings).unwrap();
        assert!(new.starts_with("before\n") && new.ends_with("after\n") && !new.contains("old"));
        assert!(new.contains("| `first` | `1` | First. |\n"), "{new}");
        assert!(new.contains("### `part`\n\nA part.\n"), "{new}");
        assert!(new.contains("| `part.one` | `[]` | A \\| B. |\n"), "{new}");
        assert_eq!(with_table(&new, &settings).unwrap(), new);
        assert!(with_table("nothing", &settings).is_err());
    }
}
