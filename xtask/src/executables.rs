//! The executables of all tests. They are built together, so that dependencies are compiled once, and run one by one.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::progress;
use crate::workspace::Workspace;

/// One executable that cargo has built.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Executable {
    /// The name of its package.
    pub(crate) package: String,
    /// `lib`, `bin`, `test` or `example`.
    pub(crate) kind: String,
    /// The name of the library, the program or the folder of tests.
    pub(crate) target: String,
    /// Whether it is the unit tests, and not the program itself.
    pub(crate) is_test: bool,
    /// The package's folder, in which cargo runs tests.
    folder: PathBuf,
    path: PathBuf,
}

/// All executables, once they are built.
#[derive(Default)]
pub(crate) struct Executables(OnceLock<Vec<Executable>>);

impl Executables {
    /// Builds the tests of all packages, and the programs that these start. Returns what is wrong, a sentence each.
    pub(crate) fn build(&self, workspace: &Workspace) -> Result<Vec<String>> {
        let mut command = workspace.cargo("test");
        command.args(["--workspace", "--no-run"]);
        let mut found = Vec::new();
        let is_built =
            progress::watch_messages(command, &[], "building the tests", |message| found.extend(executable(message)))?;
        if !is_built {
            return Ok(vec!["the tests do not build; the compiler's output is above".to_owned()]);
        }
        self.0.get_or_init(|| found);
        Ok(Vec::new())
    }

    /// The commands that run the executables selected by `is_wanted`, with these arguments.
    pub(crate) fn start(&self, wanted: impl Fn(&Executable) -> bool, args: &[OsString]) -> Result<Vec<Command>> {
        let all = self.0.get().context("the tests were not built")?;
        Ok(all.iter().filter(|one| wanted(one)).map(|one| one.command(args)).collect())
    }
}

impl Executable {
    fn command(&self, args: &[OsString]) -> Command {
        let mut command = Command::new(&self.path);
        command.args(args).current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }
}

/// The executable that a message of cargo announces, if it announces one.
fn executable(message: &Value) -> Option<Executable> {
    let path = message["executable"].as_str()?;
    let target = &message["target"];
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    Some(Executable {
        package: package_name(message["package_id"].as_str()?)?.to_owned(),
        kind: target["kind"][0].as_str()?.to_owned(),
        target: target["name"].as_str()?.to_owned(),
        is_test: message["profile"]["test"].as_bool()?,
        folder,
        path: path.into(),
    })
}

/// The name in an id like `path+file:///repository/loader#portcullis-loader@0.1.0`. The id leaves the name out if the folder has the
/// same name: `path+file:///repository/xtask#0.1.0`, see <https://doc.rust-lang.org/cargo/reference/pkgid-spec.html>.
fn package_name(id: &str) -> Option<&str> {
    let (url, fragment) = id.rsplit_once('#')?;
    match fragment.rsplit_once('@') {
        Some((name, _)) => Some(name),
        None => url.rsplit('/').next(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn linked(id: &str, executable: &Value) -> Value {
        json!({
            "reason": "compiler-artifact", "package_id": id, "manifest_path": "/repository/loader/Cargo.toml",
            "target": { "kind": ["test"], "name": "faults" }, "profile": { "test": true }, "executable": executable,
        })
    }

    #[test]
    fn an_id_has_the_name_behind_the_folder_or_as_the_folder() {
        assert_eq!(package_name("path+file:///repository/loader#portcullis-loader@0.1.0"), Some("portcullis-loader"));
        assert_eq!(package_name("path+file:///repository/xtask#0.1.0"), Some("xtask"));
        assert_eq!(package_name("no id"), None);
    }

    #[test]
    fn what_was_linked_is_started_in_the_folder_of_its_package() {
        let executable =
            executable(&linked("path+file:///repository/loader#0.1.0", &json!("/target/faults-1"))).unwrap();
        assert_eq!((executable.package.as_str(), executable.target.as_str()), ("loader", "faults"));
        let executables = Executables::default();
        executables.0.set(vec![executable]).unwrap();
        let commands = executables.start(|one| one.kind == "test" && one.is_test, &["--list".into()]).unwrap();
        assert_eq!(commands.len(), 1);
        assert_eq!(commands[0].get_program(), "/target/faults-1");
        assert_eq!(commands[0].get_current_dir(), Some(Path::new("/repository/loader")));
        assert_eq!(executables.start(|one| one.kind == "bin", &[]).unwrap().len(), 0);
    }

    #[test]
    fn a_library_is_not_started() {
        assert_eq!(executable(&linked("path+file:///repository/loader#0.1.0", &Value::Null)), None);
        assert_eq!(executable(&json!({ "reason": "build-finished", "success": true })), None);
    }
}
