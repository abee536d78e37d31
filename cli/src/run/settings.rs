//! The settings of a run, checked before anything is started.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use portcullis_process::SettingError;
use portcullis_process::telemetry::OtlpSettings;

use crate::args::{RunArgs, TableMode};

/// A state port is a probe port plus this.
const STATE_OFFSET: u16 = 1000;

/// What the user asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settings {
    /// The folder of policies.
    pub(super) dir: PathBuf,
    /// A `policies.yml`, instead of manifests.
    pub(super) policies: Option<PathBuf>,
    /// Further folders for modules.
    pub(super) module_roots: Vec<PathBuf>,
    /// The volume, if not the usual one.
    pub(super) volume: Option<PathBuf>,
    /// The admission port.
    pub(super) admission: SocketAddr,
    /// The probe ports: evaluator, loader, reporter.
    pub(super) probes: [SocketAddr; 3],
    /// The state ports on the loopback: evaluator, loader.
    pub(super) states: [SocketAddr; 2],
    /// Whether to serve without TLS.
    pub(super) plain_http: bool,
    /// Whether to use Kubewarden's names of metrics too.
    pub(super) kubewarden_metrics: bool,
    /// The evaluator's arguments about what it exports.
    pub(super) exports: Vec<OsString>,
    /// Whether to show a table that is redrawn, instead of lines.
    pub(super) live: bool,
    /// Whether to print logs to standard error too.
    pub(super) logs: bool,
    /// The loader's arguments about which addresses modules may have, and how it asks registries.
    pub(super) access: Vec<OsString>,
}

impl Settings {
    /// Checks what the user asked for.
    pub(super) fn check(args: &RunArgs) -> Result<Self, SettingError> {
        folder("DIR", &args.dir)?;
        for root in &args.module_roots {
            folder("--module-root", root)?;
        }
        if let Some(policies) = args.policies.as_ref().filter(|policies| !policies.is_file()) {
            let problem = format!("{} is not there, or is not a file", policies.display());
            return Err(SettingError::new("--policies", problem));
        }
        args.loader.access.check()?;
        let terminal = io::stdout().is_terminal();
        Ok(Self {
            dir: args.dir.clone(),
            policies: args.policies.clone(),
            module_roots: args.module_roots.clone(),
            volume: args.volume.clone(),
            admission: args.address,
            probes: [port(args, 0)?, port(args, 1)?, port(args, 2)?],
            states: [state_port(args, 0)?, state_port(args, 1)?],
            plain_http: args.plain_http,
            kubewarden_metrics: args.kubewarden_metrics,
            exports: exports(&OtlpSettings::from_env()),
            live: match args.table {
                // Log lines would appear between the lines of the table.
                TableMode::Auto => terminal && !(args.logs && io::stderr().is_terminal()),
                TableMode::Live => true,
                TableMode::Lines => false,
            },
            logs: args.logs,
            access: args.loader.for_loader(),
        })
    }

    /// Tries every port that is not 0, so that one in use is reported with the flag that chooses another.
    pub(super) fn check_ports(&self) -> Result<(), SettingError> {
        let probes = "--probe-address";
        let ports = [
            ("--address", "admission reviews", self.admission),
            (probes, "the evaluator's probes", self.probes[0]),
            (probes, "the loader's probes", self.probes[1]),
            (probes, "the reporter's probes", self.probes[2]),
            (probes, "the evaluator's state", self.states[0]),
            (probes, "the loader's state", self.states[1]),
        ];
        // Held until all are tried, so that two uses of one port are found, too.
        let mut held = Vec::new();
        for (flag, use_of, address) in ports {
            match TcpListener::bind(address) {
                Ok(listener) => held.push(listener),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    let example = SocketAddr::new(address.ip(), 0);
                    let problem = format!(
                        "{address} ({use_of}) is in use; stop the program that uses it, or choose another port, for \
                         instance {flag} {example} for any free one"
                    );
                    return Err(SettingError::new(flag, problem));
                }
                Err(error) => return Err(SettingError::new(flag, format!("{address} ({use_of}): {error}"))),
            }
        }
        Ok(())
    }
}

fn folder(setting: &str, path: &Path) -> Result<(), SettingError> {
    match path.metadata() {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(SettingError::new(setting, format!("{} is not a folder", path.display()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(SettingError::new(setting, format!("there is no folder {}", path.display())))
        }
        Err(error) => Err(SettingError::new(setting, format!("{}: {error}", path.display()))),
    }
}

/// The evaluator's flags for the signals that have a collector. It does not get the variables that name the collector, since these may hold
/// credentials.
fn exports(otlp: &OtlpSettings) -> Vec<OsString> {
    let signals = [("--export-traces", &otlp.traces), ("--export-metrics", &otlp.metrics)];
    let exported = signals.into_iter().filter(|(_, target)| matches!(target, Ok(Some(_))));
    exported.map(|(flag, _)| flag.into()).collect()
}

/// The probe port plus `place`, or any free port if 0 was asked for.
fn port(args: &RunArgs, place: u16) -> Result<SocketAddr, SettingError> {
    let first = args.probe_address;
    let port = match first.port() {
        0 => Some(0),
        port => port.checked_add(place),
    };
    let port = port.ok_or_else(|| {
        SettingError::new("--probe-address", format!("{} has no room for the next two ports", first.port()))
    })?;
    Ok(SocketAddr::new(first.ip(), port))
}

fn state_port(args: &RunArgs, place: u16) -> Result<SocketAddr, SettingError> {
    let port = match args.probe_address.port() {
        0 => Some(0),
        port => port.checked_add(STATE_OFFSET + place),
    };
    let port = port.ok_or_else(|| {
        let problem = format!("{} is too high: the state port is {STATE_OFFSET} above", args.probe_address.port());
        SettingError::new("--probe-address", problem)
    })?;
    Ok(SocketAddr::from(([127, 0, 0, 1], port)))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Args, Command};

    fn settings(arguments: &[&str]) -> Result<Settings, String> {
        let dir = tempfile::tempdir().expect("a folder");
        let dir = dir.path().to_str().expect("text");
        let args = Args::try_parse_from(["portcullis", "run", dir].iter().chain(arguments)).expect("parses");
        let Command::Run(args) = args.command else { panic!("another command") };
        Settings::check(&args).map_err(|error| error.to_string())
    }

    #[test]
    fn what_has_a_collector_is_exported() {
        let flags = |variable: (&str, &str)| {
            exports(&OtlpSettings::of(|name| (name == variable.0).then(|| variable.1.to_owned())))
        };
        let url = "http://localhost:4318";
        assert!(flags(("PATH", url)).is_empty());
        assert_eq!(flags(("OTEL_EXPORTER_OTLP_ENDPOINT", url)), ["--export-traces", "--export-metrics"]);
        assert_eq!(flags(("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", url)), ["--export-metrics"]);
    }

    #[test]
    fn ports_follow_from_the_probe_address() {
        let settings = settings(&["--probe-address", "127.0.0.1:18081"]).expect("good");
        assert_eq!(settings.probes.map(|probe| probe.port()), [18081, 18082, 18083]);
        assert_eq!(settings.states.map(|state| state.to_string()), ["127.0.0.1:19081", "127.0.0.1:19082"]);
    }

    #[test]
    fn port_0_is_0_everywhere() {
        let settings = settings(&["--probe-address", "127.0.0.1:0", "--address", "127.0.0.1:0"]).expect("good");
        assert!(settings.probes.iter().chain(&settings.states).all(|address| address.port() == 0));
        settings.check_ports().expect("free ports are free");
    }

    #[test]
    fn a_port_in_use_is_told_with_its_flag() {
        let taken = TcpListener::bind("127.0.0.1:0").expect("binds");
        let address = taken.local_addr().expect("an address").to_string();
        let settings = settings(&["--address", &address, "--probe-address", "127.0.0.1:0"]).expect("good");
        let error = settings.check_ports().expect_err("refused").to_string();
        assert_eq!(
            error,
            format!(
                "--address: {address} (admission reviews) is in use; stop the program that uses it, or choose another \
                 port, for instance --address 127.0.0.1:0 for any free one"
            )
        );
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        assert!(
            settings(&["--probe-address", "127.0.0.1:65000"]).expect_err("refused").starts_with("--probe-address:")
        );
        assert!(settings(&["--policies", "nowhere.yml"]).expect_err("refused").starts_with("--policies: nowhere.yml"));
        assert!(
            settings(&["--source-ca", "nowhere"]).expect_err("refused").starts_with("--source-ca: there is no file")
        );
        assert!(
            settings(&["--module-root", "nowhere"])
                .expect_err("refused")
                .starts_with("--module-root: there is no folder nowhere")
        );
    }
}
