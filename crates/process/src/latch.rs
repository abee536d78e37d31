//! Readiness: each start-up task holds a latch, and the program is ready when all latches are released and nothing
//! drains.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use portcullis_util::lock;

/// The latches of a program.
#[derive(Clone, Default)]
pub struct Readiness {
    latches: Arc<Mutex<Vec<(&'static str, Latch)>>>,
    draining: Arc<AtomicBool>,
}

/// One task's part in readiness. It stays closed until [`Latch::release`]; if a task dies without releasing it, the
/// program stays unready, which is right.
#[derive(Clone, Default)]
pub struct Latch(Arc<AtomicBool>);

impl Readiness {
    /// A new latch, closed. `name` is shown by `/readyz?verbose`.
    pub fn latch(&self, name: &'static str) -> Latch {
        let latch = Latch::default();
        lock(&self.latches).push((name, latch.clone()));
        latch
    }

    /// Makes the program unready for good, whatever its latches say.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    /// Whether the program drains.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Every check with its name, in the order in which they were made; draining comes last.
    pub fn checks(&self) -> Vec<(&'static str, bool)> {
        let latches = lock(&self.latches);
        let mut checks: Vec<_> = latches.iter().map(|(name, latch)| (*name, latch.is_released())).collect();
        checks.push(("not-draining", !self.is_draining()));
        checks
    }

    /// Whether all latches are released and the program does not drain.
    pub fn is_ready(&self) -> bool {
        self.checks().iter().all(|(_, ok)| *ok)
    }
}

impl Latch {
    /// Releases the latch: the task has done its part.
    pub fn release(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether the latch was released.
    pub fn is_released(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_when_every_latch_is_released() {
        let readiness = Readiness::default();
        let (a, b) = (readiness.latch("a"), readiness.latch("b"));
        a.release();
        assert!(!readiness.is_ready());
        b.release();
        assert!(readiness.is_ready());
    }

    #[test]
    fn a_draining_program_is_not_ready() {
        let readiness = Readiness::default();
        assert!(readiness.is_ready());
        readiness.drain();
        assert_eq!(readiness.checks(), [("not-draining", false)]);
    }
}
