//! Whether this program leads.

use std::time::Instant;

use tokio::sync::watch;

/// Set by the task that holds a Lease: the time until which this program leads.
#[derive(Debug, Clone)]
pub struct LeadershipSender(watch::Sender<Option<Instant>>);

/// Whether this program leads. Check it before each write.
#[derive(Debug, Clone)]
pub struct Leadership(watch::Receiver<Option<Instant>>);

impl Leadership {
    /// The two ends. The program does not lead yet.
    pub fn new() -> (LeadershipSender, Self) {
        let (sender, receiver) = watch::channel(None);
        (LeadershipSender(sender), Self(receiver))
    }

    /// Whether this program leads now. False as soon as its time is over, whatever the state of the renewal.
    pub fn is_held(&self) -> bool {
        self.0.borrow().is_some_and(|until| Instant::now() < until)
    }

    /// Waits until this program leads.
    pub async fn held(&mut self) {
        while !self.is_held() {
            self.changed().await;
        }
    }

    /// Waits until a renewal, a loss, or the end of the time. Waits for ever if nothing can change any more.
    pub async fn changed(&mut self) {
        // The value is not marked as seen: what was set since the last call counts as a change.
        let until = *self.0.borrow();
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
        self.0.borrow().filter(|until| Instant::now() < *until)
    }

    /// Sets the time until which this program leads. Returns the previous one.
    pub(super) fn set(&self, until: Option<Instant>) -> Option<Instant> {
        self.0.send_replace(until)
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
}
