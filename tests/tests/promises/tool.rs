//! Helpers to run the command-line tool like a user.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use portcullis_tests::{Program, program};

/// The tool with these arguments, and without settings in the environment except the time limit of policies: on a busy machine they may
/// need longer than the default.
pub(crate) fn command<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(program(Program::Cli));
    for (key, _) in env::vars_os() {
        let text = key.to_string_lossy().to_uppercase();
        if text.starts_with("PORTCULLIS_") || text.ends_with("_PROXY") {
            command.env_remove(&key);
        }
    }
    command.env("PORTCULLIS_POLICY_TIMEOUT", "10s").args(args);
    command
}

/// Runs the tool and waits until it ends.
pub(crate) fn run<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Output {
    command(args).output().expect("it starts")
}

/// The output of a command on both streams.
pub(crate) fn written(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The repository's examples.
pub(crate) fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
}

/// Copies the examples, without hidden files, which a pod may have left there.
pub(crate) fn copy_examples(to: &Path) {
    for entry in fs::read_dir(examples()).expect("they are there").flatten() {
        let name = entry.file_name();
        if name.to_string_lossy().starts_with('.') {
            continue;
        }
        if entry.path().is_dir() {
            fs::create_dir_all(to.join(&name)).expect("a folder");
            for file in fs::read_dir(entry.path()).expect("a folder").flatten() {
                fs::copy(file.path(), to.join(&name).join(file.file_name())).expect("copies");
            }
        } else {
            fs::copy(entry.path(), to.join(&name)).expect("copies");
        }
    }
}
