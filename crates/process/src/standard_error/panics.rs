//! The message of a panic is written like the log, so that a panic in a request does not wait until somebody reads standard error.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::Display;
use std::time::Duration;
use std::{panic, thread};

/// How long a thread that panics waits until its message is written. Some panics, such as one in a destructor that runs because of another one,
/// end the process as soon as this is over, and a hook cannot tell which.
const PATIENCE: Duration = Duration::from_millis(100);

/// From now on, messages of panics are said like other texts.
pub(super) fn say_them() {
    panic::set_hook(Box::new(|info| {
        super::say(&text(thread::current().name(), info, &Backtrace::capture()));
        super::finish(PATIENCE);
    }));
}

/// What Rust itself would write.
fn text(thread: Option<&str>, info: &impl Display, backtrace: &Backtrace) -> String {
    let thread = thread.unwrap_or("<unnamed>");
    match backtrace.status() {
        BacktraceStatus::Captured => format!("thread '{thread}' {info}\nstack backtrace:\n{backtrace}"),
        _ => format!(
            "thread '{thread}' {info}\nnote: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_the_form_of_rust() {
        let info = "panicked at src/a.rs:1:2:\nwhy";
        let note = "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n";
        let disabled = Backtrace::disabled();
        assert_eq!(text(Some("lane"), &info, &disabled), format!("thread 'lane' {info}\n{note}"));
        assert_eq!(text(None, &info, &disabled), format!("thread '<unnamed>' {info}\n{note}"));
        let traced = text(Some("lane"), &info, &Backtrace::force_capture());
        assert!(traced.starts_with(&format!("thread 'lane' {info}\nstack backtrace:\n")), "{traced}");
        assert!(traced.contains("a_message_has_the_form_of_rust"), "{traced}");
    }
}
