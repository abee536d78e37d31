//! Logs: one line for each event, on standard error.
//!
//! A line is written by the thread that logs it, until [`crate::write_log_in_background`] is called.

use std::io::IsTerminal as _;

use clap::{Args, ValueEnum};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer};

use crate::SettingError;
use crate::standard_error::LogWriter;
use crate::telemetry::Traces;

/// The log settings that every program has.
#[derive(Debug, Clone, Args)]
pub struct LogArgs {
    /// What is logged: error, warn, info, debug, trace, or a filter like `info,portcullis_evaluator=debug`.
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
        let filter = EnvFilter::try_new(&self.log_level).map_err(|error| {
            SettingError::new("--log-level", format!("{:?} is not a level or filter: {error}", self.log_level))
        })?;
        // The client of the API server logs each failed call as an error. Its callers log what matters, and only once.
        let filter = filter.add_directive("kube_client=off".parse().expect("it is a directive"));
        let filter = filter.add_directive("kube_runtime=off".parse().expect("it is a directive"));
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
