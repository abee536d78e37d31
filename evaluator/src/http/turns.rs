//! Waiting for a turn: [`Shares`] with those who wait as tasks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portcullis_process::crowd::Source;
use tokio::sync::oneshot;

use crate::fair::sources::{Given, Shares, Ticket};

/// Something that callers from several sources share.
pub(super) struct Turns(Mutex<Shares<oneshot::Sender<Turn>>>);

/// What one of them has, until it is dropped.
pub(super) struct Turn {
    turns: Arc<Turns>,
    source: Source,
    amount: u32,
}

/// Somebody who waits; he is taken back when he goes.
struct Waiting<'t> {
    turns: &'t Turns,
    ticket: Ticket,
}

impl Turns {
    /// `total`, of which one source has `most` at the same time.
    pub(super) fn new(total: u32, most: u32) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Shares::new(total, most))))
    }

    /// Waits for `amount`.
    pub(super) async fn acquire(self: &Arc<Self>, source: Source, is_known: bool, amount: u32) -> Turn {
        let (sender, receiver) = oneshot::channel();
        let ticket = self.shares().ask(source, is_known, amount, sender);
        let _waiting = Waiting { turns: self, ticket };
        self.hand_on();
        receiver.await.expect("a wish is dropped by who has it only")
    }

    /// Whether anybody waits.
    pub(super) fn is_waited_for(&self) -> bool {
        self.shares().is_waited_for()
    }

    fn hand_on(self: &Arc<Self>) {
        loop {
            let Some(Given { waiter, source, amount }) = self.shares().give_next() else { return };
            if let Err(mut turn) = waiter.send(Turn { turns: Arc::clone(self), source, amount }) {
                // He has gone. What he would have had is given back here, and not by the end of the turn, which would call this once
                // more for each of them.
                self.shares().give_back(source, std::mem::take(&mut turn.amount));
            }
        }
    }

    fn shares(&self) -> MutexGuard<'_, Shares<oneshot::Sender<Turn>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.amount > 0 {
            self.turns.shares().give_back(self.source, self.amount);
            self.turns.hand_on();
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.turns.shares().take_back(self.ticket);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    const SOURCE: [u8; 4] = [10, 0, 0, 1];

    #[tokio::test]
    async fn a_turn_goes_on_to_the_next_who_still_waits() {
        let turns = Turns::new(1, 1);
        let source = Source::of(SOURCE.into());
        let first = turns.acquire(source, false, 1).await;
        let mut gone = Box::pin(turns.acquire(source, false, 1));
        let mut next = Box::pin(turns.acquire(source, false, 1));
        assert!((&mut gone).now_or_never().is_none() && (&mut next).now_or_never().is_none());
        assert!(turns.is_waited_for());
        drop(gone);
        drop(first);
        let turn = next.now_or_never().expect("it is his turn");
        assert!(!turns.is_waited_for());
        drop(turn);
        assert!(turns.acquire(source, false, 1).now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_turn_that_nobody_took_is_not_lost() {
        let turns = Turns::new(1, 1);
        let source = Source::of(SOURCE.into());
        let first = turns.acquire(source, false, 1).await;
        let mut given = Box::pin(turns.acquire(source, false, 1));
        assert!((&mut given).now_or_never().is_none());
        drop(first);
        // It is his turn, and he goes before he is told.
        drop(given);
        assert!(turns.acquire(source, false, 1).now_or_never().is_some());
    }
}
