//! Locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, even after a panic of another thread that held it: the values in our mutexes are valid between any two
/// statements, and a panic in one request must not end all others.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
}
