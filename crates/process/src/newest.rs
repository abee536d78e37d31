//! Channels that hold the newest value.

use tokio::sync::watch;

/// Sends a value if it differs from the last one, so that receivers wake up for changes only. Returns whether it was
/// sent.
pub fn set_if_new<T: PartialEq>(sender: &watch::Sender<T>, next: T) -> bool {
    sender.send_if_modified(|last| {
        let is_new = *last != next;
        *last = next;
        is_new
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_equals_the_last_wakes_nobody() {
        let (sender, mut receiver) = watch::channel(1);
        assert!(!set_if_new(&sender, 1) && !receiver.has_changed().expect("the sender is there"));
        assert!(set_if_new(&sender, 2) && *receiver.borrow_and_update() == 2);
    }
}
