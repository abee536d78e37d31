//! Where the policies come from: exactly one of a folder, a `policies.yml` and a cluster.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use portcullis_kubernetes::{Access, is_object_name};
use portcullis_process::{SettingError, parse_duration};

use super::canonical;
use crate::input::{Directory, Installation};

/// The input's settings.
#[derive(Debug, Clone, Args)]
pub struct InputArgs {
    /// The folder of policy manifests. It is watched.
    #[arg(long, env = "PORTCULLIS_DIR", value_name = "DIR")]
    pub dir: Option<PathBuf>,

    /// A Kubewarden policies.yml, instead of the folder's manifests. It is watched.
    #[arg(long, env = "PORTCULLIS_POLICIES", value_name = "FILE")]
    pub policies: Option<PathBuf>,

    /// The namespace of the installation in a cluster, whose revisions are watched, instead of a folder.
    #[arg(long, env = "PORTCULLIS_NAMESPACE", value_name = "NAMESPACE")]
    pub namespace: Option<String>,

    /// With --namespace: which installation this is; policies name it as `policyServer`.
    #[arg(long, env = "PORTCULLIS_POLICY_SERVER", value_name = "NAME", default_value = "default")]
    pub policy_server: String,

    /// With --namespace: longest watch of the API server, 1s to 290s. It is begun again then, and 5 s later where the API server
    /// says nothing at all.
    #[arg(long, env = "PORTCULLIS_WATCH_TIMEOUT", value_name = "TIME", default_value = "290s", value_parser = parse_duration)]
    pub watch_timeout: Duration,

    /// With --namespace: how the API server is reached.
    #[command(flatten)]
    pub access: Access,
}

/// Where the policies come from.
#[derive(Debug, Clone)]
pub enum Input {
    /// A folder, or a file in one.
    Folder(Directory),
    /// The revisions of an installation.
    Cluster(Installation),
}

impl InputArgs {
    /// Checks that there is exactly one input.
    pub(super) fn input(&self) -> Result<Input, SettingError> {
        match (&self.namespace, &self.policies, &self.dir) {
            (Some(_), Some(_), _) => Err(both("--policies")),
            (Some(_), None, Some(_)) => Err(both("--dir")),
            (Some(namespace), None, None) => self.cluster(namespace).map(Input::Cluster),
            (None, Some(file), _) => policies_yml(file).map(Input::Folder),
            (None, None, Some(folder)) => Ok(Input::Folder(Directory::Manifests(canonical("--dir", folder)?))),
            (None, None, None) => Err(SettingError::new(
                "--dir",
                "want the folder of the policies, or --policies FILE, or --namespace NAMESPACE in a cluster",
            )),
        }
    }

    fn cluster(&self, namespace: &str) -> Result<Installation, SettingError> {
        for (setting, name) in [("--namespace", namespace), ("--policy-server", &self.policy_server)] {
            if !is_object_name(name) || name.len() > 63 {
                let problem =
                    format!("{name:?} is not a valid name: want at most 63 lower-case letters, digits, - and .");
                return Err(SettingError::new(setting, problem));
            }
        }
        let Some(watch_seconds @ 1..=290) = u32::try_from(self.watch_timeout.as_secs()).ok() else {
            return Err(SettingError::new("--watch-timeout", "want 1s to 290s"));
        };
        Ok(Installation {
            namespace: namespace.to_owned(),
            policy_server: self.policy_server.clone(),
            watch_seconds,
            access: self.access.clone(),
        })
    }
}

fn both(other: &str) -> SettingError {
    SettingError::new("--namespace", format!("goes without {other}: policies come from a cluster or from a folder"))
}

fn policies_yml(file: &Path) -> Result<Directory, SettingError> {
    let folder = match file.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return Err(SettingError::new("--policies", "want a file")),
    };
    let name = file.file_name().ok_or_else(|| SettingError::new("--policies", "want a file"))?;
    if file.is_dir() {
        return Err(SettingError::new("--policies", format!("{} is a folder", file.display())));
    }
    Ok(Directory::PoliciesYml(canonical("--policies", folder)?.join(name)))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        input: InputArgs,
    }

    fn input(args: &[&str]) -> Result<Input, String> {
        let args = ["portcullis-loader"].iter().chain(args);
        Only::parse_from(args).input.input().map_err(|error| error.to_string())
    }

    #[test]
    fn a_cluster_is_chosen_by_its_namespace() {
        let Ok(Input::Cluster(installation)) = input(&["--namespace", "portcullis"]) else { panic!("no cluster") };
        assert_eq!((installation.namespace.as_str(), installation.policy_server.as_str()), ("portcullis", "default"));
    }

    /// A watch that goes silent is noticed within five minutes.
    #[test]
    fn fault_r07_watches_are_limited_where_nothing_is_set() {
        let Ok(Input::Cluster(installation)) = input(&["--namespace", "portcullis"]) else { panic!("no cluster") };
        assert_eq!(installation.watch_seconds, 290);
    }

    #[test]
    fn exactly_one_input_is_wanted_and_named() {
        for (args, setting) in [
            (&[][..], "--dir"),
            (&["--namespace", "a", "--dir", "."], "--namespace: goes without --dir"),
            (&["--namespace", "a", "--policies", "a.yml"], "--namespace: goes without --policies"),
            (&["--namespace", "A"], "--namespace"),
            (&["--namespace", "a", "--policy-server", "a,b=c"], "--policy-server"),
            (&["--namespace", "a", "--policy-server", ""], "--policy-server"),
            (&["--namespace", "a", "--watch-timeout", "10m"], "--watch-timeout"),
        ] {
            let error = input(args).expect_err(setting);
            assert!(error.starts_with(setting), "{args:?}: {error}");
        }
    }
}
