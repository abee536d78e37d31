//! I3: the pod works again within the bound of its row. Also other times that a test measures, without the part that other programs took.

use std::time::Duration;

use portcullis_testkit::Bound;

use crate::{Moment, Pod, Process, eventually};

impl Pod {
    /// The current moment, from which a time is measured. From then on, the time that the pod's programs take counts, and the time
    /// of other programs does not, including the test's.
    pub fn moment(&self) -> Moment {
        Moment::now(self.processes().filter_map(Process::running))
    }

    /// The same for a test that uses most of the machine itself: the test's own time counts too.
    pub fn moment_with_test(&self) -> Moment {
        self.moment().beside_this_test()
    }

    /// Does `work`, and returns whether it took at most `limit`.
    ///
    /// # Errors
    /// When it took longer. The time that other programs or a stalled machine took does not count.
    pub fn timed<T>(&self, limit: Duration, work: impl FnOnce() -> T) -> (T, Result<(), String>) {
        let since = self.moment();
        let done = work();
        let now = self.moment();
        let (took, allowed) = (since.until(&now), since.allowed(limit, &now));
        let late = || format!("it took {took:?}, and {allowed:?} were allowed here and now");
        (done, if took <= allowed { Ok(()) } else { Err(late()) })
    }

    /// Does `work`, and asserts that it took at most `limit`, as measured by [`Pod::timed`].
    ///
    /// # Panics
    /// When it took longer.
    pub fn within<T>(&self, limit: Duration, what: &str, work: impl FnOnce() -> T) -> T {
        let (done, in_time) = self.timed(limit, work);
        in_time.unwrap_or_else(|late| panic!("{what}: {late}"));
        done
    }

    /// Waits until `look` returns something. The result is an error if it came later than the bound of the row that the
    /// test is named after.
    ///
    /// # Errors
    /// When it took longer. The time that other programs or a stalled machine took does not count.
    ///
    /// # Panics
    /// When it does not come at all.
    pub fn recovers<T>(&self, what: &str, look: impl FnMut() -> Option<T>) -> Result<T, String> {
        let since = self.moment();
        let found = eventually(what, look);
        self.is_within(Bound::of_this_test(), &since, what).map(|()| found)
    }

    /// [`Pod::recovers`], for a test that makes only one attempt.
    ///
    /// # Panics
    /// When it comes too late, or not at all.
    pub fn assert_recovers<T>(&self, what: &str, look: impl FnMut() -> Option<T>) -> T {
        self.recovers(what, look).unwrap_or_else(|late| panic!("{late}"))
    }

    /// Checks whether something that has just ended took no longer than a bound.
    pub(crate) fn is_within(&self, bound: Option<Bound>, since: &Moment, what: &str) -> Result<(), String> {
        bound.map_or(Ok(()), |bound| bound.check(what, since, &self.moment()))
    }
}
