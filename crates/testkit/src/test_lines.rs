//! What a test reports past libtest, which captures the output of tests: that it was skipped, why it fails, and what it
//! measured.
//!
//! Each is one line of a fixed form on standard error, `SKIPPED <test>: <reason>`, `FAILING <test>: <place>: <message>` or `NOTED <test>:
//! <words>`, which `cargo xtask test` reads (`xtask/src/evidence/runs.rs`). The name of a test's thread is the test's path.

use std::io::{self, Write as _};
use std::panic;
use std::sync::Once;
use std::thread;

/// The longest message of a panic, in bytes.
const MAX_MESSAGE: usize = 2000;

/// Reports that this test, or a part of it, is skipped, because this machine lacks something. To libtest such a test passes; `cargo
/// xtask test` counts it as skipped. `reason` says what is missing and where to get it.
pub fn skip(reason: &str) {
    say("SKIPPED", reason);
}

/// Reports what this test has measured, even if it passes.
pub fn note(words: &str) {
    say("NOTED", words);
}

/// Makes each panic in this process be reported at once, and not only when all tests of the binary have ended. May be called again.
pub fn report_panics() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let place = info.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
            let payload = info.payload();
            let message = payload
                .downcast_ref::<&str>()
                .copied()
                .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
                .unwrap_or("a panic without a message");
            say("FAILING", &format!("{place}: {}", cut(&one_line(message))));
            previous(info);
        }));
    });
}

/// Writes one line in a single write, so that no output of another thread is in the middle of it.
fn say(what: &str, words: &str) {
    let thread = thread::current();
    let line = line(what, thread.name().unwrap_or("unnamed"), words);
    io::stderr().write_all(line.as_bytes()).ok();
}

fn line(what: &str, thread: &str, words: &str) -> String {
    format!("{what} {}: {}\n", thread.replace(char::is_whitespace, "-"), one_line(words))
}

fn one_line(words: &str) -> String {
    words.replace(['\n', '\r'], " | ")
}

/// The beginning of a message, at most [`MAX_MESSAGE`] bytes.
fn cut(message: &str) -> &str {
    &message[..message.floor_char_boundary(MAX_MESSAGE)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_one_line_with_the_test_first() {
        assert_eq!(line("SKIPPED", "faults::v01", "no mounts"), "SKIPPED faults::v01: no mounts\n");
        assert_eq!(
            line("FAILING", "a thread", "a.rs:1:2: left\n right"),
            "FAILING a-thread: a.rs:1:2: left |  right\n"
        );
    }

    #[test]
    fn a_long_message_is_cut_between_letters() {
        assert_eq!(cut("short"), "short");
        let long = "a".repeat(MAX_MESSAGE - 1) + "éé";
        assert_eq!(cut(&long), "a".repeat(MAX_MESSAGE - 1));
    }
}
