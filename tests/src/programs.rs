//! Finds the programs. They are not built here.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

/// A program of the product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// `portcullis-loader`.
    Loader,
    /// `portcullis-evaluator`.
    Evaluator,
    /// `portcullis-reporter`.
    Reporter,
    /// `portcullis`.
    Cli,
}

impl Program {
    /// The name of its file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loader => "portcullis-loader",
            Self::Evaluator => "portcullis-evaluator",
            Self::Reporter => "portcullis-reporter",
            Self::Cli => "portcullis",
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The program's file: in the folder `PORTCULLIS_BIN_DIR`, or where cargo puts debug builds. From then on, panics of the test process
/// are reported at once, because tests of real programs take minutes.
///
/// # Panics
/// When it does not exist.
pub fn program(program: Program) -> PathBuf {
    portcullis_testkit::report_panics();
    let folder = match env::var_os("PORTCULLIS_BIN_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => beside_this_test(),
    };
    let path = folder.join(program.name());
    assert!(path.is_file(), "{} is not there: run `cargo xtask build` first", path.display());
    path
}

/// A test runs from `target/debug/deps/`; the programs are one folder above.
fn beside_this_test() -> PathBuf {
    let test = env::current_exe().expect("a test knows its own file");
    test.ancestors().nth(2).map(Path::to_owned).expect("a test lies in target/debug/deps")
}
