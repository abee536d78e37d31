//! The real kubectl, without the user's own settings.

use std::io::{Read, Write as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::Kubernetes;

/// The environment of programs in Go that end soon: collecting garbage pays only when there is much of it.
pub(crate) const COLLECTOR: [(&str, &str); 2] = [("GOGC", "off"), ("GOMEMLIMIT", "512MiB")];

/// The output of a program, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Its exit status; absent when a signal ended it.
    pub code: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Output {
    /// Whether it succeeded.
    pub fn is_ok(&self) -> bool {
        self.code == Some(0)
    }

    /// The warnings in its standard error, which on a busy machine can also have many lines about slow answers.
    pub fn warnings(&self) -> Vec<&str> {
        self.stderr.lines().filter(|line| line.starts_with("Warning: ")).collect()
    }

    /// Its standard output, trimmed.
    ///
    /// # Panics
    /// When it did not succeed.
    pub fn expect(&self, what: &str) -> &str {
        assert!(self.is_ok(), "{what}: kubectl ended with {:?}:\n{}{}", self.code, self.stdout, self.stderr);
        self.stdout.trim()
    }

    /// Its standard output as JSON, after `--output=json`.
    ///
    /// # Panics
    /// When it did not succeed, or wrote something else.
    pub fn json(&self, what: &str) -> Value {
        serde_json::from_str(self.expect(what)).unwrap_or_else(|error| panic!("{what}: {error}:\n{}", self.stdout))
    }
}

/// A call of kubectl.
pub(crate) struct Kubectl {
    command: Command,
}

impl Kubectl {
    /// kubectl with this kubeconfig; its cache is below `folder`.
    pub(crate) fn new(kubernetes: &Kubernetes, kubeconfig: &Path, folder: &Path) -> Self {
        let mut command = Command::new(kubernetes.program("kubectl"));
        command
            .env("KUBECONFIG", kubeconfig)
            // Clusters use the same addresses one after the other, so one cluster's cache would be wrong for the next.
            .env("KUBECACHEDIR", folder.join("kubectl-cache"))
            // Proxies cannot reach addresses of this machine.
            .env("NO_PROXY", "*");
        Self { command }
    }

    /// The command, for running it in another way.
    pub(crate) fn into_command(self) -> Command {
        self.command
    }

    /// Runs it to its end, or kills it after `limit`, so that an API server that is down or paused does not hang a
    /// test.
    pub(crate) fn run<'a>(mut self, args: impl IntoIterator<Item = &'a str>, input: &str, limit: Duration) -> Output {
        self.command
            .args(args)
            .env("KUBERC", "off")
            .envs(COLLECTOR)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = self.command.spawn().unwrap_or_else(|error| panic!("failed to start kubectl: {error}"));
        let mut stdin = child.stdin.take().expect("standard input is a pipe");
        let mut stderr = child.stderr.take().expect("standard error is a pipe");
        let mut stdout = child.stdout.take().expect("standard output is a pipe");
        let read = |pipe: &mut dyn Read| {
            let mut bytes = Vec::new();
            pipe.read_to_end(&mut bytes).map(|_| bytes).unwrap_or_default()
        };
        // All three streams at the same time, as each may hold more than a pipe does.
        let (status, output, mut errors) = thread::scope(|scope| {
            // kubectl may end without reading everything.
            scope.spawn(move || stdin.write_all(input.as_bytes()).ok());
            let errors = scope.spawn(move || read(&mut stderr));
            let output = scope.spawn(move || read(&mut stdout));
            let status = wait(&mut child, limit);
            let join = |reader: thread::ScopedJoinHandle<'_, Vec<u8>>| reader.join().expect("reading does not panic");
            (status, join(output), join(errors))
        });
        if status.is_none() {
            errors.extend(format!("kubectl was killed, as it had not ended after {limit:?}\n").into_bytes());
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Output { code: status.and_then(|status| status.code()), stdout: text(&output), stderr: text(&errors) }
    }
}

/// The exit status; `None` if it had to be killed.
fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return Some(status);
        }
        if start.elapsed() > limit {
            // It may have ended by itself just now.
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "the list: kubectl ended with Some(1):\nno such thing")]
    fn a_failure_shows_what_kubectl_said() {
        Output { code: Some(1), stdout: String::new(), stderr: "no such thing".to_owned() }.expect("the list");
    }

    #[test]
    fn warnings_are_told_apart_from_other_lines() {
        let stderr = "I0101 request.go:752] Waited for 1s\nWarning: would violate PodSecurity\n".to_owned();
        let output = Output { code: Some(0), stdout: String::new(), stderr };
        assert_eq!(output.warnings(), ["Warning: would violate PodSecurity"]);
    }

    #[test]
    fn output_can_be_json() {
        let output = Output { code: Some(0), stdout: "{\"a\": 1}\n".to_owned(), stderr: String::new() };
        assert_eq!(output.json("the object")["a"], 1);
    }
}
