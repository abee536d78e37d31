//! What the tests of each row of the fault catalogue did in one whole run: a run writes it, and `docs/faults.md` shows the one that was
//! kept.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::git;

/// The outcomes that `docs/faults.md` shows.
pub(crate) const KEPT: &str = "docs/design/faults-run.json";

/// What the tests of a row have shown, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Shown {
    /// All its tests ran and passed.
    Passed,
    /// Some passed, and some were skipped.
    InPart,
    Skipped,
    Untested,
    NotRun,
    Failed,
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Passed => "passed",
            Self::InPart => "in part",
            Self::Skipped => "skipped",
            Self::Untested => "no test",
            Self::NotRun => "not run",
            Self::Failed => "failed",
        })
    }
}

/// The outcomes of one whole run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Outcomes {
    /// The commit that was tested, as `git describe --always --dirty` names it, and its day (`2026-11-26`). Empty if git does not know.
    pub(crate) commit: String,
    pub(crate) day: String,
    /// Each row of the catalogue by its id.
    pub(crate) rows: BTreeMap<String, Shown>,
    /// The tests that stood for rows then. One that was written since has shown nothing.
    pub(crate) tests: BTreeSet<String>,
}

impl Outcomes {
    /// The outcomes of a run of what is checked out here.
    pub(crate) fn here(root: &Path, rows: BTreeMap<String, Shown>, tests: BTreeSet<String>) -> Self {
        let commit = git::output(root, &["describe", "--always", "--dirty", "--exclude=*"]).unwrap_or_default();
        let day = git::output(root, &["log", "-1", "--format=%cs"]).unwrap_or_default();
        Self { commit, day, rows, tests }
    }

    /// Reads the outcomes from a file.
    ///
    /// # Errors
    /// When it cannot be read, or has something else.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = fs::read(path).with_context(|| format!("failed to read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} does not have the outcomes of a run", path.display()))
    }

    /// Writes them to a file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let mut text = serde_json::to_string_pretty(self).context("failed to encode the outcomes")?;
        text.push('\n');
        fs::write(path, text).with_context(|| format!("failed to write {}", path.display()))
    }

    /// How many rows have been shown by tests that all passed.
    pub(crate) fn passed(&self) -> usize {
        self.rows.values().filter(|shown| **shown == Shown::Passed).count()
    }
}

/// The file to which a whole run writes its outcomes.
pub(crate) fn of_last_run(target: &Path) -> PathBuf {
    target.join("xtask/fault-rows.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_read_as_they_were_written() {
        let rows = [("L01", Shown::Passed), ("L02", Shown::InPart), ("K12", Shown::Skipped)];
        let rows = rows.map(|(row, shown)| (row.to_owned(), shown)).into();
        let tests = ["fault_l01_x".to_owned()].into();
        let outcomes = Outcomes { commit: "0123abc".to_owned(), day: "2026-11-26".to_owned(), rows, tests };
        let path = std::env::temp_dir().join(format!("portcullis-outcomes-{}.json", std::process::id()));
        outcomes.write(&path).unwrap();
        let read = Outcomes::read(&path).unwrap();
        fs::write(&path, "{}").unwrap();
        let error = format!("{:#}", Outcomes::read(&path).unwrap_err());
        fs::remove_file(&path).unwrap();
        assert_eq!((read.passed(), read), (1, outcomes));
        assert!(error.contains("does not have the outcomes of a run"), "{error}");
    }
}
