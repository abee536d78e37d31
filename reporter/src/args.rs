//! Settings.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use portcullis_process::{LogArgs, SettingError};

use crate::TableMode;
use crate::kubernetes::{KubernetesArgs, Settings};
use crate::line::Describe;

/// Tells every policy's state: reads what loader and evaluator of this pod say on the loopback, and writes it to Kubernetes, or to a
/// table or lines on standard output and to one file a policy.
#[derive(Debug, Clone, Parser)]
#[command(name = "portcullis-reporter", version)]
pub struct Args {
    /// The address at which the loader serves its state.
    #[arg(long, env = "PORTCULLIS_LOADER_STATE", value_name = "ADDRESS", default_value = "127.0.0.1:9082")]
    pub loader_state: SocketAddr,

    /// The address at which the evaluator serves its state.
    #[arg(long, env = "PORTCULLIS_EVALUATOR_STATE", value_name = "ADDRESS", default_value = "127.0.0.1:9081")]
    pub evaluator_state: SocketAddr,

    /// The folder for status: <id>.yaml for each policy, and events.jsonl. Made if it is not there. Needed where there is no
    /// --namespace.
    #[arg(long, env = "PORTCULLIS_STATUS_DIR", value_name = "PATH")]
    pub status_dir: Option<PathBuf>,

    /// In Kubernetes.
    #[command(flatten)]
    pub kubernetes: KubernetesArgs,

    /// Where /livez, /readyz and /metrics are served.
    #[arg(long, env = "PORTCULLIS_PROBE_ADDRESS", value_name = "ADDRESS", default_value = "[::]:8083")]
    pub probe_address: SocketAddr,

    /// How policies are shown on standard output.
    #[arg(long, env = "PORTCULLIS_TABLE", value_enum, default_value = "auto")]
    pub table: TableMode,

    /// The name of this pod in the status; the variable POD_NAME or the host's name where absent.
    #[arg(long, env = "PORTCULLIS_POD_NAME", value_name = "NAME")]
    pub pod_name: Option<String>,

    /// Print each line of standard input above the table. For a program that shares the terminal.
    #[arg(long, hide = true)]
    pub notes: bool,

    /// How the user calls `portcullis`, as a word of a shell, for the commands in lines.
    #[arg(long, hide = true, default_value = "portcullis")]
    pub command: String,

    /// The folder of policies, as a word of a shell, for the commands in lines; none in a cluster.
    #[arg(long, hide = true)]
    pub dir: Option<String>,

    /// Logs.
    #[command(flatten)]
    pub log: LogArgs,
}

impl Args {
    /// Checks what clap cannot.
    ///
    /// # Errors
    /// The first setting that cannot be used.
    pub fn check(&self) -> Result<(), SettingError> {
        for (name, address) in [("--loader-state", self.loader_state), ("--evaluator-state", self.evaluator_state)] {
            if !address.ip().is_loopback() {
                let problem = format!("{address} is not on the loopback; programs show their state there only");
                return Err(SettingError::new(name, problem));
            }
            if address.port() == 0 {
                return Err(SettingError::new(name, "want the port that the program listens on, not 0"));
            }
        }
        if let Some(folder) = self.status_dir.as_ref().filter(|folder| folder.is_file()) {
            let problem = format!("{} is a file; name a folder", folder.display());
            return Err(SettingError::new("--status-dir", problem));
        }
        if self.status_dir.is_none() && self.kubernetes.namespace.is_none() {
            let problem =
                "needed where there is no --namespace: the status is written there, to Kubernetes, or to both";
            return Err(SettingError::new("--status-dir", problem));
        }
        self.cluster().map(|_| ())
    }

    /// The name of this pod.
    pub fn pod_name(&self) -> String {
        let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        let name = self.pod_name.clone().or_else(|| std::env::var("POD_NAME").ok());
        portcullis_contract::clean(&name.unwrap_or_else(host), 253)
    }

    /// The command that shows a policy.
    pub(crate) fn describe(&self) -> Describe {
        Describe { command: self.command.clone(), dir: self.dir.clone() }
    }

    /// The settings of the output to Kubernetes; none where it is not wanted.
    pub(crate) fn cluster(&self) -> Result<Option<Settings>, SettingError> {
        self.kubernetes.settings(self.pod_name.as_deref(), |name| std::env::var(name).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(arguments: &[&str]) -> String {
        let base = ["portcullis-reporter", "--status-dir", "status"];
        let args = Args::try_parse_from(base.iter().chain(arguments)).expect("parses");
        args.check().err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_state_address_off_the_loopback_is_refused_by_name() {
        assert_eq!(check(&[]), "");
        assert!(check(&["--loader-state", "10.0.0.1:9082"]).starts_with("--loader-state: 10.0.0.1:9082 is not on"));
        assert!(check(&["--evaluator-state", "127.0.0.1:0"]).starts_with("--evaluator-state: want the port"));
    }

    #[test]
    fn one_of_the_outputs_must_be_given() {
        let args = Args::try_parse_from(["portcullis-reporter"]).expect("parses");
        let error = args.check().err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.starts_with("--status-dir: needed where there is no --namespace"), "{error}");
    }
}
