//! I5 for small leaks: memory that grows a little with each of thousands of repetitions.

use std::thread;
use std::time::Duration;

use portcullis_testkit::{Usage, note};

use crate::{Pod, Process};

/// How many times more all windows together may grow than [`assert_no_leak`] allows a single one.
const SLACK: u64 = 4;

impl Pod {
    /// The memory of each running program, without that of requests. It is the least of several measurements, because the canary goes on
    /// sending requests.
    pub fn memory_at_rest(&self) -> Vec<u64> {
        let pids: Vec<_> = self.processes().filter(|process| process.is_alive()).map(Process::pid).collect();
        let mut least = vec![u64::MAX; pids.len()];
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(50));
            for (least, pid) in least.iter_mut().zip(&pids) {
                *least = Usage::exact_anonymous(*pid).min(*least);
            }
        }
        least
    }
}

/// Asserts that a program whose memory had these sizes, with so many `times` of `what` between one and the next, does not leak more than
/// `leak` bytes with each. It is enough if this holds for one of the windows, because an allocator may take more memory for itself in some
/// of them than all together may leave behind. So that a window in which it gives memory back cannot hide everything, there is a wider
/// limit for all windows together.
///
/// # Panics
/// When it leaks more.
pub fn assert_no_leak(program: &str, sizes: &[u64], times: u64, what: &str, leak: u64) {
    let grown: Vec<_> = sizes.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    let kib: Vec<_> = grown.iter().map(|bytes| bytes >> 10).collect();
    note(&format!("{program}: {} KiB, then {kib:?} KiB more with each {times} {what}", sizes[0] >> 10));
    let limit = leak * times;
    let all = sizes.last().expect("there are windows").saturating_sub(sizes[0]);
    assert!(all <= limit * grown.len() as u64 * SLACK, "{program}: {} KiB more in all, {kib:?}", all >> 10);
    let least = grown.into_iter().min().expect("there are windows");
    assert!(least <= limit, "{program}: {kib:?} KiB more with each {times} {what}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_an_allocator_keeps_grows_in_some_windows() {
        assert_no_leak("it", &[0, 9000, 9900, 9000], 1000, "swaps", 1);
    }

    #[test]
    #[should_panic(expected = "KiB more with each 1000 swaps")]
    fn a_leak_grows_in_all_windows() {
        assert_no_leak("it", &[0, 1100, 2200, 3300], 1000, "swaps", 1);
    }

    #[test]
    #[should_panic(expected = "KiB more in all")]
    fn a_window_in_which_memory_is_given_back_hides_no_large_leak() {
        assert_no_leak("it", &[0, 9000, 8000, 17_000], 1000, "swaps", 1);
    }
}
