//! The loop that keeps what is in Secrets: certificates, and the keys of webhook paths.
//!
//! Each turn has a time limit. Turns that fail are tried again after longer and longer pauses, and the log has one line when they
//! begin to fail and one when they work again.

use std::fmt::Display;
use std::time::{Duration, Instant};

use portcullis_util::{Backoff, LogOnce};
use prometheus::IntCounter;

use crate::failed::obeying;

/// How often Secrets are read. Reading two small objects is simpler than handling every way in which
/// a watch can end.
pub(crate) const POLL: Duration = Duration::from_secs(5);
/// The pause between two steps of a change.
pub(crate) const STEP_PAUSE: Duration = Duration::from_millis(100);
/// Longest turn.
const TURN_LIMIT: Duration = Duration::from_secs(60);
/// Pauses after failures.
const BACKOFF: Backoff = Backoff { shortest: Duration::from_secs(2), longest: Duration::from_secs(60) };

/// What is kept in a Secret.
pub(crate) trait Keep: Send {
    /// Why a turn failed.
    type Error: Display + From<TimedOut> + Send + Sync;

    /// What is kept, for the log, in the plural.
    const KEPT: &'static str;

    /// Looks once, and does at most one step.
    fn turn(&mut self) -> impl Future<Output = Result<Turn, Self::Error>> + Send;

    /// How long the API server asks to wait, if it does.
    fn asked_wait(error: &Self::Error) -> Option<Duration>;

    /// Called after each turn that failed.
    fn failed(&mut self, error: &Self::Error) -> impl Future<Output = ()> + Send;

    /// Counts turns that failed or found a problem.
    fn errors(&self) -> &IntCounter;
}

/// The result of a turn.
pub(crate) struct Turn {
    /// The time until the next turn.
    pub(crate) pause: Duration,
    /// What is wrong with the stored Secrets, although the turn worked.
    pub(crate) problem: Option<String>,
}

/// A turn took too long.
#[derive(Debug, thiserror::Error)]
#[error("the API server did not answer within {TURN_LIMIT:?}")]
pub(crate) struct TimedOut;

/// Takes turns for ever. It may be dropped at any moment: the next loop finds and finishes what is half done.
pub(crate) async fn keep<K: Keep>(mut kept: K) {
    let (mut log, mut failures) = (LogOnce::default(), 0);
    loop {
        let turn = tokio::time::timeout(TURN_LIMIT, kept.turn()).await.unwrap_or_else(|_| Err(TimedOut.into()));
        let (pause, problem) = match turn {
            Ok(Turn { pause, problem }) => {
                failures = 0;
                (pause, problem)
            }
            Err(error) => {
                failures += 1;
                kept.failed(&error).await;
                (pause(failures, K::asked_wait(&error), fastrand::f64()), Some(error.to_string()))
            }
        };
        match problem {
            Some(problem) => {
                kept.errors().inc();
                if log.fails(&problem, Instant::now()) {
                    tracing::error!(error = problem, "{} cannot be maintained", K::KEPT);
                }
            }
            None if log.works() => tracing::info!("{} are maintained again", K::KEPT),
            None => {}
        }
        tokio::time::sleep(pause).await;
    }
}

/// The pause after this many failures in a row.
fn pause(failures: u32, asked: Option<Duration>, random: f64) -> Duration {
    obeying(asked, BACKOFF.wait(failures, random))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_api_server_asks_for_is_obeyed_within_a_limit() {
        let pause = |asked: Option<u64>| pause(1, asked.map(Duration::from_secs), 1.0).as_secs();
        assert_eq!([None, Some(1), Some(30), Some(3600)].map(pause), [2, 2, 30, 60]);
    }
}
