//! Whether this program leads.

use std::time::Instant;

use tokio::sync::watch;

/// Set by the task that holds a Lease: the time until which this program leads.
#[derive(Debug, Clone)]
pub struct LeadershipSender(watch::Sender<State>);

/// Whether this program leads. Check it before each write.
#[derive(Debug, Clone)]
pub struct Leadership(watch::Receiver<State>);

#[derive(Debug, Clone, Copy, Default)]
struct State {
    /// The time until which this program leads; `None` if it does not lead.
    until: Option<Instant>,
    /// How often it began to lead.
    term: u64,
}

/// Something that was learned while this program led. In a later term it may be outdated, since another program led in between.
#[derive(Debug, Clone)]
pub struct OfTerm<T> {
    /// The term, as [`Leadership::term`] gives it.
    pub term: u64,
    /// What was learned.
    pub value: T,
}

impl Leadership {
    /// The two ends. The program does not lead yet.
    pub fn new() -> (LeadershipSender, Self) {
        let (sender, receiver) = watch::channel(State::default());
        (LeadershipSender(sender), Self(receiver))
    }

    /// Whether this program leads now. False as soon as its time is over, whatever the state of the renewal.
    pub fn is_held(&self) -> bool {
        self.term().is_some()
    }

    /// The number of the present term: how often this program began to lead. `None` if it does not lead now.
    pub fn term(&self) -> Option<u64> {
        let State { until, term } = *self.0.borrow();
        until.is_some_and(|until| Instant::now() < until).then_some(term)
    }

    /// Waits until this program leads, and returns the term.
    pub async fn held(&mut self) -> u64 {
        loop {
            if let Some(term) = self.term() {
                return term;
            }
            self.changed().await;
        }
    }

    /// Waits until a term is over: another program may lead now, or may have led in between.
    pub async fn over(&mut self, term: u64) {
        while self.term() == Some(term) {
            self.changed().await;
        }
    }

    /// Waits until a renewal, a loss, or the end of the time. Waits for ever if nothing can change any more.
    pub async fn changed(&mut self) {
        // The value is not marked as seen: what was set since the last call counts as a change.
        let until = self.0.borrow().until;
        let over = async {
            match until.filter(|until| *until > Instant::now()) {
                Some(until) => tokio::time::sleep_until(until.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = self.0.changed() => if changed.is_err() { std::future::pending::<()>().await },
            () = over => {}
        }
    }
}

impl LeadershipSender {
    /// The time until which this program leads; `None` if it does not lead.
    pub(super) fn until(&self) -> Option<Instant> {
        self.0.borrow().until.filter(|until| Instant::now() < *until)
    }

    /// Sets the time until which this program leads. A new term begins if it does not lead now. Returns the previous time.
    pub(super) fn set(&self, until: Option<Instant>) -> Option<Instant> {
        let begins = until.is_some() && self.until().is_none();
        let term = self.0.borrow().term + u64::from(begins);
        self.0.send_replace(State { until, term }).until
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn it_ends_by_itself_without_a_renewal() {
        let (sender, mut leadership) = Leadership::new();
        assert!(!leadership.is_held());
        sender.set(Some(Instant::now() + Duration::from_secs(3)));
        leadership.held().await;
        leadership.changed().await;
        let over = tokio::time::timeout(Duration::from_secs(60), leadership.changed()).await;
        assert!(over.is_ok() && !leadership.is_held());
        assert_eq!(sender.until(), None);
    }

    #[tokio::test]
    async fn a_change_before_the_wait_counts() {
        let (sender, mut leadership) = Leadership::new();
        sender.set(Some(Instant::now() + Duration::from_secs(60)));
        sender.set(None);
        tokio::time::timeout(Duration::from_secs(60), leadership.changed()).await.expect("a change");
    }

    #[tokio::test]
    async fn each_time_it_begins_to_lead_is_a_term() {
        let (sender, mut leadership) = Leadership::new();
        let lead = || sender.set(Some(Instant::now() + Duration::from_secs(60)));
        assert_eq!(leadership.term(), None);
        lead();
        lead();
        assert_eq!(leadership.held().await, 1, "a renewal is no new term");
        sender.set(None);
        assert_eq!(leadership.term(), None);
        lead();
        assert_eq!(leadership.held().await, 2);
        tokio::time::timeout(Duration::from_secs(60), leadership.over(1)).await.expect("the first term is over");
    }
}
