//! Values that tasks and threads share.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// Locks a mutex, even after a panic of another thread that held it: the values in our mutexes are valid between any two
/// statements, and a panic in one request must not end all others.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

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
    fn a_mutex_can_be_locked_after_a_panic() {
        let mutex = Mutex::new(1);
        let panic = std::thread::scope(|scope| {
            let held = scope.spawn(|| {
                let _guard = lock(&mutex);
                panic!("as expected");
            });
            held.join()
        });
        assert!(panic.is_err());
        assert_eq!(*lock(&mutex), 1);
    }

    #[test]
    fn a_value_that_equals_the_last_wakes_nobody() {
        let (sender, mut receiver) = watch::channel(1);
        assert!(!set_if_new(&sender, 1) && !receiver.has_changed().expect("the sender is there"));
        assert!(set_if_new(&sender, 2) && *receiver.borrow_and_update() == 2);
    }
}
