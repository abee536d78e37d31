//! One piece of work that is tried until it works: a module to fetch, an artifact to make, a manifest to write.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use portcullis_contract::{Activity, Class, Failure, Reason, Stage};

use crate::retry::Retry;
use portcullis_process::Now;

/// A failed attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AttemptError {
    /// The reason.
    pub reason: Reason,
    /// The message for users.
    pub message: String,
    /// The wait that the source asked for. After a final failure, `Some` says that another attempt may help all the same.
    pub retry_after: Option<Duration>,
}

/// A piece of work and its state. Whether there is a result that counts and whether another try is due are independent.
#[derive(Debug, Clone)]
pub(crate) struct Attempts<T> {
    /// The newest result, as long as it counts.
    result: Option<T>,
    /// The next attempt.
    next: Next,
    /// The newest failure, until an attempt works. It stays while the next attempt runs, so that a state does not flap.
    last_failure: Option<LastFailure>,
    /// Whether an attempt has begun and not ended.
    begun: bool,
    /// Whether the input has changed since the attempt began, so that another must follow.
    overtaken: bool,
}

#[derive(Debug, Clone)]
enum Next {
    /// There is none: the work is done, or only a change can help.
    None,
    /// As soon as a policy needs it; with the progress of the attempt once it runs.
    Now(Option<Activity>),
    /// When this time has come.
    At(Instant),
}

#[derive(Debug, Clone)]
struct LastFailure {
    reason: Reason,
    message: String,
    attempts: u32,
    since: Timestamp,
    /// When the newest attempt failed.
    last: Instant,
    next: Option<Timestamp>,
}

impl<T> Default for Attempts<T> {
    fn default() -> Self {
        Self { result: None, next: Next::Now(None), last_failure: None, begun: false, overtaken: false }
    }
}

impl<T> Attempts<T> {
    /// Work that is already done.
    pub(crate) fn done(value: T) -> Self {
        Self { result: Some(value), next: Next::None, ..Self::default() }
    }

    /// The result.
    pub(crate) fn result(&self) -> Option<&T> {
        self.result.as_ref()
    }

    /// Whether an attempt should run now.
    pub(crate) fn is_due(&self) -> bool {
        matches!(self.next, Next::Now(_))
    }

    /// Marks that an attempt runs. From now on [`Attempts::repeat`] asks for one more after it.
    pub(crate) fn begin(&mut self) {
        self.begun = true;
    }

    /// Ends the attempt. True if it was overtaken.
    fn end(&mut self) -> bool {
        self.begun = false;
        std::mem::take(&mut self.overtaken)
    }

    /// The progress of the attempt that runs; `None` if none does.
    pub(crate) fn activity(&self) -> Option<&Activity> {
        match &self.next {
            Next::Now(activity) => activity.as_ref(),
            Next::None | Next::At(_) => None,
        }
    }

    /// Records the progress of the attempt that runs.
    pub(crate) fn progress(&mut self, bytes: u64, total: Option<u64>, now: Now) {
        if let Next::Now(activity) = &mut self.next {
            let since = activity.as_ref().map_or(now.wall, |activity| activity.since);
            *activity = Some(Activity { bytes, total, since });
        }
    }

    /// The attempt that ran waits for its turn again.
    pub(crate) fn wait_again(&mut self) {
        if let Next::Now(activity) = &mut self.next {
            *activity = None;
        }
    }

    /// An attempt worked.
    pub(crate) fn succeed(&mut self, value: T) {
        let next = self.after();
        *self = Self { next, ..Self::done(value) };
    }

    /// An attempt failed. An earlier result no longer counts.
    pub(crate) fn fail(&mut self, error: AttemptError, retry: &Retry, random: f64, now: Now) {
        self.result = None;
        self.failed(error, None, retry, random, now);
    }

    /// An attempt failed, and `value` counts until a later one says otherwise: the earlier result, or what is taken for it meanwhile. The
    /// work is tried again, whatever the failure was.
    pub(crate) fn put_off(&mut self, value: T, error: AttemptError, retry: &Retry, random: f64, now: Now) {
        self.result = Some(value);
        self.failed(error, Some(retry.outside), retry, random, now);
    }

    /// Notes a failure and when the next attempt follows: after `otherwise` where the failure itself is final.
    fn failed(&mut self, error: AttemptError, otherwise: Option<Duration>, retry: &Retry, random: f64, now: Now) {
        let (attempts, since) = self
            .last_failure
            .as_ref()
            .map_or((1, now.wall), |last_failure| (last_failure.attempts.saturating_add(1), last_failure.since));
        let wait = retry.wait(error.reason, attempts, error.retry_after, random).or(otherwise);
        let at = wait.and_then(|wait| now.instant.checked_add(wait));
        self.next = at.map_or(Next::None, Next::At);
        self.last_failure = Some(LastFailure {
            reason: error.reason,
            message: error.message,
            attempts,
            since,
            last: now.instant,
            next: at.map(|at| now.wall_at(at)),
        });
        if self.end() {
            self.retry_now();
        }
    }

    /// Asks for another attempt. An earlier result counts until that has ended.
    pub(crate) fn repeat(&mut self) {
        match self.next {
            Next::None if self.result.is_some() => self.next = Next::Now(None),
            Next::None | Next::At(_) => self.retry_now(),
            Next::Now(_) => {}
        }
        self.overtaken |= self.begun;
    }

    /// The attempt has ended without a result, and the earlier result still counts.
    pub(crate) fn leave(&mut self) {
        self.next = self.after();
    }

    /// Ends the attempt, and tells what follows if it needs no repetition.
    fn after(&mut self) -> Next {
        if self.end() { Next::Now(None) } else { Next::None }
    }

    /// Something changed that may help: after a failure, the next attempt is due at once, and waits grow from the start again.
    pub(crate) fn retry_now(&mut self) {
        if self.has_failed() || matches!(self.next, Next::At(_)) {
            self.next = Next::Now(None);
            if let Some(last_failure) = &mut self.last_failure {
                last_failure.attempts = 0;
            }
        }
    }

    /// Whether the newest attempt failed at the volume, and none has worked since.
    pub(crate) fn has_failed_at_volume(&self) -> bool {
        self.last_failure.as_ref().is_some_and(|last_failure| last_failure.reason.stage() == Stage::Volume)
    }

    /// The volume takes writes again: a failure there is over, and the next attempt is due at once.
    pub(crate) fn volume_works(&mut self) {
        if self.has_failed_at_volume() {
            self.retry_now();
            self.last_failure = None;
        }
    }

    /// The module has come: a failure to fetch it is over, and the next attempt is due at once.
    pub(crate) fn module_came(&mut self) {
        if self.last_failure.as_ref().is_some_and(|failure| failure.reason.stage() == Stage::Fetch) {
            self.retry_now();
            self.last_failure = None;
        }
    }

    /// Forgets a failure of work that is no longer needed: it is tried at once when it is needed again. An earlier result is kept.
    pub(crate) fn forget_failure(&mut self) {
        if self.last_failure.take().is_some() {
            self.next = Next::Now(None);
        }
    }

    /// [`Attempts::retry_now`], for failures that a change outside the policy can mend.
    pub(crate) fn retry_outside(&mut self) {
        // The files that are watched decide how modules are fetched and checked, so such a failure may be over: a signature that could not be
        // checked without a trust root, a host that was not reached by the wrong proxy, a source that was not allowed. Not so what a source
        // gave, such as a module that is too large, nor a source that asked not to be asked again so soon.
        let may_help = |reason: Reason| match (reason, reason.class(), reason.stage()) {
            (Reason::SourceNotAllowed, ..) | (_, Class::Outside, _) => true,
            (Reason::RegistryThrottled, ..) => false,
            (_, class, stage) => class == Class::Retry && stage == Stage::Fetch,
        };
        if self.last_failure.as_ref().is_some_and(|last_failure| may_help(last_failure.reason)) {
            self.retry_now();
        }
    }

    /// Makes an attempt due whose wait is over.
    pub(crate) fn wake(&mut self, now: Now) {
        if matches!(self.next, Next::At(at) if at <= now.instant) {
            self.next = Next::Now(None);
        }
    }

    /// When the wait ends; `None` if nothing waits.
    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        match self.next {
            Next::At(at) => Some(at),
            Next::None | Next::Now(_) => None,
        }
    }

    /// The failure as that of a generation, which began at `begun` if that is given. A generation that began after the newest attempt has not
    /// failed while another attempt is due.
    pub(crate) fn failure(&self, generation: i64, begun: Option<Now>) -> Option<Failure> {
        let last_failure = self.last_failure.as_ref()?;
        let is_older = begun.is_some_and(|begun| begun.instant > last_failure.last);
        (self.has_failed() || !is_older).then(|| Failure {
            generation,
            reason: last_failure.reason,
            message: last_failure.message.clone(),
            attempts: last_failure.attempts.max(1),
            next_retry_time: last_failure.next,
            since: begun.map_or(last_failure.since, |begun| last_failure.since.max(begun.wall)),
        })
    }

    /// Whether the newest attempt failed, no result counts, and no attempt runs now.
    pub(crate) fn has_failed(&self) -> bool {
        self.result.is_none() && !self.is_due()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRY: Retry =
        Retry { initial: Duration::from_secs(1), cap: Duration::from_secs(300), outside: Duration::from_secs(600) };

    fn error(reason: Reason) -> AttemptError {
        AttemptError { reason, message: "no".to_owned(), retry_after: None }
    }

    fn later(now: Now, seconds: u64) -> Now {
        let wait = Duration::from_secs(seconds);
        Now { instant: now.instant + wait, wall: now.wall + wait }
    }

    #[test]
    fn a_failure_stays_while_the_next_attempt_runs_and_goes_when_it_works() {
        let start = Now::get();
        let mut attempts = Attempts::<u32>::default();
        assert!(attempts.is_due());
        attempts.fail(error(Reason::RegistryTimeout), &RETRY, 0.5, start);
        assert!(!attempts.is_due() && attempts.has_failed());
        attempts.wake(later(start, 1));
        assert!(attempts.is_due());
        assert_eq!(
            attempts.failure(3, Some(start)).map(|failure| (failure.generation, failure.attempts)),
            Some((3, 1))
        );
        attempts.fail(error(Reason::RegistryTimeout), &RETRY, 0.5, later(start, 1));
        let failure = attempts.failure(3, Some(start)).expect("fails");
        assert_eq!((failure.attempts, failure.since), (2, start.wall));
        attempts.succeed(7);
        assert_eq!((attempts.result(), attempts.failure(3, Some(start))), (Some(&7), None));
    }

    #[test]
    fn a_final_failure_waits_for_a_change() {
        let now = Now::get();
        let mut attempts = Attempts::<u32>::default();
        attempts.fail(error(Reason::ModuleTooLarge), &RETRY, 0.5, now);
        attempts.wake(later(now, 100_000));
        assert!(!attempts.is_due() && attempts.wakes_at().is_none());
        attempts.retry_now();
        assert!(attempts.is_due());
    }

    #[test]
    fn a_volume_that_works_ends_failures_there_and_no_others() {
        let now = Now::get();
        let mut attempts = Attempts::<u32>::default();
        attempts.fail(error(Reason::VolumeReadOnly), &RETRY, 0.5, now);
        attempts.volume_works();
        assert!(attempts.is_due() && attempts.failure(1, Some(now)).is_none());
        attempts.fail(error(Reason::RegistryTimeout), &RETRY, 0.5, now);
        attempts.volume_works();
        assert!(!attempts.is_due() && attempts.failure(1, Some(now)).is_some());
    }

    #[test]
    fn what_nobody_needs_has_not_failed_and_is_tried_when_somebody_needs_it() {
        let now = Now::get();
        let mut attempts = Attempts::default();
        attempts.fail(error(Reason::NotFound), &RETRY, 0.5, now);
        attempts.forget_failure();
        assert!(attempts.is_due() && !attempts.has_failed() && attempts.failure(0, None).is_none());
        attempts.put_off(1, error(Reason::SignatureUnavailable), &RETRY, 0.5, now);
        attempts.forget_failure();
        assert!(attempts.is_due() && attempts.result() == Some(&1) && attempts.failure(0, None).is_none());
        attempts.succeed(2);
        attempts.forget_failure();
        assert!(!attempts.is_due() && attempts.result() == Some(&2), "what is done is not done again");
    }

    #[test]
    fn a_new_generation_has_not_failed_while_its_first_attempt_runs() {
        let now = Now::get();
        let mut attempts = Attempts::<u32>::default();
        attempts.fail(error(Reason::NotFound), &RETRY, 0.5, now);
        attempts.retry_now();
        assert!(attempts.failure(2, Some(later(now, 1))).is_none());
        assert!(attempts.failure(1, Some(now)).is_some());
    }

    #[test]
    fn what_changed_during_an_attempt_is_done_again_after_it() {
        let now = Now::get();
        let mut attempts = Attempts::default();
        attempts.begin();
        attempts.repeat();
        attempts.succeed(1);
        assert!(attempts.is_due() && attempts.result() == Some(&1));
        attempts.begin();
        attempts.succeed(2);
        assert!(!attempts.is_due());
        attempts.repeat();
        attempts.begin();
        attempts.repeat();
        attempts.leave();
        assert!(attempts.is_due() && attempts.result() == Some(&2));
        attempts.begin();
        attempts.repeat();
        attempts.fail(error(Reason::ModuleTooLarge), &RETRY, 0.5, now);
        assert!(attempts.is_due());
        attempts.begin();
        attempts.fail(error(Reason::ModuleTooLarge), &RETRY, 0.5, now);
        assert!(!attempts.is_due());
    }

    #[test]
    fn what_is_done_counts_while_it_is_done_again() {
        let mut attempts = Attempts::done(1);
        attempts.repeat();
        assert!(attempts.is_due() && attempts.result() == Some(&1));
        attempts.leave();
        assert!(!attempts.is_due());
    }

    #[test]
    fn what_counts_meanwhile_is_tried_again_until_it_is_known() {
        let start = Now::get();
        let mut attempts = Attempts::done(1);
        attempts.repeat();
        attempts.put_off(1, error(Reason::SignatureUnavailable), &RETRY, 0.5, start);
        assert!(!attempts.is_due() && !attempts.has_failed() && attempts.result() == Some(&1));
        assert_eq!(attempts.failure(0, None).map(|failure| failure.reason), Some(Reason::SignatureUnavailable));
        let waits = |attempts: &Attempts<u32>| attempts.wakes_at().map(|at| at - start.instant);
        assert_eq!(waits(&attempts), Some(RETRY.initial / 2));
        attempts.wake(later(start, 1));
        attempts.put_off(1, error(Reason::SignatureUnavailable), &RETRY, 0.5, start);
        assert_eq!(waits(&attempts), Some(RETRY.initial), "waits grow");
        attempts.put_off(1, error(Reason::ModuleInvalid), &RETRY, 0.5, start);
        assert_eq!(waits(&attempts), Some(RETRY.outside), "no failure is the end of it");
        attempts.retry_now();
        assert!(attempts.is_due() && attempts.result() == Some(&1));
        attempts.succeed(2);
        assert!(!attempts.is_due() && attempts.wakes_at().is_none() && attempts.failure(0, None).is_none());
        attempts.fail(error(Reason::SignatureInvalid), &RETRY, 0.5, start);
        assert!(attempts.has_failed() && attempts.result().is_none());
    }

    #[test]
    fn a_change_of_the_watched_files_ends_the_wait_after_each_failure_of_a_fetch() {
        let now = Now::get();
        let is_due_after = |reason: Reason| {
            let mut attempts = Attempts::<u32>::default();
            attempts.fail(error(reason), &RETRY, 0.999, now);
            assert!(!attempts.is_due());
            attempts.retry_outside();
            attempts.is_due()
        };
        for reason in [
            Reason::SourceNotAllowed,
            Reason::SignatureUnavailable,
            Reason::SignatureInvalid,
            Reason::RegistryUnreachable,
            Reason::RegistryTimeout,
            Reason::TLSFailed,
            Reason::Unauthorized,
        ] {
            assert!(is_due_after(reason), "{reason}");
        }
        for reason in [Reason::VolumeFull, Reason::CompileLimit, Reason::ModuleTooLarge, Reason::RegistryThrottled] {
            assert!(!is_due_after(reason), "{reason}");
        }
    }
}
