//! Shutdown, which a signal or a test begins.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Tells every part of a program to end.
#[derive(Clone, Default)]
pub struct Shutdown(CancellationToken);

impl Shutdown {
    /// A shutdown that SIGTERM or SIGINT begins.
    ///
    /// # Errors
    /// When the signals cannot be caught.
    pub fn on_signals() -> std::io::Result<Self> {
        let shutdown = Self::default();
        let token = shutdown.clone();
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            token.begin();
            tracing::info!("shutting down");
        });
        Ok(shutdown)
    }

    /// Begins the shutdown.
    pub fn begin(&self) {
        self.0.cancel();
    }

    /// Whether the shutdown has begun.
    pub fn has_begun(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Waits until the shutdown begins.
    pub async fn begun(&self) {
        self.0.cancelled().await;
    }
}
