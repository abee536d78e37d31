//! The order in which the parts of the loader end.
//!
//! ```text
//!  signal ──► checks and the loop end
//!         └─► the evaluator drains? ──► no: the broker ends
//!                                   └─► yes: the broker answers until the evaluator has ended
//! ```
//!
//! A kubelet asks all containers of a pod to end at the same time. The evaluator then goes on answering API servers that do not know it yet, and its
//! policies go on asking their host.

use std::sync::Arc;
use std::time::Duration;

use portcullis_contract::EvaluatorState;
use portcullis_process::Beat;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// How long the loop may take to end.
const LAST_TURN: Duration = Duration::from_secs(2);
/// How long the evaluator may take to say that it drains: a kubelet does not signal both at the same moment, and the state comes by long
/// poll. Where only the loader is restarted, this is how much longer that takes; calls are answered meanwhile.
const NOTICE: Duration = Duration::from_secs(2);
/// The interval of beats.
const BEAT: Duration = Duration::from_secs(1);

/// What runs until the end.
pub(crate) struct Parts {
    /// The loop, which ends by itself when the shutdown begins.
    pub(crate) work: JoinHandle<()>,
    /// The checks of policies that are applied, if there are any.
    pub(crate) checks: Option<JoinHandle<()>>,
    /// The broker, if there is one. When the shutdown begins, it ends with its connection.
    pub(crate) broker: Option<Broker>,
    /// The beats of loops that have ended. Kept, so that the program counts as alive whatever the limit of the broker is.
    pub(crate) beats: [Beat; 2],
}

impl Parts {
    /// Ends all parts after the shutdown has begun.
    pub(crate) async fn end(self) {
        self.end_with_beats(BEAT).await;
    }

    /// The same, with this interval of beats.
    async fn end_with_beats(self, interval: Duration) {
        // A user who applies a policy does not wait for a verdict that does not come.
        if let Some(checks) = self.checks {
            checks.abort();
        }
        let work = async {
            let mut work = self.work;
            // The loop drops its jobs, which ends children and removes temporary files.
            if timeout(LAST_TURN, &mut work).await.is_err() {
                work.abort();
            }
        };
        let broker = async {
            if let Some(broker) = self.broker {
                broker.end(NOTICE).await;
            }
        };
        let alive = async {
            loop {
                self.beats.iter().for_each(Beat::now);
                sleep(interval).await;
            }
        };
        tokio::select! {
            _ = futures::future::join(work, broker) => {}
            () = alive => {}
        }
    }
}

/// The running broker.
pub(crate) struct Broker {
    /// Its task, which ends with its connection once the shutdown has begun.
    pub(crate) task: JoinHandle<()>,
    /// The evaluator's state.
    pub(crate) evaluator: watch::Receiver<Option<Arc<EvaluatorState>>>,
    /// How long it may go on after the shutdown has begun.
    pub(crate) limit: Duration,
}

impl Broker {
    /// Waits for its end while the evaluator drains. An evaluator that does not say so within `notice` goes on without this loader, and with the
    /// next one.
    async fn end(mut self, notice: Duration) {
        let until = Instant::now() + self.limit;
        let mut evaluator = self.evaluator;
        let drains = async {
            let drains = |state: &Option<Arc<EvaluatorState>>| state.as_ref().is_some_and(|state| state.draining);
            evaluator.wait_for(drains).await.is_ok()
        };
        let is_draining = tokio::select! {
            _ended = &mut self.task => return,
            drains = timeout(notice.min(self.limit), drains) => drains.unwrap_or(false),
        };
        if is_draining {
            let seconds = self.limit.as_secs();
            tracing::info!(
                seconds,
                "the evaluator is draining: calls of its policies to their host are answered until it ends, at most for this many seconds"
            );
            if timeout_at(until, &mut self.task).await.is_ok() {
                return;
            }
            tracing::warn!(
                "the evaluator has not ended in time; calls of its policies to their host are no longer answered"
            );
        }
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A limit for what comes by itself.
    const LONG: Duration = Duration::from_secs(60);
    /// Long enough for a task that waits for nothing.
    const SHORT: Duration = Duration::from_millis(50);

    struct Scene {
        evaluator: watch::Sender<Option<Arc<EvaluatorState>>>,
        /// The evaluator's end of the connection.
        connection: tokio::sync::oneshot::Sender<()>,
        ending: JoinHandle<()>,
    }

    /// A broker that has begun to end.
    fn scene(notice: Duration, limit: Duration) -> Scene {
        let (connection, closed) = tokio::sync::oneshot::channel::<()>();
        let task = tokio::spawn(async move { drop(closed.await) });
        let (evaluator, states) = watch::channel(Some(Arc::default()));
        let broker = Broker { task, evaluator: states, limit };
        Scene { evaluator, connection, ending: tokio::spawn(broker.end(notice)) }
    }

    fn draining() -> Option<Arc<EvaluatorState>> {
        Some(Arc::new(EvaluatorState { draining: true, ..EvaluatorState::default() }))
    }

    fn ages_of(liveness: &portcullis_process::Liveness) -> Vec<Duration> {
        liveness.checks().into_iter().map(|(_, _, age)| age).collect()
    }

    async fn ends(task: JoinHandle<()>) {
        timeout(LONG, task).await.expect("in time").expect("does not panic");
    }

    #[tokio::test]
    async fn while_the_evaluator_drains_the_broker_goes_on_until_its_connection_ends() {
        let mut scene = scene(LONG, LONG);
        assert!(timeout(SHORT, &mut scene.ending).await.is_err(), "the signal may reach the evaluator later");
        scene.evaluator.send_replace(draining());
        assert!(timeout(SHORT, &mut scene.ending).await.is_err());
        assert!(!scene.connection.is_closed(), "it answers");
        drop(scene.connection);
        ends(scene.ending).await;
    }

    #[tokio::test]
    async fn the_broker_of_a_loader_that_is_restarted_alone_ends_soon() {
        let mut scene = scene(SHORT, LONG);
        ends(scene.ending).await;
        timeout(LONG, scene.connection.closed()).await.expect("the broker has ended");
    }

    #[tokio::test]
    async fn without_a_connection_there_is_nothing_to_wait_for() {
        let scene = scene(LONG, LONG);
        drop(scene.connection);
        ends(scene.ending).await;
    }

    #[tokio::test]
    async fn an_evaluator_that_does_not_end_is_left_after_the_limit() {
        let mut scene = scene(SHORT, 40 * SHORT);
        scene.evaluator.send_replace(draining());
        assert!(timeout(4 * SHORT, &mut scene.ending).await.is_err(), "the notice is not the limit");
        ends(scene.ending).await;
        timeout(LONG, scene.connection.closed()).await.expect("the broker has ended");
    }

    #[tokio::test]
    async fn the_loop_ends_while_the_broker_goes_on_and_the_program_is_alive() {
        let liveness = portcullis_process::Liveness::default();
        let beats = [liveness.beat("loader", LONG), liveness.beat("input", LONG)];
        let (worked, mut working) = tokio::sync::oneshot::channel::<()>();
        let (connection, closed) = tokio::sync::oneshot::channel::<()>();
        let (_evaluator, states) = watch::channel(draining());
        let parts = Parts {
            work: tokio::spawn(async move { drop(worked) }),
            checks: Some(tokio::spawn(std::future::pending())),
            broker: Some(Broker {
                task: tokio::spawn(async move { drop(closed.await) }),
                evaluator: states,
                limit: LONG,
            }),
            beats,
        };
        let mut ending = tokio::spawn(parts.end_with_beats(Duration::from_millis(10)));
        assert!(timeout(SHORT, &mut ending).await.is_err());
        assert!(working.try_recv().is_err_and(|error| error == tokio::sync::oneshot::error::TryRecvError::Closed));
        // A beat is younger than what was before it, so there is another one after each.
        for _ in 0..2 {
            let mut ages = ages_of(&liveness);
            let beat_again = async {
                loop {
                    let now = ages_of(&liveness);
                    if now.iter().zip(&ages).all(|(now, before)| now < before) {
                        return;
                    }
                    ages = ages.into_iter().zip(now).map(|(before, now)| before.max(now)).collect();
                    sleep(Duration::from_millis(1)).await;
                }
            };
            timeout(LONG, beat_again).await.expect("beats");
        }
        drop(connection);
        ends(ending).await;
    }
}
