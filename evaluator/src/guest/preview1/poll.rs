//! `poll_oneoff`: the only way for a guest to wait.

use std::time::Duration;

use super::{BADF, Failure, INVAL, SUCCESS, is_stream, now, write_size};
use crate::guest::linear_memory::{slice, write};

/// The most subscriptions in one poll.
const MAX_SUBSCRIPTIONS: u32 = 1024;

// Sizes that the interface defines, in bytes.
const SUBSCRIPTION_SIZE: usize = 48;
const EVENT_SIZE: usize = 32;

/// The subscriptions of a poll. Only those to clocks wait: streams are always ready.
pub(super) struct Poll {
    subscriptions: Vec<Subscription>,
}

struct Subscription {
    userdata: [u8; 8],
    kind: u8,
    /// How long it waits; none for a stream, which is ready at once.
    wait: Option<Duration>,
    errno: i32,
}

impl Poll {
    pub(super) fn read(memory: &[u8], input: i32, count: u32) -> Result<Self, Failure> {
        if count == 0 || count > MAX_SUBSCRIPTIONS {
            return Err(Failure::Errno(INVAL));
        }
        let len = SUBSCRIPTION_SIZE * usize::try_from(count).unwrap_or_default();
        let bytes = slice(memory, input, i32::try_from(len).unwrap_or(i32::MAX))?;
        let subscriptions = bytes.chunks_exact(SUBSCRIPTION_SIZE).map(Subscription::read).collect();
        Ok(Self { subscriptions })
    }

    /// How long to wait until the first subscription is ready; none if one is ready already.
    pub(super) fn wait(&self) -> Option<Duration> {
        let waits: Option<Vec<_>> = self.subscriptions.iter().map(|subscription| subscription.wait).collect();
        waits?.into_iter().min().filter(|wait| !wait.is_zero())
    }

    /// Writes the events that have happened after [`Poll::wait`].
    pub(super) fn write(&self, memory: &mut [u8], output: i32, events: i32) -> Result<(), Failure> {
        let waited = self.wait().unwrap_or_default();
        let ready = self.subscriptions.iter().filter(|s| s.wait.is_none_or(|wait| wait <= waited));
        let mut written = 0;
        for (i, subscription) in ready.enumerate() {
            let mut event = [0; EVENT_SIZE];
            event[..8].copy_from_slice(&subscription.userdata);
            event[8..10].copy_from_slice(&subscription.errno.to_le_bytes()[..2]);
            event[10] = subscription.kind;
            let at = output.wrapping_add(i32::try_from(i * EVENT_SIZE).unwrap_or(i32::MAX));
            write(memory, at, &event)?;
            written = i + 1;
        }
        write_size(memory, events, written)
    }
}

impl Subscription {
    fn read(bytes: &[u8]) -> Self {
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            number
        };
        let small = |at: usize| i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (userdata, kind) = (number(0), bytes[8]);
        if kind != 0 {
            let errno = if is_stream(small(16)) { SUCCESS } else { BADF };
            return Self { userdata, kind, wait: None, errno };
        }
        let (clock, timeout, is_absolute) =
            (small(16), Duration::from_nanos(u64::from_le_bytes(number(24))), bytes[40] & 1 == 1);
        match now(clock) {
            Ok(now) if is_absolute => Self { userdata, kind, wait: Some(timeout.saturating_sub(now)), errno: SUCCESS },
            Ok(_) => Self { userdata, kind, wait: Some(timeout), errno: SUCCESS },
            Err(_) => Self { userdata, kind, wait: None, errno: INVAL },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::FAULT;
    use super::*;
    use crate::guest::linear_memory::read_u32;

    fn clock(id: u8, timeout: u64) -> [u8; SUBSCRIPTION_SIZE] {
        let mut bytes = [0; SUBSCRIPTION_SIZE];
        bytes[0] = 7;
        bytes[16] = id;
        bytes[24..32].copy_from_slice(&timeout.to_le_bytes());
        bytes
    }

    #[test]
    fn a_poll_waits_for_its_earliest_clock() {
        let mut memory = vec![0; 4096];
        memory[..48].copy_from_slice(&clock(1, 5_000_000));
        memory[48..96].copy_from_slice(&clock(1, 2_000_000));
        let Ok(poll) = Poll::read(&memory, 0, 2) else { panic!("reads") };
        assert_eq!(poll.wait(), Some(Duration::from_millis(2)));
        assert!(poll.write(&mut memory, 1024, 2048).is_ok());
        assert_eq!((memory[1024], read_u32(&memory, 2048, 0)), (7, Ok(1)));
    }

    #[test]
    fn a_stream_in_a_poll_is_ready_at_once() {
        let mut memory = vec![0; 4096];
        memory[..48].copy_from_slice(&clock(1, 5_000_000));
        memory[56] = 1;
        let Ok(poll) = Poll::read(&memory, 0, 2) else { panic!("reads") };
        assert_eq!(poll.wait(), None);
    }

    #[test]
    fn polls_of_nothing_and_of_too_much_are_refused() {
        let memory = vec![0; 4096];
        assert!(matches!(Poll::read(&memory, 0, 0), Err(Failure::Errno(INVAL))));
        assert!(matches!(Poll::read(&memory, 0, u32::MAX), Err(Failure::Errno(INVAL))));
        assert!(matches!(Poll::read(&memory, 4000, 4), Err(Failure::Errno(FAULT))));
    }
}
