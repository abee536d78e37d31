//! How each program is started: its arguments from settings, folders and the addresses known so far.

use std::collections::HashMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use portcullis_process::files::FileError;

use super::banner;
use super::settings::Settings;
use crate::child::{ChildSpec, Echo};
use crate::layout::Layout;
use crate::program::Program;

/// No EndpointSlice names this pod, so it need not wait until API servers notice that it ends.
const DRAIN_DELAY: &str = "0s";

/// Variables that hold the collector's credentials, in headers or in its URL.
const COLLECTOR: &[&str] = &["OTEL_EXPORTER_OTLP_"];

/// Everything that a program is started with.
pub(super) struct Plan {
    pub(super) settings: Settings,
    pub(super) layout: Layout,
    pub(super) evaluator: PathBuf,
    pub(super) loader: PathBuf,
    pub(super) reporter: PathBuf,
}

/// The pod's addresses: first those that were asked for, then those that the programs have logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Addresses {
    pub(super) admission: SocketAddr,
    /// Evaluator, loader, reporter.
    pub(super) probes: [SocketAddr; 3],
    pub(super) evaluator_state: SocketAddr,
    pub(super) loader_state: SocketAddr,
}

impl Addresses {
    pub(super) fn asked(settings: &Settings) -> Self {
        Self {
            admission: settings.admission,
            probes: settings.probes,
            evaluator_state: settings.states[0],
            loader_state: settings.states[1],
        }
    }

    pub(super) fn learn_evaluator(&mut self, told: &HashMap<String, SocketAddr>) {
        learn(&mut self.admission, told, "admission");
        learn(&mut self.probes[0], told, "probes");
        learn(&mut self.evaluator_state, told, "state");
    }

    pub(super) fn learn_loader(&mut self, told: &HashMap<String, SocketAddr>) {
        learn(&mut self.probes[1], told, "probes");
        learn(&mut self.loader_state, told, "state");
    }

    pub(super) fn learn_reporter(&mut self, told: &HashMap<String, SocketAddr>) {
        learn(&mut self.probes[2], told, "probes");
    }
}

fn learn(address: &mut SocketAddr, told: &HashMap<String, SocketAddr>, port: &str) {
    if let Some(told) = told.get(port) {
        *address = *told;
    }
}

impl Plan {
    /// Makes logs start empty with each run. A program that is started again appends to its log, since the log must show how it ended before.
    pub(super) fn begin_logs(&self) -> Result<(), FileError> {
        for program in [Program::Evaluator, Program::Loader, Program::Reporter] {
            let path = self.log(program);
            std::fs::write(&path, "").map_err(FileError::new("write", &path))?;
        }
        Ok(())
    }

    fn log(&self, program: Program) -> PathBuf {
        self.layout.logs.join(format!("{program}.log"))
    }

    fn spec(&self, program: Program, ports: &'static [&'static str], arguments: Arguments) -> ChildSpec {
        let path = match program {
            Program::Evaluator => &self.evaluator,
            Program::Loader => &self.loader,
            Program::Reporter => &self.reporter,
        };
        ChildSpec {
            program,
            path: path.clone(),
            arguments: arguments.0,
            // The evaluator must not have secrets; the loader sends its spans and metrics.
            unset: if program == Program::Evaluator { COLLECTOR } else { &[] },
            ports,
            log: Some(self.log(program)),
            echo: if self.settings.logs { Echo::All } else { Echo::Nothing },
            speaks: program == Program::Reporter,
        }
    }

    fn volume(&self) -> &PathBuf {
        self.settings.volume.as_ref().unwrap_or(&self.layout.volume)
    }

    pub(super) fn evaluator(&self, addresses: &Addresses) -> ChildSpec {
        let mut arguments = Arguments::default()
            .with("--volume", self.volume())
            .with("--private-dir", &self.layout.private)
            .with("--broker-socket", &self.layout.broker)
            .with("--address", addresses.admission.to_string())
            .with("--probe-address", addresses.probes[0].to_string())
            .with("--state-address", addresses.evaluator_state.to_string())
            .with("--policy-paths", "on")
            .with("--audit", "on")
            .with("--validate-raw", "on")
            .with("--drain-delay", DRAIN_DELAY);
        if self.settings.plain_http {
            arguments.0.push("--plain-http".into());
        } else {
            arguments = arguments.with("--tls-dir", &self.layout.tls);
        }
        if self.settings.kubewarden_metrics {
            arguments.0.push("--kubewarden-metrics".into());
        }
        arguments.0.extend(self.settings.exports.iter().cloned());
        self.spec(Program::Evaluator, &["admission", "probes", "state"], arguments)
    }

    pub(super) fn loader(&self, addresses: &Addresses) -> ChildSpec {
        let mut arguments = Arguments::default()
            .with("--dir", &self.settings.dir)
            .with("--volume", self.volume())
            .with("--broker-socket", &self.layout.broker)
            .with("--policy-paths", "on")
            .with("--probe-address", addresses.probes[1].to_string())
            .with("--state-address", addresses.loader_state.to_string())
            .with("--evaluator-state", addresses.evaluator_state.to_string());
        for root in &self.settings.module_roots {
            arguments = arguments.with("--module-root", root);
        }
        if let Some(policies) = &self.settings.policies {
            arguments = arguments.with("--policies", policies);
        }
        arguments.0.extend(self.settings.access.iter().cloned());
        self.spec(Program::Loader, &["probes", "state"], arguments)
    }

    pub(super) fn reporter(&self, addresses: &Addresses) -> ChildSpec {
        let mut arguments = Arguments::default()
            .with("--status-dir", &self.layout.status)
            .with("--probe-address", addresses.probes[2].to_string())
            .with("--loader-state", addresses.loader_state.to_string())
            .with("--evaluator-state", addresses.evaluator_state.to_string())
            .with("--table", if self.settings.live { "live" } else { "lines" })
            .with("--command", banner::command())
            .with("--dir", banner::folder(&self.settings));
        arguments.0.push("--notes".into());
        self.spec(Program::Reporter, &["probes"], arguments)
    }
}

#[derive(Default)]
struct Arguments(Vec<OsString>);

impl Arguments {
    fn with(mut self, flag: &str, value: impl Into<OsString>) -> Self {
        self.0.extend([flag.into(), value.into()]);
        self
    }
}
