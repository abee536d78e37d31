//! Logs: one line for each event, on standard error.
//!
//! A line is written by the thread that logs it, until [`crate::write_log_in_background`] is called.

use std::io::IsTerminal as _;

use clap::{Args, ValueEnum};
use tracing::Metadata;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{FilterExt as _, filter_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer};

use crate::SettingError;
use crate::exit::EXIT_WITH_PARENT;
use crate::standard_error::LogWriter;
use crate::telemetry::Traces;

/// The log settings that every program has.
#[derive(Debug, Clone, Args)]
pub struct LogArgs {
    /// What is logged: error, warn, info, debug, trace, off, or a filter like `info,portcullis_evaluator=debug`.
    #[arg(long, env = "PORTCULLIS_LOG_LEVEL", default_value = "info", global = true, help_heading = "Logs")]
    pub log_level: String,

    /// How it is written.
    #[arg(
        long,
        env = "PORTCULLIS_LOG_FORMAT",
        default_value = "text",
        value_enum,
        global = true,
        help_heading = "Logs"
    )]
    pub log_format: LogFormat,
}

/// The form of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl LogArgs {
    /// Starts logging. Call it once, before anything logs.
    ///
    /// # Errors
    /// A [`SettingError`] when the level is not a filter.
    pub fn init(&self) -> Result<(), SettingError> {
        self.init_with(None)
    }

    /// Starts logging, and hands spans to `traces` whatever the level is.
    ///
    /// # Errors
    /// The same as those of [`LogArgs::init`].
    pub fn init_with(&self, traces: Option<&Traces>) -> Result<(), SettingError> {
        let filter = filter(&self.log_level)?;
        // The client of the API server logs each failed call as an error. Its callers log what matters, and only once.
        let filter = filter.add_directive("kube_client=off".parse().expect("it is a directive"));
        let filter = filter.add_directive("kube_runtime=off".parse().expect("it is a directive"));
        // A program that starts others reads their ports from their logs, whatever the level is.
        let has_reader = std::env::var_os(EXIT_WITH_PARENT).is_some();
        let ports = filter_fn(move |event| has_reader && tells_port(event)).with_max_level_hint(match has_reader {
            true => LevelFilter::INFO,
            false => LevelFilter::OFF,
        });
        let filter = filter.or(ports);
        let log = tracing_subscriber::fmt::layer().with_writer(LogWriter);
        // The program must not panic when its log can no longer be written.
        let log = log.log_internal_errors(false);
        let log = match self.log_format {
            LogFormat::Text => {
                let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
                log.with_ansi(colour).with_target(false).with_filter(filter).boxed()
            }
            LogFormat::Json => {
                let log = log.json().flatten_event(true).with_current_span(false).with_span_list(false);
                log.with_filter(filter).boxed()
            }
        };
        let layers: Vec<_> = traces.map(Traces::layer).into_iter().chain([log]).collect();
        let result = tracing_subscriber::registry().with(layers).try_init();
        result.map_err(|error| SettingError::new("--log-format", error.to_string()))
    }
}

/// Whether an event of a program says that it listens on a port.
fn tells_port(event: &Metadata<'_>) -> bool {
    let has = |field: &str| event.fields().field(field).is_some();
    event.is_event() && event.target().starts_with("portcullis") && has("port") && has("address")
}

/// The filter of `--log-level`.
fn filter(text: &str) -> Result<EnvFilter, SettingError> {
    let refuse = |problem: String| Err(SettingError::new("--log-level", problem));
    // An empty part says nothing, as in `info,` or in a variable that is set to nothing.
    let parts: Vec<&str> = text.split(',').filter(|part| !part.trim().is_empty()).collect();
    let text = if parts.is_empty() { "info".to_owned() } else { parts.join(",") };
    // A word that is no level would be a module with all of its lines, and with the level of nothing else: the log would be silent.
    let is_module_alone = |one: &&str| !one.contains('=') && one.trim().parse::<LevelFilter>().is_err();
    if let Some(one) = text.split(',').find(is_module_alone) {
        return refuse(format!(
            "{one:?} is no level: want error, warn, info, debug, trace or off, or a module with one of them, as in \
             info,portcullis_evaluator=debug"
        ));
    }
    EnvFilter::try_new(&text).or_else(|error| refuse(format!("{text:?} is not a level or filter: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_level_is_refused_and_does_not_silence_the_log() {
        for good in
            ["error", "warn", "info", "debug", "trace", "off", "INFO", "info,portcullis_loader=debug", "a[b{c=d}]=info"]
        {
            assert!(filter(good).is_ok(), "{good}");
        }
        for (same, as_text) in [("info,", "info"), (",warn, ,", "warn"), ("", "info"), (" ", "info"), (",", "info")] {
            let shown = |text: &str| filter(text).map(|filter| filter.to_string()).expect("a filter");
            assert_eq!(shown(same), shown(as_text), "{same:?}");
        }
        for (bad, named) in [
            ("warning", "\"warning\" is no level"),
            ("info,portcullis_loader", "\"portcullis_loader\" is no level"),
            ("verbose,portcullis_loader=debug", "\"verbose\" is no level"),
        ] {
            let error = filter(bad).expect_err(bad).to_string();
            assert!(error.starts_with("--log-level") && error.contains(named), "{error}");
            assert!(error.contains("error, warn, info, debug, trace or off"), "{error}");
        }
        assert!(filter("portcullis_loader=loud").is_err());
    }
}
