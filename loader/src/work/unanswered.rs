//! Work on files that may take for ever: a disk in the network can hang, and no call on it can be given up.

use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use portcullis_contract::{Failure, Reason};
use portcullis_process::Now;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

/// How long work on files takes at most before the state says that they do not answer.
const LONGEST: Duration = Duration::from_secs(30);

/// Work on a thread that may block. It is not begun again before its result was taken, so that a disk that hangs takes one thread, and not
/// another one at each try, and what a slow one has found is not lost.
#[derive(Debug)]
pub(super) struct OneAtATime<T>(Option<(Instant, JoinHandle<T>)>);

impl<T> Default for OneAtATime<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Send + 'static> OneAtATime<T> {
    /// Begins work, and waits for its result for at most `limit`; `None` if it takes longer. If there is work whose result was not taken, nothing
    /// is begun, and this is its result, or `None` at once if it has not ended.
    pub(super) async fn run(&mut self, limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (task, limit) = match &mut self.0 {
            Some((_, task)) => (task, Duration::ZERO),
            none => (&mut none.insert((Instant::now(), spawn_blocking(work))).1, limit),
        };
        let result = timeout(limit, task).await.ok()?;
        self.0 = None;
        // An error means a panic: there is no result.
        result.ok()
    }

    /// Whether there is work whose result was not taken.
    pub(super) fn has_begun(&self) -> bool {
        self.0.is_some()
    }

    /// When the work began that has not ended yet.
    pub(super) fn since(&self) -> Option<Instant> {
        let (begun, task) = self.0.as_ref()?;
        (!task.is_finished()).then_some(*begun)
    }
}

/// Since when the volume or another file has not answered, if it has not for too long.
#[derive(Debug, Default)]
pub(super) struct Silence(Option<Timestamp>);

impl Silence {
    /// Takes in when the works began that have not ended yet. True if one of them no longer ends, or all do again.
    pub(super) fn note(&mut self, begun: &[Option<Instant>], now: Now) -> bool {
        let longest = begun.iter().flatten().map(|begun| now.instant.saturating_duration_since(*begun)).max();
        let silent = longest.filter(|time| *time >= LONGEST);
        if silent.is_some() == self.0.is_some() {
            return false;
        }
        self.0 = silent.map(|time| {
            let time = SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX);
            now.wall.saturating_sub(time).unwrap_or(now.wall)
        });
        true
    }

    /// What the state says.
    pub(super) fn failure(&self) -> Option<Failure> {
        let text = format!(
            "the volume, or a file that the loader reads for its settings, has not answered for more than {} s",
            LONGEST.as_secs()
        );
        self.0.map(|since| Failure::new(0, Reason::VolumeReadOnly, &text, since))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, mpsc};

    use super::*;

    /// A limit for what comes by itself.
    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn work_that_hangs_is_not_begun_again_before_it_ends() {
        let (release, released) = mpsc::channel::<()>();
        let mut looking = OneAtATime::default();
        assert_eq!(looking.run(LONG, || 1).await, Some(1));
        assert!(!looking.has_begun() && looking.since().is_none());
        let hangs = move || released.recv().map_or(0, |()| 2);
        assert_eq!(looking.run(Duration::from_millis(1), hangs).await, None);
        let begun = looking.since().expect("it hangs");
        let (sender, second) = mpsc::channel();
        let another = move || sender.send(()).map_or(0, |()| 3);
        assert_eq!(timeout(LONG, looking.run(LONG * 2, another)).await, Ok(None), "and nobody waits for it");
        assert!(second.recv().is_err(), "nothing else is begun");
        assert_eq!(looking.since(), Some(begun));
        release.send(()).expect("it waits");
        assert_eq!(timeout(LONG, late(&mut looking)).await, Ok(2));
        assert_eq!(looking.run(LONG, || 4).await, Some(4));
    }

    /// The result of work that has begun.
    async fn late(looking: &mut OneAtATime<i32>) -> i32 {
        loop {
            match looking.run(LONG, || panic!("nothing else is begun")).await {
                Some(result) => return result,
                None => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    }

    #[tokio::test]
    async fn work_that_takes_twice_its_limit_gives_its_result_late_and_is_begun_once() {
        let (limit, begun) = (Duration::from_millis(20), Arc::new(AtomicUsize::new(0)));
        let mut looking = OneAtATime::default();
        let mut turns = 0;
        let found = loop {
            let begun = Arc::clone(&begun);
            let look = move || {
                let number = begun.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(2 * limit);
                number
            };
            match looking.run(limit, look).await {
                Some(number) => break number,
                None => tokio::time::sleep(limit).await,
            }
            turns += 1;
            assert!(turns < 1000, "its result never comes");
        };
        assert_eq!((found, begun.load(Ordering::Relaxed), looking.has_begun()), (0, 1, false));
    }

    #[tokio::test]
    async fn work_that_panics_has_ended() {
        let mut looking = OneAtATime::default();
        let panics: fn() -> u8 = || panic!("a mistake");
        assert_eq!(looking.run(LONG, panics).await, None);
        assert!(!looking.has_begun());
        assert_eq!(looking.run(LONG, || 2).await, Some(2));
    }

    #[test]
    fn a_volume_that_has_not_answered_for_half_a_minute_is_a_failure_until_it_answers() {
        let begin = Now::get();
        let at = |seconds| {
            let (time, wall) = (Duration::from_secs(seconds), SignedDuration::from_secs(seconds.cast_signed()));
            Now { instant: begin.instant + time, wall: begin.wall + wall }
        };
        let (mut silence, begun) = (Silence::default(), Some(begin.instant));
        assert!(!silence.note(&[None, begun], at(29)) && silence.failure().is_none());
        assert!(silence.note(&[None, begun], at(30)), "it is said");
        assert!(!silence.note(&[Some(at(20).instant), begun], at(31)), "it is said once");
        let failure = silence.failure().expect("a failure");
        assert_eq!((failure.reason, failure.since), (Reason::VolumeReadOnly, begin.wall));
        assert_eq!(
            failure.message,
            "the volume, or a file that the loader reads for its settings, has not answered for more than 30 s"
        );
        assert!(silence.note(&[None, Some(at(31).instant)], at(32)) && silence.failure().is_none());
        assert!(!silence.note(&[None, None], at(33)));
    }
}
