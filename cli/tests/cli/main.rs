//! The command-line tool as a user sees it, for all that needs no other program.
#![forbid(unsafe_code)]

mod cluster;
mod completion;
mod folders;
mod health;
mod page;
mod refusals;
mod status;
mod unsteady;

use std::path::Path;
use std::process::Command;

/// What a command printed, and how it ended.
#[derive(Debug)]
struct Printed {
    code: Option<i32>,
    out: String,
    err: String,
}

fn portcullis(folder: &Path, arguments: &[&str]) -> Printed {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    // Do not use the cluster of the user who runs the tests.
    command.env_remove("KUBECONFIG").env_remove("KUBERNETES_SERVICE_HOST").env("HOME", folder);
    // A busy machine may take longer than users wait.
    command.env("PORTCULLIS_COMPLETION_TIMEOUT", "10m");
    let output = command.args(arguments).current_dir(folder).env("PATH", "").output().expect("runs");
    Printed {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).expect("text"),
        err: String::from_utf8(output.stderr).expect("text"),
    }
}
