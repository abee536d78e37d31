//! Figures in the pages of docs/: each benchmark has a place of its own, which its runs overwrite.
//!
//! ```text
//! <!-- figures: audit -->
//! (written by the benchmark)
//! <!-- end of figures -->
//! ```

use std::path::{Path, PathBuf};
use std::{env, fs, thread};

use anyhow::{Context as _, bail};
use jiff::Zoned;
use serde_json::Value;

/// The pages that have places for figures, below the repository.
const PAGES: [&str; 2] = ["docs/performance.md", "docs/scale.md"];
/// The line after the figures.
const END: &str = "<!-- end of figures -->";
/// The suffixes by which fields of rows name their unit, and how the unit is written.
const UNITS: [(&str, &str); 7] =
    [("_ms", "ms"), ("_us", "µs"), ("_s", "s"), ("_mib", "MiB"), ("_kib", "KiB"), ("_percent", "%"), ("_mb", "MB")];

/// Writes the figures of a benchmark to its place.
///
/// # Errors
/// When no page has a place for it, or a page cannot be read or written.
pub(crate) fn record(benchmark: &str, rows: &[Value]) -> anyhow::Result<()> {
    let figures = format!("{}\n\n{}", origin(), markdown(rows));
    for page in PAGES {
        let page = repository().join(page);
        let text = fs::read_to_string(&page).with_context(|| format!("failed to read {}", page.display()))?;
        if let Some(text) = replaced(&text, benchmark, &figures) {
            fs::write(&page, text).with_context(|| format!("failed to write {}", page.display()))?;
            eprintln!("the figures are in {}", page.display());
            return Ok(());
        }
    }
    bail!(
        "no page has a place for these figures: add the lines `{}` and `{END}` to one of {}",
        begin(benchmark),
        PAGES.join(", ")
    )
}

/// Whether a page has a place for a benchmark.
#[cfg(test)]
pub(crate) fn has_place(benchmark: &str) -> bool {
    let text = |page: &str| fs::read_to_string(repository().join(page)).unwrap_or_default();
    PAGES.into_iter().any(|page| replaced(&text(page), benchmark, "").is_some())
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the repository").to_owned()
}

fn begin(benchmark: &str) -> String {
    format!("<!-- figures: {benchmark} -->")
}

/// The page with new figures in the place of a benchmark; `None` if the page does not have such a place.
fn replaced(page: &str, benchmark: &str, figures: &str) -> Option<String> {
    let begin = begin(benchmark);
    let (before, rest) = page.split_once(&begin)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{begin}\n{}\n{END}{after}", figures.trim_end()))
}

/// The day, the machine and the command, as a sentence.
fn origin() -> String {
    let arguments: Vec<String> = env::args().skip(1).filter(|argument| argument != "--record").collect();
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let processor = fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| processor(&text));
    let processor = processor.map(|name| format!(" ({name})")).unwrap_or_default();
    format!(
        "Measured on {}, with {cores} cores{processor} for everything: `cargo xtask bench {}`",
        Zoned::now().date(),
        arguments.join(" ")
    )
}

/// The name of the first processor.
fn processor(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_owned())
}

/// A table in Markdown. The first field of a row names it. If there are more fields than rows, the rows become columns, because pages
/// are narrow.
fn markdown(rows: &[Value]) -> String {
    let Some(Value::Object(first)) = rows.first() else { return String::new() };
    let fields: Vec<&String> = first.keys().collect();
    let head = fields.iter().map(|field| title(field)).collect::<Vec<_>>();
    let body = rows.iter().map(|row| fields.iter().map(|field| cell(&row[field.as_str()])).collect::<Vec<_>>());
    let mut table: Vec<Vec<String>> = [head].into_iter().chain(body).collect();
    if fields.len() > table.len() {
        table = (0..fields.len()).map(|field| table.iter().map(|row| row[field].clone()).collect()).collect();
    }
    let rule = vec!["---".to_owned(); table[0].len()];
    table.insert(1, rule);
    table.iter().map(|row| format!("| {} |\n", row.join(" | "))).collect()
}

/// A figure in the form in which it is shown.
pub(crate) fn cell(value: &Value) -> String {
    match value {
        Value::Number(number) if number.is_f64() => format!("{:.3}", number.as_f64().unwrap_or_default()),
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

/// The title of a field, with its unit.
fn title(field: &str) -> String {
    let unit = UNITS.iter().find_map(|(end, unit)| Some((field.strip_suffix(end)?, unit)));
    let words = |name: &str| name.replace("p99_9", "p99.9").replace('_', " ");
    match unit {
        Some((name, unit)) => format!("{}, {unit}", words(name)),
        None => words(field),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn figures_take_the_place_of_earlier_ones_of_the_same_benchmark() {
        let page = format!("a\n{}\nold\n{END}\nb\n{}\nother\n{END}\nc\n", begin("audit"), begin("scale"));
        let new = replaced(&page, "audit", "new\n").expect("has a place");
        assert_eq!(new, page.replace("old", "new"));
        assert_eq!(replaced(&page, "slope", "new"), None);
        assert_eq!(replaced(&begin("audit"), "audit", "new"), None, "its end is missing");
    }

    #[test]
    fn few_rows_with_many_fields_are_columns() {
        let row = |phase: &str, time: f64| json!({"a_phase": phase, "p99_ms": time, "writes": null});
        let table = markdown(&[row("one", 1.5)]);
        assert_eq!(table, "| a phase | one |\n| --- | --- |\n| p99, ms | 1.500 |\n| writes | - |\n");
        let table = markdown(&[row("one", 1.0), row("two", 2.0)]);
        assert!(
            table.starts_with("| a phase | p99, ms | writes |\n| --- | --- | --- |\n| one | 1.000 | - |\n"),
            "{table}"
        );
        assert_eq!(markdown(&[]), "");
        assert_eq!(
            (title("p99_9_ms"), title("api_server_cpu_s")),
            ("p99.9, ms".to_owned(), "api server cpu, s".to_owned())
        );
    }

    #[test]
    fn a_machine_is_named_by_its_first_processor() {
        let text = "processor\t: 0\nmodel name\t: A CPU @ 2 GHz\nmodel name\t: another\n";
        assert_eq!(processor(text).as_deref(), Some("A CPU @ 2 GHz"));
        assert_eq!(processor(""), None);
    }
}
