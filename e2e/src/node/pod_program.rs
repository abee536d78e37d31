//! The program of pods that are only tests, and of the container that holds the namespaces of every pod.

use std::path::PathBuf;

use crate::go::GoProgram;
use crate::{Cache, Error};

/// The sources to build.
const SOURCES: [(&str, &str); 2] =
    [("main.go", include_str!("../../pod/main.go")), ("go.mod", include_str!("../../pod/go.mod"))];

/// The built program, which is static.
#[derive(Debug, Clone)]
pub struct PodProgram {
    /// Its path.
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
            packages: &["."],
            links: &[],
            linker_flags: "-s -w".to_owned(),
        };
        program.build(cache, tell).map(|folder| Self { path: folder.join(program.file) })
    }
}
