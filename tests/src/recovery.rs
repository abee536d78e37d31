//! I3: what was broken is right again within the bound of its row; and other times that a test measures, without what others took of them.

use std::time::Duration;

use portcullis_testkit::Bound;

use crate::{Moment, Pod, Process, eventually};

impl Pod {
    /// This moment, from which the time of something is measured. What the pod's programs take from then on counts, and what other
    /// programs take does not, the test included.
    pub fn moment(&self) -> Moment {
        Moment::now(self.processes().filter_map(Process::running))
    }

    /// The same for a test that uses most of the machine itself: what the test takes counts too.
    pub fn moment_with_test(&self) -> Moment {
        self.moment().beside_this_test()
    }

    /// Does `work`, and says whether it took no longer than `limit`.
    ///
    /// # Errors
    /// When it took longer. What other programs and a machine that stood still took of the time does not count.
    pub fn timed<T>(&self, limit: Duration, work: impl FnOnce() -> T) -> (T, Result<(), String>) {
        let since = self.moment();
        let done = work();
        let now = self.moment();
        let (took, allowed) = (since.until(&now), since.allowed(limit, &now));
        let late = || format!("it took {took:?}, and {allowed:?} were allowed here and now");
        (done, if took <= allowed { Ok(()) } else { Err(late()) })
    }

    /// Does `work`, and asserts that it took no longer than `limit`, as [`Pod::timed`] measures it.
    ///
    /// # Panics
    /// When it took longer.
    pub fn within<T>(&self, limit: Duration, what: &str, work: impl FnOnce() -> T) -> T {
        let (done, in_time) = self.timed(limit, work);
        in_time.unwrap_or_else(|late| panic!("{what}: {late}"));
        done
    }

    /// Waits until there is something, and says whether it came within the bound of the row that the test is named after.
    ///
    /// # Errors
    /// When it took longer. What other programs and a machine that stood still took of the time does not count.
    ///
    /// # Panics
    /// When it does not come at all.
    pub fn recovers<T>(&self, what: &str, look: impl FnMut() -> Option<T>) -> Result<T, String> {
        let since = self.moment();
        let found = eventually(what, look);
        self.is_within(Bound::of_this_test(), &since, what).map(|()| found)
    }

    /// The same, where it is not tried again.
    ///
    /// # Panics
    /// When it comes too late, or not at all.
    pub fn assert_recovers<T>(&self, what: &str, look: impl FnMut() -> Option<T>) -> T {
        self.recovers(what, look).unwrap_or_else(|late| panic!("{late}"))
    }

    /// Whether what has just ended took no longer than a bound.
    pub(crate) fn is_within(&self, bound: Option<Bound>, since: &Moment, what: &str) -> Result<(), String> {
        bound.map_or(Ok(()), |bound| bound.check(what, since, &self.moment()))
    }
}
