//! A terminal as SVG. Commands and outputs appear one after the other; for users who prefer reduced motion, all of it
//! is shown at once.

use std::fmt::Write as _;

/// Longest line, in characters; longer ones are wrapped.
const COLUMNS: usize = 112;
const CHARACTER: f64 = 7.8;
const LINE: usize = 19;
const MARGIN: usize = 16;
const TITLE_BAR: usize = 34;
/// The time from a command to its output, in seconds.
const OUTPUT_DELAY: f64 = 0.6;

/// Words that name a state, and their colours.
const COLOURS: [(&str, &str); 5] = [
    ("ServingPrevious", "#e3b341"),
    ("SettingsInvalid", "#ff7b72"),
    ("Active", "#56d364"),
    ("\"allowed\": false", "#ff7b72"),
    ("\"generation\": \"1\"", "#79c0ff"),
];

/// The commands and outputs so far.
#[derive(Default)]
pub(super) struct Screen {
    lines: Vec<Line>,
    /// When the newest line appears, in seconds.
    time: f64,
}

struct Line {
    text: String,
    is_command: bool,
    at: f64,
}

impl Screen {
    /// Adds a command, which is typed `pause` seconds after the last line.
    pub(super) fn command(&mut self, text: &str, pause: f64) {
        self.time += pause;
        self.push(text, true);
    }

    /// Adds the output of a command.
    pub(super) fn output(&mut self, text: &str) {
        self.time += OUTPUT_DELAY;
        for line in text.lines() {
            self.push(line.trim_end(), false);
        }
    }

    fn push(&mut self, text: &str, is_command: bool) {
        let at = self.time;
        let lines = wrapped(text).into_iter();
        self.lines.extend(lines.enumerate().map(|(index, text)| Line {
            text,
            is_command: is_command && index == 0,
            at,
        }));
    }

    /// The whole picture.
    pub(super) fn svg(&self) -> String {
        let width = (COLUMNS as f64 * CHARACTER) as usize + 2 * MARGIN;
        let height = TITLE_BAR + LINE * self.lines.len() + MARGIN;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
             font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, monospace\" font-size=\"13\">\n\
             <title>A policy is broken and mended while it goes on answering</title>\n\
             <style>\n\
             text {{ white-space: pre; fill: #c9d1d9 }}\n\
             .l {{ opacity: 0; animation: show .01s forwards }}\n\
             @keyframes show {{ to {{ opacity: 1 }} }}\n\
             @media (prefers-reduced-motion: reduce) {{ .l {{ opacity: 1; animation: none }} }}\n\
             </style>\n\
             <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#0d1117\"/>\n\
             <circle cx=\"20\" cy=\"17\" r=\"6\" fill=\"#ff5f57\"/><circle cx=\"40\" cy=\"17\" r=\"6\" fill=\"#febc2e\"/>\
             <circle cx=\"60\" cy=\"17\" r=\"6\" fill=\"#28c840\"/>\n"
        );
        for (row, line) in self.lines.iter().enumerate() {
            let y = TITLE_BAR + LINE * row + 14;
            let text = if line.is_command {
                format!(
                    "<tspan fill=\"#56d364\">$ </tspan><tspan fill=\"#f0f6fc\" font-weight=\"bold\">{}</tspan>",
                    escaped(&line.text)
                )
            } else {
                coloured(&line.text)
            };
            let at = line.at;
            let _ = writeln!(
                svg,
                "<text class=\"l\" x=\"{MARGIN}\" y=\"{y}\" xml:space=\"preserve\" style=\"animation-delay:{at:.1}s\">{text}</text>"
            );
        }
        svg + "</svg>\n"
    }
}

/// The text broken into lines that fit, at spaces if possible; all lines but the first are indented.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = text.to_owned();
    while rest.chars().count() > COLUMNS {
        let end = rest.char_indices().nth(COLUMNS).map_or(rest.len(), |(index, _)| index);
        let cut = rest[..end].rfind(' ').filter(|cut| !rest[..*cut].trim().is_empty()).unwrap_or(end);
        let next = format!("    {}", rest[cut..].trim_start());
        rest.truncate(cut);
        lines.push(std::mem::replace(&mut rest, next));
    }
    lines.push(rest);
    lines
}

fn coloured(text: &str) -> String {
    let found = COLOURS.iter().filter_map(|(word, colour)| Some((text.find(word)?, *word, *colour))).min();
    let Some((start, word, colour)) = found else { return escaped(text) };
    let (before, after) = (&text[..start], &text[start + word.len()..]);
    format!("{}<tspan fill=\"{colour}\">{}</tspan>{}", escaped(before), escaped(word), coloured(after))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_tell_a_state_have_their_colour_and_nothing_is_markup() {
        assert_eq!(coloured("a <b> & c"), "a &lt;b&gt; &amp; c");
        let text = coloured("x Active y ServingPrevious");
        assert_eq!(text, "x <tspan fill=\"#56d364\">Active</tspan> y <tspan fill=\"#e3b341\">ServingPrevious</tspan>");
    }

    #[test]
    fn long_lines_are_wrapped_and_lose_no_word() {
        let text = "word ".repeat(60);
        let lines = wrapped(text.trim_end());
        assert!(lines.len() > 2 && lines.iter().all(|line| line.chars().count() <= COLUMNS));
        let words: usize = lines.iter().map(|line| line.split_whitespace().count()).sum();
        assert_eq!(words, 60);
        assert_eq!(wrapped(&"x".repeat(COLUMNS + 1)).len(), 2);
    }

    #[test]
    fn what_comes_later_appears_later() {
        let mut screen = Screen::default();
        screen.command("one", 1.0);
        screen.output("two\nthree");
        screen.command("four", 1.0);
        let times: Vec<f64> = screen.lines.iter().map(|line| line.at).collect();
        assert_eq!(times, [1.0, 1.6, 1.6, 2.6]);
        assert!(screen.svg().contains("<tspan fill=\"#56d364\">$ </tspan>"));
    }
}
