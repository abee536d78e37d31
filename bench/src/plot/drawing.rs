//! Charts as SVG. The background is transparent, and all colours can be seen on white and on black.

use std::error::Error;
use std::ops::Range;

use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Axis, Scale};

/// The width of the picture.
const WIDTH: u32 = 840;
/// The height of one row of charts.
const CHART: u32 = 290;
/// The height of a line of the legend.
const LEGEND: u32 = 22;
/// The width of a character in the legend, at most. Browsers choose the font.
const CHARACTER: u32 = 8;
/// The width of a short line with a point before a name in the legend.
const KEY: u32 = 26;
const MARGIN: u32 = 12;
/// The size of a font for the crate that draws, as a multiple of the size in the picture.
const SIZE: f64 = 1.24;
/// About how many marks an axis has.
const MARKS: usize = 6;
const TEXT: RGBColor = RGBColor(0x77, 0x77, 0x77);
/// The colours of lines. The contrast of each with white and with black is at least 3.
const COLOURS: [RGBColor; 9] = [
    RGBColor(0x2f, 0x7e, 0xd8),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x94, 0x6c),
    RGBColor(0xc7, 0x5f, 0x96),
    RGBColor(0x8b, 0x6f, 0xd0),
    RGBColor(0x8f, 0x82, 0x20),
    RGBColor(0x9c, 0x75, 0x5f),
    RGBColor(0x1f, 0x8f, 0xa0),
    RGBColor(0x77, 0x77, 0x77),
];

/// Lines over one pair of axes.
pub(super) struct Chart {
    /// The text above the chart, which may be empty.
    pub(super) title: String,
    /// The title of the vertical axis.
    pub(super) axis: &'static str,
    /// The scale of the vertical axis.
    pub(super) scale: Scale,
    /// Its lines, at least one.
    pub(super) lines: Vec<Line>,
}

/// A line, with at least one point.
#[derive(Debug, PartialEq)]
pub(super) struct Line {
    pub(super) name: String,
    /// The points from left to right. On a logarithmic axis they are decimal logarithms.
    pub(super) points: Vec<(f64, f64)>,
}

type Area<'p> = DrawingArea<SVGBackend<'p>, Shift>;

/// Some charts, two beside each other, below a legend. Lines with the same name have the same colour, and axes with the same title have
/// the same range.
///
/// # Errors
/// When the crate that draws fails, which has no known cause.
pub(super) fn svg(x: &Axis, legend: &str, charts: &[Chart]) -> anyhow::Result<String> {
    let mut names: Vec<&str> = Vec::new();
    for line in charts.iter().flat_map(|chart| &chart.lines) {
        if !names.contains(&line.name.as_str()) {
            names.push(&line.name);
        }
    }
    let entries = entries(legend, &names);
    let columns = charts.len().min(2);
    let rows = charts.len().div_ceil(columns);
    let lines = entries.iter().map(|entry| entry.1).max().unwrap_or_default() + 1;
    let head = lines * LEGEND + MARGIN;
    let height = head + u32::try_from(rows)? * CHART;
    let across: Vec<f64> = charts.iter().flat_map(|chart| values(chart, |point| point.0)).collect();
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        let (above, below) = root.split_vertically(head);
        draw_legend(&above, legend, &names, &entries).map_err(failed)?;
        for (area, chart) in below.split_evenly((rows, columns)).iter().zip(charts) {
            draw_chart(area, x, (&across, &shared(charts, chart)), chart, &names).map_err(failed)?;
        }
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

fn failed(error: impl Error) -> anyhow::Error {
    anyhow!("failed to draw: {error}")
}

/// The place of each name in the legend: how far it is from the left, and in which line.
fn entries(legend: &str, names: &[&str]) -> Vec<(u32, u32)> {
    let width = |text: &str| u32::try_from(text.chars().count()).unwrap_or(u32::MAX / 16) * CHARACTER;
    let first = MARGIN + if legend.is_empty() { 0 } else { width(legend) + 2 * MARGIN };
    let (mut left, mut line, mut places) = (first, 0, Vec::new());
    for name in names {
        let needed = KEY + width(name) + MARGIN;
        if left + needed > WIDTH && left > first {
            (left, line) = (first, line + 1);
        }
        places.push((left, line));
        left += needed;
    }
    places
}

type Drawn<'p> = Result<(), DrawingAreaErrorKind<<SVGBackend<'p> as DrawingBackend>::ErrorType>>;

fn draw_legend<'p>(area: &Area<'p>, legend: &str, names: &[&str], places: &[(u32, u32)]) -> Drawn<'p> {
    let font = ("sans-serif", 13.0 * SIZE).into_font().color(&TEXT).pos(Pos::new(HPos::Left, VPos::Center));
    let point = |left: u32, line: u32| (left.cast_signed(), (MARGIN + line * LEGEND + LEGEND / 2).cast_signed());
    if !legend.is_empty() {
        area.draw(&Text::new(format!("{legend}:"), point(MARGIN, 0), font.clone()))?;
    }
    for (index, (name, (left, line))) in names.iter().zip(places).enumerate() {
        let key = vec![point(*left, *line), point(left + KEY - 8, *line)];
        area.draw(&PathElement::new(key, colour(index).stroke_width(2)))?;
        area.draw(&Text::new((*name).to_owned(), point(left + KEY, *line), font.clone()))?;
    }
    Ok(())
}

/// Draws a chart, whose axes have places for these horizontal and vertical values.
fn draw_chart<'p>(area: &Area<'p>, x: &Axis, values: (&[f64], &[f64]), chart: &Chart, names: &[&str]) -> Drawn<'p> {
    let font = |size: f64| ("sans-serif", size * SIZE).into_font().color(&TEXT);
    let (horizontal, vertical) = (axis(x.scale, values.0, false), axis(chart.scale, values.1, true));
    let mut builder = ChartBuilder::on(area);
    builder.margin(MARGIN).x_label_area_size(40).y_label_area_size(56);
    if !chart.title.is_empty() {
        builder.caption(&chart.title, font(14.0));
    }
    let mut context = builder.build_cartesian_2d(horizontal, vertical)?;
    context
        .configure_mesh()
        .x_desc(x.title)
        .y_desc(chart.axis)
        .x_label_formatter(&|place| label(x.scale, *place))
        .y_label_formatter(&|place| label(chart.scale, *place))
        .label_style(font(12.0))
        .axis_style(TEXT)
        .bold_line_style(TEXT.mix(0.3))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for line in &chart.lines {
        let index = names.iter().position(|name| *name == line.name).unwrap_or_default();
        let style = colour(index).filled().stroke_width(2);
        context.draw_series(LineSeries::new(line.points.iter().copied(), style).point_size(3))?;
    }
    Ok(())
}

fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}

/// The vertical values of all charts with the same axis.
fn shared(charts: &[Chart], chart: &Chart) -> Vec<f64> {
    let same = charts.iter().filter(|other| other.axis == chart.axis);
    same.flat_map(|chart| values(chart, |point| point.1)).collect()
}

fn values(chart: &Chart, of: impl Fn(&(f64, f64)) -> f64) -> Vec<f64> {
    chart.lines.iter().flat_map(|line| line.points.iter().map(&of)).collect()
}

/// The range of an axis, and the places that are marked and labelled.
struct Marked {
    range: Range<f64>,
    marks: Vec<f64>,
}

impl Ranged for Marked {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        RangedCoordf64::from(self.range.clone()).map(value, limit)
    }

    fn key_points<H: KeyPointHint>(&self, _: H) -> Vec<f64> {
        self.marks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

/// An axis that has a place for these values.
fn axis(scale: Scale, values: &[f64], from_zero: bool) -> Marked {
    let start = from_zero && scale == Scale::Linear;
    let least = values.iter().copied().fold(if start { 0.0 } else { f64::INFINITY }, f64::min);
    let most = values.iter().copied().fold(if start { 0.0 } else { f64::NEG_INFINITY }, f64::max);
    let space = if most > least { (most - least) * 0.05 } else { 0.5 };
    let range = (if start { least } else { least - space })..most + space;
    let marks = match scale {
        Scale::Linear => RangedCoordf64::from(range.clone()).key_points(MARKS),
        Scale::Logarithmic => logarithms(values),
    };
    Marked { range, marks }
}

/// The marks of a logarithmic axis: the values themselves if they are few, otherwise 1, 2, 5, 10 and so on, and powers of ten if these
/// are still too many.
fn logarithms(values: &[f64]) -> Vec<f64> {
    let mut marks = values.to_vec();
    marks.sort_by(f64::total_cmp);
    marks.dedup();
    if marks.len() <= MARKS {
        return marks;
    }
    let (least, most) = (marks[0], marks[marks.len() - 1]);
    // No figure of a benchmark is outside 1e-9 and 1e9.
    let between = |steps: &[f64]| -> Vec<f64> {
        let all = (-9..=9).flat_map(|power| steps.iter().map(move |step| f64::from(power) + step.log10()));
        all.filter(|mark| (least..=most).contains(mark)).collect()
    };
    let fine = between(&[1.0, 2.0, 5.0]);
    if fine.len() <= MARKS { fine } else { between(&[1.0]) }
}

/// The figure at a place of an axis.
fn label(scale: Scale, place: f64) -> String {
    let figure = match scale {
        Scale::Linear => place,
        Scale::Logarithmic => 10_f64.powf(place),
    };
    // Marks are sums of steps, such as 0.30000000000000004.
    format!("{}", (figure * 1e6).round() / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(scale: Scale, charts: &[Chart]) -> String {
        svg(&Axis { field: "x", title: "x <axis>", scale }, "kind", charts).expect("a picture")
    }

    fn chart(title: &str, lines: &[(&str, &[(f64, f64)])]) -> Chart {
        let line = |(name, points): &(&str, &[(f64, f64)])| Line { name: (*name).to_owned(), points: points.to_vec() };
        let lines = lines.iter().map(line).collect();
        Chart { title: title.to_owned(), axis: "ms & more", scale: Scale::Linear, lines }
    }

    /// The horizontal places of points.
    fn places(svg: &str) -> Vec<i32> {
        let circles = svg.match_indices("<circle cx=\"").map(|(at, found)| &svg[at + found.len()..]);
        circles.filter_map(|rest| rest.split_once('"')?.0.parse().ok()).collect()
    }

    #[test]
    fn lines_have_points_and_one_colour_in_all_charts() {
        let line: &[(f64, f64)] = &[(0.0, 1.0), (1.0, 2.0)];
        let svg = picture(Scale::Linear, &[chart("", &[("one", line), ("two", line)]), chart("", &[("two", line)])]);
        let count = |text: &str| svg.matches(text).count();
        assert_eq!(count("<circle"), 6);
        assert_eq!(count("<polyline fill=\"none\" opacity=\"1\" stroke=\"#D55E00\" stroke-width=\"2\""), 3, "{svg}");
        assert_eq!(count("fill=\"#FFFFFF\""), 0, "the background is transparent");
    }

    #[test]
    fn texts_are_not_markup() {
        let svg = picture(Scale::Linear, &[chart("<b>", &[("a < b & c", &[(0.0, 1.0)])])]);
        for text in ["&lt;b&gt;", "a &lt; b &amp; c", "x &lt;axis&gt;", "ms &amp; more"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert!(!svg.contains("<b>"));
    }

    #[test]
    fn powers_are_equally_far_apart_on_a_logarithmic_axis_and_labelled_with_the_figures() {
        let points: &[(f64, f64)] = &[(0.0, 1.0), (1.0, 1.0), (3.0, 1.0)];
        let svg = picture(Scale::Logarithmic, &[chart("", &[("one", points)])]);
        let places = places(&svg);
        assert!(((places[2] - places[0]) - 3 * (places[1] - places[0])).abs() <= 3, "{places:?}");
        let labels: Vec<String> = [0.0, 64_f64.log10(), 3.0].map(|place| label(Scale::Logarithmic, place)).into();
        assert_eq!(labels, ["1", "64", "1000"]);
    }

    #[test]
    fn marks_of_a_logarithmic_axis_are_its_few_values_or_round_figures() {
        assert_eq!(logarithms(&[1.5, 0.0, 1.5]), [0.0, 1.5]);
        let labels = |factor: u32| {
            let many: Vec<f64> = (1..30).map(|value| f64::from(value * factor).log10()).chain([0.5]).collect();
            logarithms(&many).into_iter().map(|mark| label(Scale::Logarithmic, mark)).collect::<Vec<_>>()
        };
        assert_eq!(labels(1), ["1", "2", "5", "10", "20"]);
        assert_eq!(labels(1000), ["10", "100", "1000", "10000"]);
    }

    #[test]
    fn a_long_legend_goes_on_in_the_next_line() {
        assert_eq!(entries("", &["ab", "c"]), [(12, 0), (12 + 26 + 16 + 12, 0)]);
        let long = "x".repeat(80);
        assert_eq!(entries("kind", &[&long, &long]), [(68, 0), (68, 1)]);
    }

    #[test]
    fn colours_can_be_seen_on_white_and_on_black() {
        let luminance = |RGBColor(red, green, blue): RGBColor| {
            let linear = |part: u8| (f64::from(part) / 255.0).powf(2.2);
            0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue)
        };
        for colour in COLOURS.into_iter().chain([TEXT]) {
            let own = luminance(colour) + 0.05;
            assert!(1.05 / own >= 3.0 && own / 0.05 >= 3.0, "{colour:?}");
        }
    }
}
