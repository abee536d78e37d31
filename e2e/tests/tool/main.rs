//! `portcullis get`, `describe`, `history`, `diff`, `rollback`, `audit` and `impact` against a real API server, for users with few rights.
//!
//! Most tests play the leader of the reporters and the controller themselves, so that the tool reads the same each time.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a helper of tests fails like the test")]

mod audit;
mod going_back;
mod impact;
mod looking;
mod plugin;
mod scene;
mod whole;

use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use portcullis_e2e::{Cluster, Installation, InstallationOptions, Options, Output, Program};

/// The cluster of all tests of this binary.
fn cluster() -> &'static Cluster {
    static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| Cluster::start(&Options::default()).unwrap());
    &CLUSTER
}

/// An installation without pods: definitions and a namespace.
fn install(name: &str) -> Installation<'static> {
    Installation::start(cluster(), InstallationOptions::named(name).certified_by_the_test())
}

/// A command with this kubeconfig, without the settings of the user who runs the tests.
fn command(program: &Path, kubeconfig: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env("KUBECONFIG", kubeconfig)
        .env("HOME", cluster().folder())
        .env("NO_PROXY", "*")
        // Evaluations of `eval` and `impact` may have to wait on a busy machine.
        .env("PORTCULLIS_POLICY_TIMEOUT", "10s")
        .env_remove("PORTCULLIS_INSTALLATION_NAMESPACE")
        .current_dir(cluster().folder());
    command
}

/// Runs the tool and returns its output.
fn portcullis(kubeconfig: &Path, arguments: &[&str]) -> Output {
    run(command(&Program::Cli.path(), kubeconfig).args(arguments))
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Output { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}
