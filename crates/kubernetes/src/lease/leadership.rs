//! Whether this program leads.

use std::time::Instant;

use tokio::sync::watch;

/// Where the holder of a Lease says until when it leads.
#[derive(Debug, Clone)]
pub struct Seat(watch::Sender<Option<Instant>>);

/// Whether this program leads. To be asked before each write.
#[derive(Debug, Clone)]
pub struct Leadership(watch::Receiver<Option<Instant>>);

impl Leadership {
    /// Nobody leads yet.
    pub fn new() -> (Seat, Self) {
        let (sender, receiver) = watch::channel(None);
        (Seat(sender), Self(receiver))
    }

    /// Whether it does now. False as soon as its own time has run out, whatever became of the renewal.
    pub fn is_held(&self) -> bool {
        self.0.borrow().is_some_and(|until| Instant::now() < until)
    }

    /// Waits until it leads.
    pub async fn held(&mut self) {
        while !self.is_held() {
            self.changed().await;
        }
    }

    /// Waits until a renewal, a loss, or the end of its time. For ever where nothing can change any more.
    pub async fn changed(&mut self) {
        // Not marked as seen: what was told since the last time counts as a change.
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

impl Seat {
    /// Until when this program leads, where it does.
    pub(super) fn until(&self) -> Option<Instant> {
        self.0.borrow().filter(|until| Instant::now() < *until)
    }

    /// Says it. Gives what was said before.
    pub(super) fn tell(&self, until: Option<Instant>) -> Option<Instant> {
        self.0.send_replace(until)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn it_ends_by_itself_when_nobody_renews_it() {
        let (seat, mut leadership) = Leadership::new();
        assert!(!leadership.is_held());
        seat.tell(Some(Instant::now() + Duration::from_millis(200)));
        leadership.held().await;
        leadership.changed().await;
        let over = tokio::time::timeout(Duration::from_secs(10), leadership.changed()).await;
        assert!(over.is_ok() && !leadership.is_held());
        assert_eq!(seat.until(), None);
    }

    #[tokio::test]
    async fn what_was_told_before_somebody_waits_is_heard() {
        let (seat, mut leadership) = Leadership::new();
        seat.tell(Some(Instant::now() + Duration::from_secs(60)));
        seat.tell(None);
        tokio::time::timeout(Duration::from_secs(10), leadership.changed()).await.expect("a change");
    }
}
