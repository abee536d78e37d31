//! The program of pods that are nothing but a test, and of the container that holds the namespaces of every pod.

use std::path::PathBuf;

use crate::go::GoProgram;
use crate::{Cache, Error};

/// What is built.
const SOURCES: [(&str, &str); 2] =
    [("main.go", include_str!("../../pod/main.go")), ("go.mod", include_str!("../../pod/go.mod"))];

/// The program, built. It is static.
#[derive(Debug, Clone)]
pub struct PodProgram {
    /// Where it is.
    pub path: PathBuf,
}

impl PodProgram {
    /// The program from the cache; builds it first if it is not there, which takes some seconds. `tell` gets lines about the progress.
    ///
    /// # Errors
    /// When the build fails.
    pub fn build(cache: &Cache, tell: &dyn Fn(&str)) -> Result<Self, Error> {
        let program = GoProgram {
            name: "the program of test pods",
            file: "pod",
            version: "v1",
            sources: &SOURCES,
            package: ".",
            links: &[],
            linker_flags: "-s -w".to_owned(),
        };
        program.build(cache, tell).map(|folder| Self { path: folder.join(program.file) })
    }
}
