//! Counts the allocations of a real program: a preloaded library adds up its calls of the allocator in a file.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::{PodSetup, Program, preload};

/// The allocations of a program of a pod.
pub struct Allocations {
    folder: TempDir,
    library: PathBuf,
    counts: File,
}

/// How much a program has allocated so far, freed or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocated {
    /// How often it called the allocator for new or larger memory.
    pub calls: u64,
    /// How many bytes it asked for.
    pub bytes: u64,
}

impl Allocations {
    /// A counter that is not used by a program yet.
    ///
    /// # Panics
    /// When there is no C compiler to build the library.
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("allocations-").tempdir().expect("a temporary folder");
        let library = preload::library("allocations/count.c", folder.path());
        let path = folder.path().join("counts");
        fs::write(&path, [0; 16]).expect("writes");
        let counts = File::open(&path).expect("opens");
        Self { folder, library, counts }
    }

    /// Counts the allocations of a program of a pod.
    #[must_use]
    pub fn of(&self, program: Program, setup: PodSetup) -> PodSetup {
        let setup = setup.env(program, "LD_PRELOAD", &self.library.to_string_lossy());
        setup.env(program, "ALLOCATION_COUNTS", &self.folder.path().join("counts").to_string_lossy())
    }

    /// What the program has allocated so far.
    ///
    /// # Panics
    /// When the file cannot be read.
    pub fn so_far(&self) -> Allocated {
        let number = |offset: u64| {
            let mut bytes = [0; 8];
            self.counts.read_exact_at(&mut bytes, offset).expect("reads");
            u64::from_ne_bytes(bytes)
        };
        Allocated { calls: number(0), bytes: number(8) }
    }
}

impl Default for Allocations {
    fn default() -> Self {
        Self::new()
    }
}
