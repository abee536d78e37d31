//! A token that is replaced, as a kubelet does before it ends.

use std::time::Duration;

use portcullis_testkit::Bound;

use super::{Installation, Pod};
use crate::proxy::{Proxy, Request};
use crate::wait::eventually;

/// How soon a new token must be used.
pub const NEW_TOKEN: Bound = Bound { limit: Duration::from_secs(60), reason: "row R09's own" };

impl Installation<'_> {
    /// Replaces the token of a pod whose programs call through this proxy, and asserts that it is used within the minute of row R09, and not
    /// because a call was refused. Of the calls, only those that `is_meant` selects count. Returns the first one with the new token.
    ///
    /// # Panics
    /// When the token is not used in time, or only after a refusal.
    pub fn assert_new_token_is_used(
        &self,
        account: &str,
        pod: &Pod,
        proxy: &Proxy,
        is_meant: impl Fn(&Request) -> bool,
    ) -> Request {
        let token = self.token(account, pod);
        let calls = || proxy.requests().into_iter().filter(&is_meant);
        let with_it = || calls().find(|call| call.bearer == token);
        assert_eq!(with_it(), None, "only the test has it");
        let replaced = self.moment();
        pod.put_token(&token);
        let used = eventually("a call with the new token", || with_it().filter(|call| call.status.is_some()));
        NEW_TOKEN.assert("the new token", &replaced, &self.moment());
        let refused = calls().filter(|call| call.at >= replaced.at() && call.status == Some(401)).count();
        assert_eq!(refused, 0, "both tokens are valid, so no refusal made the program read the file");
        used
    }
}
