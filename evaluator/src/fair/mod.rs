//! Shares scarce resources among those who ask for them: a pool to wait at, with one of two rules.
//!
//! - [`policies`]: requests under way, instances, long evaluations, loads and memory, among policies and their tenants. What each may
//!   hold depends on what stays free, so that the next tenant always finds room, and the one that holds the least is served first.
//! - [`turns`]: handshakes and bodies that arrive, among the addresses of clients, and the program's own work on large values, among tenants.
//!   They simply take turns, preferred ones in a queue of their own, and each may hold a fixed part. No claim waits for ever, however large
//!   it is.
//!
//! The rules are pure; [`pool`] has what they share: a task that waits leaves the queue when it is dropped, and what it got goes
//! back when that is dropped. Processor time is shared by [`crate::lanes`], since it is used up and does not come back.

pub(crate) mod claimant;
pub(crate) mod policies;
pub(crate) mod pool;
pub(crate) mod turns;

/// Decides what each one gets of a stock, and keeps the queue of those who wait.
pub(crate) trait Rule {
    /// The owner of what is given.
    type Owner;
    /// A request for some of the stock.
    type Claim;
    /// The place of a claim in the queue.
    type Ticket: Copy;
    /// How a claim that waits is met.
    type Waiter;

    /// Gives what is asked for at once, unless that would overtake a claim in the queue.
    fn take(&mut self, claim: &Self::Claim) -> Option<Grant<Self::Owner>>;

    /// Puts a claim into the queue.
    ///
    /// # Errors
    /// When the queue is full.
    fn wait(&mut self, claim: &Self::Claim, waiter: Self::Waiter) -> Result<Self::Ticket, Self::Waiter>;

    /// Takes a claim out of the queue; says whether it still waited.
    fn leave(&mut self, claim: &Self::Claim, ticket: Self::Ticket) -> bool;

    /// Takes back what was held.
    fn give_back(&mut self, owner: &Self::Owner, amount: u64);

    /// Takes the next claim that can be met out of the queue. Call it until it returns `None`.
    fn next(&mut self) -> Option<(Grant<Self::Owner>, Self::Waiter)>;

    /// Where all that hold something wait for more: takes the one that must give way out of the queue.
    fn give_up(&mut self) -> Option<Self::Waiter>;
}

/// A part of a stock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grant<O> {
    /// The one that it is given to.
    pub(crate) owner: O,
    /// How much it is.
    pub(crate) amount: u64,
}
