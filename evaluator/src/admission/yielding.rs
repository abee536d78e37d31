//! How work for one request shares its thread: it yields after a tick, as a guest does.
//!
//! Each guest may run for up to two ticks before it yields. Several of them in one task, beside or after each other, would together keep
//! their thread for that much longer.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Instant;

use portcullis_engine::TICK;
use portcullis_matching::Pace;
use tokio::task::yield_now;

/// The most steps of a condition that is evaluated where the request arrived. They take less than some milliseconds.
const QUICK: u64 = 20_000;

/// Yields after a tick, and before a step that may take longer.
pub(super) struct YieldAfterTick {
    since: Instant,
}

impl YieldAfterTick {
    /// Begins the first tick.
    pub(super) fn new() -> Self {
        Self { since: Instant::now() }
    }

    /// Yields if a tick has passed since the last time.
    pub(super) async fn yield_after_tick(&mut self) {
        self.before(0).await;
    }
}

impl Pace for YieldAfterTick {
    async fn before(&mut self, steps: u64) {
        if steps > QUICK || self.since.elapsed() >= TICK {
            yield_now().await;
            self.since = Instant::now();
        }
    }
}

/// The outputs of all futures, in their order. They are polled one after the other, from where the last poll ended, and a poll ends after a
/// tick by the clock `now`.
pub(super) async fn side_by_side<F: Future>(
    futures: impl IntoIterator<Item = F>,
    now: impl Fn() -> Instant,
) -> Vec<F::Output> {
    let mut waiting: VecDeque<_> = futures.into_iter().map(Box::pin).enumerate().collect();
    let mut outputs: Vec<_> = waiting.iter().map(|_| None).collect();
    poll_fn(|cx| {
        let begin = now();
        for left in (0..waiting.len()).rev() {
            let Some((place, mut future)) = waiting.pop_front() else { break };
            match future.as_mut().poll(cx) {
                Poll::Ready(output) => outputs[place] = Some(output),
                Poll::Pending => waiting.push_back((place, future)),
            }
            // All have the same waker, so those that are left may have been woken, too.
            if left > 0 && now().saturating_duration_since(begin) >= TICK {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        if waiting.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::future::ready;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::task::{Context, Wake, Waker};

    use futures::FutureExt as _;
    use futures::future::Either;
    use tokio::sync::oneshot;

    use super::*;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn it_yields_after_a_tick_and_before_what_may_take_one() {
        let overdue = || YieldAfterTick { since: Instant::now() - TICK };
        assert_eq!(overdue().yield_after_tick().now_or_never(), None);
        let later = || YieldAfterTick { since: Instant::now() + TICK * 1000 };
        assert_eq!(later().yield_after_tick().now_or_never(), Some(()));
        assert_eq!(later().before(QUICK).now_or_never(), Some(()));
        assert_eq!(later().before(QUICK + 1).now_or_never(), None);
    }

    #[test]
    fn several_guests_yield_after_a_tick_and_the_next_poll_begins_with_the_others() {
        let (start, ticks) = (Instant::now(), Cell::new(0));
        let polled = RefCell::new(Vec::new());
        // Each takes a tick, yields, and takes another one.
        let guest = |number: u32| {
            let (polled, ticks) = (&polled, &ticks);
            let mut left = 2;
            poll_fn(move |cx| {
                polled.borrow_mut().push(number);
                ticks.set(ticks.get() + 1);
                left -= 1;
                if left > 0 {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Ready(number)
            })
        };
        let mut all = pin!(side_by_side((0..16).map(guest), || start + TICK * ticks.get()));
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut polls = 0;
        let outputs = loop {
            let before = woken.0.load(SeqCst);
            match all.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(outputs) => break outputs,
                Poll::Pending => assert!(woken.0.load(SeqCst) > before, "it goes on"),
            }
            polls += 1;
            assert_eq!(polled.borrow().len(), polls, "one in each poll");
        };
        assert_eq!(outputs, (0..16).collect::<Vec<_>>());
        assert_eq!(*polled.borrow(), (0..16).chain(0..16).collect::<Vec<_>>(), "they take turns");
    }

    #[test]
    fn quick_ones_are_done_at_once_and_who_is_woken_is_polled() {
        let start = Instant::now();
        let (tell, told) = oneshot::channel();
        let one = |number: u8| ready(Ok(number));
        let futures = [Either::Left(one(0)), Either::Right(told), Either::Left(one(2))];
        let mut all = pin!(side_by_side(futures, || start));
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        assert!(all.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(woken.0.load(SeqCst), 0, "the one that is left waits");
        tell.send(1).expect("it waits");
        assert_eq!(woken.0.load(SeqCst), 1);
        let outputs = all.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(outputs, Poll::Ready(vec![Ok(0), Ok(1), Ok(2)]));
        assert_eq!(side_by_side(Vec::<std::future::Ready<u8>>::new(), || start).now_or_never(), Some(vec![]));
    }
}
