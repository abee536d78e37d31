//! The generated files of the chart: the version in `Chart.yaml`, the schema of the values, and their table in `README.md`.

mod readme;
mod schema;
mod values;

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use self::values::Setting;

/// The folder of the chart in the repository.
const FOLDER: &str = "helm";
/// The path of the values.
const VALUES: &str = "helm/values.yaml";

/// A generated file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Made {
    /// Its path below the repository's folder.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// All generated files of the chart, at this version.
pub(crate) fn made(root: &Path, version: &str) -> Result<Vec<Made>> {
    let read = |name: &str| {
        let path = root.join(FOLDER).join(name);
        fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))
    };
    let settings: Vec<Setting> = values::read(&read("values.yaml")?).with_context(|| format!("in {VALUES}"))?;
    let made = |name: &str, text| Made { path: format!("{FOLDER}/{name}"), text };
    Ok(vec![
        made("Chart.yaml", versioned(&read("Chart.yaml")?, version)?),
        made("values.schema.json", schema::of(&settings)),
        made("README.md", readme::with_table(&read("README.md")?, &settings).context("in helm/README.md")?),
    ])
}

/// The chart's metadata with this version, which is also that of the programs.
fn versioned(chart: &str, version: &str) -> Result<String> {
    let mut count = 0;
    let mut lines = Vec::new();
    for line in chart.lines() {
        let key = ["version", "appVersion"].into_iter().find(|key| line.starts_with(&format!("{key}:")));
        count += usize::from(key.is_some());
        lines.push(key.map_or_else(|| line.to_owned(), |key| format!("{key}: {version}")));
    }
    ensure!(count == 2, "helm/Chart.yaml does not have the two lines `version:` and `appVersion:`");
    Ok(lines.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chart_has_the_version_of_the_programs() {
        let chart = "apiVersion: v2\nversion: 0.0.1\nappVersion: 0.0.2\nkubeVersion: x\n";
        let new = versioned(chart, "1.2.3").unwrap();
        assert_eq!(new, "apiVersion: v2\nversion: 1.2.3\nappVersion: 1.2.3\nkubeVersion: x\n");
        assert!(versioned("version: 1\n", "1.2.3").is_err());
    }
}
