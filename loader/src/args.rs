//! The loader's settings. All are read and checked before a port is bound.

mod broker;
mod input;
mod registry;
mod siblings;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use portcullis_contract::MANIFEST_MAX_BYTES;
use portcullis_process::{EXIT_WITH_PARENT, LogArgs, SettingError, Switch, parse_bytes, parse_duration};
use portcullis_registry::{PeerKeys, WebSettings};

pub(crate) use self::broker::BrokerArgs;
pub(crate) use self::input::{Input, InputArgs};
pub(crate) use self::registry::RegistryArgs;
pub(crate) use self::siblings::SiblingArgs;
use crate::compile::CompileLimits;
use crate::plan::PlanSettings;
use crate::retry::Retry;
use crate::source::Fetching;

/// Smallest `--volume-size`, in bytes. The chart refuses smaller ones too.
const LEAST_VOLUME: u64 = 32 << 20;

/// Fetches, verifies and precompiles policy modules onto the shared volume.
#[derive(Debug, Clone, Parser)]
#[command(name = "portcullis-loader", version, about)]
pub struct Args {
    /// Where the policies come from.
    #[command(flatten)]
    pub input: InputArgs,

    /// The volume that the evaluator reads. By default .portcullis/volume in the folder of the policies.
    #[arg(long, env = "PORTCULLIS_VOLUME", value_name = "DIR")]
    pub volume: Option<PathBuf>,

    /// A folder below which `file:` modules may be, beside the folder of the policies. May be given several times.
    #[arg(long, env = "PORTCULLIS_MODULE_ROOT", value_name = "DIR", value_delimiter = ',')]
    pub module_root: Vec<PathBuf>,

    /// Where /livez, /readyz and /metrics are served.
    #[arg(long, env = "PORTCULLIS_PROBE_ADDRESS", default_value = "[::]:8082")]
    pub probe_address: SocketAddr,

    /// Whether /healthz/policies and /healthz/sources are served at --probe-address too. Anyone who can reach it can then read which
    /// policies and sources there are, and what fails.
    #[arg(long, env = "PORTCULLIS_POLICY_PATHS", value_enum, default_value = "off")]
    pub policy_paths: Switch,

    /// Where /v1/state, /healthz/policies and /healthz/sources are served; on the loopback only.
    #[arg(long, env = "PORTCULLIS_STATE_ADDRESS", default_value = "127.0.0.1:9082")]
    pub state_address: SocketAddr,

    /// The evaluator's state port.
    #[arg(long, env = "PORTCULLIS_EVALUATOR_STATE", value_name = "ADDRESS", default_value = "127.0.0.1:9081")]
    pub evaluator_state: SocketAddr,

    /// Modules compiled at the same time. By default as many as there are processors.
    #[arg(long, env = "PORTCULLIS_COMPILE_JOBS", value_name = "N")]
    pub compile_jobs: Option<usize>,

    /// Memory of one compilation.
    #[arg(long, env = "PORTCULLIS_COMPILE_MEMORY", value_name = "BYTES", default_value = "512MiB", value_parser = parse_bytes)]
    pub compile_memory: u64,

    /// Wall time of one compilation.
    #[arg(long, env = "PORTCULLIS_COMPILE_TIME", value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub compile_time: Duration,

    /// Processor time of one compilation, in whole seconds.
    #[arg(long, env = "PORTCULLIS_COMPILE_CPU_TIME", value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub compile_cpu_time: Duration,

    /// Largest module.
    #[arg(long, env = "PORTCULLIS_MAX_MODULE_SIZE", value_name = "BYTES", default_value = "64MiB", value_parser = parse_bytes)]
    pub max_module_size: u64,

    /// Largest compiled module.
    #[arg(long, env = "PORTCULLIS_MAX_ARTIFACT_SIZE", value_name = "BYTES", default_value = "256MiB", value_parser = parse_bytes)]
    pub max_artifact_size: u64,

    /// How large the volume may become, modules, compiled modules and manifests together. Where it is not given, the disk is the
    /// limit. A pod whose volume grows beyond its limit is evicted; the loader stops before, and no namespace can fill it alone.
    #[arg(long, env = "PORTCULLIS_VOLUME_SIZE", value_name = "BYTES", value_parser = parse_bytes)]
    pub volume_size: Option<u64>,

    /// Longest time to the head of a source's answer.
    #[arg(long, env = "PORTCULLIS_FETCH_HEADER_TIMEOUT", value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub fetch_header_timeout: Duration,

    /// Longest time of one download.
    #[arg(long, env = "PORTCULLIS_FETCH_TIMEOUT", value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub fetch_timeout: Duration,

    /// Lowest accepted rate of a download, in bytes a second.
    #[arg(long, env = "PORTCULLIS_FETCH_LOWEST_RATE", value_name = "BYTES", default_value = "1KiB", value_parser = parse_bytes)]
    pub fetch_lowest_rate: u64,

    /// Longest wait after the first failure that may pass by itself; it doubles with each attempt.
    #[arg(long, env = "PORTCULLIS_RETRY_INITIAL", value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    pub retry_initial: Duration,

    /// Longest wait after a failure that may pass by itself.
    #[arg(long, env = "PORTCULLIS_RETRY_CAP", value_name = "TIME", default_value = "5m", value_parser = parse_duration)]
    pub retry_cap: Duration,

    /// Wait after a failure that needs a change outside the policy.
    #[arg(long, env = "PORTCULLIS_RETRY_OUTSIDE", value_name = "TIME", default_value = "10m", value_parser = parse_duration)]
    pub retry_outside: Duration,

    /// How long a match group keeps answering for policies that have left it.
    #[arg(long, env = "PORTCULLIS_TOMBSTONE", value_name = "TIME", default_value = "10m", value_parser = parse_duration)]
    pub tombstone: Duration,

    /// How many modules and artifacts stay on the volume that no policy names.
    #[arg(long, env = "PORTCULLIS_KEEP_NEWEST", value_name = "N", default_value_t = 8)]
    pub keep_newest: usize,

    /// Certificate authorities (PEM) that https sources may have, beside the system's. Read again before each attempt.
    #[arg(long, env = "PORTCULLIS_SOURCE_CA", value_name = "FILE")]
    pub source_ca: Option<PathBuf>,

    /// A host (host or host:port) that plain http is allowed for. May be given several times.
    #[arg(long, env = "PORTCULLIS_ALLOW_HTTP_HOST", value_name = "HOST", value_delimiter = ',')]
    pub allow_http_host: Vec<String>,

    /// What modules policies may name over the network: registry://host/repository or https://host/path, or with * at its end
    /// all that begin so, for instance registry://ghcr.io/kubewarden/*. May be given several times; without any, all.
    #[arg(long, env = "PORTCULLIS_ALLOW_SOURCE", value_name = "PATTERN", value_delimiter = ',')]
    pub allow_source: Vec<String>,

    /// Registries, logins and addresses.
    #[command(flatten)]
    pub registry: RegistryArgs,

    /// What policies ask their host for.
    #[command(flatten)]
    pub broker: BrokerArgs,

    /// Other loaders.
    #[command(flatten)]
    pub siblings: SiblingArgs,

    /// Logs.
    #[command(flatten)]
    pub log: LogArgs,
}

/// Settings that were checked against the machine.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where the policies come from.
    pub input: Input,
    /// Canonical folders below which `file:` modules may be.
    pub roots: Vec<PathBuf>,
    /// The volume.
    pub volume: PathBuf,
    /// Room for modules and artifacts on the volume, in bytes; `None` without `--volume-size`.
    pub room: Option<u64>,
    /// What a compilation may take.
    pub compile: CompileLimits,
    /// Limits of a download, and the hosts that it may use.
    pub fetching: Fetching,
    /// The address at which other loaders may ask, and the certificates for it; `None` where they may not.
    pub siblings_port: Option<(SocketAddr, PeerKeys)>,
    /// The plan's waits and limits.
    pub plan: PlanSettings,
}

impl Args {
    /// Checks the settings against this machine.
    ///
    /// # Errors
    /// The first setting that cannot be used.
    pub fn settings(&self) -> Result<Settings, SettingError> {
        let input = self.input.input()?;
        let roots = self.roots(&input)?;
        let volume = match (&self.volume, &input) {
            (Some(volume), _) => volume.clone(),
            (None, Input::Folder(directory)) => directory.folder().join(".portcullis").join("volume"),
            (None, Input::Cluster(_)) => {
                return Err(SettingError::new("--volume", "want the folder that the evaluator reads too"));
            }
        };
        let volume = std::path::absolute(&volume)
            .map_err(|error| SettingError::new("--volume", format!("{}: {error}", volume.display())))?;
        if volume.exists() && !volume.is_dir() {
            return Err(SettingError::new("--volume", format!("{} is not a folder", volume.display())));
        }
        if !self.state_address.ip().is_loopback() {
            let text = format!("{} is not on the loopback: want for instance 127.0.0.1:9082", self.state_address);
            return Err(SettingError::new("--state-address", text));
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let jobs = self.compile_jobs.unwrap_or(cores);
        at_least_one("--compile-jobs", jobs as u64)?;
        at_least_one("--max-module-size", self.max_module_size)?;
        at_least_one("--max-artifact-size", self.max_artifact_size)?;
        if self.volume_size.is_some_and(|size| size < LEAST_VOLUME) {
            return Err(SettingError::new("--volume-size", "want at least 32MiB"));
        }
        // While a new manifest replaces the old one, both are on the volume.
        let manifest_size = self.volume_size.map_or(MANIFEST_MAX_BYTES, |size| MANIFEST_MAX_BYTES.min(size / 8));
        // A sixteenth is left for folders and for the file system's overhead per file.
        let room = self.volume_size.map(|size| size - size / 16 - 2 * manifest_size);
        for (setting, time) in [
            ("--compile-time", self.compile_time),
            ("--compile-cpu-time", self.compile_cpu_time),
            ("--fetch-header-timeout", self.fetch_header_timeout),
            ("--fetch-timeout", self.fetch_timeout),
            ("--retry-initial", self.retry_initial),
            ("--retry-cap", self.retry_cap),
            ("--retry-outside", self.retry_outside),
        ] {
            if time.is_zero() {
                return Err(SettingError::new(setting, "want a time above 0"));
            }
        }
        if self.compile_memory < 64 << 20 {
            return Err(SettingError::new("--compile-memory", "want at least 64MiB: the compiler itself needs that"));
        }
        if let Some(file) = self.source_ca.as_ref().filter(|file| !file.exists()) {
            return Err(SettingError::new("--source-ca", format!("there is no file {}", file.display())));
        }
        // A program of ours that starts this one ends with it; a kubelet starts it again and again.
        let is_restarted = std::env::var_os(EXIT_WITH_PARENT).is_none();
        let sources = self.registry.sources(is_restarted)?;
        self.registry.check(is_restarted)?;
        self.broker.check()?;
        let siblings = self.siblings.siblings(&input, self.registry.name_server)?;
        let mut allowed = self.allow_source.clone();
        allowed.retain(|pattern| !pattern.is_empty());
        let bare = |pattern: &&String| pattern.split_once("://").is_none_or(|(_, rest)| !rest.contains('/'));
        if let Some(pattern) = allowed.iter().find(bare) {
            let text = format!("{pattern:?} names no whole host: want for instance https://example.com/*");
            return Err(SettingError::new("--allow-source", text));
        }
        Ok(Settings {
            input,
            roots,
            volume,
            room,
            compile: CompileLimits {
                jobs,
                memory: self.compile_memory,
                time: self.compile_time,
                cpu_time: self.compile_cpu_time,
                max_module_size: self.max_module_size,
                max_artifact_size: self.max_artifact_size,
            },
            fetching: Fetching {
                web: WebSettings {
                    header: self.fetch_header_timeout,
                    total: self.fetch_timeout,
                    lowest_rate: self.fetch_lowest_rate,
                    authorities: self.source_ca.clone(),
                    plain_hosts: self.allow_http_host.iter().cloned().collect::<BTreeSet<_>>(),
                    allowed,
                    guard: self.registry.guard(),
                    sources,
                    name_server: self.registry.name_server,
                    user_agent: concat!("portcullis-loader/", env!("CARGO_PKG_VERSION")),
                },
                docker: self.registry.docker(),
                verification: self.registry.verification.clone(),
                trust_root: self.registry.trust_root.clone(),
                peers: siblings.peers,
                attempts: self.registry.fetch_attempts,
            },
            siblings_port: siblings.port,
            plan: PlanSettings {
                retry: Retry {
                    initial: self.retry_initial,
                    cap: self.retry_cap.max(self.retry_initial),
                    outside: self.retry_outside,
                },
                tombstone: self.tombstone,
                keep_newest: self.keep_newest,
                manifest_size,
            },
        })
    }
}

impl Args {
    /// The folders that `file:` modules may be below; a cluster has none.
    fn roots(&self, input: &Input) -> Result<Vec<PathBuf>, SettingError> {
        let directory = match input {
            Input::Folder(directory) => directory,
            Input::Cluster(_) if self.module_root.is_empty() => return Ok(Vec::new()),
            Input::Cluster(_) => {
                return Err(SettingError::new(
                    "--module-root",
                    "is for policies in a folder: a cluster names no files",
                ));
            }
        };
        let mut roots = vec![directory.folder().to_owned()];
        if let Some(folder) = &self.input.dir {
            roots.push(canonical("--dir", folder)?);
        }
        for root in &self.module_root {
            roots.push(canonical("--module-root", root)?);
        }
        roots.dedup();
        Ok(roots)
    }
}

fn canonical(setting: &str, folder: &Path) -> Result<PathBuf, SettingError> {
    let canonical = folder
        .canonicalize()
        .map_err(|error| SettingError::new(setting, format!("failed to find {}: {error}", folder.display())))?;
    if canonical.is_dir() {
        Ok(canonical)
    } else {
        Err(SettingError::new(setting, format!("{} is not a folder", folder.display())))
    }
}

fn at_least_one(setting: &str, value: u64) -> Result<(), SettingError> {
    if value == 0 { Err(SettingError::new(setting, "want at least 1")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn args(extra: &[&str]) -> Args {
        Args::parse_from(["portcullis-loader"].iter().chain(extra))
    }

    #[test]
    fn the_command_line_holds_together() {
        Args::command().debug_assert();
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [("0", Some(0)), ("512KiB", Some(524_288)), ("128MiB", Some(134_217_728)), ("x", None)] {
            assert_eq!(parse_bytes(text).ok(), bytes, "{text}");
        }
        assert!(parse_bytes("99999999999GiB").is_err());
    }

    #[test]
    fn the_volume_is_beside_the_policies() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().canonicalize().expect("a path");
        let settings = args(&["--dir", path.to_str().expect("text")]).settings().expect("good");
        assert_eq!(settings.volume, path.join(".portcullis/volume"));
        assert_eq!(settings.roots, [path]);
    }

    #[test]
    fn fault_l02_l03_l08_the_limits_are_those_of_the_rows_where_nothing_is_set() {
        let folder = tempfile::tempdir().expect("a folder");
        let settings = args(&["--dir", folder.path().to_str().expect("text")]).settings().expect("good");
        let web = &settings.fetching.web;
        assert_eq!((web.header, web.total), (Duration::from_secs(10), Duration::from_secs(60)));
        assert_eq!(web.lowest_rate, 1024);
        // What is pushed later is found within this time.
        assert_eq!(settings.plan.retry.outside, Duration::from_secs(600));
    }

    #[test]
    fn a_cluster_has_no_folder() {
        let volume = tempfile::tempdir().expect("a folder");
        let volume = volume.path().to_str().expect("text").to_owned();
        let cluster = ["--namespace", "a", "--volume", &volume];
        assert_eq!(args(&cluster).settings().expect("good").roots, Vec::<PathBuf>::new());
        for (more, setting) in
            [(&cluster[..2], "--volume"), (&[&cluster[..], &["--module-root", "/"]].concat(), "--module-root")]
        {
            let error = args(more).settings().expect_err(setting).to_string();
            assert!(error.starts_with(setting), "{error}");
        }
    }

    #[test]
    fn a_file_that_is_read_again_may_be_broken_at_the_start_unless_somebody_waits() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("broken");
        std::fs::write(&file, "]").expect("writes");
        let file = file.to_str().expect("text");
        let path = folder.path().to_str().expect("text").to_owned();
        for setting in ["--sources", "--verification", "--trust-root"] {
            let args = args(&["--dir", &path, setting, file]);
            let settings = args.settings().expect("it is read again");
            assert!(settings.fetching.files().iter().any(|watched| watched.ends_with("broken")));
            let registry = &args.registry;
            let error = registry.sources(false).map(drop).and_then(|()| registry.check(false)).expect_err(setting);
            assert!(error.to_string().starts_with(setting), "{error}");
        }
    }

    #[test]
    fn a_setting_that_cannot_be_used_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().to_str().expect("text").to_owned();
        for (setting, value) in [
            ("--dir", "/nowhere"),
            ("--module-root", "/nowhere"),
            ("--compile-jobs", "0"),
            ("--compile-memory", "1MiB"),
            ("--max-artifact-size", "0"),
            ("--volume-size", "31MiB"),
            ("--retry-cap", "0s"),
            ("--state-address", "0.0.0.0:1"),
            ("--source-ca", "/nowhere"),
            ("--allow-source", "https://example.com*"),
            ("--sources", "/nowhere"),
            ("--fetch-attempts", "0"),
            ("--verification", "/nowhere"),
            ("--trust-root", "/nowhere"),
            ("--namespaced-capability", "oci"),
        ] {
            let extra = if setting == "--dir" { vec![setting, value] } else { vec!["--dir", &path, setting, value] };
            let error = args(&extra).settings().expect_err(setting).to_string();
            assert!(error.starts_with(setting), "{error}");
        }
    }
}
