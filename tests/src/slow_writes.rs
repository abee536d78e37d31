//! Rig SLOW: a volume on which each write and each sync takes seconds, for real programs: a preloaded library delays their calls.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

use crate::{Folder, PodSetup, Program, preload};

/// The size of one of the library's numbers.
const NUMBER: u64 = 8;

/// The writes to the volume of a folder, and the syncs.
pub struct SlowWrites {
    folder: TempDir,
    library: PathBuf,
    volume: PathBuf,
    numbers: File,
}

/// How many calls were delayed so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delayed {
    /// Writes.
    pub writes: u64,
    /// Syncs.
    pub syncs: u64,
}

impl SlowWrites {
    /// Writes that take no longer than usual yet.
    ///
    /// # Panics
    /// When there is no C compiler to build the library.
    pub fn to_volume_of(folder: &Folder) -> Self {
        let own = tempfile::Builder::new().prefix("slow-writes-").tempdir().expect("a temporary folder");
        let library = preload::library("slow_writes/delay.c", own.path());
        let path = own.path().join("numbers");
        fs::write(&path, [0; 3 * NUMBER as usize]).expect("writes");
        let numbers = File::options().read(true).write(true).open(&path).expect("opens");
        let volume = folder.volume().canonicalize().expect("it is there");
        Self { folder: own, library, volume, numbers }
    }

    /// Makes loader and evaluator of a pod write like this.
    #[must_use]
    pub fn of(&self, setup: PodSetup) -> PodSetup {
        let numbers = self.folder.path().join("numbers");
        [Program::Loader, Program::Evaluator].into_iter().fold(setup, |setup, program| {
            let setup = setup.env(program, "LD_PRELOAD", &self.library.to_string_lossy());
            let setup = setup.env(program, "SLOW_FOLDER", &self.volume.to_string_lossy());
            setup.env(program, "SLOW_WRITES", &numbers.to_string_lossy())
        })
    }

    /// From now on, each write and each sync takes this long, in whole seconds.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn take(&self, time: Duration) {
        self.numbers.write_all_at(&time.as_secs().to_ne_bytes(), 0).expect("writes");
    }

    /// How many were delayed so far.
    ///
    /// # Panics
    /// When the file cannot be read.
    pub fn delayed(&self) -> Delayed {
        let number = |place: u64| {
            let mut bytes = [0; NUMBER as usize];
            self.numbers.read_exact_at(&mut bytes, place * NUMBER).expect("reads");
            u64::from_ne_bytes(bytes)
        };
        Delayed { writes: number(1), syncs: number(2) }
    }
}
