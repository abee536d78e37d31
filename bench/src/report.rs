//! Figures, and how to print them.

use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;
use serde_json::Value;

use crate::page;
use crate::plot::Plot;
use crate::table::cell;

/// Where a result goes, and in which form.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Output {
    /// The format of the result: a table for people, or one JSON object.
    #[arg(short, long = "output", value_enum, default_value = "table", global = true)]
    format: Format,

    /// Also writes the figures into the page of docs/ that has a place for this benchmark, with the day, the machine and the command.
    #[arg(long, global = true)]
    record: bool,
}

/// The format of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table for people.
    Table,
    /// One JSON object for programs.
    Json,
}

/// Durations of one kind of thing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples(Vec<Duration>);

impl Samples {
    pub(crate) fn push(&mut self, sample: Duration) {
        self.0.push(sample);
    }

    pub(crate) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The smallest sample that `share` of all samples do not exceed, in milliseconds; 0 without samples.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort();
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "there are far fewer samples than a float has exact integers"
        )]
        let index = ((sorted.len() as f64 * share).ceil() as usize).clamp(1, sorted.len().max(1)) - 1;
        sorted.get(index).map_or(0.0, |sample| sample.as_secs_f64() * 1e3)
    }
}

/// The median of some figures; 0 if there are none.
pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}

/// Prints rows as JSON, or as a table whose columns are the fields of a row, and records them if that is asked for.
pub(crate) fn print<R: Serialize>(output: &Output, benchmark: &str, rows: &[R]) -> anyhow::Result<()> {
    print_and_draw(output, benchmark, rows, None)
}

/// Prints the rows of a benchmark that has a plot, which is drawn if they are recorded.
pub(crate) fn print_with_plot<R: Serialize>(output: &Output, plot: &Plot, rows: &[R]) -> anyhow::Result<()> {
    print_and_draw(output, plot.benchmark, rows, Some(plot))
}

fn print_and_draw<R: Serialize>(
    output: &Output,
    benchmark: &str,
    rows: &[R],
    plot: Option<&Plot>,
) -> anyhow::Result<()> {
    let rows = rows.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>()?;
    match output.format {
        Format::Json => println!("{}", serde_json::json!({"benchmark": benchmark, "rows": rows})),
        Format::Table => table(&rows).iter().for_each(|line| println!("{line}")),
    }
    if output.record { page::record(benchmark, &rows, plot) } else { Ok(()) }
}

/// The lines of a table, with the names of the fields first.
fn table(rows: &[Value]) -> Vec<String> {
    let Some(Value::Object(first)) = rows.first() else { return Vec::new() };
    let mut table: Vec<Vec<String>> = vec![first.keys().map(|key| key.to_uppercase().replace('_', " ")).collect()];
    table.extend(rows.iter().map(|row| first.keys().map(|key| cell(&row[key])).collect()));
    let widths: Vec<usize> =
        (0..first.len()).map(|column| table.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        cells.join("   ").trim_end().to_owned()
    };
    table.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_a_hundred() {
        let mut samples = Samples::default();
        (1..=100).for_each(|ms| samples.push(Duration::from_millis(ms)));
        assert_eq!((samples.quantile(0.5), samples.quantile(0.99), samples.quantile(1.0)), (50.0, 99.0, 100.0));
        assert_eq!(Samples::default().quantile(0.5), 0.0);
    }
}
