//! Reading the body of a request within limits of size, rate and memory.
//!
//! A large body takes its memory before any of it is read, and waits if there is too little. Policies and namespaces share this memory until
//! their requests are answered, since a request may be under way for long. While bodies arrive, the addresses of clients share it too: all API
//! servers may have one address, and a client that sends slowly may know the path of any policy.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use tokio::time::{Sleep, sleep, timeout};

use crate::fair::claimant::Claimant;
use crate::fair::policies::Claim;
use crate::fair::pool::{NothingLeft, PeerPermit, PeerPool, PolicyPermit, PolicyPool};
use crate::fair::turns::TurnClaim;
use crate::http::connection::ConnectionState;
use crate::http::pace::{LONGEST, Progress};
use crate::metrics::Metrics;

/// Bodies up to this size are bounded by the number of connections alone, and never wait.
const SMALL: usize = 64 << 10;
/// The unit that memory is counted in, in bytes.
const STEP: usize = 64 << 10;
/// How much of the memory one peer may have for bodies that arrive, in quarters, so that one that sends slowly leaves room for others.
const QUARTERS_OF_ONE: usize = 3;
/// How many copies of a body are kept: one as it came, and one as guests see it. All members of a group see the same bytes.
const COPIES: usize = 2;
/// How long before its sender gives up a body stops waiting for memory, so that the answer says what it waited for.
const LAST_MOMENT: Duration = Duration::from_millis(100);
/// How often the rate is checked while nothing arrives.
const LOOK: Duration = Duration::from_millis(250);
/// How long a refused body is read and thrown away.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// Limits on bodies.
pub(crate) struct BodyLimits {
    largest: usize,
    /// The memory for all large bodies together, in steps. A body holds what it announces until its request is answered.
    memory: Arc<PolicyPool>,
    /// The same memory as the addresses of clients share it: a body holds its part while it arrives.
    arriving: Arc<PeerPool>,
    metrics: Metrics,
}

/// Which share the memory of a body counts in.
#[derive(Debug, Clone, Copy)]
pub(crate) enum BodyOwner<'a> {
    /// A policy that is asked.
    Policy(&'a Arc<Claimant>),
    /// All checks of policies that somebody applies.
    Checks,
    /// All requests for which no policy is asked.
    Nobody,
}

/// A body and the memory that is reserved for it.
pub(crate) struct Body {
    /// The content.
    pub bytes: Bytes,
    _memory: Option<PolicyPermit>,
}

/// Why a body is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyError {
    /// It is above the limit.
    TooLarge,
    /// It did not arrive in time.
    TooSlow,
    /// There was no memory for it in time.
    NoRoom,
    /// The connection broke; there is no client left to answer.
    Broken,
}

/// A body that is being read.
struct Reading<'a> {
    body: Incoming,
    state: &'a ConnectionState,
    announced: usize,
    received: usize,
    begun: Instant,
    /// Where its memory comes from, and whose share it counts in; none if it is small.
    memory: Option<(&'a BodyLimits, &'a Claimant)>,
}

impl BodyLimits {
    /// Limits of `largest` bytes for each body, and of `memory` bytes for all large ones together.
    pub(crate) fn new(largest: usize, memory: u64, metrics: &Metrics) -> Self {
        let steps = |bytes: usize| u64::try_from(bytes.div_ceil(STEP)).unwrap_or(u64::MAX).max(1);
        let one = largest.saturating_mul(COPIES);
        let memory = usize::try_from(memory).unwrap_or(usize::MAX).max(one);
        let arriving = PeerPool::new(steps(memory), steps((memory / 4 * QUARTERS_OF_ONE).max(one)));
        // An owner that holds none gets the largest body in if there is room. The number of connections limits the queue.
        // A body holds nothing while it waits, so smaller ones of its owner must not overtake it without end.
        let memory = PolicyPool::in_order(steps(memory), steps(one));
        Self { largest, memory, arriving, metrics: metrics.clone() }
    }

    /// Whether a body announces more bytes than are taken.
    pub(crate) fn is_too_large(&self, body: &Incoming) -> bool {
        body.size_hint().lower() > u64::try_from(self.largest).unwrap_or(u64::MAX)
    }

    /// Reads the body of a request whose sender waits for `patience` at most; none if it does not say.
    ///
    /// # Errors
    /// When it is too large, too slow, or broken off, or there is no memory for it.
    pub(crate) async fn read(
        &self,
        body: Incoming,
        owner: BodyOwner<'_>,
        state: &ConnectionState,
        patience: Option<Duration>,
    ) -> Result<Body, BodyError> {
        if self.is_too_large(&body) {
            return Err(BodyError::TooLarge);
        }
        // Chunked bodies have been refused already, so this is the exact size.
        let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        let room = if announced > SMALL { Some(self.room(announced, owner, state, patience).await?) } else { None };
        let (permit, arriving) = room.unzip();
        state.sending(u64::try_from(announced).unwrap_or(u64::MAX));
        let memory = permit.as_ref().map(|permit| (self, &**permit.owner()));
        let reading = Reading { body, state, announced, received: 0, begun: Instant::now(), memory };
        let read = reading.whole().await;
        drop(arriving);
        if read == Err(BodyError::TooSlow) {
            self.metrics.bodies_too_slow.inc();
        }
        Ok(Body { bytes: read?, _memory: permit })
    }

    /// Waits until there is memory for a body.
    async fn room(
        &self,
        announced: usize,
        owner: BodyOwner<'_>,
        state: &ConnectionState,
        patience: Option<Duration>,
    ) -> Result<(PolicyPermit, PeerPermit), BodyError> {
        state.waiting();
        let amount = u64::try_from(announced.saturating_mul(COPIES).div_ceil(STEP)).unwrap_or(u64::MAX);
        let is_known = state.is_known() || state.is_proven();
        let who = match owner {
            // Strangers together leave room for those who have sent reviews, whatever policy they name. Among them the address that holds
            // the least comes first: that of an API server that has just begun, not that of a flood.
            _ if !is_known => Claimant::one_apart("strangers", &state.peer().to_string()),
            BodyOwner::Policy(who) => Arc::clone(who),
            BodyOwner::Checks => Claimant::apart("checks"),
            BodyOwner::Nobody => Claimant::apart("nobody"),
        };
        let (claim, turn) =
            (Claim { who, amount, has: 0 }, TurnClaim { owner: state.peer(), is_preferred: is_known, amount });
        let longest = patience.map_or(LONGEST, |patience| patience.saturating_sub(LAST_MOMENT).min(LONGEST));
        let until = Some(Instant::now() + longest);
        let taken = async {
            // In this order: a body that waits for what its policy may have holds nothing of what its address may have.
            let memory = self.memory.take(&claim, until).await?;
            Ok((memory, self.arriving.take(&turn, until).await?))
        };
        taken.await.map_err(|_: NothingLeft| {
            self.metrics.bodies_without_room.inc();
            if matches!(owner, BodyOwner::Policy(_)) {
                self.metrics.overloaded.inc();
            }
            BodyError::NoRoom
        })
    }

    /// Whether other bodies wait for memory that a body of this owner holds. Those that wait for their own owner's share do not.
    fn are_waited_for(&self, who: &Claimant) -> bool {
        self.memory.is_in_the_way(who) || self.arriving.is_waited_for()
    }

    /// Throws a refused body away, as [`discard`] does.
    pub(crate) async fn discard(&self, mut body: Incoming) {
        discard(&mut body, self.largest).await;
    }
}

/// Reads a refused body for a moment and throws it away: a client that still sends when the connection closes may never see the answer.
/// `largest` is the size of the largest body that is taken, in bytes.
pub(crate) async fn discard(body: &mut (impl hyper::body::Body<Data = Bytes> + Unpin), largest: usize) {
    let mut left = largest.saturating_mul(4);
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
            if left == 0 {
                break;
            }
        }
    };
    // A timeout is fine: these bytes are thrown away in any case.
    let _ = timeout(DISCARD_TIMEOUT, reading).await;
}

impl Reading<'_> {
    async fn whole(mut self) -> Result<Bytes, BodyError> {
        let mut look = pin!(sleep(LOOK));
        // Most bodies come in one piece, which is then not copied.
        let mut first: Option<Bytes> = None;
        let mut all = BytesMut::new();
        while let Some(piece) = poll_fn(|cx| self.poll_piece(cx, look.as_mut())).await? {
            if first.is_none() && all.is_empty() {
                first = Some(piece);
                continue;
            }
            if let Some(first) = first.take() {
                all.reserve(self.announced);
                all.extend_from_slice(&first);
            }
            all.extend_from_slice(&piece);
        }
        Ok(first.unwrap_or_else(|| all.freeze()))
    }

    /// The next piece; none at the end. Bytes that have arrived are taken before the rate is judged: a sender is not slow just because this
    /// program reads late.
    fn poll_piece(
        &mut self,
        cx: &mut Context<'_>,
        mut look: Pin<&mut Sleep>,
    ) -> Poll<Result<Option<Bytes>, BodyError>> {
        while let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            let Some(frame) = frame else { return Poll::Ready(Ok(None)) };
            let Ok(piece) = frame.map_err(|_| BodyError::Broken)?.into_data() else { continue };
            self.received += piece.len();
            self.state.received(u64::try_from(self.received).unwrap_or(u64::MAX));
            return Poll::Ready(Ok(Some(piece)));
        }
        loop {
            let progress = self.progress();
            let is_in_the_way = || self.memory.is_some_and(|(limits, who)| limits.are_waited_for(who));
            if progress.is_too_slow() || (progress.lags() && is_in_the_way()) {
                return Poll::Ready(Err(BodyError::TooSlow));
            }
            if look.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            look.as_mut().reset(tokio::time::Instant::now() + LOOK);
        }
    }

    fn progress(&self) -> Progress {
        let bytes = |bytes: usize| u64::try_from(bytes).unwrap_or(u64::MAX);
        Progress { announced: bytes(self.announced), received: bytes(self.received), elapsed: self.begun.elapsed() }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use portcullis_process::eviction::Peer;

    use super::*;

    const KIB: usize = 1 << 10;

    /// Limits of 32 MiB for bodies of at most 1 MiB.
    fn limits() -> (BodyLimits, Metrics) {
        let metrics = Metrics::new().expect("registers");
        (BodyLimits::new(KIB * KIB, 32 << 20, &metrics), metrics)
    }

    /// A connection from the address with this last number.
    fn from(last: u8, is_known: bool) -> ConnectionState {
        ConnectionState::new(Instant::now(), Peer::of([10, 0, 0, last].into()), is_known)
    }

    fn who(id: &str) -> Arc<Claimant> {
        Claimant::new(&id.parse().expect("an id"))
    }

    type Room = (PolicyPermit, PeerPermit);

    /// Memory for a body of so many KiB, if there is some at once.
    fn room(limits: &BodyLimits, owner: BodyOwner<'_>, state: &ConnectionState, kib: usize) -> Option<Room> {
        limits.room(kib * KIB, owner, state, None).now_or_never().map(|room| room.expect("it is in time"))
    }

    /// The memory of as many bodies of 512 KiB as there is room for. They have all arrived.
    fn flood(limits: &BodyLimits, owner: BodyOwner<'_>, state: &ConnectionState) -> Vec<PolicyPermit> {
        std::iter::from_fn(|| room(limits, owner, state, 512).map(|(memory, _)| memory)).collect()
    }

    #[tokio::test]
    async fn z22_the_large_bodies_of_a_namespace_leave_room_for_those_of_all_others() {
        let (limits, _) = limits();
        // All come from one API server.
        let server = from(1, true);
        let [a, b, c] = ["a", "b", "c"].map(|team| who(&format!("namespaced/{team}/x")));
        let held = flood(&limits, BodyOwner::Policy(&a), &server);
        assert_eq!(held.len(), 16, "as much as stays free");
        assert!(room(&limits, BodyOwner::Policy(&who("namespaced/a/another")), &server, 100).is_none());
        let more = [&b, &c].map(|who| flood(&limits, BodyOwner::Policy(who), &server));
        for owner in [
            BodyOwner::Policy(&who("namespaced/d/x")),
            BodyOwner::Policy(&who("cluster/x")),
            BodyOwner::Checks,
            BodyOwner::Nobody,
        ] {
            assert!(room(&limits, owner, &server, 100).is_some(), "{owner:?}");
        }
        drop((held, more));
        assert!(room(&limits, BodyOwner::Policy(&a), &server, 100).is_some());
    }

    #[tokio::test]
    async fn strangers_leave_room_for_those_who_sent_reviews_to_the_same_policy() {
        let (limits, _) = limits();
        let policy = who("cluster/x");
        let held: Vec<_> = (2..10).map(|last| flood(&limits, BodyOwner::Policy(&policy), &from(last, false))).collect();
        assert_eq!(held.iter().map(Vec::len).sum::<usize>(), 16, "from all addresses");
        assert!(room(&limits, BodyOwner::Policy(&policy), &from(1, true), 512).is_some());
    }

    #[tokio::test]
    async fn of_strangers_the_address_that_holds_the_least_is_first() {
        let (limits, _) = limits();
        let policy = who("cluster/x");
        let owner = BodyOwner::Policy(&policy);
        for addresses in [["10.0.0.2", "10.0.0.3"], ["2001:db8::2", "2001:db8:0:1::3"]] {
            let [flooding, fresh] = addresses.map(|address| {
                ConnectionState::new(Instant::now(), Peer::of(address.parse().expect("an address")), false)
            });
            let mut held = flood(&limits, owner, &flooding);
            let mut more = pin!(limits.room(512 * KIB, owner, &flooding, None));
            assert!(more.as_mut().now_or_never().is_none());
            let mut first = pin!(limits.room(512 * KIB, owner, &fresh, None));
            assert!(first.as_mut().now_or_never().is_none());
            drop(held.pop());
            let served = first.as_mut().now_or_never();
            assert!(served.as_ref().is_some_and(Result::is_ok), "{addresses:?}");
            assert!(more.as_mut().now_or_never().is_none());
        }
    }

    #[tokio::test]
    async fn a_large_body_is_not_overtaken_by_smaller_ones_of_its_policy() {
        let (limits, _) = limits();
        let server = from(1, true);
        let policy = who("cluster/x");
        let owner = BodyOwner::Policy(&policy);
        let mut held = flood(&limits, owner, &server);
        drop(held.pop());
        let mut large = pin!(limits.room(1024 * KIB, owner, &server, None));
        assert!(large.as_mut().now_or_never().is_none());
        let mut small = pin!(limits.room(512 * KIB, owner, &server, None));
        assert!(small.as_mut().now_or_never().is_none(), "there is room for it, but it is not its turn");
        drop(held.pop());
        let served = large.as_mut().now_or_never();
        assert!(served.as_ref().is_some_and(Result::is_ok));
        assert!(small.as_mut().now_or_never().is_none());
        drop(held);
        assert!(small.as_mut().now_or_never().is_some_and(|room| room.is_ok()));
    }

    #[tokio::test]
    async fn a_slow_sender_is_in_the_way_of_those_who_wait_for_the_same_share_only() {
        let (limits, _) = limits();
        let server = from(1, true);
        let [greedy, same, slow] = ["namespaced/a/x", "namespaced/a/y", "namespaced/b/x"].map(who);
        let _slow = room(&limits, BodyOwner::Policy(&slow), &server, 100).expect("it is free");
        let _held = flood(&limits, BodyOwner::Policy(&greedy), &server);
        let mut waits = pin!(limits.room(512 * KIB, BodyOwner::Policy(&greedy), &server, None));
        assert!(!limits.are_waited_for(&greedy));
        assert!(waits.as_mut().now_or_never().is_none());
        assert!([&greedy, &same].into_iter().all(|who| limits.are_waited_for(who)));
        assert!(!limits.are_waited_for(&slow), "its namespace has none of what the other one waits for");
        // All strangers have one share.
        let _strangers = flood(&limits, BodyOwner::Policy(&greedy), &from(2, false));
        let fresh = from(3, false);
        let mut waits = pin!(limits.room(512 * KIB, BodyOwner::Policy(&greedy), &fresh, None));
        let stranger = Claimant::one_apart("strangers", "10.0.0.2");
        assert!(!limits.are_waited_for(&stranger));
        assert!(waits.as_mut().now_or_never().is_none());
        assert!(limits.are_waited_for(&stranger));
    }

    #[tokio::test]
    async fn one_address_has_three_quarters_for_bodies_that_arrive() {
        let (limits, _) = limits();
        let (slow, other) = (from(1, true), from(2, true));
        let policies: Vec<_> = (0..8).map(|number| who(&format!("namespaced/team-{number}/x"))).collect();
        let arriving = || policies.iter().filter_map(|who| room(&limits, BodyOwner::Policy(who), &slow, 1024));
        let held: Vec<_> = arriving().chain(arriving()).collect();
        assert_eq!(held.len(), 12);
        let policy = who("cluster/x");
        assert!(room(&limits, BodyOwner::Policy(&policy), &slow, 1024).is_none());
        assert!(room(&limits, BodyOwner::Policy(&policy), &other, 1024).is_some());
    }

    #[tokio::test]
    async fn a_body_without_room_is_a_refused_request_only_where_a_policy_is_asked() {
        let (limits, metrics) = limits();
        let server = from(1, true);
        let policy = who("namespaced/a/x");
        let soon = Some(LAST_MOMENT + Duration::from_millis(1));
        for (owner, overloaded) in [(BodyOwner::Checks, 0), (BodyOwner::Policy(&policy), 1)] {
            let _held = flood(&limits, owner, &server);
            let refused = limits.room(512 * KIB, owner, &server, soon).await.map(drop);
            assert_eq!(refused, Err(BodyError::NoRoom));
            assert_eq!(metrics.overloaded.get(), overloaded, "{owner:?}");
        }
        assert_eq!(metrics.bodies_without_room.get(), 2);
    }
}
