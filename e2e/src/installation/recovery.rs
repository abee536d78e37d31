//! I3: whether a row of the fault catalogue is right again as soon as it says.

use std::iter;

use portcullis_testkit::{Bound, Moment};

use super::{Installation, Pod};
use crate::wait::eventually;

impl Installation<'_> {
    /// This moment, from which the time of something is measured. What the programs of the installation take from then on counts. What
    /// others take does not: other tests and their installations, this test, and the control plane, which all of them share.
    pub fn moment(&self) -> Moment {
        Moment::now(self.pods().iter().flat_map(|pod| pod.pids()))
    }

    /// Waits until there is something, and says whether it came within the bound of the row that the test is named after.
    ///
    /// # Errors
    /// When it took longer.
    ///
    /// # Panics
    /// When it does not come at all, or the test is named after no row with a bound.
    pub fn recovers<T>(&self, what: &str, look: impl FnMut() -> Option<T>) -> Result<T, String> {
        self.recovers_since(&self.moment(), what, look)
    }

    /// The same, where the time is measured from an earlier moment on.
    ///
    /// # Errors
    /// When it took longer.
    ///
    /// # Panics
    /// When it does not come at all, or the test is named after no row with a bound.
    pub fn recovers_since<T>(&self, since: &Moment, what: &str, look: impl FnMut() -> Option<T>) -> Result<T, String> {
        let found = eventually(what, look);
        bound().check(what, since, &self.moment()).map(|()| found)
    }

    /// [`Installation::recovers`], where it is not tried again.
    ///
    /// # Panics
    /// When it comes too late, or not at all.
    pub fn assert_recovers<T>(&self, what: &str, look: impl FnMut() -> Option<T>) -> T {
        self.recovers(what, look).unwrap_or_else(|late| panic!("{late}"))
    }
}

/// The bound of the row that the running test is named after.
fn bound() -> Bound {
    Bound::of_this_test().expect("the test is named after a row")
}

impl Pod {
    /// The ids of its programs that run.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.containers.iter().filter_map(|container| container.process.pid()).collect()
    }
}

/// Waits until there is something in a cluster whose node runs the programs, and asserts that it came within the bound of the row that the
/// test is named after. Which processes of the node are the tested ones is not known here, so what they take does not count either.
///
/// # Panics
/// When it comes too late, or not at all.
pub fn assert_recovers_on_node<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    let moment = || Moment::now(iter::empty());
    let since = moment();
    let found = eventually(what, look);
    bound().check(what, &since, &moment()).unwrap_or_else(|late| panic!("{late}"));
    found
}
