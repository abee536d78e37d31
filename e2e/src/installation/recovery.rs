//! I3: whether the product works again as soon as a row of the fault catalogue says.

use std::iter;

use portcullis_testkit::{Bound, Moment};

use super::{Installation, Pod};
use crate::wait::eventually;

impl Installation<'_> {
    /// The current moment, from which a time is measured. From then on, the time that the programs of the installation take counts.
    /// The time of other programs does not: other tests and their installations, this test, and the control plane, which all of them
    /// share.
    pub fn moment(&self) -> Moment {
        Moment::now(self.pods().iter().flat_map(|pod| pod.pids()))
    }

    /// Waits until `look` returns something. The result is an error if it came later than the bound of the row that the
    /// test is named after.
    ///
    /// # Errors
    /// When it took longer.
    ///
    /// # Panics
    /// When it does not come at all, or the test is not named after a row with a bound.
    pub fn recovers<T>(&self, what: &str, look: impl FnMut() -> Option<T>) -> Result<T, String> {
        self.recovers_since(&self.moment(), what, look)
    }

    /// [`Installation::recovers`], with the time measured from an earlier moment.
    ///
    /// # Errors
    /// When it took longer.
    ///
    /// # Panics
    /// When it does not come at all, or the test is not named after a row with a bound.
    pub fn recovers_since<T>(&self, since: &Moment, what: &str, look: impl FnMut() -> Option<T>) -> Result<T, String> {
        let found = eventually(what, look);
        bound().check(what, since, &self.moment()).map(|()| found)
    }

    /// [`Installation::recovers`], for a test that makes only one attempt.
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
    /// The process ids of its running programs.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.containers.iter().filter_map(|container| container.process.pid()).collect()
    }
}

/// Waits until `look` returns something in a cluster whose node runs the programs, and asserts that it came within the bound of the row
/// that the test is named after. It is not known here which processes of the node are the tested ones, so their time does not count
/// either.
///
/// # Panics
/// When it comes too late, or not at all.
pub fn assert_recovers_on_node<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    let moment = || Moment::now(iter::empty());
    let since = moment();
    let found = eventually(what, look);
    bound().assert(what, &since, &moment());
    found
}
