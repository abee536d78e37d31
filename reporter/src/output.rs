//! Standard output: on a terminal, a table that is redrawn in place, otherwise lines.

use std::io::{self, IsTerminal as _, Write as _};

use clap::ValueEnum;

use crate::frame::Size;

/// How policies are shown on standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TableMode {
    /// A live table on a terminal, lines elsewhere.
    Auto,
    /// A table that is redrawn in place.
    Live,
    /// A line for each change.
    Lines,
}

/// Standard output. Text that cannot be written there is dropped without an error, since the status folder has the same information.
#[derive(Debug)]
pub struct Output {
    live: bool,
    /// Whether colours are wanted.
    pub colour: bool,
    /// The lines of the last frame, which the next one replaces on the terminal.
    drawn: Vec<String>,
}

impl Output {
    /// Standard output in this mode.
    pub fn new(mode: TableMode) -> Self {
        let terminal = io::stdout().is_terminal();
        let live = match mode {
            TableMode::Auto => terminal,
            TableMode::Live => true,
            TableMode::Lines => false,
        };
        let colour = live && terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { live, colour, drawn: Vec::new() }
    }

    /// Whether a table is shown rather than lines.
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// The terminal's size now; 80 by 24 where that is not known.
    pub fn size(&self) -> Size {
        let size = rustix::termios::tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
        size.map_or(Size { width: 80, height: 24 }, |size| Size {
            width: usize::from(size.ws_col),
            height: usize::from(size.ws_row),
        })
    }

    /// Replaces the frame on the terminal.
    pub fn draw(&mut self, frame: Vec<String>) {
        if self.live && frame != self.drawn {
            self.replace(&[], frame);
        }
    }

    /// Prints a line that stays; the table goes on below it.
    pub fn say(&mut self, line: &str) {
        if self.live {
            let frame = self.drawn.clone();
            self.replace(&[line], frame);
        } else {
            self.write(&format!("{line}\n"));
        }
    }

    fn replace(&mut self, said: &[&str], frame: Vec<String>) {
        let mut text = String::new();
        if !self.drawn.is_empty() {
            text.push_str(&format!("\r\u{1b}[{}A", self.drawn.len()));
        }
        text.push_str("\u{1b}[J");
        for line in said {
            text.push_str(line);
            text.push('\n');
        }
        // Without line wrap, a frame has as many lines on the terminal as here, however wide its characters are.
        text.push_str("\u{1b}[?7l");
        for line in &frame {
            text.push_str(line);
            text.push('\n');
        }
        text.push_str("\u{1b}[?7h");
        self.drawn = frame;
        self.write(&text);
    }

    fn write(&self, text: &str) {
        let mut out = io::stdout().lock();
        // If the reader of the output has gone, that is not a failure of the reporter.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}
