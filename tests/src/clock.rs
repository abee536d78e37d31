//! Rig CLK: a wall clock that jumps, for real programs: a preloaded library shifts the time that they read.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::{PodSetup, Program, preload};

/// The wall clock of a pod.
pub struct Clock {
    folder: TempDir,
    library: PathBuf,
    shift: File,
}

impl Clock {
    /// A clock that shows the right time.
    ///
    /// # Panics
    /// When there is no C compiler to make the library.
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("clock-").tempdir().expect("a temporary folder");
        crate::files::open_to_all(folder.path());
        let library = preload::library("clock/shift.c", folder.path());
        let file = folder.path().join("shift");
        fs::write(&file, 0_i64.to_ne_bytes()).expect("writes");
        let shift = File::options().write(true).open(&file).expect("opens");
        Self { folder, library, shift }
    }

    /// Makes a pod use this clock.
    #[must_use]
    pub fn of(&self, setup: PodSetup) -> PodSetup {
        let shift = self.folder.path().join("shift");
        [Program::Loader, Program::Evaluator, Program::Reporter].into_iter().fold(setup, |setup, program| {
            let setup = setup.env(program, "LD_PRELOAD", &self.library.to_string_lossy());
            setup.env(program, "CLOCK_SHIFT_FILE", &shift.to_string_lossy())
        })
    }

    /// Makes the clock jump: from now on it is off by this many seconds.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn jump_to(&self, seconds: i64) {
        self.shift.write_all_at(&seconds.to_ne_bytes(), 0).expect("writes");
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}
