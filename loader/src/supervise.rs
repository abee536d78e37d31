//! Loops that come back: a panic ends in a new start and never in the end of the program.

use std::future::Future;
use std::time::Duration;

use portcullis_process::Shutdown;

/// Pause before a loop that ended is started again.
const PAUSE: Duration = Duration::from_secs(1);

/// Runs `body` on a task of its own until the shutdown begins, again whenever it ends or panics.
pub(crate) fn forever<F>(name: &'static str, shutdown: &Shutdown, body: impl Fn() -> F + Send + 'static)
where
    F: Future<Output = ()> + Send + 'static,
{
    let shutdown = shutdown.clone();
    tokio::spawn(async move {
        loop {
            let ended = tokio::spawn(body()).await;
            if shutdown.has_begun() {
                return;
            }
            match ended {
                Ok(()) => tracing::error!(part = name, "a part of the loader ended and is started again"),
                Err(error) => tracing::error!(part = name, %error, "a part of the loader failed and is started again"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    });
}
