//! The compilation of a module, and what is to be made of it again.

use std::time::Instant;

use portcullis_contract::{Digest, Reason};

use super::attempts::{AttemptError, Attempts, Now};
use crate::retry::Retry;
use crate::store::ArtifactRecord;

/// An artifact and its compilation.
#[derive(Debug, Default)]
pub(super) struct Compilation {
    pub(super) attempts: Attempts<ArtifactRecord>,
    /// The module has to be fetched first.
    pub(super) no_module: bool,
    /// The artifact on the volume is not to be trusted.
    pub(super) anew: bool,
    /// How often it was compiled again because the evaluator could not use it.
    pub(super) remakes: u32,
    /// The time before which it is not compiled again.
    pub(super) remake_at: Option<Instant>,
    /// Whether it should be compiled again at that time.
    pub(super) remake_wanted: bool,
    /// The number of the first manifest after it was compiled again; nothing until that is published.
    pub(super) published_in: Option<u64>,
}

impl Compilation {
    pub(super) fn remake_wakes_at(&self) -> Option<Instant> {
        self.remake_at.filter(|_| self.remake_wanted)
    }

    /// The address of a pinned module gave these bytes.
    pub(super) fn got(&mut self, pin: Digest, found: Digest, retry: &Retry, now: Now, random: f64) {
        if self.no_module && pin != found {
            let message = format!("the address gave {found}, and this generation is pinned to {pin}");
            let error = AttemptError { reason: Reason::DigestMismatch, message, retry_after: None };
            self.no_module = false;
            self.attempts.fail(error, retry, random, now);
        }
    }
}
