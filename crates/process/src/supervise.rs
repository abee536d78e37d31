//! Parts of a program that start again: a panic in one of them ends neither the program nor another part.

use std::future::Future;
use std::time::Duration;

use tokio::task::{JoinHandle, JoinSet};

use crate::Shutdown;

/// Pause before a part that ended is started again.
const PAUSE: Duration = Duration::from_secs(1);

/// Runs a part of a program on a task of its own, and starts it again whenever it ends or panics, unless the shutdown has begun. It does
/// not end the part: a part watches the shutdown itself, or the caller aborts the task, which ends the part too.
pub fn supervised<F: Future<Output = ()> + Send + 'static>(
    part: &'static str,
    shutdown: &Shutdown,
    start: impl Fn() -> F + Send + 'static,
) -> JoinHandle<()> {
    let shutdown = shutdown.clone();
    tokio::spawn(async move {
        loop {
            // A `JoinSet`, so that the part ends with this task.
            let mut set = JoinSet::new();
            set.spawn(start());
            let ended = set.join_next().await;
            if shutdown.has_begun() {
                return;
            }
            match ended {
                Some(Err(error)) => tracing::error!(part, %error, "a part of the program failed and is started again"),
                _ => tracing::error!(part, "a part of the program ended and is started again"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    })
}
