//! The real Helm, built once and kept in the cache, and the chart of this repository.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use serde_json::Value;

use crate::go::GoProgram;
use crate::kubectl::COLLECTOR;
use crate::{Cache, Error, Output};

/// The version of helm.
pub const HELM_VERSION: &str = "v4.3.1";

/// The sources to build.
const SOURCES: [(&str, &str); 2] =
    [("go.mod", include_str!("../helm/go.mod")), ("go.sum", include_str!("../helm/go.sum"))];

/// The program, built.
#[derive(Debug, Clone)]
pub struct Helm {
    program: PathBuf,
}

impl Helm {
    /// Helm from the cache, if it is there.
    pub fn built(cache: &Cache) -> Option<Self> {
        program().built(cache).map(|bin| Self { program: bin.join("helm") })
    }

    /// Helm from the cache; builds it first if it is not there, which takes minutes. `tell` gets lines about the progress.
    ///
    /// # Errors
    /// When the build fails.
    pub fn build(cache: &Cache, tell: &dyn Fn(&str)) -> Result<Self, Error> {
        program().build(cache, tell).map(|bin| Self { program: bin.join("helm") })
    }

    /// Its path.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The folder of the chart.
    pub fn chart() -> PathBuf {
        crate::repository().join("helm")
    }

    /// The command, without the user's own settings. Without a kubeconfig it talks to no cluster.
    pub fn command(&self, kubeconfig: Option<&Path>) -> Command {
        let mut command = Command::new(&self.program);
        for (key, _) in std::env::vars_os() {
            if ["HELM_", "KUBE"].iter().any(|prefix| key.to_string_lossy().starts_with(prefix)) {
                command.env_remove(&key);
            }
        }
        command.env("KUBECONFIG", kubeconfig.unwrap_or(Path::new("/nonexistent")));
        // Proxies cannot reach addresses of this machine.
        command.env("NO_PROXY", "*");
        command
    }

    /// Runs it, with this text as its standard input. Without a kubeconfig it talks to no cluster.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn run<'a>(&self, kubeconfig: Option<&Path>, args: impl IntoIterator<Item = &'a str>, input: &str) -> Output {
        let mut child = self
            .command(kubeconfig)
            .args(args)
            .envs(COLLECTOR)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("failed to start helm: {error}"));
        let mut stdin = child.stdin.take().expect("standard input is a pipe");
        let output = thread::scope(|scope| {
            // It may end without reading everything.
            scope.spawn(move || stdin.write_all(input.as_bytes()).ok());
            child.wait_with_output().expect("a child can be waited for")
        });
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Output { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    /// The output of `helm template` for these values, or Helm's error.
    pub fn template(&self, release: &str, namespace: &str, values: &Value) -> Output {
        let chart = Self::chart().display().to_string();
        let args = ["template", release, &chart, "--namespace", namespace, "--values", "-"];
        self.run(None, args, &values.to_string())
    }
}

/// The objects of a text with several YAML documents.
///
/// # Panics
/// When it is not YAML.
pub fn objects_of(text: &str) -> Vec<Value> {
    portcullis_yaml::read_documents(text).unwrap_or_else(|error| panic!("no YAML: {error}"))
}

fn program() -> GoProgram {
    GoProgram {
        name: "helm",
        file: "helm",
        version: HELM_VERSION,
        sources: &SOURCES,
        packages: &["helm.sh/helm/v4/cmd/helm"],
        links: &[],
        linker_flags: "-s -w".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_sources() {
        assert!(SOURCES[0].1.contains(&format!("helm.sh/helm/v4 {HELM_VERSION}")));
    }

    /// Otherwise the libraries of Kubernetes are compiled twice, which is two thirds of what helm takes.
    #[test]
    fn what_kubernetes_has_as_well_is_in_the_same_version() {
        let kubernetes = include_str!("../kubernetes/go.mod");
        let replaced: Vec<_> = SOURCES[0].1.lines().filter_map(|line| line.split_once(" => ")).collect();
        assert!(replaced.len() > 10, "{replaced:?}");
        for (_, module) in replaced {
            let is_module = |line: &str| line.trim().split(" => ").last().is_some_and(|line| line.starts_with(module));
            assert!(kubernetes.lines().any(is_module), "Kubernetes has another version of {module}");
        }
    }

    #[test]
    fn a_text_may_have_several_objects_or_none() {
        assert_eq!(objects_of("---\n# nothing\n---\nkind: A\n---\nkind: B\n").len(), 2);
    }
}
