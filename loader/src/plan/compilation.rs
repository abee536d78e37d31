//! The compilation of a module, and whether and when it is repeated.

use std::collections::HashSet;
use std::time::Instant;

use portcullis_contract::{Digest, Reason};

use super::attempts::{AttemptError, Attempts};
use crate::retry::Retry;
use crate::volume::ArtifactRecord;
use portcullis_process::Now;

/// An artifact and its compilation.
#[derive(Debug, Default)]
pub(super) struct Compilation {
    pub(super) attempts: Attempts<ArtifactRecord>,
    /// Whether the module must be fetched first.
    pub(super) no_module: bool,
    /// Whether the artifact on the volume must not be trusted, and is compiled again.
    pub(super) recompile: bool,
    /// How often it was compiled again in a row because the evaluator could not use it.
    pub(super) remakes: u32,
    /// The time before which it is not compiled again.
    pub(super) remake_at: Option<Instant>,
    /// Whether it should be compiled again at that time.
    pub(super) remake_wanted: bool,
    /// The number of the first manifest that was published with it; `None` until then.
    pub(super) published_in: Option<u64>,
}

impl Compilation {
    pub(super) fn remake_wakes_at(&self) -> Option<Instant> {
        self.remake_at.filter(|_| self.remake_wanted)
    }

    /// Takes note that these files are no longer on the volume. If the artifact is one of them, it is made again when a policy needs it.
    pub(super) fn removed(&mut self, files: &HashSet<String>) {
        if self.attempts.result().is_some_and(|record| files.contains(&record.artifact.file)) {
            self.attempts = Attempts::default();
            self.published_in = None;
        }
    }

    /// Takes note that the address of a pinned module gave the module `found`: another one than the pin is a failure.
    pub(super) fn got(&mut self, pin: Digest, found: Digest, retry: &Retry, now: Now, random: f64) {
        if self.no_module && pin != found {
            let message = format!("the address gave {found}, and this generation is pinned to {pin}");
            let error = AttemptError { reason: Reason::DigestMismatch, message, retry_after: None };
            self.no_module = false;
            self.attempts.fail(error, retry, random, now);
        }
    }
}
