//! `poll_oneoff`: the only way for a guest to wait.

use std::time::Duration;

use super::{BADF, Failure, INVAL, SUCCESS, Version, is_stream, now, write_size};
use crate::guest::linear_memory::{slice, write};

/// The most subscriptions in one poll.
const MAX_SUBSCRIPTIONS: u32 = 1024;

/// The size of an event, in bytes, in both versions of the interface.
const EVENT_SIZE: usize = 32;

impl Version {
    /// The size of a subscription, in bytes.
    fn subscription_size(self) -> usize {
        match self {
            Self::Unstable => 56,
            Self::Preview1 => 48,
        }
    }

    /// Where the clock is in a subscription to one; its time and its flags follow 8 and 24 bytes later. Clocks of the earlier version have an
    /// identifier before that, which is not used.
    fn clock_at(self) -> usize {
        match self {
            Self::Unstable => 24,
            Self::Preview1 => 16,
        }
    }
}

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
    pub(super) fn read(version: Version, memory: &[u8], input: i32, count: u32) -> Result<Self, Failure> {
        if count == 0 || count > MAX_SUBSCRIPTIONS {
            return Err(Failure::Errno(INVAL));
        }
        let len = version.subscription_size() * usize::try_from(count).unwrap_or_default();
        let bytes = slice(memory, input, i32::try_from(len).unwrap_or(i32::MAX))?;
        let subscriptions = bytes.chunks_exact(version.subscription_size());
        Ok(Self { subscriptions: subscriptions.map(|bytes| Subscription::read(version, bytes)).collect() })
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
    fn read(version: Version, bytes: &[u8]) -> Self {
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
        let at = version.clock_at();
        let (clock, timeout, is_absolute) =
            (small(at), Duration::from_nanos(u64::from_le_bytes(number(at + 8))), bytes[at + 24] & 1 == 1);
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

    fn clock(id: u8, timeout: u64) -> [u8; 48] {
        let mut bytes = [0; 48];
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
        let Ok(poll) = Poll::read(Version::Preview1, &memory, 0, 2) else { panic!("reads") };
        assert_eq!(poll.wait(), Some(Duration::from_millis(2)));
        assert!(poll.write(&mut memory, 1024, 2048).is_ok());
        assert_eq!((memory[1024], read_u32(&memory, 2048, 0)), (7, Ok(1)));
    }

    #[test]
    fn a_stream_in_a_poll_is_ready_at_once() {
        let mut memory = vec![0; 4096];
        memory[..48].copy_from_slice(&clock(1, 5_000_000));
        memory[56] = 1;
        let Ok(poll) = Poll::read(Version::Preview1, &memory, 0, 2) else { panic!("reads") };
        assert_eq!(poll.wait(), None);
    }

    /// wasi_unstable.witx: the identifier of a clock comes before it, so that a subscription has 56 bytes.
    #[test]
    fn a_poll_of_the_earlier_version_has_larger_subscriptions() {
        let mut memory = vec![0; 4096];
        for (at, userdata, timeout) in [(0, 6, 5_000_000_u64), (56, 7, 2_000_000)] {
            memory[at] = userdata;
            memory[at + 16..at + 24].fill(0xff);
            memory[at + 24] = 1;
            memory[at + 32..at + 40].copy_from_slice(&timeout.to_le_bytes());
        }
        // The second time is one of the clock, and has passed.
        memory[56 + 48] = 1;
        let Ok(poll) = Poll::read(Version::Unstable, &memory, 0, 2) else { panic!("reads") };
        assert_eq!(poll.subscriptions[0].wait, Some(Duration::from_millis(5)));
        assert_eq!(poll.subscriptions[1].wait, Some(Duration::ZERO));
        assert!(poll.write(&mut memory, 1024, 2048).is_ok());
        assert_eq!((memory[1024], read_u32(&memory, 2048, 0)), (7, Ok(1)));
    }

    #[test]
    fn polls_of_nothing_and_of_too_much_are_refused() {
        let memory = vec![0; 4096];
        assert!(matches!(Poll::read(Version::Preview1, &memory, 0, 0), Err(Failure::Errno(INVAL))));
        assert!(matches!(Poll::read(Version::Preview1, &memory, 0, u32::MAX), Err(Failure::Errno(INVAL))));
        assert!(matches!(Poll::read(Version::Preview1, &memory, 4000, 4), Err(Failure::Errno(FAULT))));
    }
}
