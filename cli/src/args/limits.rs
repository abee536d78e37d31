//! The arguments for the limits of the loader.

use std::ffi::OsString;
use std::time::Duration;

use portcullis_process::{parse_bytes, parse_duration};

/// What loading a module may take, in the flags of the loader.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Limits, for large modules")]
pub struct LimitArgs {
    /// Memory of the compilation, 512MiB by default.
    #[arg(long, env = "PORTCULLIS_COMPILE_MEMORY", value_name = "BYTES", value_parser = parse_bytes)]
    pub compile_memory: Option<u64>,

    /// Wall time of the compilation, 60s by default.
    #[arg(long, env = "PORTCULLIS_COMPILE_TIME", value_name = "TIME", value_parser = parse_duration)]
    pub compile_time: Option<Duration>,

    /// Processor time of the compilation, 60s by default.
    #[arg(long, env = "PORTCULLIS_COMPILE_CPU_TIME", value_name = "TIME", value_parser = parse_duration)]
    pub compile_cpu_time: Option<Duration>,

    /// Largest module, 64MiB by default.
    #[arg(long, env = "PORTCULLIS_MAX_MODULE_SIZE", value_name = "BYTES", value_parser = parse_bytes)]
    pub max_module_size: Option<u64>,

    /// Largest compiled module, 256MiB by default.
    #[arg(long, env = "PORTCULLIS_MAX_ARTIFACT_SIZE", value_name = "BYTES", value_parser = parse_bytes)]
    pub max_artifact_size: Option<u64>,
}

impl LimitArgs {
    /// The same for a loader.
    pub(crate) fn for_loader(&self) -> Vec<OsString> {
        let time = |time: Option<Duration>| time.map(|time| format!("{}ms", time.as_millis()));
        let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes.to_string());
        let flags = [
            ("--compile-memory", bytes(self.compile_memory)),
            ("--compile-time", time(self.compile_time)),
            ("--compile-cpu-time", time(self.compile_cpu_time)),
            ("--max-module-size", bytes(self.max_module_size)),
            ("--max-artifact-size", bytes(self.max_artifact_size)),
        ];
        let given = flags.into_iter().filter_map(|(flag, value)| Some((flag, value?)));
        given.flat_map(|(flag, value)| [flag.into(), value.into()]).collect()
    }
}
