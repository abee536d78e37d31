//! I1: each test of a row of the fault catalogue has a canary, or says why not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use portcullis_testkit::Bound;

/// Whether somebody listened to the evaluators of an installation or a release, or the test has said why not. Copies are about the same one.
#[derive(Debug, Clone, Default)]
pub(crate) struct CanaryCheck {
    is_done: Arc<AtomicBool>,
}

impl CanaryCheck {
    /// Notes that somebody listens, or that the test has said why not.
    pub(crate) fn done(&self) {
        self.is_done.store(true, Ordering::SeqCst);
    }

    /// Says why a test of a row has no canary.
    pub(crate) fn left_out(&self, reason: &str) {
        eprintln!("no canary here: {reason}");
        self.done();
    }

    /// Forgets what the last test did, where the next one has the same release.
    pub(crate) fn begin(&self) {
        self.is_done.store(false, Ordering::SeqCst);
    }

    /// Does nothing while the test panics for another reason.
    ///
    /// # Panics
    /// When the running test is named after a row, and nobody has listened.
    pub(crate) fn assert_done(&self) {
        if thread::panicking() {
            return;
        }
        let thread = thread::current();
        let test = thread.name().unwrap_or_default();
        assert!(
            self.is_done.load(Ordering::SeqCst) || Bound::of_this_test().is_none(),
            "{test} is a test of a row and has no canary (I1): start one with `own_canary()` and end it with `end`, or give \
             the reason for having none with `without_canary(\"…\")`, both of the installation or the release"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The message with which a test of this name fails at the end of an installation.
    fn failure(test: &str, check: CanaryCheck) -> Option<String> {
        let ending = thread::Builder::new().name(test.to_owned()).spawn(move || check.assert_done()).unwrap();
        ending.join().err().map(|panic| *panic.downcast::<String>().unwrap())
    }

    #[test]
    fn a_test_of_a_row_without_a_canary_is_told_what_to_add() {
        let message = failure("newcomers::fault_w04_no_webhook", CanaryCheck::default()).unwrap();
        for words in ["newcomers::fault_w04_no_webhook is a test of a row", "own_canary()", "without_canary("] {
            assert!(message.contains(words), "{words}: {message}");
        }
    }

    #[test]
    fn other_tests_and_those_that_have_one_or_a_reason_are_not() {
        assert_eq!(failure("newcomers::promise_of_w04", CanaryCheck::default()), None);
        let check = CanaryCheck::default();
        check.clone().left_out("nothing fails");
        assert_eq!(failure("newcomers::fault_w04_no_webhook", check.clone()), None);
        check.begin();
        assert!(failure("newcomers::fault_w04_no_webhook", check).is_some());
    }
}
