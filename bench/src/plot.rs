//! Plots: what of a benchmark's rows is drawn as lines, and the picture of some rows.

mod drawing;

use serde_json::Value;

use crate::table;
use drawing::{Chart, Line};

/// The plot of a benchmark.
#[derive(Debug)]
pub(crate) struct Plot {
    /// The name of the benchmark, and of the picture's file.
    pub(crate) benchmark: &'static str,
    /// What the picture shows, for readers who cannot see it.
    pub(crate) description: &'static str,
    /// The horizontal axis.
    pub(crate) x: Axis,
    /// The vertical axes, each in a panel of its own. The first field of the first panel is not the first field of a row.
    pub(crate) panels: &'static [Panel],
    /// Each combination of values of these fields has panels of its own.
    pub(crate) panel_for_each: &'static [&'static str],
    /// Each combination of values of these fields has a line of its own.
    pub(crate) line_for_each: &'static [&'static str],
}

/// The horizontal axis.
#[derive(Debug)]
pub(crate) struct Axis {
    pub(crate) field: &'static str,
    pub(crate) title: &'static str,
    pub(crate) scale: Scale,
}

/// The fields that are drawn over one vertical axis.
#[derive(Debug)]
pub(crate) struct Panel {
    /// The title of the axis, with its unit.
    pub(crate) title: &'static str,
    pub(crate) scale: Scale,
    /// The fields. If there are several, each has lines of its own.
    pub(crate) fields: &'static [&'static str],
}

/// How an axis is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Equal differences are equally far apart. A vertical axis begins at 0.
    Linear,
    /// Equal ratios are equally far apart. Only figures above 0 have a place.
    Logarithmic,
}

impl Plot {
    /// The picture of some rows, as SVG; `None` if there is nothing to draw.
    pub(crate) fn svg(&self, rows: &[Value]) -> anyhow::Result<Option<String>> {
        let charts = self.charts(rows);
        if charts.is_empty() { Ok(None) } else { drawing::svg(&self.x, &self.legend(rows), &charts).map(Some) }
    }

    /// The rows of the table in a text.
    pub(crate) fn rows_of(&self, text: &str) -> Vec<Value> {
        table::read(text, self.panels[0].fields[0])
    }

    /// The charts that have at least one point.
    fn charts(&self, rows: &[Value]) -> Vec<Chart> {
        let lines = differing(self.line_for_each, rows);
        let mut charts = Vec::new();
        for group in groups(self.panel_for_each, rows) {
            for panel in self.panels {
                let chart = Chart {
                    title: group.titles(&differing(self.panel_for_each, rows)),
                    axis: panel.title,
                    scale: panel.scale,
                    lines: self.lines(panel, &lines, &group.rows),
                };
                charts.extend((!chart.lines.is_empty()).then_some(chart));
            }
        }
        charts
    }

    /// The lines of a panel that have at least one point.
    fn lines(&self, panel: &Panel, for_each: &[&str], rows: &[Value]) -> Vec<Line> {
        let mut lines = Vec::new();
        for group in groups(for_each, rows) {
            for field in panel.fields {
                let place =
                    |row: &Value| Some((self.x.scale.place(&row[self.x.field])?, panel.scale.place(&row[field])?));
                let mut points: Vec<(f64, f64)> = group.rows.iter().filter_map(place).collect();
                points.sort_by(|one, other| one.0.total_cmp(&other.0));
                let own = (panel.fields.len() > 1 || for_each.is_empty()).then(|| name(field));
                let names: Vec<String> = group.values.iter().cloned().chain(own).collect();
                lines.extend((!points.is_empty()).then(|| Line { name: names.join(", "), points }));
            }
        }
        lines
    }

    /// What the names of lines are values of.
    fn legend(&self, rows: &[Value]) -> String {
        differing(self.line_for_each, rows).iter().map(|field| name(field)).collect::<Vec<_>>().join(", ")
    }
}

impl Scale {
    /// Where a figure is on an axis; `None` if it has no place there.
    fn place(self, figure: &Value) -> Option<f64> {
        let figure = figure.as_f64()?;
        match self {
            Self::Linear => Some(figure),
            Self::Logarithmic => (figure > 0.0).then(|| figure.log10()),
        }
    }
}

/// The rows with the same values of some fields.
struct Group {
    values: Vec<String>,
    rows: Vec<Value>,
}

impl Group {
    /// The values, each with the title of its field.
    fn titles(&self, fields: &[&str]) -> String {
        let titles = fields.iter().map(|field| format!("{}: {}", name(field), table::cell(&self.rows[0][field])));
        titles.collect::<Vec<_>>().join(", ")
    }
}

/// The rows by their values of some fields, in the order in which these first appear; all rows together without fields.
fn groups(fields: &[&str], rows: &[Value]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for row in rows {
        let values: Vec<String> = fields.iter().map(|field| table::cell(&row[field])).collect();
        match groups.iter_mut().find(|group| group.values == values) {
            Some(group) => group.rows.push(row.clone()),
            None => groups.push(Group { values, rows: vec![row.clone()] }),
        }
    }
    groups
}

/// Those of the fields that do not have the same value in all rows. The others distinguish nothing.
fn differing<'f>(fields: &[&'f str], rows: &[Value]) -> Vec<&'f str> {
    fields.iter().copied().filter(|field| groups(&[field], rows).len() > 1).collect()
}

/// The title of a field, without its unit.
fn name(field: &str) -> String {
    let title = table::title(field);
    title.split_once(", ").map_or(title.clone(), |(name, _)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PLOT: Plot = Plot {
        benchmark: "example",
        description: "An example.",
        x: Axis { field: "callers", title: "callers", scale: Scale::Logarithmic },
        panels: &[Panel { title: "p50, ms", scale: Scale::Linear, fields: &["p50_ms"] }],
        panel_for_each: &["kind"],
        line_for_each: &["policy", "server"],
    };

    fn row(kind: &str, policy: &str, callers: u32, p50_ms: Option<f64>) -> Value {
        json!({"kind": kind, "policy": policy, "server": "one", "callers": callers, "p50_ms": p50_ms})
    }

    /// The lines of each chart.
    fn drawn(plot: &Plot, rows: &[Value]) -> Vec<Vec<Line>> {
        plot.charts(rows).into_iter().map(|chart| chart.lines).collect()
    }

    fn line(name: &str, points: &[(f64, f64)]) -> Line {
        Line { name: name.to_owned(), points: points.to_vec() }
    }

    #[test]
    fn each_group_is_a_line_with_its_points_in_order() {
        let rows = [
            row("a", "x", 100, Some(3.0)),
            row("a", "y", 1, Some(4.0)),
            row("a", "x", 1, Some(1.0)),
            row("a", "x", 10, None),
            row("a", "x", 0, Some(9.0)),
            row("a", "z", 10, None),
        ];
        let lines = vec![line("x", &[(0.0, 1.0), (2.0, 3.0)]), line("y", &[(0.0, 4.0)])];
        assert_eq!(
            drawn(&PLOT, &rows),
            [lines],
            "figures that are missing, or not above 0 on such an axis, are left out"
        );
        assert_eq!(PLOT.legend(&rows), "policy", "all rows are of one server");
    }

    #[test]
    fn a_field_can_have_a_panel_for_each_of_its_values() {
        let rows = [row("a", "x", 1, Some(1.0)), row("b", "x", 1, Some(2.0))];
        let titles: Vec<String> = PLOT.charts(&rows).into_iter().map(|chart| chart.title).collect();
        assert_eq!(titles, ["kind: a", "kind: b"]);
        assert_eq!(PLOT.charts(&rows[..1])[0].title, "");
    }

    #[test]
    fn several_fields_of_a_panel_are_lines() {
        const PANEL: Panel = Panel { title: "ms", scale: Scale::Linear, fields: &["p50_ms", "p99_9_ms"] };
        let plot = Plot { panels: &[PANEL], line_for_each: &[], ..PLOT };
        let rows = [json!({"callers": 1, "p50_ms": 1.0, "p99_9_ms": 2.0})];
        let lines = vec![line("p50", &[(0.0, 1.0)]), line("p99.9", &[(0.0, 2.0)])];
        assert_eq!(drawn(&plot, &rows), [lines]);
    }

    #[test]
    fn without_figures_there_is_no_picture() {
        assert_eq!(PLOT.svg(&[]).expect("nothing to draw"), None);
        assert_eq!(PLOT.svg(&[row("a", "x", 1, None)]).expect("nothing to draw"), None);
        assert!(PLOT.svg(&[row("a", "x", 1, Some(1.0))]).expect("one point").is_some());
    }
}
