//! Work on the volume that may take for ever: a disk in the network can hang, and no call on it can be given up.

use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use portcullis_contract::{Failure, Reason};
use portcullis_process::Now;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

/// How long work on the volume takes at most before the state says that the volume does not answer.
const LONGEST: Duration = Duration::from_secs(30);

/// Work on a thread that may block. It is not begun again before it has ended, so that a volume that hangs takes one thread, and not another one
/// at each try.
#[derive(Debug, Default)]
pub(super) struct OneAtATime(Option<(Instant, JoinHandle<()>)>);

impl OneAtATime {
    /// Does work, and waits for its result for at most `limit`; `None` if it takes longer, or the last one has not ended.
    pub(super) async fn run<T: Send + 'static>(
        &mut self,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if self.since().is_some() {
            return None;
        }
        let (sender, result) = tokio::sync::oneshot::channel();
        let task = spawn_blocking(move || {
            // An error means that the result came too late.
            let _ = sender.send(work());
        });
        self.0 = Some((Instant::now(), task));
        timeout(limit, result).await.ok()?.ok()
    }

    /// When the work began that has not ended yet.
    pub(super) fn since(&self) -> Option<Instant> {
        let (begun, task) = self.0.as_ref()?;
        (!task.is_finished()).then_some(*begun)
    }
}

/// Since when the volume has not answered, if it has not for too long.
#[derive(Debug, Default)]
pub(super) struct Silence(Option<Timestamp>);

impl Silence {
    /// Takes in when the works began that have not ended yet. True if the volume no longer answers, or does again.
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
        let text = format!("the volume has not answered for more than {} s", LONGEST.as_secs());
        self.0.map(|since| Failure::new(0, Reason::VolumeReadOnly, &text, since))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A limit for what comes by itself.
    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn work_that_hangs_is_not_begun_again_before_it_ends() {
        let (release, released) = mpsc::channel::<()>();
        let mut looking = OneAtATime::default();
        assert_eq!(looking.run(LONG, || 1).await, Some(1));
        while looking.since().is_some() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(looking.run(Duration::from_millis(1), move || released.recv()).await, None);
        let begun = looking.since().expect("it hangs");
        let (sender, second) = mpsc::channel();
        assert_eq!(looking.run(LONG, move || sender.send(())).await, None);
        assert!(second.recv().is_err(), "nothing else is begun");
        assert_eq!(looking.since(), Some(begun));
        release.send(()).expect("it waits");
        let again = async {
            loop {
                match looking.run(LONG, || 3).await {
                    Some(result) => return result,
                    None => tokio::time::sleep(Duration::from_millis(1)).await,
                }
            }
        };
        assert_eq!(timeout(LONG, again).await, Ok(3));
    }

    #[tokio::test]
    async fn work_that_panics_has_ended() {
        let mut looking = OneAtATime::default();
        let panics: fn() -> u8 = || panic!("a mistake");
        assert_eq!(looking.run(LONG, panics).await, None);
        while looking.since().is_some() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
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
        assert_eq!(failure.message, "the volume has not answered for more than 30 s");
        assert!(silence.note(&[None, Some(at(31).instant)], at(32)) && silence.failure().is_none());
        assert!(!silence.note(&[None, None], at(33)));
    }
}
