//! How a program ends.

use std::process::ExitCode;
use std::time::Duration;

/// A setting that cannot be used: the program ends with status 64 (`EX_USAGE`) before any port is open.
#[derive(Debug, thiserror::Error)]
#[error("{setting}: {problem}")]
pub struct SettingError {
    setting: String,
    problem: String,
}

impl SettingError {
    /// `setting` is what the user typed, for instance `--tls-dir`; `problem` what is wrong and what helps.
    pub fn new(setting: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { setting: setting.into(), problem: problem.into() }
    }
}

/// Set by a program that starts others and wants them to end when it is gone, however it ends.
pub const EXIT_WITH_PARENT: &str = "PORTCULLIS_EXIT_WITH_PARENT";

/// Runs a program's body and turns its error into a sentence and an exit status: 64 for a [`SettingError`], 1 else.
pub fn run(body: impl FnOnce() -> anyhow::Result<()>) -> ExitCode {
    if std::env::var_os(EXIT_WITH_PARENT).is_some() {
        // The program works without; only a killed parent would leave it behind.
        let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
    }
    match body() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            if error.downcast_ref::<SettingError>().is_some() { ExitCode::from(64) } else { ExitCode::FAILURE }
        }
    }
}

/// A duration as users write it: `500ms`, `2s`, `1m 30s`. For clap's `value_parser`.
///
/// # Errors
/// When the text is no duration.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error} (write it like 500ms, 2s or 1m)"))
}
