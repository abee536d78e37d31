//! Figures in the pages of docs/: each benchmark has a place of its own, which its runs overwrite.
//!
//! ```text
//! <!-- figures: slope -->
//! (when and how it was measured)
//!
//! ![what the picture shows](figures/slope.svg)
//!
//! (the table)
//! <!-- end of figures -->
//! ```
//!
//! Only some benchmarks have a picture. It is drawn from the table, so that the two cannot differ.

use std::path::{Path, PathBuf};
use std::{env, fs, thread};

use anyhow::{Context as _, bail};
use jiff::Zoned;
use serde_json::Value;

use crate::plot::Plot;
use crate::table;

/// The pages that have places for figures, below the repository.
const PAGES: [&str; 2] = ["docs/performance.md", "docs/scale.md"];
/// The line after the figures.
const END: &str = "<!-- end of figures -->";

/// Writes the figures of a benchmark to its place, and the picture if it has one.
///
/// # Errors
/// When no page has a place for it, or a file cannot be read or written.
pub(crate) fn record(benchmark: &str, rows: &[Value], plot: Option<&Plot>) -> anyhow::Result<()> {
    write(benchmark, &format!("{}\n\n{}", origin(), table::written(rows)), plot)
}

/// Draws a picture again, from the table that stands in a page.
///
/// # Errors
/// When no page has a place for it, or a file cannot be read or written.
pub(crate) fn redraw(plot: &Plot) -> anyhow::Result<()> {
    let (_, figures) = standing(plot.benchmark)?;
    write(plot.benchmark, &figures, Some(plot))
}

/// Writes figures to the place of a benchmark, and the picture of their table.
fn write(benchmark: &str, figures: &str, plot: Option<&Plot>) -> anyhow::Result<()> {
    let (page, _) = standing(benchmark)?;
    let (mut figures, mut svg) = (figures.to_owned(), None);
    if let Some(plot) = plot {
        (figures, svg) = illustrated(&figures, plot)?;
    }
    let file = picture(benchmark);
    match svg {
        Some(svg) => save(&file, &svg)?,
        None if repository().join(&file).exists() => {
            fs::remove_file(repository().join(&file)).with_context(|| format!("failed to remove {file}"))?;
        }
        None => {}
    }
    let text = text(page)?;
    save(page, &replaced(&text, benchmark, &figures).unwrap_or(text))?;
    eprintln!("the figures of {benchmark} are in {page}");
    Ok(())
}

/// Figures with the picture of their table above it, and the picture itself; `None` if there is nothing to draw.
fn illustrated(figures: &str, plot: &Plot) -> anyhow::Result<(String, Option<String>)> {
    let svg = plot.svg(&plot.rows_of(figures))?;
    let mut paragraphs: Vec<&str> = figures.split("\n\n").filter(|paragraph| !paragraph.starts_with("![")).collect();
    let shown = format!("![{}](figures/{}.svg)", plot.description, plot.benchmark);
    let table = paragraphs.iter().position(|paragraph| paragraph.starts_with('|'));
    if let Some(table) = table.filter(|_| svg.is_some()) {
        paragraphs.insert(table, &shown);
    }
    Ok((paragraphs.join("\n\n"), svg))
}

/// The page with the place of a benchmark, and the figures that stand there.
fn standing(benchmark: &str) -> anyhow::Result<(&'static str, String)> {
    for page in PAGES {
        if let Some((_, figures, _)) = parts(&text(page)?, benchmark) {
            return Ok((page, figures.trim().to_owned()));
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
    standing(benchmark).is_ok()
}

/// Whether the page shows the picture that its table gives.
#[cfg(test)]
pub(crate) fn is_illustrated(plot: &Plot) -> bool {
    let (_, figures) = standing(plot.benchmark).expect("has a place");
    let svg = fs::read_to_string(repository().join(picture(plot.benchmark))).ok();
    illustrated(&figures, plot).expect("can be drawn") == (figures, svg)
}

/// The path of a picture, below the repository.
fn picture(benchmark: &str) -> String {
    format!("docs/figures/{benchmark}.svg")
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the repository").to_owned()
}

fn begin(benchmark: &str) -> String {
    format!("<!-- figures: {benchmark} -->")
}

/// The text of a file, whose path is below the repository.
fn text(path: &str) -> anyhow::Result<String> {
    fs::read_to_string(repository().join(path)).with_context(|| format!("failed to read {path}"))
}

fn save(path: &str, text: &str) -> anyhow::Result<()> {
    let path = repository().join(path);
    path.parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::write(&path, text))
        .with_context(|| format!("failed to write {}", path.display()))
}

/// The text before the figures of a benchmark, they themselves, and the text after them; `None` if the page does not have their place.
fn parts<'p>(page: &'p str, benchmark: &str) -> Option<(&'p str, &'p str, &'p str)> {
    let begin = begin(benchmark);
    let (before, rest) = page.split_once(&begin)?;
    let (figures, after) = rest.split_once(END)?;
    Some((before, figures, after))
}

/// The page with new figures in the place of a benchmark; `None` if the page does not have such a place.
fn replaced(page: &str, benchmark: &str, figures: &str) -> Option<String> {
    let (before, _, after) = parts(page, benchmark)?;
    let end = if figures.is_empty() { "" } else { "\n" };
    Some(format!("{before}{}\n{}{end}{END}{after}", begin(benchmark), figures.trim_end()))
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plot::{Axis, Panel, Scale};

    #[test]
    fn figures_take_the_place_of_earlier_ones_of_the_same_benchmark() {
        let page = format!("a\n{}\nold\n{END}\nb\n{}\nother\n{END}\nc\n", begin("audit"), begin("scale"));
        let new = replaced(&page, "audit", "new\n").expect("has a place");
        assert_eq!(new, page.replace("old", "new"));
        assert_eq!(replaced(&page, "slope", "new"), None);
        assert_eq!(replaced(&begin("audit"), "audit", "new"), None, "its end is missing");
    }

    #[test]
    fn an_empty_place_stays_as_it_is() {
        let page = format!("a\n{}\n{END}\nb\n", begin("audit"));
        assert_eq!(replaced(&page, "audit", ""), Some(page.clone()));
    }

    #[test]
    fn the_picture_of_a_table_is_above_it_once() {
        let plot = Plot {
            benchmark: "example",
            description: "An example.",
            x: Axis { field: "callers", title: "callers", scale: Scale::Linear },
            panels: &[Panel { title: "ms", scale: Scale::Linear, fields: &["p50_ms"] }],
            panel_for_each: &[],
            line_for_each: &[],
        };
        let rows = [json!({"callers": 1, "p50_ms": 1.5}), json!({"callers": 2, "p50_ms": 2.5})];
        let (before, table) = ("Measured on a day", table::written(&rows));
        let (figures, svg) = illustrated(&format!("{before}\n\n{table}"), &plot).expect("can be drawn");
        assert_eq!(figures, format!("{before}\n\n![An example.](figures/example.svg)\n\n{table}"));
        assert_eq!(svg, plot.svg(&rows).expect("can be drawn"));
        assert_eq!(illustrated(&figures, &plot).expect("can be drawn"), (figures, svg));
        let stale = "![An example.](figures/example.svg)\n\nno table";
        assert_eq!(illustrated(stale, &plot).expect("can be drawn"), ("no table".to_owned(), None));
    }

    #[test]
    fn a_machine_is_named_by_its_first_processor() {
        let text = "processor\t: 0\nmodel name\t: A CPU @ 2 GHz\nmodel name\t: another\n";
        assert_eq!(processor(text).as_deref(), Some("A CPU @ 2 GHz"));
        assert_eq!(processor(""), None);
    }
}
