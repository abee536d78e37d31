//! One piece of work that is tried until it works: a module to fetch, an artifact to make, a manifest to write.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use portcullis_contract::{Activity, Failure, Reason, Stage};

use crate::retry::Retry;
use portcullis_process::Now;

/// A failed attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AttemptError {
    /// The reason.
    pub reason: Reason,
    /// The message for users.
    pub message: String,
    /// The wait that the source asked for.
    pub retry_after: Option<Duration>,
}

/// A piece of work and its state.
#[derive(Debug, Clone)]
pub(crate) struct Attempts<T> {
    status: Status<T>,
    /// The newest failure, until an attempt works. It stays while the next attempt runs, so that a state does not flap.
    last_failure: Option<LastFailure>,
    /// Whether the work is done and should be done again; its result counts meanwhile.
    again: bool,
    /// Whether an attempt has begun and not ended.
    begun: bool,
    /// Whether the input has changed since the attempt began, so that another must follow.
    overtaken: bool,
}

#[derive(Debug, Clone)]
enum Status<T> {
    /// To be done as soon as a policy needs it; with the progress of an attempt once it runs.
    Due(Option<Activity>),
    Done(T),
    Waiting(Instant),
    Stopped,
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
        Self { status: Status::Due(None), last_failure: None, again: false, begun: false, overtaken: false }
    }
}

impl<T> Attempts<T> {
    /// Work that is already done.
    pub(crate) fn done(value: T) -> Self {
        Self { status: Status::Done(value), ..Self::default() }
    }

    /// The result.
    pub(crate) fn result(&self) -> Option<&T> {
        match &self.status {
            Status::Done(value) => Some(value),
            _ => None,
        }
    }

    /// Whether an attempt should run now.
    pub(crate) fn is_due(&self) -> bool {
        self.again || matches!(self.status, Status::Due(_))
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
        match &self.status {
            Status::Due(activity) => activity.as_ref(),
            _ => None,
        }
    }

    /// Records the progress of the attempt that runs.
    pub(crate) fn progress(&mut self, bytes: u64, total: Option<u64>, now: Now) {
        if let Status::Due(activity) = &mut self.status {
            let since = activity.as_ref().map_or(now.wall, |activity| activity.since);
            *activity = Some(Activity { bytes, total, since });
        }
    }

    /// The attempt that ran waits for its turn again.
    pub(crate) fn wait_again(&mut self) {
        if let Status::Due(activity) = &mut self.status {
            *activity = None;
        }
    }

    /// An attempt worked.
    pub(crate) fn succeed(&mut self, value: T) {
        let again = self.end();
        *self = Self { again, ..Self::done(value) };
    }

    /// An attempt failed. An earlier result no longer counts.
    pub(crate) fn fail(&mut self, error: AttemptError, retry: &Retry, random: f64, now: Now) {
        let (attempts, since) = self
            .last_failure
            .as_ref()
            .map_or((1, now.wall), |last_failure| (last_failure.attempts.saturating_add(1), last_failure.since));
        let wait = retry.wait(error.reason, attempts, error.retry_after, random);
        let at = wait.and_then(|wait| now.instant.checked_add(wait));
        self.again = false;
        self.status = at.map_or(Status::Stopped, Status::Waiting);
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
        match self.status {
            Status::Done(_) => self.again = true,
            Status::Waiting(_) | Status::Stopped => self.retry_now(),
            Status::Due(_) => {}
        }
        self.overtaken |= self.begun;
    }

    /// The attempt has ended without a result, and the earlier result still counts.
    pub(crate) fn leave(&mut self) {
        self.again = self.end();
    }

    /// Something changed that may help: after a failure, the next attempt is due at once, and waits grow from the start again.
    pub(crate) fn retry_now(&mut self) {
        if matches!(self.status, Status::Waiting(_) | Status::Stopped) {
            self.status = Status::Due(None);
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

    /// [`Attempts::retry_now`], for failures that a change outside the policy can mend.
    pub(crate) fn retry_outside(&mut self) {
        // `SourceNotAllowed` is final for a policy, but the installation's rules may have changed. A signature may have been unavailable only
        // because the file of the required signers could not be used.
        let may_help = |reason: Reason| {
            reason.class() == portcullis_contract::Class::Outside
                || matches!(reason, Reason::SourceNotAllowed | Reason::SignatureUnavailable)
        };
        if self.last_failure.as_ref().is_some_and(|last_failure| may_help(last_failure.reason)) {
            self.retry_now();
        }
    }

    /// Makes an attempt due whose wait is over.
    pub(crate) fn wake(&mut self, now: Now) {
        if matches!(self.status, Status::Waiting(at) if at <= now.instant) {
            self.status = Status::Due(None);
        }
    }

    /// When the wait ends; `None` if nothing waits.
    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        match self.status {
            Status::Waiting(at) => Some(at),
            _ => None,
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

    /// Whether the newest attempt failed and none runs now.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.status, Status::Waiting(_) | Status::Stopped)
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
}
